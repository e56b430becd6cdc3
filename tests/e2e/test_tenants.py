"""Tenants: tokens that the command manages, workspaces that do not see each other, quotas."""
import os
import signal
import subprocess
import time

import pytest

from bridge import PROGRAM
from client import Client, until

pytestmark = pytest.mark.sanitized


def command(*words, check=True):
    return subprocess.run([PROGRAM, "token", *map(str, words)], capture_output=True, text=True,
                          check=check, timeout=30)


class Tenants:
    """A bridge and its token file, changed by the command alone."""

    def __init__(self, bridge):
        self.bridge, self.file = bridge, bridge.directory / "tokens"
        self.file.write_text("# tokens of the tests\n")
        bridge.flags = ("--token-file", str(self.file))
        bridge.start()

    def add(self, workspace, *words):
        """The new token's client, once the bridge knows it."""
        made = command("add", "--token-file", self.file, "--workspace", workspace, *words)
        client = Client(self.bridge.client.address, made.stdout.strip())
        until(lambda: client.get("/v1/quota").status == 200, 10, "the token's adoption")
        return client

    def limit(self, client, **limits):
        """Returns once the bridge knows them."""
        workspace = client.get("/v1/quota").json["workspace"]
        command("limit", "--token-file", self.file, "--workspace", workspace,
                *(w for name, n in limits.items()
                  for w in ("--max-" + name.replace("_", "-"), n)))
        wanted = {f"{name}_limit": None if n == "none" else n for name, n in limits.items()}
        until(lambda: wanted.items() <= client.get("/v1/quota").json.items(), 10, "the limits")


@pytest.fixture
def tenants(farm):
    made = Tenants(farm.new("local"))
    yield made
    made.bridge.stop()


def is_over(reply, limit, value):
    assert (reply.status, reply.code) == (429, "quota.exceeded"), reply.body
    details = reply.error["details"]
    assert (details["field"], details["limit"]) == (limit + "_limit", value), details
    assert details["started"] in ("no", None)
    assert int(reply.headers["retry-after"]) == details["retry_after_seconds"] >= 1
    return True


# ---- tokens ----

def test_tokens_come_and_go_without_a_restart(tenants):
    alice = tenants.add("a", "--id", "alice")
    boss = tenants.add("a", "--role", "admin", "--id", "boss")
    assert alice.get("/v1/node").code == "auth.forbidden" and boss.get("/v1/node").status == 200
    own = alice.create()
    stream = own.stream("echo on; read line; echo $line", exec_id="long", stdin_open=True)
    events = iter(stream)
    next(events)
    command("revoke", "--token-file", tenants.file, "alice")
    until(lambda: alice.get("/v1/quota").status == 401, 10, "the revocation")
    assert alice.get(own.path).code == "auth.invalid_token"
    # What had begun goes on; its sandbox is the workspace's.
    reply = boss.post(f"{own.path}/execs/long/stdin?close=true", b"still here\n")
    assert reply.status == 200, reply.body
    assert "still here" in "".join(e.data.get("chunk", "") for e in events)
    assert boss.delete(own.path).status == 204


def test_the_command_shows_a_token_once_and_keeps_its_hash(tenants):
    made = command("add", "--token-file", tenants.file, "--workspace", "a", "--id", "one",
                   "--max-execs", 7)
    token = made.stdout.strip()
    digest = subprocess.run(["b2sum", "-l", "256"], input=token.encode(), check=True,
                            capture_output=True).stdout.split()[0].decode()
    text = tenants.file.read_text()
    assert text.startswith("# tokens of the tests\n")
    assert digest in text and token not in text and "limits a execs=7\n" in text
    listed = command("list", "--token-file", tenants.file).stdout
    assert digest not in listed and token not in listed
    row = next(l for l in listed.splitlines() if l.startswith("one")).split()
    assert row[1:3] == ["a", "member"] and row[3].endswith("Z")


