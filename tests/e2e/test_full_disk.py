"""Full disks: what cannot be written is told as storage.full, nothing half-made stays, and what
runs goes on. The bridge's state, and the memory of its guests, are on small file systems."""
import contextlib
import os
import subprocess

import pytest

from client import Sandbox, until
from fault import FaultyBridge

MIB = 1 << 20
GUEST = {"resources": {"memory_mib": 128}, "ttl_seconds": 600}


def free_bytes(where):
    room = os.statvfs(where)
    return room.f_bavail * room.f_frsize


class SmallBridge(FaultyBridge):
    """Its state is on one file system of this size, what it takes for /dev/shm another."""
    sizes = {"state": "400m", "shm": "600m"}

    def __init__(self, directory, launcher, *flags):
        super().__init__(directory, launcher, *flags)
        self.shm = directory / "shm"
        self.shm.mkdir()
        for name, size in self.sizes.items():
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "small",
                            directory / name], check=True)

    def command(self):
        own = 'mount --bind "$0" /dev/shm && exec "$@"'
        return ["unshare", "-m", "sh", "-c", own, self.shm, *super().command()]

    def unmount(self):
        for name in self.sizes:
            subprocess.run(["umount", "-l", self.directory / name], check=True)

    def fill(self, where, leave=0):
        """Leave so many bytes of that file system, though guests write to it meanwhile."""
        self.free(where)
        with open(where / "ballast", "wb") as f:
            while (room := free_bytes(where) - leave) > 0:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(f.fileno(), f.tell(), room)
                f.seek(0, os.SEEK_END)

    def free(self, where):
        (where / "ballast").unlink(missing_ok=True)

    def files(self):
        """What it keeps for sandboxes, and for snapshots that are not baked."""
        found = [p for at in ("vm/*", "hibernated/*", "snapshots/*", "baked/*.part")
                 for p in self.state.glob(at)]
        found += [p for p in self.shm.glob("sandgate-*/*")]
        return sorted(str(p) for p in found if "kvm-trial" not in str(p))


def made(farm, kind, *flags):
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    return farm.new("qemu", *flags, kind=kind).start()


@pytest.fixture(scope="module")
def small(farm):
    bridge = made(farm, SmallBridge)
    yield bridge
    if bridge.is_dead():
        bridge.start()
    bridge.stop()
    bridge.unmount()


@pytest.fixture
def box(small):
    """One whose work goes on whatever fails."""
    own = small.client.create(**GUEST)
    own.start("i=0; while :; do i=$((i+1)); echo $i > /tmp/i; sleep 0.05; done",
              exec_id="counter", timeout_seconds=None)
    yield own
    small.registry_full_after(None)
    for where in (small.state, small.shm):
        small.free(where)
    own.delete()
    until(lambda: not small.files(), 10, "everything of it going")


def is_full(reply):
    assert (reply.status, reply.code) == (507, "storage.full"), reply.body
    assert reply.error["retryable"] is True


def goes_on(box):
    """It runs, knows what it knew, and its work proceeds."""
    assert box.status() == "running"
    before = int(box.out("cat /tmp/i") or 0)
    until(lambda: int(box.out("cat /tmp/i") or 0) > before, 10, "the counter's going on")
    assert box.state("counter")["state"] == "running"


def ids(bridge):
    return [s["id"] for s in bridge.client.get("/v1/sandboxes").json["items"]]


def ask(box, action, body=None):
    return box.client.post(f"{box.path}/{action}", body, timeout=60)


def test_a_create_without_room_for_its_memory_leaves_nothing(small, box):
    kept = small.files()
    for leave in (0, 32 * MIB):
        small.fill(small.shm, leave)
        is_full(small.client.post("/v1/sandboxes", {"template": "base", **GUEST}, timeout=60))
        assert ids(small) == [box.id]
        until(lambda: small.files() == kept, 2, "what was begun going")
    goes_on(box)
    small.free(small.shm)
    other = small.client.create(**GUEST)
    assert other.info["boot_mode"] == "restore"
    assert other.out("echo ok") == "ok\n"
    other.delete()


