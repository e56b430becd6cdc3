"""Firecracker and Cloud Hypervisor, each played by a strict double (tests/doubles) in front of a
guest-agent.

What a double cannot prove: that KVM runs the guest. That a clone has its parent's memory, that
clones share its pages, that each has a clock, names and random numbers of its own: the double's
guest is an agent on this machine's kernel, which starts anew at each restore and whose clocks go
on while it is paused. Limits of memory and processes, and how fast any of it is. Real guests on
QEMU answer for the agent's part (test_snapshots.py, test_limits.py).
"""
import concurrent.futures
import os
import time

import pytest

from client import Collected, Sandbox, in_thread, until
from doubled import FAULTS, LOST, VERSIONS, doubled_bridges, restore, snapshot

ROUNDS = 10
OLD_AND_NEW = [("firecracker", "1.15.1"), ("firecracker", "1.17.0"),
               ("cloud-hypervisor", "52.0.0"), ("cloud-hypervisor", "53.0.0")]


@pytest.fixture(params=VERSIONS)
def vmm(request):
    return request.param


@pytest.fixture
def make(farm, vmm):
    with doubled_bridges(farm, vmm) as start:
        yield start


@pytest.fixture
def bridge(make):
    return make()


def forget(client, snap):
    assert client.delete(f"/v1/snapshots/{snap['id']}").status == 204


def test_the_first_sandbox_boots_and_the_next_starts_from_its_snapshot(bridge, vmm):
    first, second = (bridge.client.create() for _ in range(2))
    assert [b.info["boot_mode"] for b in (first, second)] == ["boot", "restore"]
    assert {(b.info["vmm"], b.info["isolation"]) for b in (first, second)} == {(vmm, "kvm")}
    assert [b.out("echo ok") for b in (first, second)] == ["ok\n", "ok\n"]
    assert bridge.doubles.events("refused") == []


@pytest.mark.parametrize("vmm, version", OLD_AND_NEW)
def test_snapshot_restore_and_fork(make, vmm, version):
    bridge = make(version)
    box = bridge.client.create()
    stream = box.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done")
    events = iter(stream)
    seen = [next(events), next(events)]
    snap = snapshot(box)
    whole = Collected(seen + list(events))
    assert (whole.stdout, whole.gaps) == ("1\n2\n3\n4\n5\n6\n", [])
    clones = [restore(bridge.client, snap) for _ in range(2)]
    reply = box.client.post(box.path + "/fork", {"count": 2}, timeout=90)
    assert reply.status == 201, reply.body
    clones += [Sandbox(box.client, item) for item in reply.json["items"]]
    assert [c.out("echo clone") for c in clones] == ["clone\n"] * 4
    assert box.out("echo source") == "source\n"
    assert snap["vmm"] == vmm and snap["bytes"] > 0
    forget(bridge.client, snap)
    assert clones[0].out("echo still") == "still\n"  # its file has no name any more
    again = snapshot(clones[0])
    assert restore(bridge.client, again).out("echo grandchild") == "grandchild\n"
    assert bridge.doubles.events("refused") == []


def test_pause_and_resume(bridge):
    box = bridge.client.create()
    assert box.client.post(box.path + "/pause").json["status"] == "paused"
    assert box.exec("true").code == "sandbox.invalid_state"
    assert box.client.post(box.path + "/resume").json["status"] == "running"
    assert box.out("echo ok") == "ok\n"


def test_hibernate_and_wake(bridge):
    box = bridge.client.create()
    reply = box.client.post(box.path + "/hibernate", timeout=60)
    assert (reply.status, reply.json["status"]) == (200, "hibernated"), reply.body
    until(lambda: not bridge.directory_of(box).exists(), 10, "the VM's end")
    assert box.out("echo awake") == "awake\n"
    assert box.status() == "running"


@pytest.mark.parametrize("vmm, version", [("firecracker", "1.18.0"),
                                          ("cloud-hypervisor", "54.0.0")])
