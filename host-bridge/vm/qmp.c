#include "host-bridge/vm/qmp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "proto/limits.h"

#define GREETING "qmp_capabilities" /* the first command of every conversation */

struct qmp {
	struct ev_loop *loop;
	int fd;
	ev_io io;
	ev_timer due;
	struct qmp_script script;
	unsigned at;         /* the step that was sent */
	bool answered, told; /* what that step waits for */
	char *out;           /* of the step being sent */
	size_t out_len, out_sent;
	char in[QMP_LINE_MAX];
	size_t in_len;
	void (*on_done)(const struct err *e, void *arg);
	void *arg;
};

struct qmp_step *qmp_add(struct qmp_script *s, const char *execute, const char *arguments, ...)
{
	static struct qmp_step nowhere;
	va_list ap;
	json_t *a = NULL;

	if (s->count == 0 && strcmp(execute, GREETING) != 0)
		qmp_add(s, GREETING, NULL);
	if (arguments != NULL) {
		va_start(ap, arguments);
		a = json_vpack_ex(NULL, 0, arguments, ap);
		va_end(ap);
		s->lacks |= a == NULL;
	}
	json_t *command = json_pack("{s:s, s:o*}", "execute", execute, "arguments", a);
	if (command == NULL || s->count == QMP_STEPS_MAX) {
		s->lacks |= command == NULL;
		s->too_long |= command != NULL;
		json_decref(command);
		return &nowhere;
	}
	struct qmp_step *step = &s->steps[s->count++];
	*step = (struct qmp_step){.command = command, .fd = -1};
	return step;
}

static void free_step(struct qmp_step *step)
{
	json_decref(step->command);
	step->command = NULL;
	if (step->fd >= 0)
		close(step->fd);
	step->fd = -1;
}

void qmp_script_free(struct qmp_script *s)
{
	for (unsigned i = 0; i < s->count; i++)
		free_step(&s->steps[i]);
	s->count = 0;
}

void qmp_cancel(struct qmp *q)
{
	if (q == NULL)
		return;
	ev_io_stop(q->loop, &q->io);
	ev_timer_stop(q->loop, &q->due);
	qmp_script_free(&q->script);
	free(q->out);
	if (q->fd >= 0)
		close(q->fd);
	free(q);
}

static void finish(struct qmp *q, const struct err *e)
{
	void (*on_done)(const struct err *, void *) = q->on_done;
	void *arg = q->arg;
	qmp_cancel(q);
	on_done(e, arg);
}

static void fail(struct qmp *q, const char *what, const char *why)
{
	struct err e = {0};
	err_set(&e, ERR_LAUNCHER_FAILED, "QEMU's monitor %s%s", what, why);
	finish(q, &e);
}

static void no_memory(struct qmp *q)
{
	struct err e = {0};
	err_set(&e, ERR_CAPACITY, "QEMU's monitor cannot be asked: out of memory");
	finish(q, &e);
}

/* It does so when it ends. */
static void hung_up(struct qmp *q)
{
	struct err e = {0};
	err_set(&e, ERR_SANDBOX_LOST, "QEMU's monitor hung up");
	finish(q, &e);
}

static void want(struct qmp *q, int events)
{
	ev_io_stop(q->loop, &q->io);
	ev_io_set(&q->io, q->fd, events);
	ev_io_start(q->loop, &q->io);
}

/* ---- sending ---- */

/* The descriptor goes with the command's first byte. */
static ssize_t send_some(struct qmp *q, int fd)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {q->out + q->out_sent, q->out_len - q->out_sent};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0 && q->out_sent == 0) {
		m.msg_control = control.space;
		m.msg_controllen = sizeof(control.space);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
	}
	return sendmsg(q->fd, &m, MSG_NOSIGNAL);
}

/* False when `q` is gone. */
static bool send_step(struct qmp *q)
{
	struct qmp_step *step = &q->script.steps[q->at];

	if (q->out == NULL) {
		q->answered = false;
		q->told = step->event == NULL;
		q->out_sent = 0;
		q->out = doc_text(step->command, JSON_COMPACT);
		if (q->out == NULL) {
			no_memory(q);
			return false;
		}
		q->out_len = strlen(q->out);
	}
	ssize_t n = send_some(q, step->fd);
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
		hung_up(q);
		return false;
	}
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		fail(q, "cannot be asked: ", strerror(errno));
		return false;
	}
	q->out_sent += n > 0 ? (size_t)n : 0;
	if (q->out_sent < q->out_len) {
		want(q, EV_READ | EV_WRITE);
		return true;
	}
	free(q->out);
	q->out = NULL;
	want(q, EV_READ);
	return true;
}

/* ---- what QEMU says ---- */

