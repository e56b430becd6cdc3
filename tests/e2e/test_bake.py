"""rootfs/bake: the agent in an image of one's own."""
import json
import os
import pathlib
import shutil
import subprocess
import tarfile

import pytest

from bridge import AGENT, ROOT, ROOTFS

BAKE = ROOT / "rootfs/bake"


def bake(*arguments, ok=True):
    done = subprocess.run([BAKE, "--agent", AGENT, *arguments], capture_output=True, text=True)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stderr


def tree(path, *files):
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("")
    return path


def test_a_directory_with_systemd_gets_a_service(tmp_path):
    root = tree(tmp_path / "root", "usr/lib/systemd/systemd", "sbin/init")
    assert "systemd" in bake(root)
    assert (root / "usr/sbin/guest-agent").read_bytes() == AGENT.read_bytes()
    unit = root / "etc/systemd/system/sandgate-agent.service"
    wanted = root / "etc/systemd/system/multi-user.target.wants/sandgate-agent.service"
    assert wanted.resolve() == unit.resolve() and "Delegate=yes" in unit.read_text()
    assert (root / "sbin/init").read_text() == ""


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    root = tree(tmp_path / "root", "usr/lib/systemd/systemd")
    bake(root)
    unit = (root / "etc/systemd/system/sandgate-agent.service").read_text()
    here = tmp_path / "sandgate-agent.service"
    here.write_text(unit.replace("/usr/sbin/guest-agent", str(AGENT)))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert "sandgate-agent" not in done.stderr, done.stderr


def test_openrc_gets_a_script_and_what_has_nothing_gets_an_init(tmp_path):
    openrc = tree(tmp_path / "openrc", "sbin/openrc-run", "sbin/init")
    assert "OpenRC" in bake(openrc)
    assert os.access(openrc / "etc/init.d/sandgate-agent", os.X_OK)
    bare = tree(tmp_path / "bare", "bin/sh")
    assert "its init" in bake(bare)
    assert (bare / "sbin/init").resolve() == bare / "usr/sbin/guest-agent"


def test_baking_again_replaces_the_agent(tmp_path):
    root = tree(tmp_path / "root", "bin/sh")
    bake(root)
    (root / "usr/sbin/guest-agent").write_text("old")
    bake(root)
    assert (root / "usr/sbin/guest-agent").read_bytes() == AGENT.read_bytes()


@pytest.mark.parametrize("packing", ["", "gz", "xz"])
def test_an_archive_keeps_its_packing_and_its_content(tmp_path, packing):
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, f"w:{packing}") as tar:
        tar.add(tree(tmp_path / "root", "bin/sh", "etc/passwd"), arcname=".")
    bake(archive)
    with tarfile.open(archive, f"r:{packing}") as tar:
        names = {n.removeprefix("./") for n in tar.getnames()}
        assert {"bin/sh", "etc/passwd", "usr/sbin/guest-agent", "sbin/init"} <= names
        agent = tar.extractfile(next(m for m in tar if m.name.endswith("sbin/guest-agent")))
        assert agent.read() == AGENT.read_bytes()


def ext4(path, size, root):
    subprocess.run(["mkfs.ext4", "-q", "-d", root, path, size], check=True)
    return path


