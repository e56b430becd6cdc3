"""fork-tree in real guests: eight at once, all or none, each of them one of its own with all that
its parent's processes knew."""
import concurrent.futures
import os
import pathlib
import time

import pytest

from client import Sandbox, until

COUNT = 8
# A value that is in the memory of a running shell alone, and told to who asks through a pipe.
KEEPER = """v=$(cat /proc/sys/kernel/random/uuid); mkfifo /tmp/ask; echo ready
while :; do read name < /tmp/ask && echo $v > /tmp/answer.$name; done"""
ASK = "echo {0} > /tmp/ask; until [ -s /tmp/answer.{0} ]; do sleep 0.02; done; cat /tmp/answer.{0}"


@pytest.fixture(scope="module")
def qemu(farm):
    return farm.bridge("qemu")


@pytest.fixture
def parent(qemu):
    made = qemu.client.create(ttl_seconds=600, resources={"memory_mib": 128})
    yield made
    made.delete()


def traces(bridge, ids):
    """What of these sandboxes is on disk and in memory, and which processes work there."""
    ulids = {i[-26:] for i in ids}
    found = [p for p in pathlib.Path("/dev/shm").glob("sandgate-*/*")]
    found += bridge.state.glob("*/*")
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            found.append(pathlib.Path(os.readlink(proc / "cwd")))
        except OSError:
            pass
    return [p for p in found if p.name[-26:] in ulids]


def created_total(bridge):
    [line] = [l for l in bridge.client.get("/metrics").body.decode().splitlines()
              if l.startswith('sandgate_sandboxes_created_total{result="ready"}')]
    return int(line.split()[1])


def in_each(boxes, cmd, **fields):
    with concurrent.futures.ThreadPoolExecutor(len(boxes)) as pool:
        return list(pool.map(lambda b: b.out(cmd, **fields), boxes))


def test_a_tree_of_eight_has_the_parents_memory_and_names_of_its_own(qemu, parent):
    parent.start(KEEPER, exec_id="keeper", timeout_seconds=None)
    until(lambda: parent.run("test -p /tmp/ask")["exit_code"] == 0, 10, "the keeper")
    value = parent.out(ASK.format("parent"))
    created = created_total(qemu)
    reply = parent.client.post(parent.path + "/fork-tree", {"count": COUNT}, timeout=120)
    assert created_total(qemu) == created + COUNT
    assert reply.status == 201, reply.body
    children = [Sandbox(parent.client, item) for item in reply.json["items"]]
    try:
        assert len({c.id for c in children}) == COUNT
        before = time.time()
        said = [s.split() for s in in_each(
            [parent, *children],
            "hostname; cat /proc/sys/kernel/random/uuid /etc/machine-id "
            "/proc/sys/kernel/random/boot_id; date +%s")]
        after = time.time()
        for i, what in enumerate(("hostnames", "random numbers", "machine ids", "boot ids")):
            assert len({s[i] for s in said}) == COUNT + 1, f"{what}: {said}"
        assert all(before - 2 <= int(s[4]) <= after + 2 for s in said), (before, said)
        assert set(in_each(children, ASK.format("child"), timeout_seconds=20)) == {value}
        assert parent.out(ASK.format("again")) == value
        assert all(c.state("keeper")["state"] == "running" for c in [parent, *children])
        children[0].out("echo changed > /tmp/mine")
        assert "1" == parent.out("test -e /tmp/mine || echo 1").strip()
        assert "1" == children[1].out("test -e /tmp/mine || echo 1").strip()
    finally:
        with concurrent.futures.ThreadPoolExecutor(COUNT) as pool:
            codes = list(pool.map(lambda c: c.delete().status, children))
    assert codes == [204] * COUNT
    assert traces(qemu, [c.id for c in children]) == []
    assert not list(qemu.state.glob("snapshots/*"))
    assert parent.out("echo ok") == "ok\n"


