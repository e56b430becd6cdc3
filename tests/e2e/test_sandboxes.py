"""Sandboxes: create, list, patch, expiry, deletion, workspaces, events of their life."""
import os
import subprocess
import time

import pytest

from client import Client, until

pytestmark = pytest.mark.sanitized


def test_reply_has_every_field(local_bridge):
    own = local_bridge.client.create(ttl_seconds=60, metadata={"a": "b"})
    assert set(own.info) >= {
        "id", "node", "workspace", "template", "status", "vmm", "isolation", "boot_mode",
        "boot_ms", "boot_stages_ms", "created_at", "expires_at", "idle_seconds", "metadata",
        "resources", "exec_defaults", "agent"}
    assert own.info["status"] == "running" and own.info["isolation"] == "none"
    assert own.info["vmm"] == "local" and own.info["metadata"] == {"a": "b"}
    assert set(own.info["agent"]) >= {"version", "protocol", "features"}
    own.delete()


def test_idle_time_is_in_whole_milliseconds(local_bridge):
    own = local_bridge.client.create(ttl_seconds=60)
    for _ in range(5):
        text = local_bridge.client.get(own.path).body.decode()
        idle = text.split('"idle_seconds":')[1].split(",")[0]
        assert len(idle.partition(".")[2]) <= 3, idle
    own.delete()


def test_real_guests_say_what_they_are(fresh, launcher):
    assert fresh.info["vmm"] == launcher
    assert fresh.info["isolation"] == {"uml": "none", "qemu": fresh.info["isolation"]}[launcher]
    assert fresh.info["isolation"] in ("none", "tcg", "kvm")
    modes = {"uml": ["boot"], "qemu": ["boot", "restore"]}[launcher]
    assert fresh.info["boot_mode"] in modes and fresh.info["boot_ms"] > 0
    assert fresh.out("hostname") == f"sb-{fresh.id[-26:]}\n"  # booted or restored


@pytest.mark.parametrize("body,code,field", [
    ({"template": "none-such"}, "template.not_found", None),
    ({"template": "../x"}, "template.not_found", None),
    ({}, "request.missing_field", None),
    ({"template": 1}, "request.invalid_field", "template"),
    ({"template": "base", "ttl_seconds": -1}, "request.invalid_field", "ttl_seconds"),
    ({"template": "base", "metadata": []}, "request.invalid_field", "metadata"),
    ({"template": "base", "metadata": {"a": 1}}, "request.invalid_field", "metadata"),
    ({"template": "base", "resources": {"memory_mib": 0}}, "request.invalid_field",
     "resources.memory_mib"),
    ({"template": "base", "bogus": 1}, "request.invalid_field", "bogus")])
def test_bad_create(local_bridge, body, code, field):
    reply = local_bridge.client.post("/v1/sandboxes", body)
    if code == "template.not_found" and reply.status == 400:
        code = "request.invalid_field"
    assert reply.code == code, reply.body
    if field:
        assert reply.error["details"]["field"].startswith(field)


@pytest.mark.parametrize("field,value,limit,status", [
    ("vcpus", 65, 64, 400), ("memory_mib", 1, 64, 400), ("memory_mib", 1 << 21, 1 << 20, 400),
    ("vcpus", 64, os.cpu_count(), 422), ("memory_mib", 1 << 20, None, 422)])
def test_what_this_host_can_never_give_is_not_retryable(bridge, field, value, limit, status):
    reply = bridge.client.post("/v1/sandboxes",
                               {"template": "base", "resources": {field: value}})
    code = {400: "request.invalid_field", 422: "limit.unsupported"}[status]
    assert (reply.status, reply.code) == (status, code), reply.body
    details = reply.error["details"]
    assert details["field"] == f"resources.{field}" and reply.error["retryable"] is False
    assert details["limit"] == limit or limit is None and 64 <= details["limit"] < value


def test_a_bridge_that_only_attaches_says_so(farm):
    bridge = farm.new("local", "--launcher", "attach").start()
    try:
        reply = bridge.client.post("/v1/sandboxes", {"template": "base"})
        assert (reply.status, reply.code) == (400, "request.invalid_field"), reply.body
        assert "attach" in reply.error["message"] and reply.error["retryable"] is False
    finally:
        bridge.stop()


