"""Disks in real guests: a template's image that is never written to, and a disk of a sandbox's
own on top of it, or on top of the initramfs."""
import json
import pathlib
import shutil
import socket
import subprocess
import time

import pytest

from bridge import AGENT, ROOT, ROOTFS
from client import Sandbox, until
from conftest import need
from own_vm import VM

MIB = 1 << 20
APPLETS = "sh cat df dd ls mount mv rm sync sleep stat touch chmod grep wc sha256sum".split()


def make_image(path, tree, text="of the image\n"):
    """An ext4 image with busybox and some files to tell it by."""
    for name in ("bin", "etc", "root", "dev", "proc", "sys", "run", "tmp", "data/sub"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    for applet in APPLETS:
        (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n"
                                     "own:x:1234:1234::/home/own:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\nown:x:1234:\n")
    (tree / "etc/hostname").write_text("imaged\n")
    (tree / "etc/machine-id").touch()
    (tree / "data/file").write_text(text)
    (tree / "data/big").write_bytes(b"big\n" * MIB)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, path, "48M"], check=True)


@pytest.fixture(scope="module")
def bridge(farm, tmp_path_factory):
    """Templates: base, and image, which has a root of its own."""
    directory = tmp_path_factory.mktemp("rootfs")
    for path in (directory, directory.parent, directory.parent.parent):
        path.chmod(0o755)
    for name in ("vmlinux", "base.cpio"):
        (directory / name).symlink_to(ROOTFS / name)
    (directory / "templates").mkdir()
    shutil.copytree(ROOTFS / "templates/base", directory / "templates/base")
    home = directory / "templates/image"
    home.mkdir()
    make_image(home / "root.ext4", directory / "tree")
    (home / "template.json").write_text(json.dumps(
        {"name": "image", "kernels": {"qemu": "../../vmlinux"},
         "initrds": {"qemu": "../../base.cpio"}, "root": "root.ext4"}))
    made = farm.new("qemu", "--rootfs-dir", str(directory)).start()
    made.image = home / "root.ext4"
    yield made
    made.stop()


def size_mib(box, path="/"):
    """What df says of it."""
    return int(box.out(f"df -m {path} | grep / ").split()[1])


def test_a_templates_image_is_the_root_and_is_not_written_to(bridge):
    before = bridge.image.read_bytes()
    boxes = [bridge.client.create(template="image", ttl_seconds=600) for _ in range(2)]
    try:
        assert [b.info["boot_mode"] for b in boxes] == ["boot", "restore"]
        for b in boxes:
            assert b.out("cat /data/file; echo $HOME; stat -c %U /data") == \
                "of the image\n/root\nroot\n"
            assert b.out("echo changed >> /data/file; rm /data/big; mv /data/sub /data/moved;"
                         "echo new > /data/new; cat /data/file; ls /data") == \
                "of the image\nchanged\nfile\nmoved\nnew\n"
            assert b.out("id -u", user="own") == "1234\n"
            assert b.out("ls /; mount | grep -c ' on / type overlay'").split() == \
                "bin data dev etc lost+found proc root run sys tmp 1".split()
            assert b.out("cat /etc/machine-id | wc -c") == "33\n"
            assert "vdb" not in b.out("ls /dev")
    finally:
        for b in boxes:
            b.delete()
    assert bridge.image.read_bytes() == before


def snapshot(box):
    reply = box.client.post(box.path + "/snapshots", {}, timeout=60)
    assert reply.status == 201, reply.body
    return reply.json


def restore(client, snap, **body):
    reply = client.post("/v1/sandboxes", {"from_snapshot": snap["id"], "ttl_seconds": 600, **body},
                        timeout=60)
    assert reply.status == 201, reply.body
    return Sandbox(client, reply.json)


def act(box, action, **body):
    reply = box.client.post(f"{box.path}/{action}", body, timeout=60)
    assert reply.status < 300, reply.body
    return reply.json


@pytest.fixture(params=["base", "image"])
def box(bridge, request):
    """A sandbox with a disk, over the initramfs and over an image."""
    made = bridge.client.create(template=request.param, ttl_seconds=600,
                                resources={"disk_mib": 256})
    yield made
    made.delete()


WRITE = "dd if=/dev/urandom of=/data50 bs=1M count=50 2>/dev/null && sha256sum </data50"


def test_what_is_written_to_the_root_goes_to_the_disk(bridge, box):
    assert box.info["resources"]["disk_mib"] == 256
    assert 240 <= size_mib(box) <= 256
    ram = box.out("grep MemAvailable /proc/meminfo").split()[1]
    digest = box.out(WRITE + "; sync; echo 3 > /proc/sys/vm/drop_caches")
    assert int(box.out("grep MemAvailable /proc/meminfo").split()[1]) > int(ram) - 20480
    assert box.out("sha256sum </data50") == digest
    disk = bridge.directory_of(box) / "disk"
    assert disk.stat().st_size == 256 * MIB
    assert 50 * MIB < disk.stat().st_blocks * 512 < 80 * MIB
    assert disk.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_the_commands_own_trouble(box):
    result = box.run("dd if=/dev/zero of=/full bs=1M count=300")
    assert result["exit_code"] == 1 and "No space left on device" in result["stderr"]
    assert box.out("rm /full; echo ok > /new; cat /new") == "ok\n"


