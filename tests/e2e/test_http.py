"""Malformed and hostile HTTP against a real bridge: what is right, and that it goes on."""
import json
import socket
import time

import pytest

from client import Connection, until

pytestmark = pytest.mark.sanitized

HOST = b"Host: x\r\n"
TOKEN = b"@TOKEN@"


@pytest.fixture
def http(local_bridge):
    yield local_bridge.client
    assert local_bridge.client.get("/healthz").status == 200, "the bridge did not survive"


def raw(client, data, timeout=20):
    """Send bytes, read to the end. (status of the first reply or None, everything)."""
    data = data.replace(TOKEN, client.token.encode())
    with client.connect(timeout) as connection:
        try:
            connection.send(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        text = connection.read_to_end()
    return (int(text.split(b" ")[1]) if text.startswith(b"HTTP/1.1 ") else None), text


def post(headers, body=b"", path=b"/v1/sandboxes"):
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + \
        b"Authorization: Bearer " + TOKEN + b"\r\n" + headers + b"\r\n" + body


GET = b"GET /healthz HTTP/1.1\r\n" + HOST
# name: (bytes, the statuses that are right). Each must end with the connection closed.
MALFORMED = {
    "bad chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n0\r\n\r\n"), {400}),
    "negative chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"-1\r\n{}\r\n0\r\n\r\n"), {400}),
    "huge chunk size": (post(b"Transfer-Encoding: chunked\r\n", b"f" * 17 + b"\r\n"), {400, 413}),
    "two equal Content-Lengths": (post(b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"), {400}),
    "two Content-Lengths": (post(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{} "), {400}),
    "Content-Length list": (post(b"Content-Length: 2, 2\r\n", b"{}"), {400}),
    "Content-Length with Transfer-Encoding":
        (post(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), {400}),
    "Transfer-Encoding with Content-Length":
        (post(b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"0\r\n\r\n"), {400}),
    "repeated Transfer-Encoding":
        (post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), {400}),
    "unknown Transfer-Encoding": (post(b"Transfer-Encoding: gzip\r\n", b"{}"), {400}),
    "chunked not last": (post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"), {400}),
    "NUL in a header": (GET + b"X: a\0b\r\n\r\n", {400}),
    "bare CR in a header": (GET + b"X: a\rb\r\n\r\n", {400}),
    "obs-fold": (GET + b"X: a\r\n b\r\n\r\n", {400}),
    "bare CR before the end": (GET + b"X: a\r\n\rX", {400}),
    "space before the colon": (GET + b"X : a\r\n\r\n", {400}),
    "no colon": (GET + b"nonsense\r\n\r\n", {400}),
    "Content-Length with a sign": (post(b"Content-Length: +2\r\n", b"{}"), {400}),
    "Content-Length negative": (post(b"Content-Length: -2\r\n", b"{}"), {400}),
    "Content-Length with junk": (post(b"Content-Length: 2x\r\n", b"{}"), {400}),
    "Content-Length huge": (post(b"Content-Length: 99999999999999999999\r\n"), {400, 413}),
    "unknown method": (b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405}),
    "malformed method": (b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", {400}),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405, 505}),
    "no Host": (b"GET /healthz HTTP/1.1\r\n\r\n", {400}),
    "two Hosts": (GET + b"Host: y\r\n\r\n", {400}),
    "CONNECT": (b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404, 405}),
    "Transfer-Encoding in HTTP/1.0":
        (b"POST /v1/sandboxes HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         {400}),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, {400, None}),
    "garbage": (b"\xff\xfe\xfd" * 100 + b"\r\n\r\n", {400}),
    "head too long": (GET + b"X: " + b"a" * 40000 + b"\r\n\r\n", {431, 413}),
    "head too long, many": (GET + b"".join(b"X%d: a\r\n" % i for i in range(200)) + b"\r\n", {431}),
    "target too long": (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {414, 431, 413}),
    "chunk extensions too long":
        (post(b"Transfer-Encoding: chunked\r\n", b"2;" + b"a" * 20000 + b"\r\n{}\r\n0\r\n\r\n"),
         {413, 431, 400}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(http, name):
    data, right = MALFORMED[name]
    status, text = raw(http, data)
    assert status in right, text[:300]
    assert text.count(b"HTTP/1.1 ") <= 1, "more than one reply: a smuggled request"
    if status:
        body = text.split(b"\r\n\r\n", 1)[1]
        assert not body or "error" in json.loads(body), body


@pytest.mark.parametrize("path", [b"/%00", b"/v1/sandboxes/%00", b"/v1/sandboxes/a%00b/exec",
                                  b"/v1/sandboxes/%2e%2e/exec", b"/v1/sandboxes/%zz"])
def test_percent_encoded_path(http, path):
    status, text = raw(http, b"GET " + path + b" HTTP/1.1\r\n" + HOST +
                       b"Authorization: Bearer " + http.token.encode() +
                       b"\r\nConnection: close\r\n\r\n")
    assert status in (400, 404, 405), text[:200]


def test_absolute_form(http):
    status, _ = raw(http, b"GET http://elsewhere/healthz HTTP/1.1\r\n" + HOST +
                    b"Connection: close\r\n\r\n")
    assert status == 200


def test_smuggled_request_is_not_run(http):
    """The second half of an ambiguous body must never be answered as a request."""
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    for headers in (b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % (len(hidden) + 5),
                    b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
                    b"Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n"):
        _, text = raw(http, post(headers, b"0\r\n\r\n" + hidden))
        assert text.count(b"HTTP/1.1 ") == 1, text


def test_a_thousand_pipelined(http):
    count = 1000
    with http.connect(60) as connection:
        got = []
        connection.sock.settimeout(30)
        data = b"".join(b"GET /healthz?n= HTTP/1.1\r\nHost: x\r\nX-Request-Id: r%d\r\n\r\n"
                        .replace(b"?n=", b"") % i for i in range(count))
        sent = 0
        connection.sock.setblocking(False)
        deadline = time.monotonic() + 30
        while len(got) < count and time.monotonic() < deadline:
            if sent < len(data):
                try:
                    sent += connection.sock.send(data[sent:sent + 4096])
                except BlockingIOError:
                    pass
            connection.sock.settimeout(10)
            while connection.readable(0) and len(got) < count:
                reply = connection.reply()
                assert reply.status == 200
                got.append(reply.headers["x-request-id"])
            connection.sock.setblocking(False)
    assert got == [f"r{i}" for i in range(count)]


def test_keep_alive_and_close(http):
    with http.connect() as connection:
        for _ in range(3):
            connection.send(GET + b"\r\n")
            assert connection.reply().status == 200
        connection.send(GET + b"Connection: close\r\n\r\n")
        assert connection.reply().status == 200
        assert connection.read_to_end() == b""


def test_byte_by_byte(http):
    with http.connect() as connection:
        for byte in GET + b"\r\n":
            connection.send(bytes([byte]))
        assert connection.reply().status == 200


def test_slow_head_is_given_up(http):
    """An absolute deadline: a byte now and then does not extend it."""
    began = time.monotonic()
    with http.connect(60) as connection:
        ended = None
        for byte in (GET + b"X: " + b"a" * 1000):
            try:
                connection.send(bytes([byte]))
            except OSError:
                ended = time.monotonic()
                break
            if connection.readable(0.25):
                ended = time.monotonic()
                break
        assert ended, "never given up"
        assert 8 < ended - began < 16


def test_slow_body_is_given_up(http):
    head, _ = http.head("POST", "/v1/sandboxes", b"x" * 100_000)
    began = time.monotonic()
    with http.connect(90) as connection:
        connection.send(head)
        ended = None
        for _ in range(200):
            try:
                connection.send(b"x")
            except OSError:
                ended = True
                break
            if connection.readable(0.25):
                ended = True
                break
        assert ended, "never given up"
        assert time.monotonic() - began < 40


def test_slow_clients_do_not_hold_others(http):
    slow = [http.connect() for _ in range(200)]
    for connection in slow:
        connection.send(b"GET /healthz HTTP/1.1\r\nHost")
    began = time.monotonic()
    assert http.get("/healthz").status == 200
    assert time.monotonic() - began < 1
    for connection in slow:
        connection.close()


def test_expect_continue(http):
    head, body = http.head("POST", "/v1/sandboxes", {"template": "none-such"},
                           {"Expect": "100-continue"})
    with http.connect() as connection:
        connection.send(head)
        assert connection.readline().startswith(b"HTTP/1.1 100")
        connection.readline()
        connection.send(body)
        assert connection.reply().code == "template.not_found"


def test_64_mib_body_is_refused_at_the_limit(local_bridge, local):
    size = 64 << 20
    head, _ = local.client.head("POST", local.path + "/exec", None,
                                {"Content-Type": "application/json", "Content-Length": str(size)})
    before = local_bridge.rss_kib()
    with local.client.connect() as connection:
        connection.send(head)
        reply = connection.reply()
    assert (reply.status, reply.code) == (413, "request.too_large")
    chunked, _ = local.client.head("POST", local.path + "/exec", None, {
        "Content-Type": "application/json", "Transfer-Encoding": "chunked"})
    with local.client.connect() as connection:
        connection.send(chunked)
        sent = 0
        try:
            while sent < size and not connection.readable(0):
                connection.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass
        reply = connection.reply()
    assert (reply.status, reply.code) == (413, "request.too_large")
    assert sent < 40 << 20
    assert local_bridge.rss_kib() - before < 48 * 1024


def test_body_just_under_the_limit(local):
    body = json.dumps({"cmd": "true", "timeout_seconds": 5}).encode()
    assert local.client.request("POST", local.path + "/exec",
                                body + b" " * ((16 << 20) - len(body))).status == 200
    reply = local.client.request("POST", local.path + "/exec",
                                 body + b" " * ((16 << 20) - len(body) + 1))
    assert reply.code == "request.too_large"


# (body, code, field): nothing of it may run.
BAD_JSON = [
    (b"{", "request.malformed_json", None),
    (b"", "request.missing_field", None),
    (b"[]", "request.malformed_json", None),
    (b'"text"', "request.malformed_json", None),
    (b"null", "request.malformed_json", None),
    (b"{} {}", "request.malformed_json", None),
    (b'{"cmd":"true",}', "request.malformed_json", None),
    (b"{'cmd':'true'}", "request.malformed_json", None),
    (b'{"cmd":"\xff"}', "request.malformed_json", None),
    (b'{"cmd":"\\ud800"}', "request.malformed_json", None),
    (b'{"cmd":"a","cmd":"b"}', "request.invalid_field", None),
    (b'{"cmd":"true","timeout_seconds":NaN}', "request.malformed_json", None),
    (b'{"cmd":"true","timeout_seconds":01}', "request.malformed_json", None),
    (b'{"cmd":"true","timeout_seconds":1e999}', "request.invalid_field", None),
    (b"[" * 100_000, "request.malformed_json", None),
    (b'{"cmd":1}', "request.invalid_field", "cmd"),
    (b'{"cmd":"true","unknown":1}', "request.invalid_field", "unknown"),
    (b'{"cmd":"true","limits":{"memory_mb":1}}', "request.invalid_field", "limits.memory_mb"),
    (b'{"cmd":"true","limits":{"pids":-1}}', "request.invalid_field", "limits.pids"),
    (b'{"cmd":"true","limits":{"pids":1.5}}', "request.invalid_field", "limits.pids"),
    (b'{"cmd":"true","limits":[]}', "request.invalid_field", "limits"),
    (b'{"cmd":"true","env":{"A":1}}', "request.invalid_field", "env"),
    (b'{"cmd":"true","env":{"A=B":"1"}}', "request.invalid_field", "env"),
    (b'{"cmd":"true","env":["A=B"]}', "request.invalid_field", "env"),
    (b'{"argv":"true"}', "request.invalid_field", "argv"),
    (b'{"argv":[]}', "request.invalid_field", "argv"),
    (b'{"argv":[1]}', "request.invalid_field", "argv"),
    (b'{"cmd":"true","argv":["true"]}', "request.invalid_field", None),
    (b'{}', "request.missing_field", None),
    (b'{"cmd":"true","exec_id":"a/b"}', "request.invalid_field", "exec_id"),
    (b'{"cmd":"true","exec_id":""}', "request.invalid_field", "exec_id"),
    (b'{"cmd":"true","on_exit":"explode"}', "request.invalid_field", "on_exit"),
    (b'{"cmd":"true","output_encoding":"utf8"}', "request.invalid_field", "output_encoding"),
    (b'{"cmd":"true","stdin":"a","stdin_base64":"YQ=="}', "request.invalid_field", "stdin"),
    (b'{"cmd":"true","stdin_base64":"@@"}', "request.invalid_field", "stdin_base64"),
    (b'{"cmd":"true","merge_stderr":"yes"}', "request.invalid_field", "merge_stderr"),
    (b'{"cmd":"true","grace_seconds":-1}', "request.invalid_field", "grace_seconds"),
]


@pytest.mark.parametrize("body,code,field", BAD_JSON, ids=[str(b[0][:40]) for b in BAD_JSON])
def test_bad_json(local, body, code, field):
    for route in ("/exec", "/exec/stream", "/execs"):
        reply = local.client.request("POST", local.path + route, body)
        assert reply.status == 400 and reply.code == code, reply.body
        error = reply.error
        assert set(error) >= {"code", "message", "request_id", "retryable", "details"}
        if field:
            assert error["details"]["field"].startswith(field), error
    assert local.client.get("/healthz").status == 200


class TestRouting:
    def test_unknown_route(self, http):
        assert http.get("/v1/nothing").code == "route.not_found"
        assert http.get("/").code == "route.not_found"

    def test_wrong_method(self, http):
        reply = http.request("PUT", "/v1/sandboxes", b"{}")
        assert reply.status == 405 and reply.code == "method.not_allowed"
        assert {m.strip() for m in reply.headers["allow"].split(",")} >= {"GET", "POST"}

    def test_media_type(self, http):
        """What `curl -d` sends by itself will do, and so does none; no other type."""
        for bad in ("text/plain", "multipart/form-data; boundary=x", "application/jsonx"):
            reply = http.post("/v1/sandboxes", {}, headers={"Content-Type": bad})
            assert (reply.status, reply.code) == (415, "request.unsupported_media_type")
            assert "Content-Type: application/json" in reply.error["message"]
        for good in ("application/json; charset=utf-8", "Application/JSON", None,
                     "application/x-www-form-urlencoded"):
            reply = http.post("/v1/sandboxes", {"template": "none-such"},
                              headers={"Content-Type": good})
            assert reply.code == "template.not_found"

    def test_unknown_query(self, http):
        reply = http.get("/v1/sandboxes?bogus=1")
        assert reply.code == "request.invalid_field"
        assert reply.error["details"]["field"] == "bogus"

    def test_request_id(self, http):
        assert http.get("/healthz", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] \
            == "mine-1"
        reply = http.get("/v1/nothing")
        assert reply.error["request_id"] == reply.headers["x-request-id"] != ""
        odd = http.get("/v1/nothing", headers={"X-Request-Id": "a" * 5000})
        assert odd.headers["x-request-id"] != "a" * 5000

    def test_head(self, http):
        with http.send("HEAD", "/healthz", headers={"Connection": "close"}) as connection:
            assert connection.head()[0] == 200
            assert connection.read_to_end() == b""


class TestAuth:
    @pytest.mark.parametrize("value,code", [
        (None, "auth.missing_token"), ("Bearer wrong", "auth.invalid_token"),
        ("Bearer ", "auth.invalid_token"), ("Basic eDp5", "auth.invalid_token"),
        ("Bearer " + "x" * 5000, "auth.invalid_token")])
    def test_refused(self, http, value, code):
        reply = http.get("/v1/sandboxes", headers={"Authorization": value})
        assert reply.status == 401 and reply.code == code
        assert "Bearer" in reply.headers["www-authenticate"]

    def test_scheme_in_any_case(self, http):
        assert http.get("/v1/sandboxes",
                        headers={"Authorization": "bearer " + http.token}).status == 200

    def test_open_routes(self, http):
        for path in ("/healthz", "/readyz", "/version", "/openapi.json"):
            assert http.get(path, headers={"Authorization": None}).status == 200

    def test_nothing_runs_without_a_token(self, local):
        reply = local.client.post(local.path + "/exec", {"cmd": "touch /tmp/unauthorized"},
                                  headers={"Authorization": None})
        assert reply.status == 401


def test_unix_socket(farm):
    bridge = farm.new("local")
    path = str(bridge.directory / "api.sock")
    bridge.flags = ("--listen", f"unix:{path}")
    bridge.start()
    try:
        with Connection(path) as connection:
            connection.send(GET + b"\r\n")
            assert connection.reply().status == 200
        assert socket.socket(socket.AF_INET).connect_ex(("127.0.0.1", bridge.port)) in (0, 111)
    finally:
        bridge.stop()


def test_connection_storm(http):
    connections = [http.connect() for _ in range(500)]
    for connection in connections[::2]:
        connection.abort()
    until(lambda: http.get("/healthz").status == 200, 5)
    for connection in connections[1::2]:
        connection.close()
