"""Requests that cannot be met and things that are broken on disk: each has its code, and after
each, and after a restart, the registry is as it was."""
import contextlib
import json
import shutil
import socket
import sqlite3
import struct
import subprocess
import threading

import pytest

from bridge import ROOTFS
from client import Client, Sandbox, until
from test_tenants import command

GUEST = {"ttl_seconds": 600, "resources": {"memory_mib": 128}}


class Yard:
    """A bridge with templates and tokens of the tests' own, and one sandbox in it with a
    snapshot."""

    def __init__(self, bridge):
        self.bridge, self.client = bridge, bridge.client
        self.rootfs = bridge.directory / "rootfs"
        for name, document in TEMPLATES.items():
            self.write(name, document)
        for file in ROOTFS.iterdir():
            if file.is_file():
                (self.rootfs / file.name).symlink_to(file)
        self.tokens = bridge.directory / "tokens"
        self.tokens.write_text("# tokens of the tests\n")
        bridge.flags = ("--rootfs-dir", str(self.rootfs), "--token-file", str(self.tokens))
        bridge.start()
        self.boss = self.token("boss", "--role", "admin")
        self.box = self.boss.create(**GUEST)
        self.snap = self.save()

    def write(self, name, document):
        at = self.rootfs / "templates" / name
        at.mkdir(parents=True, exist_ok=True)
        text = document if isinstance(document, str) else json.dumps(document)
        (at / "template.json").write_text(text)

    def token(self, workspace, *words):
        made = command("add", "--token-file", self.tokens, "--workspace", workspace, *words)
        client = Client(self.bridge.client.address, made.stdout.strip())
        until(lambda: client.get("/v1/quota").status == 200, 10, "the token's adoption")
        return client

    def save(self):
        return self.box.client.post(self.box.path + "/snapshots", timeout=60).json["id"]

    def create(self, **body):
        return self.boss.post("/v1/sandboxes", body, timeout=60)

    def files(self, snap):
        return self.bridge.state / "snapshots" / snap

    def restart(self):
        self.bridge.kill()
        self.bridge.start()

    def known(self):
        """All that the registry tells, by kind; and what lies on disk."""
        items = self.boss.get("/v1/sandboxes").json["items"]
        snaps = self.boss.get("/v1/snapshots").json["items"]
        disk = [p for at in ("vm", "snapshots", "hibernated")
                for p in self.bridge.state.glob(at + "/*") if p.name != "kvm-trial"]
        return ({(s["id"], s["status"]) for s in items}, {s["id"] for s in snaps}, set(disk))


REAL = json.loads((ROOTFS / "templates/base/template.json").read_text())
FILES = {"kernels": {"qemu": str(ROOTFS / "vmlinux")}, "initrds": {"qemu": str(ROOTFS / "base.cpio")}}
TEMPLATES = {
    "base": {"name": "base", **FILES, "resources": REAL["resources"]},
    "no-json": "{",
    "wrong-field": {"name": "wrong-field", **FILES, "kernel": "x"},
    "no-kernel": {"name": "no-kernel", **FILES, "kernels": {"qemu": "/nowhere/vmlinux"}},
    "no-initrd": {"name": "no-initrd", **FILES, "initrds": {"qemu": "nowhere.cpio"}},
}


@pytest.fixture(scope="module")
def yard(farm):
    made = Yard(farm.new("qemu"))
    yield made
    for item in made.boss.get("/v1/sandboxes").json["items"]:
        made.boss.delete(f"/v1/sandboxes/{item['id']}", timeout=60)
    made.bridge.stop()


@pytest.fixture
def unchanged(yard):
    """What was known before is known afterwards, to the next bridge as well, and works."""
    before = yard.known()
    yield
    until(lambda: yard.known() == before, 5, "what was begun going")
    yard.restart()
    assert yard.known() == before
    assert yard.boss.get(yard.box.path).status == 200
    assert yard.box.out("echo ok") == "ok\n"
    made = yard.create(from_snapshot=yard.snap)
    assert made.status == 201, made.body
    assert Sandbox(yard.boss, made.json).delete().status == 204
    assert yard.known() == before


def refused(reply, status, code, field=None):
    assert (reply.status, reply.code) == (status, code), reply.body
    if field is not None:
        assert reply.error["details"]["field"] == field, reply.body


def test_templates_that_are_not_there_or_do_not_validate(yard, unchanged):
    for name in ("none", "../base", ""):
        refused(yard.create(template=name), 404, "template.not_found", "template")
    for name in ("no-json", "wrong-field", "no-kernel", "no-initrd"):
        reply = yard.create(template=name)
        refused(reply, 502, "launcher.failed")
        assert name in reply.error["message"] or "nowhere" in reply.error["message"]


