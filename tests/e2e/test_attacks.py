"""Storms, races and misuse, judged by one rule: no reply says what did not happen, and
afterwards everything is back where it was."""
import collections
import concurrent.futures
import itertools
import json
import secrets
import select
import time

import pytest

from client import body_of, until

OCTETS = {"Content-Type": "application/octet-stream"}


def name():
    return f"attack-{secrets.token_hex(6)}"


def together(calls):
    """Their values; all called at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(c) for c in calls]]


def judged(reply):
    body = reply.json
    result = body.get("result") or body
    return result.get("outcome"), result.get("exit_code"), result.get("cancel_reason")


def running(sandbox, id):
    reply = sandbox.client.get(f"{sandbox.path}/execs/{id}")
    return reply.status == 200 and reply.json["state"] == "running"


def readable(connections):
    poll = select.poll()
    for c in connections:
        poll.register(c.sock, select.POLLIN)
    return len(poll.poll(0))


class TestBursts:
    def test_execs_that_queue_to_be_spawned_are_all_run(self, farm):
        """However long the queue: none times out, or fails, for its place in it."""
        made = farm.bridge("uml").client.create(resources={"memory_mib": 1024})
        try:
            calls = [made.client.send("POST", made.path + "/exec", {"argv": ["sleep", "1"]},
                                      timeout=120) for _ in range(600)]
            replies = [c.reply() for c in calls]
            ends = collections.Counter(
                (r.status, judged(r), (r.json.get("spawn_error") or {}).get("errno"))
                for r in replies)
            assert ends == {(200, ("exited", 0, None), None): 600}
        finally:
            made.delete()

    def test_waiters_leave_room_for_execs_and_kills(self, farm):
        made = farm.bridge("uml").client.create()
        waiters = []
        try:
            id = made.start("sleep 60")["exec_id"]
            waiters = [made.client.send("GET", f"{made.path}/execs/{id}?wait_seconds=60")
                       for _ in range(1050)]
            until(lambda: farm.bridge("uml").fds() > 1050, 10, "the waiters' acceptance")
            began = time.monotonic()
            assert made.out("echo ok") == "ok\n"
            assert made.call(id, "kill", {"grace_seconds": 0}).status == 200
            assert time.monotonic() - began < 5
        finally:
            for c in waiters:
                c.close()
            made.delete()

    def test_waiters_and_watchers_that_leave_cost_nothing(self, local_bridge, local):
        before = local_bridge.fds()
        id = local.start("cat", stdin_open=True)["exec_id"]
        get = lambda path: local.client.send("GET", f"{local.path}/execs/{id}{path}")
        waiters = [get("?wait_seconds=60") for _ in range(100)]
        watchers = [get("/stream") for _ in range(100)]
        until(lambda: readable(watchers) == 100, 10, "the watchers' heads")
        for c in waiters[:50] + watchers[:50]:
            c.abort()
        local.client.request("POST", f"{local.path}/execs/{id}/stdin?close=true", b"end", OCTETS)
        assert all(c.reply().json["result"]["exit_code"] == 0 for c in waiters[50:])
        assert all(b"event: exit" in c.reply().body for c in watchers[50:])
        for c in waiters[50:] + watchers[50:]:
            c.close()
        until(lambda: local_bridge.fds() <= before + 2, 5, "the descriptors' return")

    def test_many_streams_beside_stalled_ones(self, sandbox):
        stalled = [sandbox.send("yes", route, timeout_seconds=5)
                   for route in ("/exec", "/exec/stream")]

        def one(i):
            whole = sandbox.stream(f"seq 1 5000; exit {i}").collect()
            assert (len(whole.stdout), whole.result["exit_code"]) == (23893, i)
            assert not whole.gaps

        together([lambda i=i: one(i) for i in range(64)])
        assert judged(stalled[0].reply()) == ("timed_out", 124, None)
        end = stalled[1].reply().body.rsplit(b"data: ", 1)[1]
        assert json.loads(end)["result"]["outcome"] == "timed_out"
        for c in stalled:
            c.close()

    def test_large_replies_that_nobody_reads_are_bounded(self, farm):
        """NULs grow sixfold in JSON; the bridge need not hold them so."""
        bridge = farm.new("local").start()
        try:
            made = bridge.client.create()
            limit = 64 << 20
            calls = [made.send(f"head -c {limit} /dev/zero", limits={"output_bytes": limit})
                     for _ in range(2)]
            slowest = 0
            while readable(calls) < 2:
                began = time.monotonic()
                assert bridge.client.get("/healthz").status == 200
                slowest = max(slowest, time.monotonic() - began)
            assert bridge.rss_kib() < 2 * (limit >> 10) + (64 << 10)
            assert slowest < 0.3
            for c in calls:
                c.abort()
        finally:
            bridge.stop()

    def test_what_all_unread_replies_hold_is_bounded(self, farm):
        """Past the bound a result says what it lacks, and no short one lacks anything."""
        limit, bound = 64 << 20, 512 << 20
        bridge = farm.new("local").start()
        try:
            made = bridge.client.create()
            calls = [made.send(f"yes | head -c {limit}", limits={"output_bytes": limit})
                     for _ in range(10)]
            until(lambda: readable(calls) == 10, 60, "all results")
            assert bridge.rss_kib() < (bound >> 10) + (64 << 10)
            assert made.out("echo whole") == "whole\n"
            cut = made.run(f"yes | head -c {1 << 20}; exit 3")
            assert (cut["exit_code"], cut["stdout_bytes"]) == (3, 1 << 20)
            assert cut["stdout_truncated"] and len(cut["stdout"]) == 64 << 10
            for c in calls:
                c.abort()
            until(lambda: b"buffered_bytes 0\n" in bridge.client.get("/metrics").body, 10)
            assert len(made.out(f"yes | head -c {1 << 20}")) == 1 << 20
        finally:
            bridge.stop()


class TestRaces:
    def test_kill_against_exit(self, sandbox):
        """All who are told of the end are told the same, whichever came first."""
        for i in range(30):
            id = name()
            call = sandbox.send(f"sleep 0.0{i % 6}; exit 7", exec_id=id)
            until(lambda: sandbox.client.get(f"{sandbox.path}/execs/{id}").status == 200, 5)
            kill = sandbox.call(id, "kill", {"grace_seconds": 0, "wait_seconds": 5})
            ends = {judged(kill), judged(call.reply()), judged_state(sandbox, id)}
            # 143: it was told to end, and exited before that reached it.
            assert ends in ({("exited", 7, None)}, {("cancelled", 137, "killed")},
                            {("cancelled", 143, "killed")})

    def test_timeout_against_exit(self, sandbox):
        """What ended in time has left its mark; what has none did not end in time."""
        for i in range(20):
            mark = f"/tmp/{name()}"
            result = sandbox.run(f"sleep 0.2; echo > {mark}; exit 3",
                                 timeout_seconds=0.2 + i * 0.002)
            if result["outcome"] == "exited":
                assert result["exit_code"] == 3
                assert sandbox.run(f"rm {mark}")["exit_code"] == 0
            else:
                assert (result["outcome"], result["exit_code"]) == ("timed_out", 124), result

    def test_the_more_impatient_kill_wins(self, sandbox):
        id = sandbox.start("trap '' TERM; echo up; sleep 60")["exec_id"]
        sandbox.watch(id).until("stdout")
        began = time.monotonic()
        replies = together([lambda g=g: sandbox.call(
            id, "kill", {"grace_seconds": g, "wait_seconds": 20}) for g in (20, 0, 20)])
        assert {judged(r) for r in replies} == {("cancelled", 137, "killed")}
        assert time.monotonic() - began < 5

    def test_a_kill_in_the_grace_of_a_timeout_is_a_timeout(self, sandbox):
        id = name()
        stream = sandbox.stream("trap 'echo late' TERM; while :; do sleep 0.05; done",
                                exec_id=id, timeout_seconds=0.2, grace_seconds=30)
        stream.until("stdout", "late")
        sandbox.call(id, "kill", {"grace_seconds": 0})
        assert stream.until("exit").data["result"]["outcome"] == "timed_out"

    def test_attach_against_finish(self, local):
        for i in range(30):
            id = local.start(f"sleep 0.0{i % 4}; printf abc; exit 5")["exec_id"]
            whole = local.watch(id).collect()
            assert (whole.stdout, whole.result["exit_code"], whole.gaps) == ("abc", 5, [])

    def test_forget_while_all_kinds_of_calls_hang(self, local):
        id = name()
        own = local.stream("echo up; sleep 60", exec_id=id)
        own.until("stdout")
        watcher = local.watch(id)
        watcher.until("stdout")
        joined = local.send("echo up; sleep 60", exec_id=id)
        waiter = local.client.send("GET", f"{local.path}/execs/{id}?wait_seconds=60")
        assert not joined.readable(0.2)
        assert local.forget(id).status == 204
        for stream in (own, watcher):
            result = stream.until("exit").data["result"]
            assert (result["outcome"], result["cancel_reason"]) == ("cancelled", "killed")
        assert judged(joined.reply()) == ("cancelled", 137, "killed")
        assert waiter.reply().status in (200, 404)

    def test_delete_tells_a_joined_caller_that_it_ran(self, local_bridge):
        made = local_bridge.client.create()
        stalled = made.send("yes", "/exec/stream")
        assert stalled.readable(5)
        id = name()
        first = made.send("sleep 60", exec_id=id)
        until(lambda: running(made, id), 5, "the start")
        joined = made.send("sleep 60", exec_id=id)
        stream = made.stream("sleep 60", exec_id=id)
        stream.until("start")
        assert made.delete().status == 204
        assert judged(first.reply())[2] == "sandbox_deleted"
        last = list(stream)[-1].data
        for told in (joined.reply().json, last):
            error = told.get("error") or (told if told.get("type") == "error" else None)
            assert error is None or error["details"]["started"] != "no", told
        stalled.close()

    def test_writers_of_the_same_input_do_not_double_it(self, local):
        id = local.start("wc -c", stdin_open=True)["exec_id"]
        path = f"{local.path}/execs/{id}/stdin"
        feed = lambda query, data: local.client.request("POST", path + query, data, OCTETS)
        replies = together([lambda: feed("?offset=0", b"y" * 300000) for _ in range(8)])
        assert sorted(r.status for r in replies) == [200] + [409] * 7
        assert feed("?close=true", b"").json == {"offset": 300000}
        local.state(id, 10)
        assert local.client.get(f"{local.path}/execs/{id}/output").body.strip() == b"300000"

    def test_kill_all_from_inside_is_a_signal(self, fresh):
        """A guest's root that kills every process is no cancel and no limit of ours."""
        victim = fresh.send("sleep 60")
        until(lambda: fresh.sleepers() == 1, 5, "the victim's start")
        fresh.run("kill -9 -1")
        assert judged(victim.reply()) == ("signaled", 137, None)
        assert fresh.out("echo ok") == "ok\n"

    def test_a_frozen_agent_is_told_of_and_goes_on(self, fresh):
        freeze = "/sys/fs/cgroup/sandgate/agent/cgroup.freeze"
        # Again and again, for an exec that the freeze meets half-way is answered late.
        unread = fresh.send(f"while :; do echo 1 > {freeze}; sleep 12; echo 0 > {freeze}; "
                            "sleep 2; done", "/execs")

        def unanswered():
            reply = fresh.exec("echo ok", timeout=60)
            if reply.status == 200:
                assert reply.json["stdout"] == "ok\n"
                return None
            return reply

        reply = until(unanswered, 60, "the freeze")
        assert reply.code == "agent.timeout"
        assert reply.error["details"]["started"] == "unknown"
        until(lambda: fresh.exec("echo ok", timeout=60).status == 200, 60, "the thaw")
        unread.close()


