/* Streams of events: what is told to a client that asks for more than is kept. */
#include <inttypes.h>

#include "host-bridge/sandbox/event_log.h"
#include "proto/limits.h"
#include "tests/api_fixture.h"

static struct event_log *log_of_all(void)
{
	return sandbox_set_events(fx.api.sandboxes);
}

/* Until nothing of before is kept. */
static void others_fill_the_log(void)
{
	const struct event other = {.type = "exec_ended", .sandbox_id = "sb-other"};
	for (unsigned i = 0; i < EVENTS_KEPT; i++)
		event_log_add(log_of_all(), &other);
}

static struct peer *ask_after(uint64_t number)
{
	char header[64];
	snprintf(header, sizeof(header), "Last-Event-ID: %016" PRIx64 "-%" PRIu64 "\r\n",
	         event_log_epoch(log_of_all()), number);
	return request("GET", "/events", header, "");
}

static void delete_it(void)
{
	struct peer *c = request("DELETE", "", "", "");
	UNTIL(has(c, "HTTP/1.1 204"));
}

START_TEST(a_deleted_one_whose_events_are_forgotten_is_told_as_a_gap_once)
{
	delete_it();
	others_fill_the_log();
	struct peer *c = ask_after(1);
	UNTIL(has(c, "0\r\n\r\n"));
	ck_assert(has(c, "HTTP/1.1 200") && has(c, "event: gap"));
	ck_assert(!has(c, "event: deleted"));
	uint64_t gap = event_log_next(log_of_all()) - 1;
	others_fill_the_log(); /* but for one */
	c = ask_after(gap);
	UNTIL(has(c, "\r\n\r\n"));
	ck_assert(has(c, "HTTP/1.1 204"));
}
END_TEST

START_TEST(a_gap_reaches_to_the_next_event_of_ones_own)
{
	char id[64];
	others_fill_the_log();
	struct peer *c = ask_after(1);
	snprintf(id, sizeof(id), "-%" PRIu64 "\nevent: gap", event_log_next(log_of_all()) - 1);
	UNTIL(has(c, id));
	delete_it();
	UNTIL(has(c, "event: deleted"));
}
END_TEST

int main(void)
{
	TCase *t = new_case("events", fixture_setup, fixture_teardown);
	tcase_add_test(t, a_deleted_one_whose_events_are_forgotten_is_told_as_a_gap_once);
	tcase_add_test(t, a_gap_reaches_to_the_next_event_of_ones_own);
	return run_suite("events", t, NULL);
}
