"""A VM's processes: whose they are, in which cgroup, and that nothing of them is left."""
import contextlib
import os
import pathlib
import re
import subprocess

import pytest

from bridge import processes
from client import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root locks VMs up")


def cgroup_mount():
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        if " cgroup2 " in line:
            return pathlib.Path(line.split()[1])
    pytest.skip("there is no cgroup v2")


def cgroup_of(pid):
    text = pathlib.Path(f"/proc/{pid}/cgroup").read_text()
    return next(line[3:] for line in text.splitlines() if line.startswith("0::"))


def tree_of(bridge):
    return bridge.cgroups() or pytest.skip("no cgroups can be made here")


def members(bridge, box):
    """Its VMM and its device."""
    name = bridge.directory_of(box).name
    return [pid for pid, words, root in processes() if name in words or name in root]


def owners(pid):
    """Real, effective, saved and file system user and group ids, and supplementary groups."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {int(n) for key in ("Uid", "Gid", "Groups")
            for n in re.search(rf"^{key}:(.*)$", status, re.M).group(1).split()}


def user_of(bridge, box):
    ids = set().union(*(owners(pid) for pid in members(bridge, box)))
    assert len(ids) == 1, ids
    return ids.pop()


@contextlib.contextmanager
def stray_in(cgroup):
    """A process that nobody but its cgroup tells of."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


def test_each_vm_has_a_user_of_its_own_and_its_files_are_that_ones(bridge):
    boxes = [bridge.client.create(ttl_seconds=600) for _ in range(2)]
    users = [user_of(bridge, box) for box in boxes]
    assert users[0] != users[1] and not {0, 65534} & set(users)
    for box, user in zip(boxes, users):
        at = bridge.directory_of(box)
        assert at.stat().st_uid == user
        assert {(at / "vsock.sock").stat().st_uid, (at / "device.sock").stat().st_uid} == {user}
        box.delete()


def test_a_user_is_one_vms_for_as_long_as_that_lives(farm, launcher):
    bridge = farm.new(launcher, "--vm-uids", "70000:2").start()
    try:
        first, second = (bridge.client.create(ttl_seconds=600) for _ in range(2))
        assert {user_of(bridge, first), user_of(bridge, second)} == {70000, 70001}
        bridge.kill()
        bridge.start()
        reply = bridge.client.post("/v1/sandboxes", {"template": "base"})
        assert (reply.status, reply.code) == (503, "capacity.unavailable")
        user = user_of(bridge, first)
        first.delete()
        assert user_of(bridge, bridge.client.create(ttl_seconds=600)) == user
    finally:
        bridge.stop()


def test_a_vm_is_in_a_cgroup_of_its_own_that_goes_with_it(bridge):
    leaf = tree_of(bridge) / bridge.directory_of(box := bridge.client.create()).name
    pids = members(bridge, box)
    assert len(pids) >= 2
    assert {cgroup_mount() / cgroup_of(pid)[1:] for pid in pids} == {leaf}
    assert box.delete().status == 204
    assert not leaf.exists()


def test_what_got_into_a_vms_cgroup_dies_with_the_vm(bridge):
    leaf = tree_of(bridge) / bridge.directory_of(box := bridge.client.create()).name
    with stray_in(leaf) as stray:
        assert box.delete().status == 204
        assert stray.wait(10) == -9
    assert not leaf.exists()


def test_the_bridge_after_a_killed_one_finds_cgroups_again_and_sweeps_what_is_nobodys(own_bridge):
    bridge = own_bridge.start()
    box = bridge.client.create(ttl_seconds=600)
    leaf = tree_of(bridge) / bridge.directory_of(box).name
    orphan = tree_of(bridge) / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    bridge.kill()
    orphan.mkdir()
    with stray_in(orphan) as stray:
        bridge.start()
        assert stray.wait(10) == -9
    assert not orphan.exists()
    assert box.out("echo ok") == "ok\n"
    assert box.delete().status == 204
    assert not leaf.exists()
    bridge.terminate()
    bridge.process.wait(30)
    assert not leaf.parent.exists()


def test_without_the_right_to_make_cgroups_vms_run_and_the_log_says_so_once(farm):
    bridge = farm.new("qemu")
    for path in (bridge.directory, bridge.state, bridge.attach):
        os.chown(path, 65534, 65534)
    bridge.start(user=65534, group=65534, extra_groups=[])
    try:
        boxes = [bridge.client.create(ttl_seconds=600) for _ in range(2)]
        assert user_of(bridge, boxes[0]) == 65534
        assert boxes[0].out("echo ok") == "ok\n"
        until(lambda: bridge.log.read_text().count("VMs have no cgroups") == 1, 5, "a line")
        for box in boxes:
            assert box.delete().status == 204
            assert not members(bridge, box)
    finally:
        bridge.stop()
