/* Sandboxes without VMs: a fake agent behind a Unix socket is attached, and time, holds,
 * owners, listeners and restarts are what is tested. */
#include <check.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/sandbox/sandbox.h"
#include "proto/frame.h"
#include "proto/limits.h"

static struct ev_loop *loop;
static struct sandbox_set *set;
static char dir[64];
static struct sandbox_spec spec;

/* ---- the agent ---- */

static struct {
	int fd;
	ev_io io;
	bool mute;         /* accepts, never answers */
	bool too_new;      /* speaks another version */
	bool running_exec; /* ListExecs answers with one */
	int sessions;      /* accepted so far */
	Sandgate__CancelReason cancelled;
} agent;

struct peer {
	int fd;
	ev_io io;
	uint8_t in[1024];
	size_t len;
};

static void answer(struct peer *p, Sandgate__GuestFrame__BodyCase which, void *body)
{
	uint8_t wire[512];
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	f.body_case = which;
	f.opened = body; /* a union of pointers */
	size_t n = frame_write(&f.base, wire);
	ck_assert_int_eq(write(p->fd, wire, n), (ssize_t)n);
}

static void answer_open(struct peer *p, const Sandgate__Open *o)
{
	static char *features[] = {"cgroup2", "bad\nname"};
	Sandgate__Opened opened = SANDGATE__OPENED__INIT;
	Sandgate__InfoReply info = SANDGATE__INFO_REPLY__INIT;
	Sandgate__ExecState exec = SANDGATE__EXEC_STATE__INIT, *execs[] = {&exec};
	Sandgate__ExecList list = SANDGATE__EXEC_LIST__INIT;
	Sandgate__Done done = SANDGATE__DONE__INIT;
	opened.protocol_version = PROTOCOL_VERSION + agent.too_new;
	answer(p, SANDGATE__GUEST_FRAME__BODY_OPENED, &opened);
	exec.exec_id = "e1";
	exec.phase = SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	if (o->op_case == SANDGATE__OPEN__OP_INFO) {
		info.agent_version = "9.9";
		info.protocol_version = 1;
		info.features = features;
		info.n_features = 2;
		answer(p, SANDGATE__GUEST_FRAME__BODY_INFO, &info);
	} else if (o->op_case == SANDGATE__OPEN__OP_LIST_EXECS) {
		list.execs = execs;
		list.n_execs = agent.running_exec;
		answer(p, SANDGATE__GUEST_FRAME__BODY_EXEC_LIST, &list);
		answer(p, SANDGATE__GUEST_FRAME__BODY_DONE, &done);
	} else if (o->op_case == SANDGATE__OPEN__OP_ATTACH) {
		ck_assert_str_eq(o->attach->exec_id, "e1");
		answer(p, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE, &exec);
	}
}

static void on_peer(struct ev_loop *l, ev_io *w, int revents)
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

static void on_session(struct ev_loop *l, ev_io *w, int revents)
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

static void start_agent(void)
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

/* ---- the owner ---- */

static struct {
	int ready, done, ended;
	struct err why;
	Sandgate__CancelReason reason;
} heard;

static void on_ready(struct sandbox *s, const struct err *e, void *arg)
{
	(void)s;
	(void)arg;
	heard.ready++;
	if (e != NULL)
		heard.why = *e;
}

static void on_done(void *arg)
{
	(void)arg;
	heard.done++;
}

static void on_end(struct sandbox_listener *l, Sandgate__CancelReason reason)
{
	(void)l;
	heard.ended++;
	heard.reason = reason;
}

static void on_end_leave(struct sandbox_listener *l, Sandgate__CancelReason reason)
{
	on_end(l, reason);
	sandbox_unlisten(l);
}

static void on_watchdog(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l;
	(void)w;
	(void)revents;
	ck_abort_msg("nothing happened");
}

#define UNTIL(cond)                                       \
	do {                                              \
		ev_timer dog;                             \
		ev_timer_init(&dog, on_watchdog, 8., 0.); \
		ev_timer_start(loop, &dog);               \
		while (!(cond))                           \
			ev_run(loop, EVRUN_ONCE);         \
		ev_timer_stop(loop, &dog);                \
	} while (0)

static void on_pause_over(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l;
	(void)revents;
	*(bool *)w->data = true;
}