def test_a_guest_that_panics_for_want_of_memory_says_so(yard, unchanged):
    reply = yard.create(template="base", resources={"memory_mib": 64})
    refused(reply, 502, "launcher.failed", "resources.memory_mib")
    assert reply.error["message"] == "the guest's kernel panicked: " \
        "System is deadlocked on memory; most likely it has too little memory"


@pytest.mark.parametrize("size,message", [
    (100 << 20, "the guest's initramfs cannot be unpacked: write error"),
    (None, "the guest's initramfs is too large: cannot support."),
])
def test_files_that_do_not_fit_into_memory_are_not_left_out(yard, unchanged, size, message):
    """Of the size that they are of in memory, and, for None, on disk."""
    (yard.rootfs / "filled.cpio").write_bytes((ROOTFS / "base.cpio").read_bytes())
    with open(yard.rootfs / "filled.cpio", "ab") as out:
        if size is None:
            out.truncate(200 << 20)
        else:
            archive = subprocess.run("truncate -s %d f; echo f | cpio -o -H newc --quiet | gzip -1"
                                     % size, shell=True, cwd=yard.rootfs, stdout=subprocess.PIPE)
            out.write(archive.stdout)
    yard.write("filled", {**TEMPLATES["base"], "name": "filled",
                          "initrds": {"qemu": str(yard.rootfs / "filled.cpio")}})
    reply = yard.create(template="filled", resources={"memory_mib": 128})
    refused(reply, 502, "launcher.failed", "resources.memory_mib")
    assert reply.error["message"].startswith(message)
    assert reply.error["message"].endswith("; most likely it has too little memory")


@pytest.mark.parametrize("body,field", [
    ({"template": 5}, "template"), ({"templates": "base"}, "templates"),
    ({"template": "base", "ttl_seconds": -1}, "ttl_seconds"),
    ({"template": "base", "resources": {"memory_mib": 1}}, "resources.memory_mib"),
    ({"template": "base", "resources": {"vcpus": "2"}}, "resources.vcpus"),
    ({"template": "base", "metadata": {"a": 1}}, "metadata"),
    ({"from_snapshot": 1}, "from_snapshot"),
])
def test_wrong_fields_are_named(yard, body, field):
    reply = yard.create(**body)
    assert reply.status == 400 and reply.code.startswith("request."), reply.body
    assert reply.error["details"]["field"].startswith(field), reply.body


def test_wrong_fields_of_actions_are_named(yard, unchanged):
    post = lambda action, body: yard.boss.post(f"{yard.box.path}/{action}", body)
    for action in ("fork", "fork-tree"):
        for count in (0, 17, -1, "2", 1.5):
            refused(post(action, {"count": count}), 400, "request.invalid_field", "count")
        refused(post(action, {"counts": 2}), 400, "request.invalid_field", "counts")
    refused(post("snapshots", {"name": "x"}), 400, "request.invalid_field", "name")
    for snap in ("snap-none", ""):
        refused(yard.create(from_snapshot=snap), 404, "snapshot.not_found")
    refused(yard.boss.delete("/v1/snapshots/snap-none"), 404, "snapshot.not_found")


def edit_row(yard, snap, **changes):
    """What the registry says of a snapshot, while no bridge runs."""
    yard.bridge.kill()
    with contextlib.closing(sqlite3.connect(yard.bridge.state / "registry.db")) as db, db:
        [text] = db.execute("SELECT info FROM snapshots WHERE id = ?", (snap,)).fetchone()
        db.execute("UPDATE snapshots SET info = ? WHERE id = ?",
                   (json.dumps({**json.loads(text), **changes}), snap))
    yard.bridge.start()


@pytest.mark.parametrize("changes", [{"launcher": "firecracker"}, {"launcher": "none-such"},
                                     {"isolation": "kvm"}])
def test_a_snapshot_of_another_launcher_is_refused(yard, unchanged, changes):
    snap = yard.save()
    edit_row(yard, snap, **changes)
    refused(yard.create(from_snapshot=snap), 409, "sandbox.invalid_state", "from_snapshot")
    assert yard.boss.get(f"/v1/snapshots/{snap}").status == 200
    assert yard.boss.delete(f"/v1/snapshots/{snap}").status == 204