def test_a_disk_survives_sleep(bridge, box):
    digest = box.out(WRITE)
    for _ in range(2):
        disk = (bridge.directory_of(box) / "disk").stat()
        act(box, "hibernate")
        assert not bridge.directory_of(box).exists()
        [kept] = bridge.state.glob(f"hibernated/{box.id}/disk")
        assert kept.stat().st_ino == disk.st_ino  # it was not copied
        act(box, "wake")
        assert box.out("sha256sum </data50") == digest
        box.out("echo 3 > /proc/sys/vm/drop_caches")
        assert box.out("sha256sum </data50") == digest
        digest = box.out("rm /data50;" + WRITE)
    assert not list(bridge.state.glob(f"hibernated/{box.id}"))


def test_forks_have_copies_and_write_apart(bridge, box):
    digest = box.out(WRITE)
    [child] = [Sandbox(box.client, item) for item in act(box, "fork")["items"]]
    try:
        assert child.info["resources"]["disk_mib"] == 256
        child.out("echo 3 > /proc/sys/vm/drop_caches")
        assert child.out("sha256sum </data50") == digest
        other = child.out(WRITE)
        box.out("echo parent > /parent; sync; echo 3 > /proc/sys/vm/drop_caches")
        child.out("sync; echo 3 > /proc/sys/vm/drop_caches")
        assert box.out("sha256sum </data50") == digest != other
        assert child.out("sha256sum </data50; ls /parent 2>/dev/null || echo none") == \
            other + "none\n"
    finally:
        child.delete()
    assert not bridge.directory_of(child).exists()


def test_a_snapshot_holds_the_disk_of_its_moment(bridge, box):
    digest = box.out(WRITE)
    snap = snapshot(box)
    changed = box.out("dd if=/dev/urandom of=/data50 bs=1M count=50 conv=notrunc 2>/dev/null;"
                      "sync; sha256sum </data50")
    assert snap["resources"]["disk_mib"] == 256 and snap["bytes"] > 50 * MIB
    clones = [restore(bridge.client, snap) for _ in range(2)]
    try:
        for clone in clones:
            clone.out("echo 3 > /proc/sys/vm/drop_caches")
            assert clone.out("sha256sum </data50; rm /data50") == digest
        reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"],
                                                     "resources": {"disk_mib": 512}})
        assert (reply.status, reply.error["details"]["field"]) == (400, "resources")
    finally:
        for clone in clones:
            clone.delete()
        bridge.client.delete(f"/v1/snapshots/{snap['id']}")
    assert box.out("sha256sum </data50") == changed
    assert not list(bridge.state.glob("snapshots/*"))


DROP = "sync; echo 3 > /proc/sys/vm/drop_caches"


def seconds(box, cmd, **limits):
    return box.run(cmd, limits=limits, timeout_seconds=60)["duration_ms"] / 1e3


def test_a_commands_reads_and_writes_can_be_bounded(box):
    write = "dd if=/dev/zero of={} bs=1M count=8 conv=fsync 2>/dev/null"
    read = "dd if=/some of=/dev/null bs=1M 2>/dev/null"
    free = seconds(box, write.format("/some"))
    assert seconds(box, write.format("/other"), io_write_bps=2 * MIB) > max(3, free)
    box.out(DROP)
    free = seconds(box, read)
    box.out(DROP)
    assert seconds(box, read, io_read_bps=2 * MIB) > max(3, free)
    box.out(DROP)
    assert seconds(box, read, io_write_bps=2 * MIB) < 3


def test_reads_of_the_image_are_bounded_as_well(bridge):
    box = bridge.client.create(template="image", ttl_seconds=600, resources={"disk_mib": 64})
    read = "cat /data/big > /dev/null"
    box.out(DROP)
    free = seconds(box, read)
    box.out(DROP)
    assert seconds(box, read, io_read_bps=MIB) > max(3, free)
    box.delete()


@pytest.mark.parametrize("template", ["base", "image"])
@pytest.mark.parametrize("limit", ["io_read_bps", "io_write_bps"])
def test_without_a_disk_there_is_nothing_to_bound(bridge, template, limit):
    box = bridge.client.create(template=template, ttl_seconds=600)
    reply = box.exec("true", limits={limit: MIB})
    assert (reply.status, reply.code) == (422, "limit.unsupported")
    assert reply.error["details"]["field"] == f"limits.{limit}"
    box.delete()


@pytest.mark.parametrize("content, why", [
    (b"no file system", "root /dev/vda: Invalid argument"), (b"", "root /dev/vda: ")])
def test_a_guest_without_its_root_does_not_run(bridge, content, why):
    """Not on another root, and not on the initramfs: it goes off, and the reason is told."""
    home = bridge.image.parent.parent / "broken"
    home.mkdir(exist_ok=True)
    document = json.loads((bridge.image.parent / "template.json").read_text())
    (home / "root.ext4").write_bytes(content.ljust(MIB, b"\0") if content else b"")
    (home / "template.json").write_text(json.dumps({**document, "name": "broken"}))
    reply = bridge.client.post("/v1/sandboxes", {"template": "broken"}, timeout=60)
    shutil.rmtree(home)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert reply.error["message"].startswith(f"the guest cannot start: {why}")


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