/* Let time pass that something must survive. */
static void pass(double seconds)
{
	bool over = false;
	ev_timer t;
	ev_timer_init(&t, on_pause_over, seconds, 0.);
	t.data = &over;
	ev_timer_start(loop, &t);
	UNTIL(over);
}

static void start_bridge(void)
{
	struct err e = {0};
	char state_dir[128];
	snprintf(state_dir, sizeof(state_dir), "%s/state", dir);
	struct sandbox_set_config c = {.state_dir = state_dir,
	                               .rootfs_dir = dir,
	                               .node = "n1",
	                               .launcher = "auto",
	                               .agent_path = "/nonexistent"};
	set = sandbox_set_create(loop, &c, &e);
	ck_assert_msg(set != NULL, "%s", e.msg);
	ck_assert_int_eq(sandbox_set_adopt(set, &e), 0);
}

static void restart_bridge(void)
{
	sandbox_set_destroy(set);
	start_bridge();
}

static void setup(void)
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

static int on_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void teardown(void)
{
	sandbox_set_destroy(set);
	for (int i = 0; i < 50; i++)
		ev_run(loop, EVRUN_NOWAIT);
	ev_io_stop(loop, &agent.io);
	close(agent.fd);
	ev_loop_destroy(loop);
	nftw(dir, on_file, 8, FTW_DEPTH | FTW_PHYS);
}

static struct sandbox *create_only(void)
{
	struct err e = {0};
	struct sandbox *s = sandbox_create(set, &spec, on_ready, NULL, &e);
	ck_assert_msg(s != NULL, "%s", e.msg);
	ck_assert_int_eq(heard.ready, 0);
	return s;
}

static struct sandbox *create(void)
{
	struct sandbox *s = create_only();
	UNTIL(heard.ready);
	ck_assert_msg(heard.why.code == ERR_NONE, "%s", heard.why.msg);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_RUNNING);
	return s;
}

static bool gone(const char *id)
{
	return sandbox_find(set, id, NULL, NULL) == NULL;
}

static const char *copy_id(const struct sandbox *s)
{
	static char id[128];
	snprintf(id, sizeof(id), "%s", sandbox_id(s));
	return id;
}

/* ---- tests ---- */

START_TEST(ready_means_that_the_agent_answered)
{
	agent.mute = true;
	struct sandbox *s = create_only();
	ck_assert_int_eq(sandbox_status(s), SANDBOX_CREATING);
	UNTIL(agent.sessions == 1);
	pass(0.02);
	ck_assert_int_eq(heard.ready, 0);
	ck_assert_ptr_null(sandbox_link(s, false, NULL));
}
END_TEST

START_TEST(id_names_the_node_and_is_a_ulid)
{
	const char *id = sandbox_id(create());
	ck_assert_uint_eq(strlen(id), strlen("sb-n1-") + 26);
	ck_assert_int_eq(strncmp(id, "sb-n1-0", 7), 0);
	ck_assert_uint_eq(strspn(id + 6, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"), 26);
}
END_TEST

START_TEST(json_has_every_field_of_the_contract)
{
	static const char *const fields[] = {
	    "id",         "node",         "template", "status",         "vmm",
	    "isolation",  "boot_mode",    "boot_ms",  "boot_stages_ms", "created_at",
	    "expires_at", "idle_seconds", "metadata", "resources",      "exec_defaults",
	    "agent"};
	json_t *j = sandbox_json(create());
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		ck_assert_msg(json_object_get(j, fields[i]) != NULL, "%s", fields[i]);
	ck_assert_uint_eq(json_object_size(j), sizeof(fields) / sizeof(*fields));
	const json_t *a = json_object_get(j, "agent");
	ck_assert_str_eq(json_string_value(json_object_get(a, "version")), "9.9");
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(a, "features"), 1)),
	                 "bad?name");
	json_decref(j);
}
END_TEST

START_TEST(idle_sandbox_expires)
{
	struct sandbox_listener l = {.on_end = on_end_leave};
	spec.ttl_seconds = 0.05;
	struct sandbox *s = create();
	const char *id = copy_id(s);
	sandbox_listen(s, &l);
	UNTIL(gone(id));
	UNTIL(heard.ended);
	ck_assert_int_eq(heard.reason, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED);
	ck_assert(sandbox_was_deleted(set, id, "w1"));
}
END_TEST

