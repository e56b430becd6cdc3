"""Between the bridge and a real agent: passes bytes on, until it is told to misbehave as
a malicious or broken guest would."""
import itertools
import socket
import subprocess
import threading

from bridge import AGENT
from client import until

numbers = itertools.count(1)  # tests that share a bridge share its directory


class Agent:
    """A guest-agent of this machine on a Unix socket, started through `within`."""

    def __init__(self, directory, within=()):
        self.path = str(directory / f"agent{next(numbers)}.sock")
        self.process = subprocess.Popen([*within, AGENT, "--unix", self.path, "--port", "0"],
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
        self.agent, self.path = agent, str(directory / f"meddler{next(numbers)}.sock")
        self.behave()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def behave(self):
        self.answer = None  # what each connection gets in place of the agent's bytes: a function
        self.budget = None  # how many bytes of the agent each gets before the cut: a function
        self.mute = False   # accept, and never say a word, or none after an answer

    def accept(self):
        while True:
            try:
                bridge, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(bridge,), daemon=True).start()

    def serve(self, bridge):
        with bridge, socket.socket(socket.AF_UNIX) as agent:
            if agent.connect_ex(self.agent.path) != 0:
                return
            threading.Thread(target=self.forward, args=(bridge, agent), daemon=True).start()
            budget = self.budget and self.budget()
            try:
                answered = False
                while data := agent.recv(65536):
                    if self.answer and not answered:
                        bridge.sendall(self.answer())
                        answered = True
                        if not self.mute:
                            return
                    if self.mute:
                        continue
                    if budget is not None:
                        data, budget = data[:budget], budget - len(data)
                    bridge.sendall(data)
                    if budget is not None and budget <= 0:
                        return
            except OSError:
                pass
            finally:
                self.shut(bridge)  # forward() is in a read, which a close would not end

    def forward(self, bridge, agent):
        try:
            while data := bridge.recv(65536):
                agent.sendall(data)
        except OSError:
            pass
        finally:
            self.shut(agent)

    @staticmethod
    def shut(sock):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def stop(self):
        self.listener.close()
