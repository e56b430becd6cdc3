"""When a sandbox ends, and waiting for what becomes of it."""
import threading
import time

import pytest


@pytest.fixture
def box(local_bridge):
    made = local_bridge.client.create(ttl_seconds=600)
    yield made
    made.delete()


def test_the_lifecycle_is_shown_and_changed(box):
    shown = box.client.get(box.path + "/lifecycle").json
    assert (shown["ttl_seconds"], shown["persistent"]) == (600, False)
    assert shown["idle_seconds"] < 60 and shown["expires_at"] is not None
    reply = box.client.request("PATCH", box.path + "/lifecycle",
                               {"ttl_seconds": 300, "persistent": True})
    assert reply.status == 200, reply.body
    shown = box.client.get(box.path + "/lifecycle").json
    assert (shown["ttl_seconds"], shown["persistent"]) == (300, True)
    refused = box.client.request("PATCH", box.path + "/lifecycle", {"ttl_seconds": 0})
    assert (refused.status, refused.error["details"]["field"]) == (400, "ttl_seconds")


def test_waiting_for_a_status_that_it_has_is_answered_at_once(box):
    began = time.monotonic()
    reply = box.client.get(box.path + "/wait?status=running&timeout_seconds=30")
    assert (reply.status, reply.json["status"]) == (200, "running")
    assert time.monotonic() - began < 5


def test_waiting_ends_with_the_time_and_says_what_is(box):
    reply = box.client.get(box.path + "/wait?status=paused&timeout_seconds=0.3")
    assert (reply.status, reply.json["status"]) == (200, "running")


def test_waiting_ends_with_the_sandbox(local_bridge):
    box = local_bridge.client.create(ttl_seconds=600)
    connection = box.client.send("GET", box.path + "/wait?status=paused&timeout_seconds=60")
    threading.Timer(0.2, box.delete).start()
    reply = connection.reply()
    assert (reply.status, reply.code) == (410, "sandbox.gone")


@pytest.mark.parametrize("query,field", [("status=happy", "status"),
                                         ("timeout_seconds=-1", "timeout_seconds"),
                                         ("timeout_seconds=601", "timeout_seconds")])
def test_what_cannot_be_waited_for_is_refused(box, query, field):
    reply = box.client.get(f"{box.path}/wait?{query}")
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


def test_waiting_for_a_sandbox_that_sleeps_is_answered_when_it_does(farm):
    bridge = farm.bridge("qemu")
    box = bridge.client.create(ttl_seconds=600)
    connection = box.client.send("GET", box.path + "/wait?status=hibernated&timeout_seconds=60")
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    reply = connection.reply()
    assert (reply.status, reply.json["status"]) == (200, "hibernated")
    box.delete()
