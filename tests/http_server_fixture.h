/*
 * For check_http_server.c, check_http_body.c and check_http_client.c: the server with handlers
 * that do what a request's path says, and note in `seen` what they are told.
 */
#ifndef SANDGATE_HTTP_SERVER_FIXTURE_H
#define SANDGATE_HTTP_SERVER_FIXTURE_H

#include "proto/limits.h"
#include "tests/http_fixture.h"

#define HOST "Host: x\r\n"
#define REQUEST(path) "GET " path " HTTP/1.1\r\n" HOST "\r\n"
#define UPLOAD(path) "POST " path " HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"

static const char block[64 * 1024]; /* of zeros, to send */

static inline void on_gone(struct http_exchange *x, void *owner)
{
	ck_assert_ptr_eq(owner, &seen);
	ck_assert_ptr_eq(x, seen.x);
	http_write(x, "dropped", 7); /* must be harmless */
	seen.gone++;
}

static inline void on_room(struct http_exchange *x, void *owner)
{
	(void)owner;
	ck_assert_uint_le(http_unsent(x), HTTP_LOW_WATER);
	seen.rooms++;
}

static inline void on_body(struct http_exchange *x, char *data, size_t len, void *owner)
{
	(void)owner;
	ck_assert_int_eq(data[len], '\0');
	seen.bodies++;
	seen.body_len = len;
	http_reply(x, 200, "text/plain", data, len);
}

static inline void on_data(struct http_exchange *x, const char *data, size_t len, void *owner)
{
	(void)owner;
	(void)data;
	seen.data_len += len;
	if (strcmp(http_path(x), "/pause") == 0)
		http_stream_pause(x);
}

static inline void on_end(struct http_exchange *x, void *owner)
{
	(void)owner;
	seen.bodies++;
	http_reply(x, 201, "text/plain", "ok", 2);
}

static inline void on_request(struct http_exchange *x, void *arg)
{
	const char *path = http_path(x);

	(void)arg;
	seen.requests++;
	seen.x = x;
	if (path[1] >= '0' && path[1] <= '9') { /* answered at once, body or not */
		http_reply(x, 200, "text/plain", path + 1, strlen(path + 1));
	} else if (strcmp(path, "/collect") == 0) {
		http_watch(x, on_gone, on_room, &seen);
		http_collect(x, 100000, on_body, &seen);
	} else if (strcmp(path, "/stream") == 0 || strcmp(path, "/pause") == 0) {
		http_watch(x, on_gone, on_room, &seen);
		http_stream(x, on_data, on_end, &seen);
	} else {
		http_watch(x, on_gone, on_room, &seen);
		http_no_body(x);
		if (strcmp(path, "/begin") == 0)
			http_begin(x, 200, "text/event-stream");
	}
}

static inline void setup(void)
{
	serve(on_request);
}

/* A client whose request has reached its handler. */
static inline int pending(const char *request)
{
	int fd = client(), before = seen.requests;

	say(fd, request);
	until(seen.requests == before + 1);
	return fd;
}

#endif
