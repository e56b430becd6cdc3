"""Snapshots in real guests: what runs goes on, what starts from one is one of its own."""
import hashlib
import os
import signal
import time

import pytest

from client import Collected, Sandbox, first_output, in_thread, until

COUNT = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; sleep 1; echo end"


@pytest.fixture(scope="module")
def qemu(farm):
    return farm.bridge("qemu")


@pytest.fixture
def box(qemu):
    made = qemu.client.create(ttl_seconds=600)
    yield made
    made.delete()


def snapshot(box, **body):
    reply = box.client.post(box.path + "/snapshots", body, timeout=60)
    assert reply.status == 201, reply.body
    return reply.json


def forget(client, snap):
    assert client.delete(f"/v1/snapshots/{snap['id']}").status == 204


def restore(client, snap, **body):
    reply = client.post("/v1/sandboxes", {"from_snapshot": snap["id"], "ttl_seconds": 600, **body},
                        timeout=60)
    assert reply.status == 201, reply.body
    return Sandbox(client, reply.json)


def fork(box, **body):
    reply = box.client.post(box.path + "/fork", body, timeout=90)
    assert reply.status == 201, reply.body
    return [Sandbox(box.client, item) for item in reply.json["items"]]


def test_sandboxes_of_one_template_start_from_its_snapshot_and_are_each_their_own(qemu):
    first = qemu.client.create(ttl_seconds=600)
    made = [qemu.client.create(ttl_seconds=600) for _ in range(3)]
    try:
        assert {b.info["boot_mode"] for b in made} == {"restore"}
        before = time.time()
        said = [b.out("hostname; cat /proc/sys/kernel/random/uuid; cat /etc/machine-id; date +%s")
                .split() for b in made]
        after = time.time()
        for i, what in enumerate(["hostnames", "random numbers", "machine ids"]):
            assert len({s[i] for s in said}) == 3, f"{what}: {said}"
        assert all(before - 2 <= int(s[3]) <= after + 2 for s in said), (said, before, after)
    finally:
        for b in [first, *made]:
            b.delete()


def test_a_buffered_exec_goes_on_across_a_snapshot_and_loses_nothing(box):
    wait = in_thread(lambda: box.run(COUNT, exec_id="across"))
    until(lambda: box.is_running("across"), 10)
    forget(box.client, snapshot(box))
    result = wait()
    assert (result["outcome"], result["exit_code"]) == ("exited", 0)
    want = "".join(f"line {i}\n" for i in range(1, 3001)) + "end\n"
    assert result["stdout"] == want
    assert result["duration_ms"] < 60000


def test_input_that_is_under_way_arrives_as_a_whole_across_two_snapshots(box):
    """More than its process takes at once, and than a request's frame holds."""
    text = "".join(f"{i}\n" for i in range(400_000))
    call = box.send("until [ -e /tmp/go ]; do sleep 0.05; done; md5sum", exec_id="fed", stdin=text)
    until(lambda: box.is_running("fed"), 10, "its start")
    for _ in range(2):
        assert box.client.post(box.path + "/snapshots", timeout=60).status == 201
    box.out("touch /tmp/go")
    assert call.reply().json["stdout"].split()[0] == hashlib.md5(text.encode()).hexdigest()


def test_a_stream_goes_on_across_two_snapshots_with_each_byte_once(box):
    stream = box.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done")
    seen, rest = first_output(stream)
    for _ in range(2):
        forget(box.client, snapshot(box))
    all = Collected(seen + list(rest))
    assert (all.stdout, all.gaps) == ("1\n2\n3\n4\n5\n6\n", [])
    assert all.result["exit_code"] == 0


def test_what_runs_in_the_source_is_cancelled_in_the_clone_unless_it_is_detached(box):
    detached = box.start("v=$$; sleep 300; echo $v", timeout_seconds=None)["exec_id"]
    wait = in_thread(lambda: box.run("sleep 3; echo x", exec_id="foreground"))
    until(lambda: box.is_running("foreground"), 10)
    snap = snapshot(box)
    clone = restore(box.client, snap)
    try:
        assert clone.out("echo ok", timeout_seconds=5) == "ok\n"
        states = {e["exec_id"]: e for e in clone.client.get(clone.path + "/execs").json["items"]}
        assert states[detached]["state"] == "running"
        assert "foreground" not in states or states["foreground"]["state"] == "finished"
        assert clone.sleepers() == 1
        result = wait()
        assert (result["outcome"], result["stdout"]) == ("exited", "x\n")
    finally:
        clone.delete()
        forget(box.client, snap)


def test_the_first_exec_after_a_restore_works_at_once_and_runs_once(box):
    box.out("echo start > /tmp/log")
    snap = snapshot(box)
    try:
        for _ in range(3):
            clone = restore(box.client, snap)
            assert clone.out("echo run >> /tmp/log; cat /tmp/log", timeout_seconds=5) == \
                "start\nrun\n"
            clone.delete()
    finally:
        forget(box.client, snap)


