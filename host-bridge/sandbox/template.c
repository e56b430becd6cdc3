#include "host-bridge/sandbox/template.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Names come from HTTP clients and become a path: nothing but these bytes, no leading dot. */
static int check_name(const char *name, struct err *e)
{
	static const char allowed[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t len = strlen(name);
	if (len == 0 || len > 63 || name[0] == '.' || strspn(name, allowed) != len)
		return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
		                 "there is no such template");
	return 0;
}

/* The file that `named` names, relative to the template's directory. */
static int find_file(const json_t *named, const char *what, const char *dir, char out[PATH_MAX],
                     struct err *e)
{
	const char *path = json_string_value(named);
	if (path == NULL)
		return err_set(e, ERR_LAUNCHER_FAILED, "the template names no %s for this VMM",
		               what);
	char joined[2 * PATH_MAX];
	snprintf(joined, sizeof(joined), "%s%s%s", path[0] == '/' ? "" : dir,
	         path[0] == '/' ? "" : "/", path);
	if (realpath(joined, out) == NULL)
		return err_set(e, ERR_LAUNCHER_FAILED, "the template's %s is missing", what);
	return 0;
}

static unsigned number(const json_t *json, const char *key, unsigned otherwise)
{
	json_int_t v = json_integer_value(json_object_get(json, key));
	return v > 0 && v < 1 << 30 ? (unsigned)v : otherwise;
}

int template_load(const char *rootfs_dir, const char *name, const char *vmm, struct template *t,
                  struct err *e)
{
	char dir[PATH_MAX], path[PATH_MAX + 32];
	if (check_name(name, e) < 0)
		return -1;
	snprintf(dir, sizeof(dir), "%s/templates/%s", rootfs_dir, name);
	snprintf(path, sizeof(path), "%s/template.json", dir);
	if (access(path, R_OK) < 0)
		return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
		                 "there is no template %s", name);
	json_error_t why;
	json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	if (json == NULL)
		return err_set(e, ERR_LAUNCHER_FAILED, "the template is no JSON: %s", why.text);
	const json_t *resources = json_object_get(json, "resources");
	t->vcpus = number(resources, "vcpus", 1);
	t->memory_mib = number(resources, "memory_mib", 256);
	char preload[64];
	snprintf(preload, sizeof(preload), "%s_preload", vmm);
	const json_t *library = json_object_get(json, preload);
	int rc = find_file(json_object_get(json_object_get(json, "kernels"), vmm), "kernel",
	                   dir, t->kernel, e);
	if (rc == 0)
		rc = find_file(json_object_get(json_object_get(json, "initrds"), vmm), "initrd",
		               dir, t->initrd, e);
	t->preload[0] = '\0';
	if (rc == 0 && library != NULL)
		rc = find_file(library, "library", dir, t->preload, e);
	json_decref(json);
	return rc;
}
