"""The part of a double's machine that is the same for all VMMs: its guest and its end."""
import os
import signal
import time

from double import Refused, room_path


class Machine:
    def __init__(self):
        self.vsock = self.guest = None
        self.doomed = None  # the exit status after the next answer
        signal.signal(signal.SIGTERM, lambda *_: self.die(0))

    def die(self, status):
        """Sockets stay where they are."""
        if self.guest:
            self.guest.kill()
        os._exit(status)

    def answered(self):
        if self.doomed is not None:
            self.die(self.doomed)

    def look(self):
        """Called every now and then."""

    def watch(self):
        while True:
            time.sleep(0.05)
            self.look()
            if self.guest and self.guest.ended():
                self.die(0)  # it has shut down

    def set_paused(self, paused):
        self.guest.stop(paused)
        if self.vsock:
            self.vsock.paused = paused

    def readable(self, path):
        """Its first bytes."""
        try:
            with open(room_path(path), "rb") as f:
                return f.read(4)
        except OSError as e:
            raise Refused(f"{path}: {e.strerror}") from None
