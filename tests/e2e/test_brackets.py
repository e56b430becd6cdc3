"""Snapshots that the owner of an attached VM takes by itself: prepare, and resumed."""
import os
import shutil
import subprocess
import time

import pytest

from bridge import PROGRAM
from client import Client, Collected, Sandbox, first_output, in_thread, until
from conftest import need
from meddler import Agent
from own_vm import VM

pytestmark = pytest.mark.sanitized


@pytest.fixture
def attached(farm):
    """A sandbox whose agent is a process of this machine."""
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach)
    box = attach(bridge.client, agent.path)
    yield box
    box.delete()
    agent.stop()


def attach(client, path, transport="unix", **body):
    body.setdefault("ttl_seconds", 600)
    reply = client.post("/v1/sandboxes", {"attach": {"transport": transport, "path": str(path)},
                                          **body})
    assert reply.status == 201, reply.body
    box = Sandbox(client, reply.json)
    box.agent_path = str(path)
    return box


def prepare(box):
    reply = box.client.post(box.path + "/prepare")
    assert reply.status == 200, reply.body
    return reply.json["generation"]


def resumed(box, generation, role="same", **body):
    reply = box.client.post(box.path + "/resumed",
                            {"generation": generation, "role": role, **body})
    assert reply.status == 200, reply.body
    return reply.json


def refused(reply, status, code, field=None):
    assert (reply.status, reply.code) == (status, code), reply.body
    assert reply.error["details"]["field"] == field, reply.body
    return reply.error


COUNT = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; sleep 2; echo end"
COUNTED = "".join(f"line {i}\n" for i in range(1, 3001)) + "end\n"


def test_calls_in_progress_go_on_over_it_with_each_byte_once(attached):
    buffered = in_thread(lambda: attached.run(COUNT, exec_id="buffered"))
    stream = attached.stream("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done")
    seen, rest = first_output(stream)
    until(lambda: attached.is_running("buffered"), 10)
    for _ in range(2):
        generation = prepare(attached)
        assert resumed(attached, generation)["generation"] == generation + 1
    all = Collected(seen + list(rest))
    assert (all.stdout, all.gaps) == ("1\n2\n3\n4\n5\n6\n", [])
    result = buffered()
    assert (result["outcome"], result["exit_code"], result["stdout"]) == ("exited", 0, COUNTED)


def test_what_is_asked_meanwhile_waits_and_runs_once(attached, tmp_path):
    log = tmp_path / "log"
    generation = prepare(attached)
    connection = attached.send(f"echo run >> {log}; echo ran")
    assert not connection.readable(0.5)
    assert attached.status() == "running" and not log.exists()
    resumed(attached, generation)
    assert connection.reply().json["stdout"] == "ran\n"
    assert log.read_text() == "run\n"


def test_as_a_clone_foreground_execs_are_cancelled_and_detached_ones_run_on(attached):
    detached = attached.start("sleep 60", timeout_seconds=None)["exec_id"]
    wait = in_thread(lambda: attached.run("echo begun; sleep 30", exec_id="foreground"))
    stream = attached.stream("echo begun; sleep 30")
    seen, rest = first_output(stream)
    until(lambda: attached.is_running("foreground"), 10)
    resumed(attached, prepare(attached), "clone", env={"WHO": "clone"})
    result, all = wait(), Collected(seen + list(rest))
    for one, out in ((result, result["stdout"]), (all.result, all.stdout)):
        assert (one["outcome"], one["cancel_reason"]) == ("cancelled", "forked")
        assert out == "begun\n"
    assert attached.is_running(detached)
    assert attached.out("echo $WHO") == "clone\n"
    attached.call(detached, "kill", {"wait_seconds": 5})


