/*
 * A small program around the HTTP server, for trying it with real clients: echoes bodies,
 * streams, waits. Measurements of the server alone use it too.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "host-bridge/http/http.h"

static void on_body(struct http_exchange *x, char *data, size_t len, void *owner)
{
	(void)owner;
	http_reply(x, 200, "application/octet-stream", data, len);
}

static void on_count(struct http_exchange *x, const char *data, size_t len, void *owner)
{
	(void)x;
	(void)data;
	*(size_t *)owner += len;
}

static void on_counted(struct http_exchange *x, void *owner)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%zu\n", *(size_t *)owner);

	free(owner);
	http_reply(x, 200, "text/plain", text, (size_t)n);
}

static void on_gone(struct http_exchange *x, void *owner)
{
	printf("gone %s\n", http_path(x));
	fflush(stdout);
	free(owner);
}

static void on_request(struct http_exchange *x, void *arg)
{
	const char *path = http_path(x);

	(void)arg;
	if (strcmp(path, "/echo") == 0) {
		http_collect(x, 1 << 20, on_body, NULL);
	} else if (strcmp(path, "/count") == 0) {
		void *total = calloc(1, sizeof(size_t));

		http_watch(x, on_gone, NULL, total);
		http_stream(x, on_count, on_counted, total);
	} else if (strcmp(path, "/sse") == 0) {
		http_no_body(x);
		http_watch(x, on_gone, NULL, NULL);
		http_begin(x, 200, "text/event-stream");
		http_write(x, "data: {}\n\n", 10);
	} else if (strcmp(path, "/wait") == 0) {
		http_no_body(x);
		http_watch(x, on_gone, NULL, NULL);
	} else if (strcmp(path, "/") == 0) {
		http_reply(x, 200, "text/plain", "hello\n", 6);
	} else {
		http_reply(x, 404, "text/plain", "not found\n", 10);
	}
}

static size_t on_refused(int status, const char *reason, char *buf, size_t room, void *arg)
{
	(void)arg;
	return (size_t)snprintf(buf, room, "{\"status\":%d,\"reason\":\"%s\"}\n", status, reason);
}

int main(int argc, char **argv)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct http_handlers handlers = {.on_request = on_request, .on_refused = on_refused};
	struct http_server *server;
	struct err e;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	in.sin_port = htons((uint16_t)atoi(argc > 1 ? argv[1] : "8099"));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	server = http_server_create(EV_DEFAULT, &handlers, &e);
	if (!server || bind(fd, (struct sockaddr *)&in, sizeof in) < 0 || listen(fd, 4096) < 0 ||
	    http_server_listen(server, fd, &e) < 0)
		return 1;
	ev_run(EV_DEFAULT, 0);
	return 0;
}
