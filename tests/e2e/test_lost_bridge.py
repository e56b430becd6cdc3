"""A bridge that is killed loses nobody: started again, it finds its sandboxes, and each
exec's true result can be read."""
import time

import pytest

from client import Sandbox, until


def found_again(bridge, sandbox):
    again = Sandbox(bridge.client, sandbox.info)
    assert again.status() == "running"
    return again


def test_execs_outlive_the_bridge(own_bridge):
    bridge = own_bridge.start()
    sandbox = bridge.client.create(metadata={"kept": "yes"})
    boot = sandbox.out("cat /proc/sys/kernel/random/boot_id")

    sandbox.run("echo early; exit 3", exec_id="early")
    sandbox.start("sleep 2; echo detached; exit 4", exec_id="detached")
    foreground = sandbox.send("sleep 2; echo foreground; exit 5", exec_id="foreground")
    streamed = sandbox.stream("echo up; sleep 2; echo streamed; exit 6", exec_id="streamed",
                              on_disconnect="detach")
    streamed.until("stdout", "up")
    until(lambda: sandbox.client.get(f"{sandbox.path}/execs/foreground").status == 200, 5)
    bridge.kill()
    with pytest.raises((EOFError, ConnectionError)):
        foreground.reply()

    bridge.start()
    again = found_again(bridge, sandbox)
    assert again.client.get(again.path).json["metadata"] == {"kept": "yes"}
    for name, code, text in (("detached", 4, "detached\n"), ("foreground", 5, "foreground\n"),
                             ("streamed", 6, "up\nstreamed\n")):
        state = again.state(name, wait_seconds=20)
        assert state["state"] == "finished", state
        result = state["result"]
        assert (result["outcome"], result["exit_code"]) == ("exited", code), result
        reply = again.client.get(f"{again.path}/execs/{name}/output")
        assert reply.body.decode() == text
    assert again.state("early")["result"]["exit_code"] == 3
    assert again.out("cat /proc/sys/kernel/random/boot_id") == boot


def test_same_request_is_not_run_twice(own_bridge):
    bridge = own_bridge.start()
    sandbox = bridge.client.create()
    cmd = "echo run >> /tmp/runs; sleep 2; cat /tmp/runs"
    first = sandbox.send(cmd, exec_id="once")
    until(lambda: sandbox.client.get(f"{sandbox.path}/execs/once").status == 200, 5)
    bridge.kill()
    first.close()
    bridge.start()
    again = found_again(bridge, sandbox)
    assert again.run(cmd, exec_id="once")["stdout"] == "run\n"


def test_killed_while_creating(own_bridge):
    """What was half made is either there and works, or gone; nothing is left behind."""
    bridge = own_bridge.start()
    connection = bridge.client.send("POST", "/v1/sandboxes", {"template": "base"})
    until(lambda: bridge.client.get("/v1/sandboxes").json["items"], 5, "a sandbox in creation")
    bridge.kill()
    connection.close()
    bridge.start()
    items = bridge.client.get("/v1/sandboxes").json["items"]
    for item in items:
        sandbox = Sandbox(bridge.client, item)
        until(lambda: sandbox.status() in ("running", "failed"), 30, "an answer to what it is")
        if sandbox.status() == "running":
            assert sandbox.out("echo ok") == "ok\n"
        sandbox.delete()
    own = str(bridge.state)
    until(lambda: not [p for p in bridge.leftovers() if p[0] != bridge.process.pid], 20,
          f"no process of {own}")


def test_many_restarts(own_bridge):
    bridge = own_bridge.start()
    sandbox = bridge.client.create()
    for i in range(5):
        bridge.kill()
        bridge.start()
        began = time.monotonic()
        assert found_again(bridge, sandbox).out(f"echo {i}") == f"{i}\n"
        assert time.monotonic() - began < 5


def test_deleted_stays_deleted(own_bridge):
    bridge = own_bridge.start()
    sandbox = bridge.client.create()
    assert sandbox.delete().status == 204
    bridge.kill()
    bridge.start()
    assert sandbox.delete().status == 204
    assert bridge.client.get(sandbox.path).code == "sandbox.gone"