/* Whether it is the one that the step waits for; -1: it tells of a failure. */
static int is_awaited(const struct qmp_step *step, const char *event, const json_t *data)
{
	if (step->event == NULL || strcmp(event, step->event) != 0)
		return 0;
	if (step->device != NULL) {
		const char *device = json_string_value(json_object_get(data, "device"));
		return device != NULL && strcmp(device, step->device) == 0;
	}
	const char *status = json_string_value(json_object_get(data, "status"));
	if (status != NULL && strcmp(status, "failed") == 0)
		return -1;
	return status == NULL || strcmp(status, "completed") == 0;
}

static bool is_absent(const json_t *error)
{
	const char *class = json_string_value(json_object_get(error, "class"));
	return class != NULL && strcmp(class, "DeviceNotFound") == 0;
}

/* One message. False when `q` is gone. */
static bool on_message(struct qmp *q, const json_t *m)
{
	const struct qmp_step *step = &q->script.steps[q->at];
	const char *event = json_string_value(json_object_get(m, "event"));
	const json_t *error = json_object_get(m, "error");

	if (error != NULL && !step->may_fail) {
		const char *why = json_string_value(json_object_get(error, "desc"));
		fail(q, "refuses: ", why != NULL ? why : "no reason given");
		return false;
	}
	if (json_object_get(m, "return") != NULL || error != NULL)
		q->answered = true;
	q->told |= is_absent(error);
	if (event != NULL) {
		int awaited = is_awaited(step, event, json_object_get(m, "data"));
		if (awaited < 0) {
			fail(q, "could not save or load the VM", "");
			return false;
		}
		q->told |= awaited > 0;
	}
	if (!q->answered || !q->told)
		return true; /* the greeting, an event of no interest, or half of it */
	free_step(&q->script.steps[q->at]);
	if (++q->at == q->script.count) {
		finish(q, NULL);
		return false;
	}
	return send_step(q);
}

/* False when `q` is gone. */
static bool on_line(struct qmp *q, const char *line, size_t len)
{
	json_error_t fault;
	json_t *m = doc_parse(line, len, 0, &fault);
	if (m == NULL && doc_no_memory(&fault)) {
		no_memory(q);
		return false;
	}
	if (m == NULL) {
		fail(q, "says what is no JSON", "");
		return false;
	}
	bool goes_on = on_message(q, m);
	json_decref(m);
	return goes_on;
}

static void on_readable(struct qmp *q)
{
	char *end;
	ssize_t n = recv(q->fd, q->in + q->in_len, sizeof(q->in) - q->in_len, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		hung_up(q);
		return;
	}
	q->in_len += (size_t)n;
	while ((end = memchr(q->in, '\n', q->in_len)) != NULL) {
		size_t len = (size_t)(end - q->in);
		if (!on_line(q, q->in, len))
			return;
		q->in_len -= len + 1;
		memmove(q->in, end + 1, q->in_len);
	}
	if (q->in_len == sizeof(q->in))
		fail(q, "says too much in one line", "");
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct qmp *q = w->data;
	(void)loop;
	if (revents & EV_WRITE)
		send_step(q);
	else
		on_readable(q);
}

static void on_due(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	fail(w->data, "does not answer in time", "");
}

/* ---- the start ---- */

static int dial(struct qmp *q, const char *path, struct err *e)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	if ((size_t)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path) >=
	    sizeof(to.sun_path))
		return err_set(e, ERR_LAUNCHER_FAILED, "the monitor's path is too long");
	q->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (q->fd < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "QEMU's monitor");
	if (connect(q->fd, (struct sockaddr *)&to, sizeof(to)) == 0)
		return 0;
	return err_errno(e, errno == ECONNREFUSED ? ERR_SANDBOX_LOST : ERR_LAUNCHER_FAILED,
	                 errno, "QEMU's monitor");
}

struct qmp *qmp_run(struct ev_loop *loop, const char *path, struct qmp_script *script,
                    double seconds, void (*on_done)(const struct err *e, void *arg), void *arg,
                    struct err *e)
{
	struct qmp *q = calloc(1, sizeof(*q));
	if (q == NULL || script->lacks || script->too_long || script->count == 0) {
		bool lacks = q == NULL || script->lacks;
		qmp_script_free(script);
		free(q);
		err_set(e, lacks ? ERR_CAPACITY : ERR_INTERNAL,
		        "a script for QEMU's monitor could not be made");
		return NULL;
	}
	q->loop = loop;
	q->fd = -1;
	q->script = *script;
	q->on_done = on_done;
	q->arg = arg;
	ev_timer_init(&q->due, on_due, seconds, 0.);
	q->due.data = q;
	ev_io_init(&q->io, on_io, -1, 0);
	q->io.data = q;
	if (dial(q, path, e) < 0) {
		qmp_cancel(q);
		return NULL;
	}
	ev_timer_start(loop, &q->due);
	want(q, EV_READ | EV_WRITE);
	return q;
}