def test_a_snapshot_of_another_version_is_refused_and_its_vm_is_gone(make, vmm, version):
    bridge = make()
    box = bridge.client.create()
    snap = snapshot(box)
    bridge.doubles.install(version)
    reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    refusals = [event["why"] for event in bridge.doubles.events("refused")]
    assert any("ersion" in why for why in [reply.error["message"], *refusals])
    fresh = bridge.client.create()  # the baked one was another program's
    assert (fresh.info["boot_mode"], fresh.out("echo ok")) == ("boot", "ok\n")


@pytest.mark.parametrize("file, size", [("memory", 1 << 20), ("memory", None), ("state", 0),
                                        ("state", None)])
def test_a_broken_snapshot_is_a_launchers_failure(bridge, file, size):
    box = bridge.client.create()
    snap = snapshot(box)
    path = bridge.state / "snapshots" / snap["id"] / file
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert box.out("echo ok") == "ok\n"


@pytest.mark.parametrize("mode", ["eof", "reset"])
def test_lost_first_connections_are_tried_again(bridge, mode):
    bridge.doubles.fault(mode, 3)
    first = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    bridge.doubles.fault(mode, 5)
    second = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    assert [b.out("echo ok") for b in (first, second)] == ["ok\n", "ok\n"]


@pytest.mark.parametrize("mode", ["silent", "mute"])
def test_silent_first_connections_are_given_up_and_tried_again(bridge, mode):
    bridge.doubles.fault(mode, 1)
    box = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    snap = snapshot(box)
    bridge.doubles.fault(mode, 2)
    assert restore(bridge.client, snap).out("echo ok") == "ok\n"
    assert bridge.doubles.unused_faults() == 0


def test_a_guest_that_never_comes_is_given_up_at_its_deadline_and_leaves_nothing(make):
    bridges = {mode: make() for mode in FAULTS}

    def create(mode):
        bridges[mode].doubles.fault(mode, 1000000)
        return bridges[mode].client.post("/v1/sandboxes", {"template": "base"}, timeout=75)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # the deadline is a minute
        replies = dict(zip(bridges, pool.map(create, bridges)))
    for mode, bridge in bridges.items():
        bridge.doubles.fault("none", 0)
        assert replies[mode].status in (502, 503, 504), (mode, replies[mode].body)
        assert replies[mode].code in LOST, (mode, replies[mode].body)
        until(lambda: not list(bridge.state.glob("vm/*")), 10, "an empty directory of VMs")
        until(lambda: len(bridge.leftovers()) == 1, 10, "no process but the bridge")


@pytest.mark.parametrize("mode", FAULTS)
def test_an_exec_in_a_guest_that_fell_silent_ends_in_a_typed_error(bridge, mode):
    box = bridge.client.create()
    bridge.doubles.fault(mode, 1000000)
    box.exec("true", timeout=60)  # takes the spare link, made before
    reply = box.exec("true", timeout=60)
    assert reply.code in LOST, reply.body
    bridge.doubles.fault("none", 0)


def test_a_vmm_that_is_killed_is_a_lost_sandbox_and_its_sockets_go(bridge):
    box = bridge.client.create()
    bridge.kill_guests(box)
    until(lambda: box.status() == "failed", 10)
    assert box.exec("true").code == "sandbox.gone"
    until(lambda: not bridge.directory_of(box).exists(), 10, "its directory's end")


def test_deleted_sandboxes_leave_no_process_socket_or_file(bridge):
    bridge.client.create().delete()
    before = bridge.fds()
    for _ in range(3):
        box = bridge.client.create()
        assert box.start("sleep 60")
        assert box.delete().status == 204
    until(lambda: len(bridge.leftovers()) == 1, 10, "no process but the bridge")
    until(lambda: bridge.fds() <= before + 1, 5, "the descriptors' return")
    assert list(bridge.state.glob("vm/*")) == []


