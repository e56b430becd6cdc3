"""Faults that users of comparable systems reported in public, each as a class."""
import base64
import concurrent.futures
import hashlib
import json
import os
import re
import signal
import time

import pytest

from client import Stream, until

ROUTES = pytest.mark.parametrize("streamed", [False, True], ids=["buffered", "streamed"])


def run(sandbox, cmd, streamed, **fields):
    """(result, stdout, stderr) by either route."""
    if not streamed:
        result = sandbox.run(cmd, **fields)
        return result, result["stdout"], result["stderr"]
    all = sandbox.stream(cmd, **fields).collect()
    assert all.last["type"] == "exit", all.last
    return all.result, all.stdout, all.stderr


class Watch:
    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began


class TestOomHiddenBehindShell:
    @pytest.mark.parametrize("cmd", ["tail /dev/zero", "exec tail /dev/zero",
                                     "(tail /dev/zero); exit $?"])
    def test_hog(self, sandbox, cmd):
        result = sandbox.run(cmd, limits={"memory_mib": 64}, timeout_seconds=60)
        assert (result["outcome"], result["exit_code"]) == ("oom_killed", 137), result
        assert result["oom_kills"] >= 1

    def test_contrast_and_next(self, sandbox):
        result = sandbox.run("exit 137", limits={"memory_mib": 64})
        assert (result["outcome"], result["signal"], result["oom_kills"]) == ("exited", None, 0)
        assert sandbox.out("echo ok") == "ok\n"


class TestInheritedSignalState:
    def test_producer_is_killed_by_sigpipe(self, sandbox):
        with Watch() as w:
            result = sandbox.run("while :; do echo a; done | head -n 1", timeout_seconds=5)
        assert (result["stdout"], result["stderr"], result["outcome"]) == ("a\n", "", "exited")
        assert w.seconds < 1

    def test_masks_are_empty(self, sandbox):
        text = sandbox.out("exec grep -E '^Sig(Blk|Ign)' /proc/self/status")
        assert re.findall(r"\t(\w+)", text) == ["0" * 16] * 2

    def test_wait_sees_sigchld(self, sandbox):
        with Watch() as w:
            assert sandbox.out("sleep 0.2 & wait $!; echo done") == "done\n"
        assert w.seconds < 1


class TestBackgroundHoldsPipe:
    @ROUTES
    def test_exit_does_not_wait(self, sandbox, streamed):
        with Watch() as w:
            result, stdout, _ = run(sandbox, "sleep 30 & echo hi", streamed, timeout_seconds=10)
        assert (stdout, result["outcome"], result["exit_code"]) == ("hi\n", "exited", 0)
        assert w.seconds < 2
        assert result["leftover_count"] == 1
        assert sandbox.sleepers() == 1  # kept: the documented default
        sandbox.call(result["exec_id"], "kill")
        until(lambda: sandbox.sleepers() == 0, 3, "the leftover's end")

    def test_on_exit_kill(self, sandbox):
        sandbox.run("sleep 30 & echo hi", on_exit="kill")
        assert sandbox.sleepers() == 0


class TestUtf8SplitAcrossChunks:
    @ROUTES
    def test_split_character(self, sandbox, streamed):
        _, stdout, _ = run(sandbox, "printf '\\342'; sleep 0.3; printf '\\202\\254\\n'", streamed)
        assert stdout == "€\n"

    @ROUTES
    def test_three_mib_of_them(self, sandbox, streamed):
        cmd = "awk 'BEGIN { s = \"€€€€€€€€\"; while (length(s) < 3145728) s = s s; " \
              "printf \"%s\", s }' | head -c 3145728"
        result, stdout, _ = run(sandbox, cmd, streamed, timeout_seconds=60)
        assert stdout == "€" * 1048576
        assert result["stdout_bytes"] == 3145728 and not result["encoding_lossy"]


