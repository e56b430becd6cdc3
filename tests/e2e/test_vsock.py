"""The vsock transport itself, where no host can be harmed: a second agent, a daemon inside
a guest, judged over the guest's own loopback (CID 1) by the conformance program."""
import glob
import subprocess

import pytest

from bridge import BUILD


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    out = tmp_path_factory.mktemp("static") / "conformance"
    objects = glob.glob(str(BUILD / "tests/conformance/*.o"))
    if not objects:
        pytest.skip("the conformance program is not built")
    objects += glob.glob(str(BUILD / "proto/*.o"))
    subprocess.run(["cc", "-static", "-s", "-o", out, *objects, "-lprotobuf-c"], check=True)
    return out.read_bytes()


def test_daemon_in_a_guest_over_loopback(farm, program):
    own = farm.bridge("qemu").client.create(resources={"memory_mib": 512})
    try:
        own.put("/tmp/conformance", program)
        own.start(["/init", "--port", "524", "--allow-cid", "1"], timeout_seconds=600)
        result = own.run("until /tmp/conformance --only Ping vsock:1:524 >/dev/null 2>&1; do "
                         "sleep 0.1; done; /tmp/conformance vsock:1:524", timeout_seconds=300,
                         timeout=320)
        print(result["stdout"])
        assert result["outcome"] == "exited" and result["exit_code"] == 0, \
            [l for l in result["stdout"].splitlines() if not l.startswith("ok")]
    finally:
        own.delete()


def test_other_peers_are_refused(farm, program):
    """Without --allow-cid an agent listens to nobody but its host."""
    own = farm.bridge("qemu").client.create()
    try:
        own.put("/tmp/conformance", program)
        result = own.run("/tmp/conformance --only Ping vsock:1:523", timeout_seconds=60)
        assert result["exit_code"] == 1 and "0 passed" in result["stdout"], result["stdout"]
    finally:
        own.delete()