@pytest.mark.parametrize("words,status,said", [
    (["add"], 2, "--token-file is missing"),
    (["add", "--token-file", "F", "--role", "owner"], 2, "member or admin"),
    (["add", "--token-file", "F", "--workspace", "a b"], 2, "workspace"),
    (["add", "--token-file", "F", "--id", "limits"], 2, "not an id"),
    (["limit", "--token-file", "F"], 2, "no limit"),
    (["limit", "--token-file", "F", "--max-execs", "-1"], 2, "whole number"),
    (["revoke", "--token-file", "F"], 2, "id"),
    (["revoke", "--token-file", "F", "none"], 1, "no token none"),
    (["list", "--token-file", "/nonexistent"], 1, "No such file"),
    (["mend"], 2, "add, limit, list or revoke"),
    ([], 2, "add, limit, list or revoke")])
def test_the_command_says_what_is_wrong(tmp_path, words, status, said):
    (tmp_path / "F").write_text("")
    ended = command(*(tmp_path / w if w == "F" else w for w in words), check=False)
    assert (ended.returncode, ended.stdout) == (status, "") and said in ended.stderr, ended


def test_a_broken_file_leaves_the_former_tokens_in_force(tenants):
    alice = tenants.add("a")
    with open(tenants.file, "a") as file:
        file.write("rubbish\n")
    until(lambda: f"{tenants.file}:3 is neither" in tenants.bridge.log.read_text(), 10, "the log's word")
    assert alice.get("/v1/quota").status == 200
    ended = command("add", "--token-file", tenants.file, check=False)
    assert ended.returncode == 1 and f"{tenants.file}:3 is" in ended.stderr


# ---- workspaces ----

def strange(client, sandbox, exec_id):
    """Every call on a sandbox that is not the client's, by name."""
    path, one = sandbox.path, f"{sandbox.path}/execs/{exec_id}"
    yield "get", client.get(path)
    yield "patch", client.request("PATCH", path, {"ttl_seconds": 1})
    yield "delete", client.delete(path)
    for action in ("exec", "exec/stream", "execs"):
        yield action, client.post(f"{path}/{action}", {"cmd": "true", "exec_id": exec_id})
    yield "stream resumed", client.post(f"{path}/exec/stream", {"cmd": "true"},
                                        headers={"Last-Event-ID": f"{exec_id}:0"})
    for action in ("pause", "resume", "hibernate", "wake", "snapshots", "fork", "fork-tree",
                   "prepare"):
        yield action, client.post(f"{path}/{action}", {})
    yield "resumed", client.post(path + "/resumed", {"generation": 1, "role": "same"})
    for what in ("execs", "metrics", "events", "lifecycle", "wait?status=running"):
        yield what, client.get(f"{path}/{what}")
    yield "exec get", client.get(one)
    yield "exec delete", client.delete(one)
    for action in ("stream", "output"):
        yield action, client.get(f"{one}/{action}")
    for action, body in (("kill", {}), ("signal", {"signal": "SIGTERM"}), ("stdin", b"x")):
        yield action, client.post(f"{one}/{action}", body)


def test_another_workspaces_sandbox_does_not_exist(tenants):
    alice, bob = tenants.add("a"), tenants.add("b")
    own = alice.create(metadata={"k": "v"})
    assert own.info["workspace"] == "a"
    running = own.start("sleep 30")["exec_id"]
    for what, reply in strange(bob, own, running):
        assert (reply.status, reply.code) == (404, "sandbox.not_found"), (what, reply.body)
    for query in ("", "?metadata=k:v", "?status=running"):
        assert bob.get("/v1/sandboxes" + query).json["items"] == []
    assert own.state(running)["state"] == "running"
    own.delete()
    assert (alice.get(own.path).code, bob.get(own.path).code) == (
        "sandbox.gone", "sandbox.not_found")
    assert bob.delete(own.path).code == "sandbox.not_found"


