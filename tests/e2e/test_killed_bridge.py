"""A bridge killed at many points of what it does, 43 of creates, deletes, snapshots, forks and
execs among them: what was acknowledged is there, what was not leaves nothing, and a neighbour
that has no part in it notices nothing."""
import time

import pytest

from belongings import Belongings
from client import Sandbox
from fault import FaultyBridge, points

DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.35)


class Killed(Belongings):
    """One bridge for all points."""

    def ask(self, method, path, body=None, headers=None):
        """The reply, or None when the bridge died before it was whole."""
        with self.client.send(method, path, body, headers, timeout=60) as connection:
            try:
                return connection.reply()
            except (EOFError, ConnectionError, IndexError):
                return None

    def each_point(self, name, count, act, prepare=lambda n: n):
        """Let act(prepare(n)) ask for something, n from 0 on: first undisturbed, then with the
        bridge dying at `count` of the calls that it made for the first. Where it makes fewer
        this time, another of those it did make is taken; three quarters of `count` at least
        must be reached. Yields what prepare gave and the reply, when the next bridge serves."""
        what = prepare(0)
        self.bridge.die_at(0)
        reply = act(what)
        calls = self.bridge.calls()
        assert reply.status < 300, reply.body
        yield what, reply
        todo, reached, n = points(calls, count), set(), 0
        while todo and n < 2 * count:
            at, n = todo.pop(0), n + 1
            what = prepare(n)
            self.bridge.die_at(at)
            reply = act(what)
            made = self.bridge.calls()
            if reply is None or self.bridge.is_dead():
                self.bridge.process.wait()
                reached.add(at)
            else:
                spare = set(range(1, len(made))) - reached - set(todo)
                todo += sorted(spare)[:1]
            self.bridge.kill()
            self.bridge.start()
            yield what, reply
        assert len(reached) >= count * 3 // 4, f"{name}: {reached} of {calls}"


@pytest.fixture(scope="module")
def killed(farm):
    made = Killed(farm.new("qemu", kind=FaultyBridge))
    yield made
    if made.bridge.is_dead():
        made.bridge.start()
    made.bridge.stop()


def test_a_create_that_was_cut_off_is_made_by_its_repetition_and_only_once(killed):
    body = {"template": "base", "ttl_seconds": 600}
    create = lambda n: killed.ask("POST", "/v1/sandboxes", body, {"Idempotency-Key": f"k{n}"})
    for n, reply in killed.each_point("create", 12, create):
        there = killed.sandboxes()
        assert len(there) == 1 if reply else len(there) <= 1
        again = create(n)
        assert again.status == 201, again.body
        assert reply is None or again.json["id"] == reply.json["id"]
        box = Sandbox(killed.client, again.json)
        killed.check([box])
        assert box.delete().status == 204
        killed.check()


def test_a_delete_that_was_cut_off_is_finished_by_the_next_bridge(killed):
    delete = lambda box: killed.ask("DELETE", box.path)
    make = lambda n: killed.client.create(ttl_seconds=600)
    for box, reply in killed.each_point("delete", 12, delete, make):
        gone = killed.client.get(box.path).status
        assert gone == 410 if reply else gone in (200, 410)
        assert delete(box).status == 204
        assert killed.client.get(box.path).status == 410
        killed.check()


def test_a_sleeping_sandbox_whose_delete_was_cut_off_leaves_no_file(killed):
    def make(n):
        box = killed.client.create(ttl_seconds=600)
        assert killed.client.post(box.path + "/hibernate", timeout=60).status == 200
        return box
    delete = lambda box: killed.ask("DELETE", box.path)
    for box, reply in killed.each_point("delete hibernated", 4, delete, make):
        assert delete(box).status == 204
        killed.check()


def test_a_snapshot_that_was_cut_off_is_whole_or_not_there(killed):
    box = killed.client.create(ttl_seconds=600)
    box.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done", exec_id="counter",
              timeout_seconds=None)
    save = lambda n: killed.ask("POST", box.path + "/snapshots", {})
    for n, reply in killed.each_point("snapshot", 12, save):
        there = [s["id"] for s in killed.snapshots()]
        assert there == [reply.json["id"]] if reply else len(there) <= 1
        killed.check([box], there)
        assert box.state("counter")["state"] == "running"
        for snap in there:
            clone = killed.client.post("/v1/sandboxes", {"from_snapshot": snap}, timeout=60)
            assert clone.status == 201, clone.body
            assert Sandbox(killed.client, clone.json).out("echo ok") == "ok\n"
            assert Sandbox(killed.client, clone.json).delete().status == 204
            assert killed.client.delete(f"/v1/snapshots/{snap}").status == 204
    box.delete()
    killed.check()


