"""The double of Cloud Hypervisor refuses what the real one refuses: a launcher that passes
test_doubled_vmms.py has been held to it."""
import contextlib
import json
import os
import shutil
import time

import pytest

from bridge import processes
from client import until
from doubled import SILENCE, VERSIONS, Vmm, lone_doubles

MIB = 1 << 20
CONFIG = {"payload": {"kernel": "kernel", "initramfs": "initrd", "cmdline": "quiet"},
          "cpus": {"boot_vcpus": 1, "max_vcpus": 1}, "memory": {"size": 64 * MIB},
          "vsock": {"cid": 3, "socket": "v.sock"}, "serial": {"mode": "Tty"},
          "console": {"mode": "Off"}}
FILES = ("config.json", "state.json", "memory-ranges")


class CloudHypervisor(Vmm):
    VERSION = VERSIONS["cloud-hypervisor"]
    COMMAND = ["cloud-hypervisor", "--api-socket", "api.sock"]

    def put(self, name, **body):
        """(status, the last of the reasons)"""
        status, answer = self.ask("PUT", f"/api/v1/{name}", body or None)
        return status, answer[-1] if answer else None

    def state(self):
        status, answer = self.ask("GET", "/api/v1/vm.info")
        return answer["state"] if status == 200 else status

    def create(self, **changed):
        (self.directory / "kernel").write_bytes(b"\x7fELF and more")
        (self.directory / "initrd").touch()
        return self.put("vm.create", **{**CONFIG, **changed})

    def boot(self, **changed):
        assert self.create(**changed) == (204, None)
        assert self.put("vm.boot") == (204, None)
        until(self.answers, 10)

    def save(self, directory=None):
        return self.put("vm.snapshot", destination_url=f"file://{directory or self.directory}")

    def restore(self, **more):
        return self.put("vm.restore", **{"source_url": f"file://{self.directory}",
                                         "resume": True, **more})


@pytest.fixture
def vmms():
    with lone_doubles(CloudHypervisor) as start:
        yield start


@pytest.fixture
def vmm(vmms):
    return vmms()


@pytest.fixture
def saved(vmms):
    """A snapshot's directory, without a memory of how many connections there were."""
    source = vmms()
    source.boot()
    assert source.put("vm.pause") == (204, None)
    copy = source.directory / "copy"
    copy.mkdir()
    assert source.save(copy) == (204, None)
    return copy


def shown(vmm, saved, **changed):
    """That snapshot in the VMM's room, its configuration edited as a launcher has to."""
    for name in FILES:
        if (saved / name).exists():
            shutil.copy(saved / name, vmm.directory / name)
    config = vmm.directory / "config.json"
    document = json.loads(config.read_text())
    document["payload"].pop("initramfs", None)
    config.write_text(json.dumps({**document, **changed}))
    return vmm


