"""What the programs refuse to start with, and what they say then."""
import subprocess

import pytest

from bridge import AGENT, PROGRAM

BAD = [("--listen", "8091", "host:port"), ("--listen", ":8091", "host:port"),
       ("--listen", "127.0.0.1:99999", "host:port"), ("--listen", "127.0.0.1:http", "host:port"),
       ("--listen", "unix:", "unix:PATH"), ("--listen", "unix:/" + "x" * 120, "unix:PATH"),
       ("--launcher", "foo", "qemu, uml"), ("--rootfs-dir", "/nonexistent", "directory"),
       ("--attach-dir", "/nonexistent", "directory"), ("--attach-dir", "tmp", "absolute"),
       ("--agent", "/nonexistent", "executable"), ("--agent", "/etc/passwd", "executable"),
       ("--vm-uids", "0:65536", "FIRST:COUNT"), ("--vm-uids", "70000", "FIRST:COUNT"),
       ("--node", "a b", "A-Z"), ("--node", "a/b", "A-Z"),
       ("--drain-seconds", "soon", "number"), ("--log-format", "xml", "text or json"),
       ("--bogus", "1", "see host-bridge --help"), ("--log-level", None, "value")]


@pytest.mark.parametrize("flag,value,says", BAD)
def test_a_bad_value_is_refused_with_what_is_expected(tmp_path, flag, value, says):
    words = [flag] if value is None else [flag, value]
    ended = subprocess.run([PROGRAM, "serve", "--state-dir", tmp_path, *words],
                           env={"SANDGATE_TOKEN": "t"}, capture_output=True, text=True,
                           timeout=10)
    assert ended.returncode == 2, ended
    assert flag[2:] in ended.stderr and says in ended.stderr, ended.stderr


@pytest.mark.parametrize("command", [["serve"], ["vsock-device"]])
def test_help_is_asked_for_or_follows_a_mistake(command):
    run = lambda *words: subprocess.run([PROGRAM, *command, *words], capture_output=True,
                                        text=True, timeout=10)
    asked = run("--help")
    assert asked.returncode == 0 and "usage: host-bridge" in asked.stdout and not asked.stderr
    wrong = run("--no-such-option", "1")
    assert wrong.returncode == 2 and "no-such-option" in wrong.stderr


@pytest.mark.parametrize("words,says", [
    (["--port", "0"], "nothing to listen on"), (["--bogus"], "bogus: no such setting"),
    (["--bogus", "1"], "bogus: no such setting"), (["--unix"], "--unix needs a value"),
    (["--config"], "--config needs a value"), (["--token-file", "/nonexistent"], "/nonexistent")])
def test_an_agent_that_is_told_nonsense_does_not_start(words, says):
    ended = subprocess.run([AGENT, *words], capture_output=True, text=True, timeout=10)
    assert ended.returncode == 2 and says in ended.stderr, ended


def test_a_bridge_in_a_build_tree_finds_its_agent(farm):
    bridge = farm.new("local")
    words = [str(w) for w in bridge.command()]
    at = words.index("--agent")
    del words[at:at + 2]
    bridge.command = lambda: words
    bridge.start()
    try:
        assert bridge.client.create().out("echo hello") == "hello\n"
    finally:
        bridge.stop()


def test_a_launcher_that_cannot_work_is_told_at_the_start(tmp_path):
    with subprocess.Popen([PROGRAM, "serve", "--listen", f"unix:{tmp_path}/api", "--state-dir",
                           tmp_path / "state", "--launcher", "cloud-hypervisor"],
                          env={"SANDGATE_TOKEN": "t", "PATH": "/nonexistent"}, text=True,
                          stderr=subprocess.PIPE) as bridge:
        said = []
        while "listening" not in "".join(said[-1:]):
            said.append(bridge.stderr.readline())
            assert said[-1], said
        bridge.terminate()
    assert any("no VM can be started: cloud-hypervisor" in line for line in said), said
