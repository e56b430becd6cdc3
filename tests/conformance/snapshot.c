#include "tests/conformance/snapshot.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/limits.h"

Sandgate__InfoReply *snapshot_info(const struct target *t)
{
	Sandgate__Info m = SANDGATE__INFO__INIT;
	return ask_once(t, SANDGATE__OPEN__OP_INFO, &m, SANDGATE__GUEST_FRAME__BODY_INFO)->info;
}

uint64_t snapshot_now_ms(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

Sandgate__Resume *snapshot_new_resume(const struct target *t, Sandgate__ResumeRole role)
{
	static Sandgate__Resume m;
	static uint8_t entropy[RESUME_ENTROPY_MIN];

	sandgate__resume__init(&m);
	m.generation = snapshot_info(t)->generation + 1;
	m.role = role;
	m.wall_clock_ms = snapshot_now_ms();
	for (size_t i = 0; i < sizeof(entropy); i++)
		entropy[i] = (uint8_t)(random() >> 8);
	if (role == SANDGATE__RESUME_ROLE__RESUME_CLONE)
		m.entropy = (ProtobufCBinaryData){sizeof(entropy), entropy};
	return &m;
}

Sandgate__Resumed *snapshot_send_resume(const struct target *t, Sandgate__Resume *m)
{
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_RESUME, m);
	Sandgate__GuestFrame *g = conn_recv(c, CONN_WAIT_MS);

	if (g && g->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED &&
	    strcmp(g->refused->field, "entropy") == 0)
		skip("the agent may not give its kernel entropy");
	expect(g && g->body_case == SANDGATE__GUEST_FRAME__BODY_RESUMED, "no Resumed: %d",
	       g ? (int)g->body_case : 0);
	expect(g->resumed->generation == m->generation, "generation %llu",
	       (unsigned long long)g->resumed->generation);
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Resumed");
	return g->resumed;
}

Sandgate__Resumed *snapshot_resume(const struct target *t, Sandgate__ResumeRole role)
{
	return snapshot_send_resume(t, snapshot_new_resume(t, role));
}

void snapshot_begin(const struct target *t)
{
	if (!ask_feature(t, "snapshot"))
		skip("the agent knows no snapshots");
	srandom((unsigned)snapshot_now_ms());
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

struct conn *snapshot_begin_prepare(const struct target *t)
{
	Sandgate__Prepare m = SANDGATE__PREPARE__INIT;
	return ask_session(t, SANDGATE__OPEN__OP_PREPARE, &m);
}

void snapshot_end_prepare(const struct target *t, struct conn *c)
{
	Sandgate__GuestFrame *g = ask_next(c, SANDGATE__GUEST_FRAME__BODY_PREPARED);
	expect(g->prepared->generation == snapshot_info(t)->generation, "another generation");
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Prepared");
}

void snapshot_prepare(const struct target *t)
{
	snapshot_end_prepare(t, snapshot_begin_prepare(t));
}

uint64_t snapshot_read_suspended(struct conn *c, uint64_t from)
{
	uint64_t end = from;
	Sandgate__GuestFrame *g;

	for (;; protobuf_c_message_free_unpacked(&g->base, NULL)) {
		g = conn_recv(c, CONN_WAIT_MS);
		expect(g, "closed without Suspended");
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED)
			break;
		if (g->body_case != SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			continue;
		expect(g->output->sequence == end, "output at %llu where %llu was due",
		       (unsigned long long)g->output->sequence, (unsigned long long)end);
		end += g->output->data.len;
	}
	expect(g->suspended->sequence == end, "suspended at %llu where %llu was due",
	       (unsigned long long)g->suspended->sequence, (unsigned long long)end);
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Suspended");
	return end;
}
