/* What sessions ask of an exec: attach, stdin, release, and how it is. */
#include <inttypes.h>
#include <stdlib.h>

#include "guest-agent/exec_private.h"
#include "proto/limits.h"

static bool reads_output(const struct exec_peer *p)
{
	return p->role != SANDGATE__ROLE__ROLE_CONTROL;
}

static void unlink_peer(struct exec *x, struct exec_peer *p)
{
	struct exec_peer **at = &x->peers;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	p->exec = NULL;
}

uint64_t exec_owed_from(const struct exec *x)
{
	return x->owner != NULL ? x->owner->cursor.seq : x->held_from;
}

/* What an owner has not been sent stays; without an owner the cap alone decides. */
static void repin(struct exec *x)
{
	ring_pin(x->ring, exec_owed_from(x));
	exec_interest(x);
}

static void await_owner(struct exec *x)
{
	if (!x->awaited || x->env->suspended)
		return;
	ev_timer_set(&x->link_lost, (double)x->req.link_grace_ms / 1000.0, 0);
	ev_timer_start(x->env->loop, &x->link_lost);
}

void exec_give_up_owner(struct exec *x)
{
	x->awaited = false;
	x->held_from = UINT64_MAX;
	ev_timer_stop(x->env->loop, &x->link_lost);
	repin(x);
}

static void set_owner(struct exec *x, struct exec_peer *p)
{
	p->role = SANDGATE__ROLE__ROLE_OWNER;
	x->owner = p;
	x->detached = false;
	exec_give_up_owner(x);
}

void exec_attach(struct exec *x, struct exec_peer *p, Sandgate__Role role, uint64_t seq)
{
	p->exec = x;
	p->role = role;
	p->cursor = (struct ring_cursor){.seq = seq};
	p->next = x->peers;
	x->peers = p;
	bool is_due = role == SANDGATE__ROLE__ROLE_STANDBY && x->owner == NULL &&
	              x->state != EXEC_FINISHED;
	if (role != SANDGATE__ROLE__ROLE_OWNER && !is_due)
		return;

	struct exec_peer *old = x->owner;
	set_owner(x, p);
	if (old != NULL) {
		unlink_peer(x, old);
		old->on_replaced(old);
	}
}

bool exec_pass_on(struct exec *x)
{
	struct exec_peer *next = NULL;
	for (struct exec_peer *p = x->peers; p != NULL; p = p->next)
		if (p->role == SANDGATE__ROLE__ROLE_STANDBY)
			next = p; /* the newest come first */
	if (next == NULL || x->state == EXEC_FINISHED)
		return false;
	set_owner(x, next);
	return true;
}

static void drop_released(struct exec *x)
{
	if (!x->released || x->state != EXEC_FINISHED)
		return;
	for (const struct exec_peer *p = x->peers; p != NULL; p = p->next)
		if (reads_output(p) && p->cursor.seq < ring_end(x->ring))
			return;
	ring_drop(x->ring);
}

void exec_detach(struct exec_peer *p, bool lost)
{
	struct exec *x = p->exec;
	unlink_peer(x, p);
	if (x->owner == p && (x->env->suspended || !exec_pass_on(x))) {
		x->owner = NULL;
		x->awaited = lost;
		if (lost && x->env->suspended)
			x->held_from = p->cursor.seq;
		await_owner(x);
		repin(x);
	}
	drop_released(x);
	if (x->peers == NULL)
		x->env->on_unused(x->env, x->link);
}

void exec_suspend(struct exec *x)
{
	ev_timer_stop(x->env->loop, &x->link_lost);
	exec_interest(x);
}

void exec_resume(struct exec *x)
{
	await_owner(x);
	exec_interest(x);
}

void exec_consumed(struct exec_peer *p)
{
	struct exec *x = p->exec;
	if (x->owner == p)
		repin(x);
	drop_released(x);
}

