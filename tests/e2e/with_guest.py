#!/usr/bin/env python3
"""with_guest.py LAUNCHER COMMAND...: run a command beside a living bridge and one sandbox.
The command finds SANDGATE_URL and SANDGATE_TOKEN in its environment, and each word
{agent} of it becomes where the sandbox's agent is, as the conformance program takes it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bridge import Bridge


def main(launcher, *command):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    directory.chmod(0o755)
    bridge = Bridge(directory, launcher).start()
    try:
        sandbox = bridge.client.create(ttl_seconds=86400)
        socket = next(p for p in bridge.directory_of(sandbox).glob("*.sock")
                      if p.name in ("vsock.sock", "agent.sock"))
        environment = {**os.environ, "SANDGATE_URL": f"http://127.0.0.1:{bridge.port}",
                       "SANDGATE_TOKEN": bridge.token}
        kind = "unix" if socket.name == "agent.sock" else "hybrid"
        words = [word.replace("{agent}", f"{kind}:{socket}") for word in command]
        return subprocess.run(words, env=environment).returncode
    finally:
        bridge.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