def judged_state(sandbox, id):
    return judged(sandbox.client.get(f"{sandbox.path}/execs/{id}?wait_seconds=5", timeout=30))


class TestTruth:
    def test_an_id_is_not_run_again_while_its_result_is_promised(self, local):
        """As many others as the agent keeps results of do not make room for a second run."""
        id, file = name(), f"/tmp/{name()}"
        body = {"cmd": f"echo >> {file}; wc -l < {file}", "exec_id": id}
        assert local.client.post(local.path + "/exec", body).json["stdout"].strip() == "1"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: local.run("true"), range(1200)))
        again = local.client.post(local.path + "/exec", body)
        assert again.status != 200 or again.json["stdout"].strip() == "1"
        assert local.out(f"wc -l < {file}; rm {file}").strip() == "1"

    def test_a_character_cut_by_a_gap_is_not_replaced_unsaid(self, local):
        id = local.start("seq 1 200000 | sed s/.*/€€/", limits={"output_bytes": 100001})["exec_id"]
        assert local.state(id, 30)["result"]["outcome"] == "exited"
        whole = local.watch(id).collect()
        assert whole.gaps
        assert "\ufffd" not in whole.stdout or whole.result["encoding_lossy"]

    def test_gap_and_bytes_add_up(self, local):
        id = local.start("seq 1 500000; echo end", limits={"output_bytes": 1 << 18})["exec_id"]
        result = local.state(id, 30)["result"]
        whole = local.watch(id).collect()
        assert sum(g["bytes"] for g in whole.gaps) + len(whole.stdout) == result["stdout_bytes"]
        assert whole.stdout.endswith("500000\nend\n")

    def test_what_died_with_its_group_is_no_leftover(self, sandbox):
        for _ in range(8):
            result = sandbox.run("head -c 40000000 /dev/zero > /dev/shm/big; echo",
                                 limits={"memory_mib": 16})
            assert (result["outcome"], result["leftover_count"]) == ("oom_killed", 0), result
        sandbox.run("rm -f /dev/shm/big")

    def test_cpu_seconds_bind_what_is_left_running(self, sandbox):
        file = f"/tmp/{name()}"
        cmd = f"(while :; do i=$((i + 1)); echo $i > {file}; done) & sleep 0.1"
        id = sandbox.run(cmd, limits={"cpu_seconds": 0.5})["exec_id"]
        try:
            # It may have died between truncating the file and writing it: "" equals "".
            look = f"a=$(cat {file}); sleep 0.2; [ \"$a\" = \"$(cat {file})\" ]"
            until(lambda: sandbox.run(look)["exit_code"] == 0, 15, "the loop's end")
        finally:
            sandbox.call(id, "kill", {"grace_seconds": 0})

    def test_every_refusal_has_a_request_id(self, local_bridge):
        with local_bridge.client.connect() as c:
            c.send(b"GET /v1/\x01 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert c.reply().error["request_id"]

    def test_a_leader_that_outlives_its_oom_killed_child(self, sandbox):
        result = sandbox.run("tail /dev/zero; exit 0",
                             limits={"memory_mib": 16, "oom_group": False})
        assert (result["outcome"], result["exit_code"]) == ("exited", 0)
        assert result["oom_kills"] >= 1


class TestMisuse:
    def test_event_ids_that_name_nothing_start_nothing(self, local):
        one, other, file = name(), name(), f"/tmp/{name()}"
        local.run("echo one", exec_id=one)
        local.run("echo other", exec_id=other)
        body = {"cmd": f"touch {file}"}
        odd = ["3", one, f"{one}:", f"{one}:-1", f"{one}:1x", f"{one}:18446744073709551616",
               ":1", f"{one}:1:2", f"{name()}:3", "%00"]
        for id in odd:
            reply = local.client.post(local.path + "/exec/stream", body,
                                      headers={"Last-Event-ID": id})
            assert reply.status in (400, 404), (id, reply.status)
        for id in (f"{other}:1", *odd[:8]):
            reply = local.client.get(f"{local.path}/execs/{one}/stream",
                                     headers={"Last-Event-ID": id})
            assert reply.code == "request.invalid_field", id
        assert local.run(f"ls {file}")["exit_code"] != 0

    @pytest.mark.parametrize("leave", ["close", "abort"])
    @pytest.mark.parametrize("behind", [0, 1, 50, 600])
    def test_going_is_seen_behind_pipelined_requests(self, local, behind, leave):
        id = name()
        requests = local.client.head("POST", local.path + "/exec",
                                     body_of("sleep 60", {"exec_id": id}))
        connection = local.client.connect()
        connection.send(b"".join(requests) + local.client.head("GET", "/healthz")[0] * behind)
        until(lambda: running(local, id), 5, "the start")
        assert not connection.readable(0.1)
        getattr(connection, leave)()
        assert until(lambda: judged_state(local, id), 5) == ("cancelled", 143, "client_gone")

    def test_what_was_pipelined_behind_a_caller_that_left_is_not_run(self, local):
        id, file = name(), f"/tmp/{name()}"
        first = body_of(f"sleep 60; echo 1 >> {file}", {"exec_id": id})
        second = body_of(f"echo 2 >> {file}", {})
        connection = local.client.connect()
        connection.send(b"".join(itertools.chain(
            *(local.client.head("POST", local.path + "/exec", b) for b in (first, second)))))
        until(lambda: running(local, id), 5, "the start")
        connection.close()
        assert judged_state(local, id) == ("cancelled", 143, "client_gone")
        assert local.run(f"ls {file}")["exit_code"] != 0

    @pytest.mark.parametrize("size", [200 << 10, 3900 << 10])
    def test_a_long_command_under_the_smallest_limits(self, sandbox, size):
        limits = {"memory_mib": 1, "file_size_mib": 0, "pids": 1}
        out = sandbox.out("read x; echo $x #" + "x" * size, stdin="in\n", limits=limits)
        assert out == "in\n"

    def test_creates_that_are_left_leave_nothing(self, bridge):
        count = lambda: len(bridge.client.get("/v1/sandboxes?limit=1000").json["items"])
        before, processes = count(), len(bridge.leftovers())
        calls = [bridge.client.send("POST", "/v1/sandboxes", {"template": "base"})
                 for _ in range(4)]
        until(lambda: count() > before, 10, "a sandbox being created")
        for i, c in enumerate(calls):
            (c.abort if i % 2 else c.close)()
        until(lambda: count() == before, 20, "the sandboxes' end")
        until(lambda: len(bridge.leftovers()) <= processes, 20, "the processes' end")

    def test_delete_while_creating(self, bridge):
        mark = name()
        create = bridge.client.send("POST", "/v1/sandboxes",
                                    {"template": "base", "metadata": {"mark": mark}})
        path = "/v1/sandboxes?metadata=mark:" + mark
        id = until(lambda: bridge.client.get(path).json["items"], 10)[0]["id"]
        early = bridge.client.send("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
        assert bridge.client.delete(f"/v1/sandboxes/{id}", timeout=60).status == 204
        reply = early.reply()
        assert reply.status == 410 or judged(reply)[0] in ("exited", "cancelled")
        assert create.reply().status in (201, 410)
        assert bridge.client.get(f"/v1/sandboxes/{id}").code == "sandbox.gone"
