"""Requests as PandaStack's clients send them, word for word: each is taken, and means the same."""
import json

import pytest

from client import Collected, Sandbox, until

STATUSES = {"creating", "running", "paused", "hibernated", "failed", "deleted"}


@pytest.fixture(scope="module")
def client(farm):
    return farm.bridge("qemu").client


@pytest.fixture
def box(client):
    made = create(client, '{"template":"base","ttl_seconds":600}')
    yield made
    made.delete()


def send(client, method, path, body=None, timeout=60):
    """The body is sent as it stands."""
    return client.request(method, path, body.encode() if body else None, timeout=timeout)


def create(client, body):
    reply = send(client, "POST", "/v1/sandboxes", body)
    assert reply.status == 201, reply.body
    assert reply.json["status"] in STATUSES
    return Sandbox(client, reply.json)


@pytest.mark.parametrize("body", [
    '{"template":"base"}',
    '{"template":"base","ttl_seconds":300,"metadata":{"user":"u_123"}}',
    '{"template":"base","ttl_seconds":300,"metadata":{},"persistent":false,"cpu":1,'
    '"memory_mb":256}',
    '{"template":"base","persistent":true}',
])
def test_create(client, body):
    box, asked = create(client, body), json.loads(body)
    try:
        told = box.info
        assert {"id", "template", "status", "metadata", "boot_ms", "boot_mode",
                "created_at"} <= told.keys()
        assert (told["template"], told["metadata"]) == ("base", asked.get("metadata", {}))
        assert (told["resources"]["vcpus"], told["resources"]["memory_mib"]) == (1, 256)
        assert (told["expires_at"] is None) == asked.get("persistent", False)
        assert box.info["id"] in [b["id"] for b in client.get("/v1/sandboxes").json["items"]]
    finally:
        assert send(client, "DELETE", box.path).status == 204


def test_create_of_another_size(client):
    box = create(client, '{"template":"base","cpu":1,"memory_mb":320}')
    assert box.info["resources"]["memory_mib"] == 320
    box.delete()


@pytest.mark.parametrize("body,field", [('{"template":"base","cpu":0}', "cpu"),
                                        ('{"template":"base","memory_mb":"1"}', "memory_mb"),
                                        ('{"template":"base","persistent":1}', "persistent"),
                                        ('{"template":"base","memory":1}', "memory")])
def test_create_that_is_wrong(client, body, field):
    reply = send(client, "POST", "/v1/sandboxes", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert {"code", "message", "request_id", "details"} <= reply.error.keys()


def test_exec(client, box):
    reply = send(client, "POST", box.path + "/exec", '{"cmd":"echo out; echo err >&2; exit 3"}')
    assert reply.status == 200
    assert (reply.json["stdout"], reply.json["stderr"], reply.json["exit_code"]) == \
        ("out\n", "err\n", 3)
    assert reply.json["duration_ms"] >= 0
    late = send(client, "POST", box.path + "/exec", '{"cmd":"sleep 60","timeout_seconds":1}')
    assert late.json["outcome"] == "timed_out"
    assert send(client, "POST", box.path + "/exec", "{}").status == 400
    missing = send(client, "POST", "/v1/sandboxes/278a4f42-3467-4424-98e6-a547646dd0fd/exec",
                   '{"cmd":"true"}')
    assert missing.status == 404


def test_exec_stream(client, box):
    stream = client.stream("POST", box.path + "/exec/stream",
                           b'{"cmd":"echo out; echo err >&2; exit 3","timeout_seconds":20}')
    all = Collected(list(stream))
    assert (all.stdout, all.stderr, all.last["exit_code"]) == ("out\n", "err\n", 3)
    assert {e.name for e in all.events} == {"start", "stdout", "stderr", "exit"}


def test_pause_and_resume_hibernate_and_wake(client, box):
    for action, status in (("pause", "paused"), ("resume", "running"),
                           ("hibernate", "hibernated"), ("wake", "running")):
        assert send(client, "POST", f"{box.path}/{action}").status // 100 == 2
        assert box.status() == status
    for action in ("pause", "resume", "hibernate", "wake"):
        assert send(client, "POST", f"{box.path}/{action}", "{}").status // 100 == 2


def test_lifecycle(client, box):
    shown = send(client, "GET", box.path + "/lifecycle")
    assert shown.json.items() >= {"ttl_seconds": 600, "persistent": False}.items()
    for body in ('{"ttl_seconds":300}', '{"persistent":true}',
                 '{"ttl_seconds":900,"persistent":true}'):
        reply = send(client, "PATCH", box.path + "/lifecycle", body)
        assert reply.status == 200 and reply.json.items() >= json.loads(body).items()
        assert reply.json["idle_seconds"] >= 0


def test_snapshot_and_a_sandbox_from_it(client, box):
    box.out("echo kept > /tmp/kept")
    snap = send(client, "POST", box.path + "/snapshots")
    assert snap.status == 201
    assert (snap.json["sandbox_id"], "created_at" in snap.json) == (box.id, True)
    for body in ({"template": "base", "from_snapshot": snap.json["id"]},
                 {"from_snapshot": snap.json["id"], "ttl_seconds": 60, "cpu": 1,
                  "memory_mb": 256, "metadata": {"a": "b"}}):
        made = create(client, json.dumps(body))
        assert made.info["boot_mode"] == "restore"
        assert made.out("cat /tmp/kept") == "kept\n"
        made.delete()
    client.delete(f"/v1/snapshots/{snap.json['id']}")


@pytest.mark.parametrize("route,body,count", [
    ("fork", None, 1), ("fork", '{"metadata":{"branch":"exp"}}', 1),
    ("fork", '{"count":2,"metadata":{"branch":"exp"}}', 2), ("fork-tree", None, 2),
    ("fork-tree", '{"count":3,"metadata":{"batch":"search"}}', 3)])
def test_forks(client, box, route, body, count):
    box.out("echo mine > /tmp/whose")
    reply = send(client, "POST", f"{box.path}/{route}", body, timeout=120)
    assert reply.status == 201, reply.body
    children = [Sandbox(client, item) for item in reply.json["items"]]
    assert len({c.id for c in children}) == count
    metadata = json.loads(body or "{}").get("metadata", {})
    for child in children:
        assert child.info["metadata"] == metadata
        assert child.out("cat /tmp/whose") == "mine\n"
        child.delete()


def test_an_idle_persistent_one_wakes_with_the_next_request(client):
    box = create(client, '{"template":"base","ttl_seconds":1,"persistent":true}')
    box.out("echo kept > /tmp/kept")
    until(lambda: box.status() == "hibernated", 20)
    reply = send(client, "POST", box.path + "/exec", '{"cmd":"cat /tmp/kept"}')
    assert reply.json["stdout"] == "kept\n"
    box.delete()
