/*
 * For check_snapshot*.c: an agent that is prepared and resumed, and execs that live through it.
 * A sync of the machine's disks takes as long as others write to them: it is counted instead.
 */
#ifndef SANDGATE_SNAPSHOT_FIXTURE_H
#define SANDGATE_SNAPSHOT_FIXTURE_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/agent_fixture.h"

/* In a command: wait until the test says go(), whatever becomes of its sessions meanwhile. It
 * reads the test's own pipe, which is GATE_FD there. */
#define AWAIT_GO "read go </proc/$PPID/fd/99; "
#define GATE_FD 99

static atomic_int *syncs; /* those of the agent's helpers, too */
static int gate[2];
static uint8_t entropy[RESUME_ENTROPY_MIN] = "fresh";

void sync(void)
{
	(*syncs)++;
}

static inline void setup(void)
{
	syncs = mmap(NULL, sizeof(*syncs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	             -1, 0);
	ck_assert(syncs != MAP_FAILED);
	ck_assert(pipe2(gate, O_CLOEXEC) == 0 && dup3(gate[0], GATE_FD, O_CLOEXEC) == GATE_FD);
	fixture_setup();
}

/* ---- Prepare and Resume ---- */

static inline struct host *begin_prepare(void)
{
	Sandgate__Prepare m = SANDGATE__PREPARE__INIT;
	return host_opened(SANDGATE__OPEN__OP_PREPARE, &m);
}

static inline void end_prepare(struct host *h)
{
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_PREPARED);
	ck_assert(g->prepared->synced);
	host_free(g);
	host_expect_end(h);
}

static inline void prepare(void)
{
	int before = *syncs;
	end_prepare(begin_prepare());
	ck_assert_int_eq(*syncs, before + 1);
}

static inline Sandgate__Resume resume_message(uint64_t generation, Sandgate__ResumeRole role)
{
	Sandgate__Resume m = SANDGATE__RESUME__INIT;
	m.generation = generation;
	m.role = role;
	if (role == SANDGATE__RESUME_ROLE__RESUME_CLONE)
		m.entropy = (ProtobufCBinaryData){sizeof(entropy), entropy};
	return m;
}

/* To be freed. */
static inline Sandgate__GuestFrame *resume_with(Sandgate__Resume *m)
{
	Sandgate__GuestFrame *g =
	    host_ask(SANDGATE__OPEN__OP_RESUME, m, SANDGATE__GUEST_FRAME__BODY_RESUMED);
	ck_assert_uint_eq(g->resumed->generation, m->generation);
	return g;
}

static inline void resume(uint64_t generation, Sandgate__ResumeRole role)
{
	Sandgate__Resume m = resume_message(generation, role);
	host_free(resume_with(&m));
}

static inline void resume_same(void)
{
	resume(2, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static inline void resume_clone(void)
{
	resume(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
}

/* ---- execs ---- */

/* As the bridge does for the clients that it had before. */
static inline struct host *attach(const char *id, uint64_t offset)
{
	return host_attached(id, SANDGATE__ROLE__ROLE_STANDBY, offset);
}

static inline void go(void)
{
	ck_assert_int_eq(write(gate[1], "\n", 1), 1);
}

/* Of what it prints hardly anything is kept, unless it is held for somebody. */
static inline void retain_little(Sandgate__Exec *m)
{
	static Sandgate__Limits limits = SANDGATE__LIMITS__INIT;
	static Sandgate__Uint64Value bytes = SANDGATE__UINT64_VALUE__INIT;
	bytes.value = 1000;
	limits.output_bytes = &bytes;
	m->limits = &limits;
}

static inline uint64_t printed(const char *id)
{
	return ring_end(exec_ring(find_exec(id)));
}

/* What it prints has filled all that is between it and an owner who reads nothing. */
static inline void turn_until_held_up(const char *id)
{
	uint64_t before, now = 0;
	do {
		before = now;
		turn_for(0.1);
		now = printed(id);
	} while (now < OWNER_WINDOW || now > before);
}

static inline bool is_finished(void *id)
{
	return exec_state(find_exec(id)) == EXEC_FINISHED;
}

static inline void expect_cancelled(const char *id, Sandgate__CancelReason reason)
{
	turn_until(is_finished, (void *)id);
	ck_assert_int_eq(exec_result(find_exec(id))->outcome,
	                 SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(exec_result(find_exec(id))->cancel_reason, reason);
}

/* What a session carries up to Suspended, its last frame, checked to leave nothing out: put to
 * `text` unless that is NULL. Its length. */
static inline size_t read_suspended(struct host *h, uint64_t from, char *text)
{
	size_t len = 0;
	for (;;) {
		Sandgate__GuestFrame *g = host_next(h);
		ck_assert_msg(g != NULL, "closed without Suspended");
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED) {
			ck_assert_uint_eq(g->suspended->sequence, from + len);
			host_free(g);
			host_expect_end(h);
			return len;
		}
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT) {
			ck_assert_uint_eq(g->output->sequence, from + len);
			if (text != NULL)
				memcpy(text + len, g->output->data.data, g->output->data.len);
			len += g->output->data.len;
		}
		host_free(g);
	}
}

#endif
