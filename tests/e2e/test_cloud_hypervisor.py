"""What is Cloud Hypervisor's own; the rest is in test_doubled_vmms.py, with what a double cannot
prove. That the bridge locks a VMM up, the double cannot show either, as it needs this machine's
Python: a small program stands for the VMM in the jail."""
import json
import os
import subprocess

import pytest

from bridge import ROOT, Bridge
from doubled import doubled_bridges, snapshot


@pytest.fixture
def make(farm):
    with doubled_bridges(farm, "cloud-hypervisor") as start:
        yield start


def test_versions_that_leave_connections_hanging_are_not_saved_and_boot_each_time(make):
    bridge = make("51.1.0")
    first, second = (bridge.client.create() for _ in range(2))
    assert {b.info["boot_mode"] for b in (first, second)} == {"boot"}
    for action in ("snapshots", "fork", "hibernate"):
        reply = first.client.post(f"{first.path}/{action}", timeout=60)
        assert (reply.status, reply.code) == (422, "limit.unsupported"), (action, reply.body)
        assert "v52" in reply.error["message"]
        assert first.out("echo ok") == "ok\n"
    assert first.client.post(first.path + "/pause").json["status"] == "paused"
    assert first.client.post(first.path + "/resume").json["status"] == "running"
    assert first.out("echo ok") == "ok\n"


def test_it_sees_nothing_of_what_it_was_shown_once_the_guest_runs(make):
    """Not even the kernel: it would start a guest that resets anew, and nobody would know."""
    bridge, alone = make(), ["agent.sock", "api.sock", "api.sock.lock", "v.sock"]
    first, second = (bridge.client.create() for _ in range(2))
    assert bridge.doubles.events("pause")[0]["files"] == alone
    snap = snapshot(first)
    for box in (first, second):
        assert sorted(p.name for p in bridge.directory_of(box).iterdir()) == alone
    files = bridge.state / "snapshots" / snap["id"]
    assert {p.name: p.stat().st_mode & 0o777 for p in files.iterdir()
            if p.name != "agent.json"} == dict.fromkeys(("config", "state", "memory", "version"),
                                                        0o444)


def test_a_guest_has_neither_nested_virtualisation_nor_another_cid(make):
    bridge = make()
    bridge.client.create()
    bridge.client.create()
    [booted], [restored] = (bridge.doubles.events(kind) for kind in ("booted", "restored"))
    assert booted["config"]["cpus"]["nested"] is False
    assert booted["config"]["vsock"] == restored["config"]["vsock"]
    assert "initramfs" not in restored["config"]["payload"]


class OwnProgram(Bridge):
    """A bridge that finds its VMM in its own directory."""

    def environment(self):
        return {**super().environment(), "PATH": f"{self.directory}:{os.environ['PATH']}"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root locks VMs up")
def test_root_locks_it_up(farm):
    farm.count += 1
    bridge = OwnProgram(farm.directory / f"own{farm.count}", "cloud-hypervisor")
    subprocess.run(["cc", "-O1", "-static", "-s", "-o", bridge.directory / "cloud-hypervisor",
                    ROOT / "tests/e2e/locked.c"], check=True)
    bridge.start()
    reply = bridge.client.post("/v1/sandboxes", {"template": "base"}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed")
    text = bridge.log.read_text().split("its output ended: ", 1)[1].splitlines()[0]
    seen = json.loads(text)
    assert seen["uid"] == seen["gid"] and seen["uid"] not in (0, 65534)
    assert (seen["groups"], seen["pid"]) == (0, 1)
    assert seen["arguments"] == "--api-socket api.sock"
    assert (seen["/dev/kvm"], seen["/dev/urandom"], seen["/own"]) == (True, True, True)
    assert (seen["/dev/null"], seen["/etc/passwd"]) == (False, False)
    assert not {"etc", "proc", "sys", "root", "home", "state"} & set(seen["root"])
    assert seen["interfaces"] == 1
    bridge.stop()
    assert not list(bridge.state.glob("vm/*"))
