"""Limits: enforced in guests, refused by name on a host without the controllers."""
import time

import pytest

from client import until


def used_ms(result):
    return result["usage"]["cpu_user_ms"] + result["usage"]["cpu_system_ms"]


def test_memory(sandbox):
    assert sandbox.run("head -c 20000000 /dev/zero | tail", limits={"memory_mib": 64})[
        "exit_code"] == 0
    result = sandbox.run("tail /dev/zero", limits={"memory_mib": 16}, timeout_seconds=30)
    assert result["outcome"] == "oom_killed"


def test_memory_peak(sandbox):
    small = sandbox.run("true")["usage"]["memory_peak_bytes"]
    large = sandbox.run("head -c 30000000 /dev/zero | tail >/dev/null")["usage"][
        "memory_peak_bytes"]
    if small is None:
        assert large is None
    else:
        assert large > small + (10 << 20)


def test_swap_is_met_without_swap(sandbox):
    assert sandbox.run("exit 3", limits={"swap_mib": 16})["exit_code"] == 3


def test_pids(sandbox):
    result = sandbox.run("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2 & done; wait; exit 0",
                         limits={"pids": 4})
    assert result["pids_limit_hits"] >= 1 and result["outcome"] == "exited"


def test_default_pids(sandbox):
    """4096, or less where the guest is too small for so many."""
    # Its own leaf is the one that it is in; the spare one has the last exec's limits.
    text = sandbox.out("for leaf in /sys/fs/cgroup/sandgate/exec/*/; do "
                       "grep -qx $$ $leaf/cgroup.procs && cat $leaf/pids.max; done; :")
    assert text and all(256 <= int(line) <= 4096 for line in text.split()), text


def test_cpus(sandbox):
    result = sandbox.run("while :; do :; done", limits={"cpus": 0.2}, timeout_seconds=2,
                         grace_seconds=0)
    assert result["outcome"] == "timed_out" and used_ms(result) < 1000, result


def test_cpu_seconds_counts_all_processes(sandbox):
    began = time.monotonic()
    result = sandbox.run("for i in 1 2 3; do while :; do :; done & done; wait",
                         limits={"cpu_seconds": 1}, timeout_seconds=30)
    assert result["outcome"] == "cpu_limit" and result["exit_code"] == 152
    assert time.monotonic() - began < 10


def test_fractional_cpu_seconds(sandbox):
    result = sandbox.run("while :; do :; done", limits={"cpu_seconds": 0.3}, timeout_seconds=30)
    assert result["outcome"] == "cpu_limit" and used_ms(result) < 2000


def test_open_files(sandbox):
    assert sandbox.out("ulimit -n; ulimit -Hn", limits={"open_files": 50}) == "50\n50\n"
    assert sandbox.out("ulimit -n; ulimit -Hn") == "1024\n524288\n"


def test_file_size(sandbox):
    assert sandbox.out("head -c 3000000 /dev/zero > /tmp/big; wc -c < /tmp/big; rm /tmp/big",
                       limits={"file_size_mib": 1}) == "1048576\n"


class TestOutputBytes:
    def test_the_first_bytes_are_kept(self, sandbox):
        result = sandbox.run("seq 1 100000", limits={"output_bytes": 1000})
        assert result["stdout"] == "".join(f"{i}\n" for i in range(1, 1000))[:1000]
        assert result["stdout_truncated"] is True and result["stderr_truncated"] is False
        assert result["stdout_bytes"] == 588895 and result["outcome"] == "exited"

    def test_each_stream_has_its_own(self, sandbox):
        result = sandbox.run("echo out; seq 1 100000 >&2", limits={"output_bytes": 100})
        assert result["stdout"] == "out\n" and not result["stdout_truncated"]
        assert len(result["stderr"]) == 100 and result["stderr_truncated"]

    def test_the_default_is_8_mib(self, sandbox):
        result = sandbox.run("head -c 9000000 /dev/zero | tr '\\0' x", timeout_seconds=60)
        assert len(result["stdout"]) == 8 << 20 and result["stdout_bytes"] == 9000000

    def test_a_detached_exec_keeps_the_newest(self, sandbox):
        started = sandbox.start("seq 1 100000", limits={"output_bytes": 65536})
        state = sandbox.state(started["exec_id"], 20)
        assert state["result"]["stdout_bytes"] == 588895
        body = sandbox.client.get(f"{sandbox.path}/execs/{started['exec_id']}/output").body
        assert body.endswith(b"\n99999\n100000\n") and 32768 < len(body) <= 65536
        stream = sandbox.watch(started["exec_id"]).collect()
        assert sum(g["bytes"] for g in stream.gaps) + len(stream.stdout) == 588895

    def test_a_cut_character_is_not_broken(self, sandbox):
        result = sandbox.run("printf '€€€€'", limits={"output_bytes": 4})
        assert result["stdout"].startswith("€") and result["stdout_truncated"]


