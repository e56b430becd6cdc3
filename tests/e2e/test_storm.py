"""Storms: threads that do at random whatever clients may do, to a few sandboxes that they share,
while VMMs, and in one test the bridge, are killed. Nobody knows what comes of it, only what
must never: a reply that is none of those documented for the case, a hang, something acknowledged
that is not there, an exec that runs twice, a crash, anything left at the end. The doubles' guests
are processes of this machine, so thousands of calls fit into a short time.

SANDGATE_STORM_SEED repeats the choices of a storm (not their timing), SANDGATE_STORM_SECONDS is how
long each is.
"""
import contextlib
import os
import random
import re
import threading
import time

import pytest

from belongings import Belongings
from client import Collected, Reply, Sandbox, Stream, until
from doubled import doubled_bridges

SEED = os.environ.get("SANDGATE_STORM_SEED") or str(random.randrange(1 << 32))
SECONDS = float(os.environ.get("SANDGATE_STORM_SECONDS", 10))
THREADS = 8
SHARED = 6  # sandboxes in use, about
DEADLINE = 60
SHORT = 0.3  # seconds of idle time, of one that is to expire
EXPECTED = {404: {"exec.not_found", "snapshot.not_found"},
            409: {"sandbox.invalid_state", "exec.id_conflict", "exec.stdin_offset",
                  "request.idempotency_conflict"},
            410: {"sandbox.gone", "exec.output_gone"},
            502: {"sandbox.lost", "launcher.failed"},
            503: {"agent.unreachable", "capacity.unavailable"},
            504: {"agent.timeout"}}
OUTCOMES = {"exited", "signaled", "timeout", "cancelled"}
LOST = (ConnectionError, EOFError, IndexError)  # with the bridge, where that may be killed


class Shared:
    """A sandbox or a snapshot that somebody was told of."""

    def __init__(self, name):
        self.id, self.may_end = name, False  # may_end: somebody is doing something that ends it
        self.may_forget = False  # it was told to hibernate, and its double's agent wakes anew


ANY = Shared(None)  # one that may have been ended by others
ANY.may_end = True


