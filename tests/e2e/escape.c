/* What a hostile root inside a guest tries that no shell command can: run by
 * test_escape.py, statically linked, one attempt a call. Exit status 0: it worked. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

static int report(const char *what, int rc)
{
	printf("%s: %s\n", what, rc < 0 ? strerror(errno) : "done");
	return rc < 0;
}

static int try_vsock(const char *what, unsigned cid, unsigned port)
{
	struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_cid = cid, .svm_port = port};
	int fd = socket(AF_VSOCK, SOCK_STREAM, 0);

	if (strcmp(what, "bind") == 0)
		return report("bind", bind(fd, (struct sockaddr *)&a, sizeof(a)));
	/* A Ping: an answer of any kind would mean that the agent talks to its own guest. */
	static const unsigned char ping[] = {0, 0, 0, 7, 0x0a, 5, 0x08, 1, 0x82, 0x01, 0};
	char byte;
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return report("connect", -1);
	if (write(fd, ping, sizeof(ping)) < 0 || read(fd, &byte, 1) != 1) {
		printf("connect: no answer\n");
		return 1;
	}
	return report("connect", 0);
}

/* A FUSE mount, over a directory or a file, whose daemon is there and never answers. */
static int dead_fuse(const char *where)
{
	char options[64];
	struct stat st;
	int fd = open("/dev/fuse", O_RDWR);

	if (fd < 0)
		return report("open /dev/fuse", -1);
	mkdir(where, 0755);
	if (stat(where, &st) < 0)
		return report("stat", -1);
	snprintf(options, sizeof(options), "fd=%d,rootmode=%o,user_id=0,group_id=0", fd,
	         st.st_mode & S_IFMT);
	if (mount("dead", where, "fuse", 0, options) < 0)
		return report("mount", -1);
	puts("mounted");
	fflush(stdout);
	for (;;)
		pause();
}

/* Whoever opens a file of that file system waits for an answer, and gets none. */
static int judge(const char *where)
{
	int fd = fanotify_init(FAN_CLASS_CONTENT, O_RDONLY);

	if (fd < 0 || fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN_PERM,
	                            AT_FDCWD, where) < 0)
		return report("judge", -1);
	puts("judging");
	fflush(stdout);
	for (;;)
		pause();
}

/* A terminal that takes no output any more: whoever writes to it waits. */
static int hush(const char *where)
{
	char text[256] = "";
	int fd = open(where, O_RDWR | O_NOCTTY | O_NONBLOCK);

	if (fd < 0 || tcflow(fd, TCOOFF) < 0)
		return report("hush", -1);
	while (write(fd, text, sizeof(text)) > 0)
		;
	puts("hushed");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "bind") == 0)
		return try_vsock("bind", (unsigned)atol(argv[2]), (unsigned)atol(argv[3]));
	if (argc == 4 && strcmp(argv[1], "connect") == 0)
		return try_vsock("connect", (unsigned)atol(argv[2]), (unsigned)atol(argv[3]));
	if (argc == 3 && strcmp(argv[1], "trace") == 0)
		return report("trace", (int)ptrace(PTRACE_ATTACH, atoi(argv[2]), NULL, NULL));
	if (argc == 3 && strcmp(argv[1], "fuse") == 0)
		return dead_fuse(argv[2]);
	if (argc == 3 && strcmp(argv[1], "hush") == 0)
		return hush(argv[2]);
	if (argc == 3 && strcmp(argv[1], "judge") == 0)
		return judge(argv[2]);
	return 2;
}
