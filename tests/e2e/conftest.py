import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import bridge as bridge_module
from bridge import Bridge

LAUNCHERS = os.environ.get("SANDGATE_E2E_LAUNCHERS", "uml,qemu").split(",")
PROGRAMS = {"uml": "linux.uml", "qemu": "qemu-system-x86_64", "local": "sh"}


def pytest_configure(config):
    config.addinivalue_line("markers", "serial: measures time, wants the machine to itself")
    config.addinivalue_line("markers", "sanitized: runs in the sanitizer lane, too")
    config.addinivalue_line("markers", "xdist_group: its tests share a guest, so one worker's")


def need(launcher):
    if not shutil.which(PROGRAMS[launcher]):
        pytest.skip(f"{PROGRAMS[launcher]} is not installed")


class Farm:
    """The bridges of one test process, one a launcher, made when first wanted."""

    def __init__(self, directory):
        self.directory, self.bridges, self.shared = directory, {}, {}
        self.count = 0

    def new(self, launcher, *flags, kind=Bridge):
        """A bridge for one test, not started."""
        need(launcher)
        self.count += 1
        return kind(self.directory / f"own{self.count}", launcher, *flags)

    def bridge(self, launcher):
        need(launcher)
        if launcher not in self.bridges:
            self.bridges[launcher] = Bridge(self.directory / launcher, launcher).start()
        return self.bridges[launcher]

    def sandbox(self, launcher):
        """A guest that tests share. One that a test has broken is replaced."""
        old = self.shared.get(launcher)
        if old is None or old.status() != "running":
            old = self.bridge(launcher).client.create(ttl_seconds=3600)
            self.shared[launcher] = old
        return old

    def stop(self):
        for b in self.bridges.values():
            b.stop()


@pytest.fixture(scope="session")
def farm():
    # Not pytest's own directory: its names are too long for a socket's address.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    directory.chmod(0o755)  # virtual machines run as nobody
    made = Farm(directory)
    yield made
    made.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=LAUNCHERS, scope="session")
def launcher(request):
    return request.param


@pytest.fixture
def bridge(farm, launcher):
    return farm.bridge(launcher)


@pytest.fixture
def sandbox(farm, launcher):
    return farm.sandbox(launcher)


@pytest.fixture
def fresh(bridge):
    """A guest of the test's own."""
    made = bridge.client.create(ttl_seconds=600)
    yield made
    made.delete()


@pytest.fixture
def local_bridge(farm):
    return farm.bridge("local")


@pytest.fixture
def local(farm):
    return farm.sandbox("local")


@pytest.fixture
def own_bridge(farm, launcher):
    """A bridge that the test may kill."""
    made = farm.new(launcher)
    yield made
    if made.process:
        if made.process.poll() is not None:
            made.start()
        made.stop()


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    """What root in a guest can do that its shell cannot: escape.c, built to run anywhere."""
    program = tmp_path_factory.mktemp("escape") / "escape"
    subprocess.run(["cc", "-O1", "-static", "-s", "-o", program,
                    bridge_module.ROOT / "tests/e2e/escape.c"], check=True)
    return program.read_bytes()


@pytest.fixture(scope="session")
def rootfs():
    return bridge_module.ROOTFS
