"""After thousands of execs of every kind everything is back where it was."""
import concurrent.futures
import time

from client import until

# A round ends with nothing retained; all are as long, so that the agent's memory has been as
# large before the first measure as it is later.
ROUND = 1500
COUNT = 5000


def guest_numbers(sandbox):
    text = sandbox.out(
        "ls /proc/1/fd | wc -l; awk '/VmRSS/ {print $2}' /proc/1/status; "
        "ls -d /proc/[0-9]* | wc -l; find /sys/fs/cgroup -type d | wc -l")
    fds, rss, processes, cgroups = map(int, text.split())
    return {"fds": fds, "rss": rss, "processes": processes, "cgroups": cgroups}


def numbers(bridge, sandbox):
    all = {f"guest {k}": v for k, v in guest_numbers(sandbox).items()}
    all["bridge fds"], all["bridge rss"] = bridge.fds(), bridge.rss_kib()
    return all


def leave(sandbox, route, how):
    connection = sandbox.send("sleep 60", route)
    connection.readable(0.02)
    getattr(connection, how)()


def one(sandbox, i):
    kind = i % 16
    if kind == 0:
        assert sandbox.run("sleep 60 & sleep 60", timeout_seconds=0.05,
                           grace_seconds=0)["outcome"] == "timed_out"
    elif kind == 1:
        leave(sandbox, "/exec", "close")
    elif kind == 2:
        leave(sandbox, "/exec/stream", "abort")
    elif kind == 3:
        assert sandbox.run("true", cwd="/nope")["outcome"] == "spawn_failed"
    elif kind == 4:
        assert sandbox.run("kill -9 $$")["outcome"] == "signaled"
    elif kind == 5:
        assert sandbox.stream("seq 1 2000").collect().result["exit_code"] == 0
    elif kind == 6:
        started = sandbox.start("sleep 60")
        assert sandbox.forget(started["exec_id"]).status == 204
    elif kind == 7:
        started = sandbox.start("echo x")
        sandbox.state(started["exec_id"], 10)
    elif kind == 8:
        assert sandbox.run("sleep 60 & true", on_exit="kill")["outcome"] == "exited"
    elif kind == 9:
        assert sandbox.exec("true", timeout_seconds=-1).status == 400
    elif kind == 10 and i % 160 == 10:
        assert sandbox.run("tail /dev/zero", limits={"memory_mib": 8},
                           timeout_seconds=30)["outcome"] == "oom_killed"
    elif kind == 11:
        assert sandbox.out("cat", stdin="x" * 1000) == "x" * 1000
    else:
        assert sandbox.run(f"exit {i % 256}")["exit_code"] == i % 256


def run_many(sandbox, count):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: one(sandbox, i), range(count)))
    until(lambda: all(e["state"] == "finished" for e in
                      sandbox.client.get(sandbox.path + "/execs?limit=1000").json["items"]),
          20, "the end of every exec")
    until(lambda: sandbox.sleepers() == 0, 10, "no process left")
    # Retained results are no leak; without them both measures are of the same state.
    for e in sandbox.client.get(sandbox.path + "/execs?limit=1000").json["items"]:
        assert sandbox.forget(e["exec_id"]).status == 204


def test_mixed_execs(bridge, fresh, launcher):
    count = COUNT if launcher == "uml" else COUNT // 5
    run_many(fresh, ROUND)
    before = numbers(bridge, fresh)
    began = time.monotonic()
    for done in range(0, count, ROUND):
        run_many(fresh, min(ROUND, count - done))
    print(f"{count} execs in {time.monotonic() - began:.1f} s")
    slack = {"guest rss": 768, "bridge rss": 4096, "bridge fds": 2}

    def settled():
        nonlocal after
        after = numbers(bridge, fresh)
        return all(after[k] <= before[k] + slack.get(k, 0) for k in before)
    after = None
    try:
        until(settled, 10)
    except AssertionError:
        raise AssertionError({k: (before[k], after[k]) for k in before
                              if after[k] > before[k] + slack.get(k, 0)}) from None
    assert fresh.zombies() == 0


def test_sandboxes_leave_nothing_on_the_host(own_bridge):
    bridge = own_bridge.start()
    bridge.client.create().delete()
    mine = lambda: [p for p in bridge.leftovers() if p[0] != bridge.process.pid]
    until(lambda: not mine(), 10, "no process of the first")
    before = bridge.fds(), sorted(p.name for p in bridge.state.rglob("*"))
    for _ in range(5):
        made = bridge.client.create()
        made.out("echo ok")
        assert made.delete().status == 204
    until(lambda: not mine(), 10, "no process of the others")
    until(lambda: bridge.fds() <= before[0] + 1, 5, "the descriptors' return")
    after = sorted(p.name for p in bridge.state.rglob("*"))
    assert after == before[1]