def test_an_idempotency_key_is_a_workspaces_own(tenants):
    made = [c.post("/v1/sandboxes", {"template": "base"}, headers={"Idempotency-Key": "same"})
            for c in (tenants.add("a"), tenants.add("b"))]
    assert [r.status for r in made] == [201, 201] and made[0].json["id"] != made[1].json["id"]


def test_another_workspaces_snapshot_does_not_exist(farm):
    tenants = Tenants(farm.new("qemu"))
    try:
        alice, bob = tenants.add("a"), tenants.add("b")
        own = alice.create()
        saved = alice.post(own.path + "/snapshots", timeout=60)
        assert saved.status == 201, saved.body
        snapshot = saved.json["id"]
        path = f"/v1/snapshots/{snapshot}"
        for reply in (bob.get(path), bob.delete(path), bob.post(
                "/v1/sandboxes", {"from_snapshot": snapshot})):
            assert (reply.status, reply.code) == (404, "snapshot.not_found"), reply.body
        for query in ("", f"?sandbox_id={own.id}"):
            assert bob.get("/v1/snapshots" + query).json["items"] == []
        assert alice.get(path).status == 200
        # Resources are counted where there are any, a fork's before it begins.
        quota = alice.get("/v1/quota").json
        assert quota["memory_mib_used"] == own.info["resources"]["memory_mib"]
        assert quota["vcpus_used"] == own.info["resources"]["vcpus"]
        tenants.limit(alice, memory_mib=2 * quota["memory_mib_used"] - 1)
        for reply in (alice.post("/v1/sandboxes", {"template": "base"}),
                      alice.post("/v1/sandboxes", {"from_snapshot": snapshot}),
                      alice.post(own.path + "/fork")):
            is_over(reply, "memory_mib", 2 * quota["memory_mib_used"] - 1)
        assert alice.delete(path).status == 204
    finally:
        tenants.bridge.stop()


def test_an_admin_may_do_with_any_snapshot_what_its_owner_may(farm):
    """It lists it, looks at it, starts from it, in its own workspace, and deletes it; a fork or a
    snapshot of a sandbox belongs to that one's workspace, whoever makes it."""
    tenants = Tenants(farm.new("qemu"))
    try:
        boss, alice = tenants.add("ops", "--role", "admin"), tenants.add("a")
        own = alice.create()
        own.out("echo mine > /dev/shm/kept")
        saved = boss.post(own.path + "/snapshots", timeout=60)
        assert saved.status == 201, saved.body
        path = f"/v1/snapshots/{saved.json['id']}"
        for who in (alice, boss):
            assert who.get(path).status == 200
            assert [n["id"] for n in who.get("/v1/snapshots").json["items"]] == [saved.json["id"]]

        started = boss.create(template=None, from_snapshot=saved.json["id"])
        assert started.out("cat /dev/shm/kept") == "mine\n"
        assert alice.get(started.path).status == 404
        forked = boss.post(own.path + "/fork", timeout=60)
        assert forked.status == 201, forked.body
        child = forked.json["items"][0]["id"]
        assert {s["id"] for s in alice.get("/v1/sandboxes").json["items"]} == {own.id, child}
        used = {who: who.get("/v1/quota").json["sandboxes_used"] for who in (boss, alice)}
        assert used == {boss: 1, alice: 2}

        tenants.limit(boss, sandboxes=1)
        is_over(boss.post("/v1/sandboxes", {"from_snapshot": saved.json["id"]}), "sandboxes", 1)
        assert boss.delete(path).status == 204
        for who in (alice, boss):
            assert who.get(path).code == "snapshot.not_found"
            assert who.post("/v1/sandboxes", {"from_snapshot": saved.json["id"]}).code == \
                "snapshot.not_found"
    finally:
        tenants.bridge.stop()


# ---- quotas ----

