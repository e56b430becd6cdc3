/*
 * For check_sandbox.c, check_sandbox_end.c and check_bracket.c: sandboxes without VMs. A fake
 * agent behind a Unix socket, served by the loop, is attached; `spec` is what the next sandbox
 * is made of.
 */
#ifndef SANDGATE_ATTACH_FIXTURE_H
#define SANDGATE_ATTACH_FIXTURE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/sandbox_fixture.h"

static char dir[64];
static struct sandbox_spec spec;

/* ---- the agent ---- */

static struct {
	int fd;
	ev_io io;
	bool mute;         /* accepts, never answers */
	bool too_new;      /* speaks another version */
	bool running_exec; /* ListExecs answers with one */
	bool prepared;     /* it was asked to be */
	int sessions;      /* accepted so far */
	Sandgate__CancelReason cancelled;
} agent;

struct peer {
	int fd;
	ev_io io;
	uint8_t in[1024];
	size_t len;
};

static inline void answer(struct peer *p, Sandgate__GuestFrame__BodyCase which, void *body)
{
	uint8_t wire[512];
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	f.body_case = which;
	f.opened = body; /* a union of pointers */
	size_t n = frame_write(&f.base, wire);
	ck_assert_int_eq(write(p->fd, wire, n), (ssize_t)n);
}

static inline void answer_open(struct peer *p, const Sandgate__Open *o)
{
	static char *features[] = {"cgroup2", "bad\nname"};
	Sandgate__Opened opened = SANDGATE__OPENED__INIT;
	Sandgate__InfoReply info = SANDGATE__INFO_REPLY__INIT;
	Sandgate__ExecState exec = SANDGATE__EXEC_STATE__INIT, *execs[] = {&exec};
	Sandgate__ExecList list = SANDGATE__EXEC_LIST__INIT;
	Sandgate__Done done = SANDGATE__DONE__INIT;
	Sandgate__Prepared prepared = SANDGATE__PREPARED__INIT;
	opened.protocol_version = PROTOCOL_VERSION + agent.too_new;
	answer(p, SANDGATE__GUEST_FRAME__BODY_OPENED, &opened);
	exec.exec_id = "e1";
	exec.phase = SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	if (o->op_case == SANDGATE__OPEN__OP_INFO) {
		info.agent_version = "9.9";
		info.protocol_version = 1;
		info.features = features;
		info.n_features = 2;
		info.prepared = agent.prepared;
		answer(p, SANDGATE__GUEST_FRAME__BODY_INFO, &info);
	} else if (o->op_case == SANDGATE__OPEN__OP_LIST_EXECS) {
		list.execs = execs;
		list.n_execs = agent.running_exec;
		answer(p, SANDGATE__GUEST_FRAME__BODY_EXEC_LIST, &list);
		answer(p, SANDGATE__GUEST_FRAME__BODY_DONE, &done);
	} else if (o->op_case == SANDGATE__OPEN__OP_PREPARE) {
		agent.prepared = true;
		answer(p, SANDGATE__GUEST_FRAME__BODY_PREPARED, &prepared);
	} else if (o->op_case == SANDGATE__OPEN__OP_ATTACH) {
		ck_assert_str_eq(o->attach->exec_id, "e1");
		answer(p, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE, &exec);
	}
}

static inline void on_peer(struct ev_loop *l, ev_io *w, int revents)
{
	struct peer *p = w->data;
	struct frame f;
	(void)revents;
	ssize_t n = read(p->fd, p->in + p->len, sizeof(p->in) - p->len);
	if (n <= 0) {
		ev_io_stop(l, w);
		close(p->fd);
		free(p);
		return;
	}
	p->len += (size_t)n;
	while (!agent.mute && frame_parse(p->in, p->len, sizeof(p->in), &f) == FRAME_OK) {
		Sandgate__HostFrame *h =
		    sandgate__host_frame__unpack(NULL, f.payload_len, f.payload);
		Sandgate__Done done = SANDGATE__DONE__INIT;
		ck_assert_ptr_nonnull(h);
		if (h->body_case == SANDGATE__HOST_FRAME__BODY_OPEN) {
			answer_open(p, h->open);
		} else if (h->body_case == SANDGATE__HOST_FRAME__BODY_CANCEL) {
			agent.cancelled = h->cancel->reason;
			answer(p, SANDGATE__GUEST_FRAME__BODY_DONE, &done);
		}
		sandgate__host_frame__free_unpacked(h, NULL);
		memmove(p->in, p->in + f.consumed, p->len - f.consumed);
		p->len -= f.consumed;
	}
}

static inline void on_session(struct ev_loop *l, ev_io *w, int revents)
{
	(void)revents;
	struct peer *p = calloc(1, sizeof(*p));
	p->fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	ck_assert_int_ge(p->fd, 0);
	agent.sessions++;
	ev_io_init(&p->io, on_peer, p->fd, EV_READ);
	p->io.data = p;
	ev_io_start(l, &p->io);
}

static inline void start_agent(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	memset(&agent, 0, sizeof(agent));
	memcpy(a.sun_path, spec.endpoint.path, sizeof(a.sun_path));
	agent.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(agent.fd, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(agent.fd, 64), 0);
	ev_io_init(&agent.io, on_session, agent.fd, EV_READ);
	ev_io_start(loop, &agent.io);
}

/* ---- the bridge ---- */

static inline void start_bridge(void)
{
	char state_dir[128];
	snprintf(state_dir, sizeof(state_dir), "%s/state", dir);
	struct sandbox_set_config c = {.state_dir = state_dir,
	                               .rootfs_dir = dir,
	                               .node = "n1",
	                               .launcher = "auto",
	                               .agent_path = "/nonexistent"};
	open_set(&c);
}

static inline void restart_bridge(void)
{
	sandbox_set_destroy(set);
	start_bridge();
}

static inline void setup(void)
{
	strcpy(dir, "/tmp/check_sandbox.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	memset(&heard, 0, sizeof(heard));
	memset(&spec, 0, sizeof(spec));
	strcpy(spec.workspace, "w1");
	spec.attach = true;
	spec.endpoint.kind = TRANSPORT_UNIX;
	snprintf(spec.endpoint.path, sizeof(spec.endpoint.path), "%s/agent", dir);
	loop = ev_loop_new(0);
	start_agent();
	start_bridge();
}

static inline void teardown(void)
{
	sandbox_set_destroy(set);
	settle();
	ev_io_stop(loop, &agent.io);
	close(agent.fd);
	ev_loop_destroy(loop);
	remove_tree(dir);
}

static inline bool gone(const char *id)
{
	return sandbox_find(set, id, NULL, NULL) == NULL;
}

static inline const char *copy_id(const struct sandbox *s)
{
	static char id[128];
	snprintf(id, sizeof(id), "%s", sandbox_id(s));
	return id;
}

#endif
