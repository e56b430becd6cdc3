"""One exec of each outcome and one refusal of each kind through the client that
openapi-generator writes for Python, told apart by its enums and by nothing else."""
import os
import sys
import traceback

from sandgate_client import ApiClient, ApiException, Configuration, ExecsApi, SandboxesApi
from sandgate_client import CancelReason, ErrorCode, ExecEvent, ExecRequest, KillRequest
from sandgate_client import Limits, OomScope, Outcome, SandboxCreate

URL, TOKEN = os.environ["SANDGATE_URL"], os.environ["SANDGATE_TOKEN"]
# What the document promises of the exit code, for every outcome that it has.
EXIT_CODES = {
    Outcome.EXITED: range(256),
    Outcome.SIGNALED: range(129, 256),
    Outcome.TIMED_OUT: [124],
    Outcome.OOM_KILLED: [137],
    Outcome.CPU_LIMIT: [152],
    Outcome.CANCELLED: range(129, 256),
    Outcome.SPAWN_FAILED: [126, 127],
}
failed = False


def check(name, body, *args):
    global failed
    try:
        body(*args)
        print(f"ok python: {name}", flush=True)
    except Exception as error:
        failed = True
        traceback.print_exc()
        print(f"FAIL python: {name}: {type(error).__name__} {error}".replace("\n", " "), flush=True)


def connect(token):
    return ApiClient(Configuration(host=URL, access_token=token))


def shell(cmd, **fields):
    return ExecRequest(**{"cmd": cmd, "timeout_seconds": 30, **fields})


def refused(code, status, call, *args):
    try:
        call(*args)
    except ApiException as error:
        assert error.status == status, error
        assert ErrorCode(error.data.error.code) is code, error
        return error.data.error.details
    raise AssertionError("was not refused")


class Sandbox:
    def __init__(self, client):
        self.sandboxes, self.execs = SandboxesApi(client), ExecsApi(client)
        made = self.sandboxes.sandbox_create(SandboxCreate(template="base"))
        self.id, self.features = made.id, made.agent.features

    def run(self, request, outcome):
        return self.ended_as(self.execs.exec_run(self.id, request), outcome)

    @staticmethod
    def ended_as(result, outcome):
        assert result.outcome is outcome, result
        assert result.exit_code in EXIT_CODES[result.outcome], result
        return result

    def every_outcome_is_known(self):
        assert set(EXIT_CODES) == set(Outcome), set(EXIT_CODES) ^ set(Outcome)

    def exited(self):
        result = self.run(shell("echo out; echo err >&2; exit 7"), Outcome.EXITED)
        assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n"), result
        assert result.signal is None and result.spawn_error is None, result

    def signaled(self):
        result = self.run(shell("kill -9 $$"), Outcome.SIGNALED)
        assert (result.signal, result.exit_code) == ("SIGKILL", 137), result

    def timed_out(self):
        result = self.run(shell("echo partial; sleep 60", timeout_seconds=0.5), Outcome.TIMED_OUT)
        assert result.stdout == "partial\n" and 500 <= result.duration_ms < 5000, result

    def oom_killed(self):
        request = shell("tail /dev/zero", limits=Limits(memory_mib=32))
        if "memory" not in self.features:
            refused(ErrorCode.LIMIT_DOT_UNSUPPORTED, 422, self.execs.exec_run, self.id, request)
            return
        result = self.run(request, Outcome.OOM_KILLED)
        assert result.oom_kills >= 1 and result.oom_scope is OomScope.EXEC, result

    def cpu_limit(self):
        self.run(shell("while :; do :; done", limits=Limits(cpu_seconds=0.5)), Outcome.CPU_LIMIT)

    def cancelled(self):
        started = self.execs.exec_start(self.id, shell("exec sleep 60"))
        request = KillRequest(grace_seconds=0, wait_seconds=20)
        killed = self.execs.exec_kill(self.id, started.exec_id, request)
        self.ended_as(killed.result, Outcome.CANCELLED)
        assert killed.result.cancel_reason is CancelReason.KILLED, killed

    def spawn_failed(self):
        result = self.run(ExecRequest(argv=["/no/such/program"]), Outcome.SPAWN_FAILED)
        assert (result.exit_code, result.spawn_error.errno) == (127, "ENOENT"), result

    def streams(self):
        reply = self.execs.exec_stream_without_preload_content(self.id, shell("echo out; exit 7"))
        lines = reply.data.decode().splitlines()
        data = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
        start, out, end = [ExecEvent.from_json(text).actual_instance for text in data]
        assert start.type == "start" and out.type == "stdout" and end.type == "exit", data
        assert out.chunk == "out\n" and end.exit_code == 7, data
        assert end.result.outcome is Outcome.EXITED, data

    def invalid_field(self):
        request = shell("true", timeout_seconds=-1)
        details = refused(ErrorCode.REQUEST_DOT_INVALID_FIELD, 400, self.execs.exec_run, self.id, request)
        assert details.var_field == "timeout_seconds", details

    def id_conflict(self):
        self.run(shell("true", exec_id="taken"), Outcome.EXITED)
        request = shell("false", exec_id="taken")
        refused(ErrorCode.EXEC_DOT_ID_CONFLICT, 409, self.execs.exec_run, self.id, request)

    def unknown_exec(self):
        refused(ErrorCode.EXEC_DOT_NOT_FOUND, 404, self.execs.exec_get, self.id, "nobody")

    def unknown_sandbox(self):
        refused(ErrorCode.SANDBOX_DOT_NOT_FOUND, 404, self.sandboxes.sandbox_get, "nobody")

    def unknown_template(self):
        request = SandboxCreate(template="nope")
        refused(ErrorCode.TEMPLATE_DOT_NOT_FOUND, 404, self.sandboxes.sandbox_create, request)

    def wrong_token(self):
        stranger = SandboxesApi(connect("not-the-token"))
        refused(ErrorCode.AUTH_DOT_INVALID_TOKEN, 401, stranger.sandbox_list)

    def deleted(self):
        self.sandboxes.sandbox_delete(self.id)
        refused(ErrorCode.SANDBOX_DOT_GONE, 410, self.execs.exec_run, self.id, shell("true"))


sandbox = Sandbox(connect(TOKEN))
check("every outcome is known", sandbox.every_outcome_is_known)
check("outcome exited", sandbox.exited)
check("outcome signaled", sandbox.signaled)
check("outcome timed_out", sandbox.timed_out)
check("outcome oom_killed", sandbox.oom_killed)
check("outcome cpu_limit", sandbox.cpu_limit)
check("outcome cancelled", sandbox.cancelled)
check("outcome spawn_failed", sandbox.spawn_failed)
check("a stream's events", sandbox.streams)
check("code request.invalid_field names the field", sandbox.invalid_field)
check("code exec.id_conflict", sandbox.id_conflict)
check("code exec.not_found", sandbox.unknown_exec)
check("code sandbox.not_found", sandbox.unknown_sandbox)
check("code template.not_found", sandbox.unknown_template)
check("code auth.invalid_token", sandbox.wrong_token)
check("code sandbox.gone", sandbox.deleted)
sys.exit(failed)
