"""What a sandbox uses: in the guest, and of the host."""
import contextlib
import os
import signal
import struct
import threading

import pytest

from bridge import Bridge
from client import Sandbox, until
from meddler import Agent, Meddler

MIB = 1 << 20
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change what is mounted")


@pytest.fixture(scope="module")
def qemu(farm):
    return farm.bridge("qemu")


@pytest.fixture
def box(qemu):
    made = qemu.client.create(ttl_seconds=600)
    yield made
    made.delete()


def metrics(box):
    reply = box.client.get(box.path + "/metrics")
    assert reply.status == 200, reply.body
    told = reply.json
    assert set(told) == {"sandbox_id", "status", "guest", "guest_error", "host"}
    assert told["sandbox_id"] == box.id
    return told


def test_the_guest_and_its_vm_are_told_with_what_they_use(box):
    before = metrics(box)
    guest, host = before["guest"], before["host"]
    assert (before["status"], before["guest_error"]) == ("running", None)
    assert 200 * MIB < guest["memory_total_bytes"] <= 256 * MIB
    assert 0 < guest["memory_available_bytes"] < guest["memory_total_bytes"]
    assert (guest["execs_running"], guest["exec_cgroups"] >= 0) == (0, True)
    assert 0 < guest["agent_resident_bytes"] < 4 * MIB
    for part in host["vmm"], host["device"]:
        assert MIB / 8 < part["proportional_bytes"] <= part["resident_bytes"] > MIB / 2
    assert host["vmm"]["resident_bytes"] > 32 * MIB > host["device"]["proportional_bytes"]

    sleeper = box.start("dd if=/dev/urandom of=/dev/shm/x bs=1M count=64 2>/dev/null; sleep 60",
                        timeout_seconds=100)["exec_id"]
    until(lambda: int(box.out("stat -c %s /dev/shm/x 2>/dev/null || echo 0")) == 64 * MIB, 60)
    after = metrics(box)
    assert after["guest"]["execs_running"] == 1
    assert guest["memory_available_bytes"] - after["guest"]["memory_available_bytes"] > 50 * MIB
    assert after["host"]["vmm"]["resident_bytes"] - host["vmm"]["resident_bytes"] > 30 * MIB
    assert after["guest"]["execs_cpu_ms"] - guest["execs_cpu_ms"] > 100
    spent = [h["vmm"]["cpu_user_ms"] + h["vmm"]["cpu_system_ms"] for h in (host, after["host"])]
    assert spent[1] - spent[0] > 100
    box.call(sleeper, "kill", {"wait_seconds": 10})
    ended = metrics(box)["guest"]
    assert ended["execs_running"] == 0 and ended["execs_retained"] > guest["execs_retained"]


def test_one_that_stands_still_is_told_from_the_host_alone(box):
    assert box.client.post(box.path + "/pause").status == 200
    told = metrics(box)
    assert (told["status"], told["guest"], told["guest_error"]) == ("paused", None, None)
    assert told["host"]["vmm"]["resident_bytes"] > 32 * MIB
    assert box.client.post(box.path + "/resume").status == 200
    assert metrics(box)["guest"] is not None


def test_a_hibernated_one_is_not_woken(box):
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    for _ in range(3):
        told = metrics(box)
        assert (told["status"], told["guest"], told["host"]) == ("hibernated", None, None)
    assert box.status() == "hibernated"


def test_an_agent_that_says_nothing_is_not_waited_for_long(qemu, box):
    machine = qemu.machine(box)
    os.kill(machine, signal.SIGSTOP)
    try:
        told = metrics(box)
        assert (told["guest"], told["guest_error"]) == (None, "agent.timeout")
        assert told["host"]["vmm"]["resident_bytes"] > 32 * MIB
    finally:
        os.kill(machine, signal.SIGCONT)
    assert box.out("echo ok") == "ok\n"


