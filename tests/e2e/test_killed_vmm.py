"""A VMM, or the process of its vsock device, killed while its sandbox does something: told as what
it is, with an event, and within two seconds nothing of it is left on this machine."""
import os
import pathlib
import signal
import time

import pytest

from client import Collected, Sandbox, until

GUEST = {"ttl_seconds": 600, "resources": {"memory_mib": 128}}
DEVICE, VMM = "host-bridge", "qemu-system-x86_64"


@pytest.fixture(scope="module")
def qemu(farm):
    bridge = farm.bridge("qemu")
    bridge.client.create(**GUEST).delete()  # its template is baked
    return bridge


@pytest.fixture
def box(qemu):
    made = qemu.client.create(**GUEST)
    yield made
    made.delete()


@pytest.fixture
def events(qemu):
    stream = qemu.client.stream("GET", "/v1/events", timeout=120)
    yield iter(stream)
    stream.close()


def processes(bridge, ulid):
    """By the name of their program, those that work in a VM's directory."""
    at, found = str(bridge.state / "vm" / ulid), {}
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(proc / "cwd") == at:
                found[pathlib.Path(os.readlink(proc / "exe")).name] = int(proc.name)
        except OSError:
            pass
    return found


def left(bridge, box):
    ulid = box.id[-26:]
    found = list(pathlib.Path("/dev/shm").glob(f"sandgate-*/{ulid}"))
    found += [p for p in bridge.state.glob("*/*") if p.name[-26:] == ulid]
    return found + list(bridge.state.glob("snapshots/*.part")) + \
        list(processes(bridge, ulid).values())


def has_failed(bridge, box, events, killed_at):
    """All that is promised of it."""
    until(lambda: not left(bridge, box), max(0, killed_at + 2 - time.monotonic()),
          "what it took of this machine going")
    for event in events:
        if event.name == "failed" and event.data["sandbox_id"] == box.id:
            assert event.data["detail"] == "sandbox.lost"
            break
    assert box.status() == "failed"
    refused = box.exec("true")
    assert (refused.status, refused.code) == (410, "sandbox.gone")
    assert refused.error["message"] == "the sandbox has failed: the VM ended"


def kill(bridge, box, which):
    os.kill(processes(bridge, box.id[-26:])[which], signal.SIGKILL)
    return time.monotonic()


@pytest.mark.parametrize("which", [VMM, DEVICE])
def test_execs_of_every_kind_are_lost_with_it(qemu, box, events, which):
    stream = box.stream("echo up; sleep 60")
    stream.until("stdout", "up")
    box.start("sleep 60", exec_id="detached", timeout_seconds=None)
    waiting = box.send("sleep 60", timeout_seconds=120)
    asking = box.client.send("GET", f"{box.path}/execs/detached?wait_seconds=60")
    until(lambda: len(box.client.get(box.path + "/execs").json["items"]) == 3, 10)
    at = kill(qemu, box, which)
    last = Collected(list(stream)).last
    assert (last["type"], last["code"]) == ("error", "sandbox.lost"), last
    assert "exit_code" not in last
    for connection in (waiting, asking):
        with connection:
            assert connection.reply().code == "sandbox.lost"
    has_failed(qemu, box, events, at)


@pytest.mark.parametrize("which", [VMM, DEVICE])
@pytest.mark.parametrize("action", ["snapshots", "fork", "hibernate", "pause"])
def test_a_change_that_is_under_way_fails_with_it(qemu, box, events, action, which):
    pids = processes(qemu, box.id[-26:])
    saved = qemu.client.get("/v1/snapshots").json["items"]
    with box.client.send("POST", f"{box.path}/{action}", {}, timeout=60) as connection:
        if action == "pause":
            assert connection.reply().status == 200
        else:
            until(lambda: list(qemu.state.glob("snapshots/*.part/state"))
                  + list(qemu.state.glob(f"hibernated/{box.id}/state")), 10, "its being saved")
        os.kill(pids[which], signal.SIGKILL)
        at = time.monotonic()
        if action != "pause":
            reply = connection.reply()
            assert (reply.status, reply.code) == (502, "sandbox.lost"), reply.body
    has_failed(qemu, box, events, at)
    assert qemu.client.get("/v1/snapshots").json["items"] == saved


