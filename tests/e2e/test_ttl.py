"""When sandboxes end by themselves: idle for their time, or too old; never in the middle of work.
Times are those that the bridge's own events tell."""
import contextlib
import datetime
import socket
import threading

import pytest

from client import Sandbox, until
from conftest import LAUNCHERS
from meddler import Agent

pytestmark = pytest.mark.serial

SLACK = 1.0  # "within a second of its time"


class Told:
    """The events of one sandbox, with their times in seconds."""

    def __init__(self, box):
        self.box, self.at, self.seen = box, {}, []
        self.stream = box.client.stream("GET", box.path + "/events")

    def until(self, name, seconds=30):
        """The time of the first event of that name from here on."""
        sock = self.stream.connection.sock
        timer = threading.Timer(seconds, lambda: sock.shutdown(socket.SHUT_RDWR))
        timer.start()
        try:
            return self.read(name)
        finally:
            timer.cancel()

    def read(self, name):
        if not hasattr(self, "events"):
            self.events = iter(self.stream)
        for event in self.events:
            at = datetime.datetime.fromisoformat(event.data["at"]).timestamp()
            self.seen.append(event.name)
            self.at[event.name] = at
            if event.name == name:
                return at
        raise AssertionError(f"the stream ended after {self.seen}")

    def close(self):
        self.stream.close()


@pytest.fixture(params=["local", *LAUNCHERS])
def client(farm, request):
    return farm.bridge(request.param).client


@contextlib.contextmanager
def told(client, **body):
    box = client.create(**body)
    events = Told(box)
    yield box, events
    events.close()
    box.delete()


def assert_within(seconds, began, ended):
    assert seconds - 0.05 <= ended - began < seconds + SLACK, ended - began


def test_an_idle_one_ends_within_a_second_of_its_time(client):
    with told(client, ttl_seconds=2) as (box, events):
        box.run("true")
        began = events.until("exec_ended")
        assert_within(2, began, events.until("expired"))
        events.until("deleted")
        assert client.get(box.path).code == "sandbox.gone"


def test_its_lifetime_ends_it_in_the_middle_of_work_and_within_a_second(client):
    with told(client, ttl_seconds=600, max_lifetime_seconds=4) as (box, events):
        created = datetime.datetime.fromisoformat(box.info["created_at"]).timestamp()
        result = box.run("sleep 60", timeout_seconds=100)
        assert (result["outcome"], result["cancel_reason"]) == ("cancelled", "sandbox_expired")
        assert_within(4, created, events.until("expired"))


def test_a_long_exec_that_is_waited_for_keeps_it_until_it_has_ended(client):
    with told(client, ttl_seconds=1) as (box, events):
        assert box.run("sleep 4; echo ok", timeout_seconds=100)["stdout"] == "ok\n"
        began = events.until("exec_ended")
        assert "expired" not in events.seen
        assert_within(1, began, events.until("expired"))


def test_a_silent_stream_keeps_it_until_it_has_ended(client):
    with told(client, ttl_seconds=1) as (box, events):
        all = box.stream("sleep 4; echo ok", timeout_seconds=100).collect()
        assert all.stdout == "ok\n"
        began = events.until("exec_ended")
        assert_within(1, began, events.until("expired"))


def test_a_detached_exec_with_a_deadline_keeps_it_until_it_has_ended(client):
    """Though nobody waits for it; and the time begins anew with its end."""
    with told(client, ttl_seconds=2) as (box, events):
        box.start("sleep 5", exec_id="long", timeout_seconds=100)
        began = events.until("exec_ended")
        assert "expired" not in events.seen
        assert_within(2, began, events.until("expired"))


def test_a_detached_exec_without_a_deadline_keeps_nothing(client):
    with told(client, ttl_seconds=2) as (box, events):
        box.start("sleep 60", exec_id="long", timeout_seconds=None)
        began = events.until("exec_started")
        assert_within(2, began, events.until("expired"))


def test_a_watcher_keeps_it_while_it_watches(client):
    with told(client, ttl_seconds=1) as (box, events):
        box.start("sleep 60", exec_id="long", timeout_seconds=None)
        watcher = box.watch("long")
        watcher.until("start")
        events.until("exec_started")
        until(lambda: client.get(box.path).json["idle_seconds"] == 0, 5)
        with pytest.raises(EOFError):
            Told(box).until("expired", 4)
        watcher.close()
        events.until("expired", 1 + SLACK)


# ---- those that do not end ----

@pytest.fixture
def qemu(farm):
    return farm.bridge("qemu").client


def test_a_persistent_one_hibernates_in_time_and_wakes_with_its_state(qemu):
    """Time and again; what ran goes on."""
    with told(qemu, persistent=True, ttl_seconds=2) as (box, events):
        box.out("echo 0 > /dev/shm/rounds")
        box.start("while :; do date +%s > /dev/shm/now; sleep 0.1; done", exec_id="clock",
                  timeout_seconds=None)
        for i in range(3):
            box.out(f"echo {i + 1} > /dev/shm/rounds", exec_id=f"round{i}")
            while events.until("exec_ended") and events.seen.count("exec_ended") < i + 2:
                pass
            assert_within(2, events.at["exec_ended"], events.until("hibernated"))
            until(lambda: box.status() == "hibernated", 5)
            assert box.out("cat /dev/shm/rounds", exec_id=f"look{i}") == f"{i + 1}\n"
            events.until("exec_ended")
            assert events.seen.count("running") == i + 1 and "expired" not in events.seen
        now = box.out("cat /dev/shm/now")
        until(lambda: box.out("cat /dev/shm/now") != now, 10, "the clock")


def test_a_persistent_one_works_to_the_end_before_it_sleeps(qemu):
    with told(qemu, persistent=True, ttl_seconds=1) as (box, events):
        box.start("sleep 4", exec_id="long", timeout_seconds=100)
        began = events.until("exec_ended")
        assert "hibernated" not in events.seen
        assert_within(1, began, events.until("hibernated"))


def test_a_sleeping_one_ends_with_its_lifetime(qemu):
    with told(qemu, persistent=True, ttl_seconds=1, max_lifetime_seconds=6) as (box, events):
        created = datetime.datetime.fromisoformat(box.info["created_at"]).timestamp()
        events.until("hibernated")
        assert_within(6, created, events.until("expired"))
        until(lambda: qemu.get(box.path).status == 410, 10)


def test_an_attached_one_ends_with_its_execs_but_its_vm_lives_on(farm):
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach)
    body = {"attach": {"transport": "unix", "path": agent.path}}
    reply = bridge.client.post("/v1/sandboxes", {**body, "ttl_seconds": 2})
    box = Sandbox(bridge.client, reply.json)
    events = Told(box)
    box.start("sleep 60", exec_id="long", timeout_seconds=None)
    began = events.until("exec_started")
    assert_within(2, began, events.until("expired"))
    until(lambda: bridge.client.get(box.path).status == 410, 10)
    again = Sandbox(bridge.client, bridge.client.post("/v1/sandboxes", body).json)
    result = until(lambda: again.state("long")["result"], 10, "the exec's end")
    assert (result["outcome"], result["cancel_reason"]) == ("cancelled", "sandbox_expired")
    again.delete()
    agent.stop()
