"""A guest that dies, stops, or lies gives a typed error in time; others notice nothing."""
import os
import signal
import time

import pytest

from client import Stream, until

LOST = {"sandbox.lost", "agent.timeout", "agent.unreachable"}


@pytest.fixture
def victim(bridge):
    made = bridge.client.create()
    yield made
    made.delete()


def test_killed_vm_harms_no_other(bridge, sandbox, victim):
    with sandbox.send("sleep 2; echo fine", timeout_seconds=20) as neighbour:
        waiting = victim.send("sleep 60", timeout_seconds=120)
        until(lambda: victim.client.get(victim.path + "/execs").json["items"], 5, "the start")
        bridge.kill_guests(victim)
        with waiting:
            assert waiting.reply().code == "sandbox.lost"
        assert neighbour.reply().json["stdout"] == "fine\n"
    began = time.monotonic()
    reply = victim.exec("echo ok", timeout=30)
    assert reply.code in LOST | {"sandbox.gone"}, reply.body
    assert time.monotonic() - began < 15


def test_stopped_vm_is_told_of_and_goes_on(bridge, sandbox, victim):
    machine = bridge.machine(victim)
    os.kill(machine, signal.SIGSTOP)
    try:
        began = time.monotonic()
        reply = victim.exec("echo ok", timeout_seconds=5, timeout=60)
        assert reply.status in (502, 503, 504) and reply.code in LOST, reply.body
        assert time.monotonic() - began < 30
        assert sandbox.out("echo ok") == "ok\n"
    finally:
        os.kill(machine, signal.SIGCONT)
    until(lambda: victim.exec("echo back").status == 200, 30, "the guest's return")


def test_stopped_vm_in_the_middle_of_a_stream(bridge, victim):
    stream = victim.stream("echo up; sleep 3", timeout_seconds=5, timeout=90)
    stream.until("stdout")
    machine = bridge.machine(victim)
    os.kill(machine, signal.SIGSTOP)
    try:
        rest = list(stream)
        assert rest[-1].name == "error" and rest[-1].data["code"] in LOST, rest
    finally:
        os.kill(machine, signal.SIGCONT)


def test_crashed_kernel(victim):
    connection = victim.send("echo 1 > /proc/sys/kernel/sysrq; echo up; sleep 0.3; "
                             "echo c > /proc/sysrq-trigger; sleep 60", "/exec/stream")
    with connection:
        stream = Stream(connection, *connection.head())
        stream.until("stdout", "up")
        began = time.monotonic()
        last = stream.collect().last
    assert last["type"] == "error" and last["code"] == "sandbox.lost", last
    until(lambda: victim.status() == "failed", 5, "the sandbox's failure")
    assert time.monotonic() - began < 5


def test_powered_off_by_its_own_root(victim):
    reply = victim.exec("echo o > /proc/sysrq-trigger; sleep 60", timeout_seconds=90)
    assert reply.status in (502, 504) and reply.code in LOST, reply.body


def test_init_cannot_be_killed_from_inside(sandbox):
    for name in ("KILL", "TERM", "STOP", "INT", "HUP", "SEGV"):
        sandbox.run(f"kill -{name} 1")
    assert sandbox.out("echo ok") == "ok\n"


def test_agent_killed_on_local(farm, local_bridge):
    own = local_bridge.client.create()
    waiting = own.stream("echo up; sleep 60")
    waiting.until("stdout", "up")
    local_bridge.kill_guests(own)
    last = waiting.collect().last
    assert last["type"] == "error" and last["code"] == "sandbox.lost", last
    own.delete()