def test_sandboxes_are_limited(tenants):
    alice, bob = tenants.add("a", "--max-sandboxes", 2), tenants.add("b")
    made = [alice.create(), alice.create()]
    is_over(alice.post("/v1/sandboxes", {"template": "base"}), "sandboxes", 2)
    assert alice.post("/v1/sandboxes", {"template": "no"}).code == "template.not_found"
    bob.create()
    quota = alice.get("/v1/quota").json
    assert (quota["workspace"], quota["sandboxes_used"], quota["sandboxes_limit"]) == ("a", 2, 2)
    assert quota["memory_mib_limit"] is None
    made[0].delete()
    alice.create()
    # Lowered, it ends nothing.
    tenants.limit(alice, sandboxes=0)
    assert made[1].out("echo ok") == "ok\n"
    tenants.limit(alice, sandboxes="none")
    alice.create()


def test_creates_are_limited_in_time(tenants):
    alice = tenants.add("a", "--max-creates-per-minute", 2)
    for _ in range(2):
        alice.create().delete()
    over = alice.post("/v1/sandboxes", {"template": "base"})
    assert is_over(over, "creates_per_minute", 2)
    assert int(over.headers["retry-after"]) <= 30
    assert alice.get("/v1/quota").json["creates_per_minute_used"] == 2
    tenants.limit(alice, creates_per_minute=1200)
    until(lambda: alice.post("/v1/sandboxes", {"template": "base"}).status == 201, 10,
          "the next create")


def test_running_execs_are_limited_in_all_sandboxes_together(tenants):
    alice, bob = tenants.add("a", "--max-execs", 3), tenants.add("b")
    one, two = alice.create(), alice.create()
    detached = one.start("sleep 60", exec_id="mine")["exec_id"]
    with two.send("sleep 60") as waiting, two.send("sleep 60", "/exec/stream"):
        until(lambda: alice.get("/v1/quota").json["execs_used"] == 3, 10, "three of them")
        is_over(one.exec("true"), "execs", 3)
        is_over(alice.post(two.path + "/execs", {"cmd": "true"}), "execs", 3)
        is_over(alice.post(two.path + "/exec/stream", {"cmd": "true"}), "execs", 3)
        assert bob.create().out("echo ok") == "ok\n"
        # Repeated, a request starts nothing and is not kept from its exec.
        assert alice.post(one.path + "/execs", {
            "cmd": "sleep 60", "timeout_seconds": 20, "exec_id": "mine"}).status == 201
        assert alice.get("/v1/quota").json["execs_used"] == 3
        # A detached one's end is seen by its agent alone; the next exec finds its place free.
        one.call(detached, "kill")
        assert one.out("echo ok") == "ok\n"
        one.start("sleep 60")
        is_over(one.exec("true"), "execs", 3)
        waiting.close()
        until(lambda: one.exec("true").status == 200, 10, "the place of a client that left")


def test_execs_are_counted_again_after_a_restart(tenants):
    alice = tenants.add("a", "--max-execs", 2)
    own = alice.create()
    for _ in range(2):
        own.start("sleep 60", timeout_seconds=60)
    tenants.bridge.kill()
    tenants.bridge.start()
    until(lambda: own.status() == "running", 20, "the sandbox's adoption")
    is_over(own.exec("true"), "execs", 2)


def test_a_deleted_sandboxs_execs_do_not_count(tenants):
    alice = tenants.add("a", "--max-execs", 1)
    own = alice.create()
    own.start("sleep 60")
    other = alice.create()
    is_over(other.exec("true"), "execs", 1)
    own.delete()
    assert other.out("echo ok") == "ok\n"


def test_an_agent_that_does_not_answer_holds_up_nobody_long(tenants):
    alice = tenants.add("a", "--max-execs", 1)
    own, other = alice.create(), alice.create()
    own.start("sleep 60")
    is_over(other.exec("true"), "execs", 1)
    stopped = tenants.bridge.guests(own)
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        before = time.monotonic()
        assert other.out("echo ok") == "ok\n"
        assert time.monotonic() - before < 6
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