START_TEST(held_sandbox_does_not_expire)
{
	spec.ttl_seconds = 0.03;
	struct sandbox *s = create();
	const char *id = copy_id(s);
	sandbox_hold(s);
	pass(0.1);
	ck_assert(!gone(id));
	sandbox_unhold(s);
	ck_assert(!gone(id));
	UNTIL(gone(id));
}
END_TEST

START_TEST(touch_puts_the_end_off)
{
	spec.ttl_seconds = 0.5;
	struct sandbox *s = create();
	const char *id = copy_id(s);
	for (int i = 0; i < 5; i++) {
		pass(0.12);
		ck_assert(!gone(id));
		sandbox_touch(s);
	}
	UNTIL(gone(id));
}
END_TEST

START_TEST(lifetime_ends_even_a_held_sandbox)
{
	struct sandbox_listener l = {.on_end = on_end_leave};
	spec.max_lifetime_seconds = 0.05;
	struct sandbox *s = create();
	const char *id = copy_id(s);
	sandbox_hold(s);
	sandbox_listen(s, &l);
	UNTIL(heard.ended);
	ck_assert(gone(id));
	sandbox_unhold(s);
}
END_TEST

START_TEST(patch_moves_the_end)
{
	double longer = 100, shorter = 0.01;
	struct err e = {0};
	spec.ttl_seconds = 0.05;
	struct sandbox *s = create();
	const char *id = copy_id(s);
	ck_assert_int_eq(sandbox_patch(s, &longer, NULL, NULL, &e), 0);
	pass(0.1);
	ck_assert(!gone(id));
	ck_assert_int_eq(sandbox_patch(s, &shorter, NULL, NULL, &e), 0);
	UNTIL(gone(id));
}
END_TEST

START_TEST(creator_that_goes_takes_its_sandbox_along)
{
	agent.mute = true;
	struct sandbox *s = create_only();
	const char *id = copy_id(s);
	sandbox_creator_gone(s);
	ck_assert(gone(id));
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_KILLED, on_done, NULL);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.ready, 0);
}
END_TEST

START_TEST(orphan_with_a_key_waits_for_its_replay)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	struct sandbox *s = create();
	sandbox_creator_gone(s);
	ck_assert_ptr_eq(sandbox_find_key(set, "w1", "k", &e), s);
	ck_assert_ptr_null(sandbox_find_key(set, "w2", "k", &e));
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "other", &e));
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "", &e));
}
END_TEST

START_TEST(key_of_a_deleted_sandbox_makes_no_other)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	sandbox_delete(create(), SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done,
	               NULL);
	UNTIL(heard.done);
	ck_assert_ptr_null(sandbox_find_key(set, "w2", "k", &e));
	ck_assert_int_eq(e.code, ERR_NONE);
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "k", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(create_that_failed_gives_its_key_back)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	agent.too_new = true;
	struct sandbox *s = create_only();
	UNTIL(heard.ready);
	ck_assert_int_eq(heard.why.code, ERR_INCOMPATIBLE);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	UNTIL(heard.done);
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "k", &e));
	ck_assert_int_eq(e.code, ERR_NONE);
}
END_TEST

