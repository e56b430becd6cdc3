"""Server-sent events: shape, resume, the behaviour of common clients, watchers, gaps."""
import time

import pytest

from client import Stream, until

pytestmark = pytest.mark.sanitized


def attach(sandbox, last_event_id, body=None):
    return sandbox.client.send("POST", sandbox.path + "/exec/stream", body or {"cmd": "echo no"},
                               {"Last-Event-ID": last_event_id})


class TestShape:
    def test_events(self, local):
        all = local.stream("echo out; echo err >&2; exit 3", exec_id=f"s{time.monotonic_ns()}")
        all = all.collect()
        first = all.events[0]
        assert first.name == "start" and first.data["exec_id"]
        assert (all.stdout, all.stderr) == ("out\n", "err\n")
        assert all.last["exit_code"] == 3 and all.result["outcome"] == "exited"
        assert "stdout" not in all.result and "stderr" not in all.result
        for event in all.events:
            id, seq = event.id.rsplit(":", 1)
            assert id == first.data["exec_id"] and int(seq) >= 0

    def test_refusals_before_the_start_are_statuses(self, local):
        with local.send("true", "/exec/stream", cwd="relative") as connection:
            assert connection.reply().status == 400
        with local.client.send("POST", "/v1/sandboxes/none/exec/stream",
                               {"cmd": "true"}) as connection:
            assert connection.reply().code == "sandbox.not_found"

    def test_headers_come_at_once(self, local):
        began = time.monotonic()
        stream = local.stream("sleep 3")
        assert time.monotonic() - began < 1
        stream.close()

    def test_spawn_failure_is_an_exit(self, local):
        all = local.stream(["no-such-program"]).collect()
        assert all.last["type"] == "exit" and all.result["outcome"] == "spawn_failed"

    def test_base64(self, local):
        import base64
        all = local.stream("printf '\\377\\0x'", output_encoding="base64").collect()
        assert base64.b64decode(all.stdout) == b"\xff\0x"


class TestResume:
    def test_cut_off_and_resumed(self, local):
        id = f"r{time.monotonic_ns()}"
        cmd = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; exit 9"
        stream = local.stream(cmd, exec_id=id, on_disconnect="detach")
        seen, last = "", None
        for event in stream:
            if event.name == "stdout":
                seen, last = seen + event.data["chunk"], event.id
                if "3" in seen:
                    break
        stream.abort()
        with attach(local, last, {"cmd": cmd, "exec_id": id, "on_disconnect": "detach"}) as c:
            rest = Stream(c, *c.head()).collect()
        assert seen + rest.stdout == "1\n2\n3\n4\n5\n6\n"
        assert rest.last["exit_code"] == 9

    def test_every_event_id_resumes_exactly(self, local):
        id = f"e{time.monotonic_ns()}"
        all = local.stream("printf 'a€b'; sleep 0.1; printf '\\342'; sleep 0.1; "
                           "printf '\\202\\254'; sleep 0.1; echo end", exec_id=id).collect()
        assert all.stdout == "a€b€end\n"
        seen = ""
        for event in all.events[:-1]:
            if event.name == "stdout":
                seen += event.data["chunk"]
            rest = local.watch(id, after=event.id).collect()
            assert seen + rest.stdout == all.stdout, event

    def test_after_the_end_what_was_under_way_comes_again(self, local):
        """Its id is the bridge's, and the end was sent: still no byte is lost."""
        all = local.stream("seq 1 2000").collect()
        start = all.events[0]
        with attach(local, start.id) as connection:
            again = Stream(connection, *connection.head()).collect()
        assert (again.stdout, again.gaps) == (all.stdout, [])
        assert not again.result["stdout_truncated"]

    def test_after_the_end_204(self, local):
        id = f"t{time.monotonic_ns()}"
        all = local.stream("echo x", exec_id=id).collect()
        with attach(local, all.events[-1].id) as connection:
            assert connection.reply().status == 204

    def test_attach_never_starts(self, local):
        with attach(local, "never-seen:0", {"cmd": "touch /tmp/attached"}) as connection:
            assert connection.reply().code == "exec.not_found"
        with attach(local, "", {"cmd": "touch /tmp/attached"}) as connection:
            assert connection.reply().status == 400
        assert local.run("ls /tmp/attached")["exit_code"] != 0

    @pytest.mark.parametrize("bad", ["x", ":", "a:b", "a:-1", "a:99999999999999999999", "a b:1"])
    def test_bad_ids(self, local, bad):
        with attach(local, bad, {"cmd": "touch /tmp/attached"}) as connection:
            assert connection.reply().status in (400, 404)

    def test_an_event_that_is_not_yet_is_named_by_where_it_was_asked_for(self, local):
        id = local.start("sleep 5", exec_id=f"n{time.monotonic_ns()}")["exec_id"]
        path = f"{local.path}/execs/{id}/stream"
        for reply, field in (
                (local.client.get(path, headers={"Last-Event-ID": f"{id}:9"}), "Last-Event-ID"),
                (local.client.get(f"{path}?after={id}:9"), "after")):
            assert (reply.status, reply.error["details"]["field"]) == (400, field)
        local.call(id, "kill")

    def test_killed_by_the_cut_when_not_detached(self, local):
        id = f"k{time.monotonic_ns()}"
        stream = local.stream("echo up; sleep 60", exec_id=id)
        last = stream.until("stdout")
        stream.abort()
        until(lambda: local.state(id)["state"] == "finished", 5)
        with attach(local, last.id) as connection:
            rest = Stream(connection, *connection.head()).collect()
        assert rest.result["outcome"] == "cancelled"


class TestWatchers:
    def test_many_see_the_same(self, local):
        started = local.start("sleep 0.5; seq 1 5000; exit 2")
        streams = [local.watch(started["exec_id"]) for _ in range(20)]
        text = "".join(f"{i}\n" for i in range(1, 5001))
        for stream in streams:
            all = stream.collect()
            assert all.events[0].name == "start"
            assert all.stdout == text and all.last["exit_code"] == 2

    def test_late_one_gets_all(self, local):
        started = local.start("echo early; sleep 0.5; echo late")
        until(lambda: local.client.get(
            f"{local.path}/execs/{started['exec_id']}/output").body, 5)
        assert local.watch(started["exec_id"]).collect().stdout == "early\nlate\n"

    def test_slow_one_stalls_nobody_and_is_told_its_gap(self, local):
        started = local.start("sleep 0.3; head -c 40000000 /dev/zero | tr '\\0' x",
                              timeout_seconds=60)
        slow = local.watch(started["exec_id"])
        quick = local.watch(started["exec_id"]).collect()
        state = local.state(started["exec_id"], 30)
        assert state["state"] == "finished"
        assert sum(g["bytes"] for g in quick.gaps) + len(quick.stdout) == 40000000
        rest = slow.collect()
        assert sum(g["bytes"] for g in rest.gaps) + len(rest.stdout) == 40000000

    def test_of_a_finished_one(self, local):
        started = local.start("echo x; exit 5")
        local.state(started["exec_id"], 10)
        all = local.watch(started["exec_id"]).collect()
        assert (all.stdout, all.last["exit_code"]) == ("x\n", 5)

    def test_of_an_unknown_one(self, local):
        reply = local.client.get(f"{local.path}/execs/none/stream")
        assert (reply.status, reply.code) == (404, "exec.not_found")


def test_a_comment_on_a_quiet_stream(local):
    stream = local.stream("sleep 17")
    stream.collect()
    assert len(stream.comments) >= 1
