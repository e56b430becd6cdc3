"""VMs that are restored before anybody asks for them."""
import contextlib
import os
import signal

import pytest

from bridge import Bridge, processes
from client import until


def warm(bridge):
    return bridge.client.get("/v1/node").json["warm_vms"]


def rooms(bridge):
    """The directories of VMs, those of warm ones among them."""
    return {p.name for p in (bridge.state / "vm").iterdir()}


@pytest.fixture(scope="module")
def filled(farm):
    bridge = farm.new("qemu", "--warm-pool", "1").start()
    bridge.client.create().delete()
    until(lambda: warm(bridge) == 1, 30, "a warm VM")
    yield bridge
    bridge.stop()


@pytest.fixture
def pool(filled):
    """A bridge whose pool is full, and nobody's but the test's."""
    filled.delete_all()
    if warm(filled) == 0:
        filled.client.create().delete()
    until(lambda: warm(filled) == 1 and len(rooms(filled)) == 1, 30, "one warm VM alone")
    return filled


def test_a_create_takes_what_is_there_and_another_is_made(pool):
    [room] = rooms(pool)
    box = pool.client.create(metadata={"whose": "mine"}, ttl_seconds=77)
    try:
        assert box.id.endswith(room), "it is another VM"
        assert box.info["boot_mode"] == "restore" and box.info["metadata"] == {"whose": "mine"}
        assert box.info["boot_stages_ms"]["launch"] == 0 and box.info["agent"]["version"]
        assert box.out("hostname").strip() == f"sb-{room}"
        until(lambda: warm(pool) == 1, 30, "the next one")
        other = pool.client.create()
        names = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname"
        assert not set(box.out(names).split()) & set(other.out(names).split())
        other.delete()
    finally:
        box.delete()


def test_one_that_waits_runs_a_first_exec_and_forgets_it(pool):
    pool.client.create().delete()
    until(lambda: warm(pool) == 1, 30, "another warm VM")
    until(lambda: warm(pool) == 0, 30, "its first exec")
    until(lambda: warm(pool) == 1, 30, "the end of that")
    box = pool.client.create()
    assert box.client.get(box.path + "/execs").json["items"] == []
    assert box.out("echo hi") == "hi\n"
    box.delete()


def test_nobody_sees_it(pool):
    [room] = rooms(pool)
    client, id = pool.client, f"sb-{pool.client.get('/v1/node').json['node']}-" + room
    assert client.get("/v1/sandboxes").json["items"] == []
    assert client.get(f"/v1/sandboxes/{id}").json["error"]["code"] == "sandbox.not_found"
    assert client.delete(f"/v1/sandboxes/{id}").json["error"]["code"] == "sandbox.not_found"
    assert client.get("/v1/node").json["allocated"] == {"memory_mib": 0, "vcpus": 0}
    assert client.get("/v1/quota").json["sandboxes_used"] == 0
    stream = client.stream("GET", "/v1/events")
    until(lambda: warm(pool) == 1, 30, "it still")
    box = client.create()
    box.delete()
    seen = []
    for event in stream:
        seen.append(event.name)
        if event.name == "deleted":
            break
    stream.close()
    assert seen == ["created", "booting", "running", "deleted"]


def test_one_whose_vm_has_died_is_replaced_and_not_handed_out(pool):
    [room] = rooms(pool)
    for pid, _, places in processes():
        if room in places:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until(lambda: room not in rooms(pool), 10, "its directory to be gone")
    box = pool.client.create()
    assert box.info["boot_mode"] == "restore", "the template's snapshot was thrown away"
    assert box.out("echo hi") == "hi\n"
    box.delete()


# The last to have it: each size gets one of its own.
def test_another_size_or_a_refused_create_leaves_it_alone(pool):
    [room] = rooms(pool)
    box = pool.client.create(resources={"memory_mib": 320})
    assert not box.id.endswith(room)
    box.delete()
    reply = pool.client.post("/v1/sandboxes", {"template": "base", "ttl_seconds": -1})
    assert reply.status == 400
    assert room in rooms(pool)


def test_it_gives_way_when_there_are_no_user_ids_left(farm):
    bridge = farm.new("qemu", "--warm-pool", "1", "--vm-uids", "1500:2").start()
    first = bridge.client.create()
    until(lambda: warm(bridge) == 1, 30, "a warm VM")
    other = bridge.client.create(resources={"memory_mib": 320})
    assert other.out("echo hi") == "hi\n" and first.out("echo hi") == "hi\n"
    bridge.stop()


class CrampedBridge(Bridge):
    """On a host with memory for what it keeps to itself, two guests of 256 MiB, and half of
    one."""
    MEMORY_MIB = 256 + 512 + 2 * (256 + 48) + 128

    def command(self):
        meminfo = self.directory / "meminfo"
        meminfo.write_text(f"MemTotal: {self.MEMORY_MIB << 10} kB\n"
                           f"MemAvailable: {self.MEMORY_MIB << 10} kB\n")
        return ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"',
                meminfo, *super().command()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change what is mounted")
def test_it_gives_way_when_there_is_no_memory_left(farm):
    bridge = farm.new("qemu", "--warm-pool", "1", kind=CrampedBridge).start()
    first = bridge.client.create()
    until(lambda: warm(bridge) == 1, 30, "a warm VM")
    [room] = rooms(bridge) - {first.id[-26:]}
    other = bridge.client.create(resources={"memory_mib": 320})
    assert room not in rooms(bridge)
    assert other.out("echo hi") == "hi\n" and first.out("echo hi") == "hi\n"
    reply = bridge.client.post("/v1/sandboxes", {"template": "base"})
    assert (reply.status, reply.code) == (503, "capacity.unavailable"), reply.body
    bridge.stop()


def test_a_killed_bridge_leaves_none_behind(farm):
    bridge = farm.new("qemu", "--warm-pool", "1").start()
    bridge.client.create().delete()
    until(lambda: warm(bridge) == 1, 30, "a warm VM")
    [room] = rooms(bridge)
    bridge.kill()
    bridge.flags = ("--warm-pool", "0")
    bridge.start()
    assert rooms(bridge) == set() and warm(bridge) == 0
    assert [pid for pid, _ in bridge.leftovers()] == [bridge.process.pid]
    bridge.stop()


@pytest.mark.parametrize("how", ["terminated", "drained"])
def test_a_bridge_that_goes_takes_it_along(farm, how):
    bridge = farm.new("qemu", "--warm-pool", "2", "--drain-seconds", "1").start()
    box = bridge.client.create()
    until(lambda: warm(bridge) == 2, 60, "two warm VMs")
    assert len(rooms(bridge)) == 3
    if how == "drained":
        assert bridge.client.post("/v1/node/drain").json["warm_vms"] == 0
    else:
        bridge.process.send_signal(signal.SIGTERM)
        bridge.process.wait(30)
    assert rooms(bridge) == {box.id.rsplit("-", 1)[1]}
    if how == "terminated":
        bridge.start()
    box.delete()
    bridge.stop()
    assert not bridge.leftovers()
