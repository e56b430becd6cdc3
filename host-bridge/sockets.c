#include "host-bridge/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024
#define UNIX_PREFIX "unix:"
#define LISTEN_FDS_START 3 /* sd_listen_fds(3) */

static int inherited_count(void)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	if (pid == NULL || fds == NULL || strtol(pid, NULL, 10) != (long)getpid())
		return 0;
	long n = strtol(fds, NULL, 10);
	return n < 0 ? 0 : n > SOCKETS_MAX ? SOCKETS_MAX : (int)n;
}

/* A socket that nobody listens on any more is in the way; one that answers is not ours. */
static int clear_stale(const struct sockaddr_un *a, struct err *e)
{
	struct stat st;
	if (lstat(a->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return 0;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int rc = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)a, sizeof(*a));
	if (fd >= 0)
		close(fd);
	if (rc == 0)
		return err_set(e, ERR_INVALID_STATE, "%.100s is in use", a->sun_path);
	unlink(a->sun_path);
	return 0;
}

static int open_unix(const char *path, struct err *e)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strcpy(a.sun_path, path);
	if (clear_stale(&a, e) < 0)
		return -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	    listen(fd, BACKLOG) == 0)
		return fd;
	err_errno(e, ERR_INTERNAL, errno, "cannot listen on %.100s", path);
	if (fd >= 0)
		close(fd);
	return -1;
}

static int open_address(const struct addrinfo *a)
{
	int on = 1;
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

static int open_tcp(const char *text, struct err *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	char host[128];
	const char *colon = strrchr(text, ':');
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	char *name = host;
	size_t n = strlen(host);
	if (host[0] == '[' && host[n - 1] == ']') { /* [::1]:8080 */
		host[n - 1] = '\0';
		name++;
	}
	int rc = getaddrinfo(name, colon + 1, &hints, &found);
	if (rc != 0)
		return err_set(e, ERR_INVALID_FIELD, "cannot resolve %s: %s", text,
		               gai_strerror(rc));
	int fd = -1;
	for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next)
		fd = open_address(a);
	if (fd < 0)
		err_errno(e, ERR_INTERNAL, errno, "cannot listen on %s", text);
	freeaddrinfo(found);
	return fd;
}

bool sockets_valid(const char *text)
{
	if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
		size_t n = strlen(text + strlen(UNIX_PREFIX));
		return n > 0 && n < sizeof(((struct sockaddr_un *)0)->sun_path);
	}
	const char *colon = strrchr(text, ':');
	if (colon == NULL || colon == text)
		return false;
	size_t digits = strlen(colon + 1);
	return digits > 0 && digits <= strlen("65535") &&
	       strspn(colon + 1, "0123456789") == digits && atol(colon + 1) <= UINT16_MAX;
}

int sockets_open(const struct settings *c, int fds[SOCKETS_MAX], int *inherited, struct err *e)
{
	int n = inherited_count();
	*inherited = n > 0;
	for (int i = 0; i < n; i++) {
		fds[i] = LISTEN_FDS_START + i;
		if (fcntl(fds[i], F_SETFD, FD_CLOEXEC) < 0)
			return err_errno(e, ERR_INTERNAL, errno, "LISTEN_FDS is wrong");
	}
	if (n > 0)
		return n;
	for (size_t i = 0; i < c->listen_count; i++) {
		const char *text = c->listen[i];
		if (!sockets_valid(text))
			fds[n] = err_field(e, ERR_INVALID_FIELD, "listen",
			                   "%s is no address to listen on", text);
		else if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0)
			fds[n] = open_unix(text + strlen(UNIX_PREFIX), e);
		else
			fds[n] = open_tcp(text, e);
		if (fds[n] < 0) {
			while (n > 0)
				close(fds[--n]);
			return -1;
		}
		n++;
	}
	return n;
}

void sockets_name(int fd, char *out, size_t room)
{
	union {
		struct sockaddr any;
		struct sockaddr_un un;
		struct sockaddr_storage storage;
	} a = {.any.sa_family = AF_UNSPEC};
	socklen_t len = sizeof(a.storage);
	char host[INET6_ADDRSTRLEN], port[8];
	getsockname(fd, &a.any, &len);
	if (a.any.sa_family == AF_UNIX)
		snprintf(out, room, "unix:%s", a.un.sun_path);
	else if (getnameinfo(&a.any, len, host, sizeof(host), port, sizeof(port),
	                     NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(out, room, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host,
		         port);
	else
		snprintf(out, room, "descriptor %d", fd);
}