class Storm(Belongings):
    def __init__(self, bridge, bridge_dies):
        self.bridge, self.client, self.bridge_dies = bridge, bridge.client, bridge_dies
        self.boxes, self.snaps = {}, {}  # what somebody was told of, by id
        self.violations, self.calls = [], 0
        self.struck = 0  # sandboxes that were deleted while somebody waited for them
        self.keys = {}  # the id that each Idempotency-Key has made
        self.over = threading.Event()
        self.ran = bridge.directory / "ran"  # a line for each command with an id

    def run(self, meanwhile):
        """Until it has lasted its time, or something went wrong; meanwhile() again and again."""
        print(f"SANDGATE_STORM_SEED={SEED}")
        threads = [threading.Thread(target=Caller(self, i).run) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end and not self.over.is_set():
                meanwhile()
        finally:
            self.over.set()
        until(lambda: self.resume_paused() or not any(t.is_alive() for t in threads),
              4 * DEADLINE, "the end of all calls")
        assert not self.violations, f"of {self.calls} calls: " + "\n".join(
            self.violations + self.said_of(self.violations))

    def said_of(self, violations):
        """What the bridge has logged of the sandboxes in question."""
        names = set(re.findall(r"sb-[\w-]+", "".join(violations)))
        return [line for line in self.bridge.log.read_text().splitlines()
                if any(name in line for name in names)]

    def resume_paused(self):
        """Whatever stands still: calls to it wait, however long."""
        for item in self.client.get("/v1/sandboxes?status=paused").json["items"]:
            self.client.post(f"/v1/sandboxes/{item['id']}/resume", timeout=DEADLINE)

    def calm(self):
        """All is deleted, and nothing is left."""
        def empty():
            for path in ("/v1/sandboxes", "/v1/snapshots"):
                for item in self.client.get(path + "?limit=1000").json["items"]:
                    self.client.delete(f"{path}/{item['id']}", timeout=DEADLINE)
            return not self.sandboxes() and not self.snapshots()
        self.neighbour = Shared("")
        until(empty, DEADLINE, "the end of all sandboxes and snapshots")
        until(lambda: not self.left(), 20, "what they took going")
        lines = self.ran.read_text().splitlines() if self.ran.exists() else []
        assert len(lines) == len(set(lines)), "a command ran twice"

    def learn(self, reply, parent=None):
        """What a reply of 201 has made, a sandbox unless it says that it is a snapshot."""
        for item in reply.json.get("items", [reply.json]):
            known = self.snaps if "bytes" in item else self.boxes
            made = known.setdefault(item["id"], Shared(item["id"]))
            if parent and parent.may_end:  # it has its idle time
                made.may_end = True
        return made

    def lasting(self):
        return [box for box in list(self.boxes.values()) if not box.may_end]


class Caller:
    """One of the threads."""

    def __init__(self, storm, number):
        self.storm, self.number, self.client = storm, number, storm.client
        self.random = random.Random(f"{SEED}-{number}")
        self.count, self.last_event = 0, None
        self.doing = ""

    def run(self):
        names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
        while not self.storm.over.is_set():
            name = self.random.choice(names)
            self.count += 1
            try:
                getattr(self, name)()
            except Exception as e:  # whatever it is, it ends the storm
                self.storm.violations.append(f"{self.doing}: {e!r}")
                self.storm.over.set()

    # ---- calls ----

    def call(self, method, path, body=None, about=None, patient=False, **how):
        """The reply, judged; None where there is none, as the client has gone before, or the
        bridge. `about`: whose it is."""
        self.doing = f"{method} {path} {body or ''}"
        self.storm.calls += 1
        impatient = not patient and self.random.random() < 0.15
        struck = self.storm.struck
        try:
            with self.client.send(method, path, body, timeout=DEADLINE, **how) as connection:
                if impatient and not connection.readable(self.random.uniform(0, 0.15)):
                    connection.abort()
                    return None
                reply = connection.reply()
                return self.judged(reply, about, self.storm.struck > struck)
        except LOST as e:
            return self.cut_off(e)

    def cut_off(self, how):
        raw = "/output?" in self.doing and isinstance(how, EOFError)  # it has no other way to tell
        if not self.storm.bridge_dies and not raw:
            raise AssertionError("the connection broke") from how
        self.storm.over.wait(0.02)  # a pace, for as long as nobody listens

    def judged(self, reply, about, struck=False):
        if reply.status < 300:
            return reply
        said = (reply.status, reply.code, reply.error["message"])
        assert reply.code in EXPECTED.get(reply.status, ()), said
        if reply.code in ("sandbox.gone", "snapshot.not_found", "sandbox.lost", "launcher.failed"):
            assert struck or self.storm.bridge_dies and reply.status == 502 or about and (
                about.may_end or about.may_forget and reply.code == "sandbox.lost"), said
        return reply

    def box(self):
        """Any sandbox, seldom one that may have ended; None when there is none of these."""
        ended = self.random.random() < 0.1
        choice = [b for b in list(self.storm.boxes.values()) if b.may_end == ended][-2 * SHARED:]
        return self.random.choice(choice) if choice else None

    def on_box(self, method, path, body=None, **how):
        box = self.box()
        return box and (self.call(method, f"/v1/sandboxes/{box.id}{path}", body, box, **how), box)

    # ---- sandboxes ----

    def create(self):
        if len(self.storm.lasting()) >= SHARED:
            return self.delete()
        body = {"template": "base", "ttl_seconds": 3600, "resources": {"memory_mib": 128}}
        kind = self.random.choice(["plain", "key", "snapshot", "snapshot"])
        source = None
        if kind == "snapshot" and self.storm.snaps:
            source = self.random.choice(list(self.storm.snaps.values())[-4:])
            body = {"from_snapshot": source.id, "ttl_seconds": 3600}
        if kind == "key":
            return self.create_by_key(body)
        reply = self.call("POST", "/v1/sandboxes", body, source)
        if reply and reply.status == 201:
            self.storm.learn(reply)

    def create_by_key(self, body):
        """Twice, and others may be about the same: all get one sandbox."""
        key = f"{SEED}-{self.storm.calls // 100}"
        for _ in range(2):
            reply = self.call("POST", "/v1/sandboxes", body, ANY, headers={"Idempotency-Key": key})
            if reply and reply.status == 201:
                known = self.storm.keys.setdefault(key, self.storm.learn(reply).id)
                assert known == reply.json["id"], f"two sandboxes of {key}"

    def fork(self):
        if len(self.storm.lasting()) >= SHARED:
            return self.delete()
        box = self.box()
        if not box:
            return
        at = f"/v1/sandboxes/{box.id}"
        if self.random.random() < 0.3:  # so are its children's
            self.expire(box)
        tree = self.random.choice(["/fork", "/fork-tree"])
        reply = self.call("POST", at + tree, {"count": self.random.randint(1, 3)}, box)
        if reply and reply.status == 201:
            self.storm.learn(reply, box)

    def snapshot(self):
        reply, _ = self.on_box("POST", "/snapshots", {}) or (None, None)
        if reply and reply.status == 201:
            self.storm.learn(reply)

    def forget_snapshot(self):
        if self.storm.snaps:
            snap = self.random.choice(list(self.storm.snaps.values())[-8:])
            snap.may_end = True
            self.call("DELETE", f"/v1/snapshots/{snap.id}", None, snap)

    def change(self):
        box, action = self.box(), self.random.choice(["pause", "hibernate", "wake", "resume"])
        if box:
            box.may_forget |= action == "hibernate"
            self.call("POST", f"/v1/sandboxes/{box.id}/{action}", None, box)

    def pause_and_resume(self):
        reply, box = self.on_box("POST", "/pause") or (None, None)
        if box:
            self.storm.over.wait(self.random.uniform(0, 0.1))  # a moment, not a wait
            self.call("POST", f"/v1/sandboxes/{box.id}/resume", None, box)

    def patch(self):
        self.on_box("PATCH", "", {"persistent": self.random.choice([True, False])})

    def expire(self, box=None):
        box = box or self.box()
        if box:
            box.may_end = True
            self.call("PATCH", f"/v1/sandboxes/{box.id}", {"ttl_seconds": SHORT}, box)

    def delete(self):
        box = self.box()
        if box:
            box.may_end = True
            self.call("DELETE", f"/v1/sandboxes/{box.id}", None, box)

    def strike(self):
        """One that is being made, and whose maker waits for it."""
        reply = self.call("GET", "/v1/sandboxes?status=creating", patient=True)
        if reply and reply.json["items"]:
            name = self.random.choice(reply.json["items"])["id"]
            act = self.random.choice(["exec", "metrics", "delete", "delete"])
            if act == "delete":
                self.storm.boxes.setdefault(name, Shared(name)).may_end = True
                self.storm.struck += 1
                self.call("DELETE", f"/v1/sandboxes/{name}", None, ANY)
            elif act == "exec":
                self.call("POST", f"/v1/sandboxes/{name}/exec", {"argv": ["true"]}, ANY)
            else:
                self.call("GET", f"/v1/sandboxes/{name}/metrics", None, ANY)

    def kill_vmm(self):
        box = self.box()
        if box:
            box.may_end = True
            with contextlib.suppress(AssertionError):  # it has none
                self.storm.bridge.kill_guests(Sandbox(self.client, {"id": box.id}))

    # ---- looking ----

    def look(self):
        paths = ["", "/lifecycle", "/metrics", "/execs", "/wait?status=running&timeout_seconds=0.5",
                 "/wait?status=hibernated&timeout_seconds=0.2"]
        self.on_box("GET", self.random.choice(paths))

    def list(self):
        """Page by page: in order, and all that was there all the time."""
        path, shared = self.random.choice([("/v1/sandboxes", self.storm.boxes),
                                           ("/v1/snapshots", self.storm.snaps)])
        before = [s for s in list(shared.values()) if not s.may_end]
        seen, token = [], ""
        while token is not None:
            reply = self.call("GET", f"{path}?limit=3{token}", patient=True)
            if reply is None:
                return
            seen += [item["id"] for item in reply.json["items"]]
            token = reply.json["next_page"] and f"&page_token={reply.json['next_page']}"
        assert seen == sorted(set(seen)), f"pages: {seen}"
        missing = [s.id for s in before if s.id not in seen and not s.may_end]
        assert not missing, f"{missing} of {seen}"

    def events(self):
        box = self.box()
        path = self.random.choice(["/v1/events", box and f"/v1/sandboxes/{box.id}/events"])
        headers = {"Last-Event-ID": self.last_event} if self.last_event else {}
        for event in self.stream("GET", path or "/v1/events", None, box, headers):
            self.last_event = event.id

    def stream(self, method, path, body, about, headers=None):
        """Some of its events: until one more does not come soon, or enough have."""
        self.doing = f"{method} {path} {body or ''}"
        self.storm.calls += 1
        seen = []
        try:
            with self.client.send(method, path, body, headers, timeout=DEADLINE) as connection:
                status, fields = connection.head()
                if status != 200:
                    length = int(fields.get("content-length", 0))
                    self.judged(Reply(status, fields, connection.read(length)), about)
                    return seen
                connection.sock.settimeout(self.random.uniform(0.05, 1))
                enough = self.random.choice([0, 1, 3, 1000])
                with contextlib.suppress(TimeoutError):
                    for event in Stream(connection, status, fields):
                        seen.append(event)
                        if len(seen) > enough:
                            break
                self.random.choice([connection.abort, connection.close])()
        except LOST as e:
            self.cut_off(e)
        return seen

    # ---- execs ----

    def judge_result(self, result, text):
        assert result["outcome"] in OUTCOMES, result
        if (result["outcome"], result["exit_code"]) == ("exited", 0):
            assert result["stdout"] == text, result

    def quick(self):
        text = f"{self.number} {self.count}\n"
        reply, _ = self.on_box("POST", "/exec", {"argv": ["cat"], "stdin": text,
                                                 "timeout_seconds": 20}) or (None, None)
        if reply and reply.status == 200:
            self.judge_result(reply.json, text)

    def long(self):
        self.on_box("POST", "/exec", {"cmd": "echo long; sleep 30",
                                      "timeout_seconds": self.random.uniform(0.1, 1)})

    def cut_stream(self):
        box = self.box()
        if box:
            cmd = "for i in 1 2 3 4 5; do echo $i; sleep 0.02; done"
            events = self.stream("POST", f"/v1/sandboxes/{box.id}/exec/stream",
                                 {"cmd": cmd, "timeout_seconds": 20}, box)
            if events and events[-1].name in ("exit", "error"):
                Collected(events)

    def once(self):
        """A command with an id, asked for again and again, and what can be done to it meanwhile.
        Agents of doubles forget it when they are restored: it runs once a life of its guest."""
        box = self.box()
        if not box:
            return
        name = f"once-{self.number}-{self.count}"
        at = f"/v1/sandboxes/{box.id}"
        line = f"echo {box.id} {name} $(cut -d' ' -f22 /proc/1/stat) >> {self.storm.ran}"
        body = {"cmd": f"{line}; read x; echo $x", "exec_id": name, "stdin_open": True,
                "timeout_seconds": 1, "on_disconnect": "detach"}
        acts = [("POST", "/exec", body), ("POST", "/execs", body),
                ("GET", f"/execs/{name}?wait_seconds=0.2", None),
                ("POST", f"/execs/{name}/kill", {}),
                ("POST", f"/execs/{name}/signal", {"signal": "SIGTERM"}),
                ("GET", f"/execs/{name}/output?stream=stdout", None)]
        for _ in range(self.random.randint(1, 5)):
            self.call(*self.pick(at, acts), box)
            if self.random.random() < 0.3:
                self.call("POST", f"{at}/execs/{name}/stdin?offset=0&close=true", b"yes\n", box,
                          headers={"Content-Type": "application/octet-stream"})
            if self.random.random() < 0.3:
                self.stream("GET", f"{at}/execs/{name}/stream", None, box)
        self.call("DELETE", f"{at}/execs/{name}", None, box)

    def pick(self, at, acts):
        method, path, body = self.random.choice(acts)
        return method, at + path, body


WEIGHTS = {"create": 8, "fork": 3, "snapshot": 3, "forget_snapshot": 2, "change": 4,
           "pause_and_resume": 3, "patch": 2, "expire": 1, "delete": 2, "kill_vmm": 1,
           "strike": 6, "look": 6, "list": 3, "events": 3, "quick": 10, "long": 4,
           "cut_stream": 6, "once": 8}


@pytest.fixture
def storm(farm, request):
    with doubled_bridges(farm, "firecracker") as start:
        yield Storm(start(), request.param)


@pytest.mark.sanitized
@pytest.mark.parametrize("storm", [False], indirect=True, ids=["living"])
def test_whatever_clients_do_the_bridge_keeps_its_word(storm):
    def meanwhile():
        storm.resume_paused()
        storm.over.wait(0.2)  # now and then
    storm.run(meanwhile)
    storm.calm()


@pytest.mark.sanitized
@pytest.mark.parametrize("storm", [True], indirect=True, ids=["killed"])
def test_what_was_acknowledged_outlives_the_bridge_again_and_again(storm):
    chance = random.Random(SEED)

    def meanwhile():
        storm.over.wait(chance.uniform(0.2, 4))  # the moment of the fault, or the end
        assert storm.bridge.process.poll() is None, "the bridge ended by itself"
        storm.bridge.kill()
        storm.bridge.start()
        storm.resume_paused()
    storm.run(meanwhile)
    storm.calm()
