"""Disks in real guests: a template's image that is never written to, and a disk of a sandbox's
own on top of it, or on top of the initramfs."""
import json
import pathlib
import shutil
import subprocess

import pytest

from bridge import ROOTFS
from client import Sandbox, until

MIB = 1 << 20
APPLETS = "sh cat df dd ls mount mv rm sync sleep stat touch chmod grep wc sha256sum".split()


def make_image(path, tree):
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
    (tree / "data/file").write_text("of the image\n")
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