@pytest.mark.parametrize("field,value", [
    ("memory_mib", 0), ("memory_mib", 1 << 40), ("pids", 0), ("cpus", 0), ("cpus", -1),
    ("cpu_seconds", 0), ("output_bytes", 0), ("output_bytes", (64 << 20) + 1),
    ("open_files", 0), ("oom_group", 1), ("memory_mib", "64")])
def test_out_of_range(sandbox, field, value):
    reply = sandbox.exec("true", limits={field: value})
    assert (reply.status, reply.code) == (400, "request.invalid_field"), reply.body
    assert reply.error["details"]["field"] == f"limits.{field}"


@pytest.mark.sanitized
@pytest.mark.parametrize("field,value", [("memory_mib", 64), ("pids", 10), ("cpus", 0.5),
                                         ("io_read_bps", 1000000)])
def test_unsupported_on_this_host(local, field, value):
    features = local.client.get(local.path).json["agent"]["features"]
    controller = {"memory_mib": "memory", "pids": "pids", "cpus": "cpu", "io_read_bps": "io"}
    if controller[field] in features:
        pytest.skip(f"this host has the {controller[field]} controller")
    for route in ("/exec", "/exec/stream", "/execs"):
        reply = local.client.post(local.path + route,
                                  {"cmd": "touch /tmp/limited", "limits": {field: value}})
        assert (reply.status, reply.code) == (422, "limit.unsupported"), reply.body
        assert reply.error["details"]["field"] == f"limits.{field}"
        assert reply.error["details"]["started"] == "no"


def test_capabilities_narrow(sandbox):
    text = sandbox.out("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status",
                       capabilities=["CAP_KILL"], no_new_privs=True)
    assert text.split() == ["CapEff:", "0" * 14 + "20", "CapBnd:", "0" * 14 + "20",
                            "NoNewPrivs:", "1"]
    reply = sandbox.exec("true", capabilities=["CAP_NONE_SUCH"])
    assert reply.status == 400 and reply.error["details"]["field"].startswith("capabilities")


def test_exec_defaults(bridge):
    own = bridge.client.create(exec_defaults={"user": "u1", "env": {"A": "default", "B": "b"},
                                              "timeout_seconds": 1, "limits": {"pids": 50}})
    try:
        reply = own.client.post(own.path + "/exec", {"cmd": "id -un; echo $A $B",
                                                     "env": {"A": "mine"}})
        assert reply.json["stdout"] == "u1\nmine b\n"
        reply = own.client.post(own.path + "/exec", {"cmd": "sleep 60"})
        assert reply.json["outcome"] == "timed_out"
        assert own.run("id -u", user="0")["stdout"] == "0\n"
    finally:
        own.delete()


def test_thousand_and_one_execs(bridge):
    """The cap on running execs is a typed refusal, and a slot is free again at once."""
    own = bridge.client.create(resources={"memory_mib": 512})
    try:
        started, refused = 0, None
        while refused is None and started <= 1024:
            reply = own.client.post(own.path + "/execs", {"argv": ["sleep", "300"]})
            if reply.status == 201:
                started += 1
            else:
                refused = reply
        assert started == 1024, (started, refused and refused.body)
        assert refused.status == 429 and refused.code == "quota.exceeded", refused.body
        first = own.client.get(own.path + "/execs?limit=1").json["items"][0]["exec_id"]
        assert own.forget(first).status == 204
        assert until(lambda: (r := own.exec("echo ok")).status == 200 and r, 5,
                     "a free slot").json["stdout"] == "ok\n"
    finally:
        own.delete()