def test_answers_have_the_real_ones_quirks(vmm):
    connection = vmm.connect()

    def said(request, end):
        connection.sock.sendall(request)
        data = b""
        while not data.endswith(end):
            data += connection.sock.recv(1)
        return data
    head = said(b"PUT /api/v1/vm.delete HTTP/1.1\r\n\r\n", b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 \r\nServer: Cloud Hypervisor API\r\n")
    assert b"ontent-" not in head and b"Connection: keep-alive" in head
    assert b'"version": "53.0.0"' in said(b"GET /api/v1/vmm.ping HTTP/1.1\r\n\r\n", b"}")
    refusal = said(b"PUT /api/v1/vm.pause HTTP/1.1\r\n\r\n", b"]")
    assert refusal.endswith(b'["Error from API", "The VM could not be paused", '
                            b'"VM is not running"]')
    ended = said(b"PUT /api/v1/vmm.shutdown HTTP/1.1\r\n\r\n", b"\r\n\r\n")
    assert ended.startswith(b"HTTP/1.1 200 ") and b"Content-Length: 0" in ended
    assert vmm.process.wait(10) == 0
    assert not (vmm.directory / "api.sock").exists()


@pytest.mark.parametrize("version, in_use", [("52.0.0", True), ("53.0.0", False)])
def test_a_socket_that_was_left_is_in_the_way_of_versions_before_53(vmms, version, in_use):
    vmm = vmms(version, name="same")
    vmm.boot()
    vmm.kill()
    assert (vmm.directory / "api.sock").exists() and (vmm.directory / "v.sock").exists()
    second = vmms(version, name="same")
    if in_use:
        assert second.process.wait(10) != 0
    else:
        assert second.ask("GET", "/api/v1/vmm.ping")[0] == 200
        assert second.create() == (204, None)
        assert second.put("vm.boot")[0] == 500  # the vsock's is in the way of every version


@pytest.mark.parametrize("method, name, body, status", [
    ("PUT", "vm.create", {**CONFIG, "colour": "red"}, 400),
    ("PUT", "vm.create", {**CONFIG, "cpus": {"boot_vcpus": 1, "max_vcpus": 1, "x": 1}}, 400),
    ("PUT", "vm.create", {**CONFIG, "disks": [{"path": "d", "read_only": True}]}, 400),
    ("PUT", "vm.create", {**CONFIG, "cpus": {"boot_vcpus": 1}}, 400),
    ("PUT", "vm.create", {**CONFIG, "vsock": {"cid": "3", "socket": "v"}}, 400),
    ("PUT", "vm.create", {**CONFIG, "serial": {"mode": "tty"}}, 400),
    ("PUT", "vm.create", "{no json", 400), ("PUT", "vm.create", None, 400),
    ("PUT", "vm.create", {"payload": {"kernel": "k" * 51200}}, 400),
    ("PUT", "vm.boot", None, 404), ("PUT", "vm.boot", {}, 400), ("GET", "vm.boot", None, 400),
    ("PUT", "vm.pause", None, 500), ("PUT", "vm.resume", None, 500),
    ("PUT", "vm.shutdown", None, 500), ("GET", "vm.info", None, 404),
    ("PUT", "vm.snapshot", {"destination_url": "file:///tmp"}, 500),
    ("PUT", "vm.restore", {}, 400), ("PUT", "vm.restore", {"source_url": "/tmp"}, 500),
    ("PUT", "vm.restore", {"source_url": "file:///tmp/none"}, 500),
    ("PUT", "vm.nothing", None, 404), ("DELETE", "vm.create", None, 400),
])
def test_what_is_wrong_is_refused(vmm, method, name, body, status):
    text = "{}" if body == {} else body
    assert vmm.ask(method, f"/api/v1/{name}", text)[0] == status
    assert vmm.process.poll() is None


@pytest.mark.parametrize("changed, why", [
    ({"payload": {"cmdline": "quiet"}}, "bootitem"),
    ({"payload": {"kernel": "missing"}}, "No such file"),
    ({"payload": {"kernel": "initrd"}}, "Invalid bzImage"),
    ({"payload": {"kernel": "kernel", "initramfs": "missing"}}, "No such file"),
    ({"cpus": {"boot_vcpus": 2, "max_vcpus": 1}}, "lower than boot"),
    ({"vsock": {"cid": 2, "socket": "v.sock"}}, "special VSOCK CID"),
    ({"memory": {"size": 1000}}, "misaligned"),
    ({"disks": [{"path": "missing"}]}, "No such file"),
])
def test_what_cannot_be_booted_is_told_when_it_is(vmm, changed, why):
    assert vmm.create(**changed) == (204, None)
    status, reason = vmm.put("vm.boot")
    assert status == 500 and why in reason
    assert vmm.put("vm.delete") == (204, None)
    assert vmm.state() == 404


def test_the_state_decides_what_may_be_asked(vmm):
    assert vmm.create() == (204, None)
    assert vmm.state() == "Created"
    assert vmm.create()[0] == 500
    assert vmm.put("vm.pause")[0] == 500
    assert vmm.put("vm.boot") == (204, None)
    assert vmm.state() == "Running"
    assert (vmm.put("vm.boot")[0], vmm.put("vm.resume")[0], vmm.save()[0]) == (500, 500, 500)
    assert vmm.restore()[0] == 500
    assert vmm.put("vm.pause") == (204, None)
    assert vmm.state() == "Paused"
    assert vmm.put("vm.pause")[0] == 500
    assert vmm.save() == (204, None)
    assert "File exists" in vmm.save()[1]  # it writes nothing over
    assert vmm.put("vm.delete") == (204, None)
    assert not (vmm.directory / "v.sock").exists()


@pytest.mark.parametrize("url, why", [
    ("/tmp", "Could not extract path"), ("file:///tmp/not/there", "not a directory"),
    ("file://{}/kernel", "not a directory")])
def test_a_snapshot_goes_into_a_directory_that_is_there(vmm, url, why):
    vmm.boot()
    assert vmm.put("vm.pause") == (204, None)
    status, reason = vmm.put("vm.snapshot", destination_url=url.format(vmm.directory))
    assert status == 500 and why in reason


def test_a_disk_is_locked_for_one_writer_or_for_readers(vmms):
    first, second, third = (vmms() for _ in range(3))
    disk, image = first.directory / "disk", first.directory / "image"
    disk.touch()
    image.touch()
    read = {"path": str(image), "readonly": True}
    first.boot(disks=[read, {"path": str(disk)}])
    assert second.create(disks=[read, {"path": str(disk)}]) == (204, None)
    assert "locked" in second.put("vm.boot")[1]
    third.boot(disks=[read])


def test_a_restore_brings_the_vm_back_and_leaves_it_paused_unless_told(vmms, saved):
    paused = shown(vmms(), saved)
    assert paused.restore(resume=False) == (204, None)
    assert paused.state() == "Paused"
    assert paused.dial(b"CONNECT 523\n", 0.3) == SILENCE
    assert paused.put("vm.resume") == (204, None)
    until(paused.answers, 10)
    running = shown(vmms(), saved)
    assert running.restore() == (204, None)
    assert running.state() == "Running"
    until(running.answers, 10)


@pytest.mark.parametrize("how", ["initramfs", "stale socket", "no memory", "no state", "no config",
                                 "broken config", "another size", "a disk more", "a VM"])
def test_a_restore_that_cannot_be_leaves_no_vm(vmms, saved, how):
    vmm = shown(vmms(), saved)
    config = json.loads((vmm.directory / "config.json").read_text())
    if how == "initramfs":
        config["payload"]["initramfs"] = "initrd"  # it is opened, although nobody reads it
    if how == "another size":
        config["memory"]["size"] += MIB
    if how == "a disk more":
        config["disks"] = [{"path": "kernel"}]
    (vmm.directory / "config.json").write_text(json.dumps(config))
    if how == "stale socket":
        (vmm.directory / "v.sock").touch()
    if how == "broken config":
        (vmm.directory / "config.json").write_text("{")
    for name in {"no memory": ["memory-ranges"], "no state": ["state.json"],
                 "no config": ["config.json"]}.get(how, []):
        (vmm.directory / name).unlink()
    if how == "a VM":
        assert vmm.create() == (204, None)
    status, why = vmm.restore()
    assert status == 500 and why
    assert vmm.process.poll() is None
    assert vmm.state() == ("Created" if how == "a VM" else 404)


def test_memory_that_was_cut_off_is_not_noticed_and_ends_the_guest(vmms, saved):
    vmm = shown(vmms(), saved)
    os.truncate(vmm.directory / "memory-ranges", MIB)
    assert vmm.restore() == (204, None)
    assert vmm.process.wait(10) == 1
    assert '"violation"' in vmm.log.read_text()


def test_fields_belong_to_versions(vmms, saved):
    assert vmms("51.1.0").create(cpus={"boot_vcpus": 1, "max_vcpus": 1, "nested": False})[0] == 204
    assert vmms("50.0.0").create(cpus={"boot_vcpus": 1, "max_vcpus": 1, "nested": False})[0] == 400
    assert shown(vmms("51.1.0"), saved).restore()[0] == 400
    assert shown(vmms("52.0.0"), saved).restore()[0] == 204


def test_the_handshake_is_one_line_in_as_many_pieces_as_it_comes(vmm):
    vmm.boot()
    assert vmm.dial(b"connect 523\n", 5).startswith(b"OK ")
    for line in (b"CONNECT 524\n", b"HELLO 523\n", b"CONNECT " + b"5" * 40 + b"\n"):
        assert vmm.dial(line, 5) == b"", line
    assert vmm.dial(b"CONN", 0.2) == SILENCE
    with vmm.host(b"CONN") as s:
        time.sleep(0.05)  # so that it comes in pieces
        s.sendall(b"ECT 523\n")
        assert s.recv(100).startswith(b"OK ")


def test_a_paused_guest_answers_the_handshake_when_it_goes_on(vmm):
    vmm.boot()
    assert vmm.put("vm.pause") == (204, None)
    with vmm.host(b"CONNECT 523\n") as s:
        s.settimeout(0.3)
        with pytest.raises(TimeoutError):
            s.recv(100)
        assert vmm.put("vm.resume") == (204, None)
        s.settimeout(5)
        assert s.recv(100).startswith(b"OK ")


def test_a_snapshot_leaves_the_sources_connections_alone(vmm):
    vmm.boot()
    with vmm.host(b"CONNECT 523\n") as s:
        assert s.recv(100).startswith(b"OK ")
        assert vmm.put("vm.pause") == (204, None)
        assert vmm.save() == (204, None)
        assert json.loads((vmm.directory / "state.json").read_text())["connections"] >= 1
        assert vmm.put("vm.resume") == (204, None)
        s.settimeout(0.5)
        with pytest.raises(TimeoutError):
            s.recv(100)


def sockets_of_agent(vmm):
    [pid] = [pid for pid, words, where in processes()
             if "--unix" in words and where.endswith(str(vmm.directory)) and "unshare" not in words
             and "sh -c" not in words]
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return found


def test_connections_of_the_snapshot_hang_in_the_guest_before_v52(vmms, saved):
    def restored(version, connections):
        vmm = shown(vmms(version), saved)
        state = json.loads((vmm.directory / "state.json").read_text())
        (vmm.directory / "state.json").write_text(json.dumps({**state,
                                                              "connections": connections}))
        assert vmm.put("vm.restore", source_url=f"file://{vmm.directory}") == (204, None)
        assert vmm.put("vm.resume") == (204, None)
        until(vmm.answers, 10)
        return vmm
    idle, hanging, reset = restored("51.1.0", 0), restored("51.1.0", 3), restored("52.0.0", 3)
    until(lambda: sockets_of_agent(idle) == 1, 5)  # what it listens on
    until(lambda: sockets_of_agent(hanging) == 4, 5)
    until(lambda: sockets_of_agent(reset) == 1, 5)