def test_forks_have_the_parents_memory_and_names_of_their_own(box):
    box.out("echo $RANDOM$RANDOM > /dev/shm/value")
    value = box.out("cat /dev/shm/value")
    saved = box.client.get("/v1/snapshots").json["items"]
    children = fork(box, count=3, metadata={"child": "yes"})
    try:
        assert {c.out("cat /dev/shm/value") for c in children} == {value}
        assert len({c.out("hostname") for c in children} | {box.out("hostname")}) == 4
        assert len({c.out("cat /proc/sys/kernel/random/uuid") for c in children}) == 3
        assert all(c.info["metadata"] == {"child": "yes"} for c in children)
        children[0].out("echo changed > /dev/shm/value")
        assert box.out("cat /dev/shm/value") == value == children[1].out("cat /dev/shm/value")
        assert box.client.get("/v1/snapshots").json["items"] == saved
    finally:
        for c in children:
            c.delete()


def test_a_snapshot_is_listed_counts_its_children_and_outlives_its_sandbox(qemu, box):
    other = qemu.client.create(ttl_seconds=600)
    snap = snapshot(other, metadata={"name": "base"})
    assert other.delete().status == 204
    clone = restore(qemu.client, snap)
    try:
        shown = qemu.client.get(f"/v1/snapshots/{snap['id']}").json
        assert shown["children"] == 1 and shown["metadata"] == {"name": "base"}
        assert shown["bytes"] > 1 << 20
        listed = qemu.client.get(f"/v1/snapshots?sandbox_id={other.id}").json["items"]
        assert [s["id"] for s in listed] == [snap["id"]]
        assert qemu.client.get(f"/v1/snapshots?sandbox_id={box.id}").json["items"] == []
        assert clone.out("echo ok") == "ok\n"
    finally:
        clone.delete()
        forget(qemu.client, snap)
    assert qemu.client.get(f"/v1/snapshots/{snap['id']}").code == "snapshot.not_found"


def test_snapshots_that_end_in_another_order_than_they_began_are_all_listed(qemu, box):
    other = qemu.client.create(ttl_seconds=600)
    with box.client.send("POST", box.path + "/snapshots", timeout=60) as slow:
        until(lambda: list(qemu.state.glob("snapshots/*.part/state")), 10, "its being saved")
        vmm = qemu.machine(box)
        os.kill(vmm, signal.SIGSTOP)
        later = snapshot(other)
        os.kill(vmm, signal.SIGCONT)
        first = slow.reply().json
    seen, token = [], ""
    while token is not None:  # others' are on this bridge as well
        page = qemu.client.get(f"/v1/snapshots?limit=1{token and '&page_token=' + token}").json
        seen += [s["id"] for s in page["items"]]
        token = page["next_page"]
    assert [i for i in seen if i in (first["id"], later["id"])] == [first["id"], later["id"]]
    for snap in (first, later):
        forget(qemu.client, snap)
    other.delete()


def test_what_cannot_be_is_refused_with_its_code(qemu, box, local_bridge):
    client = qemu.client
    missing = client.post("/v1/sandboxes", {"from_snapshot": "snap-none"})
    assert (missing.status, missing.code) == (404, "snapshot.not_found")
    both = client.post("/v1/sandboxes", {"from_snapshot": "x", "attach": {"transport": "unix"}})
    assert (both.status, both.error["details"]["field"]) == (400, "attach")
    assert client.post(box.path + "/fork", {"count": 0}).error["details"]["field"] == "count"
    assert client.post(box.path + "/snapshots", {"metadata": {"a:b": "c"}}).status == 400
    assert client.post(box.path + "/snapshots", {"count": 2}).error["details"]["field"] == "count"
    for action in ("pause", "hibernate", "wake"):
        reply = client.post(f"{box.path}/{action}", {"bogus": 1})
        assert (reply.status, reply.error["details"]["field"]) == (400, "bogus"), action
    snap = snapshot(box)
    sized = client.post("/v1/sandboxes", {"from_snapshot": snap["id"],
                                          "resources": {"memory_mib": 512}})
    assert (sized.status, sized.error["details"]["field"]) == (400, "resources")
    other = client.post("/v1/sandboxes", {"from_snapshot": snap["id"], "template": "postgres"})
    assert (other.status, other.error["details"]["field"]) == (400, "template")
    forget(client, snap)
    plain = local_bridge.client.create(ttl_seconds=60)
    for action in ("snapshots", "fork", "pause"):
        reply = plain.client.post(f"{plain.path}/{action}")
        assert (reply.status, reply.code) == (422, "limit.unsupported"), action
    plain.delete()


