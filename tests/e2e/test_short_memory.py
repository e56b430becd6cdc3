"""A bridge that gets no memory, at many of the moments when it asks for some, for one call and for
several in a row: what is answered is true and whole, or tells of the shortage, or breaks off; and
what is there afterwards is what was answered."""
import contextlib
import json

import pytest

from belongings import Belongings
from client import Collected, Sandbox, Stream, until
from fault import DoubledFaultyBridge

SEVERAL = 20  # calls in a row
TOLD = {(503, "capacity.unavailable"), (500, "internal")}
BROKEN_OFF = (EOFError, ConnectionError, IndexError)
OUTPUT = 400_000
DEFAULTS = {"env": {"A": "1"}, "user": "root"}
BODY = {"template": "base", "resources": {"memory_mib": 128}, "metadata": {"a": "b"},
        "exec_defaults": DEFAULTS}


class Lacking(Belongings):
    def __init__(self, bridge):
        super().__init__(bridge)
        self.box = self.client.create(**BODY)
        self.box.run(f"head -c {OUTPUT} /dev/zero | tr '\\0' x", exec_id="kept")

    def ask(self, method, path, body=None):
        """None: it was broken off, before the reply or in its middle."""
        try:
            return self.client.request(method, path, body, timeout=60)
        except BROKEN_OFF:
            return None

    def each_point(self, act, undo, most):
        """act() with the memory that it gets in the end failing, at `most` of the calls for some
        that it makes undisturbed; what it returns is judged, and undone by undo(reply)."""
        self.bridge.count_allocated()
        reply = act()
        calls = self.bridge.allocated()
        assert reply.status < 300, reply.body
        undo(reply)
        every = max(calls // most, 1)
        for at in range(1, calls + 1, every):
            count = SEVERAL if at // every % 4 == 0 else 1
            with self.bridge.lacking(at, count):
                reply = act()
            assert reply is None or reply.status < 300 or (reply.status, reply.code) in TOLD, \
                (at, count, reply.body)
            print(at, count, reply and reply.status)  # shown when undo fails
            undo(reply)

    def made(self):
        return [b for b in self.sandboxes() if b.id != self.box.id]

    def check_box(self):
        assert self.box.out("echo $A") == "1\n"


@pytest.fixture(scope="module")
def lacking(farm):
    farm.count += 1
    bridge = DoubledFaultyBridge(farm.directory / f"own{farm.count}", "firecracker")
    audit = bridge.directory / "audit"
    bridge.flags = ("--audit-log", audit)
    made = Lacking(bridge)
    yield made
    bridge.stop()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert all("operation" in line for line in lines)


def test_a_command_is_run_as_it_was_written_or_not_at_all(lacking):
    body = {"cmd": "cat; echo $A $B", "env": {"B": "2"}, "stdin": "in\n", "timeout_seconds": 20}

    def judge(reply):
        result = reply.json if reply and reply.status == 200 else None
        if result:
            assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
            assert result["stdout"] == "in\n1 2\n" or result["stdout_truncated"], result
    lacking.each_point(lambda: lacking.ask("POST", lacking.box.path + "/exec", body), judge, 200)
    lacking.check_box()


def test_output_has_no_hole(lacking):
    def stream():
        """A reply that is not broken off has a terminal event."""
        with lacking.client.send("GET", lacking.box.path + "/execs/kept/stream") as connection:
            try:
                status, fields = connection.head()
                if status != 200:
                    return lacking.ask("GET", "/healthz")
                events = Collected(list(Stream(connection, status, fields)))
            except BROKEN_OFF:
                return None
        assert events.last["type"] == "error" or len(events.stdout) == OUTPUT, len(events.stdout)
        return lacking.ask("GET", "/healthz")

    def raw():
        reply = lacking.ask("GET", lacking.box.path + "/execs/kept/output")
        assert reply is None or reply.status != 200 or reply.body == b"x" * OUTPUT
        return reply
    for act in (stream, raw):
        lacking.each_point(act, lambda reply: None, 60)


def test_a_list_has_all_or_is_not_told(lacking):
    for path in ("/v1/sandboxes", "/v1/templates", "/v1/node", "/v1/quota", "/metrics",
                 lacking.box.path + "/execs?limit=1000"):
        whole = lacking.ask("GET", path)

        def judge(reply):
            if reply and reply.status == 200 and path != "/metrics":
                assert reply.json.keys() == whole.json.keys()
                assert len(reply.json.get("items", ())) == len(whole.json.get("items", ())), path
            if reply and path == "/metrics":
                assert reply.status != 200 or reply.body.count(b"# HELP") == \
                    whole.body.count(b"# HELP")
        lacking.each_point(lambda: lacking.ask("GET", path), judge, 40)


def test_metadata_are_merged_whole_or_not(lacking):
    kept = {"a": "b", **{f"key{n}": "x" * n for n in range(8)}}
    assert lacking.ask("PATCH", lacking.box.path, {"metadata": kept}).status == 200

    def judge(reply):
        there = lacking.client.get(lacking.box.path).json["metadata"]
        assert there in (kept, {**kept, "more": "1"}), there
        assert not reply or reply.status != 200 or reply.json["metadata"] == there
    lacking.each_point(
        lambda: lacking.ask("PATCH", lacking.box.path, {"metadata": {"more": "1"}}), judge, 60)


def test_what_was_made_is_told_of_or_goes(lacking):
    def undo(reply):
        told = [reply.json["id"]] if reply and reply.status == 201 else []
        made = lacking.made()
        assert {b.id for b in made} == set(told) or reply is None
        for box in made:
            assert box.out("echo $A") == "1\n"
            assert box.delete().status == 204
    lacking.each_point(lambda: lacking.ask("POST", "/v1/sandboxes", BODY), undo, 16)


def test_a_fork_has_all_its_children_or_none(lacking):
    def undo(reply):
        items = reply.json["items"] if reply and reply.status == 201 else []
        made = lacking.made()
        assert len(made) in (0, 2) and {i["id"] for i in items} <= {b.id for b in made}
        assert items or not made or reply is None
        for box in made:
            assert box.out("echo $A") == "1\n"
            assert box.delete().status == 204
        lacking.check_box()
    lacking.each_point(lambda: lacking.ask("POST", lacking.box.path + "/fork", {"count": 2}),
                       undo, 12)


def test_a_snapshot_is_told_of_or_goes_and_its_source_goes_on(lacking):
    def undo(reply):
        told = [reply.json["id"]] if reply and reply.status == 201 else []
        there = [s["id"] for s in lacking.snapshots()]
        assert there == told or reply is None
        for name in there:
            assert lacking.client.delete(f"/v1/snapshots/{name}").status == 204
        lacking.check_box()
    lacking.each_point(lambda: lacking.ask("POST", lacking.box.path + "/snapshots", {}), undo, 24)


@pytest.mark.parametrize("action, back, done", [("pause", "resume", "paused"),
                                                ("hibernate", "wake", "hibernated")])
def test_a_guest_that_stands_still_is_known_to(lacking, action, back, done):
    def undo(reply):
        status = lacking.box.status()
        assert not reply or reply.status != 200 or status == done
        if status == done:
            assert lacking.ask("POST", f"{lacking.box.path}/{back}").status == 200
        lacking.check_box()
    lacking.each_point(lambda: lacking.ask("POST", f"{lacking.box.path}/{action}"), undo, 12)


def test_a_bridge_that_starts_takes_all_along_or_does_not_start(lacking):
    """Nothing is lost to one that could not read what there is."""
    bridge, sleeper = lacking.bridge, lacking.client.create(**BODY)
    assert lacking.ask("POST", sleeper.path + "/hibernate").status == 200
    snap = lacking.ask("POST", lacking.box.path + "/snapshots", {}).json["id"]
    bridge.kill()
    bridge.count_allocated()
    bridge.start()
    calls = bridge.allocated()
    for at in range(1, calls, max(calls // 40, 1)):
        bridge.kill()
        with bridge.lacking(at, 1):
            try:
                bridge.start()
            except AssertionError:
                assert bridge.process.wait() != 0
        if bridge.is_dead():
            bridge.start()
        lacking.check_box()
        assert [s["id"] for s in lacking.snapshots()] == [snap], at
        assert Sandbox(lacking.client, {"id": sleeper.id}).status() == "hibernated", at
    assert sleeper.out("echo $A") == "1\n"
    assert sleeper.delete().status == 204
    assert lacking.client.delete(f"/v1/snapshots/{snap}").status == 204


def test_a_guest_that_was_left_standing_still_is_let_go_on(lacking):
    """By a bridge that gets no memory for a twelfth of what it does until that guest answers."""
    bridge = lacking.bridge
    save = lambda: lacking.ask("POST", lacking.box.path + "/snapshots", {})
    bridge.die_at(0)
    name = save().json["id"]
    half = len(bridge.calls()) // 2
    assert lacking.client.delete(f"/v1/snapshots/{name}").status == 204

    def recover(at, count):
        bridge.die_at(half)
        assert save() is None
        bridge.process.wait()
        with bridge.lacking(at, count):
            with contextlib.suppress(AssertionError, *BROKEN_OFF):
                bridge.start()
            lacking.ask("POST", lacking.box.path + "/exec", {"cmd": "true"})
        if bridge.is_dead():
            bridge.start()
        until(bridge.answers, 10)
        lacking.check_box()
        return bridge.allocated()
    window = recover(1, 0) // 12
    for number in range(12):
        recover(1 + number * window, window)
