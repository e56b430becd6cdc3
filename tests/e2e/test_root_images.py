"""Roots that are images, in real guests: attached read only, never written to, under a layer of
each guest's own; and what guests do that cannot have theirs."""
import json
import shutil
import subprocess

import pytest

from bridge import AGENT, ROOT
from client import until
from conftest import need
from disk_images import (DROP, MIB, act, bridge_with_image, make_image, make_initramfs, restore,
                         seconds, size_mib, snapshot)
from own_vm import VM


@pytest.fixture(scope="module")
def bridge(farm, tmp_path_factory):
    made = bridge_with_image(farm, tmp_path_factory.mktemp("rootfs"))
    yield made
    made.stop()


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


def test_reads_of_the_image_are_bounded_as_well(bridge):
    box = bridge.client.create(template="image", ttl_seconds=600, resources={"disk_mib": 64})
    read = "cat /data/big > /dev/null"
    box.out(DROP)
    free = seconds(box, read)
    box.out(DROP)
    assert seconds(box, read, io_read_bps=MIB) > max(3, free)
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


# ---- an image with the agent in it, whose kernel has mounted the root by itself ----

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
