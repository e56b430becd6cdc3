"""Bridges whose VMM is a double (tests/doubles), and doubles alone."""
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import socket
import subprocess
import tempfile

from bridge import AGENT, ROOT, Bridge
from client import Sandbox, until

DOUBLES = ROOT / "tests/doubles"
VERSIONS = {"firecracker": "1.17.0", "cloud-hypervisor": "53.0.0"}
NOBODY = 65534
CAPABILITIES = "+setuid,+setgid,+kill,+dac_read_search"
SILENCE = b"(silence)"
# How many first connections in a row have it, in tests of restores.
FAULTS = {"eof": 3, "reset": 3, "silent": 1, "mute": 1}
LOST = {"sandbox.lost", "agent.timeout", "agent.unreachable"}


class Doubles:
    """A directory for PATH with the double (and the jailer's), and what it is told and tells."""

    def __init__(self, directory, vmm, version):
        self.vmm = vmm
        self.bin, self.log = directory / "bin", directory / "double.log"
        self.faults, self.lies = directory / "faults", directory / "lies"
        self.bin.mkdir(parents=True)
        for path in (self.log, self.faults, self.lies):
            path.touch()
            path.chmod(0o666)
        (self.bin / "jailer").symlink_to(DOUBLES / "jailer")
        self.install(version)

    def install(self, version):
        settings = {"AGENT": AGENT, "VERSION": version, "LOG": self.log, "FAULTS": self.faults,
                    "LIES": self.lies}
        exports = [f"export DOUBLE_{k}={shlex.quote(str(v))}" for k, v in settings.items()]
        program = self.bin / self.vmm
        program.write_text("\n".join(["#!/bin/sh", *exports,
                                      f'exec {DOUBLES}/{self.vmm} "$@"', ""]))
        program.chmod(0o755)

    def fault(self, mode, count):
        """Of the next so many connections."""
        self.faults.write_text(f"{mode} {count}")

    def fault_restored(self, mode, count):
        """Of the first so many connections of each VM that is restored."""
        self.faults.write_text(f"{mode} {count} each")

    def lie(self, how, request):
        """To the next such request, which is served all the same."""
        self.lies.write_text(f"{how.replace(' ', '_')} {request}")

    def unused_faults(self):
        return int((self.faults.read_text().split() + ["0", "0"])[1])

    def events(self, kind):
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]


class DoubledBridge(Bridge):
    """As nobody, its VMM is not locked up: as the double of Cloud Hypervisor, which needs this
    machine's Python, must not be. Doubles' guests can be root all the same."""

    def __init__(self, directory, vmm, version=None, as_nobody=False):
        super().__init__(directory, vmm)
        self.doubles = Doubles(directory, vmm, version or VERSIONS[vmm])
        self.as_nobody = os.getuid() == 0 and (as_nobody or vmm == "cloud-hypervisor")
        for path in (self.directory, self.state, self.attach) if self.as_nobody else ():
            os.chown(path, NOBODY, NOBODY)

    def environment(self):
        return {**super().environment(), "PATH": f"{self.doubles.bin}:{os.environ['PATH']}"}

    def command(self):
        nobody = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups",
                  "--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES]
        return (nobody if self.as_nobody else []) + super().command()

    def stop(self):
        """No guest came to life on memory that was changed or cut off, and nothing is left."""
        super().stop()
        assert self.doubles.events("violation") == []
        assert list(self.state.glob("vm/*")) == []


@contextlib.contextmanager
def doubled_bridges(farm, vmm):
    """What makes a test's bridges and starts them; stopped at the end."""
    made = []

    def start(version=None, **how):
        farm.count += 1
        made.append(DoubledBridge(farm.directory / f"own{farm.count}", vmm, version, **how))
        return made[-1].start()
    try:
        yield start
    finally:
        for bridge in made:
            bridge.stop()


@contextlib.contextmanager
def lone_doubles(kind):
    """What starts a test's doubles, of class `kind`, each in a directory; killed at the end."""
    made = []

    def start(version=kind.VERSION, name=None):
        made.append(kind(pathlib.Path(top) / (name or f"vm{len(made)}"), version))
        return made[-1]
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as top:
        try:
            yield start
        finally:
            for vmm in made:
                vmm.kill()


def snapshot(box):
    reply = box.client.post(box.path + "/snapshots", timeout=60)
    assert reply.status == 201, reply.body
    return reply.json


def restore(client, snap):
    reply = client.post("/v1/sandboxes", {"from_snapshot": snap["id"]}, timeout=90)
    assert reply.status == 201, reply.body
    return Sandbox(client, reply.json)


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Vmm:
    """A double, started in a directory of its own without a bridge."""
    VERSION, COMMAND = None, None

    def __init__(self, directory, version):
        self.directory, self.log = directory, directory / "log"
        directory.mkdir(exist_ok=True)
        environment = {**os.environ, "DOUBLE_AGENT": str(AGENT), "DOUBLE_VERSION": version,
                       "DOUBLE_LOG": str(self.log)}
        self.process = subprocess.Popen([DOUBLES / self.COMMAND[0], *self.COMMAND[1:]],
                                        cwd=directory, env=environment, start_new_session=True,
                                        stderr=subprocess.PIPE, text=True)

    def connect(self):
        api = self.directory / "api.sock"
        connection = Unix(str(api))
        until(lambda: self.tries(connection), 10)
        return connection

    @staticmethod
    def tries(connection):
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def ask(self, method, path, body=None):
        """(status, what came with it: as text where it is no JSON)"""
        connection = self.connect()
        text = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, text,
                           {"Content-Type": "application/json"} if text else {})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        try:
            return reply.status, json.loads(data) if data else None
        except ValueError:
            return reply.status, data.decode()

    def host(self, line):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(5)
        s.connect(str(self.directory / "v.sock"))
        s.sendall(line)
        return s

    def dial(self, line, seconds):
        """What is answered; b"" for a hang-up, SILENCE for nothing within so long."""
        with self.host(line) as s:
            s.settimeout(seconds)
            try:
                return s.recv(100)
            except TimeoutError:
                return SILENCE
            except ConnectionResetError:
                return b""

    def answers(self):
        return self.dial(b"CONNECT 523\n", 0.2).startswith(b"OK ")

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.communicate(timeout=10)
