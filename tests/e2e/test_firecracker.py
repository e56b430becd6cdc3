"""What is Firecracker's own, played by a strict double (tests/doubles) in front of a guest-agent;
the rest is in test_doubled_vmms.py, with what a double cannot prove. Besides, a double cannot prove
that the real Firecracker takes what its double takes, nor that the real jailer locks it up. One
real guest on QEMU boots Firecracker's image from the kind of devices that Firecracker has.
"""
import contextlib
import pathlib
import platform
import socket
import stat
import subprocess

import pytest

from bridge import PROGRAM
from client import until
from conftest import need
from doubled import doubled_bridges, restore, snapshot


@pytest.fixture
def make(farm):
    with doubled_bridges(farm, "firecracker") as start:
        yield start


@pytest.fixture
def bridge(make):
    return make()


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


def test_it_is_locked_up_as_a_user_of_its_own_and_sees_nothing_it_may_change(bridge):
    first, second = (bridge.client.create() for _ in range(2))
    owners = {room(bridge, box).stat().st_uid for box in (first, second)}
    assert len(owners) == 2 and 0 not in owners
    for box in (first, second):
        inside = room(bridge, box)
        assert stat.S_IMODE(inside.stat().st_mode) == 0o700
        assert sorted(p.name for p in inside.iterdir()) == \
            ["agent.sock", "api.sock", "firecracker", "firecracker.pid", "v.sock"]
    [memory] = bridge.state.glob("baked/*/memory")
    assert (memory.stat().st_uid, stat.S_IMODE(memory.stat().st_mode)) == (0, 0o444)
    assert stat.S_IMODE(memory.parent.stat().st_mode) == 0o700
    assert [e["inode"] for e in bridge.doubles.events("loaded")] == [memory.stat().st_ino]


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


def test_an_unprivileged_bridge_does_without_the_jailer(make):
    bridge = make(as_nobody=True)
    (bridge.doubles.bin / "jailer").unlink()
    box = bridge.client.create()
    assert box.out("echo ok") == "ok\n"
    clone = restore(bridge.client, snapshot(box))
    for each in (box, clone):
        assert each.out("echo ok") == "ok\n"
        assert sorted(p.name for p in bridge.directory_of(each).iterdir()) == \
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
