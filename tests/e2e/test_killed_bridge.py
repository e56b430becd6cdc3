"""A bridge killed at many moments of a create and of a delete: what was acknowledged is there,
what was not leaves nothing."""
import os
import pathlib
import time

from client import Sandbox, until

DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.35)


def left_of_vms(bridge):
    """Where processes work in the VMs' directory, and what is on disk and in memory of them; but
    for the trial of KVM, which each bridge makes until one has seen its end."""
    state = bridge.state.stat()
    memory = pathlib.Path(f"/dev/shm/sandgate-{state.st_dev:x}-{state.st_ino:x}")
    found = [str(p) for at in (bridge.state / "vm", memory) for p in at.glob("*")]
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            found.append(os.readlink(proc / "cwd"))
        except OSError:
            pass
    return [f for f in found if "kvm-trial" not in f
            and f.startswith((str(bridge.state / "vm") + "/", str(memory)))]


def kill_and_restart(bridge, connection, delay):
    time.sleep(delay)  # the moment of the fault, not a wait for anything
    bridge.process.kill()
    bridge.process.wait()
    connection.close()
    bridge.start()


def test_a_create_that_was_cut_off_is_made_by_its_repetition_and_only_once(farm):
    bridge = farm.new("qemu").start()
    try:
        bridge.client.create(ttl_seconds=600).delete()  # the template is baked
        for i, delay in enumerate(DELAYS):
            body, key = {"template": "base", "ttl_seconds": 600}, {"Idempotency-Key": f"k{i}"}
            kill_and_restart(bridge, bridge.client.send("POST", "/v1/sandboxes", body, key), delay)
            reply = bridge.client.post("/v1/sandboxes", body, headers=key, timeout=60)
            assert reply.status == 201, (delay, reply.body)
            items = bridge.client.get("/v1/sandboxes").json["items"]
            running = [s["id"] for s in items if s["status"] == "running"]
            assert running == [reply.json["id"]], delay
            box = Sandbox(bridge.client, reply.json)
            assert box.out("echo ok") == "ok\n"
            assert box.delete().status == 204
        until(lambda: not left_of_vms(bridge), 10, "everything of them going")
    finally:
        bridge.stop()


def test_a_delete_that_was_cut_off_is_finished_by_the_next_bridge(farm):
    bridge = farm.new("qemu").start()
    try:
        for delay in DELAYS:
            box = bridge.client.create(ttl_seconds=600)
            kill_and_restart(bridge, bridge.client.send("DELETE", box.path), delay)
            assert bridge.client.delete(box.path, timeout=60).status == 204, delay
            assert bridge.client.get(box.path).status == 410
            until(lambda: not left_of_vms(bridge), 10, "everything of it going")
    finally:
        bridge.stop()


def test_an_exec_that_was_cut_off_ran_once_and_its_result_can_be_read(farm):
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        for i, delay in enumerate(DELAYS):
            request = {"cmd": f"echo {i} >> /tmp/ran; echo {i}", "exec_id": f"e{i}"}
            kill_and_restart(bridge, bridge.client.send("POST", box.path + "/exec", request), delay)
            box = Sandbox(bridge.client, {"id": box.id})
            reply = bridge.client.post(box.path + "/exec", request, timeout=60)
            assert (reply.status, reply.json["stdout"]) == (200, f"{i}\n"), (delay, reply.body)
        assert box.out("cat /tmp/ran").split() == [str(i) for i in range(len(DELAYS))]
        box.delete()
    finally:
        bridge.stop()
