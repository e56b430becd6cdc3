"""A guest's root puts something else in place of files that the agent reads."""
import pytest

from bridge import ROOT

FUSE_MODULES = "build/deps/kernel/lib/modules/*/kernel/fs/fuse/fuse.ko"


@pytest.fixture
def box(farm):
    made = farm.bridge("qemu").client.create(ttl_seconds=600)
    yield made
    made.delete()


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/group"])
def test_a_fifo_for_the_list_of_users_stops_no_exec_and_no_snapshot(box, path):
    box.out(f"rm {path}; mkfifo {path}")
    assert box.out("echo hi") == "hi\n"
    assert box.exec("true", user="sandbox").json["outcome"] == \
        ("spawn_failed" if path == "/etc/passwd" else "exited")
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    assert box.out("echo awake") == "awake\n"


def test_a_fifo_over_a_file_of_proc_stops_no_answer(box):
    box.out("mkfifo /tmp/f; mount --bind /tmp/f /proc/meminfo")
    assert box.client.get(box.path + "/metrics").status == 200
    assert box.out("echo hi") == "hi\n"


def test_a_fifo_for_urandom_refuses_a_clone_at_once_and_the_source_goes_on(box):
    box.out("rm /dev/urandom; mkfifo /dev/urandom")
    for _ in range(6):
        assert box.client.post(box.path + "/snapshots", timeout=60).status == 201
    reply = box.client.post(box.path + "/fork", {"count": 1}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
    assert "entropy" in reply.error["message"]
    assert box.out("echo hi") == "hi\n"


def serve(box, tool, what, done):
    """Let `tool` do what it does, which it says, for as long as the exec "server" lives."""
    box.put("/tmp/escape", tool)
    box.start(f"exec /tmp/escape {what}", exec_id="server", timeout_seconds=None)
    watched = box.watch("server")
    watched.until("stdout", done)
    watched.close()


def mount_dead_fuse(box, tool, path):
    """A FUSE server that never answers, over `path`."""
    modules = list(ROOT.glob(FUSE_MODULES))
    if not modules:
        pytest.skip(f"no {FUSE_MODULES}")
    box.put("/tmp/fuse.ko", modules[0].read_bytes())
    box.out("insmod /tmp/fuse.ko")
    serve(box, tool, f"fuse {path}", "mounted")


def agent_tells_and_is_saved(box):
    guest = box.client.get(box.path + "/metrics").json["guest"]
    assert guest["memory_total_bytes"] > 0 and guest["agent_open_files"] > 0, guest
    assert box.client.post(box.path + "/hibernate", timeout=60).status == 200
    assert box.client.post(box.path + "/wake", timeout=60).status == 200


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/group", "/etc", "/proc/meminfo", "/sys",
                                  "/sys/fs/cgroup", "/sys/fs/cgroup/sandgate/exec"])
def test_a_fuse_server_that_never_answers_stops_no_exec_and_no_answer(box, tool, path):
    mount_dead_fuse(box, tool, path)
    assert box.out("echo hi") == "hi\n"
    assert box.run("true", user="sandbox")["outcome"] == "exited"
    assert box.run("while :; do :; done", limits={"cpu_seconds": 1})["outcome"] == "cpu_limit"
    assert box.run("sleep 60", timeout_seconds=1)["outcome"] == "timed_out"
    agent_tells_and_is_saved(box)
    assert box.out("echo awake") == "awake\n"


def test_a_dead_proc_stops_the_programs_that_read_it_and_no_deadline(box, tool):
    """As any static program, the guest's shell asks /proc who it is."""
    mount_dead_fuse(box, tool, "/proc")
    for _ in range(2):
        assert box.run("true", timeout_seconds=1)["outcome"] == "timed_out"
    assert box.run("true", cwd="/nowhere")["outcome"] == "spawn_failed"
    agent_tells_and_is_saved(box)
    reply = box.client.post(box.path + "/fork", {"count": 1}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
    assert "renewed" in reply.error["message"]
    assert box.call("server", "kill", {"wait_seconds": 5}).json["state"] == "finished"
    assert box.out("echo back") == "back\n"


def test_a_link_to_what_never_answers_is_no_list_of_users(box, tool):
    mount_dead_fuse(box, tool, "/tmp/dead")
    box.out("rm /etc/passwd /etc/group; ln -s /tmp/dead/x /etc/passwd; ln -s ../tmp/dead /etc/group")
    assert box.out("echo hi") == "hi\n"
    assert box.run("true", user="sandbox")["outcome"] == "spawn_failed"
    assert box.out("id -u", user="1000") == "1000\n"


def test_a_console_that_takes_nothing_stops_nobody_who_logs(box, tool):
    serve(box, tool, "hush /dev/console", "hushed")
    box.out("rm /dev/urandom")
    reply = box.client.post(box.path + "/fork", {"count": 1}, timeout=60)
    assert (reply.status, reply.code) == (502, "launcher.failed"), reply.body
    assert "entropy" in reply.error["message"]
