"""A virtual machine as its owner runs one, without a bridge: QEMU and a vsock device, saved and
restored through QEMU's monitor."""
import json
import socket
import subprocess

from bridge import PROGRAM, ROOTFS
from client import until


class Monitor:
    """QEMU's monitor (QMP): one command after the other."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        until(lambda: self.sock.connect_ex(str(path)) == 0, 20, "QEMU's monitor")
        self.lines = self.sock.makefile("rb")
        self.next()
        self.ask("qmp_capabilities")

    def next(self):
        line = self.lines.readline()
        assert line, "QEMU hung up"
        return json.loads(line)

    def ask(self, command, **arguments):
        self.sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            message = self.next()
            assert "error" not in message, message
            if "return" in message:
                return message["return"]

    def wait(self, event):
        while self.next().get("event") != event:
            pass

    def migrated(self):
        until(lambda: self.ask("query-migrate").get("status") in ("completed", "failed"), 60,
              "the migration's end")
        assert self.ask("query-migrate")["status"] == "completed"


class VM:
    """Its agent listens behind the hybrid socket `vsock`. `state`: a file to start from; `more`:
    words for QEMU."""

    def __init__(self, directory, state=None, initrd=ROOTFS / "base.cpio", words="", more=()):
        self.directory, self.vsock = directory, directory / "vsock.sock"
        directory.mkdir()
        directory.chmod(0o777)  # the device is nobody
        self.device = subprocess.Popen(
            [PROGRAM, "vsock-device", "--socket", "device.sock", "--uds", "vsock.sock"],
            cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            start_new_session=True)
        assert self.device.stdout.readline() == b"ready\n"
        self.qemu = subprocess.Popen(
            ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
             "-M", "q35,memory-backend=ram", "-accel", "tcg", "-cpu", "max", "-m", "256M",
             "-object", "memory-backend-memfd,id=ram,size=256M,share=on",
             "-kernel", ROOTFS / "vmlinux", "-initrd", initrd, *more,
             "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off " + words,
             "-serial", "file:console", "-device", "pcie-root-port,id=port0,chassis=1,slot=1",
             "-qmp", "unix:qmp.sock,server=on,wait=off",
             *(["-incoming", "defer"] if state else self.words())],
            cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True)
        self.monitor = Monitor(directory / "qmp.sock")
        if state:
            self.monitor.ask("migrate-incoming", uri=f"exec:cat {state}")
            self.monitor.migrated()
            self.plug()

    @staticmethod
    def words():
        return ["-chardev", "socket,id=vsock,path=device.sock",
                "-device", "vhost-user-vsock-pci,chardev=vsock,id=vsock0,bus=port0"]

    def plug(self):
        """The device, which cannot be saved; and let the guest run."""
        self.monitor.ask("chardev-add", id="vsock", backend={"type": "socket", "data": {
            "server": False, "addr": {"type": "unix", "data": {"path": "device.sock"}}}})
        self.monitor.ask("device_add", driver="vhost-user-vsock-pci", id="vsock0",
                         chardev="vsock", bus="port0")
        self.monitor.ask("cont")

    def save(self, state):
        """It stands still afterwards: plug() lets it go on."""
        self.monitor.ask("device_del", id="vsock0")
        self.monitor.wait("DEVICE_DELETED")
        self.monitor.ask("chardev-remove", id="vsock")
        self.monitor.ask("stop")
        self.monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 36})
        self.monitor.ask("migrate", uri=f"exec:cat > {state}")
        self.monitor.migrated()

    def stop(self):
        for process in (self.qemu, self.device):
            process.kill()
            process.wait()
        self.device.stdout.close()
