/*
 * Templates: what a guest boots from, read from ROOTFS/templates/NAME/template.json. The
 * sandbox set reads one a create; launchers use its paths.
 */
#ifndef SANDGATE_TEMPLATE_H
#define SANDGATE_TEMPLATE_H

#include <jansson.h>
#include <limits.h>

#include "proto/err.h"

struct call_request;

struct template
{
	char kernel[PATH_MAX],
	    initrd[PATH_MAX];               /* for the VMM asked for; "" when it has none */
	char root[PATH_MAX];                /* the image that is its root, read only, or "" */
	char preload[PATH_MAX];             /* a library that the VMM needs, or "" */
	unsigned vcpus, memory_mib;         /* defaults of a sandbox */
	unsigned disk_mib;                  /* 0: none */
	struct call_request *start, *ready; /* what it runs once it has booted, or NULL */
};

/* The whole document is checked, also what is for another VMM; the message of an error names
 * the file and the field. ERR_TEMPLATE_NOT_FOUND for a name that is none; ERR_LAUNCHER_FAILED
 * when the template is there but broken, or offers nothing for `vmm` ("qemu", "uml"). */
int template_load(const char *rootfs_dir, const char *name, const char *vmm, struct template *t,
                  struct err *e);
/* Of one that was loaded, or is zeroed: what it owns. */
void template_free(struct template *t);
/* [{name, description, vmms: those it can boot on, root_bytes, resources, error}] in order of
 * name; `error` says why it can boot on none. New reference. */
json_t *template_list(const char *rootfs_dir);

#endif