def test_what_could_not_be_renewed_is_told(attached):
    """An agent that is no init changes nothing of its machine."""
    name = os.uname().nodename
    told = resumed(attached, prepare(attached), "clone", hostname="other")
    assert "hostname" in told["failed"] and "network" not in told["failed"]
    assert os.uname().nodename == name
    assert resumed(attached, prepare(attached))["failed"] in ([], ["entropy"], ["clock"])


def test_an_owner_who_says_nothing_is_not_waited_for(attached):
    generation = prepare(attached)
    began = time.monotonic()
    assert attached.run("echo late", timeout=60)["stdout"] == "late\n"
    assert 25 < time.monotonic() - began < 36
    refused(attached.client.post(attached.path + "/resumed",
                                 {"generation": generation, "role": "same"}),
            409, "sandbox.invalid_state")
    assert prepare(attached) == generation
    resumed(attached, generation)


def test_a_wrong_order_and_a_wrong_generation_are_refused(attached):
    client, path = attached.client, attached.path
    refused(client.post(path + "/resumed", {"generation": 1, "role": "same"}),
            409, "sandbox.invalid_state")
    generation = prepare(attached)
    twice = refused(client.post(path + "/prepare"), 409, "sandbox.invalid_state", "generation")
    assert twice["details"]["limit"] == generation
    wrong = refused(client.post(path + "/resumed", {"generation": generation + 1,
                                                    "role": "same"}),
                    409, "sandbox.invalid_state", "generation")
    assert wrong["details"]["limit"] == generation
    resumed(attached, generation)
    refused(client.post(path + "/resumed", {"generation": generation, "role": "same"}),
            409, "sandbox.invalid_state")
    assert attached.out("echo ok") == "ok\n"


@pytest.mark.parametrize("field,body", [
    ("generation", {"generation": None}), ("generation", {"generation": 0}),
    ("generation", {"generation": "1"}), ("role", {"role": None}), ("role", {"role": "twin"}),
    ("wall_clock", {"wall_clock": "yesterday"}),
    ("wall_clock", {"wall_clock": "2026-12-01T08:09:46"}),
    ("wall_clock", {"wall_clock": "2026-12-01T08:09:46+1:00"}),
    ("hostname", {"role": "same", "hostname": "x"}), ("env", {"role": "same", "env": {"A": "b"}}),
    ("network", {"role": "same", "network": {"mac": "02:00:00:00:00:01"}}),
    ("hostname", {"hostname": "a b"}), ("hostname", {"hostname": "a" * 65}),
    ("env", {"env": {"A=B": "c"}}), ("env.A", {"env": {"A": 1}}),
    ("network.mac", {"network": {"mac": "02:00:00:00:00"}}),
    ("network.mac", {"network": {"mac": "02:00:00:00:00:0g"}}),
    ("network.addresses", {"network": {"addresses": ["10.0.0.2"]}}),
    ("network.addresses", {"network": {"addresses": ["10.0.0.2/33"]}}),
    ("network.addresses", {"network": {"addresses": ["10.0.0.2/24"] * 17}}),
    ("network.gateways", {"network": {"gateways": ["10.0.0.1/24"]}}),
    ("network.name_servers", {"network": {"name_servers": ["one"]}}),
    ("network.dns", {"network": {"dns": []}}), ("attach.transport", {"attach": {"path": "/x"}}),
    ("attach.path", {"attach": {"transport": "unix"}}), ("who", {"who": 1}),
])
def test_a_wrong_field_is_named_and_leaves_it_prepared(attached, field, body):
    generation = prepare(attached)
    reply = attached.client.post(attached.path + "/resumed",
                                 {"generation": generation, "role": "clone", **body})
    assert reply.status == 400, reply.body
    assert reply.error["details"]["field"] == field, reply.body
    resumed(attached, generation)


def test_only_attached_sandboxes_have_brackets(farm, local):
    for action, body in (("prepare", {}), ("resumed", {"generation": 1, "role": "same"})):
        refused(local.client.post(f"{local.path}/{action}", body), 422, "limit.unsupported")
        assert local.client.post(f"/v1/sandboxes/sb-none/{action}", body).status == 404