START_TEST(others_are_not_found_and_deleted_is_gone)
{
	struct err e = {0};
	struct sandbox *s = create();
	const char *id = copy_id(s);
	ck_assert_ptr_eq(sandbox_find(set, id, "w1", &e), s);
	ck_assert_ptr_eq(sandbox_find(set, id, NULL, &e), s);
	ck_assert_ptr_null(sandbox_find(set, id, "w2", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_NOT_FOUND);
	ck_assert_ptr_null(sandbox_find(set, "sb-n1-nope", NULL, &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_NOT_FOUND);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	ck_assert_ptr_null(sandbox_find(set, id, "w1", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
	ck_assert_ptr_null(sandbox_next(set, NULL));
	ck_assert_uint_eq(sandbox_count(set, NULL), 0);
	UNTIL(heard.done);
	restart_bridge();
	ck_assert_ptr_null(sandbox_find(set, id, "w1", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(delete_waits_for_calls_that_end_by_themselves)
{
	struct sandbox_listener l = {.on_end = on_end};
	struct sandbox *s = create();
	sandbox_listen(s, &l);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	ck_assert_int_eq(heard.ended, 0);
	UNTIL(heard.ended);
	pass(0.02);
	ck_assert_int_eq(heard.done, 0);
	sandbox_unlisten(&l);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.ended, 1);
}
END_TEST

START_TEST(delete_of_an_attached_vm_cancels_what_runs_in_it)
{
	struct sandbox *s = create();
	agent.running_exec = true;
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	UNTIL(heard.done);
	ck_assert_int_eq(agent.cancelled, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED);
	ck_assert_int_eq(access(spec.endpoint.path, F_OK), 0);
}
END_TEST

START_TEST(all_who_delete_are_told)
{
	struct sandbox *s = create();
	for (int i = 0; i < 3; i++)
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done,
		               NULL);
	UNTIL(heard.done == 3);
}
END_TEST

START_TEST(waiters_are_told_and_may_leave)
{
	int a, b;
	struct err e = {0};
	struct sandbox *s = create_only();
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &a, &e), 0);
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &b, &e), 0);
	sandbox_wait_cancel(s, &b);
	UNTIL(heard.ready == 2);
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &a, &e), 0);
	ck_assert_int_eq(heard.ready, 2);
	UNTIL(heard.ready == 3);
}
END_TEST

START_TEST(waiter_of_a_deleted_sandbox_hears_that_it_is_gone)
{
	agent.mute = true;
	struct sandbox *s = create_only();
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.ready, 1);
	ck_assert_int_eq(heard.why.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(spare_link_is_made_and_used)
{
	struct err e = {0};
	struct sandbox *s = create();
	UNTIL(agent.sessions == 2); /* the question, the spare */
	struct link *l = sandbox_link(s, false, &e);
	ck_assert(link_is_ready(l));
	ck_assert_int_eq(agent.sessions, 2);
	UNTIL(agent.sessions == 3);
	link_destroy(l, false);
}
END_TEST

START_TEST(restarted_bridge_finds_its_sandbox_again)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	strcpy(spec.request_digest, "d");
	strcpy(spec.endpoint.token, "secret");
	spec.ttl_seconds = 7;
	spec.max_lifetime_seconds = 70;
	spec.metadata = json_pack("{s:s}", "a", "b");
	spec.exec_defaults = json_pack("{s:s}", "user", "u");
	const char *id = copy_id(create());
	json_decref(spec.metadata);
	json_decref(spec.exec_defaults);
	spec.metadata = spec.exec_defaults = NULL;
	restart_bridge();
	struct sandbox *s = sandbox_find(set, id, "w1", &e);
	ck_assert_msg(s != NULL, "%s", e.msg);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_RUNNING);
	const struct sandbox_spec *again = sandbox_spec(s);
	ck_assert_str_eq(again->request_digest, "d");
	ck_assert_str_eq(again->endpoint.token, "secret");
	ck_assert(again->ttl_seconds == 7 && again->max_lifetime_seconds == 70);
	ck_assert_str_eq(json_string_value(json_object_get(again->metadata, "a")), "b");
	ck_assert_str_eq(json_string_value(json_object_get(again->exec_defaults, "user")), "u");
	ck_assert_ptr_eq(sandbox_find_key(set, "w1", "k", &e), s);
	json_t *j = sandbox_json(s);
	ck_assert_str_eq(
	    json_string_value(json_object_get(json_object_get(j, "agent"), "version")), "9.9");
	json_decref(j);
	struct link *l = sandbox_link(s, false, &e);
	UNTIL(link_is_ready(l));
	link_destroy(l, false);
}
END_TEST

START_TEST(sandbox_whose_vm_vanished_meanwhile_has_failed)
{
	struct err e = {0};
	const char *id = copy_id(create());
	unlink(spec.endpoint.path);
	restart_bridge();
	struct sandbox *s = sandbox_find(set, id, "w1", &e);
	ck_assert_ptr_nonnull(s);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_FAILED);
	ck_assert_ptr_null(sandbox_link(s, false, &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_LOST);
}
END_TEST

