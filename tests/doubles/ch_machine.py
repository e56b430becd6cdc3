"""What the double of Cloud Hypervisor's API means: fields by version, a VM's states, snapshots.

Held against v53.0 itself, where that could be had; it is stricter in two things. A field that it
does not know is refused, where the real one takes no notice of it. And memory that was cut off is a
violation: the real one takes what is missing for zeroes, and the guest dies of it.

A snapshot's state records what a restore checks or has to have again: the size of memory, disks,
the CID, how many connections the guest had. The guest keeps nothing else across a restore: of each
of those connections its agent is left with one that a host has made.
"""
import fcntl
import json
import os
import socket
import threading
import time

import double
from double import MIB, Guest, Refused, log, room_path, version_tuple
from machine import Machine
from vsock import LINE_MAX, Vsock

VERSION = os.environ.get("DOUBLE_VERSION", "53.0.0")
NOW = version_tuple(VERSION)

# ---- fields: as in double.check ----

PCI = {"id?": str, "pci_segment?": int, "iommu?": bool}
CPUS = {"boot_vcpus": int, "max_vcpus": int, "topology?": dict, "kvm_hyperv?": bool,
        "max_phys_bits?": int, "affinity?": list, "features?": dict}
DISK = {**PCI, "path?": str, "readonly?": bool, "direct?": bool, "num_queues?": int,
        "queue_size?": int, "vhost_user?": bool, "vhost_socket?": str, "serial?": str,
        "rate_limit_group?": str, "rate_limiter_config?": dict, "queue_affinity?": list}
CONSOLE = {"mode": str, "file?": str, "socket?": str}
MEMORY = {"size": int, "mergeable?": bool, "hotplug_method?": str, "hotplug_size?": int,
          "hotplugged_size?": int, "shared?": bool, "hugepages?": bool, "hugepage_size?": int,
          "prefault?": bool, "thp?": bool, "zones?": list}
RESTORE = {"source_url": str, "prefault?": bool, "net_fds?": list}
if NOW >= (51, 0, 0):
    CPUS["nested?"] = bool
    DISK.update({"backing_files?": bool, "sparse?": bool, "image_type?": str})
if NOW >= (52, 0, 0):
    PCI["pci_device_id?"] = int
    RESTORE.update({"resume?": bool, "memory_restore_mode?": str})
CONFIG = {
    "cpus?": CPUS, "memory?": MEMORY, "disks?": [DISK], "net?": list, "pmem?": list, "fs?": list,
    "payload": {"firmware?": str, "kernel?": str, "cmdline?": str, "initramfs?": str},
    "rng?": {**PCI, "src": str}, "balloon?": dict, "serial?": CONSOLE,
    "console?": {**CONSOLE, **PCI}, "debug_console?": dict, "devices?": list,
    "user_devices?": list, "vdpa?": list, "vsock?": {**PCI, "cid": int, "socket": str},
    "numa?": list, "iommu?": bool, "watchdog?": bool, "pvpanic?": bool, "pci_segments?": list,
    "platform?": dict, "tpm?": dict, "landlock_enable?": bool, "landlock_rules?": list}
MODES = ("Off", "Pty", "Tty", "File", "Socket", "Null")


def failed(doing, *reasons, status=500):
    return Refused("Error from API", doing, *reasons, status=status)


def parse(fields, body):
    if body == b"":
        raise Refused("Bad Request", status=400)
    try:
        return double.check(fields, json.loads(body, object_pairs_hook=double.no_duplicates))
    except ValueError as e:
        raise Refused("Failed to deserialize JSON", str(e), status=400) from None


class CloudHypervisorVsock(Vsock):
    def __init__(self, path):
        self.stale = []
        super().__init__(path)

    def listens(self, sock):
        while not self.hears():
            if self.hung_up(sock):
                return False
            time.sleep(0.005)
        return True

    @staticmethod
    def hung_up(sock):
        try:
            return sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False

    def read_line(self, sock):
        """In as many pieces as it comes; no byte after it is taken."""
        line = b""
        while len(line) < LINE_MAX and not line.endswith(b"\n"):
            byte = sock.recv(1)
            if not byte:
                return None
            line += byte
        return line if line.endswith(b"\n") else None

    def ended(self, source, to, host, broken):
        """Since v53 one direction may end alone."""
        if NOW >= (53, 0, 0) and not broken:
            self.shut(to, socket.SHUT_WR)
            return
        for sock in (source, to):
            self.shut(sock, socket.SHUT_RDWR)

    def connections(self):
        with self.lock:
            return sum(guest is not None for guest in self.peers.values())

    def bring_back(self, count):
        """What the guest was connected to when the snapshot was taken: reset since v52, else for
        ever there."""
        while count > 0:
            try:
                guest = self.reach_agent()
            except OSError:  # it does not listen yet
                time.sleep(0.005)
                continue
            count -= 1
            if NOW >= (52, 0, 0):
                guest.close()
            else:
                self.stale.append(guest)


