"""Each way in which a command can end, told truthfully, through real guests."""
import threading
import time

import pytest

from client import Stream, until


def ended(result, outcome, exit_code, signal=None):
    assert (result["outcome"], result["exit_code"], result["signal"]) == \
        (outcome, exit_code, signal), result


class TestExited:
    @pytest.mark.parametrize("code", [0, 1, 137, 255])
    def test_exit_code_is_the_commands_own(self, sandbox, code):
        result = sandbox.run(f"exit {code}")
        ended(result, "exited", code)
        assert result["oom_kills"] == 0 and result["cancel_reason"] is None
        assert result["spawn_error"] is None

    def test_all_fields_are_present(self, sandbox):
        result = sandbox.run("echo out; echo err >&2")
        assert set(result) == {
            "exec_id", "outcome", "exit_code", "signal", "cancel_reason", "stdout", "stderr",
            "stdout_bytes", "stderr_bytes", "stdout_truncated", "stderr_truncated",
            "encoding_lossy", "duration_ms", "usage", "oom_kills", "oom_scope",
            "pids_limit_hits", "leftover_count", "cleanup_pending", "spawn_error"}
        assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
        assert result["usage"]["memory_peak_bytes"] is None or \
            result["usage"]["memory_peak_bytes"] > 0


class TestTheRecord:
    """What GET says of an exec afterwards is what its reply said."""

    @pytest.mark.parametrize("limits", [{}, {"output_bytes": 3}])
    def test_agrees_with_the_reply(self, sandbox, limits):
        reply = sandbox.run("echo out; echo error >&2", limits=limits)
        path = f"{sandbox.path}/execs/{reply['exec_id']}/output"
        gone = until(lambda: (r := sandbox.client.get(path)).status != 200 and r, 5)
        assert (gone.status, gone.code) == (410, "exec.output_gone")
        assert gone.error["retryable"] is False
        record = sandbox.state(reply["exec_id"])["result"]
        assert record == {k: v for k, v in reply.items() if k not in ("stdout", "stderr")}

    def test_of_no_output_is_empty_not_gone(self, sandbox):
        reply = sandbox.run("true")
        got = sandbox.client.get(f"{sandbox.path}/execs/{reply['exec_id']}/output")
        assert (got.status, got.body) == (200, b"")