class TestInvalidBytesInJson:
    CMD = "printf 'a\\377\\376b\\000c'"

    @ROUTES
    def test_replaced_and_flagged(self, sandbox, streamed):
        result, stdout, _ = run(sandbox, self.CMD, streamed)
        assert stdout == "a��b\0c" and result["encoding_lossy"] is True
        assert result["stdout_bytes"] == 6

    @ROUTES
    def test_base64_is_exact(self, sandbox, streamed):
        _, stdout, _ = run(sandbox, self.CMD, streamed, output_encoding="base64")
        assert base64.b64decode(stdout) == b"a\xff\xfeb\0c"

    def test_reply_is_strict_utf8_json(self, sandbox):
        reply = sandbox.exec(self.CMD)
        json.loads(reply.body.decode("utf-8", "strict"))

    def test_raw_output_route(self, sandbox):
        started = sandbox.start(self.CMD)
        sandbox.state(started["exec_id"], 10)
        reply = sandbox.client.get(f"{sandbox.path}/execs/{started['exec_id']}/output")
        assert reply.status == 200 and reply.body == b"a\xff\xfeb\0c"


class TestDescendantEscapesKill:
    @pytest.mark.parametrize("cmd", [
        "setsid sh -c \"trap '' TERM; sleep 61\" & sleep 61",
        "(setsid sh -c '(sleep 61 &) ; sleep 61' &) ; sleep 61",
        "for i in 1 2 3 4 5; do setsid setsid sleep 61 & done; sleep 61"])
    def test_nothing_is_left(self, sandbox, cmd):
        with Watch() as w:
            assert sandbox.run(cmd, timeout_seconds=1)["outcome"] == "timed_out"
        assert w.seconds <= 3.5
        assert sandbox.sleepers() == 0


class TestHeadOfLineStall:
    def test_one_stalled_reader(self, bridge, fresh):
        def memory():
            guest = int(fresh.out("awk '/VmRSS/ {print $2}' /proc/1/status"))
            return guest, bridge.rss_kib()
        start = memory()
        stalled = fresh.send("yes", "/exec/stream", timeout_seconds=8, exec_id="stalled")
        other = fresh.send("sleep 30", timeout_seconds=40)
        samples, began = [], time.monotonic()
        while time.monotonic() - began < 7:
            with Watch() as w:
                assert fresh.out("echo ok") == "ok\n"
            assert w.seconds < 1
            samples.append(memory())
        state = until(lambda: (s := fresh.state("stalled"))["state"] == "finished" and s, 6,
                      "the stalled exec's own timeout")
        assert state["result"]["outcome"] == "timed_out"
        # The agent may keep a ring of 8 MiB; the bridge has high and low water marks.
        for i in range(2):
            assert max(s[i] for s in samples) - start[i] < 12 * 1024, (start, samples)
        stalled.close()
        other.close()


class TestLostReportedAsSuccess:
    @ROUTES
    def test_vm_killed(self, bridge, streamed):
        own = bridge.client.create()
        connection = own.send("echo up; sleep 60", "/exec/stream" if streamed else "/exec",
                              timeout_seconds=120)
        if streamed:
            stream = Stream(connection, *connection.head())
            stream.until("stdout", "up")
        else:
            until(lambda: own.client.get(own.path + "/execs").json["items"], 5, "the start")
        bridge.kill_guests(own)
        with connection, Watch() as w:
            if streamed:
                last = stream.collect().last
                assert last["type"] == "error" and last["code"] == "sandbox.lost", last
                assert "exit_code" not in last
            else:
                assert connection.reply().code == "sandbox.lost"
        assert w.seconds < 5
        own.delete()