@pytest.mark.parametrize("leave", [0, 100 << 10, 8 * MIB])
@pytest.mark.parametrize("action", ["snapshots", "fork", "hibernate"])
def test_what_cannot_be_saved_is_told_and_the_sandbox_runs_on(small, box, action, leave):
    kept = small.files()
    small.fill(small.state, leave)
    is_full(ask(box, action))
    goes_on(box)
    assert ids(small) == [box.id]
    assert small.client.get("/v1/snapshots").json["items"] == []
    until(lambda: small.files() == kept, 2, "what was begun going")
    small.free(small.state)
    assert ask(box, action).status in (200, 201)
    for item in small.client.get("/v1/snapshots").json["items"]:
        assert small.client.delete(f"/v1/snapshots/{item['id']}").status == 204
    for other in set(ids(small)) - {box.id}:
        small.client.delete(f"/v1/sandboxes/{other}", timeout=60)
    assert box.out("echo ok") == "ok\n"


def test_an_exec_goes_on_over_a_snapshot_that_failed(small, box):
    stream = box.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done")
    stream.until("stdout", "1")
    small.fill(small.state, 8 * MIB)
    is_full(ask(box, "snapshots"))
    rest = stream.collect()
    assert ("1\n" + rest.stdout, rest.result["exit_code"]) == ("1\n2\n3\n4\n5\n6\n", 0)


def test_a_fork_without_room_for_its_childrens_memory_leaves_its_parent_alone(small, box):
    kept = small.files()
    small.fill(small.shm, 300 * MIB)  # for two of them, or one
    reply, events = box.events_during(lambda: ask(box, "fork", {"count": 4}))
    is_full(reply)
    assert events == []
    assert ids(small) == [box.id]
    until(lambda: small.files() == kept, 2, "what was begun going")
    goes_on(box)


def test_a_warm_vm_gives_its_memory_to_a_sandbox_that_needs_it(farm):
    bridge = made(farm, SmallBridge, "--warm-pool", "1")
    try:
        first = bridge.client.create(**GUEST)
        until(lambda: bridge.client.get("/v1/node").json["warm_vms"] == 1, 30, "a warm VM")
        [warm] = {p.name for p in bridge.state.glob("vm/*")} - {first.id[-26:], "kvm-trial"}
        guests = [p.stat() for p in bridge.shm.glob("sandgate-*/*")]
        promised = sum(s.st_size - s.st_blocks * 512 for s in guests)
        bridge.fill(bridge.shm, promised + 128 * MIB)
        other = bridge.client.create(resources={"memory_mib": 160}, ttl_seconds=600)
        assert not (bridge.state / "vm" / warm).exists()
        assert other.out("echo ok") == first.out("echo ok") == "ok\n"
    finally:
        bridge.free(bridge.shm)
        bridge.stop()
        bridge.unmount()


def test_one_that_cannot_wake_for_want_of_memory_sleeps_on(small, box):
    box.out("echo kept > /dev/shm/kept")
    assert ask(box, "hibernate").status == 200
    kept = small.files()
    small.fill(small.shm, 32 * MIB)
    is_full(ask(box, "wake"))
    is_full(box.exec("true"))
    assert (box.status(), small.files()) == ("hibernated", kept)
    small.free(small.shm)
    assert box.out("cat /dev/shm/kept") == "kept\n"
    goes_on(box)


# ---- the registry ----