class TestSignaled:
    @pytest.mark.parametrize("number,name", [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV")])
    def test_own_signal(self, sandbox, number, name):
        ended(sandbox.run(f"kill -{number} $$"), "signaled", 128 + number, name)

    @pytest.mark.parametrize("name", ["SIGTERM", "TERM"])
    def test_signal_call_is_signaled_not_cancelled(self, sandbox, name):
        started = sandbox.start("exec sleep 60")
        reply = sandbox.call(started["exec_id"], "signal", {"signal": name})
        assert reply.status == 200, reply.body
        state = sandbox.state(started["exec_id"], wait_seconds=10)
        ended(state["result"], "signaled", 143, "SIGTERM")


class TestTimedOut:
    def timed_out(self, sandbox, cmd, **fields):
        began = time.monotonic()
        result = sandbox.run(cmd, timeout_seconds=1, **fields)
        assert result["outcome"] == "timed_out" and result["exit_code"] == 124, result
        assert time.monotonic() - began <= 3.5
        return result

    def test_a_trap_that_exits_0(self, sandbox):
        result = self.timed_out(sandbox, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
        assert result["signal"] is None

    def test_term_ignored_with_a_setsid_child(self, sandbox):
        self.timed_out(sandbox, "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 61\" & sleep 61")
        assert sandbox.sleepers() == 0

    def test_grace_0_kills_at_once(self, sandbox):
        result = self.timed_out(
            sandbox, "trap 'echo no' TERM; while :; do sleep 0.1; done", grace_seconds=0)
        assert result["stdout"] == "" and result["signal"] == "SIGKILL"


class TestOom:
    LIMIT = {"memory_mib": 64}

    def killed(self, sandbox, cmd):
        result = sandbox.run(cmd, limits=self.LIMIT, timeout_seconds=60)
        ended(result, "oom_killed", 137, "SIGKILL")
        assert result["oom_kills"] >= 1 and result["oom_scope"] == "exec"

    def test_the_leader(self, sandbox):
        self.killed(sandbox, "exec tail /dev/zero")

    def test_a_grandchild_under_a_shell(self, sandbox):
        self.killed(sandbox, "sh -c 'tail /dev/zero; exit 0'; exit 0")

    def test_a_surviving_shell_with_group_off(self, sandbox):
        result = sandbox.run("tail /dev/zero; echo on; exit 3", timeout_seconds=60,
                             limits={"memory_mib": 64, "oom_group": False})
        ended(result, "exited", 3)
        assert result["stdout"] == "on\n" and result["oom_kills"] >= 1

    @pytest.mark.parametrize("kill", [
        "echo -1000 >/proc/self/oom_score_adj; "
        "(echo 0 >/proc/self/oom_score_adj; exec tail /dev/zero)",
        "mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg; cd /tmp/cg; mkdir a b; "
        "echo $$ >b/cgroup.procs; echo +memory >cgroup.subtree_control; echo 8M >a/memory.max; "
        "sh -c 'echo $$ >a/cgroup.procs; exec tail /dev/zero'; cd /; umount -l /tmp/cg",
    ], ids=["spared", "nested"])
    def test_a_deadline_after_a_kill_that_spared_the_leader(self, sandbox, kill):
        result = sandbox.run(f"{kill}; sleep 61", limits={"memory_mib": 16}, timeout_seconds=4)
        assert (result["outcome"], result["exit_code"]) == ("timed_out", 124), result
        assert result["oom_kills"] >= 1

    def test_137_that_is_none(self, sandbox):
        result = sandbox.run("exit 137", limits=self.LIMIT)
        ended(result, "exited", 137)
        assert result["oom_kills"] == 0


def test_cpu_limit(sandbox):
    result = sandbox.run("while :; do :; done", limits={"cpu_seconds": 1}, timeout_seconds=30)
    assert (result["outcome"], result["exit_code"]) == ("cpu_limit", 152), result
    assert 800 <= result["usage"]["cpu_user_ms"] + result["usage"]["cpu_system_ms"] < 4000


def test_pids_limit_under_a_fork_bomb(fresh):
    """The bomb is bounded, and another exec answers within a second meanwhile."""
    bomb = fresh.send("f() { f | f & }; f; wait; sleep 5; exit 0", limits={"pids": 100},
                      timeout_seconds=6)
    until(lambda: fresh.out("cat /sys/fs/cgroup/sandgate/exec/*/pids.current 2>/dev/null "
                            "| sort -n | tail -1").strip() not in ("", "1", "2"), 5, "the bomb")
    for _ in range(3):
        began = time.monotonic()
        assert fresh.out("echo ok") == "ok\n"
        assert time.monotonic() - began < 1
    with bomb:
        result = bomb.reply().json
    assert result["pids_limit_hits"] >= 1, result


class TestCancelled:
    def cancelled(self, state, reason):
        result = state["result"]
        assert (result["outcome"], result["cancel_reason"]) == ("cancelled", reason), result

    def test_by_the_kill_call(self, sandbox):
        started = sandbox.start("exec sleep 60")
        reply = sandbox.call(started["exec_id"], "kill", {"wait_seconds": 10})
        assert reply.status == 200, reply.body
        self.cancelled(reply.json, "killed")
        assert reply.json["result"]["exit_code"] == 143

    def test_kill_without_a_body(self, sandbox):
        started = sandbox.start("exec sleep 60")
        reply = sandbox.client.request("POST", f"{sandbox.path}/execs/{started['exec_id']}/kill")
        assert reply.status == 200, reply.body
        self.cancelled(sandbox.state(started["exec_id"], 10), "killed")

    @pytest.mark.parametrize("route", ["/exec", "/exec/stream"])
    @pytest.mark.parametrize("cmd", ["sleep 60", "while :; do echo x; sleep 0.05; done"],
                             ids=["silent", "printing"])
    @pytest.mark.parametrize("leave", ["close", "abort"])
    def test_by_a_closed_connection(self, sandbox, route, cmd, leave):
        name = f"gone-{time.monotonic_ns()}"
        connection = sandbox.send(cmd, route, exec_id=name)
        until(lambda: sandbox.client.get(f"{sandbox.path}/execs/{name}").status == 200 and
              sandbox.state(name)["state"] == "running", 5, "the start")
        getattr(connection, leave)()
        self.cancelled(until(lambda: (s := sandbox.state(name))["state"] == "finished" and s,
                             5, "the cancel"), "client_gone")
        until(lambda: sandbox.sleepers() == 0, 3, "no process left")

    @pytest.mark.parametrize("route", ["/exec", "/exec/stream"])
    def test_by_deleting_the_sandbox(self, bridge, route):
        own = bridge.client.create()
        with own.send("echo up; sleep 60", route) as connection:
            until(lambda: own.client.get(own.path + "/execs").json["items"], 5, "the start")
            assert own.delete().status == 204
            if route == "/exec":
                reply = connection.reply()
                assert reply.status == 200, reply.body
                result = reply.json
            else:
                result = Stream(connection, *connection.head()).collect().result
        assert (result["outcome"], result["cancel_reason"]) == ("cancelled", "sandbox_deleted")
        assert own.exec("true").code == "sandbox.gone"


class TestSpawnFailed:
    def failed(self, sandbox, stage, errno, exit_code, cmd="touch /tmp/ran", **fields):
        result = sandbox.run(cmd, **fields)
        assert result["outcome"] == "spawn_failed", result
        assert result["exit_code"] == exit_code
        error = result["spawn_error"]
        assert (error["stage"], error["errno"]) in ((stage, errno), (stage, ERRNO[errno])), error
        assert error["message"]
        assert sandbox.run("ls /tmp/ran")["exit_code"] != 0
        return result

    def test_cwd_missing(self, sandbox):
        self.failed(sandbox, "chdir", "ENOENT", 126, cwd="/nope")

    def test_cwd_is_a_file(self, sandbox):
        self.failed(sandbox, "chdir", "ENOTDIR", 126, cwd="/etc/passwd")

    def test_cwd_not_enterable(self, sandbox):
        self.failed(sandbox, "chdir", "EACCES", 126, cwd="/root", user="u1")

    def test_unknown_user(self, sandbox):
        result = self.failed(sandbox, "user", "ENOENT", 126, user="ghost")
        assert result["spawn_error"]["message"] == "user ghost: there is no such user"

    def test_argv_not_found(self, sandbox):
        self.failed(sandbox, "execve", "ENOENT", 127, cmd=["no-such-program"])

    def test_not_executable(self, sandbox):
        self.failed(sandbox, "execve", "EACCES", 126, cmd=["/etc/passwd"])

    def test_argument_too_big(self, sandbox):
        self.failed(sandbox, "execve", "E2BIG", 126, cmd=["true", "x" * 200_000])

    def test_command_longer_than_an_argument_may_be(self, sandbox):
        assert sandbox.out("#" + "x" * 400_000 + "\necho ok") == "ok\n"


ERRNO = {"ENOENT": 2, "E2BIG": 7, "EACCES": 13, "ENOTDIR": 20}


def test_many_at_once_keep_their_own_results(sandbox):
    results = {}

    def one(code):
        results[code] = sandbox.run(f"echo {code}; exit {code}")

    threads = [threading.Thread(target=one, args=(i,)) for i in range(64)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for code in range(64):
        ended(results[code], "exited", code)
        assert results[code]["stdout"] == f"{code}\n"
