"""A VMM's HTTP API on a Unix socket, with the quirks of the server library that Firecracker and
Cloud Hypervisor share (micro-http). What is asked is served by a machine:

  machine.METHODS                   that it knows
  machine.SERVER                    what it calls itself
  machine.serve(method, path, body) what to answer, None for nothing (204), or Refused
  machine.fault(refused)            the body of an error

What the library refuses itself it tells in a shape of its own, which is no JSON: seen of
Firecracker 1.15.1.
"""
import json
import os
import random
import re
import socket
import sys
import threading
import time

from double import Refused, log

CONNECTIONS_MAX = 10
BODY_MAX = 51200
HEAD_MAX = 8192


class Closed(Exception):
    pass


class Unreadable(Refused):
    """A request that never reached the machine."""

    def text(self):
        return f'{{ "error": "{self}\nAll previous unanswered requests will be dropped." }}'


def next_lie(method, path):
    """How to answer this request, if it is the one that DOUBLE_LIES names: once."""
    try:
        with open(os.environ["DOUBLE_LIES"], "r+") as f:
            how, _, what = f.read().partition(" ")
            if what != f"{method} {path}":
                return None
            f.truncate(0)
            return how.replace("_", " ")
    except (KeyError, FileNotFoundError):
        return None


class Connection:
    """One client, in a thread of its own; requests are served one at a time."""

    def __init__(self, sock, machine, lock):
        self.sock, self.machine, self.lock, self.buffer = sock, machine, lock, b""

    def fill(self):
        data = self.sock.recv(4096)
        if not data:
            raise Closed
        self.buffer += data

    def request(self):
        while b"\r\n\r\n" not in self.buffer:
            if len(self.buffer) > HEAD_MAX:
                raise Unreadable("The request's head is too large.")
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head.decode("ascii").split("\r\n")
        match = re.fullmatch(rf"({self.machine.METHODS}) (/\S*) HTTP/1\.[01]", lines[0])
        if not match:
            raise Unreadable(f"Invalid HTTP request: {lines[0]}")
        fields = dict(re.fullmatch(r"([^:\s]+):\s*(.*)", line).groups() for line in lines[1:])
        fields = {name.lower(): value for name, value in fields.items()}
        length = int(fields.get("content-length", 0))
        if length > BODY_MAX:
            raise Unreadable(f"Request payload with size {length} is larger than the limit "
                             f"of {BODY_MAX} allowed by server.")
        if length and fields.get("content-type", "application/json") != "application/json":
            raise Unreadable("Unsupported media type.")
        while len(self.buffer) < length:
            self.fill()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return match[1], match[2], body

    def answer(self, status, data, lie=None):
        text = f"HTTP/1.1 {status} \r\nServer: {self.machine.SERVER}\r\n" \
               "Connection: keep-alive\r\n"
        if data is not None:
            text += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n{data}"
        else:
            text += "\r\n"  # 204 has no Content-Length
        if lie:
            self.lie(lie, text)
            return
        cut = random.randrange(len(text)) if random.random() < 0.3 else 0
        for part in (text[:cut], text[cut:]):
            self.sock.sendall(part.encode())
            time.sleep(0.002 if cut else 0)

    def lie(self, how, text):
        """What was asked is done, and another answer given."""
        log("lie", how=how)
        if how == "refuses":
            self.answer(400, json.dumps(self.machine.fault(Refused("no"))))
            return
        texts = {"twice": text * 2, "half": text[:len(text) // 2], "none": "",
                 "silent": "", "no HTTP": "+OK\r\n\r\n"}
        time.sleep(0.3 if how == "late" else 0)
        self.sock.sendall(texts.get(how, text).encode())
        if how == "silent":
            self.fill()  # until it is hung up on
        if how in ("half", "none"):
            raise Closed

    def one(self):
        lie = None
        try:
            method, path, body = self.request()
            answer = self.serve(method, path, body)
            lie = next_lie(method, path)
        except Unreadable as e:
            log("refused", why=str(e))
            self.answer(e.status, e.text())
        except Refused as e:
            log("refused", why=str(e))
            self.answer(e.status, json.dumps(self.machine.fault(e)))
        else:
            data = json.dumps(answer) if answer else answer
            self.answer(204 if answer is None else 200, data, lie)
        self.machine.answered()

    def serve(self, method, path, body):
        """What fails in other ways than by a refusal is the double's own fault."""
        try:
            with self.lock:
                return self.machine.serve(method, path, body)
        except Exception as e:
            if not isinstance(e, Refused):
                log("violation", why=f"the double failed: {e!r}")
            raise

    def run(self):
        try:
            while True:
                self.one()
        except (Closed, OSError):
            self.sock.close()


def accept(listener, machine):
    lock, clients = threading.Lock(), []
    while True:
        sock, _ = listener.accept()
        clients = [c for c in clients if c.is_alive()]
        if len(clients) >= CONNECTIONS_MAX:
            text = '{ "error": "Too many open connections" }'
            sock.sendall(f"HTTP/1.1 503\r\nServer: Firecracker API\r\nConnection: close\r\n"
                         f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
            sock.close()
            continue
        client = threading.Thread(target=Connection(sock, machine, lock).run, daemon=True)
        client.start()
        clients.append(client)


def run(path, machine):
    """Listen after a while, as a program that has to start, and serve until the machine ends."""
    time.sleep(random.uniform(0.005, 0.060))
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError as e:
        sys.exit(f"Failed to bind the API socket: {e}")
    listener.listen(16)
    threading.Thread(target=accept, args=(listener, machine), daemon=True).start()
    machine.watch()
