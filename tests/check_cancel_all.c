/* Every exec that runs in a VM which lives on is cancelled, however long the agent's list is.
 */
#include "host-bridge/sandbox/cancel_all.h"

#include "tests/link_fixture.h"

static bool over;

static void on_over(void *arg)
{
	(void)arg;
	over = true;
}

static struct cancel_all *start(void)
{
	over = false;
	here.kind = TRANSPORT_UNIX;
	struct cancel_all *f = cancel_all_start(
	    loop, &here, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED, on_over, NULL);
	ck_assert_ptr_nonnull(f);
	return f;
}

/* One frame of the list: `count` execs, numbered from `first`. */
static void say_execs(int fd, Sandgate__ExecPhase phase, unsigned first, unsigned count)
{
	static uint8_t wire[FRAME_HEADER + FRAME_MAX_TO_HOST];
	static char ids[LIST_FRAME_EXECS][16];
	Sandgate__ExecState states[LIST_FRAME_EXECS], *pointers[LIST_FRAME_EXECS];
	Sandgate__ExecList list = SANDGATE__EXEC_LIST__INIT;

	for (unsigned i = 0; i < count; i++) {
		sandgate__exec_state__init(&states[i]);
		snprintf(ids[i], sizeof(ids[i]), "x%u", first + i);
		states[i].exec_id = ids[i];
		states[i].phase = phase;
		pointers[i] = &states[i];
	}
	list.execs = pointers;
	list.n_execs = count;
	say(fd, wire, pack(wire, SANDGATE__GUEST_FRAME__BODY_EXEC_LIST, &list));
}

static void say_done(int fd)
{
	uint8_t wire[64];
	Sandgate__Done done = SANDGATE__DONE__INIT;
	say(fd, wire, pack(wire, SANDGATE__GUEST_FRAME__BODY_DONE, &done));
}

/* The next link attaches to an exec and cancels it; which one. */
static unsigned take_cancel(void)
{
	unsigned number;
	int fd = accept_now();
	Sandgate__HostFrame *f = take_frame(fd);
	ck_assert_int_eq(f->body_case, SANDGATE__HOST_FRAME__BODY_OPEN);
	ck_assert_int_eq(f->open->op_case, SANDGATE__OPEN__OP_ATTACH);
	ck_assert_int_eq(f->open->attach->role, SANDGATE__ROLE__ROLE_CONTROL);
	ck_assert_int_eq(sscanf(f->open->attach->exec_id, "x%u", &number), 1);
	sandgate__host_frame__free_unpacked(f, NULL);
	say_opened(fd);
	f = take_frame(fd);
	ck_assert_int_eq(f->body_case, SANDGATE__HOST_FRAME__BODY_CANCEL);
	ck_assert_int_eq(f->cancel->reason, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED);
	sandgate__host_frame__free_unpacked(f, NULL);
	say_done(fd);
	close(fd);
	return number;
}

START_TEST(execs_in_every_frame_of_the_list_are_cancelled)
{
	bool cancelled[LIST_FRAME_EXECS + 2] = {false};
	start();
	int fd = accept_open();
	say_opened(fd);
	say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_FINISHED, 1000, LIST_FRAME_EXECS);
	say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_RUNNING, 0, LIST_FRAME_EXECS);
	say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_RUNNING, LIST_FRAME_EXECS, 2);
	say_done(fd);
	close(fd);
	for (unsigned i = 0; i < LIST_FRAME_EXECS + 2; i++) {
		unsigned number = take_cancel();
		ck_assert_uint_lt(number, LIST_FRAME_EXECS + 2);
		ck_assert(!cancelled[number]);
		cancelled[number] = true;
	}
	UNTIL(over);
}
END_TEST

/* Nor does a list without an end fill the bridge's memory. */
START_TEST(more_execs_than_can_run_are_not_remembered)
{
	start();
	int fd = accept_open();
	say_opened(fd);
	for (unsigned at = 0; at < EXECS_RUNNING_MAX + LIST_FRAME_EXECS;
	     at += LIST_FRAME_EXECS) {
		say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_RUNNING, at, LIST_FRAME_EXECS);
		settle();
	}
	say_done(fd);
	close(fd);
	for (unsigned i = 0; i < EXECS_RUNNING_MAX; i++)
		take_cancel();
	UNTIL(over);
}
END_TEST

START_TEST(execs_of_a_list_that_breaks_off_are_cancelled)
{
	start();
	int fd = accept_open();
	say_opened(fd);
	say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_RUNNING, 7, 1);
	close(fd);
	ck_assert_uint_eq(take_cancel(), 7);
	UNTIL(over);
}
END_TEST

START_TEST(cancelled_in_the_middle_it_leaves_nothing)
{
	struct cancel_all *f = start();
	int fd = accept_open();
	say_opened(fd);
	say_execs(fd, SANDGATE__EXEC_PHASE__PHASE_RUNNING, 0, LIST_FRAME_EXECS);
	settle();
	cancel_all_stop(f);
	settle();
	ck_assert(!over);
	close(fd);
}
END_TEST

int main(void)
{
	TCase *t = new_case("cancel_all", setup, teardown);
	tcase_add_test(t, execs_in_every_frame_of_the_list_are_cancelled);
	tcase_add_test(t, more_execs_than_can_run_are_not_remembered);
	tcase_add_test(t, execs_of_a_list_that_breaks_off_are_cancelled);
	tcase_add_test(t, cancelled_in_the_middle_it_leaves_nothing);
	return run_suite("cancel_all", t) != 0;
}
