"""The doubles of Firecracker and its jailer refuse what the real ones refuse: a launcher that
passes test_firecracker.py has been held to it."""
import os
import shutil
import socket
import stat
import subprocess

import pytest

from client import until
from doubled import DOUBLES, SILENCE, VERSIONS, Vmm, lone_doubles


class Firecracker(Vmm):
    VERSION, COMMAND = VERSIONS["firecracker"], ["firecracker", "--api-sock", "api.sock"]

    def ask(self, method, path, body=None):
        """(status, fault message or body)"""
        status, answer = super().ask(method, path, body)
        return status, answer.get("fault_message") or answer if isinstance(answer, dict) else answer

    def put(self, path, **body):
        return self.ask("PUT", path, body)[0]

    def configure(self):
        (self.directory / "kernel").write_bytes(b"\x7fELF and more")
        assert self.put("/boot-source", kernel_image_path="kernel") == 204
        assert self.put("/machine-config", vcpu_count=1, mem_size_mib=64) == 204
        assert self.put("/vsock", guest_cid=3, uds_path="v.sock") == 204

    def boot(self):
        self.configure()
        assert self.put("/actions", action_type="InstanceStart") == 204
        until(self.answers, 10)

    def vm(self, state):
        return self.ask("PATCH", "/vm", {"state": state})[0]

    def save(self):
        return self.put("/snapshot/create", snapshot_path="state", mem_file_path="memory")

    def load(self, snapshot, **more):
        return self.ask("PUT", "/snapshot/load", {
            "snapshot_path": str(snapshot / "state"), "resume_vm": True,
            "mem_backend": {"backend_type": "File", "backend_path": str(snapshot / "memory")},
            **more})


@pytest.fixture
def vmms():
    with lone_doubles(Firecracker) as start:
        yield start


@pytest.fixture
def vmm(vmms):
    return vmms()


def read_to(sock, end):
    data = b""
    while not data.endswith(end):
        data += sock.recv(1)
    return data


def test_its_sockets_stay_when_it_is_killed_and_a_second_start_fails(vmms):
    vmm = vmms(name="same")
    vmm.boot()
    vmm.kill()
    assert (vmm.directory / "api.sock").exists() and (vmm.directory / "v.sock").exists()
    second = vmms(name="same")
    assert second.process.wait(10) != 0
    assert "bind" in second.process.stderr.read().lower()


