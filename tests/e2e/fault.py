"""A bridge that dies at a chosen one of its calls to the kernel, whose registry's disk is full, that
runs out of descriptors or memory, or whose wall clock jumps: fault.c is preloaded into it."""
import contextlib
import mmap
import os
import pathlib
import struct
import subprocess

from bridge import Bridge
from doubled import DoubledBridge

SOURCE = pathlib.Path(__file__).with_name("fault.c")
NAMES = ("mkdir", "rename", "unlink", "rmdir", "write", "send", "connect", "clone", "kill", "wait",
         "truncate")
HEAD = struct.Struct("=iiiiiiiiiii")  # struct control of fault.c
CALLS_MAX = 4096


def build(directory):
    library = directory / "fault.so"
    if not library.exists():
        subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-o", library, SOURCE],
                       check=True)
    return library


class FaultyBridge(Bridge):
    def __init__(self, directory, launcher, *flags):
        super().__init__(directory, launcher, *flags)
        self.library = build(directory.parent)
        path = directory / "fault"
        path.write_bytes(bytes(HEAD.size + CALLS_MAX))
        self.path = path
        with open(path, "r+b") as f:
            self.control = mmap.mmap(f.fileno(), 0)

    def environment(self):
        return {**super().environment(), "LD_PRELOAD": str(self.library),
                "SANDGATE_FAULT": str(self.path)}

    def _set(self, field, value):
        struct.pack_into("=i", self.control, field * 4, value)

    def die_at(self, n):
        """In place of the n-th call from now on; 0: not at all."""
        self._set(1, 0)
        self._set(2, n)

    def registry_full_after(self, writes):
        """So many more writes succeed. None: its disk is not full."""
        self._set(3, 0 if writes is None else writes + 1)

    def _short_at(self, n, count=0):
        self._set(5, 0)
        self._set(4, 0)
        self._set(6, count)
        self._set(5, n)

    @contextlib.contextmanager
    def shortage(self, n, count):
        """Meanwhile it gets no descriptor for `count` calls from the n-th on."""
        self._short_at(n, count)
        try:
            yield
        finally:
            self._short_at(0)

    def wall_clock_jumps(self, seconds):
        """So far from the truth, from now on."""
        self._set(7, seconds)

    def count_opened(self):
        """Begin to count."""
        self._short_at(0)

    def opened(self):
        """How often it has asked for a descriptor since then, or since a shortage's begin."""
        return HEAD.unpack_from(self.control)[4]

    @contextlib.contextmanager
    def lacking(self, n, count):
        """Meanwhile it gets no memory for `count` calls from the n-th on."""
        self.count_allocated()
        self._set(10, count)
        self._set(9, n)
        try:
            yield
        finally:
            self._set(9, 0)

    def count_allocated(self):
        self._set(8, 0)

    def allocated(self):
        """How often it has asked for memory since then."""
        return HEAD.unpack_from(self.control)[8]

    def calls(self):
        """The names of those that it has made since die_at, and was about to make at the last."""
        count = min(HEAD.unpack_from(self.control)[1], CALLS_MAX)
        return [NAMES[i] for i in self.control[HEAD.size:HEAD.size + count]]

    def is_dead(self):
        return self.process.poll() is not None

    def start(self, **popen):
        self.die_at(0)
        return super().start(**popen)


class DoubledFaultyBridge(FaultyBridge, DoubledBridge):
    """The doubles' guests are agents on this machine's kernel: what is in one is not saved."""

    def __init__(self, *how):
        super().__init__(*how)
        self.path.chmod(0o666)


def points(calls, count):
    """`count` of the calls' numbers, from 1 on: the first of each kind, then evenly."""
    chosen = {calls.index(name) + 1 for name in calls}
    rest = [n for n in range(1, len(calls) + 1) if n not in chosen]
    more = max(count - len(chosen), 0)
    chosen.update(rest[i * len(rest) // more] for i in range(min(more, len(rest))))
    return sorted(chosen)[:count] if len(chosen) <= count else sorted(chosen)
