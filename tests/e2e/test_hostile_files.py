"""A guest's root puts something else in place of files that the agent reads."""
import pytest


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
    assert reply.status == 500 and "entropy" in reply.json["error"]["message"], reply.json
    assert box.out("echo hi") == "hi\n"
