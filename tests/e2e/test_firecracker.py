"""Firecracker, played by a strict double (tests/doubles) in front of a guest-agent.

What a double cannot prove: that the real Firecracker takes what its double takes, that the real
jailer locks it up, that KVM runs the guest. That a clone has its parent's memory, that clones
share its pages, that each has a clock, names and random numbers of its own: the double's guest
is an agent on this machine's kernel, which starts anew at each restore and whose clocks go on
while it is paused. Limits of memory and processes, and how fast any of it is. Real guests on
QEMU answer for the agent's part (test_snapshots.py, test_limits.py), and one boots Firecracker's
image, below, from the kind of devices that Firecracker has.
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import platform
import shlex
import socket
import stat
import subprocess

import pytest

from bridge import AGENT, PROGRAM, ROOT, Bridge
from client import Collected, Sandbox, until
from conftest import need

DOUBLES = ROOT / "tests/doubles"
NOBODY = 65534
LOST = {"sandbox.lost", "agent.timeout", "agent.unreachable"}


class Doubles:
    """A directory for PATH with the two doubles, and what they are told and tell."""

    def __init__(self, directory, version):
        self.bin, self.log = directory / "bin", directory / "double.log"
        self.faults = directory / "faults"
        self.bin.mkdir(parents=True)
        for path in (self.log, self.faults):
            path.touch()
            path.chmod(0o666)
        (self.bin / "jailer").symlink_to(DOUBLES / "jailer")
        self.install(version)

    def install(self, version):
        settings = {"AGENT": AGENT, "VERSION": version, "LOG": self.log, "FAULTS": self.faults}
        exports = [f"export DOUBLE_{k}={shlex.quote(str(v))}" for k, v in settings.items()]
        program = self.bin / "firecracker"
        program.write_text("\n".join(["#!/bin/sh", *exports,
                                      f'exec {DOUBLES}/firecracker "$@"', ""]))
        program.chmod(0o755)

    def fault(self, mode, count):
        self.faults.write_text(f"{mode} {count}")

    def unused_faults(self):
        return int((self.faults.read_text().split() + ["0", "0"])[1])

    def events(self, kind):
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]


class FirecrackerBridge(Bridge):
    def __init__(self, directory, version="1.17.0"):
        super().__init__(directory, "firecracker")
        self.doubles = Doubles(directory, version)

    def environment(self):
        return {**super().environment(), "PATH": f"{self.doubles.bin}:{os.environ['PATH']}"}

    def stop(self):
        """No guest's memory was ever changed under it, and nothing is left."""
        super().stop()
        assert self.doubles.events("violation") == []
        assert list(self.state.glob("vm/*")) == []


@pytest.fixture
def make(farm):
    """Bridges of one test, started, and stopped after it."""
    made = []

    def start(version="1.17.0", **popen):
        farm.count += 1
        bridge = FirecrackerBridge(farm.directory / f"own{farm.count}", version)
        made.append(bridge)
        if "user" in popen:
            for path in (bridge.directory, bridge.state, bridge.attach):
                os.chown(path, popen["user"], popen["group"])
        return bridge.start(**popen)
    yield start
    for bridge in made:
        bridge.stop()


@pytest.fixture
def bridge(make):
    return make()


def snapshot(box):
    reply = box.client.post(box.path + "/snapshots", timeout=60)
    assert reply.status == 201, reply.body
    return reply.json


def restore(client, snap):
    reply = client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=90)
    assert reply.status == 201, reply.body
    return Sandbox(client, reply.json)


