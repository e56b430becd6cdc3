"""The template postgres: a database that runs as soon as its sandbox does, and goes where that
goes."""
import pytest

from bridge import ROOTFS
from client import Sandbox

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def database(farm):
    """Each call makes a sandbox of the template; the first is the one that boots."""
    if not (ROOTFS / "postgres.ext4").exists():
        pytest.skip("the template postgres is not built: make templates")
    client = farm.bridge("qemu").client
    made = [client.create(template="postgres", timeout=400, ttl_seconds=3600)]

    def another():
        made.append(client.create(template="postgres", timeout=60, ttl_seconds=3600))
        return made[-1]

    another.first = made[0]
    yield another
    for box in made:
        box.delete()


def sql(box, *statements, host=""):
    """What psql says to them, one after the other, as the database's own user."""
    return box.out(["psql", "-At", *(["-h", host] if host else []),
                    *(word for s in statements for word in ("-c", s))],
                   user="sandbox", timeout_seconds=60).split()


def test_a_restored_one_answers_at_once_by_socket_and_by_tcp(database):
    assert database.first.info["boot_mode"] == "boot"
    box = database()
    assert box.info["boot_mode"] == "restore"
    assert sql(box, "SELECT 1") == ["1"]
    assert sql(box, "SELECT current_user", "SELECT current_database()", host="127.0.0.1") == \
        ["sandbox", "sandbox"]
    assert box.state("start")["state"] == "running"


def test_what_is_written_is_meant_to_last(database):
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert sql(database.first, f"SHOW {setting}") == ["on"]
    size = sql(database.first, "SELECT pg_size_bytes(current_setting('shared_buffers'))")
    assert int(size[0]) < 64 << 20
    assert database.first.info["resources"]["disk_mib"] == 2048


def test_two_have_nothing_in_common(database):
    one, two = database(), database()
    sql(one, "CREATE TABLE mine AS SELECT 1")
    assert sql(two, "SELECT to_regclass('mine') IS NULL") == ["t"]
    chance = [sql(box, "SELECT gen_random_uuid()", "SELECT random()") for box in (one, two)]
    assert chance[0][0] != chance[1][0] and chance[0][1] != chance[1][1]


def test_a_fork_has_the_data_and_writes_apart_from_its_parent(database):
    parent = database()
    sql(parent, "CREATE TABLE t (who text)", "INSERT INTO t VALUES ('before')")
    # A transaction that is open goes on in each, too.
    parent.start(["sh", "-c", "(echo BEGIN\\;; echo \"INSERT INTO t VALUES ('open');\"; cat) | "
                  "psql -q"], exec_id="session", user="sandbox", stdin_open=True,
                 timeout_seconds=None)
    reply = parent.client.post(parent.path + "/fork", timeout=120)
    assert reply.status == 201, reply.body
    [child] = [Sandbox(parent.client, item) for item in reply.json["items"]]
    try:
        assert sql(child, "TABLE t") == sql(parent, "TABLE t") == ["before"]
        sql(child, "INSERT INTO t VALUES ('child')")
        sql(parent, "INSERT INTO t VALUES ('parent')")
        path = f"{child.path}/execs/session/stdin?offset=0&close=true"
        assert child.client.post(path, b"COMMIT;\n", headers={
            "Content-Type": "application/octet-stream"}).status == 200
        assert child.state("session", wait_seconds=30)["result"]["exit_code"] == 0
        assert sorted(sql(child, "TABLE t")) == ["before", "child", "open"]
        assert sorted(sql(parent, "TABLE t")) == ["before", "parent"]
    finally:
        child.delete()


def test_it_sleeps_and_wakes_with_its_data(database):
    box = database()
    sql(box, "CREATE TABLE t AS SELECT 42 AS n")
    assert box.client.post(box.path + "/hibernate", timeout=120).status == 200
    assert box.status() == "hibernated"
    assert sql(box, "TABLE t") == ["42"]
    assert sql(box, "INSERT INTO t VALUES (43)", "SELECT sum(n) FROM t") == ["INSERT", "0", "1", "85"]


def test_data_outlives_the_server(database):
    box = database()
    sql(box, "CREATE TABLE t AS SELECT 42 AS n")
    box.call("start", "kill", {"grace_seconds": 0, "wait_seconds": 30})
    assert box.run("psql -c 'SELECT 1'", user="sandbox")["exit_code"] != 0
    box.start("exec postgres-server", exec_id="again", timeout_seconds=None)
    box.out("until pg_isready -q; do sleep 0.2; done", timeout_seconds=100, timeout=120)
    assert sql(box, "TABLE t") == ["42"]
