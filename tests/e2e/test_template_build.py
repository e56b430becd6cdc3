"""rootfs/template: file systems out of Debian packages, the same bytes each time."""
import json
import os
import subprocess

import pytest

from bridge import ROOT

pytestmark = pytest.mark.xdist_group("template-build")

SMALL = '''
description="small"
vcpus=2
memory_mib=128
packages="netbase"
excludes="/etc/rpc"
commands='"start": {"cmd": "sleep 1000"},'
customize() {
	in_root sh -c 'echo "hello from $HOME" >/etc/greeting; date >/var/log/dated'
}
'''


def begin(definition, out, images, tmp):
    return subprocess.Popen([ROOT / "rootfs/template", definition, out], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "SANDGATE_IMAGES": str(images), "TMPDIR": tmp})


def end(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two builds of one definition, in different places: (what they say, the directory of all, the
    second's image)."""
    home = tmp_path_factory.mktemp("build")
    definition = home / "small"
    definition.write_text(SMALL)
    builds = [begin(definition, home / f"out{n}", home / f"images{n}", tmp)
              for n, tmp in enumerate(("/tmp", "/dev/shm"))]
    said = [end(b) for b in builds]
    return said, home, home / "out1/small.ext4"


def debugfs(image, command):
    return subprocess.run(["debugfs", "-R", command, image], capture_output=True,
                          check=True).stdout.decode()


def test_two_builds_have_the_same_bytes_and_tell_size_and_hash(small):
    said, home, second = small
    first = home / "out0/small.ext4"
    assert first.read_bytes() == second.read_bytes()
    assert said[0] == said[1]
    digest = subprocess.run(["sha256sum", first], capture_output=True, text=True).stdout.split()[0]
    assert f" {first.stat().st_size >> 20} MiB, sha256 {digest}" in said[0]


def test_the_template_names_what_it_is_made_of(small):
    document = json.loads((small[1] / "out0/templates/small/template.json").read_text())
    assert document["name"] == "small" and document["description"] == "small"
    assert document["root"] == "../../small.ext4"
    assert document["resources"] == {"vcpus": 2, "memory_mib": 128}
    assert document["start"] == {"cmd": "sleep 1000"}


def test_an_image_tells_nothing_of_the_machine_that_made_it(small):
    image = small[2]
    read = lambda path: debugfs(image, f"cat {path}")
    assert read("/etc/greeting") == "hello from /root\n"
    assert read("/etc/hostname") == "sandgate\n"
    assert read("/etc/machine-id") == read("/etc/resolv.conf") == ""
    assert "sandbox:x:1000:1000:" in read("/etc/passwd")
    for gone in ("/etc/rpc", "/etc/apt", "/var/log/dated", "/var/lib/apt", "/usr/share/doc/netbase",
                 "/etc/passwd-"):
        assert "Type:" not in debugfs(image, f"stat {gone}"), gone
    assert "User:  1000" in debugfs(image, "stat /home/sandbox")
    for time in ("atime", "ctime", "mtime", "crtime"):
        assert f" {time}: 0x6483bd00" in debugfs(image, "stat /etc/greeting").replace("\ncr", "\n cr")


def test_what_was_built_is_not_built_again(small):
    _, home, _ = small
    image = next((home / "images0").glob("small-*.ext4"))
    before = (image.stat().st_ino, image.stat().st_mtime_ns)
    assert end(begin(home / "small", home / "out2", home / "images0", "/tmp")) == small[0][0]
    assert (image.stat().st_ino, image.stat().st_mtime_ns) == before
    assert (home / "out2/small.ext4").samefile(image)


def test_a_template_that_would_be_no_json_is_not_built(tmp_path):
    definition = tmp_path / "broken"
    definition.write_text(SMALL.replace('"start": {', '"start": '))
    process = begin(definition, tmp_path / "out", tmp_path / "images", "/tmp")
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "no JSON" in err
    assert not (tmp_path / "images").exists() and not (tmp_path / "out").exists()
