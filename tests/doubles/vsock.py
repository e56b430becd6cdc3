"""A double's hybrid vsock: a Unix socket whose connections reach the guest's agent. What the VMMs
do differently is in the subclasses, beside their machines.

Faults, taken from the file DOUBLE_FAULTS, "MODE COUNT" for the next COUNT connections, or "MODE
COUNT each" for the first COUNT of every VM that is restored:
  eof     closed instead of answered, as when nobody listens in the guest yet
  reset   answered with OK, then closed
  silent  never answered, never closed
  mute    answered with OK, then nothing ever
"""
import fcntl
import os
import random
import re
import select
import socket
import threading
import time

from double import AGENT_SOCKET, become_root, log

AGENT_PORT = 523
LINE_MAX = 32
CONNECTIONS_MAX = 1023


def take_fault(number, restored):
    """That of the VM's connection of this number; None for none."""
    path = os.environ.get("DOUBLE_FAULTS")
    if not path:
        return None
    with open(path, "r+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        words = f.read().split()
        if len(words) == 3:
            taken = restored and number <= int(words[1])
        else:
            taken = len(words) == 2 and int(words[1]) > 0
            if taken:
                f.seek(0)
                f.truncate()
                f.write(f"{words[0]} {int(words[1]) - 1}")
    if taken:
        log("fault", mode=words[0])
    return words[0] if taken else None


def wait_for(sock, events, seconds=None):
    poll = select.poll()
    poll.register(sock, events)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def hold(sock):
    """Say nothing until the host gives up. What it sends is not read."""
    wait_for(sock, 0)  # a hang-up is always told


class Vsock:
    """Bound when it is made; accepts at once, and answers when the guest's driver is up."""

    def __init__(self, path):
        self.paused, self.driver_up_at, self.restored = False, None, False
        self.lock, self.peers, self.count = threading.Lock(), {}, 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(128)
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.shut(self.listener, socket.SHUT_RDWR)
        self.listener.close()

    # ---- what the VMMs do differently ----

    def listens(self, sock):
        """Whether the guest's side will ever take up what was said by now; may wait for it."""
        raise NotImplementedError

    def read_line(self, sock):
        """The host's first line, with its end; None when it is given up."""
        raise NotImplementedError

    def ended(self, source, to, host, broken):
        """`source` says no more, or `broken`: one of them has gone. `host`: which of them is the
        host's end."""
        raise NotImplementedError

    # ---- connections ----

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:  # closed
                return
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
        return not self.paused and self.driver_up_at is not None and \
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
        if not self.listens(sock):
            hold(sock)
            return
        line = self.read_line(sock)
        match = re.fullmatch(rb"CONNECT (\d{1,10})\n", line or b"", re.IGNORECASE)
        if not match or int(match[1]) != AGENT_PORT:
            return
        fault = take_fault(number, self.restored)
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
        guest = self.reach_agent()
        with self.lock:
            self.peers[sock] = guest
        early = b""
        if random.random() < 0.5 and wait_for(guest, select.POLLIN, 0.001):
            early = guest.recv(4096)
        sock.sendall(ok + early)
        self.pump(sock, guest)

    @staticmethod
    def reach_agent():
        become_root()  # for the agent, which looks at who connects
        guest = socket.socket(socket.AF_UNIX)
        guest.connect(AGENT_SOCKET)
        return guest

    def pump(self, sock, guest):
        """Until both directions are done."""
        back = threading.Thread(target=self.forward, args=(guest, sock, sock), daemon=True)
        back.start()
        self.forward(sock, guest, sock)
        back.join()
        if self.peers[sock] is None:
            hold(sock)

    def forward(self, source, to, host):
        broken = False
        try:
            while data := source.recv(65536):
                to.sendall(data)
        except OSError:
            broken = True
        self.ended(source, to, host, broken)

    @staticmethod
    def shut(sock, how):
        try:
            sock.shutdown(how)
        except OSError:
            pass