def test_a_member_brackets_its_workspaces_sandboxes_and_names_no_endpoint(farm):
    bridge = farm.new("local")
    tokens = bridge.directory / "tokens"
    tokens.touch()
    bridge.flags = ("--token-file", str(tokens))
    client = {name: Client(bridge.client.address, subprocess.run(
        [PROGRAM, "token", "add", "--token-file", tokens, "--workspace", workspace, "--role", role],
        check=True, capture_output=True, text=True).stdout.strip())
        for name, workspace, role in (("boss", "a", "admin"), ("member", "a", "member"),
                                      ("stranger", "b", "member"))}
    bridge.client = client["boss"]
    bridge.start()
    agent = Agent(bridge.attach)
    try:
        box = attach(client["boss"], agent.path)
        assert client["stranger"].post(box.path + "/prepare").status == 404
        own = Sandbox(client["member"], {"id": box.id})
        generation = prepare(own)
        refused(own.client.post(own.path + "/resumed", {
            "generation": generation, "role": "same",
            "attach": {"transport": "unix", "path": agent.path}}), 403, "auth.forbidden", "attach")
        resumed(own, generation)
        box.delete()
    finally:
        bridge.stop()
        agent.stop()


def test_the_guest_may_go_on_at_another_endpoint(attached):
    """What a copy that replaces its original does. One that cannot be reached changes nothing."""
    generation = prepare(attached)
    attach_dir = os.path.dirname(attached.agent_path)
    nobody = os.path.join(attach_dir, "nobody.sock")
    refused(attached.client.post(attached.path + "/resumed", {
        "generation": generation, "role": "clone",
        "attach": {"transport": "unix", "path": nobody}}), 400, "request.invalid_field",
        "attach.path")
    other = os.path.join(attach_dir, "other.sock")
    os.rename(attached.agent_path, other)
    resumed(attached, generation, "clone", attach={"transport": "unix", "path": other})
    assert attached.out("echo ok") == "ok\n"
    os.rename(other, attached.agent_path)


def test_a_clone_that_stands_prepared_is_attached_and_waits_for_its_names(attached):
    generation = prepare(attached)
    clone = attach(attached.client, attached.agent_path)
    connection = clone.send("echo $WHO")
    assert not connection.readable(0.5)
    refused(clone.client.post(clone.path + "/prepare"), 409, "sandbox.invalid_state",
            "generation")
    resumed(clone, generation, "clone", env={"WHO": "clone"})
    assert connection.reply().json["stdout"] == "clone\n"
    clone.delete()


def test_deleted_while_it_is_prepared_its_execs_are_cancelled_all_the_same(attached):
    detached = attached.start("exec sleep 61.5", timeout_seconds=None)["exec_id"]
    wait = in_thread(lambda: attached.exec("echo begun; sleep 30", exec_id="foreground"))
    until(lambda: attached.is_running("foreground"), 10)
    prepare(attached)
    assert attached.delete().status == 204
    reply = wait()
    assert (reply.json["outcome"], reply.json["cancel_reason"]) == \
        ("cancelled", "sandbox_deleted"), reply.body
    again = attach(attached.client, attached.agent_path)
    until(lambda: not again.is_running(detached), 5)
    again.delete()


def test_a_restarted_bridge_goes_on_with_the_bracket(farm):
    bridge = farm.new("local").start()
    agent = Agent(bridge.attach)
    try:
        box = attach(bridge.client, agent.path)
        counter = box.start("for i in 1 2 3; do echo $i; sleep 0.2; done", exec_id="counter")
        generation = prepare(box)
        bridge.kill()
        bridge.start()
        connection = box.send("echo ok")
        assert not connection.readable(0.5)
        resumed(box, generation)
        assert connection.reply().json["stdout"] == "ok\n"
        assert box.state("counter", 10)["state"] == "finished"
        box.delete()
    finally:
        agent.stop()
        bridge.stop()