def test_an_ext4_image_is_changed_in_place(tmp_path):
    root = tree(tmp_path / "root", "bin/sh", "etc/passwd")
    image = ext4(tmp_path / "image.ext4", "8M", root)
    bake(image)
    subprocess.run(["e2fsck", "-fn", image], check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run(["debugfs", "-R", "stat /usr/sbin/guest-agent", image],
                           capture_output=True, text=True).stdout
    assert "Mode:  0755" in shown and f"Size: {AGENT.stat().st_size}" in shown
    link = subprocess.run(["debugfs", "-R", "stat /sbin/init", image], capture_output=True,
                          text=True).stdout
    assert 'Fast link dest: "../usr/sbin/guest-agent"' in link


def packed(root, kind, tmp):
    if kind == "ext4":
        return ext4(tmp / "image.ext4", "8M", root)
    subprocess.run(["tar", "-C", root, "-cf", tmp / "image.tar", "."], check=True)
    return tmp / "image.tar"


def unpacked(image, kind, tmp):
    tmp.mkdir()
    unpack = ["debugfs", "-R", f"rdump / {tmp}"] if kind == "ext4" else ["tar", "-C", tmp, "-xf"]
    subprocess.run([*unpack, image], check=True, capture_output=True)
    return tmp


@pytest.mark.parametrize("kind", ["directory", "archive", "ext4"])
@pytest.mark.parametrize("links,where", [({"sbin": "usr/sbin"}, "usr/sbin"),
                                         ({"sbin": "/usr/sbin"}, "usr/sbin"),
                                         ({"sbin": "usr/sbin", "usr/sbin": "bin"}, "usr/bin")])
def test_an_image_whose_sbin_is_a_link_keeps_it_and_gets_an_init(tmp_path, kind, links, where):
    root = tree(tmp_path / "root", f"{where}/sh", "usr/bin/true")
    for name, to in links.items():
        (root / name).symlink_to(to)
    image = root if kind == "directory" else packed(root, kind, tmp_path)
    assert "its init" in bake(image)
    result = root if kind == "directory" else unpacked(image, kind, tmp_path / "result")
    assert {name: os.readlink(result / name) for name in links} == links
    assert (result / where / "init").read_bytes() == AGENT.read_bytes()


def test_links_in_a_circle_are_refused(tmp_path):
    root = tree(tmp_path / "root", "etc/passwd")
    (root / "sbin").symlink_to("sbin")
    assert "circle" in bake(root, ok=False)


def test_what_cannot_be_baked_is_refused_and_left_as_it_was(tmp_path):
    text = tmp_path / "text"
    text.write_text("no image")
    assert "no tar archive" in bake(text, ok=False)
    assert text.read_text() == "no image"
    assert "there is no" in bake(tmp_path / "none", ok=False)
    small = ext4(tmp_path / "small.ext4", "1M", tree(tmp_path / "root", "bin/sh"))
    assert "full" in bake(small, ok=False)


def test_a_baked_image_boots_and_runs_commands(farm, tmp_path):
    """The base image without its agent, which is put in again."""
    root = tmp_path / "root"
    root.mkdir()
    with open(ROOTFS / "base.cpio", "rb") as image:  # several archives, one after another
        while subprocess.run(["cpio", "-idm", "--quiet"], cwd=root, stdin=image,
                             stderr=subprocess.DEVNULL).returncode == 0:
            pass
    (root / "init").unlink()
    (root / "sbin/init").unlink(missing_ok=True)
    bake(root)
    (root / "init").symlink_to("sbin/init")
    rootfs = tmp_path / "rootfs"
    template = rootfs / "templates/baked"
    template.mkdir(parents=True)
    (rootfs / "vmlinux").symlink_to(ROOTFS / "vmlinux")
    names = subprocess.run(["find", "."], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    with open(template / "baked.cpio", "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet"], cwd=root,
                       input=names, stdout=out, check=True)
    (template / "template.json").write_text(json.dumps({
        "name": "baked", "kernels": {"qemu": str(ROOTFS / "vmlinux")},
        "initrds": {"qemu": "baked.cpio"}}))
    bridge = farm.new("qemu", "--rootfs-dir", str(rootfs)).start()
    try:
        box = bridge.client.create(template="baked")
        assert box.out("readlink /proc/1/exe") == "/usr/sbin/guest-agent\n"
        box.delete()
    finally:
        bridge.stop()


def check_kernel(tmp_path, text):
    config = tmp_path / "config"
    config.write_text(text)
    return subprocess.run([ROOT / "rootfs/check-kernel", config], capture_output=True, text=True)


def test_a_kernels_lacks_are_named_with_what_they_cost(tmp_path):
    options = ("VSOCKETS", "VIRTIO_VSOCKETS", "CGROUPS", "UNIX", "EPOLL", "SIGNALFD", "EVENTFD")
    enough = "".join(f"CONFIG_{o}=y\n" for o in options)
    done = check_kernel(tmp_path, enough + "CONFIG_VIRTIO_BLK=m\n# CONFIG_MEMCG is not set\n")
    assert done.returncode == 0
    assert "missing  MEMCG: memory limits are refused" in done.stdout
    assert "module   VIRTIO_BLK" in done.stdout and "UNIX" not in done.stdout
    done = check_kernel(tmp_path, enough.replace("CONFIG_VSOCKETS=y\n", ""))
    assert done.returncode == 1 and "MISSING  VSOCKETS: the agent cannot be reached" in done.stdout
    assert check_kernel(tmp_path, "no configuration").returncode == 2
