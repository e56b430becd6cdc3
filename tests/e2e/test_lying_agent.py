"""What a guest may send is attacker input: typed errors in time, never a made-up result."""
import concurrent.futures
import itertools
import random
import socket
import struct
import time

import pytest

from client import Sandbox, Stream, until
from meddler import Agent, Meddler

pytestmark = pytest.mark.sanitized

TYPED = {"agent.protocol_error", "agent.incompatible", "agent.unreachable", "agent.timeout",
         "sandbox.lost"}


@pytest.fixture(scope="module")
def guest(farm):
    bridge = farm.bridge("local")
    agent = Agent(bridge.attach)
    meddler = Meddler(bridge.attach, agent)
    reply = bridge.client.post("/v1/sandboxes",
                               {"attach": {"transport": "unix", "path": meddler.path}})
    assert reply.status == 201, reply.body
    sandbox = Sandbox(bridge.client, reply.json)
    sandbox.meddler = meddler
    assert sandbox.out("echo ok") == "ok\n"
    yield sandbox
    meddler.behave()
    sandbox.delete()
    meddler.stop()
    agent.stop()


@pytest.fixture
def meddler(guest):
    yield guest.meddler
    guest.meddler.behave()


def frame(payload):
    return struct.pack(">I", len(payload)) + payload


def opened():
    return frame(b"\x0a\x14\x08\x01\x1a\x10" + b"i" * 16)


def fails_typed(guest, seconds=30):
    began = time.monotonic()
    reply = guest.exec("echo never", timeout_seconds=5, timeout=90)
    assert reply.status >= 500 and reply.code in TYPED, reply.body
    assert time.monotonic() - began < seconds
    return reply


ANSWERS = {
    "a length over the cap": struct.pack(">I", 128 * 1024 + 1) + b"x" * 100,
    "the largest length": b"\xff\xff\xff\xff" + b"x" * 100,
    "text": b"HTTP/1.1 200 OK\r\n\r\n",
    "an empty frame": frame(b""),
    "an unparsable frame": frame(b"\x0a\xff\xff\xff\xff\xff"),
    "a first frame that is not Opened": frame(b"\x62\x00"),
    "another version": frame(b"\x0a\x03\x08\xe7\x07"),
    "Opened twice": opened() * 2,
    "Pong to an Exec": opened() + frame(b"\x62\x00"),
    "Exit without a result": opened() + frame(b"\x1a\x00") + frame(b"\x32\x00"),
    "Exit with outcome 0": opened() + frame(b"\x1a\x00") + frame(b"\x32\x02\x12\x00"),
    "an outcome of the future": opened() + frame(b"\x1a\x00") + frame(b"\x32\x04\x12\x02\x08\x63"),
    "output from the middle": opened() + frame(b"\x1a\x00") + frame(b"\x22\x05\x08\x64\x1a\x01x"),
    "output of a third stream": opened() + frame(b"\x1a\x00") + frame(b"\x22\x05\x10\x07\x1a\x01x"),
    "Exit at another sequence": opened() + frame(b"\x1a\x00") +
    frame(b"\x32\x06\x08\x63\x12\x02\x08\x01"),
    "refused with an unknown code": frame(b"\x12\x03\x08\xe7\x07"),
    "an endless message": frame(b"\x12" + b"\x80\x80\x04" + b"x" * 65536)[:200],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_garbage(guest, meddler, name):
    meddler.answer = lambda: ANSWERS[name]
    fails_typed(guest)
    meddler.behave()
    until(lambda: guest.exec("echo ok").status == 200, 15, "the next exec")


def all_fail_typed(guest, count):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: fails_typed(guest, 40), range(count)))


def test_random_bytes(guest, meddler):
    rng = random.Random(7)
    meddler.answer = lambda: opened() + rng.randbytes(rng.randrange(1, 200))
    all_fail_typed(guest, 50)


def test_random_frames(guest, meddler):
    rng = random.Random(8)
    meddler.answer = lambda: opened() + frame(b"\x1a\x00") + \
        frame(rng.randbytes(rng.randrange(1, 40)))
    all_fail_typed(guest, 50)


def test_cut_at_every_byte(guest, meddler):
    cuts = itertools.cycle(range(60))
    meddler.budget = lambda: next(cuts)

    def one(_):
        reply = guest.exec("echo x", timeout_seconds=5, timeout=90)
        if reply.status == 200:
            assert reply.json["stdout"] == "x\n"  # it came over another connection
        else:
            assert reply.code in TYPED, reply.body
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        list(pool.map(one, range(60)))
    meddler.behave()
    assert guest.out("echo ok") == "ok\n"


def test_never_answers(guest, meddler):
    meddler.mute = True
    fails_typed(guest, 45)


