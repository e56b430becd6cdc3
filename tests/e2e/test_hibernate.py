"""Sandboxes that sleep on disk: the same machine comes back, when it is asked for."""
import contextlib
import os
import pathlib
import signal

import pytest

from client import until


@pytest.fixture(scope="module")
def qemu(farm):
    return farm.bridge("qemu")


@pytest.fixture
def box(qemu):
    made = qemu.client.create(ttl_seconds=600)
    yield made
    made.delete()


def hibernate(box):
    reply = box.client.post(box.path + "/hibernate", timeout=60)
    assert (reply.status, reply.json["status"]) == (200, "hibernated"), reply.body


def vm_processes(bridge, box):
    """Those that work in the VM's directory."""
    at = str(bridge.state / "vm" / box.id[-26:])
    found = []
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            found += [proc.name] if os.readlink(proc / "cwd") == at else []
        except OSError:
            pass
    return found


def test_a_hibernated_sandbox_has_no_process_and_wakes_with_the_state_it_had(qemu, box):
    box.out("echo kept > /dev/shm/kept; hostname there")
    counter = box.start("i=0; while :; do i=$((i+1)); echo $i > /tmp/i; sleep 0.1; done",
                        timeout_seconds=None)["exec_id"]
    assert vm_processes(qemu, box)
    hibernate(box)
    assert vm_processes(qemu, box) == []
    reply = box.client.post(box.path + "/wake", timeout=60)
    assert (reply.status, reply.json["status"]) == (200, "running"), reply.body
    assert box.out("cat /dev/shm/kept; hostname") == "kept\nthere\n"
    assert box.state(counter)["state"] == "running"
    before = int(box.out("cat /tmp/i"))
    until(lambda: int(box.out("cat /tmp/i")) > before, 10)


def test_the_next_exec_wakes_it_and_runs_once(box):
    box.out("echo start > /tmp/log")
    for _ in range(3):
        hibernate(box)
        assert box.status() == "hibernated"
        box.out("echo run >> /tmp/log")
    assert box.out("cat /tmp/log") == "start\n" + "run\n" * 3


def test_results_from_before_can_be_read_after(box):
    box.run("echo once; exit 3", exec_id="before")
    hibernate(box)
    state = box.state("before")
    assert (state["result"]["exit_code"], state["result"]["outcome"]) == (3, "exited")


def test_it_is_refused_while_calls_are_in_progress_and_in_other_states(box):
    stream = box.stream("echo; sleep 30")
    stream.until("stdout")
    reply = box.client.post(box.path + "/hibernate")
    assert (reply.status, reply.code) == (409, "sandbox.invalid_state")
    stream.close()
    until(lambda: box.client.post(box.path + "/hibernate", timeout=60).status == 200, 10)
    assert box.client.post(box.path + "/hibernate").status == 409
    assert box.client.post(box.path + "/pause").status == 409
    assert box.client.post(box.path + "/snapshots").status == 409


def test_a_hibernated_sandbox_can_be_deleted_and_leaves_nothing(qemu):
    box = qemu.client.create(ttl_seconds=600)
    hibernate(box)
    assert list(qemu.state.glob(f"hibernated/{box.id}"))
    assert box.delete().status == 204
    assert not list(qemu.state.glob(f"hibernated/{box.id}"))


def test_one_that_is_deleted_while_it_falls_asleep_stays_deleted(farm):
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        with box.client.send("POST", box.path + "/hibernate") as asleep:
            until(lambda: list(bridge.state.glob(f"hibernated/{box.id}/state")), 10,
                  "its being saved")
            vmm = bridge.machine(box)
            os.kill(vmm, signal.SIGSTOP)
            with box.send("echo late") as late:
                until(lambda: bridge.client.get("/v1/quota").json["execs_used"] == 1, 10)
                with box.client.send("DELETE", box.path) as deleted:
                    until(lambda: box.client.get(box.path).status == 410, 10)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(vmm, signal.SIGCONT)
                    assert deleted.reply().status == 204
                replies = asleep.reply(), late.reply()
        assert [(r.status, r.code) for r in replies] == [(410, "sandbox.gone")] * 2
        bridge.kill()
        bridge.start()
        assert box.client.get(box.path).status == 410
        assert bridge.client.get("/v1/sandboxes").json["items"] == []
    finally:
        bridge.stop()


def test_a_persistent_one_that_cannot_sleep_is_not_asked_to(qemu):
    """What is paused, and what has failed and so is deleted in its time."""
    box = qemu.client.create(ttl_seconds=600)
    assert box.client.post(box.path + "/pause").status == 200
    soon = {"persistent": True, "ttl_seconds": 0.001}
    assert box.client.request("PATCH", box.path, soon).status == 200
    assert box.status() == "paused"
    os.kill(qemu.machine(box), signal.SIGKILL)
    until(lambda: box.client.get(box.path).status == 410, 10, "its being deleted")
    assert f"{box.id}: could not be hibernated" not in qemu.log.read_text()


def test_an_idle_persistent_sandbox_hibernates_and_the_next_request_wakes_it(qemu):
    box = qemu.client.create(persistent=True, ttl_seconds=1)
    try:
        assert box.info["expires_at"] is None
        box.out("echo kept > /tmp/kept")
        until(lambda: box.status() == "hibernated", 20)
        assert box.out("cat /tmp/kept") == "kept\n"
    finally:
        box.delete()


def test_a_restarted_bridge_wakes_what_the_one_before_has_hibernated(farm):
    bridge = farm.new("qemu").start()
    try:
        boxes = [bridge.client.create(ttl_seconds=600) for _ in range(2)]
        assert [b.info["boot_mode"] for b in boxes] == ["boot", "restore"]
        for box in boxes:
            box.out("echo kept > /tmp/kept")
            hibernate(box)
        bridge.kill()
        bridge.start()
        for box in boxes:
            assert box.status() == "hibernated"
            assert box.out("cat /tmp/kept") == "kept\n"
            box.delete()
    finally:
        bridge.stop()


@pytest.mark.parametrize("file", ["state", "memory"])
def test_what_cannot_be_loaded_is_told_and_the_sandbox_still_sleeps(qemu, file):
    box = qemu.client.create(ttl_seconds=600)
    hibernate(box)
    [saved] = qemu.state.glob(f"hibernated/{box.id}")
    (saved / file).rename(saved / "elsewhere")
    if file == "state":
        (saved / file).write_bytes(b"no state of a machine")
    for ask in (lambda: box.client.post(box.path + "/wake", timeout=30),
                lambda: box.exec("true", timeout=30)):
        reply = ask()
        assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
    assert box.status() == "hibernated"
    (saved / "elsewhere").replace(saved / file)
    assert box.out("echo ok") == "ok\n"
    box.delete()
