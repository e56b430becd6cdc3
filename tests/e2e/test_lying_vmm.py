"""VMMs that do what they are asked, and answer it wrong, half, twice, late or not at all: whatever
the bridge makes of that, the guest goes on, or its sandbox has failed and says so; and it can be
told to do the same again."""
import pytest

from client import Sandbox, until
from doubled import VERSIONS, doubled_bridges

HOWS = ["refuses", "no HTTP", "half", "none", "twice", "late"]
API = "PUT /api/v1/"
PAUSE = {"firecracker": "PATCH /vm", "cloud-hypervisor": API + "vm.pause"}
RESUME = {"firecracker": "PATCH /vm", "cloud-hypervisor": API + "vm.resume"}
SAVE = {"firecracker": "PUT /snapshot/create", "cloud-hypervisor": API + "vm.snapshot"}
STATE = {"firecracker": "GET /", "cloud-hypervisor": "GET /api/v1/vm.info"}
LOAD = {"firecracker": "PUT /snapshot/load", "cloud-hypervisor": API + "vm.restore"}


class Liar:
    def __init__(self, bridge):
        self.bridge, self.client = bridge, bridge.client
        self.box = self.client.create()

    def ask(self, action):
        return self.client.post(f"{self.box.path}/{action}", timeout=60)

    def lied_to(self, how, request, action):
        """The reply to it, of which the VMM answers that request so."""
        doubles = self.bridge.doubles
        before = len(doubles.events("lie"))
        doubles.lie(how, request)
        reply = self.ask(action)
        assert len(doubles.events("lie")) == before + 1
        assert reply.status < 300 or (reply.status, reply.code) in \
            {(502, "launcher.failed"), (502, "sandbox.lost")}, reply.body
        return reply

    def works(self):
        return self.box.out("echo ok") == "ok\n"


@pytest.fixture(scope="module", params=VERSIONS)
def liar(farm, request):
    with doubled_bridges(farm, request.param) as start:
        made = Liar(start())
        made.vmm = request.param
        yield made


@pytest.mark.parametrize("how", HOWS)
def test_a_pause_is_made_or_taken_back(liar, how):
    for _ in range(2):
        reply = liar.lied_to(how, PAUSE[liar.vmm], "pause")
        assert liar.box.status() == ("paused" if reply.status == 200 else "running")
        assert reply.status != 200 or liar.ask("resume").status == 200
        assert liar.works()


@pytest.mark.parametrize("how", HOWS)
def test_a_resume_can_be_asked_for_again(liar, how):
    assert liar.ask("pause").status == 200
    reply = liar.lied_to(how, RESUME[liar.vmm], "resume")
    assert liar.box.status() == ("running" if reply.status == 200 else "paused")
    assert reply.status == 200 or liar.ask("resume").status == 200
    assert liar.works()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("action", ["snapshots", "hibernate"])
def test_a_guest_whose_saving_is_not_acknowledged_goes_on(liar, how, action):
    reply = liar.lied_to(how, SAVE[liar.vmm], action)
    assert liar.works()
    snapshots = liar.client.get("/v1/snapshots").json["items"]
    assert len(snapshots) == (reply.status == 201)
    for item in snapshots:
        made = liar.client.post("/v1/sandboxes", {"from_snapshot": item["id"]}, timeout=60)
        assert made.status == 201, made.body
        assert Sandbox(liar.client, made.json).delete().status == 204
        assert liar.client.delete(f"/v1/snapshots/{item['id']}").status == 204


@pytest.mark.parametrize("how", HOWS)
def test_a_sandbox_whose_waking_is_not_acknowledged_sleeps_on(liar, how):
    assert liar.ask("hibernate").status == 200
    reply = liar.lied_to(how, LOAD[liar.vmm], "wake")
    assert liar.box.status() == ("running" if reply.status == 200 else "hibernated")
    assert liar.works()


@pytest.mark.parametrize("vmm", VERSIONS)
def test_a_guest_found_standing_still_goes_on_once_though_calls_wait_and_its_vmm_is_slow(farm, vmm):
    with doubled_bridges(farm, vmm) as start:
        bridge = start()
        box = bridge.client.create()
        boot_ms = bridge.client.get(box.path).json["boot_ms"]
        bridge.doubles.lie("silent", SAVE[vmm])
        with bridge.client.send("POST", box.path + "/snapshots", {}):
            until(lambda: bridge.doubles.events("lie"), 10, "the save")
            bridge.kill()
        bridge.doubles.lie("late", STATE[vmm])
        bridge.start()
        assert box.out("echo ok") == "ok\n"
        assert len(bridge.doubles.events("lie")) == 2
        assert bridge.client.get(box.path).json["boot_ms"] == boot_ms
