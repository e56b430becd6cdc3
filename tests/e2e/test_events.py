"""Streams of what happens to sandboxes."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import threading

import pytest

from client import Collected, Sandbox, until


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


@contextlib.contextmanager
def within(seconds, stream):
    """Comments keep a stream alive: cut it when the time is over."""
    timer = threading.Timer(seconds,
                            lambda: stream.connection.sock.shutdown(socket.SHUT_RDWR))
    timer.start()
    yield
    timer.cancel()


def take(stream, until_name, sandbox):
    """Events of that sandbox up to and with the named one."""
    seen = []
    with within(60, stream):
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
    seen = take(node, "deleted", box.id)
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
    seen = take(stream, "exec_ended", box.id)
    stream.close()
    box.run("true", exec_id="two")
    stream = client.stream("GET", box.path + "/events", headers={"Last-Event-ID": seen[-1].id})
    box.delete()
    rest = take(stream, "deleted", box.id)
    stream.close()
    assert [(e.name, e.data["exec_id"]) for e in rest] == [
        ("exec_started", "two"), ("exec_ended", "two"), ("deleted", None)]


def test_an_id_of_another_process_gives_a_gap_and_nonsense_is_refused(local_bridge):
    client = local_bridge.client
    box = client.create(ttl_seconds=60)
    stream = client.stream("GET", box.path + "/events",
                           headers={"Last-Event-ID": "0123456789abcdef-5"})
    assert names(take(stream, "running", box.id))[0] == "gap"
    stream.close()
    reply = client.get(box.path + "/events", headers={"Last-Event-ID": "nonsense"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "Last-Event-ID")
    assert client.get("/v1/sandboxes/sb-none/events").status == 404
    box.delete()


def test_a_sandboxes_stream_ends_with_it_and_clients_are_told_so(local_bridge):
    client = local_bridge.client
    box = client.create(ttl_seconds=60)
    call = box.stream("echo; sleep 60", exec_id="cut-off")
    call.until("stdout")
    stream = client.stream("GET", box.path + "/events")
    box.delete()
    with within(60, stream):
        seen = list(stream)
    assert [(e.name, e.data["detail"]) for e in seen] == [
        ("exec_ended", "cancelled"), ("deleted", None)]
    again = client.stream("GET", box.path + "/events", headers={"Last-Event-ID": seen[0].id})
    with within(60, again):
        assert [e.id for e in again] == [seen[1].id]
    assert client.get(box.path + "/events", headers={"Last-Event-ID": seen[1].id}).status == 204
    reply = client.get(box.path + "/events")
    assert (reply.status, reply.error["code"]) == (410, "sandbox.gone")


def test_the_end_of_idle_time_is_told(local_bridge):
    client = local_bridge.client
    node = client.stream("GET", "/v1/events")
    box = client.create(ttl_seconds=1)
    assert names(take(node, "deleted", box.id))[-2:] == ["expired", "deleted"]


def test_a_killed_vmm_is_told_at_once_and_leaves_nothing(farm):
    """Status, calls, events and what it took of the host, within two seconds."""
    bridge = farm.bridge("qemu")
    box = bridge.client.create(ttl_seconds=600)
    node = bridge.client.stream("GET", "/v1/events")
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


# ---- execs that nobody waits for ----

def told_of(stream, exec_id):
    """What is told of an exec, up to its end."""
    seen = []
    with within(30, stream):
        for event in stream:
            if event.data["exec_id"] == exec_id:
                seen.append((event.name, event.data["detail"]))
                if event.name == "exec_ended":
                    return seen
    raise AssertionError(f"the stream ended after {seen}")


@pytest.fixture
def box(local_bridge):
    made = local_bridge.client.create(ttl_seconds=600)
    yield made
    made.delete()


def events_of(box, after=None):
    headers = {"Last-Event-ID": after} if after else {}
    return box.client.stream("GET", box.path + "/events", headers=headers)


@pytest.mark.sanitized
@pytest.mark.parametrize("cmd,detail", [("sleep 0.5", "exited"), ("kill -9 $$", "signaled"),
                                        ("true", "exited")])
def test_the_end_of_a_detached_exec_is_told(box, cmd, detail):
    stream = events_of(box)
    box.start(cmd, exec_id="detached")
    assert told_of(stream, "detached") == [("exec_started", None), ("exec_ended", detail)]
    stream.close()


@pytest.mark.sanitized
def test_each_of_many_is_told_once_and_costs_no_connection(box):
    stream = events_of(box)
    ids = [f"d{i}" for i in range(30)]
    for i, exec_id in enumerate(ids):
        box.start("true" if i % 2 else "sleep 2", exec_id=exec_id)
    guest = box.client.get(box.path + "/metrics").json["guest"]
    assert guest["execs_running"] >= 10 and guest["agent_sessions"] <= 6, guest
    box.run("true", exec_id="waited-for")
    seen = []
    with within(60, stream):
        for event in stream:
            seen.append((event.name, event.data["exec_id"]))
            if sum(name == "exec_ended" for name, _ in seen) == 31:
                break
    stream.close()
    assert sorted(seen) == sorted((name, exec_id) for exec_id in [*ids, "waited-for"]
                                  for name in ("exec_started", "exec_ended"))
    until(lambda: box.client.get(box.path + "/metrics").json["guest"]["agent_sessions"] <= 2, 15,
          "the watch's end")


@pytest.mark.sanitized
def test_an_exec_whose_client_left_is_told_as_it_ends(box):
    stream = events_of(box)
    for policy, detail in (("kill", "cancelled"), ("detach", "exited")):
        call = box.stream("echo; sleep 1", exec_id=policy, on_disconnect=policy)
        call.until("stdout")
        call.close()
        assert told_of(stream, policy) == [("exec_started", None), ("exec_ended", detail)]
    stream.close()


@pytest.mark.sanitized
def test_an_exec_that_is_forgotten_has_ended_as_well(box):
    """As cancelled, if the agent was listened to by then."""
    stream = events_of(box)
    box.start("sleep 60", exec_id="at-once")
    assert box.forget("at-once").status == 204
    assert told_of(stream, "at-once")[-1] in (("exec_ended", None), ("exec_ended", "cancelled"))
    box.start("sleep 60", exec_id="later")
    assert box.forget("later").status == 204
    assert told_of(stream, "later")[-1] == ("exec_ended", "cancelled")
    stream.close()


@pytest.mark.sanitized
def test_a_repeated_start_is_told_once(box):
    stream = events_of(box)
    for _ in range(2):
        box.start("sleep 1", exec_id="same")
    assert told_of(stream, "same") == [("exec_started", None), ("exec_ended", "exited")]
    box.run("true", exec_id="after")
    assert told_of(stream, "after") == [("exec_started", None), ("exec_ended", "exited")]
    stream.close()


def test_a_restarted_bridge_tells_of_what_still_ran(farm):
    bridge = farm.new("local").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        box.start("sleep 3", exec_id="older")
        bridge.kill()
        bridge.start()
        stream = events_of(box)
        assert told_of(stream, "older") == [("exec_ended", "exited")]
        stream.close()
    finally:
        bridge.stop()


def test_after_a_restart_an_earlier_id_gives_a_gap_and_then_all_that_is_new(farm):
    """Of one sandbox, and of all. What the new bridge has told can be had again from it."""
    bridge = farm.new("local").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        old = events_of(box)
        box.run("true", exec_id="before")
        last = take(old, "exec_ended", box.id)[-1].id
        bridge.kill()
        old.close()
        bridge.start()
        box.run("true", exec_id="after")
        for path in box.path + "/events", "/v1/events":
            stream = bridge.client.stream("GET", path, headers={"Last-Event-ID": last})
            seen = take(stream, "exec_ended", box.id)
            stream.close()
            assert (seen[0].name, seen[0].data["sandbox_id"]) == ("gap", None)
            told = [(e.name, e.data["exec_id"]) for e in seen[1:]]
            assert told[-2:] == [("exec_started", "after"), ("exec_ended", "after")]
            assert "before" not in [exec_id for _, exec_id in told]
            assert len({e.id.partition("-")[0] for e in seen} | {last.partition("-")[0]}) == 2
            again = events_of(box, seen[0].id)
            assert [(e.id, e.data) for e in take(again, "exec_ended", box.id)] == \
                [(e.id, e.data) for e in seen[1:]]
            again.close()
    finally:
        bridge.stop()


def test_its_ends_are_told_in_clones_and_after_sleep(farm):
    bridge = farm.bridge("qemu")
    box = bridge.client.create(ttl_seconds=600)
    node = bridge.client.stream("GET", "/v1/events")
    box.start("while [ ! -e /tmp/go ]; do sleep 0.1; done", exec_id="long", timeout_seconds=None)
    reply = box.client.post(box.path + "/fork", {"count": 1}, timeout=60)
    clone = Sandbox(bridge.client, reply.json["items"][0])
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    seen = []
    for one in clone, box:
        one.out("touch /tmp/go", exec_id="go")
        with within(60, node):
            for event in node:
                if event.name.startswith("exec_") and event.data["exec_id"] == "long":
                    seen.append((event.name, event.data["sandbox_id"]))
                    if event.name == "exec_ended":
                        break
    assert seen == [("exec_started", box.id), ("exec_ended", clone.id), ("exec_ended", box.id)]
    node.close()
    clone.delete()
    box.delete()


def test_every_change_is_told_and_can_be_had_again(farm):
    """The whole list, in order; and from each event's id on the rest of it."""
    bridge = farm.bridge("qemu")
    node = bridge.client.stream("GET", "/v1/events")
    box = bridge.client.create(ttl_seconds=600)
    for action, body in (("pause", None), ("resume", None), ("snapshots", {}),
                         ("hibernate", None), ("wake", None)):
        reply = box.client.post(f"{box.path}/{action}", body, timeout=60)
        assert reply.status in (200, 201), reply.body
        if action == "snapshots":
            box.client.delete(f"/v1/snapshots/{reply.json['id']}")
    box.run("true", exec_id="one")
    box.delete()
    seen = take(node, "deleted", box.id)
    node.close()
    assert names(seen) == ["created", "booting", "running", "paused", "running", "snapshot",
                           "hibernated", "booting", "running", "exec_started", "exec_ended",
                           "deleted"]
    numbers = [int(e.id.partition("-")[2]) for e in seen]
    assert numbers == sorted(numbers) and len({e.id.partition("-")[0] for e in seen}) == 1
    for i, event in enumerate(seen[:-1]):
        again = events_of(box, event.id)
        rest = take(again, "deleted", box.id)
        again.close()
        assert [(e.id, e.data) for e in rest] == [(e.id, e.data) for e in seen[i + 1:]]
