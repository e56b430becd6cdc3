"""What the double of Firecracker's API means: fields by version, the state machine, snapshots.

A snapshot's state records what a load checks: the version, disks, taps, the vsock's path and
CID, the size of memory. Memory is a sparse file of that size with something random in it; it is
hashed when it is loaded and when the VMM ends, and looked at meanwhile: a change is a
violation, as is a disk that another VMM writes to as well, or of another size than was saved. The
guest keeps nothing across a restore.
"""
import fcntl
import hashlib
import json
import os
import re
import socket

import double
from double import MIB, Guest, Refused, log, room_path, version_tuple
from machine import Machine
from vsock import LINE_MAX, Vsock

VERSION = os.environ.get("DOUBLE_VERSION", "1.17.0")
NOW = version_tuple(VERSION)


def clock_realtime_known():
    return NOW >= (1, 16, 0) or NOW[:2] in ((1, 15), (1, 14)) and \
        NOW >= {(1, 15): (1, 15, 1), (1, 14): (1, 14, 4)}[NOW[:2]]


# ---- fields: {name: type}, those that are required without a question mark ----

BOOT_SOURCE = {"kernel_image_path": str, "initrd_path?": str, "boot_args?": str}
MACHINE = {"vcpu_count": int, "mem_size_mib": int, "smt?": bool, "track_dirty_pages?": bool,
           "cpu_template?": str, "huge_pages?": str}
VSOCK = {"guest_cid": int, "uds_path": str, "vsock_id?": str}
DRIVE = {"drive_id": str, "path_on_host?": str, "is_root_device": bool, "is_read_only?": bool,
         "cache_type?": str, "io_engine?": str, "partuuid?": str, "rate_limiter?": dict}
DRIVE_PATCH = {"drive_id": str, "path_on_host?": str, "rate_limiter?": dict}
INTERFACE = {"iface_id": str, "host_dev_name": str, "guest_mac?": str,
             "rx_rate_limiter?": dict, "tx_rate_limiter?": dict}
LOAD = {"snapshot_path": str, "mem_backend": dict, "resume_vm?": bool,
        "track_dirty_pages?": bool, "enable_diff_snapshots?": bool}
if NOW >= (1, 12, 0):
    LOAD["network_overrides?"] = list
if NOW >= (1, 16, 0):
    LOAD["vsock_override?"] = dict
if clock_realtime_known():
    LOAD["clock_realtime?"] = bool
CREATE = {"snapshot_path": str, "mem_file_path": str, "snapshot_type?": str}


def check(fields, body):
    try:
        return double.check(fields, body)
    except ValueError as e:
        raise Refused(f"An error occurred when deserializing the json body of a request: "
                      f"{e}.") from None


class Memory:
    """A snapshot's memory that a guest was loaded from: it must never change."""

    def __init__(self, path):
        self.path, self.file = os.path.realpath(path), open(path, "rb")
        self.seen, self.hash = self.stat(), self.digest()
        log("loaded", memory=self.path, inode=self.seen[2], sha256=self.hash)

    def stat(self):
        st = os.fstat(self.file.fileno())
        return st.st_mtime_ns, st.st_size, st.st_ino

    def digest(self):
        digest, at, fd = hashlib.sha256(), 0, self.file.fileno()
        size = os.fstat(fd).st_size
        while at < size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # no data is left
                break
            end = os.lseek(fd, at, os.SEEK_HOLE)
            while at < end:
                data = os.pread(fd, min(end - at, MIB), at)
                digest.update(str(at).encode() + data)
                at += len(data)
        return digest.hexdigest()

    def changed(self):
        return self.stat() != self.seen

    def changed_at_end(self):
        return self.changed() or self.digest() != self.hash


class FirecrackerVsock(Vsock):
    def __init__(self, path):
        self.deaf = False
        super().__init__(path)

    def listens(self, sock):
        return self.hears() and not self.deaf

    def read_line(self, sock):
        """Read at one go as far as it is there; None when that is not a whole one."""
        line = b""
        while len(line) < LINE_MAX and not line.endswith(b"\n"):
            try:
                byte = sock.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not byte:
                return None
            line += byte
        return line if line.endswith(b"\n") else None

    def ended(self, source, to, host, broken):
        """One direction that is done is the other's end."""
        if self.peers[host] is None:  # a snapshot was taken: the host hears nothing of it
            return
        for sock in (source, to):
            self.shut(sock, socket.SHUT_RDWR)

    def reset_guest_side(self):
        """A snapshot resets each connection in the guest, and tells the host nothing."""
        with self.lock:
            guests = [guest for guest in self.peers.values() if guest]
            self.peers = dict.fromkeys(self.peers)
        for guest in guests:
            self.shut(guest, socket.SHUT_RDWR)


class Firecracker(Machine):
    SERVER, METHODS = "Firecracker API", "GET|PUT|PATCH"

    def __init__(self, instance):
        super().__init__()
        self.id, self.state, self.bare_pause = instance, "Not started", False
        self.config = {"drives": {}, "nets": {}}
        self.memory, self.disks = None, {}

    def die(self, status):
        if self.memory and self.memory.changed_at_end():
            log("violation", why="the memory file of a loaded guest has changed")
            status = 1
        super().die(status)

    def look(self):
        if self.memory and self.memory.changed():
            self.die(1)

    @staticmethod
    def fault(refused):
        return {"fault_message": str(refused)}

    # ---- requests ----

    def serve(self, method, path, body):
        routes = {
            ("GET", "/"): self.describe, ("GET", "/version"): self.tell_version,
            ("PUT", "/boot-source"): self.set_boot_source,
            ("PUT", "/machine-config"): self.set_machine, ("PUT", "/vsock"): self.set_vsock,
            ("PUT", "/entropy"): self.set_entropy, ("PUT", "/actions"): self.act,
            ("PATCH", "/vm"): self.set_state, ("PUT", "/snapshot/create"): self.create,
            ("PUT", "/snapshot/load"): self.load}
        named = re.fullmatch(r"/(drives|network-interfaces)/([^/]*)", path)
        if method == "GET" and body:
            raise Refused("GET request cannot have a body.")
        try:
            value = json.loads(body, object_pairs_hook=double.no_duplicates) if body else None
        except ValueError as e:
            raise Refused(f"The body is no JSON: {e}") from None
        if named and method in ("PUT", "PATCH"):
            return self.set_named(method, *named.groups(), value)
        if (method, path) not in routes:
            raise Refused(f"Invalid request method and/or path: {method} {path}.")
        route = routes[method, path]
        return route() if method == "GET" else route(value)

    def describe(self):
        return {"id": self.id, "state": self.state, "vmm_version": VERSION,
                "app_name": "Firecracker"}

    def tell_version(self):
        return {"firecracker_version": VERSION}

    def before_start(self):
        if self.state != "Not started":
            raise Refused("The requested operation is not supported after starting the microVM.")

    def after_start(self):
        if self.state == "Not started":
            raise Refused("The requested operation is not supported before starting the "
                          "microVM.")

    def set_boot_source(self, body):
        self.before_start()
        check(BOOT_SOURCE, body)
        for name in ("kernel_image_path", "initrd_path"):
            if name in body:
                self.readable(body[name])
        self.config["boot"] = body

    def set_machine(self, body):
        self.before_start()
        check(MACHINE, body)
        if not 1 <= body["vcpu_count"] <= 32 or body["mem_size_mib"] < 1:
            raise Refused("The vCPU count or the memory size is invalid.")
        self.config["machine"] = body

    def set_vsock(self, body):
        self.before_start()
        check(VSOCK, body)
        if body["guest_cid"] < 3:
            raise Refused("The guest CID is reserved.")
        self.bind_vsock(body["uds_path"])
        self.config["vsock"] = {"guest_cid": body["guest_cid"], "uds_path": body["uds_path"]}

    def set_entropy(self, body):
        self.before_start()
        check({"rate_limiter?": dict}, body)
        self.config["entropy"] = body

    def set_named(self, method, kind, name, body):
        field = "drive_id" if kind == "drives" else "iface_id"
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise Refused(f"API Resource IDs can only contain alphanumeric characters and "
                          f"underscores: {name}")
        if method == "PUT":
            self.before_start()
            check(DRIVE if kind == "drives" else INTERFACE, body)
        else:
            self.after_start()
            check(DRIVE_PATCH if kind == "drives" else INTERFACE, body)
        if body[field] != name:
            raise Refused("The id from the path does not match the id from the body!")
        if kind == "drives":
            self.set_drive(method, name, body)
        else:
            self.config["nets"][name] = body

    def set_drive(self, method, name, body):
        drives = self.config["drives"]
        if method == "PATCH" and name not in drives:
            raise Refused(f"No such drive: {name}")
        if method == "PUT" and "path_on_host" not in body:
            raise Refused("The block device configuration is invalid.")
        if body.get("cache_type", "Unsafe") not in ("Unsafe", "Writeback"):
            raise Refused("unknown variant of cache_type")
        if body.get("is_root_device") and \
                any(d["is_root_device"] for n, d in drives.items() if n != name):
            raise Refused("A root block device already exists!")
        drive = {**drives.get(name, {}), **body}
        self.open_drive(drive)
        drives[name] = drive

    def open_drive(self, drive):
        """With the rights that the guest will have to it, which nobody else has then."""
        readonly = drive.get("is_read_only", False)
        try:
            fd = os.open(room_path(drive["path_on_host"]),
                         (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC)
        except OSError as e:
            raise Refused(f"Unable to open the block device {drive['path_on_host']}: "
                          f"{e.strerror}") from None
        try:
            fcntl.lockf(fd, (fcntl.LOCK_SH if readonly else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            log("violation", why="a disk that somebody writes to has two guests")
        self.disks[drive["drive_id"]] = fd

    def disk_sizes(self):
        return {name: os.fstat(fd).st_size for name, fd in self.disks.items()}

    def bind_vsock(self, path):
        try:
            self.vsock = FirecrackerVsock(room_path(path))
        except OSError as e:
            raise Refused(f"Cannot create backend for vsock device: UnixBind({e})") from None

    # ---- running ----

    def act(self, body):
        check({"action_type": str}, body)
        if body["action_type"] == "SendCtrlAltDel":
            self.after_start()
            self.guest.kill()
        elif body["action_type"] == "InstanceStart":
            self.before_start()
            if "boot" not in self.config:
                raise Refused("Cannot start microvm without kernel configuration.")
            if self.readable(self.config["boot"]["kernel_image_path"]) != b"\x7fELF":
                raise Refused("Cannot load kernel due to invalid memory configuration or invalid "
                              "kernel image: Invalid Elf magic number")
            log("booted", arguments=self.config["boot"].get("boot_args"),
                drives=list(self.config["drives"].values()))
            self.guest = Guest(self.vsock, restored=False)
            self.state = "Running"
        else:
            raise Refused(f"unknown variant `{body['action_type']}`")

    def set_state(self, body):
        self.after_start()
        check({"state": str}, body)
        if body["state"] not in ("Paused", "Resumed"):
            raise Refused(f"unknown variant `{body['state']}`")
        paused = body["state"] == "Paused"
        self.state = "Paused" if paused else "Running"
        if paused:
            self.bare_pause = True
        elif self.bare_pause and NOW in ((1, 16, 0), (1, 16, 1)) and self.vsock:
            self.vsock.deaf = True
        self.set_paused(paused)

    # ---- snapshots ----

    def create(self, body):
        self.after_start()
        check(CREATE, body)
        if self.state != "Paused":
            raise Refused("Cannot create a snapshot while the microVM is running.")
        if body.get("snapshot_type", "Full") != "Full":
            raise Refused("Diff snapshots are not enabled.")
        size = self.config.get("machine", {}).get("mem_size_mib", 128) * MIB
        state = {"version": VERSION, "memory": size, "config": self.config,
                 "disks": self.disk_sizes()}
        try:
            with open(room_path(body["mem_file_path"]), "wb") as f:
                double.write_memory(f, size)
            with open(room_path(body["snapshot_path"]), "w") as f:
                json.dump(state, f)
        except OSError as e:
            raise Refused(f"Cannot write the snapshot: {e}") from None
        self.bare_pause = False
        if self.vsock:
            self.vsock.reset_guest_side()

    def load(self, body):
        self.before_start()
        check(LOAD, body)
        if "boot" in self.config or "machine" in self.config or self.vsock or \
                self.config["drives"] or self.config["nets"]:
            raise Refused("Loading a microVM snapshot not allowed after configuring "
                          "boot-specific resources.")
        check({"backend_type": str, "backend_path": str}, body["mem_backend"])
        override = check({"uds_path": str}, body.get("vsock_override", {"uds_path": ""}))
        try:
            self.restore(body, override["uds_path"])
        except Refused as e:
            self.doomed = 1
            raise Refused(f"Load snapshot error: {e}") from None

    def restore(self, body, uds_path):
        try:
            with open(room_path(body["snapshot_path"])) as f:
                state = json.load(f)
            memory = room_path(body["mem_backend"]["backend_path"])
            size = os.stat(memory).st_size
        except (OSError, ValueError) as e:
            raise Refused(f"Failed to restore from snapshot: {e}") from None
        if version_tuple(state["version"])[:2] != NOW[:2]:
            raise Refused(f"Snapshot version {state['version']} is not {VERSION}'s.")
        if size < state["memory"]:
            raise Refused("The memory file is too short.")
        self.config = state["config"]
        for drive in self.config["drives"].values():
            self.open_drive(drive)
        if self.disk_sizes() != state["disks"]:
            log("violation", why="a disk is not of the size that the guest knows")
        taps = {o["iface_id"]: o["host_dev_name"] for o in body.get("network_overrides", [])}
        for name, net in self.config["nets"].items():
            tap = taps.get(name, net["host_dev_name"])
            if not os.path.exists(f"/sys/class/net/{tap}"):
                raise Refused(f"Open tap device failed: {tap}")
        if "vsock" in self.config:
            path = uds_path or self.config["vsock"]["uds_path"]
            self.bind_vsock(path)
            self.config["vsock"]["uds_path"] = path
            self.vsock.deaf = NOW == (1, 16, 0)
        try:
            self.memory = Memory(memory)
        except OSError as e:
            raise Refused(f"Failed to open the memory file: {e}") from None
        self.state = "Running" if body.get("resume_vm") else "Paused"
        if self.vsock:
            self.vsock.paused = self.state == "Paused"
        self.guest = Guest(self.vsock, restored=True)
