"""The unit tests of spawning and of cgroups, the agent's and the bridge's, inside guests: there
the controllers are, and the agent's place is PID 1."""
import os
import re
import shutil
import subprocess

import pytest

from bridge import BUILD, ROOT, SANITIZED

CHECKS = ["check_cgroup", "check_cgroup_limits", "check_spawn", "check_spawn_program",
          "check_spawn_fault", "check_vm_cgroup", "check_exec_held"]
BRIDGE_OBJECTS = [BUILD / "host-bridge/vm" / name
                  for name in ("vm_cgroup.o", "vm_cgroup_tree.o", "vm_spawn.o")]
LIBRARIES = ["-lcheck", "-lsubunit", "-lrt", "-lprotobuf-c", "-lev", "-lcap", "-lm", "-lpthread"]
FLAGS = ["-O2", "-static", "-s", "-std=gnu11", "-D_GNU_SOURCE", f"-I{ROOT}", f"-I{BUILD}"]


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """A cpio archive with our init and the checks, to be unpacked over the base image."""
    root = tmp_path_factory.mktemp("checks")
    (root / "checks").mkdir()
    objects = [o for part in ("guest-agent", "proto") for o in (BUILD / part).glob("*.o")
               if o.name != "main.o"] + BRIDGE_OBJECTS
    for source, program in [(ROOT / "tests/e2e/guest_init.c", "init")] + [
            (ROOT / "tests" / f"{check}.c", f"checks/{check}") for check in CHECKS]:
        subprocess.run(["cc", *FLAGS, "-o", root / program, source, *objects, *LIBRARIES],
                       check=True)
    names = "\n".join(["init", "checks"] + [f"checks/{check}" for check in CHECKS])
    return subprocess.run(["cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet"], cwd=root,
                          input=names.encode(), stdout=subprocess.PIPE, check=True).stdout


def command(launcher, rootfs, initrd, directory):
    if launcher == "uml":
        return ["setarch", "-R", "taskset", "-c", "0", "linux.uml", "mem=256M",
                f"initrd={initrd}", "con0=null,fd:1", "con=null", "quiet", "nohz=off",
                f"uml_dir={directory}/", "umid=checks"]
    return ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "256M",
            "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", "stdio",
            "-kernel", rootfs / "vmlinux", "-initrd", initrd,
            "-append", "console=ttyS0 quiet mitigations=off panic=-1"]


@pytest.mark.skipif(SANITIZED, reason="a sanitized program is not static")
def test_spawning_and_cgroups_in_a_guest(launcher, rootfs, archive, tmp_path):
    if launcher == "local" or not shutil.which(
            {"uml": "linux.uml", "qemu": "qemu-system-x86_64"}[launcher]):
        pytest.skip(f"no guest of kind {launcher} here")
    image = tmp_path / "image.cpio"
    base = "base-uml.cpio" if launcher == "uml" else "base.cpio"
    image.write_bytes((rootfs / base).read_bytes() + archive)
    environment = dict(os.environ, TMPDIR="/dev/shm")
    if launcher == "uml":
        environment["LD_PRELOAD"] = str(rootfs / "uml-preload.so")
    guest = subprocess.Popen(command(launcher, rootfs, image, tmp_path), env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
    try:
        console = guest.communicate(timeout=240)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(guest.pid, 9)
        pytest.fail("the guest did not power off:\n"
                    + guest.communicate()[0].decode(errors="replace")[-4000:])
    results = dict(re.findall(r"RESULT /checks/(\S+) (-?\d+)", console))
    assert results == {check: "0" for check in CHECKS}, console[-4000:]
    skipped = set(re.findall(r"skipped: (.*)", console))
    assert all("FUSE" in reason for reason in skipped), skipped
