"""Images for disks of guests, templates that have one, and what tests of them share."""
import json
import shutil
import subprocess

from bridge import open_to_all, ROOTFS
from client import Sandbox

MIB = 1 << 20
DROP = "sync; echo 3 > /proc/sys/vm/drop_caches"
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


def make_templates(directory):
    """Templates: base, and image, which has a root of its own. The path of that."""
    open_to_all(directory)
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
    return home / "root.ext4"


def bridge_with_image(farm, directory):
    made = farm.new("qemu", "--rootfs-dir", str(directory))
    made.image = make_templates(directory)
    return made.start()


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


def size_mib(box, path="/"):
    """What df says of it."""
    return int(box.out(f"df -m {path} | grep / ").split()[1])


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


def seconds(box, cmd, **limits):
    return box.run(cmd, limits=limits, timeout_seconds=60)["duration_ms"] / 1e3
