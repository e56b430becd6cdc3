/*
 * What Firecracker is told and how its sockets are called, both in the directory that it runs
 * in: the VM's, or the root of its jail. For launcher_firecracker.c and vmm_firecracker.c only.
 */
#ifndef SANDGATE_VMM_FIRECRACKER_H
#define SANDGATE_VMM_FIRECRACKER_H

#define FIRECRACKER_API "api.sock"
#define FIRECRACKER_VSOCK "v.sock"

#endif