def test_what_was_made_from_an_image_keeps_it_when_the_template_is_built_anew(bridge, tmp_path):
    slept, saved = (bridge.client.create(template="image", ttl_seconds=600) for _ in range(2))
    act(slept, "hibernate")
    snap = snapshot(saved)
    make_image(tmp_path / "root.ext4", tmp_path / "tree", "of another image\n")
    kept = bridge.image.with_name("kept.ext4")
    bridge.image.rename(kept)
    (tmp_path / "root.ext4").rename(bridge.image)
    try:
        made = bridge.client.create(template="image", ttl_seconds=600)
        assert made.info["boot_mode"] == "boot"
        clone = restore(bridge.client, snap)
        for b in (slept, saved, clone):
            b.out(DROP)
        assert [b.out("cat /data/file") for b in (slept, saved, clone, made)] == \
            ["of the image\n"] * 3 + ["of another image\n"]
        for b in (slept, saved, clone):
            assert b.delete().status == 204
        bridge.kill()
        bridge.start()  # lets go of images that nothing needs
        assert len(list(bridge.state.glob("images/*"))) == 2
        clone = restore(bridge.client, snap)
        assert clone.out("cat /data/file") == "of the image\n"
        for b in (clone, made):
            assert b.delete().status == 204
        assert bridge.client.delete(f"/v1/snapshots/{snap['id']}").status == 204
    finally:
        kept.rename(bridge.image)


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


# ---- an image with the agent in it, whose kernel has mounted the root by itself ----

def make_initramfs(path, tree):
    """What stands for a kernel with everything in it: it finds the disk, mounts it and is gone."""
    (tree / "bin").mkdir(parents=True)
    for name in ("dev", "proc", "new"):
        (tree / name).mkdir()
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    for applet in ("sh", "mount", "insmod", "switch_root"):
        (tree / "bin" / applet).symlink_to("busybox")
    with open(ROOTFS / "base.cpio", "rb") as f:
        for _ in range(4):  # archives that follow one another
            subprocess.run(["cpio", "-idmu", "--quiet", "lib/*", "etc/sandgate/*"], cwd=tree,
                           stdin=f, check=True)
    (tree / "init").write_text("""#!/bin/sh
mount -t devtmpfs dev /dev
while read module; do insmod $module; done < /etc/sandgate/modules
while read module; do insmod $module; done < /etc/sandgate/modules-disk
mount -t ext4 -o ro /dev/vda /new
exec switch_root /new /sbin/init
""")
    (tree / "init").chmod(0o755)
    names = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*")))
    with open(path, "wb") as f:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=tree, stdout=f,
                       input=names.encode(), check=True)


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def baked_vm(farm, local_bridge, tmp_path, request):
    """One whose image has the agent as its init, attached to a bridge; whether with a disk."""
    image, disk = tmp_path / "root.ext4", tmp_path / "disk.ext4"
    make_image(image, tmp_path / "tree")
    subprocess.run([ROOT / "rootfs/bake", "--agent", AGENT, image], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", disk, "64M"], check=True)
    make_initramfs(tmp_path / "initramfs", tmp_path / "initramfs-tree")
    farm.count += 1
    vm = VM(local_bridge.attach / f"vm{farm.count}", initrd=tmp_path / "initramfs",
            words="sandgate.disk=/dev/vdb" if request.param else "", more=[
                "-drive", f"file={image},format=raw,if=virtio,readonly=on",
                "-drive", f"file={disk},format=raw,if=virtio"])
    box = local_bridge.client.create(
        template=None, attach={"transport": "hybrid", "path": str(vm.vsock)}, ttl_seconds=600)
    box.image, box.on_disk = image, request.param
    yield box
    box.delete()
    vm.stop()


def test_a_root_that_the_kernel_has_mounted_gets_a_layer_to_write_to(baked_vm):
    before = baked_vm.image.read_bytes()
    assert baked_vm.out("mount | grep -c ' on / type overlay'") == "1\n"
    assert baked_vm.out("echo changed >> /data/file; mv /data/sub /data/moved; cat /data/file;"
                        "ls /data") == "of the image\nchanged\nbig\nfile\nmoved\n"
    assert (50 < size_mib(baked_vm) < 64) == baked_vm.on_disk
    assert baked_vm.out("cat /etc/machine-id | wc -c") == "33\n"
    assert baked_vm.image.read_bytes() == before


def test_a_machine_whose_disk_never_comes_goes_off(farm, tmp_path):
    need("qemu")
    vm = VM(tmp_path / "vm", words="sandgate.disk=/dev/vdz")
    try:
        vm.qemu.wait(60)
        assert "error init: root /dev/vdz: No such device" in \
            (vm.directory / "console").read_text(errors="replace")
    finally:
        vm.stop()


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
