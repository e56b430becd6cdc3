"""Disks of VMMs that are played by doubles: what a VMM is told of them, what it finds in its room,
and whose they are. What a guest makes of them is in test_disks.py, in real guests."""
import json
import os
import shutil

import pytest

from bridge import ROOTFS, open_to_all
from client import Sandbox
from doubled import NOBODY, DoubledBridge, restore, snapshot

MIB = 1 << 20


@pytest.fixture
def rootfs_with_image(tmp_path):
    """Templates: base, and image, which has a root of its own."""
    open_to_all(tmp_path)
    for name in ("vmlinux", "base.cpio", "base-firecracker.cpio"):
        (tmp_path / name).symlink_to(ROOTFS / name)
    shutil.copytree(ROOTFS / "templates/base", tmp_path / "templates/base")
    base = json.loads((tmp_path / "templates/base/template.json").read_text())
    home = tmp_path / "templates/image"
    home.mkdir()
    (home / "root.ext4").write_bytes(b"an image of a file system")
    (home / "template.json").write_text(json.dumps(
        {**base, "name": "image", "root": "root.ext4", "resources": {"disk_mib": 64}}))
    return tmp_path


class Disks:
    """A bridge whose VMM is a double, and where that keeps its disks."""

    def __init__(self, bridge):
        self.bridge, self.vmm, self.client = bridge, bridge.launcher, bridge.client

    def room(self, box):
        home = self.bridge.directory_of(box)
        jail = home / "firecracker/vm/root"
        return jail if jail.exists() else home

    def disk(self, box):
        return self.room(box) / "disk"

    def write(self, box, text):
        """As the guest would, a megabyte in."""
        with open(self.disk(box), "r+b") as f:
            f.seek(MIB)
            f.write(text.ljust(8, b"\0"))

    def read(self, box):
        with open(self.disk(box), "rb") as f:
            f.seek(MIB)
            return f.read(8).rstrip(b"\0")

    def told(self):
        """(arguments, [(path, readonly)]) of the last boot."""
        event = self.bridge.doubles.events("booted")[-1]
        if self.vmm == "firecracker":
            return event["arguments"], [(d["path_on_host"], d["is_read_only"])
                                        for d in event["drives"] if not d["is_root_device"]]
        return event["arguments"], [(d["path"], d["readonly"]) for d in event["config"]["disks"]]


@pytest.fixture(params=["firecracker", "cloud-hypervisor"])
def disks(farm, request, rootfs_with_image):
    farm.count += 1
    made = DoubledBridge(farm.directory / f"own{farm.count}", request.param)
    made.flags = ("--rootfs-dir", str(rootfs_with_image))
    made.image = rootfs_with_image / "templates/image/root.ext4"
    yield Disks(made.start())
    made.stop()


def test_a_guest_sees_its_root_and_its_disk_in_this_order(disks):
    box = disks.client.create(template="image")
    arguments, drives = disks.told()
    assert arguments.endswith(" sandgate.root=/dev/vda sandgate.disk=/dev/vdb")
    assert [readonly for _, readonly in drives] == [True, False]
    assert box.info["resources"]["disk_mib"] == 64
    plain = disks.client.create(resources={"disk_mib": 32})
    arguments, drives = disks.told()
    assert arguments.endswith(" sandgate.disk=/dev/vda") and drives == [("disk", False)]
    none = disks.client.create()
    arguments, drives = disks.told()
    assert "sandgate." not in arguments and drives == []
    sizes = [disks.disk(b).stat().st_size if disks.disk(b).exists() else 0
             for b in (box, plain, none)]
    assert sizes == [64 * MIB, 32 * MIB, 0]


def test_a_disk_is_its_vms_own_and_the_image_nobodys(disks):
    boxes = [disks.client.create(template="image") for _ in range(2)]
    assert [b.info["boot_mode"] for b in boxes] == ["boot", "restore"]
    for box in boxes:
        st, room = disks.disk(box).stat(), disks.room(box)
        assert (st.st_uid, st.st_mode & 0o777, st.st_nlink) == (room.stat().st_uid, 0o600, 1)
        assert not (room / "root").exists()
        if room != disks.bridge.directory_of(box):
            assert not (disks.bridge.directory_of(box) / "disk").exists()
    assert disks.bridge.image.stat().st_uid == os.getuid()


def test_snapshots_forks_and_sleep_copy_it(disks):
    box = disks.client.create(template="image")
    disks.write(box, b"parent")
    snap = snapshot(box)
    assert snap["resources"]["disk_mib"] == 64
    clone = restore(disks.client, snap)
    [child] = [Sandbox(box.client, item)
               for item in box.client.post(box.path + "/fork", timeout=90).json["items"]]
    assert [disks.read(b) for b in (clone, child)] == [b"parent"] * 2
    disks.write(clone, b"clone")
    disks.write(child, b"child")
    assert [disks.read(b) for b in (box, clone, child)] == [b"parent", b"clone", b"child"]
    for _ in range(2):
        assert clone.client.post(clone.path + "/hibernate", timeout=60).status == 200
        assert clone.client.post(clone.path + "/wake", timeout=60).status == 200
        assert disks.read(clone) == b"clone"
        assert disks.disk(clone).stat().st_uid == disks.room(clone).stat().st_uid
    assert disks.client.delete(f"/v1/snapshots/{snap['id']}").status == 204
    assert disks.bridge.doubles.events("refused") == []


def test_a_restarted_bridge_saves_the_disk_as_well(disks):
    box = disks.client.create(resources={"disk_mib": 32})
    disks.write(box, b"kept")
    disks.bridge.kill()
    disks.bridge.start()
    box = Sandbox(disks.client, {"id": box.id})
    assert disks.read(restore(disks.client, snapshot(box))) == b"kept"


def test_without_privileges_the_disk_is_the_bridges(farm):
    farm.count += 1
    bridge = DoubledBridge(farm.directory / f"own{farm.count}", "firecracker", as_nobody=True)
    bridge.start()
    disks = Disks(bridge)
    try:
        box = bridge.client.create(resources={"disk_mib": 32})
        disks.write(box, b"kept")
        clone = restore(bridge.client, snapshot(box))
        assert disks.read(clone) == b"kept"
        assert disks.disk(clone).stat().st_uid == NOBODY
    finally:
        bridge.stop()


def test_a_snapshot_whose_disk_was_cut_off_is_refused(farm):
    farm.count += 1
    bridge = DoubledBridge(farm.directory / f"own{farm.count}", "firecracker")
    bridge.start()
    try:
        box = bridge.client.create(resources={"disk_mib": 32})
        snap = snapshot(box)
        os.truncate(bridge.state / "snapshots" / snap["id"] / "disk", 16 * MIB)
        reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=60)
        assert (reply.status, reply.code) == (502, "launcher.failed")
    finally:
        bridge.stop()