def test_idle_sandbox_expires(local_bridge):
    own = local_bridge.client.create(ttl_seconds=1)
    until(lambda: local_bridge.client.get(own.path).status == 410, 10, "its expiry")
    assert "expired" in local_bridge.client.get(own.path).error["message"]


def test_a_running_exec_keeps_it(local_bridge):
    own = local_bridge.client.create(ttl_seconds=1)
    assert own.run("sleep 3; echo ok")["stdout"] == "ok\n"
    until(lambda: local_bridge.client.get(own.path).status == 410, 10, "its expiry")


def test_state_gets_do_not_keep_it(local_bridge):
    own = local_bridge.client.create(ttl_seconds=2)
    began = time.monotonic()
    until(lambda: local_bridge.client.get(own.path).status == 410, 10, "its expiry")
    assert time.monotonic() - began < 5


def test_lifetime_is_absolute_and_cancels(local_bridge):
    own = local_bridge.client.create(max_lifetime_seconds=2)
    result = own.run("sleep 60")
    assert (result["outcome"], result["cancel_reason"]) == ("cancelled", "sandbox_expired")


def test_patch(local_bridge):
    own = local_bridge.client.create(metadata={"a": "1", "b": "2"}, ttl_seconds=100)
    reply = local_bridge.client.request("PATCH", own.path, {
        "metadata": {"a": None, "c": "3"}, "ttl_seconds": 1})
    assert reply.status == 200 and reply.json["metadata"] == {"b": "2", "c": "3"}
    until(lambda: local_bridge.client.get(own.path).status == 410, 10, "the new ttl")


def test_list_and_pages(local_bridge):
    made = [local_bridge.client.create(metadata={"page": "x", "n": str(i)}) for i in range(5)]
    seen, token = [], ""
    for _ in range(10):
        page = local_bridge.client.get(f"/v1/sandboxes?metadata=page:x&limit=2{token}").json
        assert set(page) == {"items", "next_page"} and len(page["items"]) <= 2
        seen += [s["id"] for s in page["items"]]
        if not page["next_page"]:
            break
        token = f"&page_token={page['next_page']}"
    assert sorted(seen) == sorted(s.id for s in made)
    assert local_bridge.client.get("/v1/sandboxes?metadata=n:3").json["items"][0]["id"] == made[3].id
    for own in made:
        own.delete()
    assert local_bridge.client.get("/v1/sandboxes?page_token=rubbish").status == 400
    assert local_bridge.client.get("/v1/sandboxes?limit=0").status == 400
    for path in ("/v1/sandboxes", local_bridge.client.create(ttl_seconds=60).path + "/wait"):
        error = local_bridge.client.get(path + "?status=asleep").error
        assert error["details"]["field"] == "status" and "hibernated" in error["message"]


def test_delete_is_repeatable_and_final(local_bridge):
    own = local_bridge.client.create()
    assert own.delete().status == 204 and own.delete().status == 204
    assert own.exec("true").code == "sandbox.gone"
    assert local_bridge.client.get(own.path).status == 410
    assert local_bridge.client.delete("/v1/sandboxes/never-was").code == "sandbox.not_found"


def test_workspaces_do_not_see_each_other(farm):
    bridge = farm.new("local")
    lines = []
    for token, workspace, role in (("alice", "a", "member"), ("bob", "b", "member"),
                                   ("boss", "a", "admin")):
        digest = subprocess.run(["b2sum", "-l", "256"], input=token.encode(), check=True,
                                capture_output=True).stdout.split()[0].decode()
        lines.append(f"{token} {workspace} {role} {digest}\n")
    tokens = bridge.directory / "tokens"
    tokens.write_text("".join(lines))
    bridge.flags = ("--token-file", str(tokens))
    bridge.start()
    alice, bob, boss = (Client(bridge.client.address, t) for t in ("alice", "bob", "boss"))
    try:
        own = alice.create()
        assert bob.get(own.path).code == "sandbox.not_found"
        assert bob.post(own.path + "/exec", {"cmd": "true"}).code == "sandbox.not_found"
        assert bob.delete(own.path).code == "sandbox.not_found"
        assert bob.get("/v1/sandboxes").json["items"] == []
        assert boss.get(own.path).status == 200
        assert bob.get("/v1/node").code == "auth.forbidden"
        assert bob.post("/v1/sandboxes", {"attach": {
            "transport": "unix", "path": "/x"}}).code == "auth.forbidden"
        tokens.write_text(lines[0] + lines[2])
        until(lambda: bob.get("/v1/sandboxes").status == 401, 15, "the token's withdrawal")
        assert alice.get(own.path).status == 200
        own.delete()
    finally:
        bridge.stop()