def test_a_fork_that_was_cut_off_has_all_its_children_or_none(killed):
    box = killed.client.create(ttl_seconds=600)
    fork = lambda n: killed.ask("POST", box.path + "/fork", {"count": 2})
    for n, reply in killed.each_point("fork", 16, fork):
        children = [s for s in killed.sandboxes() if s.id != box.id]
        told = [c["id"] for c in reply.json["items"]] if reply else []
        assert len(children) == 2 if reply else len(children) in (0, 2)
        assert not reply or {c.id for c in children} == set(told)
        killed.check([box, *children])
        for child in children:
            assert child.delete().status == 204
    box.delete()
    killed.check()


def test_an_exec_that_was_cut_off_ran_once_and_its_result_can_be_asked_for(killed):
    box = killed.client.create(ttl_seconds=600)
    request = lambda n: {"cmd": f"echo {n} >> /tmp/ran; for i in 1 2 3; do echo {n}; sleep 0.05; "
                         "done", "exec_id": f"e{n}", "on_disconnect": "detach"}
    begin = lambda n: killed.ask("POST", box.path + "/exec/stream", request(n))
    ran = []
    for n, reply in killed.each_point("exec", 6, begin):
        known = killed.client.get(f"{box.path}/execs/e{n}?wait_seconds=10", timeout=30)
        assert known.status == 200 if reply else known.status in (200, 404)
        again = killed.client.post(box.path + "/exec", request(n), timeout=60)
        assert (again.status, again.json["stdout"]) == (200, f"{n}\n" * 3), again.body
        if known.status == 200:
            assert killed.client.get(f"{box.path}/execs/e{n}/output?stream=stdout").body.decode() == \
                again.json["stdout"]
        ran.append(str(n))
    assert box.out("cat /tmp/ran").split() == ran
    box.delete()


def test_an_exec_that_was_cut_off_at_some_moment_ran_once(killed):
    """The same by time, for what happens in the guest meanwhile."""
    box = killed.client.create(ttl_seconds=600)
    for i, delay in enumerate(DELAYS):
        request = {"cmd": f"echo {i} >> /tmp/ran; echo {i}", "exec_id": f"e{i}"}
        connection = killed.client.send("POST", box.path + "/exec", request)
        time.sleep(delay)  # the moment of the fault, not a wait for anything
        killed.bridge.kill()
        connection.close()
        killed.bridge.start()
        reply = killed.client.post(box.path + "/exec", request, timeout=60)
        assert (reply.status, reply.json["stdout"]) == (200, f"{i}\n"), (delay, reply.body)
    assert box.out("cat /tmp/ran").split() == [str(i) for i in range(len(DELAYS))]
    box.delete()


def with_disk(disk_mib=64):
    return {"template": "base", "ttl_seconds": 600, "resources": {"disk_mib": disk_mib}}


def test_a_create_with_a_disk_that_was_cut_off_leaves_none(killed):
    """Each of another size, and so booted: the disk is made anew."""
    create = lambda n: killed.ask("POST", "/v1/sandboxes", with_disk(64 + n))
    for n, reply in killed.each_point("create with disk", 6, create):
        for box in killed.sandboxes():
            assert box.out("df -m / | grep -c overlay") == "1\n"
            assert box.delete().status == 204
        killed.check()


def test_a_disk_is_whole_wherever_a_sleep_was_cut_off(killed):
    box = Sandbox(killed.client, killed.client.post("/v1/sandboxes", with_disk()).json)
    digest = box.out("dd if=/dev/urandom of=/data bs=1M count=20 2>/dev/null; sha256sum /data")
    read = "sync; echo 3 > /proc/sys/vm/drop_caches; sha256sum /data"
    hibernate = lambda n: killed.ask("POST", box.path + "/hibernate")
    for n, reply in killed.each_point("hibernate with disk", 6, hibernate):
        assert box.status() == "hibernated" if reply else box.status() in ("hibernated", "running")
        assert box.out(read) == digest
        digest = box.out(f"echo {n} >> /data; {read}")
        killed.check([box])
    box.delete()
    killed.check()
