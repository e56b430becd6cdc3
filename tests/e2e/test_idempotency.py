"""Repeating a request runs nothing twice: exec ids, tombstones, idempotent creates."""
import concurrent.futures
import time

import pytest

from client import until

pytestmark = pytest.mark.sanitized


def name():
    return f"id-{time.monotonic_ns()}"


class TestExecId:
    def test_same_request_attaches_or_returns(self, local):
        id = name()
        cmd = f"echo run >> /tmp/{id}; sleep 0.5; cat /tmp/{id}; rm /tmp/{id}; exit 4"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: local.run(cmd, exec_id=id), range(4)))
        results.append(local.run(cmd, exec_id=id))
        assert {(r["stdout"], r["exit_code"]) for r in results} == {("run\n", 4)}

    def test_key_order_and_defaults_do_not_matter(self, local):
        id = name()
        body = {"cmd": "echo x", "exec_id": id, "env": {"A": "1", "B": "2"}}
        first = local.client.post(local.path + "/exec", body)
        again = local.client.post(local.path + "/exec", {
            "env": {"B": "2", "A": "1"}, "exec_id": id, "cmd": "echo x", "cwd": None})
        assert first.status == again.status == 200
        assert again.json["duration_ms"] == first.json["duration_ms"]

    def test_another_request_conflicts(self, local):
        id = name()
        local.run("echo x", exec_id=id)
        for change in ({"cmd": "echo y"}, {"cmd": "echo x", "env": {"A": "1"}},
                       {"cmd": "echo x", "timeout_seconds": 1}):
            reply = local.client.post(local.path + "/exec",
                                      {"timeout_seconds": 20, "exec_id": id, **change})
            assert (reply.status, reply.code) == (409, "exec.id_conflict"), reply.body

    def test_streamed_repeat_replays(self, local):
        id = name()
        first = local.stream("echo a; echo b >&2; exit 2", exec_id=id).collect()
        again = local.stream("echo a; echo b >&2; exit 2", exec_id=id).collect()
        assert (again.stdout, again.stderr) == (first.stdout, first.stderr) == ("a\n", "b\n")
        assert again.result["exit_code"] == 2

    def test_forgotten_unseen_id_is_refused(self, local):
        id = name()
        assert local.forget(id).status == 204
        reply = local.exec("true", exec_id=id)
        assert (reply.status, reply.code) == (409, "exec.id_conflict"), reply.body

    def test_forget_kills(self, local):
        started = local.start("sleep 60")
        assert local.forget(started["exec_id"]).status == 204
        reply = local.client.get(f"{local.path}/execs/{started['exec_id']}")
        assert (reply.status, reply.code) == (404, "exec.not_found")

    def test_details_tell_what_started(self, local):
        reply = local.exec("true", exec_id="a b")
        assert reply.error["details"]["started"] == "no" and reply.error["retryable"] is False


class TestCreate:
    BODY = {"template": "base", "metadata": {"m": "1"}}

    def create(self, client, key, body=None):
        return client.post("/v1/sandboxes", body or self.BODY,
                           headers={"Idempotency-Key": key}, timeout=60)

    def test_replay_is_the_same_sandbox(self, local_bridge):
        client, key = local_bridge.client, name()
        first = self.create(client, key)
        again = self.create(client, key)
        assert first.status == again.status == 201
        assert first.json["id"] == again.json["id"]
        reply = self.create(client, key, {"template": "base"})
        assert (reply.status, reply.code) == (409, "request.idempotency_conflict")
        client.delete(f"/v1/sandboxes/{first.json['id']}")

    def test_at_the_same_time(self, local_bridge):
        client, key = local_bridge.client, name()
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            replies = list(pool.map(lambda _: self.create(client, key), range(5)))
        assert {r.status for r in replies} == {201}
        ids = {r.json["id"] for r in replies}
        assert len(ids) == 1
        client.delete(f"/v1/sandboxes/{ids.pop()}")

    def test_kept_for_a_replay_when_the_client_goes(self, bridge):
        """A real guest takes long enough to create for the client to go meanwhile."""
        key = name()
        head = bridge.client.send("POST", "/v1/sandboxes", self.BODY,
                                  {"Idempotency-Key": key})
        ids = lambda: {s["id"] for s in bridge.client.get(
            "/v1/sandboxes?metadata=m:1").json["items"]}
        new = until(ids, 5)
        head.abort()
        reply = self.create(bridge.client, key)
        assert reply.status == 201 and reply.json["id"] in new
        bridge.client.delete(f"/v1/sandboxes/{reply.json['id']}")

    def test_a_late_repetition_makes_no_second_one(self, local_bridge):
        client, key = local_bridge.client, name()
        first = self.create(client, key)
        client.delete(f"/v1/sandboxes/{first.json['id']}")
        reply = self.create(client, key)
        assert (reply.status, reply.code) == (410, "sandbox.gone")

    def test_metadata_that_cannot_be_asked_for(self, local_bridge):
        for key in ("", "a:b", "k" * 128):
            reply = local_bridge.client.post("/v1/sandboxes", {**self.BODY, "metadata": {key: "v"}})
            assert reply.status == 400 and reply.error["details"]["field"] == "metadata", key

    def test_without_a_key_two_creates_are_two(self, local_bridge):
        one, two = (local_bridge.client.create() for _ in range(2))
        assert one.id != two.id
        one.delete()
        two.delete()


class TestStdinOffset:
    def feed(self, sandbox, id, data, query=""):
        return sandbox.client.request("POST", f"{sandbox.path}/execs/{id}/stdin{query}", data,
                                      {"Content-Type": "application/octet-stream"})

    def test_retry_never_doubles(self, local):
        id = local.start("cat", stdin_open=True)["exec_id"]
        assert self.feed(local, id, b"one ", "?offset=0").json == {"offset": 4}
        reply = self.feed(local, id, b"one ", "?offset=0")
        assert (reply.status, reply.code) == (409, "exec.stdin_offset")
        assert reply.error["details"]["limit"] == 4
        assert "next byte's offset is 4" in reply.error["message"]
        assert self.feed(local, id, b"two", "?offset=4&close=true").json["offset"] == 7
        state = local.state(id, 10)
        assert state["result"]["exit_code"] == 0
        reply = self.feed(local, id, b"more", "?offset=7")
        assert reply.status == 409 and reply.error["details"]["field"] == "stdin_open"
        assert "closed" in reply.error["message"]
        reply = local.client.get(f"{local.path}/execs/{id}/output")
        assert reply.body == b"one two"

    def test_to_a_finished_exec(self, local):
        id = local.run("true", exec_id=name())["exec_id"]
        reply = self.feed(local, id, b"late")
        assert reply.status in (200, 409), reply.body
