"""What the doubles of VMMs have in common: their settings, refusals, the fields of bodies, and the
guest, which is a guest-agent in namespaces of its own that ends with the VMM. Settings come from
the environment:

  DOUBLE_AGENT     the guest-agent's program
  DOUBLE_VERSION   what the VMM says that it is; fields newer than that are unknown to it
  DOUBLE_LOG       a file: one JSON line for each refusal, load and violation
  DOUBLE_FAULTS    a file with "MODE COUNT" for the next COUNT vsock connections (vsock.py)
  DOUBLE_LIES      a file with "HOW METHOD PATH": what is answered to that request (api_server.py)
  DOUBLE_JAIL, DOUBLE_UID, DOUBLE_GID  set by the jailer's double: the directory that stands for
                   the root, and whose rights the VMM's files and sockets are used with
"""
import contextlib
import ctypes
import glob
import json
import os
import pathlib
import platform
import random
import re
import signal
import subprocess
import time

AGENT_SOCKET = "agent.sock"
JAIL = os.environ.get("DOUBLE_JAIL")
MIB = 1 << 20


class Refused(Exception):
    """Answered with an error. `status` is the answer's, the arguments are the reasons."""

    def __init__(self, *reasons, status=400):
        super().__init__(*reasons)
        self.status = status

    def __str__(self):
        return ": ".join(self.args)


def log(event, **fields):
    path = os.environ.get("DOUBLE_LOG")
    if path:
        with open(path, "a") as f:
            f.write(json.dumps({"event": event, "room": os.getcwd(), **fields}) + "\n")


def version_tuple(text):
    return tuple(int(n) for n in re.match(r"(\d+)\.(\d+)\.(\d+)", text).groups())


def room_path(path):
    """Where a path of the VMM's is on this machine. In a jail nothing outside is seen."""
    if JAIL is None:
        return path
    inside = "." + path if path.startswith("/") else path
    real = os.path.realpath(inside)
    if real != JAIL and not real.startswith(JAIL + "/"):
        raise Refused(f"No such file or directory: {path}")
    return inside


def drop_privileges():
    """What the jailer would have done for good; the guest's processes take them back."""
    if "DOUBLE_JAIL" in os.environ:
        uid, gid = int(os.environ["DOUBLE_UID"]), int(os.environ["DOUBLE_GID"])
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(0, uid, 0)


def may_be_root():
    """Whether it has rights that it does not use: root's, laid aside, or capabilities."""
    with open("/proc/self/status") as f:
        effective = int(re.search(r"^CapEff:\s*(\w+)", f.read(), re.MULTILINE)[1], 16)
    return os.getuid() == 0 or bool(effective >> 7 & 1)  # CAP_SETUID


def become_root():
    """Take up those rights, in this thread alone."""
    number = {"x86_64": 117, "aarch64": 147}[platform.machine()]  # setresuid(2)
    if may_be_root():
        ctypes.CDLL(None).syscall(number, 0, 0, 0)


def no_duplicates(pairs):
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        raise ValueError("duplicate field")
    return dict(pairs)


def check(fields, body):
    """`body` as an object with these fields and no others: {name: type}, or {name: fields} for an
    object in it, or {name: [fields]} for a list of them. Those without a question mark are
    required."""
    if not isinstance(body, dict):
        raise ValueError("The body is no object.")
    known = {name.rstrip("?"): kind for name, kind in fields.items()}
    for name, value in body.items():
        if name not in known:
            raise ValueError(f"unknown field `{name}`, expected one of {sorted(known)}")
        kind = known[name]
        if isinstance(kind, dict):
            check(kind, value)
        elif isinstance(kind, list):
            if type(value) is not list:
                raise ValueError(f"invalid type for `{name}`")
            for item in value:
                check(kind[0], item)
        elif type(value) is not kind:
            raise ValueError(f"invalid type for `{name}`")
    for name in fields:
        if not name.endswith("?") and name not in body:
            raise ValueError(f"missing field `{name}`")
    return body


def become_guest():
    """In the child: the guest's root has all rights, those of its VMM are no matter to it."""
    become_root()
    if os.geteuid() == 0:
        os.setresgid(0, 0, 0)


class Guest:
    """Runs from when it is made, its agent as soon as it can. One that boots takes moments to be
    able to listen at all."""

    def __init__(self, vsock, restored):
        own = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--mount-proc"]
        own += [] if may_be_root() else ["--user", "--map-root-user"]
        self.process = subprocess.Popen(
            ["/usr/bin/unshare", *own, "/bin/sh", "-c",
             'mount -t tmpfs none /sys/fs/cgroup && { "$0" --port 0 --unix "$1" & wait $!; }',
             os.environ["DOUBLE_AGENT"], AGENT_SOCKET],
            stdin=subprocess.DEVNULL, preexec_fn=become_guest)
        if vsock:
            vsock.restored = restored
            vsock.driver_up_at = time.monotonic() + (0 if restored else random.uniform(0, 0.010))

    def stop(self, stop):
        """Its processes stand still, although its clocks go on. Some end meanwhile."""
        def below(pid):
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    for child in pathlib.Path(path).read_text().split():
                        yield int(child)
                        yield from below(child)
        for pid in below(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)

    def ended(self):
        return self.process.poll() is not None

    def kill(self):
        self.process.kill()
        self.process.wait()


def write_memory(f, size):
    """Something random at both ends, as a guest's memory has it, and holes between. It takes a
    while."""
    f.truncate(size)
    time.sleep(random.uniform(0, 0.060))
    f.write(os.urandom(65536))
    f.seek(size - 4096)
    f.write(os.urandom(4096))
