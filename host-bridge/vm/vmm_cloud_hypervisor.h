/*
 * What Cloud Hypervisor is told: how its sockets are called, in the VM's directory, which it
 * runs in and which is the root of its jail when it has one; and the configurations of a VM.
 * For launcher_cloud_hypervisor.c, vmm_cloud_hypervisor.c and their tests.
 */
#ifndef SANDGATE_VMM_CLOUD_HYPERVISOR_H
#define SANDGATE_VMM_CLOUD_HYPERVISOR_H

#include <jansson.h>

#include "host-bridge/vm/vmm.h"

#define CLOUD_HYPERVISOR_API "api.sock"
#define CLOUD_HYPERVISOR_VSOCK "v.sock"

/* The body of vm.create, for this version (as ROOM_VERSION). New reference. */
json_t *cloud_hypervisor_config(const struct vmm_boot *b, unsigned version);
/* Make of the configuration that a snapshot has that of a VM which is restored from it, with
 * these disks. -1: it is none. */
int cloud_hypervisor_edit(json_t *config, const struct vmm_boot *b);

#endif
