"""A bridge that has no descriptor to spare, at each of the calls for one that a sandbox's life
takes, for one call and for a while: who asked gets what was asked for or is told of the
shortage, what was not part of it notices nothing, and nothing is left when it is over."""
import time

import pytest

from belongings import Belongings
from client import Sandbox, until
from doubled import VERSIONS
from fault import DoubledFaultyBridge, FaultyBridge

A_WHILE = 12  # calls in a row that get no descriptor
EVER = 1 << 30


class Short(Belongings):
    def each_point(self, act, undo, most=20):
        """Let act() ask for something and undo(reply) bring back what was before: undisturbed,
        to count its calls; then with one of them getting no descriptor, by turns all of them or
        `most`; and with each third of those beginning a while of none."""
        self.bridge.count_opened()
        reply = act()
        calls = self.bridge.opened()
        assert reply.status < 300, reply.body
        undo(reply)
        print(calls, "calls")
        every = -(-calls // most)
        for at in range(1, calls + 1, every):
            for count in (1, A_WHILE) if at // every % 3 == 0 else (1,):
                with self.bridge.shortage(at, count):
                    reply = act()
                assert reply.status < 300 or (reply.status, reply.code) == \
                    (503, "capacity.unavailable"), (at, count, reply.body)
                print(at, count, reply.status)  # shown when undo fails
                undo(reply)


@pytest.fixture(scope="module")
def short(farm):
    made = Short(farm.new("qemu", kind=FaultyBridge))
    yield made
    made.bridge.stop()


@pytest.fixture
def box(short):
    made = short.client.create(ttl_seconds=600)
    made.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done", exec_id="counter",
               timeout_seconds=None)
    yield made
    made.delete()
    short.check()


def test_a_create_is_made_or_leaves_nothing(short):
    def undo(reply):
        boxes = [Sandbox(short.client, reply.json)] if reply.status == 201 else []
        short.check(boxes)
        for made in boxes:
            assert made.delete().status == 204
    short.each_point(lambda: short.client.post("/v1/sandboxes", {"template": "base"}, timeout=60), undo)


def test_a_delete_takes_all(short):
    boxes = [short.client.create()]

    def undo(reply):
        assert short.client.get(boxes[-1].path).status == 410
        short.check()
        boxes.append(short.client.create())
    short.each_point(lambda: short.client.delete(boxes[-1].path, timeout=60), undo)
    boxes[-1].delete()


def test_a_delete_that_must_wait_for_long_says_so_and_goes_on(short):
    made = short.client.create()
    with short.bridge.shortage(2, EVER):  # after the connection's
        reply = short.client.delete(made.path, timeout=30)
        assert (reply.status, reply.code) == (503, "capacity.unavailable"), reply.body
        assert reply.error["message"] == \
            "the sandbox is deleted, but its VM could not be removed yet"
        assert reply.error["retryable"] and reply.headers["retry-after"] == "1"
    assert short.client.delete(made.path, timeout=30).status == 204
    short.check()


def test_a_snapshot_is_whole_or_not_there(short, box):
    def undo(reply):
        snapshots = [reply.json["id"]] if reply.status == 201 else []
        short.check([box], snapshots)
        assert box.state("counter")["state"] == "running"
        for name in snapshots:
            assert short.client.delete(f"/v1/snapshots/{name}").status == 204
    short.each_point(lambda: short.client.post(box.path + "/snapshots", timeout=60), undo)


def test_a_snapshots_files_go_when_they_can(short, box):
    take = lambda: short.client.post(box.path + "/snapshots", timeout=60).json["id"]
    names = [take()]

    def undo(reply):
        short.check([box])
        names.append(take())
    short.each_point(lambda: short.client.delete(f"/v1/snapshots/{names[-1]}"), undo)
    short.client.delete(f"/v1/snapshots/{names[-1]}")


def test_a_fork_has_all_its_children_or_none(short, box):
    def undo(reply):
        items = reply.json["items"] if reply.status == 201 else []
        children = [Sandbox(short.client, i) for i in items]
        assert len(children) in (0, 2)
        short.check([box, *children])
        for child in children:
            assert child.delete().status == 204
    short.each_point(lambda: short.client.post(box.path + "/fork", {"count": 2}, timeout=60), undo,
                     most=8)


def test_a_sandbox_sleeps_or_stays_awake_with_the_state_it_had(short, box):
    box.out("echo kept > /tmp/state")

    def undo(reply):
        assert box.status() == ("hibernated" if reply.status == 200 else "running")
        assert box.out("cat /tmp/state") == "kept\n"
        short.check([box])
    short.each_point(lambda: short.client.post(box.path + "/hibernate", timeout=60), undo)


