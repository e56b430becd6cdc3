/*
 * The vsock device as a process of its own, in a directory of its own, with a fake VMM
 * connected: the fixture of its tests. Every test starts afresh.
 */
#ifndef SANDGATE_VSOCK_FIXTURE_H
#define SANDGATE_VSOCK_FIXTURE_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "host-bridge/device/vsock_device.h"
#include "proto/limits.h"
#include "tests/fake_vmm.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/sandgate-vsock-XXXXXX";
static char vmm_path[64], uds_path[64];
static pid_t device;
static struct fake_vmm vmm;

static int dial(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	strcpy(addr.sun_path, path);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void start_device(void)
{
	int ready[2];
	char line[6];
	char *argv[] = {"vsock-device", "--socket", vmm_path, "--uds", uds_path, NULL};

	ck_assert_int_eq(pipe(ready), 0);
	fflush(NULL);
	device = fork();
	if (device == 0) {
		dup2(ready[1], STDOUT_FILENO);
		close(ready[0]);
		close(ready[1]);
		_exit(vsock_device_main(5, argv));
	}
	close(ready[1]);
	ck_assert_int_eq(read(ready[0], line, sizeof(line)), 6);
	ck_assert_mem_eq(line, "ready\n", 6);
	close(ready[0]);
}

static void open_vmm(void)
{
	vmm.sock = dial(vmm_path);
	vmm.memfd = memfd_create("guest", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(vmm.memfd, MEM_SIZE), 0);
	vmm.mem = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, vmm.memfd, 0);
	ck_assert_ptr_ne(vmm.mem, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		vmm.rings[i].kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		vmm.rings[i].call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
	guest_make_rings(&vmm);
}

static void close_vmm(void)
{
	close(vmm.sock);
	close(vmm.memfd);
	munmap(vmm.mem, MEM_SIZE);
	for (int i = 0; i < 2; i++) {
		close(vmm.rings[i].kick);
		close(vmm.rings[i].call);
	}
}

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chmod(dir, 0777), 0);
	snprintf(vmm_path, sizeof(vmm_path), "%s/vh", dir);
	snprintf(uds_path, sizeof(uds_path), "%s/v", dir);
	start_device();
	open_vmm();
}

/* Bring the device up as QEMU does, with all receive buffers but one posted. */
static void bring_up(void)
{
	uint64_t offered = vmm_ask(&vmm, 1);
	vmm_send_u64(&vmm, 2, (offered & ~(1ull << VIRTIO_RING_F_EVENT_IDX)));
	vmm_send_u64(&vmm, 16, vmm_ask(&vmm, 15));
	vmm_share_memory(&vmm);
	vmm_start_ring(&vmm, VMM_RX, 0);
	vmm_start_ring(&vmm, VMM_TX, 0);
	guest_post(&vmm, RX_BUFS - 1);
}

static void setup_running(void)
{
	setup();
	bring_up();
}

static void teardown(void)
{
	char path[160];
	if (device > 0) {
		kill(device, SIGKILL);
		waitpid(device, NULL, 0);
	}
	close_vmm();
	unlink(vmm_path);
	unlink(uds_path);
	snprintf(path, sizeof(path), "%s_77", uds_path);
	unlink(path);
	rmdir(dir);
}

static int host_connect(void)
{
	int fd = dial(uds_path);
	ck_assert_int_eq(write(fd, "CONNECT 523\n", 12), 12);
	return fd;
}

/* A host client whose connection the guest took; `*peer` is a packet to answer to. */
static int host_connected(struct vsock_pkt *peer)
{
	char line[32] = "";
	char expected[32];
	int fd = host_connect();

	*peer = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(peer->op, VIRTIO_VSOCK_OP_REQUEST);
	ck_assert_uint_eq(peer->dst_port, 523);
	ck_assert_uint_eq(peer->dst_cid, GUEST_CID);
	guest_answer(&vmm, peer, VIRTIO_VSOCK_OP_RESPONSE, 0, NULL, 0);
	ck_assert(readable(fd));
	ck_assert_int_gt(read(fd, line, sizeof(line) - 1), 0);
	snprintf(expected, sizeof(expected), "OK %u\n", peer->src_port);
	ck_assert_str_eq(line, expected);
	return fd;
}

static void assert_eof(int fd)
{
	char byte;
	ck_assert(readable(fd));
	ck_assert_int_eq(read(fd, &byte, 1), 0);
}

#endif
