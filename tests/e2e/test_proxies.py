"""Behind HAProxy and nginx with the shipped snippets: streams flow, aborts arrive."""
import os
import shutil
import subprocess
import time

import pytest

from bridge import ROOT, free_port
from client import Client, Sandbox, until

DEPS = ROOT / "build/deps"
SNIPPETS = ROOT / "host-bridge/proxy"


def find(program):
    for place in (DEPS / program / "usr/sbin" / program, shutil.which(program),
                  f"/usr/sbin/{program}"):
        if place and os.access(place, os.X_OK):
            return str(place)
    pytest.skip(f"{program} is not here: run make deps")


def snippet(name, bridge, port):
    """The shipped snippet with this run's addresses in place of the documented ones."""
    text = (SNIPPETS / name).read_text()
    assert "127.0.0.1:8080" in text, f"{name} does not name the bridge's default address"
    return text.replace("127.0.0.1:8080", f"127.0.0.1:{bridge.port}") \
               .replace("127.0.0.1:8000", f"127.0.0.1:{port}")


class Proxy:
    def __init__(self, command, bridge, port, log):
        self.client = Client(("127.0.0.1", port), bridge.token)
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out,
                                            start_new_session=True)
        until(self.answers, 10, "the proxy's first answer")

    def answers(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.client.get("/healthz", timeout=5).status == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


def haproxy(bridge, directory, port):
    config = directory / "haproxy.cfg"
    config.write_text(snippet("haproxy.cfg", bridge, port))
    return [find("haproxy"), "-f", str(config), "-db", "-n", "500"]


def nginx(bridge, directory, port):
    (directory / "logs").mkdir(exist_ok=True)
    config = directory / "nginx.conf"
    temp = "".join(f"{kind}_temp_path {directory}/{kind};\n" for kind in
                   ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config.write_text(f"daemon off; pid {directory}/nginx.pid; error_log stderr;\n"
                      f"user root;\nevents {{}}\nhttp {{ access_log off;\n{temp}\n"
                      f"{snippet('nginx.conf', bridge, port)}\n}}\n")
    return [find("nginx"), "-p", str(directory), "-c", str(config), "-e", "stderr"]


@pytest.fixture(params=[haproxy, nginx], ids=["haproxy", "nginx"])
def behind(request, farm, tmp_path):
    """The shared guest on QEMU, reached through a proxy."""
    name = "qemu"
    direct = farm.sandbox(name)
    bridge, port = farm.bridge(name), free_port()
    proxy = Proxy(request.param(bridge, tmp_path, port), bridge, port, tmp_path / "log")
    through = Sandbox(proxy.client, direct.info)
    through.direct = direct
    yield through
    proxy.stop()


@pytest.mark.parametrize("route", ["/exec", "/exec/stream"])
@pytest.mark.parametrize("cmd", ["exec sleep 60", "while :; do echo x; sleep 0.05; done"],
                         ids=["silent", "printing"])
@pytest.mark.parametrize("leave", ["close", "abort"])
def test_abort_arrives(behind, route, cmd, leave):
    name = f"proxied-{time.monotonic_ns()}"
    connection = behind.send(cmd, route, exec_id=name, grace_seconds=0)
    path = f"{behind.path}/execs/{name}"
    until(lambda: (r := behind.direct.client.get(path)).status == 200 and
          r.json["state"] == "running", 5, "the start")
    began = time.monotonic()
    getattr(connection, leave)()
    state = until(lambda: (s := behind.direct.state(name))["state"] == "finished" and s, 5,
                  "the cancel")
    print(f"{route} {cmd[:12]} {leave}: {time.monotonic() - began:.3f} s")
    assert state["result"]["cancel_reason"] == "client_gone", state


def test_events_are_not_held_back(behind):
    stream = behind.stream("for i in 1 2 3; do echo $i; sleep 0.4; done")
    at = [e.at for e in stream if e.name == "stdout"]
    assert len(at) == 3 and at[1] - at[0] > 0.2 and at[2] - at[1] > 0.2


def test_quiet_stream_is_kept(behind):
    all = behind.stream("sleep 35; echo ok", timeout_seconds=60, timeout=60).collect()
    assert all.stdout == "ok\n"


def test_large_bodies_pass(behind):
    assert behind.out("wc -c", stdin="x" * (3 << 20)) == f"{3 << 20}\n"
    assert len(behind.out("head -c 4000000 /dev/zero | tr '\\0' x", timeout_seconds=40)) == 4000000