def test_a_sandbox_wakes_or_sleeps_on_with_the_state_it_had(short, box):
    box.out("echo kept > /tmp/state")
    sleep = lambda: short.client.post(box.path + "/hibernate", timeout=60)
    assert sleep().status == 200

    def undo(reply):
        assert reply.status == 200 or box.status() == "hibernated"
        assert box.out("cat /tmp/state") == "kept\n"
        short.check([box])
        assert sleep().status == 200
    short.each_point(lambda: short.client.post(box.path + "/wake", timeout=60), undo, most=16)


def test_a_pause_is_made_and_taken_back(short, box):
    resume = lambda: short.client.post(box.path + "/resume", timeout=60)

    def undo(reply):
        assert box.status() == ("paused" if reply.status == 200 else "running")
        assert reply.status != 200 or resume().status == 200
        short.check([box])
    short.each_point(lambda: short.client.post(box.path + "/pause", timeout=60), undo)


def test_a_guest_that_waits_to_be_told_to_go_on_outlives_every_deadline(short, box):
    """At the last call that the reply needs: there the guest was saved, and runs, and its agent
    waits."""
    save = box.path + "/snapshots"
    short.bridge.count_opened()
    assert short.client.post(save, timeout=60).status == 201
    for at in range(short.bridge.opened(), 0, -1):
        with short.client.send("POST", save, {}, timeout=60) as connection:
            with short.bridge.shortage(at, EVER):
                until(lambda: connection.readable(0) or short.bridge.opened() >= at + 5, 30,
                      "the reply, or tries")
                waits = not connection.readable(0)
                if waits:  # several a second, for longer than a link has
                    until(lambda: short.bridge.opened() >= at + 150, 60, "many tries")
                    assert not connection.readable(0)
            assert connection.reply().status == 201
        if waits:
            break
    assert waits
    assert box.out("echo ok") == "ok\n"
    for item in short.snapshots():
        assert short.client.delete(f"/v1/snapshots/{item['id']}").status == 204


def test_a_bridge_that_starts_takes_up_what_lives_or_says_why_it_does_not(short, box):
    bridge = short.bridge
    bridge.kill()
    bridge.count_opened()
    bridge.start()
    for at in range(1, bridge.opened() + 1):
        bridge.kill()
        with bridge.shortage(at, 1):
            try:
                bridge.start()
            except AssertionError:
                assert bridge.process.wait() != 0
                why = bridge.log.read_text().splitlines()[-1].split(" error bridge: ")[1]
                assert "Too many open files" in why or why.startswith("the registry:"), why
                bridge.start()
        found = {line.split("vm: ")[1] for line in bridge.log.read_text().splitlines()
                 if "VMs have" in line}
        assert len(found) == 1, (at, found)
        assert box.state("counter")["state"] == "running", at
        short.check([box])


def test_connections_wait_for_descriptors_and_the_bridge_does_not_spin(short):
    with short.bridge.shortage(1, EVER):
        connection = short.client.send("GET", "/v1/sandboxes")
        begun = time.monotonic()
        until(lambda: short.bridge.opened() >= 20, 10, "some tries")
        assert time.monotonic() - begun > 0.2
    with connection:
        assert connection.reply().status == 200


@pytest.fixture(scope="module", params=VERSIONS)
def doubled(request, farm):
    farm.count += 1
    made = Short(DoubledFaultyBridge(farm.directory / f"own{farm.count}", request.param))
    yield made
    made.bridge.stop()


def test_other_vmms_are_saved_and_go_on_as_well(doubled):
    def undo(reply):
        snapshots = [reply.json["id"]] if reply.status == 201 else []
        doubled.check([], snapshots)
        for name in snapshots:
            assert doubled.client.delete(f"/v1/snapshots/{name}").status == 204
    save = doubled.neighbour.path + "/snapshots"
    doubled.each_point(lambda: doubled.client.post(save, timeout=60), undo)


def test_other_vmms_are_created_or_leave_nothing(doubled):
    def undo(reply):
        boxes = [Sandbox(doubled.client, reply.json)] if reply.status == 201 else []
        doubled.check(boxes)
        for box in boxes:
            assert box.delete().status == 204
    doubled.each_point(
        lambda: doubled.client.post("/v1/sandboxes", {"template": "base"}, timeout=60), undo,
        most=8)
