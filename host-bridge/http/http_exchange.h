/*
 * Inside the HTTP server: an exchange, from its head to the end of its response. Included
 * by http_*.c only; what the owner may call is in http.h and http_respond.h.
 */
#ifndef SANDGATE_HTTP_EXCHANGE_H
#define SANDGATE_HTTP_EXCHANGE_H

#include "host-bridge/http/http.h"
#include "host-bridge/http/http_buf.h"
#include "host-bridge/http/http_head.h"
#include "host-bridge/http/http_respond.h"

struct http_conn;

enum http_body_mode {
	HTTP_BODY_UNASKED,
	HTTP_BODY_COLLECT,
	HTTP_BODY_STREAM,
	HTTP_BODY_DISCARD
};

struct http_exchange {
	struct http_conn *conn;
	struct http_head head;
	enum http_body_mode mode;
	struct http_buf body; /* HTTP_BODY_COLLECT */
	size_t body_max;
	void (*on_body)(struct http_exchange *x, char *data, size_t len, void *owner);
	void (*on_data)(struct http_exchange *x, const char *data, size_t len, void *owner);
	void (*on_end)(struct http_exchange *x, void *owner);
	void *body_owner;
	void (*on_gone)(struct http_exchange *x, void *owner);
	void (*on_room)(struct http_exchange *x, void *owner);
	void *watch_owner;
	struct http_buf headers; /* of the response, as lines */
	bool body_done;
	bool paused;
	bool owes_continue; /* the client waits for 100 before it sends the body */
	bool begun;
	bool chunked;
	bool keep_alive;
	bool wants_room;
	bool gone; /* on_gone is running: whatever is written is dropped */
};

struct http_exchange *http_exchange_create(struct http_conn *c);
/* Bytes of the body, and its end, for the owner. 0, or the status of a refusal with `*reason`;
 * after 0 the exchange may be over. */
int http_exchange_data(struct http_exchange *x, const char *data, size_t len,
                       const char **reason);
int http_exchange_end(struct http_exchange *x, const char **reason);
/* The client is gone: the owner is told, the exchange freed. */
void http_exchange_gone(struct http_exchange *x);
void http_exchange_free(struct http_exchange *x);

#endif
