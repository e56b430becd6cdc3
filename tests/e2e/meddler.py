"""Between the bridge and a real agent: passes bytes on, until it is told to misbehave as
a malicious or broken guest would."""
import socket
import subprocess
import threading

from bridge import AGENT
from client import until


class Agent:
    """A guest-agent of this machine on a Unix socket."""

    def __init__(self, directory):
        self.path = str(directory / "agent.sock")
        self.process = subprocess.Popen([AGENT, "--unix", self.path, "--port", "0"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        until(self.listens, 10, "the agent's socket")

    def listens(self):
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(self.path) == 0

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Meddler:
    def __init__(self, directory, agent):
        self.agent, self.path = agent, str(directory / "meddler.sock")
        self.answer = None  # bytes sent in place of the agent's, or None: pass on
        self.budget = None  # bytes of the agent passed on before the cut, or None
        self.mute = False   # accept, and never say a word
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def behave(self):
        self.answer = self.budget = None
        self.mute = False

    def accept(self):
        while True:
            try:
                bridge, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(bridge,), daemon=True).start()

    def serve(self, bridge):
        with bridge, socket.socket(socket.AF_UNIX) as agent:
            agent.connect(self.agent.path)
            threading.Thread(target=self.forward, args=(bridge, agent), daemon=True).start()
            try:
                while data := agent.recv(65536):
                    if self.mute:
                        continue
                    if self.answer is not None:
                        bridge.sendall(self.answer)
                        return
                    if self.budget is not None:
                        data, self.budget = data[:self.budget], self.budget - len(data)
                    bridge.sendall(data)
                    if self.budget is not None and self.budget <= 0:
                        return
            except OSError:
                pass

    def forward(self, bridge, agent):
        try:
            while data := bridge.recv(65536):
                agent.sendall(data)
        except OSError:
            pass
        finally:
            try:
                agent.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        self.listener.close()