def test_a_restarted_bridge_takes_its_vms_up(bridge):
    boxes = [bridge.client.create() for _ in range(2)]
    bridge.kill()
    bridge.start()
    for box in boxes:
        again = Sandbox(bridge.client, {"id": box.id})
        assert again.out("echo ok") == "ok\n"
        snapshot(again)
        assert again.client.post(again.path + "/pause").json["status"] == "paused"
        assert again.client.post(again.path + "/resume").json["status"] == "running"


@pytest.mark.parametrize("action", ["snapshots", "fork", "pause"])
def test_a_bridge_killed_while_it_saves_leaves_a_vm_that_goes_on_and_can_be_saved(bridge, action):
    box = bridge.client.create()
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        connection = box.client.send("POST", f"{box.path}/{action}", {})
        time.sleep(delay)  # the moment of the fault, not a wait for anything
        bridge.kill()
        connection.close()
        bridge.start()
        box = Sandbox(bridge.client, {"id": box.id})
        if box.status() == "paused":
            assert box.client.post(box.path + "/resume").status == 200
        assert box.out("echo ok", timeout=60) == "ok\n", delay
        snap = snapshot(box)
        assert restore(bridge.client, snap).delete().status == 204
        for item in bridge.client.get("/v1/snapshots").json["items"]:
            forget(bridge.client, item)
        until(lambda: not list(bridge.state.glob("snapshots/*")), 10)


# ---- cases 13, 14 and 28 of public bug reports, a connection's every fault at each restore ----

def clone_of(client, snap):
    """Its first exec has to work at once."""
    clone = restore(client, snap)
    begin = time.monotonic()
    said = clone.out("echo ok; date +%s; cat /proc/sys/kernel/random/uuid", timeout_seconds=5)
    assert time.monotonic() - begin < 2
    ok, now, random = said.split()
    assert ok == "ok" and abs(int(now) - time.time()) < 2
    return clone, random


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_what_runs_across_a_snapshot_ends_well_and_its_clones_are_each_their_own(bridge, fault):
    box = bridge.client.create()
    bridge.doubles.fault_restored(fault, FAULTS.get(fault, 0))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number in range(ROUNDS):
            exec_id = f"across-{number}"
            wait = in_thread(lambda: box.run("sleep 1.5; echo x", exec_id=exec_id,
                                             timeout_seconds=10))
            until(lambda: box.client.get(f"{box.path}/execs/{exec_id}").status == 200, 5)
            snap = snapshot(box)
            clones = list(pool.map(lambda _: clone_of(bridge.client, snap), range(4)))
            assert len({random for _, random in clones}) == 4
            assert [clone.sleepers() for clone, _ in clones] == [0] * 4
            result = wait()
            assert (result["outcome"], result["stdout"]) == ("exited", "x\n"), number
            assert 1500 <= result["duration_ms"] < 10000
            for clone, _ in clones:
                assert clone.delete().status == 204
            forget(bridge.client, snap)
    assert len(bridge.doubles.events("fault")) == ROUNDS * 4 * FAULTS.get(fault, 0)
    assert bridge.doubles.events("refused") == []


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_the_first_exec_after_each_restore_of_a_sandbox_works_at_once_and_runs_once(bridge, fault):
    box = bridge.client.create()
    log = bridge.directory / "runs"
    log.touch()
    log.chmod(0o666)
    bridge.doubles.fault_restored(fault, FAULTS.get(fault, 0))
    for number in range(1, ROUNDS + 1):
        assert box.out("echo ok", timeout_seconds=5) == "ok\n"
        reply = box.client.post(box.path + "/hibernate", timeout=60)
        assert (reply.status, reply.json["status"]) == (200, "hibernated"), reply.body
        begin = time.monotonic()
        assert box.out(f"echo run >> {log}; echo ok", timeout_seconds=5) == "ok\n"
        assert time.monotonic() - begin < 4, "the restore included"
        assert log.read_text() == "run\n" * number
    assert len(bridge.doubles.events("fault")) == ROUNDS * FAULTS.get(fault, 0)
    assert bridge.doubles.events("refused") == []