def test_a_snapshot_that_waits_for_execs_to_be_accepted_fails_with_it(qemu, box, events):
    used = lambda: qemu.client.get("/v1/quota").json["execs_used"]
    before, vmm = used(), processes(qemu, box.id[-26:])[VMM]
    os.kill(vmm, signal.SIGSTOP)
    with box.send("true") as first, box.send("true") as second:
        until(lambda: used() == before + 2, 10, "the execs' being asked for")
        with box.client.send("POST", box.path + "/snapshots") as snapshot:
            until(lambda: list(qemu.state.glob("snapshots/*.part")), 10, "its beginning")
            os.kill(vmm, signal.SIGKILL)
            at = time.monotonic()
            for connection in (first, second, snapshot):
                assert connection.reply().code == "sandbox.lost"
    has_failed(qemu, box, events, at)


def starting(bridge, which):
    """The pid of a VM that is just being made."""
    known = {p.name for p in bridge.state.glob("vm/*")}

    def found():
        for at in bridge.state.glob("vm/*"):
            if at.name not in known and which in (pids := processes(bridge, at.name)):
                return pids[which]
    return lambda: until(found, 10, "the VM's start")


def nothing_new(bridge, known):
    ids = lambda: {s["id"] for s in bridge.client.get("/v1/sandboxes").json["items"]}
    until(lambda: ids() == known, 5, "what was begun going")


@pytest.mark.parametrize("which", [VMM, DEVICE])
def test_a_create_that_is_under_way_fails_with_it(qemu, box, which):
    snap = box.client.post(box.path + "/snapshots", timeout=60).json["id"]
    known = {s["id"] for s in qemu.client.get("/v1/sandboxes").json["items"]}
    kept = {p.name for p in qemu.state.glob("vm/*")}
    pid = starting(qemu, which)
    with box.client.send("POST", "/v1/sandboxes", {"from_snapshot": snap}, timeout=60) as connection:
        os.kill(pid(), signal.SIGKILL)
        at = time.monotonic()
        reply = connection.reply()
    assert reply.status == 502 and reply.code in ("launcher.failed", "sandbox.lost"), reply.body
    nothing_new(qemu, known)
    until(lambda: {p.name for p in qemu.state.glob("vm/*")} == kept,
          max(0, at + 2 - time.monotonic()))
    again = box.client.post("/v1/sandboxes", {"from_snapshot": snap, **GUEST}, timeout=60)
    assert again.status == 201, again.body
    assert Sandbox(qemu.client, again.json).delete().status == 204
    assert qemu.client.delete(f"/v1/snapshots/{snap}").status == 204
    assert box.out("echo ok") == "ok\n"


@pytest.mark.parametrize("which", [VMM, DEVICE])
def test_a_sleeper_whose_waking_fails_with_it_sleeps_on(qemu, box, which):
    box.out("echo kept > /dev/shm/kept")
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    pid = starting(qemu, which)
    with box.client.send("POST", box.path + "/wake", timeout=60) as connection:
        os.kill(pid(), signal.SIGKILL)
        reply = connection.reply()
    assert reply.status == 502 and reply.code in ("launcher.failed", "sandbox.lost"), reply.body
    assert box.status() == "hibernated"
    assert box.out("cat /dev/shm/kept") == "kept\n"


def test_those_that_end_while_no_bridge_runs_are_found_failed(farm):
    bridge = farm.new("qemu").start()
    try:
        first, second, other = (bridge.client.create(**GUEST) for _ in range(3))
        bridge.kill()
        kill(bridge, first, VMM)
        kill(bridge, second, DEVICE)
        bridge.start()
        for box in (first, second):
            until(lambda: box.status() == "failed", 2)
            until(lambda: not left(bridge, box), 2, "what it took of this machine going")
            assert box.delete().status == 204
        assert other.out("echo ok") == "ok\n"
    finally:
        bridge.stop()
