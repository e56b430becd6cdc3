"""How `auto` finds out about KVM: guests tried out by whoever could run them. The VMMs are doubles
that need no KVM, on a PATH with nothing else."""
import fcntl
import os
import re

import pytest

from bridge import Bridge
from client import until
from conftest import need
from doubled import VERSIONS, Doubles

KVM_GET_API_VERSION = 0xAE00


def kvm_answers():
    try:
        with open("/dev/kvm", "rb+", buffering=0) as kvm:
            return fcntl.ioctl(kvm, KVM_GET_API_VERSION, 0) == 12
    except OSError:
        return False


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the double of the jailer needs root"),
    pytest.mark.skipif(not kvm_answers(), reason="there is no /dev/kvm that answers"),
]


class AutoBridge(Bridge):
    """On a host with Firecracker, or what is installed besides, and no QEMU."""

    def __init__(self, directory):
        super().__init__(directory, "auto")
        self.doubles = Doubles(directory, "firecracker", VERSIONS["firecracker"])

    def environment(self):
        return {**super().environment(), "PATH": str(self.doubles.bin)}

    def break_program(self, name):
        (self.doubles.bin / name).write_text("#!/bin/sh\nexit 1\n")
        (self.doubles.bin / name).chmod(0o755)

    def answer(self):
        """The candidates, and the one whose guest ran."""
        until((self.state / "kvm").exists, 30, "the end of the trial")
        return (self.state / "kvm").read_text().split()[1:]

    def create(self):
        return self.client.post("/v1/sandboxes", {"template": "base"}, timeout=60)

    def restart(self):
        self.terminate()
        self.process.wait(30)
        self.start()


@pytest.fixture
def bridge(farm):
    farm.count += 1
    made = AutoBridge(farm.directory / f"own{farm.count}")
    yield made
    made.stop()
    assert not list(made.state.glob("vm/*"))


def launchers(bridge):
    node = bridge.client.get("/v1/node").json
    return node["launcher"], {l["name"]: l for l in node["launchers"]}


def test_a_host_with_firecracker_and_no_qemu_runs_guests(bridge):
    bridge.start()
    assert bridge.answer() == ["firecracker", "firecracker"]
    reply = bridge.create()
    assert (reply.status, reply.json["vmm"], reply.json["isolation"]) == (201, "firecracker", "kvm")
    chosen, usable = launchers(bridge)
    assert chosen == "firecracker" and usable["firecracker"]["usable"]
    tried = len(bridge.doubles.events("booted"))
    bridge.restart()
    assert launchers(bridge)[0] == "firecracker"
    assert len(bridge.doubles.events("booted")) == tried


def test_until_kvm_has_been_tried_creates_are_told_to_wait(bridge):
    bridge.doubles.fault("silent", 1000)
    bridge.start()
    tree = bridge.cgroups() or pytest.skip("no cgroups can be made here")
    assert [leaf.name for leaf in tree.glob("*/")] == ["kvm-trial"]
    reply = bridge.create()
    assert (reply.status, reply.code) == (503, "capacity.unavailable")
    assert int(reply.headers["retry-after"]) > 0 and "KVM" in reply.error["message"]
    assert bridge.answer() == ["firecracker", "-"]
    until(lambda: not list(bridge.state.glob("vm/*")), 10, "the end of the guest that was tried")
    assert not list(tree.glob("*/"))
    reply = bridge.create()
    assert (reply.status, reply.code) == (502, "launcher.failed")


def test_a_bridge_that_ends_before_the_answer_leaves_nothing_of_the_trial(bridge):
    bridge.doubles.fault("silent", 1000)
    bridge.start()
    until(lambda: list(bridge.state.glob("vm/*")), 10, "the trial's beginning")
    bridge.terminate()
    bridge.process.wait(30)
    assert not list(bridge.state.glob("vm/*"))
    assert not list(bridge.state.glob("kvm"))


def test_what_fails_is_passed_over_and_another_choice_is_tried_anew(bridge):
    bridge.break_program("firecracker")
    bridge.break_program("cloud-hypervisor")
    bridge.start()
    assert bridge.answer() == ["firecracker,cloud-hypervisor", "-"]
    assert re.findall(r"info kvm: (\S+): the VM ended", bridge.log.read_text()) == \
        ["firecracker", "cloud-hypervisor"]
    assert bridge.log.read_text().count("trial boots say") == 1
    bridge.restart()
    assert bridge.log.read_text().count("trial boots say") == 1
    (bridge.doubles.bin / "cloud-hypervisor").unlink()
    bridge.doubles.install(VERSIONS["firecracker"])
    bridge.restart()
    until(lambda: bridge.answer() == ["firecracker", "firecracker"], 30, "the other answer")
    assert bridge.create().status == 201


def test_what_was_saved_without_kvm_wakes_without_it_where_kvm_has_been_found(farm):
    need("qemu")
    bridge = farm.new("qemu").start()
    try:
        box = bridge.client.create(ttl_seconds=600)
        box.out("echo kept > /tmp/file")
        assert box.client.post(box.path + "/hibernate", timeout=60).json["status"] == "hibernated"
        bridge.terminate()
        bridge.process.wait(30)
        bridge.answer_kvm("qemu", "qemu")
        bridge.start()
        assert launchers(bridge)[1]["qemu"]["isolation"] == "kvm"
        assert box.out("cat /tmp/file") == "kept\n"
        assert box.client.get(box.path).json["isolation"] == "tcg"
    finally:
        bridge.stop()
