/*
 * `host-bridge vsock-device`: one process that gives one VM a virtio-vsock device over
 * vhost-user, with Firecracker's hybrid socket on the host's side. Started by launchers;
 * it outlives the bridge; it ends when no VMM has been connected for
 * VSOCK_VMM_WAIT_S.
 *
 *   --socket PATH   the VMM connects here (vhost-user); one at a time
 *   --uds PATH      the hybrid socket; guests are connected to PATH_<port>
 *   --guest-cid N   default 3
 *   --uid, --gid N  whom to become when started by root; default nobody (65534)
 *
 * Both sockets are bound with mode 0600 for uid:gid, and "ready" is written to standard
 * output once they are. As root, the process is then locked into the directory of the
 * hybrid socket, which uid must be able to search (for PATH_<port>) and should be able to
 * write (to unlink the hybrid socket at the end).
 *
 * Exit status: 0 at SIGTERM; 1 when it could not start, when no VMM came (again), or when the
 * VMM or its guest's memory broke the protocol; 2 for a wrong option.
 */
#ifndef SANDGATE_VSOCK_DEVICE_H
#define SANDGATE_VSOCK_DEVICE_H

int vsock_device_main(int argc, char **argv);

#endif
