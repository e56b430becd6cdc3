"""The template code-interpreter: what it offers, and a program of it that is forked as it runs."""
import json
import time

import pytest

from bridge import ROOTFS
from client import Sandbox, until

pytestmark = pytest.mark.xdist_group("code-interpreter")


@pytest.fixture(scope="module")
def box(farm):
    """A restored sandbox: the one before it has booted."""
    if not (ROOTFS / "code-interpreter.ext4").exists():
        pytest.skip("the template code-interpreter is not built: make templates")
    client = farm.bridge("qemu").client
    client.create(template="code-interpreter", timeout=400).delete()
    made = client.create(template="code-interpreter", timeout=60, ttl_seconds=3600)
    yield made
    made.delete()


def python(box, program, **fields):
    """What a program prints, as the user whom templates have for that."""
    return box.out(["python", "-c", program], user="sandbox", timeout=200, timeout_seconds=180,
                   **fields)


def test_it_is_restored_with_what_it_needs(box):
    assert (box.info["boot_mode"], box.info["resources"]["memory_mib"]) == ("restore", 1024)
    assert box.out("id -un; echo $HOME; pwd", user="sandbox") == \
        "sandbox\n/home/sandbox\n/home/sandbox\n"


@pytest.mark.parametrize("command,words", [
    ("python3 --version", "Python 3."), ("python --version", "Python 3."),
    ("git --version", "git version"), ("curl --version", "curl "), ("rg --version", "ripgrep "),
    ("ps -o comm= 1 | cat", "init"), ("ls /etc/ssl/certs/ca-certificates.crt", "ca-certificates"),
])
def test_the_tools_are_there(box, command, words):
    assert words in box.out(command, user="sandbox")


def test_a_repository_can_be_worked_in(box):
    assert box.out("git init -q repo && cd repo && echo needle > file && git add file && "
                   "git -c user.name=a -c user.email=a@b commit -qm one && git log --oneline | "
                   "wc -l && rg -l needle", user="sandbox") == "1\nfile\n"


def test_tables_are_computed_with(box):
    assert python(box, "import numpy, pandas\n"
                       "t = pandas.DataFrame({'n': numpy.arange(10), 'k': ['a', 'b'] * 5})\n"
                       "print(t.groupby('k').n.sum().to_dict())") == "{'a': 20, 'b': 25}\n"


def test_linear_algebra_is_that_of_openblas(box):
    assert "openblas" in python(box, "import numpy.linalg, re\n"
                                     "print({l.split()[-1] for l in open('/proc/self/maps')"
                                     " if 'blas' in l})")


def test_a_plot_becomes_a_png_without_a_display_and_without_a_search_for_fonts(box):
    before = box.out("ls -lR --full-time .cache")
    program = ("import matplotlib.pyplot as plot\n"
               "plot.plot([1, 3, 2]); plot.title('a title'); plot.savefig('plot.png')\n"
               "print(plot.get_backend())")
    assert box.out(["python", "-c", program], timeout=200, timeout_seconds=180) == "agg\n"
    assert box.out("head -c 8 plot.png | od -An -tx1").split() == \
        "89 50 4e 47 0d 0a 1a 0a".split()
    assert box.out("ls -lR --full-time .cache") == before


def test_ipython_runs_a_cell(box):
    assert box.out(["ipython", "--no-banner", "--colors=NoColor", "-c", "21 * 2"], user="sandbox",
                   timeout=200, timeout_seconds=180) == "Out[1]: 42\n"


# What runs when the fork comes: it has a value that nobody else has, and answers each line of its
# input with that, what it draws now, and who and when it thinks it is.
PROGRAM = """
import json, os, random, socket, sys, time
value = os.urandom(16).hex()
print(json.dumps(value), flush=True)
for line in sys.stdin:
    print(json.dumps({"value": value, "own": random.random(), "drawn": os.urandom(16).hex(),
                      "host": socket.gethostname(), "now": time.time(), "turn": line.strip()}),
          flush=True)
"""


class Program:
    def __init__(self, box):
        self.box, self.path, self.sent, self.lines = box, box.path + "/execs/program", 0, 0

    def output(self):
        text = self.box.client.get(self.path + "/output?stream=stdout").body.decode()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def ask(self, turn):
        """Its answer, and between when and when it was given."""
        before, line = time.time(), turn.encode() + b"\n"
        reply = self.box.client.post(f"{self.path}/stdin?offset={self.sent}", line,
                                     headers={"Content-Type": "application/octet-stream"})
        assert reply.status == 200, reply.body
        self.sent += len(line)
        answer = until(lambda: next((a for a in self.output()[1:] if a["turn"] == turn), None), 60,
                       f"the answer to {turn}")
        return answer, (before, time.time())


def test_children_of_a_running_program_are_it_and_are_their_own(box):
    box.start(["python", "-c", PROGRAM], exec_id="program", user="sandbox", stdin_open=True,
              timeout_seconds=None)
    parent = Program(box)
    [value] = until(parent.output, 60, "the program's first line")
    first, _ = parent.ask("before")
    assert first["value"] == value
    reply = box.client.post(box.path + "/fork", {"count": 2}, timeout=120)
    assert reply.status == 201, reply.body
    programs = [parent]
    for item in reply.json["items"]:
        child = Program(Sandbox(box.client, item))
        child.sent = parent.sent
        programs.append(child)
    try:
        answers = [p.ask("after") for p in programs]
        assert [a["value"] for a, _ in answers] == [value] * 3
        assert len({a["host"] for a, _ in answers}) == 3
        assert len({a["drawn"] for a, _ in answers}) == 3
        for answer, (earliest, latest) in answers:
            assert earliest - 2 <= answer["now"] <= latest + 2
        # What a program has in its own memory is the same, the state of a generator too.
        assert len({a["own"] for a, _ in answers}) == 1
        # New programs draw their own.
        fresh = {python(p.box, "import random; print(random.random())") for p in programs}
        assert len(fresh) == 3
        assert parent.ask("later")[0]["value"] == value
    finally:
        for p in programs[1:]:
            p.box.delete()
        box.forget("program")
