/*
 * The guest's half of `make bench`: what this guest can do by itself, without Sandgate, so
 * that every figure has its floor from the same run. A static program, carried into the guest
 * by an exec's stdin:
 *
 *   guest-bench serve PORT    answer one connection after another on that vsock port:
 *                             "e"   -> "e"                        one raw round trip
 *                             "s"   -> u64 ns                     one posix_spawn + wait of
 * true "l" u32 workers, u32 ms -> u64 n    spawn loop, how many completed "c" u32 MiB -> that
 * many MiB        one raw copy out of the guest guest-bench write MIB     write that many MiB
 * of text to standard output
 *
 * Numbers are in the machine's byte order: both ends are one machine.
 */
#include <errno.h>
#include <linux/vm_sockets.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SELF "/proc/self/exe"
#define BLOCK (64 * 1024)

static char block[BLOCK];

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int write_all(int fd, const void *data, size_t len)
{
	const char *p = data;
	while (len > 0) {
		ssize_t n = write(fd, p, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int read_all(int fd, void *data, size_t len)
{
	char *p = data;
	while (len > 0) {
		ssize_t n = read(fd, p, len);
		if (n <= 0)
			return -1;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int spawn_true(void)
{
	char *argv[] = {(char *)"guest-bench", (char *)"true", NULL}, *envp[] = {NULL};
	pid_t pid;
	int status;

	if (posix_spawn(&pid, SELF, NULL, NULL, argv, envp) != 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* `workers` processes spawn and wait in a loop for `ms`; how many spawns completed. */
static uint64_t spawn_loop(uint32_t workers, uint32_t ms)
{
	uint64_t *counts = mmap(NULL, workers * sizeof(*counts), PROT_READ | PROT_WRITE,
	                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t total = 0, until = now_ns() + (uint64_t)ms * 1000000u;

	if (counts == MAP_FAILED)
		return 0;
	for (uint32_t i = 0; i < workers; i++) {
		if (fork() != 0)
			continue;
		while (now_ns() < until && spawn_true() == 0)
			counts[i]++;
		_exit(0);
	}
	while (wait(NULL) > 0 || errno == EINTR)
		;
	for (uint32_t i = 0; i < workers; i++)
		total += counts[i];
	munmap(counts, workers * sizeof(*counts));
	return total;
}

static int write_mib(int fd, uint32_t mib)
{
	for (uint64_t i = 0; i < (uint64_t)mib * 16; i++)
		if (write_all(fd, block, BLOCK) < 0)
			return -1;
	return 0;
}

static int answer(int fd, char op)
{
	uint32_t a[2];
	uint64_t n;

	switch (op) {
	case 'e':
		return write_all(fd, "e", 1);
	case 's':
		n = now_ns();
		if (spawn_true() < 0)
			return -1;
		n = now_ns() - n;
		return write_all(fd, &n, sizeof(n));
	case 'l':
		if (read_all(fd, a, 8) < 0)
			return -1;
		n = spawn_loop(a[0], a[1]);
		return write_all(fd, &n, sizeof(n));
	case 'c':
		return read_all(fd, a, 4) < 0 ? -1 : write_mib(fd, a[0]);
	default:
		return -1;
	}
}

static int serve(unsigned port)
{
	struct sockaddr_vm sa = {
	    .svm_family = AF_VSOCK, .svm_port = port, .svm_cid = VMADDR_CID_ANY};
	int ls = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (ls < 0 || bind(ls, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(ls, 4) < 0) {
		perror("guest-bench: listen");
		return 1;
	}
	if (write_all(STDOUT_FILENO, "listening\n", 10) < 0)
		return 1;
	for (;;) {
		char op;
		int fd = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		while (read_all(fd, &op, 1) == 0 && answer(fd, op) == 0)
			;
		close(fd);
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "true") == 0)
		return 0;
	memset(block, 'x', sizeof(block));
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve((unsigned)strtoul(argv[2], NULL, 10));
	if (argc == 3 && strcmp(argv[1], "write") == 0)
		return write_mib(STDOUT_FILENO, (uint32_t)strtoul(argv[2], NULL, 10)) < 0;
	fprintf(stderr, "usage: guest-bench serve PORT | write MIB | true\n");
	return 2;
}
