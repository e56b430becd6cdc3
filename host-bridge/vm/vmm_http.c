#include "host-bridge/vm/vmm_http.h"

#include <errno.h>
#include <llhttp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "proto/limits.h"

#define DIAL_AGAIN_S \
	.003 /* a VMM that was just started makes its socket within this few times */

#define WHY_MAX 128 /* of what it says, bytes */

struct vmm_http {
	struct ev_loop *loop;
	struct sockaddr_un to;
	int fd;
	ev_io io;
	ev_timer due, again; /* again: the next try to connect */
	struct err shortage; /* why the last one could not even begin; or none */
	struct vmm_http_script script;
	unsigned at; /* the step that is under way */
	char *out;   /* its request */
	size_t out_len, out_sent;
	llhttp_t parser;
	size_t received;                /* bytes of its answer, head included */
	char body[VMM_HTTP_ANSWER_MAX]; /* of its answer */
	size_t body_len;
	bool answered;
	void (*on_done)(const json_t *answer, const struct err *e, void *arg);
	void *arg;
};

void vmm_http_add(struct vmm_http_script *s, const char *method, const char *path,
                  const char *body, ...)
{
	va_list ap;
	char *text = NULL;

	if (s->count == VMM_HTTP_STEPS_MAX) {
		s->too_long = true;
		return;
	}
	if (body != NULL) {
		va_start(ap, body);
		json_t *json = json_vpack_ex(NULL, 0, body, ap);
		va_end(ap);
		text = doc_text(json, JSON_COMPACT);
		json_decref(json);
		s->lacks |= text == NULL;
	}
	s->steps[s->count++] =
	    (struct vmm_http_step){.method = method, .path = path, .body = text};
}

static void free_script(struct vmm_http_script *s)
{
	for (unsigned i = 0; i < s->count; i++)
		free(s->steps[i].body);
	s->count = 0;
}

void vmm_http_cancel(struct vmm_http *h)
{
	if (h == NULL)
		return;
	ev_io_stop(h->loop, &h->io);
	ev_timer_stop(h->loop, &h->due);
	ev_timer_stop(h->loop, &h->again);
	free_script(&h->script);
	free(h->out);
	if (h->fd >= 0)
		close(h->fd);
	free(h);
}

static void finish(struct vmm_http *h, const json_t *answer, const struct err *e)
{
	void (*on_done)(const json_t *, const struct err *, void *) = h->on_done;
	void *arg = h->arg;
	vmm_http_cancel(h);
	on_done(answer, e, arg);
}

static void fail(struct vmm_http *h, const char *what, const char *why)
{
	struct err e = {0};
	err_set(&e, ERR_LAUNCHER_FAILED, "the VMM %s%s", what, why);
	finish(h, NULL, &e);
}

static void no_memory(struct vmm_http *h)
{
	struct err e = {0};
	err_set(&e, ERR_CAPACITY, "the VMM cannot be asked: out of memory");
	finish(h, NULL, &e);
}

/* It does so when it ends. */
static void hung_up(struct vmm_http *h)
{
	struct err e = {0};
	err_set(&e, ERR_SANDBOX_LOST, "the VMM hung up");
	finish(h, NULL, &e);
}

static void want(struct vmm_http *h, int events)
{
	ev_io_stop(h->loop, &h->io);
	ev_io_set(&h->io, h->fd, events);
	ev_io_start(h->loop, &h->io);
}

/* ---- the answer ---- */

static int on_body(llhttp_t *parser, const char *at, size_t len)
{
	struct vmm_http *h = parser->data;
	if (len > sizeof(h->body) - h->body_len)
		return HPE_USER;
	memcpy(h->body + h->body_len, at, len);
	h->body_len += len;
	return 0;
}