@pytest.mark.parametrize("path", ["/exec", "/exec/stream"])
def test_falls_silent_under_an_exec(guest, meddler, path):
    id = f"silent{path.count('/')}"  # a forgotten id is not taken again
    with guest.send("echo up; sleep 600", path, exec_id=id) as connection:
        until(lambda: guest.client.get(f"{guest.path}/execs/{id}/output").body == b"up\n", 10)
        connection.sock.settimeout(40)
        meddler.mute = True
        began = time.monotonic()
        if path == "/exec":
            reply = connection.reply()
            assert reply.status >= 500 and reply.code in TYPED, reply.body
            assert reply.error["details"]["started"] == "yes"
            assert reply.error["details"]["partial"]["stdout"] == "up\n"
        else:
            last = list(Stream(connection, *connection.head()))[-1]
            assert last.name == "error" and last.data["code"] in TYPED, last
        assert time.monotonic() - began < 25
    meddler.behave()
    guest.forget(id)


def test_every_question_has_a_deadline(guest, meddler):
    started = guest.start("cat; sleep 60", stdin_open=True)["exec_id"]
    path = f"{guest.path}/execs/{started}"
    questions = [
        ("GET", f"{guest.path}/execs", None), ("GET", path, None),
        ("GET", f"{path}?wait_seconds=2", None), ("GET", f"{path}/output", None),
        ("GET", f"{path}/stream", None), ("POST", f"{path}/kill", {}),
        ("POST", f"{path}/signal", {"signal": "SIGTERM"}), ("DELETE", path, None),
        ("POST", f"{path}/stdin", b"x"), ("POST", f"{guest.path}/execs", {"cmd": "true"}),
    ]

    def ask(question):
        headers = {"Content-Type": "application/octet-stream"} if question[2] == b"x" else None
        return guest.client.request(*question, headers=headers, timeout=60)
    meddler.answer, meddler.mute = opened, True
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        replies = list(pool.map(ask, questions))
    assert time.monotonic() - began < 40
    for question, reply in zip(questions, replies):
        assert reply.status >= 500 and reply.code in TYPED, (question, reply.status, reply.body)
    meddler.behave()
    guest.forget(started)


def test_silence_of_an_exec_is_no_loss(local):
    """Long enough for the bridge to have asked whether the agent is alive."""
    assert local.run("sleep 27; echo ok", timeout_seconds=60, timeout=90)["stdout"] == "ok\n"


def test_stream_ends_in_an_error_event(guest, meddler):
    with guest.send("echo up; sleep 0.5; echo down; sleep 60", "/exec/stream") as connection:
        stream = Stream(connection, *connection.head())
        stream.until("stdout", "up")
        meddler.answer = lambda: b"\xff\xff\xff\xff"
        last = list(stream)[-1]
    assert last.name == "error" and last.data["code"] in TYPED, last


def test_neighbours_notice_nothing(local, guest, meddler):
    meddler.answer = lambda: ANSWERS["the largest length"]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        failing = [pool.submit(fails_typed, guest) for _ in range(10)]
        while not all(f.done() for f in failing):
            began = time.monotonic()
            assert local.out("echo ok") == "ok\n"
            assert time.monotonic() - began < 2
        for f in failing:
            f.result()


def test_attach_to_garbage(local_bridge, guest, meddler):
    meddler.answer = lambda: ANSWERS["text"]
    began = time.monotonic()
    reply = local_bridge.client.post(
        "/v1/sandboxes", {"attach": {"transport": "unix", "path": meddler.path}}, timeout=60)
    assert reply.status >= 500 and reply.code in TYPED, reply.body
    assert time.monotonic() - began < 20


def attach(bridge, path):
    began = time.monotonic()
    reply = bridge.client.post("/v1/sandboxes",
                               {"attach": {"transport": "hybrid", "path": str(path)}}, timeout=60)
    return reply, time.monotonic() - began


def test_attach_to_what_is_no_socket(local_bridge):
    path = local_bridge.attach / "file"
    path.write_text("")
    reply, took = attach(local_bridge, path)
    assert (reply.status, reply.code) == (400, "request.invalid_field"), reply.body
    assert reply.error["details"]["field"] == "attach.path" and took < 1


def test_attach_where_nobody_listens(local_bridge):
    """No boot is waited for: the VM runs, or there is none."""
    path = local_bridge.attach / "dead.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    reply, took = attach(local_bridge, path)
    assert (reply.status, reply.code) == (503, "agent.unreachable"), reply.body
    assert took < 20


def test_attach_on_a_bridge_that_allows_no_path(farm):
    bridge = farm.new("local")
    words = bridge.command()
    at = words.index("--attach-dir")
    del words[at:at + 2]
    bridge.command = lambda: words
    bridge.start()
    try:
        reply, _ = attach(bridge, "/nowhere")
        assert (reply.status, reply.code) == (403, "auth.forbidden"), reply.body
        assert "--attach-dir" in reply.error["message"]
    finally:
        bridge.stop()


@pytest.mark.parametrize("path", ["/etc/passwd", "/run/x.sock", "../x", "relative.sock"])
def test_attach_outside_its_directory(local_bridge, path):
    reply = local_bridge.client.post("/v1/sandboxes",
                                     {"attach": {"transport": "unix", "path": path}})
    assert reply.status in (400, 403), reply.body


def test_attach_by_climbing_out(local_bridge):
    escaped = f"{local_bridge.attach}/../x.sock"
    reply = local_bridge.client.post("/v1/sandboxes",
                                     {"attach": {"transport": "unix", "path": escaped}})
    assert reply.status in (400, 403), reply.body
