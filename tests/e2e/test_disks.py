"""Disks of sandboxes' own, in real guests: over the initramfs, and over an image."""
import json
import shutil
import socket
import time

import pytest

from client import Sandbox, until
from disk_images import (DROP, MIB, act, bridge_with_image, restore, seconds, size_mib, snapshot)


@pytest.fixture(scope="module")
def bridge(farm, tmp_path_factory):
    made = bridge_with_image(farm, tmp_path_factory.mktemp("rootfs"))
    yield made
    made.stop()


@pytest.fixture(params=["base", "image"])
def box(bridge, request):
    made = bridge.client.create(template=request.param, ttl_seconds=600,
                                resources={"disk_mib": 256})
    yield made
    made.delete()


READ = "md5sum </written"


def write(box, mib):
    """So much that nobody else has. What READ says of it."""
    return box.out("dd if=/dev/urandom of=/tmp/seed bs=1M count=1 2>/dev/null; rm -f /written;"
                   f"for i in $(seq {mib}); do echo $i; cat /tmp/seed; done >> /written; {READ}")


def test_what_is_written_to_the_root_goes_to_the_disk(bridge, box):
    assert box.info["resources"]["disk_mib"] == 256
    assert 240 <= size_mib(box) <= 256
    ram = box.out("grep MemAvailable /proc/meminfo").split()[1]
    digest = write(box, 50)
    box.out(DROP)
    assert int(box.out("grep MemAvailable /proc/meminfo").split()[1]) > int(ram) - 20480
    assert box.out(READ) == digest
    disk = (bridge.directory_of(box) / "disk").stat()
    assert disk.st_size == 256 * MIB
    assert 50 * MIB < disk.st_blocks * 512 < 80 * MIB
    assert disk.st_mode & 0o777 == 0o600


def test_a_full_disk_is_the_commands_own_trouble(box):
    result = box.run("dd if=/dev/zero of=/full bs=1M count=300")
    assert result["exit_code"] == 1 and "No space left on device" in result["stderr"]
    assert box.out("rm /full; echo ok > /new; cat /new") == "ok\n"


def test_a_disk_survives_sleep(bridge, box):
    for mib in (50, 5):
        digest = write(box, mib)
        disk = (bridge.directory_of(box) / "disk").stat()
        act(box, "hibernate")
        assert not bridge.directory_of(box).exists()
        [kept] = bridge.state.glob(f"hibernated/{box.id}/disk")
        assert kept.stat().st_ino == disk.st_ino  # it was not copied
        act(box, "wake")
        box.out(DROP)
        assert box.out(READ) == digest
    assert not list(bridge.state.glob(f"hibernated/{box.id}"))


@pytest.mark.parametrize("box", ["image"], indirect=True)
def test_forks_have_copies_and_write_apart(bridge, box):
    digest = write(box, 10)
    [child] = [Sandbox(box.client, item) for item in act(box, "fork")["items"]]
    try:
        assert child.info["resources"]["disk_mib"] == 256
        child.out(DROP)
        assert child.out(READ) == digest
        other = write(child, 10)
        box.out("echo parent > /parent")
        for each in (box, child):
            each.out(DROP)
        assert box.out(READ) == digest != other
        assert child.out(f"{READ}; ls /parent 2>/dev/null || echo none") == other + "none\n"
    finally:
        child.delete()
    assert not bridge.directory_of(child).exists()


@pytest.mark.parametrize("box", ["image"], indirect=True)
def test_a_snapshot_holds_the_disk_of_its_moment(bridge, box):
    digest = write(box, 10)
    snap = snapshot(box)
    changed = box.out("dd if=/dev/urandom of=/written bs=1M count=10 conv=notrunc 2>/dev/null;"
                      f"sync; {READ}")
    assert snap["resources"]["disk_mib"] == 256 and snap["bytes"] > 10 * MIB
    clones = [restore(bridge.client, snap) for _ in range(2)]
    try:
        for clone in clones:
            clone.out(DROP)
            assert clone.out(f"{READ}; rm /written") == digest
        reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"],
                                                     "resources": {"disk_mib": 512}})
        assert (reply.status, reply.error["details"]["field"]) == (400, "resources")
    finally:
        for clone in clones:
            clone.delete()
        bridge.client.delete(f"/v1/snapshots/{snap['id']}")
    assert box.out(READ) == changed
    assert not list(bridge.state.glob("snapshots/*"))


def test_a_commands_reads_and_writes_can_be_bounded(box):
    fill = "dd if=/dev/zero of={} bs=1M count=8 conv=fsync 2>/dev/null"
    read = "dd if=/some of=/dev/null bs=1M 2>/dev/null"
    free = seconds(box, fill.format("/some"))
    assert seconds(box, fill.format("/other"), io_write_bps=2 * MIB) > max(3, free)
    box.out(DROP)
    free = seconds(box, read)
    box.out(DROP)
    assert seconds(box, read, io_read_bps=2 * MIB) > max(3, free)
    box.out(DROP)
    assert seconds(box, read, io_write_bps=2 * MIB) < 3


