"""What a template runs when it boots for the first time: a service that stays, and a command
that says when it is ready."""
import json
import pathlib
import shutil

import pytest

from bridge import open_to_all, ROOTFS
from client import Sandbox, until
from doubled import VERSIONS, DoubledBridge
from test_events import told_of

# A service that works from its third second on, or so: it counts in a file.
SERVICE = "echo $WHO > /tmp/who; id -un >> /tmp/who; pwd >> /tmp/who; exec sleep 100000"
TRIES = "cut -d' ' -f1 /proc/uptime >> /tmp/tries; test $(wc -l < /tmp/tries) -ge 3"


def templates_at(rootfs):
    """Base in a directory for --rootfs-dir; write(name, commands) adds base with commands."""
    open_to_all(rootfs)
    for name in ("vmlinux", "base.cpio", "base-firecracker.cpio", "base-uml.cpio",
                 "uml-preload.so"):
        (rootfs / name).symlink_to(ROOTFS / name)
    shutil.copytree(ROOTFS / "templates/base", rootfs / "templates/base")

    def write(name, **commands):
        directory = rootfs / "templates" / name
        directory.mkdir(exist_ok=True)
        document = json.loads((ROOTFS / "templates/base/template.json").read_text())
        (directory / "template.json").write_text(json.dumps({**document, "name": name, **commands}))

    return write


@pytest.fixture
def own(farm, launcher, tmp_path):
    """A bridge whose templates are base with other commands."""
    bridge = farm.new(launcher, "--rootfs-dir", str(tmp_path))
    bridge.write = templates_at(tmp_path)
    bridge.start()
    yield bridge
    bridge.stop()


@pytest.fixture(scope="module")
def listing(farm, tmp_path_factory):
    """Of a bridge that has one template, what it says of that: listing(document)."""
    rootfs = tmp_path_factory.mktemp("rootfs")
    file = rootfs / "templates/mine/template.json"
    file.parent.mkdir(parents=True)
    bridge = farm.new("local", "--rootfs-dir", str(rootfs)).start()

    def ask(document):
        file.write_text(json.dumps(document))
        [item] = bridge.client.get("/v1/templates").json["items"]
        return item

    yield ask
    bridge.stop()


def left_of_guests(bridge):
    """Files, memory and processes of sandboxes."""
    state = bridge.state.stat()
    memory = pathlib.Path(f"/dev/shm/sandgate-{state.st_dev:x}-{state.st_ino:x}")
    return [*(bridge.state / "vm").glob("*"), *memory.glob("*"),
            *(p for p in bridge.leftovers() if p[0] != bridge.process.pid)]


def refused(bridge, template):
    reply = bridge.client.post("/v1/sandboxes", {"template": template}, timeout=120)
    assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
    until(lambda: not left_of_guests(bridge), 10, "everything of it going")
    assert bridge.client.get("/v1/sandboxes").json["items"] == []
    return reply.error["message"], reply.error["details"]["partial"]


def test_a_service_runs_and_is_ready_when_the_sandbox_is(own):
    own.write("served", start={"cmd": SERVICE, "user": "sandbox", "cwd": "/var",
                               "env": {"WHO": "the service"}},
              ready={"cmd": TRIES, "user": "sandbox"})
    boxes = [own.client.create(template="served", timeout=120, exec_defaults={"user": "u1"})
             for _ in range(2)]
    if own.launcher == "qemu":
        assert [b.info["boot_mode"] for b in boxes] == ["boot", "restore"]
    for box in boxes:
        assert box.out("cat /tmp/who") == "the service\nsandbox\n/var\n"
        tries = [float(t) for t in box.out("cat /tmp/tries").split()]
        assert len(tries) == 3
        assert tries[1] - tries[0] >= 0.25 and tries[2] - tries[1] >= 0.5, "hardly a pause"
        assert box.sleepers() == 1
        state = box.state("start")
        assert (state["state"], state["detached"], state["result"]) == ("running", True, None)
    # It is an exec as any other, whose end is told.
    boxes[0].call("start", "kill", {"wait_seconds": 10})
    assert [b.sleepers() for b in boxes] == [0, 1]
    events = boxes[1].client.stream("GET", boxes[1].path + "/events")
    boxes[1].out("kill $(pidof sleep)", user="root")
    assert told_of(events, "start") == [("exec_ended", "signaled")]
    events.close()