def test_its_events_are_told(attached):
    stream = attached.client.stream("GET", attached.path + "/events")
    resumed(attached, prepare(attached))
    resumed(attached, prepare(attached), "clone")
    events = iter(stream)
    seen = [next(events) for _ in range(4)]
    stream.close()
    assert [(e.name, e.data["detail"]) for e in seen] == [
        ("prepared", None), ("resumed", "same"), ("prepared", None), ("resumed", "clone")]


# ---- real guests, that the test runs and saves as their owner ----

@pytest.fixture
def owned(farm):
    """A bridge that only attaches, and a virtual machine that is not its own."""
    need("qemu")
    bridge = farm.bridge("local")
    directory = bridge.attach / "vms"
    directory.mkdir()
    vms = []

    def boot(state=None):
        vms.append(VM(directory / str(len(vms)), state))
        return vms[-1]
    yield bridge.client, boot, directory
    for vm in vms:
        vm.stop()
    shutil.rmtree(directory)


def endpoint(vm):
    return {"transport": "hybrid", "path": str(vm.vsock)}


def attach_booting(client, vm):
    def attached():
        reply = client.post("/v1/sandboxes", {"attach": endpoint(vm), "ttl_seconds": 600})
        return reply.json if reply.status == 201 else None
    return Sandbox(client, until(attached, 60, "the agent's answer"))


def test_a_guest_saved_by_its_owner_goes_on_and_its_clone_is_one_of_its_own(owned):
    client, boot, directory = owned
    vm, state = boot(), directory / "state"
    box = attach_booting(client, vm)
    box.out("echo 42 > /dev/shm/answer")
    detached = box.start("sleep 300", timeout_seconds=None)["exec_id"]
    buffered = in_thread(lambda: box.run("echo begun; sleep 20; echo end", exec_id="across",
                                         timeout_seconds=60))
    until(lambda: box.is_running("across"), 20)
    generation = prepare(box)
    vm.save(state)
    vm.plug()
    assert resumed(box, generation)["failed"] == []
    clone = attach(client, boot(state).vsock, "hybrid")
    early = clone.send("hostname; cat /dev/shm/answer; echo $WHO; date +%s")
    told = resumed(clone, generation, "clone", hostname="clone-1", env={"WHO": "clone"},
                   wall_clock="2030-01-01T01:00:00+01:00")
    assert told == {"generation": generation + 1, "failed": []}
    said = early.reply().json["stdout"].split()
    assert said[:3] == ["clone-1", "42", "clone"]
    assert 0 <= int(said[3]) - 1893456000 < 30, said
    assert box.out("hostname; echo $WHO").split() != ["clone-1", "clone"]
    names = [b.out("cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id")
             for b in (box, clone)]
    assert not set(names[0].split()) & set(names[1].split())
    assert clone.is_running(detached) and box.is_running(detached)
    assert not clone.is_running("across")
    result = buffered()
    assert (result["outcome"], result["stdout"]) == ("exited", "begun\nend\n")
    for b in (box, clone):
        b.delete()


def test_a_guest_that_is_moved_goes_on_at_its_new_endpoint(owned):
    """Saved, ended, and restored under another socket: its callers wait, and notice nothing."""
    client, boot, directory = owned
    vm, state = boot(), directory / "state"
    box = attach_booting(client, vm)
    stream = box.stream("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done",
                        timeout_seconds=60)
    seen, rest = first_output(stream)
    generation = prepare(box)
    vm.save(state)
    vm.stop()
    resumed(box, generation, "same", attach=endpoint(boot(state)))
    all = Collected(seen + list(rest))
    assert (all.stdout, all.gaps) == ("1\n2\n3\n4\n5\n6\n7\n8\n", [])
    assert all.result["exit_code"] == 0
    box.delete()
