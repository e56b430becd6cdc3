"""What a bridge has, and what it has left behind: for tests that disturb one in the middle of
things."""
import os
import pathlib

from client import Sandbox, until


def memory_of(state):
    at = state.stat()
    return pathlib.Path(f"/dev/shm/sandgate-{at.st_dev:x}-{at.st_ino:x}")


class Belongings:
    """A bridge, a sandbox of it that lives through everything, and what must be true after each
    disturbance."""

    def __init__(self, bridge):
        self.bridge, self.client = bridge.start(), bridge.client
        self.neighbour = self.client.create(ttl_seconds=3600)
        self.neighbour.start("while :; do sleep 0.1; done", exec_id="stays", timeout_seconds=None)

    def sandboxes(self):
        """All but the neighbour."""
        items = self.client.get("/v1/sandboxes").json["items"]
        return [Sandbox(self.client, i) for i in items if i["id"] != self.neighbour.id]

    def snapshots(self):
        return self.client.get("/v1/snapshots").json["items"]

    def left(self):
        """What of this machine is taken for its guests: files, where processes work, cgroups."""
        state, cgroups = self.bridge.state, self.bridge.cgroups()
        memory = memory_of(state)
        found = {str(p) for at in (state / "vm", state / "hibernated", state / "snapshots", memory)
                 for p in at.glob("*")}
        found |= {str(p) for p in state.glob("baked/*.*")}
        found |= {str(p) for p in cgroups.glob("*/")} if cgroups else set()
        for proc in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                found.add(os.readlink(proc / "cwd"))
            except OSError:
                pass
        mine = (str(state), str(memory) + "/", f"{cgroups}/")
        return {f for f in found if "kvm-trial" not in f and f.startswith(mine)}

    def check(self, sandboxes=(), snapshots=()):
        """These are there, running, and nothing else is, on disk and in memory as well."""
        ids = {s.id for s in sandboxes}
        assert {s.id for s in self.sandboxes()} == ids
        assert {s["id"] for s in self.snapshots()} == set(snapshots)
        assert all(s.out("echo ok") == "ok\n" for s in [*sandboxes, self.neighbour])
        assert self.neighbour.state("stays")["state"] == "running"
        names = {i[-26:] for i in ids | {self.neighbour.id}} | set(snapshots)
        until(lambda: all(names & set(pathlib.Path(f).parts) for f in self.left()), 10,
              "everything else going")
