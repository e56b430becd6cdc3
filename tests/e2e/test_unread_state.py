"""State directories that a bridge can make nothing of, or not all: what it does not understand, or
cannot look at, it leaves for one that can."""
import contextlib
import shutil
import sqlite3

import pytest

from client import Sandbox
from doubled import doubled_bridges, restore, snapshot


class Kept:
    """A bridge, dead, with a snapshot and a sandbox that sleeps."""

    def __init__(self, bridge):
        self.bridge, self.client, self.state = bridge, bridge.client, bridge.state
        box, self.sleeper = (self.client.create() for _ in range(2))
        self.image = self.state / "images" / "0".zfill(32)  # that only its rows could speak of
        self.snap = snapshot(box)
        assert self.client.post(self.sleeper.path + "/hibernate", timeout=60).status == 200
        assert box.delete().status == 204
        bridge.kill()
        self.image.parent.mkdir(exist_ok=True)
        self.image.touch()

    def files(self):
        return {p for at in ("snapshots", "hibernated") for p in self.state.glob(f"{at}/*/*")}

    def check(self):
        """Both are of use."""
        assert Sandbox(self.client, {"id": self.sleeper.id}).out("echo ok") == "ok\n"
        assert restore(self.client, self.snap).out("echo ok") == "ok\n"


@pytest.fixture
def kept(farm):
    with doubled_bridges(farm, "firecracker") as start:
        yield Kept(start())


def change_rows(state, column, table, to):
    """What it was: {id: text}."""
    with contextlib.closing(sqlite3.connect(state / "registry.db")) as db, db:
        before = dict(db.execute(f"SELECT id, {column} FROM {table}"))
        for name, text in before.items():
            db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?",
                       (to if isinstance(to, str) else to[name], name))
    return before


@pytest.mark.parametrize("row", ["{", '{"template": 7}'])
def test_the_files_of_a_row_that_cannot_be_read_stay(kept, row):
    files = kept.files()
    specs = change_rows(kept.state, "spec", "sandboxes", row)
    infos = change_rows(kept.state, "info", "snapshots", row)
    kept.bridge.start()
    assert kept.client.get(kept.sleeper.path).status == 404
    assert kept.client.get("/v1/snapshots").json["items"] == []
    assert kept.files() == files and kept.image.exists()
    kept.bridge.kill()
    change_rows(kept.state, "spec", "sandboxes", specs)
    change_rows(kept.state, "info", "snapshots", infos)
    kept.bridge.start()
    kept.check()
    assert not kept.image.exists()


@pytest.mark.parametrize("name", ["snapshots", "hibernated"])
def test_a_directory_that_is_not_there_is_not_empty(kept, name):
    """As a disk that is not mounted."""
    at, elsewhere = kept.state / name, kept.state / "elsewhere"
    at.rename(elsewhere)
    at.symlink_to("nowhere")
    with pytest.raises(AssertionError, match="the bridge ended"):
        kept.bridge.start()
    at.unlink()
    elsewhere.rename(at)
    kept.bridge.start()
    kept.check()


def test_vms_of_another_state_directory_are_left_alone(farm):
    """A copy of one whose bridge is dead tells of VMs that live."""
    with doubled_bridges(farm, "firecracker") as start:
        original, copy = start(), start()
        box = original.client.create()
        original.kill()
        copy.kill()
        for path in original.state.glob("registry.db*"):
            shutil.copy(path, copy.state)
        copy.start()
        reply = copy.client.post(box.path + "/exec", {"cmd": "true"})
        assert (reply.status, reply.code) == (410, "sandbox.gone"), reply.body
        assert "another state directory" in reply.error["message"]
        assert copy.client.delete(box.path).status == 204
        original.start()
        assert box.out("echo ok") == "ok\n"