def test_answers_have_the_real_ones_quirks(vmm):
    connection = vmm.connect()
    connection.send(b"PUT /entropy HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
    head = read_to(connection.sock, b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 \r\n") and b"ontent-" not in head
    assert b"Connection: keep-alive" in head
    connection.send(b"GET /version HTTP/1.1\r\n\r\n")  # on the same connection
    assert b'"firecracker_version"' in read_to(connection.sock, b"}")


def test_an_eleventh_connection_is_turned_away(vmm):
    ten = [vmm.connect() for _ in range(10)]
    assert vmm.ask("GET", "/")[0] == 503
    ten.pop().close()
    until(lambda: vmm.ask("GET", "/")[0] == 200, 5)


@pytest.mark.parametrize("method, path, body", [
    ("PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": 64, "cpus": 2}),
    ("PUT", "/machine-config", {"vcpu_count": 1}),
    ("PUT", "/machine-config", {"vcpu_count": "1", "mem_size_mib": 64}),
    ("PUT", "/machine-config", {"vcpu_count": 33, "mem_size_mib": 64}),
    ("PUT", "/machine-config", "{no json"),
    ("PUT", "/vsock", {"guest_cid": 2, "uds_path": "v.sock"}),
    ("PUT", "/drives/a-b", {"drive_id": "a-b", "is_root_device": False}),
    ("PUT", "/drives/a", {"drive_id": "b", "is_root_device": False}),
    ("PUT", "/boot-source", {"kernel_image_path": "missing"}),
    ("PUT", "/boot-source", {"kernel_image_path": "k" * 51200}),
    ("PUT", "/actions", {"action_type": "InstanceStart"}),
    ("PATCH", "/vm", {"state": "Paused"}),
    ("PUT", "/snapshot/create", {"snapshot_path": "s", "mem_file_path": "m"}),
    ("PUT", "/nowhere", {}), ("GET", "/", {"x": 1}), ("DELETE", "/", None),
])
def test_what_is_wrong_is_refused(vmm, method, path, body):
    status, why = vmm.ask(method, path, body)
    assert status == 400 and why


def test_what_its_http_library_refuses_is_told_in_another_shape(vmm):
    status, why = vmm.ask("DELETE", "/")
    assert status == 400 and why.startswith('{ "error": "') and "\n" in why


def test_the_state_decides_what_may_be_asked(vmm):
    assert vmm.ask("GET", "/")[1]["state"] == "Not started"
    vmm.boot()
    assert vmm.ask("GET", "/")[1]["state"] == "Running"
    assert vmm.put("/machine-config", vcpu_count=1, mem_size_mib=64) == 400
    assert vmm.put("/actions", action_type="InstanceStart") == 400
    assert vmm.save() == 400
    assert vmm.load(vmm.directory)[0] == 400
    assert vmm.process.poll() is None
    assert vmm.vm("Paused") == 204
    assert vmm.ask("GET", "/")[1]["state"] == "Paused"
    assert vmm.save() == 204


@pytest.fixture
def saved(vmms):
    source = vmms()
    source.boot()
    assert (source.vm("Paused"), source.save(), source.vm("Resumed")) == (204, 204, 204)
    copy = source.directory / "copy"
    copy.mkdir()
    for name in ("state", "memory"):
        shutil.copy(source.directory / name, copy / name)
    return copy


def test_a_load_comes_before_any_configuration(vmms, saved):
    vmm = vmms()
    vmm.configure()
    assert vmm.load(saved)[0] == 400
    fresh = vmms()
    assert fresh.load(saved) == (204, None)
    until(fresh.answers, 10)


@pytest.mark.parametrize("how", ["version", "short memory", "stale socket", "no state"])
def test_a_load_that_fails_ends_the_vmm(vmms, saved, how):
    vmm = vmms("1.18.0" if how == "version" else "1.17.0")
    if how == "short memory":
        os.truncate(saved / "memory", 4096)
    if how == "no state":
        (saved / "state").unlink()
    if how == "stale socket":
        (vmm.directory / "v.sock").touch()
    status, why = vmm.load(saved)
    assert status == 400 and why
    assert vmm.process.wait(10) == 1


def test_disks_and_taps_are_looked_for_at_a_load(vmms):
    source = vmms()
    disk = source.directory / "disk"
    disk.touch()
    assert source.put("/drives/d", drive_id="d", path_on_host=str(disk),
                      is_root_device=False) == 204
    assert source.put("/network-interfaces/n", iface_id="n", host_dev_name="no-such-tap") == 204
    source.boot()
    assert (source.vm("Paused"), source.save()) == (204, 204)
    override = {"network_overrides": [{"iface_id": "n", "host_dev_name": "lo"}]}
    assert "tap" in vmms().load(source.directory)[1]
    assert vmms().load(source.directory, **override)[0] == 204
    disk.unlink()
    assert "disk" in vmms().load(source.directory, **override)[1]


@pytest.mark.parametrize("change", [
    {"path_on_host": "missing"}, {"path_on_host": None}, {"is_root_device": None},
    {"cache_type": "None"}, {"is_read_only": "yes"}, {"writable": True}])
def test_drives_that_cannot_be_are_refused(vmm, change):
    (vmm.directory / "disk").touch()
    drive = {"drive_id": "d", "path_on_host": "disk", "is_root_device": False}
    wrong = {k: v for k, v in {**drive, **change}.items() if v is not None}
    assert vmm.put("/drives/d", **wrong) == 400
    assert vmm.put("/drives/d", **drive) == 204
    root = {"path_on_host": "disk", "is_root_device": True, "is_read_only": True}
    assert vmm.put("/drives/r", drive_id="r", **root) == 204
    assert vmm.put("/drives/s", drive_id="s", **root) == 400
    vmm.boot()
    assert vmm.put("/drives/d", **drive) == 400
    patch = {"drive_id": "d", "path_on_host": "disk"}
    assert vmm.ask("PATCH", "/drives/d", patch)[0] == 204
    assert vmm.ask("PATCH", "/drives/x", {**patch, "drive_id": "x"})[0] == 400


@pytest.mark.parametrize("wrong", ["shared", "cut off", "nothing"])
def test_a_disk_that_cannot_be_the_guests_is_a_violation(vmms, wrong):
    source, clone = vmms(), vmms()
    for vmm in (source, clone):
        (vmm.directory / "disk").write_bytes(b"\0" * 8192)
    assert source.put("/drives/d", drive_id="d", path_on_host="disk", is_root_device=False) == 204
    source.boot()
    assert (source.vm("Paused"), source.save()) == (204, 204)
    if wrong == "shared":
        (clone.directory / "disk").unlink()
        (clone.directory / "disk").hardlink_to(source.directory / "disk")
    if wrong == "cut off":
        os.truncate(clone.directory / "disk", 4096)
    assert clone.load(source.directory)[0] == 204
    assert ('"violation"' in clone.log.read_text()) == (wrong != "nothing")


def test_fields_belong_to_versions(vmms, saved):
    new, old = vmms("1.17.0"), vmms("1.15.1")
    assert old.load(saved, vsock_override={"uds_path": "w.sock"})[0] == 400
    assert old.process.poll() is None  # a request that was not understood is no load
    assert new.load(saved, vsock_override={"uds_path": "w.sock"})[0] == 204
    assert (new.directory / "w.sock").exists()


def test_memory_that_changes_under_a_loaded_guest_is_a_violation(vmms, saved):
    vmm = vmms()
    assert vmm.load(saved)[0] == 204
    with open(saved / "memory", "r+b") as f:
        f.write(b"changed")
    assert vmm.process.wait(10) == 1
    assert '"violation"' in vmm.log.read_text()


def test_the_handshake_is_one_line_in_one_piece(vmm):
    vmm.boot()
    assert vmm.dial(b"connect 523\n", 5).startswith(b"OK ")
    for line in (b"CONNECT 524\n", b"HELLO 523\n", b"CONNECT " + b"5" * 40 + b"\n"):
        assert vmm.dial(line, 5) == b"", line
    assert vmm.dial(b"CONN", 5) == b""


def test_a_half_closed_connection_is_closed_both_ways(vmm):
    vmm.boot()
    with vmm.host(b"CONNECT 523\n") as s:
        assert s.recv(100).startswith(b"OK ")
        s.shutdown(socket.SHUT_WR)
        assert s.recv(100) == b""


def test_a_paused_guest_leaves_the_handshake_without_an_answer(vmm):
    vmm.boot()
    assert vmm.vm("Paused") == 204
    assert vmm.dial(b"CONNECT 523\n", 0.3) == SILENCE
    assert vmm.vm("Resumed") == 204
    assert vmm.dial(b"CONNECT 523\n", 5).startswith(b"OK ")


def test_a_snapshot_cuts_the_guest_off_and_tells_the_host_nothing(vmm):
    vmm.boot()
    with vmm.host(b"CONNECT 523\n") as s:
        assert s.recv(100).startswith(b"OK ")
        assert (vmm.vm("Paused"), vmm.save(), vmm.vm("Resumed")) == (204, 204, 204)
        s.settimeout(0.5)
        with pytest.raises(TimeoutError):
            s.recv(100)
        s.sendall(b"is anybody there?")
        with pytest.raises(TimeoutError):
            s.recv(100)


@pytest.mark.parametrize("version, deaf", [("1.16.1", True), ("1.17.0", False)])
def test_a_bare_pause_deafens_the_versions_that_it_does(vmms, version, deaf):
    vmm = vmms(version)
    vmm.boot()
    assert (vmm.vm("Paused"), vmm.vm("Resumed")) == (204, 204)
    assert (vmm.dial(b"CONNECT 523\n", 0.5) == SILENCE) == deaf


def test_the_jailer_makes_a_jail_of_the_users_own(tmp_path):
    program = tmp_path / "firecracker"
    program.write_text('#!/bin/sh\nid -u; pwd; echo "$DOUBLE_UID $@"\n')
    program.chmod(0o755)
    (tmp_path / "jails").mkdir()

    def run(**changed):
        options = {"id": "vm", "exec-file": program, "uid": 65534, "gid": 65534,
                   "chroot-base-dir": tmp_path / "jails", **changed}
        words = [str(w) for k, v in options.items() if v for w in (f"--{k}", v)]
        return subprocess.run([DOUBLES / "jailer", *words, "--", "--api-sock", "a"],
                              capture_output=True, text=True, timeout=20)
    for wrong in ({"id": "a_b"}, {"uid": None}, {"exec-file": "/bin/sh"}, {"colour": "red"},
                  {"chroot-base-dir": tmp_path / "missing"}):
        assert run(**wrong).returncode != 0, wrong
    made = run()
    root = tmp_path / "jails/firecracker/vm/root"
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[1] == str(root)
    assert made.stdout.splitlines()[2].startswith("65534 --id vm")
    assert made.stdout.rstrip().endswith("--api-sock a")
    assert (root.stat().st_uid, stat.S_IMODE(root.stat().st_mode)) == (65534, 0o700)
    assert (root / "firecracker.pid").read_text().isdigit()