def test_a_paused_sandbox_stands_still_and_goes_on(qemu, box):
    """For longer than its execs may take, than an agent has for an answer, and than a call waits
    for either: all of these stand still, too, also for calls that were only just made."""
    busy = qemu.client.create(ttl_seconds=600)
    stream = box.stream("for i in 1 2 3 4; do cat /proc/uptime; sleep 0.3; done",
                        timeout_seconds=3, grace_seconds=0)
    seen, rest = first_output(stream)
    reply = box.client.post(box.path + "/pause")
    assert (reply.status, reply.json["status"]) == (200, "paused")
    begun = [busy.send(f"echo {i}") for i in range(100)]
    asked = [busy.client.send("GET", busy.path + "/execs") for _ in range(4)]
    assert busy.client.post(busy.path + "/pause").status == 200
    refused = box.exec("true")
    assert (refused.status, refused.code) == (409, "sandbox.invalid_state")
    assert box.client.post(box.path + "/pause").status == 409
    time.sleep(23)
    for each in (box, busy):
        reply = each.client.post(each.path + "/resume")
        assert (reply.status, reply.json["status"]) == (200, "running")
    all = Collected(seen + list(rest))
    assert (all.result["outcome"], all.stdout.count("\n")) == ("exited", 4)
    for i, connection in enumerate(begun):
        with connection:
            assert connection.reply().json["stdout"] == f"{i}\n"
    for connection in asked:
        with connection:
            assert connection.reply().status == 200
    assert box.out("echo ok") == busy.out("echo ok") == "ok\n"
    busy.delete()


def test_a_sandbox_deleted_while_it_is_saved_is_gone_and_leaves_nothing(qemu):
    others = set(qemu.state.glob("snapshots/*"))
    box = qemu.client.create(ttl_seconds=600)
    wait = in_thread(lambda: box.client.post(box.path + "/snapshots", timeout=60))
    assert box.delete().status == 204
    reply = wait()
    assert reply.status in (201, 404, 410), reply.body
    if reply.status == 201:
        forget(qemu.client, reply.json)
    assert set(qemu.state.glob("snapshots/*")) <= others


def test_a_restarted_bridge_knows_its_snapshots_and_its_paused_sandboxes(farm):
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        box.out("echo kept > /tmp/kept")
        snap = snapshot(box)
        assert box.client.post(box.path + "/pause").status == 200
        bridge.process.kill()
        bridge.process.wait()
        bridge.start()
        box = Sandbox(bridge.client, {"id": box.id})
        assert box.status() == "paused"
        assert box.client.post(box.path + "/resume").status == 200
        assert box.out("cat /tmp/kept") == "kept\n"
        assert restore(bridge.client, snap).out("cat /tmp/kept") == "kept\n"
    finally:
        for item in bridge.client.get("/v1/sandboxes").json["items"]:
            bridge.client.delete(f"/v1/sandboxes/{item['id']}", timeout=60)
        bridge.stop()


@pytest.mark.parametrize("action", ["snapshots", "pause", "hibernate"])
def test_a_bridge_killed_while_it_saves_loses_nothing_that_runs(farm, action):
    """At moments spread over the whole of it: the next bridge lets the guest go on."""
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        box.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done", exec_id="counter",
                  timeout_seconds=None)
        for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.16, 0.25, 0.4):
            connection = box.client.send("POST", f"{box.path}/{action}", {})
            time.sleep(delay)  # the moment of the fault, not a wait for anything
            bridge.process.kill()
            bridge.process.wait()
            connection.close()
            bridge.start()
            box = Sandbox(bridge.client, {"id": box.id})
            if box.status() == "paused":
                assert box.client.post(box.path + "/resume").status == 200
            assert box.out("echo ok", timeout=60) == "ok\n", delay
            assert box.state("counter")["state"] == "running"
            for snap in bridge.client.get("/v1/snapshots").json["items"]:
                clone = restore(bridge.client, snap)
                assert clone.out("echo ok") == "ok\n"
                clone.delete()
                forget(bridge.client, snap)
            until(lambda: not list(bridge.state.glob("snapshots/*")), 10)
    finally:
        for item in bridge.client.get("/v1/sandboxes").json["items"]:
            bridge.client.delete(f"/v1/sandboxes/{item['id']}", timeout=60)
        bridge.stop()


@pytest.mark.parametrize("file", ["state", "memory"])
def test_a_broken_snapshot_is_told_and_a_templates_broken_one_is_made_anew(farm, file):
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        snap = snapshot(box)
        [baked] = bridge.state.glob("baked/*")
        for directory in (baked, bridge.state / "snapshots" / snap["id"]):
            (directory / file).write_bytes(b"no state of a machine")
        reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=30)
        assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
        reply = bridge.client.post("/v1/sandboxes", {"template": "base"}, timeout=30)
        assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
        assert bridge.client.create(ttl_seconds=600).info["boot_mode"] == "boot"
        assert bridge.client.create(ttl_seconds=600).info["boot_mode"] == "restore"
        assert box.out("echo ok") == "ok\n"
    finally:
        for item in bridge.client.get("/v1/sandboxes").json["items"]:
            bridge.client.delete(f"/v1/sandboxes/{item['id']}", timeout=60)
        bridge.stop()
