"""SIGTERM and the drain call: new work is refused, running work gets its time, and what
is left is handed to the successor."""
import os
import socket
import subprocess
import time

import pytest

from client import Client, Sandbox, until


@pytest.fixture
def draining(farm, launcher):
    made = farm.new(launcher, "--drain-seconds", "3")
    yield made
    if made.process and made.process.poll() is not None:
        made.start()
    made.stop()


def refused(reply):
    assert (reply.status, reply.code) == (503, "bridge.draining"), reply.body
    assert int(reply.headers["retry-after"]) >= 1


def test_sigterm(draining):
    bridge = draining.start()
    sandbox = bridge.client.create()
    short = sandbox.send("sleep 1; echo short", exec_id="short")
    long = sandbox.send("sleep 8; echo long; exit 7", exec_id="long")
    stream = sandbox.stream("echo up; sleep 8; echo down; exit 8", exec_id="stream")
    first = stream.until("stdout", "up")
    until(lambda: len(sandbox.client.get(sandbox.path + "/execs").json["items"]) == 3, 5)

    began = time.monotonic()
    bridge.terminate()
    until(lambda: bridge.client.get("/readyz").status == 503, 2, "readyz says so")
    assert bridge.client.get("/healthz").status == 200
    refused(sandbox.exec("true"))
    refused(bridge.client.post("/v1/sandboxes", {"template": "base"}))

    assert short.reply().json["stdout"] == "short\n"
    reply = long.reply()
    refused(reply)
    assert reply.error["details"]["exec_id"] == "long"
    last = list(stream)[-1]
    assert last.name == "error" and last.data["code"] == "bridge.draining", last
    assert bridge.process.wait(10) == 0
    assert 2.5 < time.monotonic() - began < 8

    bridge.start()
    again = Sandbox(bridge.client, sandbox.info)
    assert again.state("long", 20)["result"]["exit_code"] == 7
    assert again.state("stream", 20)["result"]["exit_code"] == 8
    rest = again.watch("stream", after=first.id).collect()
    assert rest.stdout == "down\n"


def test_idle_bridge_ends_at_once(draining):
    bridge = draining.start()
    began = time.monotonic()
    bridge.terminate()
    assert bridge.process.wait(5) == 0
    assert time.monotonic() - began < 2


def test_drain_call(draining):
    bridge = draining.start()
    sandbox = bridge.client.create()
    assert bridge.client.get("/v1/node").json["draining"] is False
    assert bridge.client.post("/v1/node/drain").status in (200, 202, 204)
    assert bridge.client.get("/v1/node").json["draining"] is True
    assert bridge.client.get("/readyz").status == 503
    refused(sandbox.exec("true"))
    assert sandbox.status() == "running"


def test_upgrade_refuses_nobody(farm):
    """The listening socket is inherited: connections wait for the successor."""
    bridge = farm.new("local")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        bridge.client = Client(("127.0.0.1", port), bridge.token)

        def start():
            command = ["/bin/sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh",
                       *bridge.command()]
            with open(bridge.log, "ab") as log:
                bridge.process = subprocess.Popen(
                    command, env=bridge.environment(), stdout=log, stderr=log, pass_fds=(3,),
                    preexec_fn=lambda: os.dup2(listener.fileno(), 3), start_new_session=True)

        start()
        try:
            assert bridge.client.get("/healthz", timeout=20).status == 200
            for _ in range(3):
                bridge.terminate()
                assert bridge.process.wait(10) == 0
                waiting = bridge.client.send("GET", "/healthz")
                start()
                assert waiting.reply().status == 200
        finally:
            bridge.stop()


def test_second_bridge_on_the_same_state_is_refused(own_bridge):
    bridge = own_bridge.start()
    second = subprocess.run([*bridge.command(), "--listen", "127.0.0.1:0"], timeout=20,
                            env=bridge.environment(), capture_output=True)
    assert second.returncode != 0
    assert bridge.client.get("/healthz").status == 200


def test_what_goes_on_after_the_bridge_is_told(farm):
    bridge = farm.new("local").start()
    sandbox = bridge.client.create()
    bridge.terminate()
    assert bridge.process.wait(10) == 0
    assert f"go on: 1; the next bridge on {bridge.state} takes them over" in \
        bridge.log.read_text()
    bridge.start()
    assert Sandbox(bridge.client, sandbox.info).out("echo here") == "here\n"
    bridge.stop()
    assert bridge.log.read_text().count("go on:") == 1
