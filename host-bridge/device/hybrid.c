#include "host-bridge/device/hybrid.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

int hybrid_listen(const char *path, struct err *e)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(addr.sun_path))
		return err_set(e, ERR_INTERNAL, "socket path is too long: %s", path);
	strcpy(addr.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_errno(e, ERR_INTERNAL, errno, "socket");
	mode_t old = umask(0177);
	int rc = bind(fd, (struct sockaddr *)&addr, sizeof(addr));
	umask(old);
	if (rc < 0 || listen(fd, SOMAXCONN) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot listen on %s", path);
		close(fd);
		return -1;
	}
	return fd;
}

int hybrid_parse_line(const char *line, size_t len, uint32_t *port)
{
	static const char word[] = "CONNECT ";
	size_t at = sizeof(word) - 1;
	uint64_t n = 0;

	if (len <= at + 1 || strncasecmp(line, word, at) != 0 || line[len - 1] != '\n')
		return -1;
	for (; at < len - 1; at++) {
		if (line[at] < '0' || line[at] > '9')
			return -1;
		n = n * 10 + (uint64_t)(line[at] - '0');
		if (n > UINT32_MAX)
			return -1;
	}
	*port = (uint32_t)n;
	return 0;
}

int hybrid_read_line(int fd, char *line, unsigned *len, uint32_t *port)
{
	char *at = line + *len;
	size_t room = VSOCK_LINE_MAX - *len;
	ssize_t n = recv(fd, at, room, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return -1;
	char *end = memchr(at, '\n', (size_t)n);
	size_t take = end != NULL ? (size_t)(end - at) + 1 : (size_t)n;
	if (recv(fd, at, take, MSG_DONTWAIT) != (ssize_t)take)
		return -1;
	*len += (unsigned)take;
	if (end != NULL)
		return hybrid_parse_line(line, *len, port) < 0 ? -1 : 1;
	return *len < VSOCK_LINE_MAX ? 0 : -1;
}

int hybrid_say_ok(int fd, uint32_t host_port)
{
	char line[sizeof("OK 4294967295\n")];
	int len = snprintf(line, sizeof(line), "OK %u\n", host_port);

	return send(fd, line, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT) == len ? 0 : -1;
}

int hybrid_dial(const char *uds, uint32_t port)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int len = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s_%u", uds, port);

	if (len < 0 || (size_t)len >= sizeof(addr.sun_path))
		return -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}