class TestCgroupTeardown:
    COUNT = "ls -d /sys/fs/cgroup/sandgate/exec/*/ | wc -l"

    def test_directories_return_to_the_baseline(self, sandbox):
        before = int(sandbox.out(self.COUNT))
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            results = list(pool.map(
                lambda _: sandbox.run("sleep 60 & sleep 60", timeout_seconds=1), range(100)))
        assert {r["outcome"] for r in results} == {"timed_out"}
        until(lambda: int(sandbox.out(self.COUNT)) <= before, 3, "the baseline")

    def test_limit_is_in_force_from_the_first_exec(self, fresh):
        cmd = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup$(sed -n 's/^0:://p' " \
              "/proc/self/cgroup)/memory.max 2>/dev/null | head -1"
        outside = "sleep 1; grep -lx 67108864 /sys/fs/cgroup/sandgate/exec/*/memory.max | wc -l"
        held = fresh.start("sleep 5", limits={"memory_mib": 64})
        inside = fresh.run(cmd, limits={"memory_mib": 64})["stdout"].strip()
        assert inside in ("67108864", "")
        assert int(fresh.out(outside)) >= 1
        fresh.forget(held["exec_id"])


class TestTimeoutParsing:
    CMD = "sleep 1; echo ok"

    def test_fraction(self, sandbox):
        with Watch() as w:
            result = sandbox.run(self.CMD, timeout_seconds=0.5)
        assert result["outcome"] == "timed_out" and 0.4 <= w.seconds <= 1.5
        assert 450 <= result["duration_ms"] <= 1500

    @pytest.mark.parametrize("value", [0, -1, -0.5, 1e12, "5", True, [], {}])
    def test_refused(self, sandbox, value):
        reply = sandbox.exec("touch /tmp/refused", timeout_seconds=value)
        assert reply.status == 400 and reply.code == "request.invalid_field", reply.body
        assert reply.error["details"]["field"] == "timeout_seconds"
        assert sandbox.run("ls /tmp/refused")["exit_code"] != 0

    def test_null_and_absent(self, sandbox):
        assert sandbox.out(self.CMD, timeout_seconds=None) == "ok\n"
        reply = sandbox.client.post(sandbox.path + "/exec", {"cmd": self.CMD})
        assert reply.json["stdout"] == "ok\n"


class TestStdinLifecycle:
    MIB = "x" * (1 << 20)

    def test_none(self, sandbox):
        assert sandbox.out("cat; echo done") == "done\n"

    def test_some(self, sandbox):
        assert sandbox.out("cat; echo done", stdin="abc") == "abcdone\n"

    def test_a_mib(self, sandbox):
        with Watch() as w:
            assert sandbox.out("wc -c", stdin=self.MIB) == "1048576\n"
            assert sandbox.out("cat", stdin=self.MIB) == self.MIB
            assert sandbox.run("true", stdin=self.MIB)["exit_code"] == 0
        assert w.seconds < 6
        assert sandbox.out("echo ok") == "ok\n"

    def test_any_bytes(self, sandbox):
        data = bytes(range(256)) * 100
        assert hashlib.md5(data).hexdigest() in sandbox.out(
            "md5sum", stdin_base64=base64.b64encode(data).decode())

    def test_nul_in_stdin_is_input(self, sandbox):
        assert sandbox.out("wc -c", stdin="a\0b") == "3\n"


class TestEmbeddedNul:
    @pytest.mark.parametrize("field,body", [
        ("cmd", {"cmd": "touch /tmp/nul\0; echo b"}),
        ("argv", {"argv": ["touch", "/tmp/nul\0x"]}),
        ("env", {"cmd": "touch /tmp/nul", "env": {"A\0": "b"}}),
        ("env", {"cmd": "touch /tmp/nul", "env": {"A": "b\0c"}}),
        ("cwd", {"cmd": "touch /tmp/nul", "cwd": "/\0tmp"}),
        ("user", {"cmd": "touch /tmp/nul", "user": "root\0"})])
    def test_refused(self, sandbox, field, body):
        for route in ("/exec", "/exec/stream", "/execs"):
            reply = sandbox.client.post(sandbox.path + route, body)
            assert reply.status == 400, reply.body
            assert reply.code == "request.invalid_field", reply.body
            named = reply.error["details"]["field"]
            # The parser refuses it before it is known whose name it is.
            assert named is None if "A\0" in body.get("env", {}) else named.startswith(field)
        assert sandbox.run("ls /tmp/nul*")["exit_code"] != 0


