/*
 * What QEMU's command line says, and what of it differs on each architecture. For
 * launcher_qemu.c and vmm_qemu.c only.
 */
#ifndef SANDGATE_QEMU_ARCH_H
#define SANDGATE_QEMU_ARCH_H

/* The socket of its monitor, in the VM's directory. */
#define QEMU_MONITOR "qmp.sock"
#define QEMU_VSOCK "vhost-user-vsock-pci"

#if defined(__x86_64__)
#define QEMU_PROGRAM "qemu-system-x86_64"
/* What a guest of ours has no use for costs its kernel time to find. */
#define QEMU_MACHINE "q35,hpet=off,usb=off,sata=off,smbus=off,vmport=off"
#define QEMU_FIRMWARE "qboot.rom"
#define QEMU_CONSOLE "ttyS0"
#elif defined(__aarch64__)
#define QEMU_PROGRAM "qemu-system-aarch64"
#define QEMU_MACHINE "virt"
#define QEMU_CONSOLE "ttyAMA0"
#else
#error "unknown architecture"
#endif

#endif
