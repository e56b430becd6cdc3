"""Streams of what happens to sandboxes."""
import json
import os
import pathlib
import signal

from client import Collected, until


def names(events):
    return [e.name for e in events]


def vm_processes(bridge, box):
    """By name, those that work in the VM's directory."""
    at, found = str(bridge.state / "vm" / box.id[-26:]), {}
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(proc / "cwd") == at:
                found[pathlib.Path(os.readlink(proc / "exe")).name] = int(proc.name)
        except OSError:
            pass
    return found


def take(stream, until_name, sandbox):
    """Events of that sandbox up to and with the named one."""
    seen = []
    for event in stream:
        if event.data.get("sandbox_id") in (sandbox, None):
            seen.append(event)
            if event.name == until_name:
                return seen
    raise AssertionError(f"the stream ended after {names(seen)}")


def test_a_sandboxes_life_is_told_in_order(local_bridge):
    client = local_bridge.client
    node = client.stream("GET", "/v1/events")
    box = client.create(ttl_seconds=60)
    box.run("exit 3", exec_id="first")
    box.delete()
    seen = take(iter(node), "deleted", box.id)
    node.close()
    assert names(seen) == ["created", "booting", "running", "exec_started", "exec_ended", "deleted"]
    assert (seen[4].data["exec_id"], seen[4].data["detail"]) == ("first", "exited")
    ids = [e.id for e in seen]
    assert len(set(ids)) == len(ids)


def test_a_stream_that_broke_goes_on_where_it_was(local_bridge):
    client = local_bridge.client
    box = client.create(ttl_seconds=60)
    stream = client.stream("GET", box.path + "/events")
    box.run("true", exec_id="one")
    seen = take(iter(stream), "exec_ended", box.id)
    stream.close()
    box.run("true", exec_id="two")
    stream = client.stream("GET", box.path + "/events", headers={"Last-Event-ID": seen[-1].id})
    box.delete()
    rest = take(iter(stream), "deleted", box.id)
    stream.close()
    assert [(e.name, e.data["exec_id"]) for e in rest] == [
        ("exec_started", "two"), ("exec_ended", "two"), ("deleted", None)]


def test_an_id_of_another_process_gives_a_gap_and_nonsense_is_refused(local_bridge):
    client = local_bridge.client
    box = client.create(ttl_seconds=60)
    stream = client.stream("GET", box.path + "/events",
                           headers={"Last-Event-ID": "0123456789abcdef-5"})
    assert names(take(iter(stream), "running", box.id))[0] == "gap"
    stream.close()
    reply = client.get(box.path + "/events", headers={"Last-Event-ID": "nonsense"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "Last-Event-ID")
    assert client.get("/v1/sandboxes/sb-none/events").status == 404
    box.delete()


def test_the_end_of_idle_time_is_told(local_bridge):
    client = local_bridge.client
    node = iter(client.stream("GET", "/v1/events"))
    box = client.create(ttl_seconds=1)
    assert names(take(node, "deleted", box.id))[-2:] == ["expired", "deleted"]


def test_a_killed_vmm_is_told_at_once_and_leaves_nothing(farm):
    """Status, calls, events and what it took of the host, within two seconds."""
    bridge = farm.bridge("qemu")
    box = bridge.client.create(ttl_seconds=600)
    node = iter(bridge.client.stream("GET", "/v1/events"))
    call = box.stream("echo; sleep 60")
    call.until("stdout")
    processes = vm_processes(bridge, box)
    os.kill(processes["qemu-system-x86_64"], signal.SIGKILL)
    seen = take(node, "failed", box.id)
    assert seen[-1].data["detail"] == "sandbox.lost"
    assert "sandbox.lost" in json.dumps(Collected(list(call)).last)
    until(lambda: not vm_processes(bridge, box), 2)
    until(lambda: not list(pathlib.Path("/dev/shm").glob(f"sandgate-*/{box.id[-26:]}")), 2)
    assert box.status() == "failed"
    box.delete()
