/* Resume: what is refused and what is repeated, and what becomes of a clone. What is done to a
 * machine is check_renew.c's. */
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <time.h>

#include "tests/snapshot_fixture.h"

static void expect_resume_refused(Sandgate__Resume *m, enum err_code code, const char *field)
{
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_RESUME, m);
	host_expect_refused(h, code, field);
}

/* ---- Resume ---- */

START_TEST(resume_is_idempotent_by_generation)
{
	Sandgate__Resume m = resume_message(5, SANDGATE__RESUME_ROLE__RESUME_CLONE);

	prepare();
	Sandgate__GuestFrame *first = resume_with(&m), *again = resume_with(&m);
	ck_assert_mem_eq(first->resumed->agent_instance.data,
	                 again->resumed->agent_instance.data, 16);
	ck_assert_uint_eq(first->resumed->n_failed, again->resumed->n_failed);
	host_free(first);
	host_free(again);
	prepare();
	host_free(resume_with(&m)); /* late: it resumes nothing */
	Sandgate__Exec e = exec_message("a", "true");
	host_expect_refused(host_exec(&e), ERR_INVALID_STATE, "");
	m.generation = 4;
	expect_resume_refused(&m, ERR_INVALID_STATE, "");
	m.generation = 6;
	host_free(resume_with(&m));
	host_close(host_start(&e));
}
END_TEST

static struct host *begin_resume(uint64_t generation)
{
	Sandgate__Resume m = resume_message(generation, SANDGATE__RESUME_ROLE__RESUME_SAME);
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_RESUME, &m);
	return h;
}

/* All three come in one turn of the loop: one of the repetitions before the new one. */
START_TEST(a_repetition_answers_no_other_resume)
{
	struct host *first = begin_resume(1), *h = begin_resume(2), *last = begin_resume(1);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_RESUMED);
	ck_assert_uint_eq(g->resumed->generation, 2);
	host_free(g);
	host_expect_end(h);
	host_close(first);
	host_close(last);
}
END_TEST

START_TEST(a_resume_ends_a_prepare_that_is_under_way)
{
	Sandgate__Exec m = exec_message("a", "exec head -c 20000000 /dev/zero");
	struct host *deaf = host_exec(&m); /* its session takes a while to end */

	turn_until_held_up("a");
	struct host *h = begin_prepare();
	resume_same();
	host_expect_refused(h, ERR_INVALID_STATE, "");
	host_close(deaf);
}
END_TEST

START_TEST(faulty_resumes_are_refused_by_field)
{
	Sandgate__EnvVar v = SANDGATE__ENV_VAR__INIT, *env[] = {&v};
	Sandgate__Network network = SANDGATE__NETWORK__INIT;
	static uint8_t much[RESUME_ENTROPY_MAX + 1];
	Sandgate__Resume m;

	prepare();
#define FRESH(name) m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_##name)
	FRESH(CLONE);
	m.role = 7;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "role");
	FRESH(CLONE);
	m.entropy.len--;
	expect_resume_refused(&m, ERR_MISSING_FIELD, "entropy");
	FRESH(SAME);
	m.entropy = (ProtobufCBinaryData){sizeof(much), much};
	expect_resume_refused(&m, ERR_INVALID_FIELD, "entropy");
	FRESH(CLONE);
	m.hostname = BYTES("a\0b");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	m.hostname = (ProtobufCBinaryData){HOSTNAME_MAX + 1, (uint8_t *)malloc(65)};
	memset(m.hostname.data, 'a', 65);
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	free(m.hostname.data);
	FRESH(CLONE);
	m.machine_id = BYTES("short");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "machine_id");
	FRESH(CLONE);
	v.name = BYTES("A=B");
	m.env = env;
	m.n_env = 1;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "env");
	FRESH(SAME);
	m.env = env;
	m.n_env = 1;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "env");
	FRESH(SAME);
	m.hostname = BYTES("a");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	FRESH(SAME);
	m.machine_id = BYTES("0123456789abcdef");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "machine_id");
	FRESH(SAME);
	m.network = &network;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "network");
#undef FRESH
	resume_same(); /* none of them had an effect */
}
END_TEST

/* The test is no machine of its own: nothing of this one may change. */
START_TEST(who_does_not_manage_the_machine_says_what_was_not_done)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	char before[65], after[65];
	bool told = false;

	ck_assert(!fixture_config.manage_machine);
	gethostname(before, sizeof(before));
	m.hostname = BYTES("never-so");
	m.wall_clock_ms = 1000;
	prepare();
	Sandgate__GuestFrame *g = resume_with(&m);
	for (size_t i = 0; i < g->resumed->n_failed; i++)
		told |= strcmp(g->resumed->failed[i], "hostname") == 0;
	ck_assert(told);
	host_free(g);
	gethostname(after, sizeof(after));
	ck_assert_str_eq(before, after);
	ck_assert_int_gt(time(NULL), 1000000000);
}
END_TEST

/* ---- clones ---- */