START_TEST(what_nothing_knows_of_is_swept_away)
{
	char stray[128], known[128], file[160];
	snprintf(known, sizeof(known), "%s/state/vm/%s", dir, sandbox_id(create()) + 6);
	snprintf(stray, sizeof(stray), "%s/state/vm/STRAY", dir);
	snprintf(file, sizeof(file), "%s/socket", stray);
	ck_assert_int_eq(mkdir(stray, 0700), 0);
	fclose(fopen(file, "w"));
	pid_t child = fork();
	if (child == 0) {
		if (chdir(stray) < 0 || close_range(3, ~0u, 0) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	char link[64], cwd[128];
	ssize_t n;
	snprintf(link, sizeof(link), "/proc/%d/cwd", (int)child);
	do
		n = readlink(link, cwd, sizeof(cwd));
	while (n != (ssize_t)strlen(stray) || memcmp(cwd, stray, (size_t)n) != 0);
	restart_bridge();
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_lt(access(stray, F_OK), 0);
	ck_assert_int_eq(access(known, F_OK), 0);
}
END_TEST

START_TEST(create_without_a_launcher_or_template_is_refused)
{
	struct err e = {0};
	spec.attach = false;
	strcpy(spec.template, "base");
	ck_assert_ptr_null(sandbox_create(set, &spec, on_ready, NULL, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_null(sandbox_next(set, NULL));
}
END_TEST

START_TEST(resource_that_cannot_be_enforced_is_refused)
{
	struct err e = {0};
	spec.memory_mib = 512;
	ck_assert_ptr_null(sandbox_create(set, &spec, on_ready, NULL, &e));
	ck_assert_int_eq(e.code, ERR_LIMIT_UNSUPPORTED);
	ck_assert_str_eq(e.field, "resources.memory_mib");
	ck_assert_ptr_null(sandbox_next(set, NULL));
}
END_TEST

START_TEST(sandboxes_are_listed_in_order)
{
	const char *last = "";
	size_t n = 0;
	for (int i = 0; i < 5; i++) {
		heard.ready = 0;
		create();
	}
	for (struct sandbox *s = NULL; (s = sandbox_next(set, s)) != NULL; n++) {
		ck_assert_int_lt(strcmp(last, sandbox_id(s)), 0);
		last = sandbox_id(s);
	}
	ck_assert_uint_eq(n, 5);
	ck_assert_uint_eq(sandbox_count(set, "w1"), 5);
	ck_assert_uint_eq(sandbox_count(set, "w2"), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sandbox");
	TCase *t = tcase_create("sandbox");
	tcase_set_timeout(t, 30);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, ready_means_that_the_agent_answered);
	tcase_add_test(t, id_names_the_node_and_is_a_ulid);
	tcase_add_test(t, json_has_every_field_of_the_contract);
	tcase_add_test(t, idle_sandbox_expires);
	tcase_add_test(t, held_sandbox_does_not_expire);
	tcase_add_test(t, touch_puts_the_end_off);
	tcase_add_test(t, lifetime_ends_even_a_held_sandbox);
	tcase_add_test(t, patch_moves_the_end);
	tcase_add_test(t, creator_that_goes_takes_its_sandbox_along);
	tcase_add_test(t, orphan_with_a_key_waits_for_its_replay);
	tcase_add_test(t, key_of_a_deleted_sandbox_makes_no_other);
	tcase_add_test(t, create_that_failed_gives_its_key_back);
	tcase_add_test(t, others_are_not_found_and_deleted_is_gone);
	tcase_add_test(t, delete_waits_for_calls_that_end_by_themselves);
	tcase_add_test(t, delete_of_an_attached_vm_cancels_what_runs_in_it);
	tcase_add_test(t, all_who_delete_are_told);
	tcase_add_test(t, waiters_are_told_and_may_leave);
	tcase_add_test(t, waiter_of_a_deleted_sandbox_hears_that_it_is_gone);
	tcase_add_test(t, spare_link_is_made_and_used);
	tcase_add_test(t, restarted_bridge_finds_its_sandbox_again);
	tcase_add_test(t, sandbox_whose_vm_vanished_meanwhile_has_failed);
	tcase_add_test(t, what_nothing_knows_of_is_swept_away);
	tcase_add_test(t, create_without_a_launcher_or_template_is_refused);
	tcase_add_test(t, resource_that_cannot_be_enforced_is_refused);
	tcase_add_test(t, sandboxes_are_listed_in_order);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
