"""The wall clock of the host is set while the bridge serves: what lasts, lasts as long as it would."""
import datetime

import pytest

from client import until
from fault import FaultyBridge

DAY = 86400


@pytest.fixture
def jumpy(farm):
    made = farm.new("local", "--drain-seconds", "1", kind=FaultyBridge).start()
    yield made
    made.wall_clock_jumps(0)
    if made.process.poll() is not None:
        made.start()
    made.stop()


def seconds_left(box):
    shown = box.client.get(box.path).json
    expires, created = (datetime.datetime.fromisoformat(shown[key]).timestamp()
                        for key in ("expires_at", "created_at"))
    return expires - created


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_lifetime_is_as_long_as_it_was_to_be(jumpy, jump):
    long = jumpy.client.create(ttl_seconds=3600, max_lifetime_seconds=3600)
    short = jumpy.client.create(ttl_seconds=3600, max_lifetime_seconds=1.5)
    jumpy.wall_clock_jumps(jump)
    until(lambda: short.client.get(short.path).status == 410, 10, "the end of the short one")
    assert long.out("echo ok") == "ok\n"
    assert 3600 - 20 < seconds_left(long) - jump < 3600 + 1
    later = jumpy.client.create(ttl_seconds=3600, max_lifetime_seconds=60)
    assert 59 < seconds_left(later) < 61


def test_a_drain_ends_though_the_clock_is_set_back(jumpy):
    box = jumpy.client.create()
    call = box.send("sleep 60", exec_id="long")
    until(lambda: box.is_running("long"), 10, "its start")
    jumpy.terminate()
    until(lambda: jumpy.client.get("/readyz").status == 503, 10, "readyz says so")
    jumpy.wall_clock_jumps(-DAY)
    assert call.reply().code == "bridge.draining"
    assert jumpy.process.wait(10) == 0