START_TEST(a_clone_is_another_agent_with_another_environment)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__EnvVar a = SANDGATE__ENV_VAR__INIT, b = SANDGATE__ENV_VAR__INIT,
	                 *env[] = {&a, &b};
	Sandgate__Info info = SANDGATE__INFO__INIT;
	Sandgate__Exec e = exec_message("a", "echo $WHO $NEW");
	struct err err = {0};

	ck_assert(config_set(&fixture_config, "env", "WHO=template", &err) == 0);
	Sandgate__GuestFrame *before =
	    host_ask(SANDGATE__OPEN__OP_INFO, &info, SANDGATE__GUEST_FRAME__BODY_INFO);
	prepare();
	a.name = BYTES("WHO");
	a.value = BYTES("clone");
	b.name = BYTES("NEW");
	b.value = BYTES("yes");
	m.env = env;
	m.n_env = 2;
	host_free(resume_with(&m));
	Sandgate__GuestFrame *after =
	    host_ask(SANDGATE__OPEN__OP_INFO, &info, SANDGATE__GUEST_FRAME__BODY_INFO);
	ck_assert_mem_ne(before->info->agent_instance.data, after->info->agent_instance.data,
	                 16);
	ck_assert_uint_eq(after->info->generation, 2);
	host_free(before);
	host_free(after);
	struct transcript t = host_finish(host_start(&e), 0);
	ck_assert_str_eq(t.out[0], "clone yes\n");
	transcript_free(&t);
}
END_TEST

START_TEST(in_a_clone_foreground_execs_are_cancelled_and_others_run_on)
{
	Sandgate__Exec fore = exec_message("fore", "sleep 60");
	Sandgate__Exec keep = exec_message("keep", "sleep 60");
	Sandgate__Exec back = exec_message("back", "sleep 60");

	keep.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	back.detached = true;
	struct host *a = host_start(&fore), *b = host_start(&keep), *c = host_start(&back);
	host_expect_end(c);
	prepare();
	read_suspended(a, 0, NULL);
	read_suspended(b, 0, NULL);
	resume_clone();
	struct transcript t = host_finish(attach("fore", 0), 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_FORKED);
	transcript_free(&t);
	ck_assert_int_eq(exec_state(find_exec("keep")), EXEC_RUNNING);
	ck_assert_int_eq(exec_state(find_exec("back")), EXEC_RUNNING);
	Sandgate__ExecState state;
	exec_describe(find_exec("keep"), &state);
	ck_assert(state.detached);
}
END_TEST

/* Where the host copied it unasked, its sessions' peers are perhaps silent for ever. */
START_TEST(a_clone_that_was_not_prepared_ends_its_sessions)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	struct host *owner = host_start(&m), *silent = host_connect();

	resume_clone();
	ck_assert_uint_eq(read_suspended(owner, 0, NULL), 0);
	host_expect_end(silent);
	expect_cancelled("a", SANDGATE__CANCEL_REASON__CANCEL_FORKED);
}
END_TEST

START_TEST(a_clone_knows_no_results_and_all_ids_are_free)
{
	Sandgate__Exec done = exec_message("done", "echo x"),
	               gone = exec_message("gone", "echo y");

	struct transcript t = host_finish(host_start(&done), 0);
	transcript_free(&t);
	host_forget("gone");
	prepare();
	resume_clone();
	host_expect_refused(host_attach("done", SANDGATE__ROLE__ROLE_OUTPUT, 0),
	                    ERR_EXEC_NOT_FOUND, "exec_id");
	t = host_finish(host_exec(&done), 0);
	ck_assert(t.started && !t.existing);
	transcript_free(&t);
	t = host_finish(host_start(&gone), 0);
	ck_assert_str_eq(t.out[0], "y\n");
	transcript_free(&t);
}
END_TEST

static bool own_mounts;

/* Before there are threads: each would keep the others' mounts. */
static void setup_with_own_mounts(void)
{
	own_mounts =
	    unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	setup();
}

/* Its siblings would draw the same random numbers. */
START_TEST(a_clone_without_entropy_is_refused_and_waits)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__Exec e = exec_message("a", "true");

	if (!own_mounts || mount("/dev/null", "/dev/urandom", NULL, MS_BIND, NULL) < 0) {
		printf("skipped: no mounts of our own here\n");
		return;
	}
	fixture_config.self_resume_s = 1;
	prepare();
	host_expect_refused(host_opened(SANDGATE__OPEN__OP_RESUME, &m), ERR_INTERNAL,
	                    "entropy");
	turn_for(1.2);
	host_expect_refused(host_exec(&e), ERR_INVALID_STATE, "");
	ck_assert_uint_eq(snapshot_generation(agent_snapshot(fixture_agent)), 1);
	ck_assert(umount("/dev/urandom") == 0);
	host_free(resume_with(&m));
	host_close(host_start(&e));
}
END_TEST

int main(void)
{
	TCase *t = new_case("snapshot_resume", setup, NULL);
	tcase_add_test(t, resume_is_idempotent_by_generation);
	tcase_add_test(t, a_repetition_answers_no_other_resume);
	tcase_add_test(t, a_resume_ends_a_prepare_that_is_under_way);
	tcase_add_test(t, faulty_resumes_are_refused_by_field);
	tcase_add_test(t, who_does_not_manage_the_machine_says_what_was_not_done);
	tcase_add_test(t, a_clone_is_another_agent_with_another_environment);
	tcase_add_test(t, in_a_clone_foreground_execs_are_cancelled_and_others_run_on);
	tcase_add_test(t, a_clone_that_was_not_prepared_ends_its_sessions);
	tcase_add_test(t, a_clone_knows_no_results_and_all_ids_are_free);
	TCase *alone = new_case("own mounts", setup_with_own_mounts, NULL);
	tcase_add_test(alone, a_clone_without_entropy_is_refused_and_waits);
	return run_suite("snapshot_resume", t, alone) != 0;
}