@pytest.mark.parametrize("template", ["base", "image"])
@pytest.mark.parametrize("limit", ["io_read_bps", "io_write_bps"])
def test_without_a_disk_there_is_nothing_to_bound(bridge, template, limit):
    box = bridge.client.create(template=template, ttl_seconds=600)
    reply = box.exec("true", limits={limit: MIB})
    assert (reply.status, reply.code) == (422, "limit.unsupported")
    assert reply.error["details"]["field"] == f"limits.{limit}"
    box.delete()


@pytest.mark.parametrize("disk_mib", [15, (1 << 20) + 1, "64", 64.5])
def test_sizes_that_cannot_be_are_refused(bridge, disk_mib):
    reply = bridge.client.post("/v1/sandboxes", {"resources": {"disk_mib": disk_mib}})
    assert (reply.status, reply.code) == (400, "request.invalid_field")
    assert reply.error["details"]["field"] == "resources.disk_mib"


@pytest.mark.parametrize("other", ["local", "uml"])
def test_launchers_without_disks_refuse_one(farm, other):
    reply = farm.bridge(other).client.post("/v1/sandboxes", {
        "template": "base", "resources": {"disk_mib": 64}})
    assert (reply.status, reply.code) == (422, "limit.unsupported")
    assert reply.error["details"]["field"] == "resources.disk_mib"


def test_a_restarted_bridge_takes_disks_up_and_lets_go_of_images(bridge):
    box = bridge.client.create(template="image", ttl_seconds=600, resources={"disk_mib": 64})
    digest = box.out("echo kept > /kept; sync; sha256sum /data/big /kept")
    bridge.kill()
    bridge.start()
    box = Sandbox(bridge.client, {"id": box.id})
    [child] = [Sandbox(box.client, item) for item in act(box, "fork")["items"]]
    for b in (box, child):
        b.out(DROP)
        assert b.out("sha256sum /data/big /kept") == digest
        b.delete()
    assert not list(bridge.state.glob("vm/*"))
    bridge.kill()
    bridge.start()
    assert not list(bridge.state.glob("images/*"))


def test_a_create_that_a_killed_bridge_cut_off_leaves_no_disk(bridge):
    """At moments spread over the whole of it."""
    for delay in (0, 0.005, 0.01, 0.02, 0.05, 0.3):
        body = {"template": "image", "resources": {"disk_mib": 1024 + int(delay * 1000)}}
        connection = bridge.client.send("POST", "/v1/sandboxes", body)
        time.sleep(delay)  # the moment of the fault, not a wait for anything
        bridge.kill()
        connection.close()
        bridge.start()
        until(lambda: not list(bridge.state.glob("vm/*")), 10, "what was begun going")
        assert bridge.client.get("/v1/sandboxes").json["items"] == []


def shut_down(bridge, box):
    """Tell its agent to end the machine: a frame with Open {protocol_version: 1, shutdown: {
    grace_ms: 5000}}."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(bridge.directory_of(box) / "vsock.sock"))
        s.sendall(b"CONNECT 523\n")
        assert s.recv(1) == b"O"
        while s.recv(1) != b"\n":
            pass
        s.sendall(bytes([0, 0, 0, 10, 0x0a, 8, 8, 1, 0x92, 1, 3, 8, 0x88, 0x27]))
        assert s.recv(4)


def test_an_orderly_end_lets_commands_end_and_writes_the_disk_out(bridge):
    box = bridge.client.create(template="image", ttl_seconds=600, resources={"disk_mib": 64})
    box.start("trap 'echo told-to-end > /ended; exit' TERM; echo > /ready; while :; do sleep 0.1;"
              "done", timeout_seconds=None)
    until(lambda: box.run("stat /ready")["exit_code"] == 0, 10)
    with open(bridge.directory_of(box) / "disk", "rb") as disk:  # outlives its directory
        box.out("echo not-yet-written > /file")
        shut_down(bridge, box)
        until(lambda: box.status() == "failed", 20, "the machine's end")
        written = disk.read()
    assert [w in written for w in (b"not-yet-written", b"told-to-end")] == [True, True]
    box.delete()


def test_templates_tell_their_disks(bridge):
    home = bridge.image.parent.parent / "sized"
    home.mkdir()
    document = json.loads((bridge.image.parent / "template.json").read_text())
    (home / "template.json").write_text(json.dumps(
        {**document, "name": "sized", "root": str(bridge.image), "resources": {"disk_mib": 64}}))
    try:
        found = {t["name"]: t for t in bridge.client.get("/v1/templates").json["items"]}
        assert {n: t["resources"]["disk_mib"] for n, t in found.items()} == \
            {"base": None, "image": None, "sized": 64}
        assert found["sized"]["vmms"] == ["qemu"]
        box = bridge.client.create(template="sized", ttl_seconds=600)
        assert box.info["resources"]["disk_mib"] == 64 and 50 < size_mib(box) <= 64
        box.delete()
    finally:
        shutil.rmtree(home)
