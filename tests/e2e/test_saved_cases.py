"""Cases 13, 14 and 28 of the public bug reports, ten rounds each in real guests, and execs that
live through thirty snapshots."""
import concurrent.futures
import os
import signal
import time

import pytest

from client import Collected, Sandbox, until
from test_killed_vmm import processes

ROUNDS = 10
CLONES = 4
GUEST = {"ttl_seconds": 600, "resources": {"memory_mib": 128}}
SLEEPERS = "grep -lx 'Name:.sleep' /proc/[0-9]*/status 2>/dev/null | wc -l"


@pytest.fixture(scope="module")
def qemu(farm):
    return farm.bridge("qemu")


@pytest.fixture
def box(qemu):
    made = qemu.client.create(**GUEST)
    yield made
    made.delete()


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(2 * ROUNDS) as made:
        yield made


def snapshot(box):
    reply = box.client.post(box.path + "/snapshots", timeout=60)
    assert reply.status == 201, reply.body
    return reply.json["id"]


def restore(client, snap):
    reply = client.post("/v1/sandboxes", {"from_snapshot": snap, "ttl_seconds": 600}, timeout=60)
    assert reply.status == 201, reply.body
    return Sandbox(client, reply.json)


def answers_at_once(box):
    began = time.monotonic()
    assert box.out("echo ok", timeout_seconds=5) == "ok\n"
    took = time.monotonic() - began
    assert took < 2, took


def test_an_exec_in_flight_over_a_snapshot_ends_truly_and_not_in_the_clone(qemu, box, pool):
    """Case 13. Each round begins an exec, so the later snapshots are lived through by several."""
    waiting = []
    for n in range(ROUNDS):
        waiting.append(pool.submit(box.run, "sleep 5; echo x", exec_id=f"e{n}"))
        until(lambda: box.is_running(f"e{n}"), 10)
        snap = snapshot(box)
        clone = restore(qemu.client, snap)
        answers_at_once(clone)
        assert clone.out(SLEEPERS) == "0\n"
        states = {e["exec_id"]: e for e in clone.client.get(clone.path + "/execs").json["items"]}
        assert all(states[e]["state"] == "finished" for e in states if e.startswith("e"))
        assert clone.delete().status == 204
        assert qemu.client.delete(f"/v1/snapshots/{snap}").status == 204
    for wait in waiting:
        result = wait.result(60)
        assert (result["outcome"], result["exit_code"], result["stdout"]) == ("exited", 0, "x\n")


def test_the_first_exec_of_a_sandbox_that_came_back_works_and_runs_once(box):
    """Case 14: saved, stopped and restored under the same id."""
    for n in range(ROUNDS):
        answers_at_once(box)
        reply = box.client.post(box.path + "/hibernate", timeout=60)
        assert reply.status == 200, reply.body
        if n % 2 == 0:  # else the exec itself wakes it
            assert box.client.post(box.path + "/wake", timeout=60).status == 200
        began = time.monotonic()
        assert box.out("echo ok; echo run >> /tmp/log", timeout_seconds=5) == "ok\n"
        assert time.monotonic() - began < 2
        assert box.out("wc -l < /tmp/log") == f"{n + 1}\n"