class TestReaperRace:
    def test_two_hundred_at_once(self, sandbox):
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            results = list(pool.map(
                lambda _: sandbox.run("(sleep 0.01 &); exit 3", timeout_seconds=30), range(200)))
        assert {(r["exit_code"], r["outcome"], r["stderr"]) for r in results} == \
            {(3, "exited", "")}
        until(lambda: sandbox.zombies() == 0, 2, "no zombie")


class TestExitAgainstDrain:
    @ROUTES
    def test_tail_is_always_there(self, sandbox, streamed, launcher):
        def one(_):
            result, stdout, _ = run(sandbox, "seq 1 10000; exit 5", streamed)
            return result["exit_code"], len(stdout), stdout[-6:]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert set(pool.map(one, range(500 if launcher == "uml" else 50))) == {(5, 48894, "10000\n")}

    @ROUTES
    def test_both_streams(self, sandbox, streamed):
        _, stdout, stderr = run(
            sandbox, "head -c 1000000 /dev/zero | tr '\\0' e >&2; "
            "head -c 1000000 /dev/zero | tr '\\0' o", streamed, timeout_seconds=30)
        assert stdout == "o" * 1_000_000 and stderr == "e" * 1_000_000

    def test_unterminated_line(self, sandbox):
        all = sandbox.stream("printf 'a\\nb'").collect()
        assert all.stdout == "a\nb" and all.events[-1].name == "exit"


class TestAgentIsNotTheOomVictim:
    def test_guest_wide_pressure(self, fresh):
        boot = fresh.out("cat /proc/sys/kernel/random/boot_id")
        total = int(fresh.out("awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo"))
        result = fresh.run(
            "for i in 1 2 3 4 5 6 7 8; do tail /dev/zero & done; wait; echo end",
            limits={"memory_mib": total - 4}, timeout_seconds=60, timeout=90)
        assert result["outcome"] in ("oom_killed", "timed_out") or result["oom_kills"] >= 1, result
        assert fresh.out("cat /proc/sys/kernel/random/boot_id") == boot

    def test_default_limit(self, fresh):
        result = fresh.run("for i in 1 2 3 4 5 6 7 8; do tail /dev/zero & done; wait; echo end",
                           timeout_seconds=60, timeout=90)
        assert result["outcome"] == "oom_killed" or result["oom_kills"] >= 1, result
        assert fresh.out("echo ok") == "ok\n"

    def test_children_are_not_protected(self, sandbox):
        assert int(sandbox.out("cat /proc/self/oom_score_adj")) >= 0


class TestClientDisconnectOrphan:
    @ROUTES
    @pytest.mark.parametrize("leave", ["close", "abort"])
    def test_heartbeat_stops(self, sandbox, streamed, leave):
        name = f"/tmp/hb{time.monotonic_ns()}"
        count = lambda: int(sandbox.run(f"wc -l < {name}")["stdout"] or 0)
        connection = sandbox.send(f"while :; do date >> {name}; sleep 0.1; done",
                                  "/exec/stream" if streamed else "/exec")
        until(lambda: count() >= 3, 10, "three beats")
        getattr(connection, leave)()
        until(lambda: sandbox.sleepers() == 0, 5, "the end of the beats")
        first = count()
        sandbox.run("sleep 0.5")
        assert count() == first
        assert sandbox.zombies() == 0

    def test_detach_runs_on(self, sandbox):
        name = f"run-on-{time.monotonic_ns()}"
        connection = sandbox.send("sleep 1; echo done", exec_id=name, on_disconnect="detach")
        until(lambda: sandbox.client.get(f"{sandbox.path}/execs/{name}").status == 200, 5)
        connection.abort()
        state = sandbox.state(name, wait_seconds=10)
        assert state["result"]["outcome"] == "exited", state
        assert state["detached"] is True