def test_a_tree_of_which_one_cannot_start_has_none(qemu, parent):
    """Its VMM is killed while it is restored."""
    known = {s["id"] for s in qemu.client.get("/v1/sandboxes").json["items"]}
    new = lambda: [Sandbox(qemu.client, s) for s in qemu.client.get("/v1/sandboxes").json["items"]
                   if s["id"] not in known]
    connection = parent.client.send("POST", parent.path + "/fork-tree", {"count": COUNT},
                                    timeout=120)
    children = until(new, 20, "the first child")
    until(lambda: qemu.guests(children[0]), 10, "its VMM")
    qemu.kill_guests(children[0])
    with connection:
        reply = connection.reply()
    assert reply.status == 502 and reply.code in ("launcher.failed", "sandbox.lost"), reply.body
    until(lambda: not new(), 5, "all children going")
    until(lambda: not traces(qemu, [c.id for c in children]), 5, "what they took going")
    assert parent.out("echo ok") == "ok\n"


def test_a_clone_that_would_be_its_parents_twin_is_not_handed_out(qemu, parent):
    parent.out("rm -f /etc/machine-id; mkdir -p /etc/machine-id/not-a-file")
    snap = parent.client.post(parent.path + "/snapshots", timeout=60).json["id"]
    known = {s["id"] for s in qemu.client.get("/v1/sandboxes").json["items"]}
    for reply in (parent.client.post("/v1/sandboxes", {"from_snapshot": snap}, timeout=60),
                  parent.client.post(parent.path + "/fork", {"count": 2}, timeout=60)):
        assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
        assert "machine_id" in reply.error["message"]
    ids = lambda: {s["id"] for s in qemu.client.get("/v1/sandboxes").json["items"]}
    until(lambda: ids() == known, 5, "what was begun going")
    assert parent.client.delete(f"/v1/snapshots/{snap}").status == 204
    assert parent.out("echo ok") == "ok\n"


def test_children_that_are_ready_are_kept_until_the_last_one_is(parent):
    """However short their idle time is."""
    patched = parent.client.request("PATCH", parent.path, {"ttl_seconds": 0.2})
    assert patched.status == 200, patched.body
    with parent.send("sleep 60"):
        reply = parent.client.post(parent.path + "/fork-tree", {"count": COUNT}, timeout=120)
    assert reply.status == 201, reply.body
    assert [c["status"] for c in reply.json["items"]] == ["running"] * COUNT


# ---- what can be known is refused before the parent stands still ----

def test_a_fork_that_nothing_here_could_restore_leaves_its_parent_alone(farm):
    """Its bridge was started again with another launcher."""
    bridge = farm.new("qemu").start()
    try:
        parent = bridge.client.create(ttl_seconds=600, resources={"memory_mib": 128})
        bridge.kill()
        bridge.launcher = "local"
        bridge.start()
        until(lambda: parent.status() == "running", 20, "the sandbox's adoption")
        refused, events = parent.events_during(
            lambda: bridge.client.post(parent.path + "/fork", timeout=60))
        assert (refused.status, refused.code) == (409, "sandbox.invalid_state"), refused.body
        assert events == []
        snap = bridge.client.post(parent.path + "/snapshots", timeout=60).json["id"]
        again = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap})
        assert (again.status, again.code) == (refused.status, refused.code)
        assert bridge.client.delete(f"/v1/snapshots/{snap}").status == 204
    finally:
        bridge.stop()


def test_a_fork_whose_children_this_host_has_no_memory_for_leaves_its_parent_alone(qemu):
    host_kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    count = 16
    parent = qemu.client.create(resources={"memory_mib": host_kib // 1024 // count})
    refused, events = parent.events_during(
        lambda: qemu.client.post(parent.path + "/fork", {"count": count}, timeout=60))
    assert (refused.status, refused.code) == (503, "capacity.unavailable"), refused.body
    assert events == []
    parent.delete()