def agent_listens(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(2)
        try:
            s.connect(str(path))
            s.sendall(b"CONNECT 523\n")
            return s.recv(100).startswith(b"OK ")
        except OSError:
            return False


def room(bridge, box):
    """The directory that its Firecracker runs in."""
    return bridge.directory_of(box) / "firecracker/vm/root"


def test_the_first_sandbox_boots_and_the_next_starts_from_its_snapshot(bridge):
    first, second = (bridge.client.create() for _ in range(2))
    assert [b.info["boot_mode"] for b in (first, second)] == ["boot", "restore"]
    assert {(b.info["vmm"], b.info["isolation"]) for b in (first, second)} == \
        {("firecracker", "kvm")}
    assert [b.out("echo ok") for b in (first, second)] == ["ok\n", "ok\n"]
    assert bridge.doubles.events("refused") == []


def test_it_is_locked_up_as_nobody_and_sees_nothing_it_may_change(bridge):
    first, second = (bridge.client.create() for _ in range(2))
    for box in (first, second):
        inside = room(bridge, box)
        assert (inside.stat().st_uid, stat.S_IMODE(inside.stat().st_mode)) == (NOBODY, 0o700)
        assert sorted(p.name for p in inside.iterdir()) == \
            ["agent.sock", "api.sock", "firecracker", "firecracker.pid", "v.sock"]
    [memory] = bridge.state.glob("baked/*/memory")
    assert (memory.stat().st_uid, stat.S_IMODE(memory.stat().st_mode)) == (0, 0o444)
    assert stat.S_IMODE(memory.parent.stat().st_mode) == 0o700
    assert [e["inode"] for e in bridge.doubles.events("loaded")] == [memory.stat().st_ino]


@pytest.mark.parametrize("version", ["1.15.1", "1.17.0"])
def test_snapshot_restore_and_fork(make, version):
    bridge = make(version)
    box = bridge.client.create()
    stream = box.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done")
    events = iter(stream)
    seen = [next(events), next(events)]
    snap = snapshot(box)
    whole = Collected(seen + list(events))
    assert (whole.stdout, whole.gaps) == ("1\n2\n3\n4\n5\n6\n", [])
    clones = [restore(bridge.client, snap) for _ in range(2)]
    reply = box.client.post(box.path + "/fork", {"count": 2}, timeout=90)
    assert reply.status == 201, reply.body
    clones += [Sandbox(box.client, item) for item in reply.json["items"]]
    assert [c.out("echo clone") for c in clones] == ["clone\n"] * 4
    assert box.out("echo source") == "source\n"
    assert snap["vmm"] == "firecracker" and snap["bytes"] > 0
    assert bridge.client.delete(f"/v1/snapshots/{snap['id']}").status == 204
    assert clones[0].out("echo still") == "still\n"  # its file has no name any more
    assert bridge.doubles.events("refused") == []


def test_pause_and_resume(bridge):
    box = bridge.client.create()
    assert box.client.post(box.path + "/pause").json["status"] == "paused"
    assert box.exec("true").code == "sandbox.invalid_state"
    assert box.client.post(box.path + "/resume").json["status"] == "running"
    assert box.out("echo ok") == "ok\n"


def test_hibernate_and_wake(bridge):
    box = bridge.client.create()
    reply = box.client.post(box.path + "/hibernate", timeout=60)
    assert (reply.status, reply.json["status"]) == (200, "hibernated"), reply.body
    until(lambda: not bridge.directory_of(box).exists(), 10, "the VM's end")
    assert box.out("echo awake") == "awake\n"
    assert box.status() == "running"


def test_versions_that_do_not_survive_it_are_neither_paused_nor_saved(make):
    flawed = make("1.16.1")
    box = flawed.client.create()
    reply = box.client.post(box.path + "/pause")
    assert (reply.status, reply.code) == (422, "limit.unsupported")
    snapshot(box)
    assert box.out("echo ok") == "ok\n"
    deaf = make("1.16.0")
    first, second = (deaf.client.create() for _ in range(2))
    assert {b.info["boot_mode"] for b in (first, second)} == {"boot"}
    reply = first.client.post(first.path + "/snapshots", timeout=60)
    assert (reply.status, reply.code) == (422, "limit.unsupported")
    assert first.out("echo ok") == "ok\n"


def test_a_snapshot_of_another_version_is_refused_and_its_vm_is_gone(bridge):
    box = bridge.client.create()
    snap = snapshot(box)
    bridge.doubles.install("1.18.0")
    reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert any("Snapshot version" in e["why"] for e in bridge.doubles.events("refused"))
    fresh = bridge.client.create()  # the baked one was another program's
    assert (fresh.info["boot_mode"], fresh.out("echo ok")) == ("boot", "ok\n")


@pytest.mark.parametrize("break_it", ["short memory", "no state"])
def test_a_broken_snapshot_is_a_launchers_failure(bridge, break_it):
    box = bridge.client.create()
    snap = snapshot(box)
    files = bridge.state / "snapshots" / snap["id"]
    if break_it == "no state":
        (files / "state").write_text("")
    else:
        os.truncate(files / "memory", 1 << 20)
    reply = bridge.client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert box.out("echo ok") == "ok\n"


@pytest.mark.parametrize("mode", ["eof", "reset"])
def test_lost_first_connections_are_tried_again(bridge, mode):
    bridge.doubles.fault(mode, 3)
    first = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    bridge.doubles.fault(mode, 5)
    second = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    assert [b.out("echo ok") for b in (first, second)] == ["ok\n", "ok\n"]


@pytest.mark.parametrize("mode", ["silent", "mute"])
def test_silent_first_connections_are_given_up_and_tried_again(bridge, mode):
    bridge.doubles.fault(mode, 1)
    box = bridge.client.create()
    assert bridge.doubles.unused_faults() == 0
    snap = snapshot(box)
    bridge.doubles.fault(mode, 2)
    assert restore(bridge.client, snap).out("echo ok") == "ok\n"
    assert bridge.doubles.unused_faults() == 0


def test_a_guest_that_never_comes_is_given_up_at_its_deadline_and_leaves_nothing(make):
    bridges = {mode: make() for mode in ("eof", "reset", "silent", "mute")}

    def create(mode):
        bridges[mode].doubles.fault(mode, 1000000)
        return bridges[mode].client.post("/v1/sandboxes", {"template": "base"}, timeout=75)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # the deadline is a minute
        replies = dict(zip(bridges, pool.map(create, bridges)))
    for mode, bridge in bridges.items():
        bridge.doubles.fault("none", 0)
        assert replies[mode].status in (502, 503, 504), (mode, replies[mode].body)
        assert replies[mode].code in LOST, (mode, replies[mode].body)
        until(lambda: not list(bridge.state.glob("vm/*")), 10, "an empty directory of VMs")
        until(lambda: len(bridge.leftovers()) == 1, 10, "no process but the bridge")


@pytest.mark.parametrize("mode", ["silent", "eof", "reset", "mute"])
def test_an_exec_in_a_guest_that_fell_silent_ends_in_a_typed_error(bridge, mode):
    box = bridge.client.create()
    bridge.doubles.fault(mode, 1000000)
    box.exec("true", timeout=60)  # takes the spare link, made before
    reply = box.exec("true", timeout=60)
    assert reply.code in LOST, reply.body
    bridge.doubles.fault("none", 0)


def test_a_firecracker_that_is_killed_is_a_lost_sandbox_and_its_sockets_go(bridge):
    box = bridge.client.create()
    bridge.kill_guests(box)
    until(lambda: box.status() == "failed", 10)
    assert box.exec("true").code == "sandbox.gone"
    until(lambda: not bridge.directory_of(box).exists(), 10, "its directory's end")


def test_deleted_sandboxes_leave_no_process_socket_or_file(bridge):
    bridge.client.create().delete()
    before = bridge.fds()
    for _ in range(3):
        box = bridge.client.create()
        assert box.start("sleep 60")
        assert box.delete().status == 204
    until(lambda: len(bridge.leftovers()) == 1, 10, "no process but the bridge")
    until(lambda: bridge.fds() <= before + 1, 5, "the descriptors' return")
    assert list(bridge.state.glob("vm/*")) == []


def test_a_restarted_bridge_takes_its_vms_up(bridge):
    boxes = [bridge.client.create() for _ in range(2)]
    bridge.kill()
    bridge.start()
    for box in boxes:
        again = Sandbox(bridge.client, {"id": box.id})
        assert again.out("echo ok") == "ok\n"
        snapshot(again)
        assert again.client.post(again.path + "/pause").json["status"] == "paused"
        assert again.client.post(again.path + "/resume").json["status"] == "running"


def test_an_unprivileged_bridge_does_without_the_jailer(make):
    bridge = make(user=NOBODY, group=NOBODY, extra_groups=[])
    (bridge.doubles.bin / "jailer").unlink()
    box = bridge.client.create()
    assert box.out("echo ok") == "ok\n"
    snapshot(box)
    assert box.out("echo ok") == "ok\n"
    assert sorted(p.name for p in bridge.directory_of(box).iterdir()) == \
        ["agent.sock", "api.sock", "v.sock"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="QEMU's microvm is an x86 machine")
def test_its_image_boots_with_its_arguments_from_virtio_mmio(bridge, tmp_path, rootfs):
    need("qemu")
    bridge.client.create().delete()
    [booted] = bridge.doubles.events("booted")
    mhz = next(line.split(":")[1] for line in pathlib.Path("/proc/cpuinfo").open()
               if line.startswith("cpu MHz"))
    emulated = f"mitigations=off tsc=reliable tsc_early_khz={int(float(mhz) * 1000)}"
    machine = ["qemu-system-x86_64", "-M", "microvm,acpi=on,memory-backend=ram", "-accel", "tcg",
               "-cpu", "max,-erms", "-m", "256M", "-nodefaults", "-no-user-config", "-nographic",
               "-object", "memory-backend-memfd,id=ram,size=256M,share=on", "-serial", "stdio",
               "-kernel", rootfs / "vmlinux", "-initrd", rootfs / "base-firecracker.cpio",
               "-append", f"{booted['arguments']} {emulated}",
               "-chardev", "socket,id=vsock,path=device.sock",
               "-device", "vhost-user-vsock-device,chardev=vsock"]
    device = [PROGRAM, "vsock-device", "--socket", "device.sock", "--uds", "v.sock"]
    quiet = {"cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(device, **quiet) as back, contextlib.ExitStack() as end:
        end.callback(back.kill)
        until((tmp_path / "device.sock").exists, 10)
        vmm = end.enter_context(subprocess.Popen(machine, **quiet))
        end.callback(vmm.kill)
        until(lambda: agent_listens(tmp_path / "v.sock"), 60, "the agent in the guest")


def test_root_without_the_jailer_starts_none(bridge):
    (bridge.doubles.bin / "jailer").unlink()
    reply = bridge.client.post("/v1/sandboxes", {"template": "base"})
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert "jailer" in reply.error["message"]