def test_clones_have_the_right_time_and_random_numbers_of_their_own(qemu, box, pool):
    """Case 28. The snapshots of all rounds are taken first, each while an exec is running, and
    are then ten seconds old."""
    rounds = []
    for n in range(ROUNDS):
        box.start("sleep 3; echo t", exec_id=f"d{n}", timeout_seconds=10)
        waits = pool.submit(box.run, "sleep 3; echo t", exec_id=f"f{n}", timeout_seconds=10)
        until(lambda: box.is_running(f"f{n}"), 10)
        rounds.append((n, snapshot(box), waits, time.monotonic()))
    said = "date +%s; cat /proc/sys/kernel/random/uuid"
    numbers, kept = [], []
    for n, snap, waits, taken in rounds:
        result = waits.result(60)
        assert (result["outcome"], result["stdout"]) == ("exited", "t\n")
        assert 3000 <= result["duration_ms"] < 10000, result
        time.sleep(max(0, taken + 10 - time.monotonic()))  # the age that the case is about
        clones = list(pool.map(lambda _: restore(qemu.client, snap), range(CLONES)))
        before = time.time()
        outs = list(pool.map(lambda c: c.out(said, timeout_seconds=5).split(), clones))
        after = time.time()
        assert all(before - 2 <= int(o[0]) <= after + 2 for o in outs), (before, outs, after)
        numbers += [o[1] for o in outs]
        kept.append(clones.pop())
        assert {c.delete().status for c in clones} == {204}
        assert qemu.client.delete(f"/v1/snapshots/{snap}").status == 204
    assert len(set(numbers)) == ROUNDS * CLONES
    for n, clone in enumerate(kept):  # the clock went on by ten seconds in the middle of it
        result = clone.state(f"d{n}", wait_seconds=15)["result"]
        assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
        assert 3000 <= result["duration_ms"] < 10000, result
        assert clone.delete().status == 204


def stop_for(pid, after, seconds):
    time.sleep(after)  # these are the moments of the fault
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def test_a_clone_that_was_slow_to_be_told_the_time_has_it_right_all_the_same(qemu, box, pool):
    """Its VMM stands still for three seconds at some moment of its start."""
    snap = snapshot(box)
    known = {p.name for p in qemu.state.glob("vm/*")}
    clones = [pool.submit(restore, qemu.client, snap) for _ in range(4)]
    stopped = {}

    def found():
        for at in qemu.state.glob("vm/*"):
            if at.name not in known | stopped.keys() and "qemu-system-x86_64" in processes(
                    qemu, at.name):
                stopped[at.name] = pool.submit(
                    stop_for, processes(qemu, at.name)["qemu-system-x86_64"],
                    0.1 + 0.1 * len(stopped), 3)
        return len(stopped) == 4
    until(found, 10, "the start of the VMs")
    clones = [c.result(60) for c in clones]
    for clone in clones:
        before = time.time()
        said = int(clone.out("date +%s"))
        assert before - 2 <= said <= time.time() + 2, (before, said)
        assert clone.delete().status == 204
    assert qemu.client.delete(f"/v1/snapshots/{snap}").status == 204


def test_execs_live_through_thirty_snapshots_and_lose_nothing(box, pool):
    """One that is silent, one that talks, with a watcher, and one that somebody waits for."""
    silent = pool.submit(box.run, "until [ -e /tmp/done ]; do sleep 0.1; done; echo end",
                         exec_id="silent", timeout_seconds=30)
    talk = "i=0; until [ -e /tmp/done ]; do i=$((i+1)); echo $i; sleep 0.05; done"
    stream = box.stream(talk, exec_id="talk", timeout_seconds=30)
    told = pool.submit(lambda: Collected(list(stream)))
    box.start("until [ -e /tmp/done ]; do sleep 0.1; done", exec_id="waited", timeout_seconds=30)
    until(lambda: all(box.is_running(e) for e in ("silent", "talk", "waited")), 10)
    watched = pool.submit(lambda: Collected(list(box.watch("talk"))))
    waited = pool.submit(box.state, "waited", 60)
    began = time.monotonic()
    for _ in range(30):
        assert box.client.delete(f"/v1/snapshots/{snapshot(box)}").status == 204
    box.out("touch /tmp/done")
    lasted = time.monotonic() - began
    result = silent.result(30)
    assert (result["outcome"], result["stdout"]) == ("exited", "end\n")
    assert result["duration_ms"] < lasted * 1000 + 5000
    lines = told.result(30).stdout.split()
    assert lines == [str(i) for i in range(1, len(lines) + 1)] and len(lines) > 30
    assert watched.result(30).stdout.split() == lines
    assert waited.result(30)["result"]["outcome"] == "exited"
