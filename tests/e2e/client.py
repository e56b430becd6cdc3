"""HTTP as the tests need it: whole requests, and single bytes of one where a test is
about how a connection begins, stalls or ends. One socket a request unless told."""
import base64
import contextlib
import json
import select
import socket
import struct
import threading
import time


class Reply:
    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The envelope's object; failing loudly where a reply is not an error."""
        assert self.status >= 400, f"{self.status}: {self.body[:300]!r}"
        return self.json["error"]

    @property
    def code(self):
        return self.error["code"]


class Connection:
    """A socket to the bridge, with a reader that holds no second reference to it: what
    abort() and close() do is what the peer sees."""

    def __init__(self, address, timeout=30):
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, data):
        self.sock.sendall(data)

    def _fill(self):
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def readline(self):
        while b"\n" not in self.buffer:
            if not self._fill():
                raise EOFError(f"closed inside a line: {self.buffer!r}")
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line + b"\n"

    def read(self, n):
        while len(self.buffer) < n:
            if not self._fill():
                raise EOFError(f"closed with {len(self.buffer)} of {n} bytes")
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def read_to_end(self):
        with contextlib.suppress(ConnectionResetError):
            while self._fill():
                pass
        data, self.buffer = self.buffer, b""
        return data

    def head(self):
        status = int(self.readline().split(b" ")[1])
        headers = {}
        while (line := self.readline()) not in (b"\r\n", b"\n"):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return status, headers

    def chunks(self):
        """The decoded pieces of a chunked body, as they come."""
        while True:
            size = int(self.readline().split(b";")[0], 16)
            data = self.read(size)
            self.readline()
            if size == 0:
                return
            yield data

    def reply(self):
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        elif "content-length" in headers:
            body = self.read(int(headers["content-length"]))
        elif status in (204, 304):
            body = b""
        else:
            body = self.read_to_end()
        return Reply(status, headers, body)

    def readable(self, seconds):
        return bool(self.buffer) or bool(select.select([self.sock], [], [], seconds)[0])

    def close(self):
        """FIN, unless unread data makes the kernel send a reset."""
        self.sock.close()

    def abort(self):
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


class Event:
    def __init__(self, id, name, data, at):
        self.id, self.name, self.data, self.at = id, name, data, at

    def __repr__(self):
        return f"<{self.name} {self.id} {self.data}>"


class Stream:
    """A server-sent event stream. Iterating gives events; comments are counted."""

    def __init__(self, connection, status, headers):
        self.connection, self.status, self.headers = connection, status, headers
        self.comments, self.raw = [], b""

    def __iter__(self):
        fields, text = {}, b""
        for piece in self.connection.chunks():
            self.raw += piece
            text += piece
            while b"\n" in text:
                line, text = text.split(b"\n", 1)
                if line.startswith(b":"):
                    assert not fields, "a comment inside an event"
                    self.comments.append(time.monotonic())
                elif line:
                    name, _, value = line.decode().partition(":")
                    assert name not in fields, f"two {name} lines in an event"
                    fields[name] = value.removeprefix(" ")
                elif fields:
                    data = json.loads(fields["data"])
                    assert data["type"] == fields["event"]
                    yield Event(fields.get("id"), fields["event"], data, time.monotonic())
                    fields = {}
        assert not fields and not text, "the stream ends inside an event"

    def collect(self):
        return Collected(list(self))

    def until(self, name, text=None):
        for event in self:
            if event.name == name and (text is None or text in event.data.get("chunk", "")):
                return event
        raise AssertionError(f"the stream ended without {name} {text}")

    def close(self):
        self.connection.close()

    def abort(self):
        self.connection.abort()


class Collected:
    """A whole stream, judged for what every stream promises."""

    def __init__(self, events):
        self.events = events
        names = [e.name for e in events]
        assert names and names[-1] in ("exit", "error"), f"no terminal event: {events[-3:]}"
        terminals = [n for n in names if n in ("exit", "error")]
        assert len(terminals) == 1, f"terminal events: {terminals}"
        self.last = events[-1].data
        self.result = self.last.get("result")
        self.stdout = "".join(e.data["chunk"] for e in events if e.name == "stdout")
        self.stderr = "".join(e.data["chunk"] for e in events if e.name == "stderr")
        self.gaps = [e.data for e in events if e.name == "gap"]