void exec_release(struct exec *x, const Sandgate__Release *r)
{
	x->released = !x->req.keep_output;
	x->stdout_cut = r->stdout_cut;
	x->stderr_cut = r->stderr_cut;
	drop_released(x);
}

int exec_stdin(struct exec *x, const uint64_t *offset, uint8_t *data, size_t len, struct err *e)
{
	if (offset != NULL && *offset != exec_stdin_offset(x)) {
		free(data);
		return err_field(e, ERR_STDIN_OFFSET, "offset",
		                 "the next byte's offset is %" PRIu64, exec_stdin_offset(x));
	}
	if (x->feed == NULL) {
		free(data);
		return 0;
	}
	if (stdin_feed_push(x->feed, data, len) < 0)
		return err_set(e, ERR_INTERNAL, "out of memory");
	x->stdin_taken = stdin_feed_offset(x->feed);
	return 0;
}

void exec_close_stdin(struct exec *x)
{
	if (x->feed != NULL)
		stdin_feed_close(x->feed);
}

uint64_t exec_stdin_offset(const struct exec *x)
{
	return x->stdin_taken;
}

bool exec_stdin_closed(const struct exec *x)
{
	return x->feed == NULL || stdin_feed_closed(x->feed);
}

bool exec_stdin_full(const struct exec *x)
{
	return x->feed != NULL && stdin_feed_full(x->feed);
}

enum exec_state exec_state(const struct exec *x)
{
	return x->state;
}

const struct exec_request *exec_request(const struct exec *x)
{
	return &x->req;
}

struct ring *exec_ring(const struct exec *x)
{
	return x->ring;
}

bool exec_was_started(const struct exec *x)
{
	return x->spawned;
}

uint64_t exec_started_at(const struct exec *x)
{
	return x->started_wall_ms;
}

const Sandgate__Result *exec_result(const struct exec *x)
{
	return x->state == EXEC_FINISHED ? &x->result : NULL;
}

void exec_describe(const struct exec *x, Sandgate__ExecState *s)
{
	static const Sandgate__ExecPhase phases[] = {
	    [EXEC_STARTING] = SANDGATE__EXEC_PHASE__PHASE_STARTING,
	    [EXEC_RUNNING] = SANDGATE__EXEC_PHASE__PHASE_RUNNING,
	    [EXEC_DRAINING] = SANDGATE__EXEC_PHASE__PHASE_RUNNING,
	    [EXEC_CLEARING] = SANDGATE__EXEC_PHASE__PHASE_RUNNING,
	    [EXEC_FINISHED] = SANDGATE__EXEC_PHASE__PHASE_FINISHED,
	};

	sandgate__exec_state__init(s);
	s->exec_id = (char *)x->req.id;
	s->phase = phases[x->state];
	s->detached = x->detached;
	s->started_at_ms = x->started_wall_ms;
	s->first_sequence = ring_first(x->ring);
	s->end_sequence = ring_end(x->ring);
	s->stdin_offset = x->stdin_taken;
	s->request_digest = (ProtobufCBinaryData){x->req.digest_len, x->req.digest};
	s->has_deadline = x->state != EXEC_FINISHED && x->req.timeout_ms > 0;
	s->released = x->released;
	s->stdout_cut = x->stdout_cut;
	s->stderr_cut = x->stderr_cut;
	if (x->state == EXEC_FINISHED) {
		s->result = (Sandgate__Result *)&x->result;
		s->finished_at_ms = x->result.finished_at_ms;
		s->retained_until_ms = s->finished_at_ms + RETAINED_RESULTS_S * 1000;
	}
}

bool exec_has_peers(const struct exec *x)
{
	return x->peers != NULL;
}

bool exec_owns_pid(const struct exec *x, pid_t pid)
{
	return x->pid == pid && !x->reaped;
}

uint64_t exec_cpu_us(struct exec *x)
{
	if (x->state == EXEC_FINISHED)
		return x->result.cpu_user_us + x->result.cpu_system_us;
	return cgroup_leaf_cpu_us(x->leaf);
}