class CloudHypervisor(Machine):
    SERVER, METHODS = "Cloud Hypervisor API", "GET|PUT"

    def __init__(self, api):
        super().__init__()
        self.api, self.config, self.state, self.made = api, None, None, False
        self.disks = []

    @staticmethod
    def fault(refused):
        return list(refused.args)

    # ---- requests ----

    def serve(self, method, path, body):
        routes = {"vmm.ping": self.ping, "vm.info": self.info}
        if method == "PUT":
            routes = {
                "vm.create": self.create, "vm.boot": self.boot, "vm.pause": self.pause,
                "vm.resume": self.resume, "vm.snapshot": self.snapshot,
                "vm.restore": self.restore, "vm.shutdown": self.shut_down,
                "vm.delete": self.delete, "vmm.shutdown": self.end}
        name = path.removeprefix("/api/v1/")
        if name == path or name not in (
                "vmm.ping", "vm.info", "vm.create", "vm.boot", "vm.pause", "vm.resume",
                "vm.snapshot", "vm.restore", "vm.shutdown", "vm.delete", "vmm.shutdown"):
            raise Refused("Not Found", status=404)
        takes_body = name in ("vm.create", "vm.snapshot", "vm.restore")
        if name not in routes or (body and not takes_body):
            raise Refused("Bad Request", status=400)
        return routes[name](body) if takes_body else routes[name]()

    def ping(self):
        return {"build_version": f"v{VERSION}", "version": VERSION, "pid": os.getpid(),
                "features": ["io_uring", "kvm"]}

    def info(self):
        if self.config is None:
            raise failed("The VM info is not available", "VM is not created",
                         status=404 if NOW >= (53, 0, 0) else 500)
        tree = {f"_device{n}": {"id": f"_device{n}", "children": [], "resources": [
            {"PciBar": {"index": 0, "base": 0x3fff_ffff_ffff - n, "size": 524288,
                        "type_": "Mmio64", "prefetchable": False}}]} for n in range(20)}
        return {"config": self.config, "state": self.state, "device_tree": tree,
                "memory_actual_size": self.memory_size()}

    def memory_size(self):
        return self.config.get("memory", {}).get("size", 512 * MIB)

    # ---- a VM's life ----

    def create(self, body):
        config = parse(CONFIG, body)
        for name in ("serial", "console"):
            if config.get(name, {}).get("mode", "Off") not in MODES:
                raise Refused("Failed to deserialize JSON", f"unknown variant in `{name}`",
                              status=400)
        if self.config is not None:
            raise failed("The VM could not be created", "VM is already created")
        self.config, self.state = config, "Created"

    def validate(self, doing):
        cpus, vsock = self.config.get("cpus"), self.config.get("vsock")
        if not {"kernel", "firmware"} & self.config["payload"].keys():
            raise failed(doing, "Failed to validate config", "No bootitem provided")
        if cpus and cpus["max_vcpus"] < cpus["boot_vcpus"]:
            raise failed(doing, "Failed to validate config", "Max CPUs lower than boot CPUs")
        if vsock and vsock["cid"] < 3:
            raise failed(doing, "Failed to validate config",
                         f"{vsock['cid']} is a special VSOCK CID")
        if self.memory_size() % 4096:
            raise failed(doing, "Memory manager error", "Memory size is misaligned")

    def open(self, doing, what, path, flags=os.O_RDONLY):
        try:
            return os.open(room_path(path), flags | os.O_CLOEXEC)
        except OSError as e:
            raise failed(doing, f"Cannot open {what}", f"{e.strerror} (os error {e.errno})"
                         ) from None

    def make(self, doing):
        """The devices, as a VM that is booted or restored gets them."""
        self.made = True
        if "initramfs" in self.config["payload"]:
            os.close(self.open(doing, "initramfs file", self.config["payload"]["initramfs"]))
        for disk in self.config.get("disks", []):
            readonly = disk.get("readonly", False)
            fd = self.open(doing, "disk path", disk["path"], os.O_RDONLY if readonly else os.O_RDWR)
            self.disks.append(fd)
            try:
                fcntl.lockf(fd, (fcntl.LOCK_SH if readonly else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError:
                raise failed(doing, "Error from device manager", "Error locking disk images",
                             "The file is already locked") from None
        if "vsock" in self.config:
            try:
                self.vsock = CloudHypervisorVsock(room_path(self.config["vsock"]["socket"]))
            except OSError as e:
                raise failed(doing, "Cannot create virtio-vsock backend",
                             "Error binding to the host-side Unix socket",
                             f"{e.strerror} (os error {e.errno})") from None

    def boot(self):
        doing = "The VM could not boot"
        if self.config is None:
            raise failed(doing, "VM config is missing", status=404 if NOW >= (53, 0, 0) else 500)
        if self.made:
            raise failed(doing, "VM is already created")
        self.validate(doing)
        fd = self.open(doing, "kernel file", self.config["payload"]["kernel"])
        if os.pread(fd, 4, 0) != b"\x7fELF":
            raise failed(doing, "Cannot load the kernel into memory", "Invalid bzImage")
        os.close(fd)
        self.make(doing)
        log("booted", arguments=self.config["payload"].get("cmdline"), config=self.config)
        self.guest = Guest(self.vsock, restored=False)
        self.state = "Running"

    def turn(self, doing, before, after):
        if self.guest is None:
            raise failed(doing, "VM is not running")
        if self.state != before:
            raise failed(doing, "Failed to turn a migratable component",
                         f"Invalid transition: InvalidStateTransition({self.state}, {after})")
        self.state = after
        self.set_paused(after == "Paused")

    def pause(self):
        log("pause", files=sorted(os.listdir()))
        self.turn("The VM could not be paused", "Running", "Paused")

    def resume(self):
        self.turn("The VM could not resume", "Paused", "Running")

    def shut_down(self):
        if self.guest is None:
            raise failed("The VM could not shutdown", "VM is not running")
        self.forget()

    def forget(self):
        """The VM that there is, or is half made; not its configuration."""
        guest, self.guest = self.guest, None  # whose end is not the machine's
        if guest:
            guest.kill()
        for fd in self.disks:
            os.close(fd)
        if self.vsock:
            self.vsock.close()
            os.unlink(room_path(self.config["vsock"]["socket"]))
        self.vsock, self.made, self.disks, self.state = None, False, [], "Created"

    def delete(self):
        if self.config is not None:
            self.forget()
        self.config = self.state = None

    def end(self):
        self.delete()
        os.unlink(self.api)
        self.doomed = 0
        return ""

    # ---- snapshots ----

    @staticmethod
    def directory(doing, url):
        if not url.startswith("file://"):
            raise failed(doing, f"Could not extract path from URL: {url}")
        path = room_path(url.removeprefix("file://"))
        if not os.path.isdir(path):
            raise failed(doing, f'Destination is not a directory: "{path}"')
        return path

    def snapshot(self, body):
        doing = "The VM could not be snapshotted"
        url = parse({"destination_url": str}, body)["destination_url"]
        if self.guest is None:
            raise failed(doing, "VM is not running")
        if self.state != "Paused":
            raise failed(doing, "Cannot snapshot VM", "Trying to snapshot while VM is running")
        path = self.directory(doing, url)
        state = {"memory": self.memory_size(), "cid": self.config.get("vsock", {}).get("cid"),
                 "disks": len(self.config.get("disks", [])),
                 "connections": self.vsock.connections() if self.vsock else 0}
        try:
            for name, content in (("config.json", self.config), ("state.json", state)):
                with open(f"{path}/{name}", "x") as f:
                    json.dump(content, f)
            with open(f"{path}/memory-ranges", "xb") as f:
                double.write_memory(f, self.memory_size())
        except OSError as e:
            raise failed(doing, "Cannot send VM snapshot", "Error creating a snapshot file",
                         f"{e.strerror} (os error {e.errno})") from None

    def restore(self, body):
        doing = "The VM could not be restored"
        asked = parse(RESTORE, body)
        if self.config is not None:
            raise failed(doing, "VM is already created")
        path = self.directory(doing, asked["source_url"])
        try:
            with open(f"{path}/config.json") as f, open(f"{path}/state.json") as g:
                self.config, state = json.load(f), json.load(g)
            size = os.stat(f"{path}/memory-ranges").st_size
        except (OSError, ValueError) as e:
            self.config = None
            raise failed(doing, "Cannot restore VM", str(e)) from None
        try:
            self.bring_back(doing, state)
        except Refused:
            self.delete()
            raise
        log("restored", memory=size, config=self.config)
        if size < state["memory"]:
            log("violation", why="a guest was restored from memory that was cut off")
            self.doomed = 1
        self.state = "Running"
        self.guest = Guest(self.vsock, restored=True)
        if self.vsock:
            threading.Thread(target=self.vsock.bring_back, args=(state["connections"],),
                             daemon=True).start()
        if not asked.get("resume", False):
            self.state = "Paused"
            self.set_paused(True)

    def bring_back(self, doing, state):
        self.validate(doing)
        if (self.memory_size(), len(self.config.get("disks", []))) != \
                (state["memory"], state["disks"]):
            raise failed(doing, "Cannot restore VM", "The state is another configuration's")
        if self.config.get("vsock", {}).get("cid") != state["cid"]:
            log("violation", why="the CID of a restored guest has changed")
        self.make(doing)
