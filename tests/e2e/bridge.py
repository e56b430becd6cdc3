"""A bridge under test: a process of its own, with its own state directory and port."""
import contextlib
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import sys

from client import Client, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SANDGATE_BUILD", ROOT / "build/release")).resolve()
PROGRAM = BUILD / "host-bridge/host-bridge"
AGENT = BUILD / "guest-agent/guest-agent"
ROOTFS = pathlib.Path(os.environ.get("SANDGATE_ROOTFS", BUILD / "rootfs")).resolve()
SANITIZED = "san" in BUILD.name


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes():
    """(pid, command line, directories) of every process that can be looked at."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
            yield int(entry.name), words, os.readlink(entry / "root") + " " + \
                os.readlink(entry / "cwd")
        except OSError:
            continue


def open_to_all(path):
    """Whoever it is, also a bridge or a VM that is nobody, gets to that directory of a test's."""
    for at in (path, *path.parents):
        if at.stat().st_uid == os.getuid() and not at.stat().st_mode & 0o001:
            at.chmod(0o755)


class Bridge:
    def __init__(self, directory, launcher, *flags):
        self.directory, self.launcher, self.flags = directory, launcher, flags
        self.state = directory / "state"
        self.attach = directory / "attach"
        self.log = directory / "log"
        for path in (self.state, self.attach):
            path.mkdir(parents=True, exist_ok=True)
        if launcher == "qemu" and "SANDGATE_E2E_KVM" not in os.environ:
            self.answer_kvm("qemu", "-")
        self.token = secrets.token_hex(16)
        self.port = free_port()
        self.client = Client(("127.0.0.1", self.port), self.token)
        self.process = None

    def answer_kvm(self, candidates, launcher):
        """Spare it the trial of KVM, which takes CPU time from what is tested."""
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (self.state / "kvm").write_text(f"{boot} {candidates} {launcher}\n")

    def command(self):
        return [PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}",
                "--launcher", self.launcher, "--state-dir", self.state,
                "--rootfs-dir", ROOTFS, "--agent", AGENT, "--attach-dir", self.attach,
                "--warm-pool", "0", *self.flags]

    def environment(self):
        return {**os.environ, "SANDGATE_TOKEN": self.token}

    def start(self, **popen):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, env=self.environment(),
                                            start_new_session=True, **popen)
        until(self.answers, 30, "the bridge's first answer")
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the bridge ended: {self.log.read_text()[-2000:]}")
        try:
            return self.client.get("/healthz", timeout=5).status == 200
        except OSError:
            return False

    def kill(self):
        """SIGKILL, as a crash: its virtual machines stay."""
        self.process.kill()
        self.process.wait()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def guests(self, sandbox):
        """The pids that make up a sandbox, its device left out."""
        name = self.directory_of(sandbox).name
        return [pid for pid, words, root in processes()
                if (name in words or name in root) and "vsock-device" not in words]

    def machine(self, sandbox):
        """Of those, the process that the others hang on: to stop it stops the guest."""
        pids = self.guests(sandbox)
        parent = lambda pid: int(pathlib.Path(f"/proc/{pid}/stat").read_text()
                                 .rsplit(")", 1)[1].split()[1])
        return next(pid for pid in pids if parent(pid) not in pids)

    def directory_of(self, sandbox):
        return self.state / "vm" / sandbox.id.rsplit("-", 1)[-1]

    def cgroups(self):
        """The directory of its virtual machines' cgroups, or None where it can make none."""
        found = re.search(r"VMs have cgroups in (\S+?)(,|$)", self.log.read_text(), re.M)
        return pathlib.Path(found.group(1)) if found else None

    def kill_guests(self, sandbox):
        """SIGKILL to all of them; the end of one may take others along."""
        pids = self.guests(sandbox)
        assert pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self):
        """Processes that belong to this bridge's sandboxes."""
        where = str(self.directory)
        return [(pid, words) for pid, words, root in processes()
                if where in words or where in root]

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(l for l in status.splitlines() if l.startswith("VmRSS")).split()[1])

    def delete_all(self):
        page = self.client.get("/v1/sandboxes?limit=1000").json
        for item in page["items"]:
            self.client.delete(f"/v1/sandboxes/{item['id']}", timeout=60)

    def stop(self):
        """Delete what is left, then end; a crash or a report by a sanitizer fails."""
        if self.process.poll() is None:
            self.delete_all()
            self.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("the bridge does not end after SIGTERM")
        code = self.process.returncode
        for pid, words in self.leftovers():
            print(f"left behind, ended now: {pid} {words}", file=sys.stderr)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        text = self.log.read_text(errors="replace")
        assert "Sanitizer" not in text and "runtime error" not in text, text[-4000:]
        assert code in (0, -signal.SIGKILL), f"the bridge's exit status is {code}: {text[-2000:]}"