class TestCwd:
    @pytest.mark.parametrize("cwd", ["", "tmp", "./x", "../x"])
    def test_relative_is_refused(self, sandbox, cwd):
        reply = sandbox.exec("touch /tmp/leak", cwd=cwd)
        assert reply.status == 400 and reply.error["details"]["field"] == "cwd", reply.body
        assert sandbox.run("ls /tmp/leak")["exit_code"] != 0

    def test_missing_names_the_path(self, sandbox):
        result = sandbox.run("true; touch /tmp/leak; pwd", cwd="/nope")
        assert result["outcome"] == "spawn_failed" and "/nope" in result["spawn_error"]["message"]
        assert sandbox.run("ls /tmp/leak")["exit_code"] != 0

    def test_default_is_the_home(self, sandbox):
        assert sandbox.out("pwd") == "/root\n"
        assert sandbox.out("pwd", user="u1") == "/home/u1\n"
        assert sandbox.out("pwd", cwd="/tmp") == "/tmp\n"


class TestIdentity:
    def test_supplementary_groups(self, sandbox):
        lines = sandbox.out("id -Gn; echo $HOME; echo $PATH; umask", user="u1").splitlines()
        assert lines[0].split() == ["g1", "g2"]
        assert lines[1] == "/home/u1" and lines[2] and lines[3] == "0022"

    def test_default_user(self, sandbox):
        assert sandbox.out("id -u; echo $HOME; echo $USER $LOGNAME $LANG $SHELL") == \
            "0\n/root\nroot root C.UTF-8 /bin/sh\n"

    def test_ghost(self, sandbox):
        result = sandbox.run("id -u", user="ghost")
        assert result["outcome"] == "spawn_failed" and result["stdout"] == ""
        assert result["spawn_error"]["stage"] == "user"

    def test_numeric(self, sandbox):
        assert sandbox.out("id -u; id -g", user="1234:2345", cwd="/") == "1234\n2345\n"

    def test_request_environment_wins(self, sandbox):
        assert sandbox.out("echo $HOME $X", env={"HOME": "/x", "X": "y z"}) == "/x y z\n"


class TestSseKeepalive:
    def test_quiet_stream(self, farm):
        sandbox = farm.sandbox("qemu")
        began = time.monotonic()
        stream = sandbox.stream("sleep 40; echo ok", timeout_seconds=120, timeout=60)
        assert time.monotonic() - began < 1
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in stream.headers["cache-control"]
        assert stream.headers["x-accel-buffering"] == "no"
        all = stream.collect()
        assert all.stdout == "ok\n" and all.last["exit_code"] == 0
        times = [began, *stream.comments]
        assert len(stream.comments) >= 2
        assert all_within(times, 30)

    def test_each_event_at_once(self, sandbox):
        stream = sandbox.stream("for i in 1 2 3; do echo $i; sleep 0.5; done")
        at = [e.at for e in stream if e.name == "stdout"]
        assert len(at) == 3 and at[1] - at[0] > 0.3 and at[2] - at[1] > 0.3


def all_within(times, seconds):
    return all(b - a <= seconds for a, b in zip(times, times[1:]))


class TestTimeoutClassification:
    def test_partial_output(self, sandbox):
        with Watch() as w:
            result = sandbox.run("echo partial; sleep 60", timeout_seconds=1)
        assert (result["outcome"], result["exit_code"], result["stdout"]) == \
            ("timed_out", 124, "partial\n")
        assert w.seconds <= 2.5

    def test_stopped_process(self, sandbox):
        result = sandbox.run("kill -STOP $$; echo after", timeout_seconds=1)
        assert result["outcome"] == "timed_out" and result["stdout"] == ""
        assert int(sandbox.out("grep -l '^State:.T' /proc/[0-9]*/status | wc -l")) == 0

    def test_others_are_not_timeouts(self, sandbox):
        result = sandbox.run("kill -9 $$")
        assert (result["outcome"], result["exit_code"], result["signal"]) == \
            ("signaled", 137, "SIGKILL")
        assert sandbox.run("exit 137")["outcome"] == "exited"
        assert sandbox.run("exit 124")["outcome"] == "exited"