class TestExecResources:
    def test_list_get_wait(self, local):
        started = local.start("sleep 0.5; exit 6")
        assert started["state"] in ("starting", "running") and started["detached"] is True
        assert started["result"] is None and started["finished_at"] is None
        ids = [e["exec_id"] for e in
               local.client.get(local.path + "/execs?limit=1000").json["items"]]
        assert ids.count(started["exec_id"]) == 1
        assert local.state(started["exec_id"], 0)["state"] in ("starting", "running")
        done = local.state(started["exec_id"], 10)
        assert done["state"] == "finished" and done["result"]["exit_code"] == 6
        assert done["finished_at"] and done["retained_until"]

    def test_signal(self, local):
        started = local.start("trap 'echo got; exit 4' USR1; echo up; while :; do sleep 0.05; done")
        until(lambda: local.client.get(
            f"{local.path}/execs/{started['exec_id']}/output").body, 5)
        assert local.call(started["exec_id"], "signal", {"signal": "SIGUSR1"}).status == 200
        assert local.state(started["exec_id"], 10)["result"]["exit_code"] == 4
        reply = local.call(started["exec_id"], "signal", {"signal": "SIGNONE"})
        assert reply.code == "request.invalid_field"

    def test_unknown(self, local):
        for reply in (local.client.get(local.path + "/execs/none"),
                      local.call("none", "kill"), local.call("none", "signal",
                                                             {"signal": "SIGTERM"}),
                      local.client.get(local.path + "/execs/none/output")):
            assert (reply.status, reply.code) == (404, "exec.not_found"), reply.body


class TestOperating:
    def test_node_and_quota(self, local_bridge):
        node = local_bridge.client.get("/v1/node").json
        assert node["draining"] is False and "local" in str(node["launchers"])
        assert local_bridge.client.get("/v1/quota").status == 200

    def test_metrics(self, local_bridge, local):
        count = lambda name: float(next(
            l.split()[1] for l in local_bridge.client.get("/metrics").body.decode().splitlines()
            if l.startswith(f"sandgate_{name}")))
        timed_out = 'execs_total{outcome="timed_out"}'
        before = count(timed_out)
        local.run("sleep 5", timeout_seconds=0.1)
        assert count(timed_out) == before + 1
        # What is wrong with a request is no failure of this node.
        names = 'execs_total{outcome="error"}', 'sandboxes_created_total{result="failed"}'
        before = [count(name) for name in names]
        assert local.exec("true", capabilities=["CAP_NONE_SUCH"]).status == 400
        assert local_bridge.client.post("/v1/sandboxes", {"template": "none"}).status == 404
        assert [count(name) for name in names] == before
        text = local_bridge.client.get("/metrics").body.decode()
        assert local.id not in text

    def test_openapi_names_every_route(self, local_bridge):
        doc = local_bridge.client.get("/openapi.json").json
        assert doc["openapi"] == "3.0.3"
        ids = {op["operationId"] for path in doc["paths"].values() for op in path.values()
               if isinstance(op, dict) and "operationId" in op}
        assert {"sandbox_create", "exec_run", "exec_stream", "exec_start", "exec_get"} <= ids

    def test_audit_log_holds_no_secrets(self, farm):
        bridge = farm.new("local")
        log = bridge.directory / "audit"
        bridge.flags = ("--audit-log", str(log), "--log-level", "debug")
        bridge.start()
        try:
            own = bridge.client.create()
            own.run("echo secret-output; : secret-argv", env={"SECRET": "secret-env"},
                    stdin="secret-stdin")
            own.delete()
            import json
            lines = [json.loads(l) for l in log.read_text().splitlines()]
            assert any(own.id in str(l) and "exited" in str(l) for l in lines), lines
            for text in (log.read_text(), bridge.log.read_text()):
                assert "secret-" not in text and bridge.token not in text
        finally:
            bridge.stop()