def another_version(files):
    """As another release of QEMU would have written it: the machine's version is in its name."""
    state = (files / "state").read_bytes()
    assert state.count(b"pc-q35-") >= 1
    at = state.index(b"pc-q35-") + len(b"pc-q35-")
    (files / "state").write_bytes(state[:at] + b"1" + state[at + 1:])


def short(name, size):
    def cut(files):
        with open(files / name, "r+b") as f:
            f.truncate(size)
    return cut


@pytest.mark.parametrize("break_it", [
    another_version, lambda f: (f / "memory").unlink(), lambda f: (f / "state").unlink(),
    shutil.rmtree, short("memory", 1 << 20), short("memory", 0), short("state", 100),
    short("state", 0), lambda f: (f / "agent.json").write_text("{"),
    lambda f: (f / "agent.json").write_text('{"generation":0,"agent":{"features":[1]}}')],
    ids=["another version", "no memory", "no state", "no files", "short memory", "empty memory",
         "short state", "empty state", "no agent", "no agent but a number"])
def test_a_snapshot_whose_files_are_not_what_they_were_is_told(yard, unchanged, break_it, request):
    snap = yard.save()
    break_it(yard.files(snap))
    reply = yard.create(from_snapshot=snap)
    if "no agent" in request.node.name:  # that is asked for, then
        assert reply.status == 201, reply.body
        Sandbox(yard.boss, reply.json).delete()
    else:
        refused(reply, 502, "launcher.failed")
    assert yard.boss.delete(f"/v1/snapshots/{snap}").status == 204


def test_quotas_that_are_full_leave_nothing_begun(yard, unchanged):
    tenant = yard.token("small")
    command("limit", "--token-file", yard.tokens, "--workspace", "small", "--max-sandboxes", "2")
    until(lambda: tenant.get("/v1/quota").json["sandboxes_limit"] == 2, 10, "the limit")
    own = tenant.create(**GUEST)
    kept = yard.known()
    for count in (2, 3):
        reply = tenant.post(own.path + "/fork", {"count": count}, timeout=60)
        refused(reply, 429, "quota.exceeded", "sandboxes_limit")
        assert int(reply.headers["retry-after"]) >= 1
    other = tenant.create(**GUEST)
    reply = tenant.post("/v1/sandboxes", {"template": "base"})
    refused(reply, 429, "quota.exceeded", "sandboxes_limit")
    assert other.delete().status == 204
    assert yard.known() == kept
    refused(tenant.post("/v1/sandboxes", {"from_snapshot": yard.snap}), 404, "snapshot.not_found")
    assert own.delete().status == 204


def test_a_dead_vmm_is_told_by_all_that_is_asked_of_it(yard, unchanged):
    own = yard.boss.create(**GUEST)
    yard.bridge.kill_guests(own)
    until(lambda: own.status() == "failed", 5, "its failure")
    for action in ("snapshots", "fork", "pause", "resume", "hibernate"):
        refused(yard.boss.post(f"{own.path}/{action}"), 409, "sandbox.invalid_state")
    for action in ("exec", "execs", "wake"):
        body = {} if action == "wake" else {"cmd": "true"}
        refused(yard.boss.post(f"{own.path}/{action}", body), 410, "sandbox.gone")
    assert own.delete().status == 204


def answering(path, frame):
    """An agent that says one thing to everybody."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(struct.pack(">I", len(frame)) + frame)
    threading.Thread(target=serve, daemon=True).start()
    return listener


@pytest.mark.parametrize("says", [b"\x12\x02\x08\x19", b"\x0a\x03\x08\xe7\x07"],
                         ids=["refuses our version", "speaks another"])
def test_an_agent_too_old_or_too_new_is_incompatible(yard, unchanged, says):
    path = yard.bridge.attach / "old.sock"
    with answering(path, says):
        reply = yard.create(attach={"transport": "unix", "path": str(path)})
        refused(reply, 502, "agent.incompatible")
    path.unlink()


def test_more_input_than_a_detached_start_takes_is_refused_and_nothing_runs(local):
    start = lambda id, n: local.client.post(local.path + "/execs", {
        "exec_id": id, "cmd": "wc -c", "stdin": "x" * n, "timeout_seconds": 20})
    reply = start("too-much", (1 << 20) + 1)
    assert (reply.status, reply.code) == (413, "request.too_large")
    details = reply.error["details"]
    assert (details["field"], details["limit"]) == ("stdin", 1 << 20)
    assert local.client.get(local.path + "/execs/too-much").status == 404
    assert start("as-much", 1 << 20).status == 201
    local.state("as-much", 20)
    output = local.client.get(local.path + "/execs/as-much/output").body
    assert output.strip() == b"%d" % (1 << 20)
