"""The manual page, the example configuration and the units, held to what the programs say and
take, and what `make install` lays down."""
import contextlib
import os
import re
import shutil
import subprocess

import pytest

from bridge import BUILD, PROGRAM, ROOT, SANITIZED, Bridge

PAGE = (ROOT / "host-bridge/host-bridge.1").read_text()
EXAMPLE = ROOT / "host-bridge/host-bridge.conf"
SETTING = re.compile(r"^#?([a-z]+(?:-[a-z]+)*) = (.*)$", re.M)


def said(*words, **more):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=10, **more)


def options_of(command):
    return set(re.findall(r"--([a-z][a-z-]*[a-z])", said(*command, "--help").stdout))


def test_the_manual_has_each_option_and_no_other():
    written = set(re.findall(r"\\-\\-([a-z]+(?:\\-[a-z]+)*)", PAGE))
    there = options_of(["serve"]) | options_of(["token"]) | options_of(["vsock-device"])
    assert {w.replace("\\", "") for w in written} == there


def test_the_manual_has_each_default():
    text = PAGE.replace("\\-", "-")
    for name, default in re.findall(r"^  --(\S+) .*?\(([^)]*)\)\.?$", said("serve", "--help").stdout,
                                    re.M):
        section = re.search(rf"\.BI --{name} .*?(?=\n\.TP|\n\.SH)", text, re.S).group(0)
        assert default.split()[-1].split("/")[-1] in section, (name, default)


def test_the_manual_is_sound():
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    checked = subprocess.run(["groff", "-man", "-ww", "-z", ROOT / "host-bridge/host-bridge.1"],
                             capture_output=True, text=True)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr


def test_the_example_has_each_setting():
    settings = options_of(["serve"]) - {"config", "help", "version"}
    assert {name for name, _ in SETTING.findall(EXAMPLE.read_text())} == settings


def test_the_example_is_taken_as_it_is_and_with_every_line_of_it(tmp_path):
    """A wrong flag after it is what is complained of."""
    whole = tmp_path / "whole.conf"
    lines = [f"{name} = {value}" for name, value in SETTING.findall(EXAMPLE.read_text())]
    here = {"rootfs-dir": tmp_path, "attach-dir": tmp_path, "agent": PROGRAM}
    whole.write_text("\n".join(f"{line.split(' ')[0]} = {here[line.split(' ')[0]]}"
                               if line.split(" ")[0] in here else line for line in lines))
    for path in (EXAMPLE, whole):
        ended = said("serve", "--config", path, "--drain-seconds", "x", env={})
        assert ended.returncode == 2
        assert ended.stderr == "host-bridge: drain-seconds: x is not a number up to 86400\n"


def test_a_mistake_in_the_configuration_is_told_with_its_place(tmp_path):
    path = tmp_path / "wrong.conf"
    for line, says in [("nodes = 3", "unknown setting nodes"), ("node", '"key = value"'),
                       ("vm-uids = 5", "FIRST:COUNT")]:
        path.write_text(f"# a comment\n\n{line}\n")
        ended = said("serve", "--config", path, env={})
        assert ended.returncode == 2 and f"{path}:3: " in ended.stderr and says in ended.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if SANITIZED:
        pytest.skip("sanitized programs are not installed")
    directory = tmp_path_factory.mktemp("install")
    install(directory)
    return directory


def install(directory, *more):
    build = os.path.relpath(BUILD, ROOT)
    subprocess.run(["make", "-s", f"B={build}", "install-files", f"DESTDIR={directory}", *more],
                   cwd=ROOT, check=True, timeout=120)


def test_what_is_installed_runs_from_where_it_is(installed, farm):
    farm.count += 1
    bridge = Bridge(farm.directory / f"own{farm.count}", "local")
    words = [str(w) for w in bridge.command()]
    for flag in ("--rootfs-dir", "--agent"):
        at = words.index(flag)
        del words[at:at + 2]
    words[0] = str(installed / "usr/local/bin/host-bridge")
    bridge.command = lambda: words
    with contextlib.ExitStack() as end:
        bridge.start()
        end.callback(bridge.stop)
        [base] = [t for t in bridge.client.get("/v1/templates").json["items"]
                  if t["name"] == "base"]
        assert base
        agent = bridge.client.create().out("readlink /proc/$PPID/exe")
        assert agent == f"{installed}/usr/local/lib/sandgate/guest-agent\n"


def test_an_upgrade_keeps_the_configuration_and_replaces_images(installed):
    config = installed / "etc/sandgate/host-bridge.conf"
    image = installed / "usr/local/share/sandgate/rootfs/base.cpio"
    with open(image, "rb") as used:
        config.write_text("node = mine\n")
        before = os.fstat(used.fileno())
        install(installed)
        assert config.read_text() == "node = mine\n"
        assert os.fstat(used.fileno()).st_nlink == 0 != os.stat(image).st_nlink
        assert os.fstat(used.fileno()).st_size == before.st_size
    assert os.listdir(installed / "usr/local/share/sandgate") == ["rootfs"]


def test_another_prefix_is_named_in_the_configuration(tmp_path):
    if SANITIZED:
        pytest.skip("sanitized programs are not installed")
    install(tmp_path, "PREFIX=/opt/sandgate")
    config = (tmp_path / "etc/sandgate/host-bridge.conf").read_text()
    for path in re.findall(r" = (/opt/\S+)", config):
        assert (tmp_path / path[1:]).exists(), path
    assert "/opt/sandgate/share" in config and "/usr/local" not in config


def test_units_are_sound_and_start_what_was_installed(tmp_path):
    if SANITIZED:
        pytest.skip("sanitized programs are not installed")
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    install(tmp_path, "PREFIX=/opt/sandgate")
    units = tmp_path / "opt/sandgate/lib/systemd/system"
    for unit in units.iterdir():
        unit.write_text(unit.read_text().replace("/opt/", f"{tmp_path}/opt/"))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", *units.iterdir()],
                             capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr
