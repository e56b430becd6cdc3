"""The double's hybrid vsock: a Unix socket whose connections reach the guest's agent.

Faults, taken from the file DOUBLE_FAULTS, "MODE COUNT" for the next COUNT connections:
  eof     closed instead of answered, as when nobody listens in the guest yet
  reset   answered with OK, then closed
  silent  never answered, never closed
  mute    answered with OK, then nothing ever
"""
import ctypes
import fcntl
import os
import platform
import random
import re
import select
import socket
import threading
import time

AGENT_PORT = 523
LINE_MAX = 32
CONNECTIONS_MAX = 1023


def become_root():
    """Take back the rights that the double has laid aside, in this thread alone."""
    number = {"x86_64": 117, "aarch64": 147}[platform.machine()]  # setresuid(2)
    if os.getuid() == 0:
        ctypes.CDLL(None).syscall(number, 0, 0, 0)


def take_fault():
    path = os.environ.get("DOUBLE_FAULTS")
    if not path:
        return None
    with open(path, "r+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        words = f.read().split()
        if len(words) != 2 or int(words[1]) <= 0:
            return None
        f.seek(0)
        f.truncate()
        f.write(f"{words[0]} {int(words[1]) - 1}")
        return words[0]


def read_line(sock):
    """The line, read at one go as far as it is there; None when that is not a whole one."""
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


def wait_for(sock, events, seconds=None):
    poll = select.poll()
    poll.register(sock, events)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def hold(sock):
    """Say nothing until the host gives up. What it sends is not read."""
    wait_for(sock, 0)  # a hang-up is always told


class Vsock:
    """Bound when it is made; accepts at once, and answers when the guest's driver is up."""

    def __init__(self, path, agent):
        self.agent, self.paused, self.deaf, self.driver_up_at = agent, False, False, None
        self.lock, self.peers, self.count = threading.Lock(), {}, 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(128)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            sock, _ = self.listener.accept()
            with self.lock:
                room = len(self.peers) < CONNECTIONS_MAX
                if room:
                    self.peers[sock] = None
                    self.count += 1
            if room:
                threading.Thread(target=self.serve, args=(sock, self.count), daemon=True).start()
            else:
                sock.close()

    def hears(self):
        return not self.paused and not self.deaf and self.driver_up_at is not None and \
            time.monotonic() >= self.driver_up_at

    def serve(self, sock, number):
        try:
            self.converse(sock, number)
        except OSError:
            pass
        with self.lock:
            guest = self.peers.pop(sock, None)
        if guest:
            guest.close()
        sock.close()

    def converse(self, sock, number):
        wait_for(sock, select.POLLIN)
        if not self.hears():
            hold(sock)
            return
        line = read_line(sock)
        match = re.fullmatch(rb"CONNECT (\d{1,10})\n", line or b"", re.IGNORECASE)
        if not match or int(match[1]) != AGENT_PORT:
            return
        fault = take_fault()
        if fault == "eof":
            return
        if fault == "silent":
            hold(sock)
            return
        ok = f"OK {(1 << 30) + number}\n".encode()
        if fault:
            sock.sendall(ok)
            if fault == "mute":
                hold(sock)
            return
        become_root()  # for the agent, which looks at who connects
        guest = socket.socket(socket.AF_UNIX)
        guest.connect(self.agent)
        with self.lock:
            self.peers[sock] = guest
        early = b""
        if random.random() < 0.5 and wait_for(guest, select.POLLIN, 0.001):
            early = guest.recv(4096)
        sock.sendall(ok + early)
        self.pump(sock, guest)

    def pump(self, sock, guest):
        """Until either side is done, even with one direction: both are then."""
        back = threading.Thread(target=self.forward, args=(guest, sock, sock), daemon=True)
        back.start()
        self.forward(sock, guest, sock)
        back.join()
        if self.peers[sock] is None:
            hold(sock)

    def forward(self, source, to, host):
        try:
            while data := source.recv(65536):
                to.sendall(data)
        except OSError:
            pass
        if self.peers[host] is None:  # a snapshot was taken: the host hears nothing of it
            return
        for sock in (source, to):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def reset_guest_side(self):
        """A snapshot resets each connection in the guest, and tells the host nothing."""
        with self.lock:
            guests = [guest for guest in self.peers.values() if guest]
            self.peers = dict.fromkeys(self.peers)
        for guest in guests:
            try:
                guest.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