@pytest.mark.parametrize("vmm", VERSIONS)
def test_other_vmms_run_it_in_the_first_boot_alone(farm, tmp_path, vmm):
    bridge = DoubledBridge(farm.directory / f"started-{vmm}", vmm)
    bridge.flags = ("--rootfs-dir", str(tmp_path))
    templates_at(tmp_path)("served", start={"cmd": "exec sleep 100000"}, ready={
        "cmd": f"echo try >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3"})
    (tmp_path / "tries").touch()
    (tmp_path / "tries").chmod(0o666)  # the double's guest is an agent on this machine
    bridge.start()
    try:
        boxes = [bridge.client.create(template="served", timeout=120) for _ in range(2)]
        assert [b.info["boot_mode"] for b in boxes] == ["boot", "restore"]
        assert boxes[0].state("start")["state"] == "running"
        assert (tmp_path / "tries").read_text() == "try\n" * 3
        for box in boxes:
            box.delete()
    finally:
        bridge.stop()


def test_ready_alone_and_start_alone_are_enough(own):
    own.write("warm", ready={"cmd": "echo warm > /tmp/warm"})
    own.write("lone", start={"cmd": "exec sleep 100000"})
    assert own.client.create(template="warm", timeout=120).out("cat /tmp/warm") == "warm\n"
    assert own.client.create(template="lone", timeout=120).sleepers() == 1


def test_start_that_ends_at_once_is_no_service_without_ready_either(own):
    own.write("ends", start={"cmd": "exit 3"})
    for _ in range(3):
        assert "start ended" in refused(own, "ends")[0]


def test_another_command_makes_another_snapshot(own):
    for word in ("one", "two"):
        own.write("changes", ready={"cmd": f"echo {word} > /tmp/word"})
        box = own.client.create(template="changes", timeout=120)
        assert (box.out("cat /tmp/word"), box.info["boot_mode"]) == (word + "\n", "boot")


def test_what_is_never_ready_fails_in_its_time_and_leaves_nothing(own):
    own.write("never", start={"cmd": "echo woken; echo odd >&2; exec sleep 100000"},
              ready={"cmd": "echo refused >&2; exit 7", "timeout_seconds": 2})
    message, said = refused(own, "never")
    assert message == "template never: ready did not succeed within 2 s: exited, exit code 7"
    tries, rest = divmod(said["stderr_bytes"] - len("odd\n"), len("refused\n"))
    assert tries >= 1 and rest == 0
    assert said == {"stdout": "woken\n", "stderr": "odd\n" + "refused\n" * tries,
                    "stdout_bytes": len("woken\n"), "stderr_bytes": said["stderr_bytes"]}
    own.write("never", ready={"cmd": "sleep 1000", "timeout_seconds": 1})
    message, said = refused(own, "never")
    assert message in (
        "template never: ready did not succeed within 1 s: its first try has not ended",
        "template never: ready did not succeed within 1 s: timed_out, exit code 124")
    assert said is None, "nothing was said"
    for word in ("woken", "odd", "refused"):
        assert word not in own.log.read_text()


@pytest.mark.parametrize("start,how,said", [
    ({"cmd": "echo no port >&2; exit 3"},
     "start ended before the sandbox was ready: exited, exit code 3", ("", "no port\n")),
    ({"cmd": "echo hm; kill -9 $$"},
     "start ended before the sandbox was ready: signaled, exit code 137", ("hm\n", "")),
    ({"cmd": "true", "cwd": "/nope"},
     "start: spawn_failed (chdir: No such file or directory), exit code 126", None),
    ({"cmd": "true", "user": "ghost"},
     "start: spawn_failed (user: No such file or directory), exit code 126", None),
])
def test_a_start_that_ends_fails_the_create(own, start, how, said):
    own.write("dies", start=start, ready={"cmd": "sleep 1; exit 1"})
    message, partial = refused(own, "dies")
    assert message == f"template dies: {how}"
    assert (partial and (partial["stdout"], partial["stderr"])) == said