def test_an_attached_one_is_told_from_its_guest_alone(farm):
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach)
    reply = bridge.client.post("/v1/sandboxes",
                               {"attach": {"transport": "unix", "path": agent.path}})
    box = Sandbox(bridge.client, reply.json)
    told = metrics(box)
    assert told["guest"]["memory_total_bytes"] > 0 and told["host"] is None
    box.delete()
    agent.stop()
    assert box.client.get(box.path + "/metrics").code == "sandbox.gone"
    assert box.client.get("/v1/sandboxes/sb-none/metrics").code == "sandbox.not_found"


# ---- what cannot be read is null, and no 0 is made up ----

@contextlib.contextmanager
def attached(bridge, path):
    reply = bridge.client.post("/v1/sandboxes", {"attach": {"transport": "unix", "path": path}})
    assert reply.status == 201, reply.body
    box = Sandbox(bridge.client, reply.json)
    yield box
    box.delete()


def unknown(guest):
    return {name for name, value in guest.items() if value is None}


def test_what_an_agent_cannot_read_is_null(farm):
    """It says 0 of that, as of what it has none of."""
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach)
    meddler = Meddler(bridge.attach, agent)
    opened, metrics_reply = b"\x0a\x14\x08\x01\x1a\x10" + b"i" * 16, b"\x6a\x00"
    with attached(bridge, meddler.path) as box:
        assert unknown(metrics(box)["guest"]) == set()
        meddler.answer = lambda: b"".join(struct.pack(">I", len(frame)) + frame
                                          for frame in (opened, metrics_reply))
        guest = metrics(box)["guest"]
        meddler.behave()
    meddler.stop()
    agent.stop()
    assert unknown(guest) == {"memory_total_bytes", "memory_available_bytes",
                              "agent_resident_bytes", "agent_open_files"}
    assert {guest[name] for name in set(guest) - unknown(guest)} == {0}


@root_only
def test_without_cgroups_nobody_counts_the_processor_time_of_execs(farm):
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach, ("unshare", "-m", "sh", "-c", 'umount -la -t cgroup2; exec "$@"',
                                  "sh"))
    with attached(bridge, agent.path) as box:
        box.out("true")
        assert unknown(metrics(box)["guest"]) == {"execs_cpu_ms"}
    agent.stop()


class BlindBridge(Bridge):
    """The /proc that it sees has another PID namespace's processes, and no meminfo."""

    def command(self):
        return ["unshare", "-m", "-p", "-f", "--kill-child", "sh", "-c",
                'mount --bind /dev/null /proc/meminfo; exec "$@"', "sh", *super().command()]


@root_only
def test_what_the_hosts_proc_does_not_show_is_null(farm):
    bridge = farm.new("local", kind=BlindBridge).start()
    box = bridge.client.create(ttl_seconds=600)
    assert metrics(box)["host"] is None
    node = bridge.client.get("/v1/node").json
    assert node["capacity"]["memory_mib"] is None and node["capacity"]["vcpus"] > 0
    assert node["allocated"]["memory_mib"] == 0
    box.delete()
    bridge.kill()


# ---- to ask is no activity ----

class Pollers:
    """Ask for the metrics of a sandbox all the time, several at once."""

    def __init__(self, box):
        self.box, self.over, self.count = box, threading.Event(), 0
        self.threads = [threading.Thread(target=self.run) for _ in range(6)]

    def run(self):
        while not self.over.is_set():
            self.box.client.get(self.box.path + "/metrics")
            self.count += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def test_to_ask_is_no_activity(qemu, local_bridge):
    persistent = qemu.client.create(persistent=True, ttl_seconds=2)
    with Pollers(persistent) as pollers:
        until(lambda: persistent.status() == "hibernated", 6)
        with pytest.raises(AssertionError):
            until(lambda: persistent.status() != "hibernated", 3)
        assert pollers.count > 20
    persistent.delete()
    plain = local_bridge.client.create(ttl_seconds=2)
    with Pollers(plain) as pollers:
        until(lambda: plain.client.get(plain.path).status == 410, 4)
        assert pollers.count > 20