def each_write(small, act, undo=lambda reply: None):
    """act(), with the registry's disk full from some write of it on: the first, the last, and
    some between. Yields the reply; undo() takes back one that was not disturbed."""
    small.die_at(0)
    reply = act()
    assert reply.status < 300, reply.body
    writes = small.calls().count("write")
    assert writes > 0
    undo(reply)
    for after in sorted({0, writes // 3, 2 * writes // 3, writes - 1}):
        small.registry_full_after(after)
        reply = act()
        small.registry_full_after(None)
        yield reply


def restart(small):
    small.kill()
    small.start()


def test_a_create_that_cannot_be_written_down_leaves_nothing(small, box):
    kept = small.files()
    create = lambda: small.client.post("/v1/sandboxes", {"template": "base", **GUEST}, timeout=60)
    delete = lambda reply: Sandbox(small.client, reply.json).delete()
    refused = 0
    for reply in each_write(small, create, delete):
        if reply.status == 201:  # fewer writes than the first time were enough
            delete(reply)
        else:
            is_full(reply)
            refused += 1
        until(lambda: small.files() == kept and ids(small) == [box.id], 10, "its end")
    assert refused >= 2
    restart(small)
    assert ids(small) == [box.id]
    goes_on(box)


def test_a_hibernation_that_cannot_be_written_down_leaves_it_running(small, box):
    """That the VM ends may go unwritten: the next bridge sees it."""
    hibernate = lambda: ask(box, "hibernate")
    for reply in each_write(small, hibernate, lambda _: ask(box, "wake")):
        if reply.status == 200:
            restart(small)
            assert box.status() == "hibernated"
            box.out("true")
        else:
            is_full(reply)
            until(lambda: not list(small.state.glob("hibernated/*")), 2, "half of it going")
        goes_on(box)
    restart(small)
    goes_on(box)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_bridge_starts_on_a_full_disk_and_serves_so_that_room_can_be_made(small, box, end):
    """One that ended in peace has left no file of the registry's that the next could write to."""
    snap = ask(box, "snapshots").json["id"]
    getattr(small, end)()
    small.process.wait(30)
    small.fill(small.state)
    small.start()
    goes_on(box)
    is_full(ask(box, "snapshots"))
    assert small.client.delete(f"/v1/snapshots/{snap}").status == 204
    assert small.client.request("PATCH", box.path, {"ttl_seconds": 601}).status == 200
    restart(small)
    assert small.client.get("/v1/snapshots").json["items"] == []
    assert small.client.get(box.path + "/lifecycle").json["ttl_seconds"] == 601
    goes_on(box)


@pytest.mark.parametrize("action", ["snapshots", "fork", "pause", "wake"])
def test_a_change_that_cannot_be_written_down_is_not_made(small, box, action):
    """Wherever it fails, the sandbox is what it was, for the next bridge too."""
    undo = {"snapshots": forget_all, "fork": forget_all, "pause": lambda s, b: ask(b, "resume"),
            "wake": lambda s, b: ask(b, "hibernate")}[action]
    before = "hibernated" if action == "wake" else "running"
    if action == "wake":
        assert ask(box, "hibernate").status == 200
    kept = small.files()
    for reply in each_write(small, lambda: ask(box, action), lambda _: undo(small, box)):
        if reply.status < 300:  # what was left to write was of no consequence
            undo(small, box)
        else:
            is_full(reply)
        assert (box.status(), ids(small)) == (before, [box.id])
        until(lambda: small.files() == kept, 10, "what was begun going")
    restart(small)
    assert (box.status(), small.files()) == (before, kept)
    box.out("true")
    goes_on(box)


def forget_all(small, box):
    for item in small.client.get("/v1/snapshots").json["items"]:
        assert small.client.delete(f"/v1/snapshots/{item['id']}").status == 204
    for other in set(ids(small)) - {box.id}:
        assert small.client.delete(f"/v1/sandboxes/{other}", timeout=60).status == 204


def test_a_delete_that_cannot_be_written_down_is_told_and_made_good(small, box):
    other = small.client.create(**GUEST)
    kept = small.files()
    small.registry_full_after(0)
    is_full(other.delete())
    assert small.client.get(other.path).code == "sandbox.gone"
    assert ids(small) == [box.id]
    is_full(other.delete())
    assert len(small.files()) == len(kept) - 2
    small.registry_full_after(None)
    assert other.delete().status == 204
    restart(small)
    assert (ids(small), small.client.get(other.path).status) == ([box.id], 410)

    sleeper = small.client.create(**GUEST)
    assert ask(sleeper, "hibernate").status == 200
    small.registry_full_after(0)
    is_full(sleeper.delete())
    assert not list(small.state.glob("hibernated/*"))
    small.kill()
    small.registry_full_after(None)
    small.start()  # nobody has told this one that it was deleted
    assert sleeper.status() == "failed"
    assert sleeper.delete().status == 204


def test_a_snapshot_can_be_deleted_to_make_room_for_the_registry(small, box):
    snap = ask(box, "snapshots").json["id"]
    small.registry_full_after(0)
    assert small.client.delete(f"/v1/snapshots/{snap}").status == 204
    assert not list(small.state.glob("snapshots/*"))
    small.registry_full_after(None)
    restart(small)
    assert small.client.get(f"/v1/snapshots/{snap}").code == "snapshot.not_found"
    assert small.client.get("/v1/snapshots").json["items"] == []


def test_what_a_patch_cannot_write_down_it_does_not_change(small, box):
    small.registry_full_after(0)
    change = {"ttl_seconds": 60, "metadata": {"a": "b"}, "persistent": True}
    is_full(small.client.request("PATCH", box.path, change))
    small.registry_full_after(None)
    shown = small.client.get(box.path).json
    assert shown["metadata"] == {}
    assert small.client.get(box.path + "/lifecycle").json["ttl_seconds"] == 600
    assert small.client.request("PATCH", box.path, {"ttl_seconds": 601}).status == 200


# ---- where guests' memory shares the disk ----

class DiskOnlyBridge(SmallBridge):
    """It has no /dev/shm to speak of."""
    sizes = {"state": "400m", "shm": "64m"}


def test_a_guest_whose_memory_is_on_a_full_disk_writes_to_it_all_the_same(farm):
    bridge = made(farm, DiskOnlyBridge)
    try:
        bridge.fill(bridge.state, 190 * MIB)
        box = bridge.client.create(**GUEST)  # which boots, for there is no room to bake
        assert (box.info["boot_mode"], list(bridge.state.glob("baked/*"))) == ("boot", [])
        bridge.fill(bridge.state)
        box.out("head -c 40m /dev/urandom > /dev/shm/x; sync", timeout_seconds=50)
        is_full(bridge.client.post("/v1/sandboxes", {"template": "base", **GUEST}))
        is_full(ask(box, "snapshots"))
        assert box.out("wc -c < /dev/shm/x") == f"{40 * MIB}\n"
        assert ids(bridge) == [box.id]
    finally:
        bridge.free(bridge.state)
        bridge.stop()
        bridge.unmount()


# ---- disks ----

DISK = {"resources": {"memory_mib": 128, "disk_mib": 128}, "ttl_seconds": 600}


@pytest.fixture
def with_disk(small, box):
    own = small.client.create(**DISK)
    yield own
    small.free(small.state)
    own.delete()


@pytest.mark.parametrize("leave", [0, 16 << 10])
def test_a_create_without_room_for_its_disk_leaves_nothing(small, box, leave):
    small.client.create(**DISK).delete()  # the next one is restored
    for fresh in ({"disk_mib": 128}, {"disk_mib": 100}):
        until(lambda: small.client.get("/v1/sandboxes").json["items"][0]["id"] == box.id, 5)
        kept = small.files()
        small.fill(small.state, leave)
        body = {"template": "base", "resources": {"memory_mib": 128, **fresh}}
        is_full(small.client.post("/v1/sandboxes", body, timeout=60))
        small.free(small.state)
        assert ids(small) == [box.id]
        until(lambda: small.files() == kept, 2, "what was begun going")
    goes_on(box)


def test_a_disk_that_cannot_be_copied_is_told_and_its_sandbox_runs_on(small, box, with_disk):
    digest = with_disk.out("dd if=/dev/urandom of=/data bs=1M count=50 2>/dev/null; sync;"
                           "echo 3 > /proc/sys/vm/drop_caches; sha256sum /data", timeout_seconds=50)
    reply = ask(with_disk, "snapshots")
    assert reply.status == 201, reply.body
    assert small.client.delete(f"/v1/snapshots/{reply.json['id']}").status == 204
    for action in ("snapshots", "fork"):
        kept = small.files()
        small.fill(small.state, reply.json["bytes"] - 25 * MIB)  # for memory, not for the disk
        is_full(ask(with_disk, action))
        small.free(small.state)
        until(lambda: small.files() == kept, 2, "what was begun going")
        assert with_disk.out("sha256sum /data") == digest


def test_one_that_cannot_wake_for_want_of_room_for_its_disk_sleeps_on(small, box, with_disk):
    digest = with_disk.out("dd if=/dev/urandom of=/data bs=1M count=50 2>/dev/null; sync;"
                           "echo 3 > /proc/sys/vm/drop_caches; sha256sum /data", timeout_seconds=50)
    assert ask(with_disk, "hibernate").status == 200
    kept = small.files()
    small.fill(small.state, 25 * MIB)
    is_full(ask(with_disk, "wake"))
    until(lambda: small.files() == kept, 2, "what was begun going")
    assert with_disk.status() == "hibernated"
    small.free(small.state)
    assert with_disk.out("sha256sum /data") == digest


def test_a_guest_whose_disk_finds_no_room_has_io_errors_and_lives(small, box, with_disk):
    small.fill(small.state, MIB)
    result = with_disk.run("dd if=/dev/urandom of=/data bs=1M count=50 conv=fsync",
                           timeout_seconds=50)
    assert result["exit_code"] != 0 and "Input/output error" in result["stderr"], result
    assert with_disk.out("echo ok") == "ok\n"
    small.free(small.state)
    assert with_disk.out("echo ok > /new && sync && cat /new") == "ok\n"
    goes_on(box)