/* What it says behind an answer nobody asked for. */
static int on_message_complete(llhttp_t *parser)
{
	struct vmm_http *h = parser->data;
	h->answered = true;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void begin_step(struct vmm_http *h);

static const char *text(const json_t *value)
{
	const char *text = json_string_value(value);
	return text != NULL ? text : "";
}

/* Firecracker gives one reason; Cloud Hypervisor a chain of them, of which the first ones
 * repeat what was asked, and sometimes a trace on lines of its own. What their HTTP library
 * refuses itself comes as something that is no JSON, with a reason in it. */
static void explain(const struct vmm_http *h, const json_t *answer, char out[WHY_MAX])
{
	size_t n = json_array_size(answer);
	const char *before = n > 1 ? text(json_array_get(answer, n - 2)) : "";
	const char *why = n > 0 ? text(json_array_get(answer, n - 1))
	                        : text(json_object_get(answer, "fault_message"));
	if (answer == NULL)
		snprintf(out, WHY_MAX, "%.*s", (int)h->body_len, h->body);
	else
		snprintf(out, WHY_MAX, "%s%s%s", before, before[0] != '\0' ? ": " : "", why);
	out[strcspn(out, "\r\n")] = '\0';
	if (out[0] == '\0')
		snprintf(out, WHY_MAX, "no reason given");
}

static void on_answer(struct vmm_http *h)
{
	unsigned status = h->parser.status_code;
	char why[WHY_MAX];
	json_error_t fault;
	json_t *answer = doc_parse(h->body, h->body_len, 0, &fault);

	if (answer == NULL && doc_no_memory(&fault)) {
		no_memory(h);
		return;
	}
	explain(h, answer, why);
	if (status < 200 || status > 299)
		fail(h, "refuses: ", why);
	else if (++h->at == h->script.count)
		finish(h, answer, NULL);
	else
		begin_step(h);
	json_decref(answer);
}

static void on_readable(struct vmm_http *h)
{
	char data[4096];
	ssize_t n = recv(h->fd, data, sizeof(data), 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		hung_up(h);
		return;
	}
	h->received += (size_t)n;
	llhttp_execute(&h->parser, data, (size_t)n);
	if (h->answered)
		on_answer(h);
	else if (llhttp_get_errno(&h->parser) != HPE_OK || h->received > sizeof(h->body))
		fail(h, "does not speak HTTP", "");
}

/* ---- the request ---- */

static char *write_request(const struct vmm_http_step *s)
{
	char *text;
	int rc;
	if (s->body == NULL)
		rc = asprintf(&text,
		              "%s %s HTTP/1.1\r\nHost: localhost\r\n"
		              "Accept: application/json\r\n\r\n",
		              s->method, s->path);
	else
		rc = asprintf(&text,
		              "%s %s HTTP/1.1\r\nHost: localhost\r\n"
		              "Accept: application/json\r\n"
		              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
		              s->method, s->path, strlen(s->body), s->body);
	return rc < 0 ? NULL : text;
}

static void begin_step(struct vmm_http *h)
{
	free(h->out);
	h->out = write_request(&h->script.steps[h->at]);
	if (h->out == NULL) {
		no_memory(h);
		return;
	}
	h->out_len = strlen(h->out);
	h->out_sent = h->received = h->body_len = 0;
	h->answered = false;
	llhttp_init(&h->parser, HTTP_RESPONSE, &settings);
	h->parser.data = h;
	want(h, EV_READ | EV_WRITE);
}

static void on_writable(struct vmm_http *h)
{
	ssize_t n = send(h->fd, h->out + h->out_sent, h->out_len - h->out_sent, MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		fail(h, "cannot be asked: ", strerror(errno));
		return;
	}
	h->out_sent += n > 0 ? (size_t)n : 0;
	if (h->out_sent == h->out_len)
		want(h, EV_READ);
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vmm_http *h = w->data;
	(void)loop;
	if (revents & EV_READ)
		on_readable(h);
	else
		on_writable(h);
}

static void on_due(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct vmm_http *h = w->data;
	struct err shortage = h->shortage;
	(void)loop;
	(void)revents;
	if (h->fd >= 0)
		fail(h, "does not answer in time", "");
	else if (shortage.code != ERR_NONE)
		finish(h, NULL, &shortage);
	else
		fail(h, "does not listen in time", "");
}

/* ---- the start ---- */

static void dial_again(struct vmm_http *h)
{
	ev_timer_set(&h->again, DIAL_AGAIN_S, 0.);
	ev_timer_start(h->loop, &h->again);
}

/* A VMM that is starting has no socket yet, or one that nobody listens at. */
static void on_again(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct vmm_http *h = w->data;
	(void)loop;
	(void)revents;
	h->shortage.code = ERR_NONE;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		err_errno(&h->shortage, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		          "the VMM cannot be reached");
		dial_again(h);
		return;
	}
	if (connect(fd, (struct sockaddr *)&h->to, sizeof(h->to)) == 0) {
		h->fd = fd;
		begin_step(h);
		return;
	}
	bool starting = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
	if (starting)
		dial_again(h);
	else
		fail(h, "cannot be reached: ", strerror(errno));
	close(fd);
}

struct vmm_http *vmm_http_run(struct ev_loop *loop, const char *path,
                              struct vmm_http_script *script, double seconds,
                              void (*on_done)(const json_t *answer, const struct err *e,
                                              void *arg),
                              void *arg, struct err *e)
{
	struct vmm_http *h = calloc(1, sizeof(*h));
	if (h == NULL || script->lacks || script->too_long || script->count == 0 ||
	    strlen(path) >= sizeof(h->to.sun_path)) {
		bool lacks = h == NULL || script->lacks;
		free_script(script);
		free(h);
		err_set(e, lacks ? ERR_CAPACITY : ERR_INTERNAL,
		        "a request to the VMM could not be made");
		return NULL;
	}
	h->loop = loop;
	h->to.sun_family = AF_UNIX;
	memcpy(h->to.sun_path, path, strlen(path));
	h->fd = -1;
	h->script = *script;
	h->on_done = on_done;
	h->arg = arg;
	ev_init(&h->io, on_io);
	ev_timer_init(&h->due, on_due, seconds, 0.);
	ev_timer_init(&h->again, on_again, 0., 0.);
	h->io.data = h->due.data = h->again.data = h;
	ev_timer_start(loop, &h->due);
	ev_timer_start(loop, &h->again);
	return h;
}