def test_a_start_that_has_ended_is_not_ready_whatever_ready_says(own):
    """Of long output, and of such as is no text, the end is told."""
    own.write("dies", start={"cmd": r"seq 999 | tr '\n' '\377'; seq 999 >&2; printf '\303' >&2"
                                    "; exec touch /tmp/ends"},
              ready={"cmd": "until test -e /tmp/ends; do sleep .1; done; sleep 1"})
    message, said = refused(own, "dies")
    assert message == \
        "template dies: start ended before the sandbox was ready: exited, exit code 0"
    assert len(said["stdout"]) == 512 and said["stdout"].endswith("\ufffd998\ufffd999\ufffd")
    assert len(said["stderr"]) == 511 and said["stderr"].endswith("\n998\n999\n")
    assert (said["stdout_bytes"], said["stderr_bytes"]) == (3888, 3889)


def test_a_bridge_killed_in_the_middle_undoes_the_create(own):
    own.write("slow", start={"cmd": "exec sleep 100000"},
              ready={"cmd": "sleep 1; exit 1", "timeout_seconds": 500})
    body, key = {"template": "slow"}, {"Idempotency-Key": "k"}
    connection = own.client.send("POST", "/v1/sandboxes", body, key)
    [item] = until(lambda: own.client.get("/v1/sandboxes").json["items"], 30, "the create")
    until(lambda: own.guests(Sandbox(own.client, item)), 30, "the virtual machine")
    own.kill()
    connection.close()
    own.start()
    until(lambda: not left_of_guests(own), 20, "everything of it going")
    assert own.client.get("/v1/sandboxes").json["items"] == []
    own.write("slow", start={"cmd": "exec sleep 100000"})
    reply = own.client.post("/v1/sandboxes", body, headers=key, timeout=120)
    assert reply.status == 201
    assert Sandbox(own.client, reply.json).sleepers() == 1


def test_a_client_that_goes_before_it_is_ready_leaves_nothing(own):
    own.write("slow", start={"cmd": "exec sleep 100000"},
              ready={"cmd": "exit 1", "timeout_seconds": 500})
    connection = own.client.send("POST", "/v1/sandboxes", {"template": "slow"})
    [item] = until(lambda: own.client.get("/v1/sandboxes").json["items"], 30, "the create")
    until(lambda: own.guests(Sandbox(own.client, item)), 30, "the virtual machine")
    connection.abort()
    until(lambda: not left_of_guests(own), 20, "everything of it going")
    assert own.client.get(f"/v1/sandboxes/{item['id']}").status == 410


@pytest.mark.parametrize("member,value,words", [
    ("start", "sleep 1", "start must be an object"),
    ("start", {}, "start.cmd is required"),
    ("start", {"cmd": ""}, "start: cmd must not be empty"),
    ("start", {"cmd": 5}, "start: cmd must be a string"),
    ("start", {"cmd": "x", "timeout_seconds": 5}, "start.timeout_seconds is not known"),
    ("start", {"cmd": "x", "exec_id": "y"}, "start.exec_id is not known"),
    ("start", {"cmd": "x", "cwd": "y"}, "start: cwd must be an absolute path"),
    ("start", {"cmd": "x", "env": {"a=b": "c"}}, "start: a variable's name must not be empty"),
    ("ready", {"cmd": "x", "timeout_seconds": 0}, "ready: timeout_seconds must be above 0"),
    ("ready", {"cmd": "x", "timeout_seconds": 601},
     "ready.timeout_seconds must be at most 600"),
    ("ready", {"cmd": "x", "every": 1}, "ready.every is not known"),
])
def test_commands_that_do_not_validate_name_file_and_field(listing, member, value, words):
    item = listing({"name": "mine", member: value})
    assert item["error"].startswith(f"mine/template.json: {words}"), item