class Client:
    def __init__(self, address, token):
        self.address, self.token = address, token

    def head(self, method, path, body=None, headers=None):
        """The bytes of a request up to its body, and the body."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        fields = {"Host": "sandgate", "Authorization": f"Bearer {self.token}"}
        if body is not None:
            fields["Content-Type"] = "application/json"
            fields["Content-Length"] = str(len(body))
        fields.update(headers or {})
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{k}: {v}" for k, v in fields.items() if v is not None]
        return ("\r\n".join(lines) + "\r\n\r\n").encode(), body or b""

    def connect(self, timeout=30):
        return Connection(self.address, timeout)

    def send(self, method, path, body=None, headers=None, timeout=30):
        """Send a request and leave the connection to the caller."""
        connection = self.connect(timeout)
        connection.send(b"".join(self.head(method, path, body, headers)))
        return connection

    def request(self, method, path, body=None, headers=None, timeout=30):
        with self.send(method, path, body, headers, timeout) as connection:
            return connection.reply()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.request("POST", path, {} if body is None else body, **kw)

    def delete(self, path, **kw):
        return self.request("DELETE", path, **kw)

    def stream(self, method, path, body=None, headers=None, timeout=30):
        connection = self.send(method, path, body, headers, timeout)
        status, fields = connection.head()
        assert status == 200, f"{status}: {connection.read_to_end()[:300]!r}"
        return Stream(connection, status, fields)

    def create(self, timeout=60, **body):
        body.setdefault("template", "base")
        reply = self.post("/v1/sandboxes", body, timeout=timeout)
        assert reply.status == 201, f"{reply.status}: {reply.body!r}"
        return Sandbox(self, reply.json)


def body_of(cmd, fields):
    body = {"cmd": cmd} if isinstance(cmd, str) else {"argv": cmd}
    body.setdefault("timeout_seconds", 20)
    body.update(fields)
    return body


class Sandbox:
    def __init__(self, client, info):
        self.client, self.info, self.id = client, info, info["id"]
        self.path = f"/v1/sandboxes/{self.id}"

    def exec(self, cmd, timeout=60, **fields):
        """POST exec; the Reply, whatever it is."""
        return self.client.post(self.path + "/exec", body_of(cmd, fields), timeout=timeout)

    def run(self, cmd, timeout=60, **fields):
        """POST exec; the result, which must be one."""
        reply = self.exec(cmd, timeout, **fields)
        assert reply.status == 200, f"{reply.status}: {reply.body[:500]!r}"
        return reply.json

    def out(self, cmd, **fields):
        """The standard output of a command that must exit 0."""
        result = self.run(cmd, **fields)
        assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
        return result["stdout"]

    def stream(self, cmd, headers=None, timeout=60, **fields):
        return self.client.stream("POST", self.path + "/exec/stream", body_of(cmd, fields),
                                  headers, timeout)

    def send(self, cmd, route="/exec", timeout=60, **fields):
        """Send the request and return its connection, unread."""
        return self.client.send("POST", self.path + route, body_of(cmd, fields),
                                timeout=timeout)

    def start(self, cmd, **fields):
        body = body_of(cmd, fields)
        reply = self.client.post(self.path + "/execs", body)
        assert reply.status == 201, f"{reply.status}: {reply.body!r}"
        return reply.json

    def state(self, exec_id, wait_seconds=None):
        query = "" if wait_seconds is None else f"?wait_seconds={wait_seconds}"
        reply = self.client.get(f"{self.path}/execs/{exec_id}{query}", timeout=120)
        assert reply.status == 200, f"{reply.status}: {reply.body!r}"
        return reply.json

    def is_running(self, exec_id):
        reply = self.client.get(f"{self.path}/execs/{exec_id}")
        return reply.status == 200 and reply.json["state"] == "running"

    def call(self, exec_id, action, body=None):
        return self.client.post(f"{self.path}/execs/{exec_id}/{action}", body)

    def forget(self, exec_id):
        return self.client.delete(f"{self.path}/execs/{exec_id}")

    def watch(self, exec_id, after=None, timeout=60):
        query = "" if after is None else f"?after={after}"
        return self.client.stream("GET", f"{self.path}/execs/{exec_id}/stream{query}",
                                  timeout=timeout)

    def status(self):
        return self.client.get(self.path).json["status"]

    def delete(self):
        return self.client.delete(self.path, timeout=60)

    def events_during(self, act):
        """What act() returns, and the names of the sandbox's events meanwhile."""
        stream = self.client.stream("GET", self.path + "/events")
        returned, names = act(), []
        self.run("true", exec_id="the-last-event")
        for event in stream:
            if event.data["exec_id"] == "the-last-event":
                break
            names.append(event.name)
        stream.close()
        return returned, names

    def sleepers(self):
        """How many processes named sleep live in the guest."""
        return int(self.out("grep -lx 'Name:.sleep' /proc/[0-9]*/status 2>/dev/null | wc -l"))

    def zombies(self):
        return int(self.out("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"))

    def put(self, path, data, mode="755"):
        """Write a file into the guest through a command's input."""
        assert self.run(f"cat > {path} && chmod {mode} {path}",
                        stdin_base64=base64.b64encode(data).decode())["exit_code"] == 0


def until(condition, seconds, what="the condition"):
    """Ask until it is true; its value. Bounded, and no guess at how long a thing takes."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)


def first_output(stream):
    """The events up to the first output, and an iterator over the rest."""
    events, seen = iter(stream), []
    for event in events:
        seen.append(event)
        if event.name == "stdout":
            return seen, events
    raise AssertionError("the stream ended without output")


def in_thread(work):
    """What, called, gives what work() has returned meanwhile."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    return lambda: (thread.join(60), result[0])[1]
