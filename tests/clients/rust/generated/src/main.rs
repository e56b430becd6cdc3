//! One exec of each outcome and one refusal of each kind through the generated client,
//! told apart by its enums and by nothing else.

mod client;

use checks::{ensure, eventually, Bridge, Checked, Failure, Report};
use client::types::{self, CancelReason, ErrorCode, ExecEvent, ExecRequest, ExecState, KillRequest, Limits, Outcome};
use client::Client;
use futures_util::StreamExt;
use progenitor_client::{Error, ResponseValue};
use reqwest::header::{HeaderMap, HeaderValue, AUTHORIZATION};
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

/// A connection that is stuck; the server's own limits are shorter.
const WEDGED: Duration = Duration::from_secs(60);

type ApiResult<T> = Result<ResponseValue<T>, Error<types::Error>>;

fn connect(url: &str, token: &str) -> Result<Client, Failure> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))?;
    bearer.set_sensitive(true);
    let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
    let http = reqwest::Client::builder().default_headers(headers).timeout(WEDGED).build()?;
    Ok(Client::new_with_client(url, http))
}

fn template(name: &str) -> types::SandboxCreate {
    types::SandboxCreate { template: Some(name.into()), ..Default::default() }
}

fn shell(cmd: &str) -> ExecRequest {
    ExecRequest { cmd: Some(cmd.into()), timeout_seconds: Some(30.0), ..Default::default() }
}

/// The code of a refusal, as the enum that the document names beside the plain string.
async fn refusal<T>(call: impl Future<Output = ApiResult<T>>) -> Result<ErrorCode, Failure> {
    match call.await {
        Ok(_) => Err("was not refused".into()),
        Err(Error::ErrorResponse(response)) => Ok(response.into_inner().error.code.parse()?),
        Err(other) => Err(other.into()),
    }
}

async fn refused<T>(expected: ErrorCode, call: impl Future<Output = ApiResult<T>>) -> Checked {
    let code = refusal(call).await?;
    ensure!(code == expected, "{code} instead of {expected}");
    Ok(())
}

struct Sandbox {
    api: Client,
    id: String,
    features: Vec<String>,
}

impl Sandbox {
    async fn create(api: Client) -> Result<Self, Failure> {
        let created = api.sandbox_create(None, &template("base")).await?.into_inner();
        Ok(Self { api, id: created.id, features: created.agent.map(|a| a.features).unwrap_or_default() })
    }

    async fn run(&self, request: ExecRequest) -> Result<types::ExecResult, Failure> {
        let response = self.api.exec_run(&self.id, &request).await;
        Ok(response?.into_inner())
    }

    /// Where the agent has no means to enforce a limit, the request must be refused.
    async fn limited(&self, feature: &str, request: ExecRequest, check: fn(&types::ExecResult) -> Checked) -> Checked {
        if self.features.iter().any(|f| f == feature) {
            check(&self.run(request).await?)
        } else {
            refused(ErrorCode::LimitUnsupported, self.api.exec_run(&self.id, &request)).await
        }
    }
}

/// Without a wildcard: an outcome that is new or gone does not compile.
fn documented_exit_code(result: &types::ExecResult) -> bool {
    let code = result.exit_code;
    match result.outcome {
        Outcome::Exited => (0..=255).contains(&code),
        Outcome::Signaled | Outcome::Cancelled => code > 128,
        Outcome::TimedOut => code == 124,
        Outcome::OomKilled => code == 137,
        Outcome::CpuLimit => code == 152,
        Outcome::SpawnFailed => code == 126 || code == 127,
    }
}

fn ended_as(result: &types::ExecResult, outcome: Outcome) -> Checked {
    ensure!(result.outcome == outcome, "{} instead of {outcome}", result.outcome);
    ensure!(documented_exit_code(result), "exit code {} of {outcome}", result.exit_code);
    Ok(())
}

async fn exited(sb: &Sandbox) -> Checked {
    let result = sb.run(shell("echo out; echo err >&2; exit 7")).await?;
    ended_as(&result, Outcome::Exited)?;
    ensure!(result.exit_code == 7 && result.signal.is_none(), "{result:?}");
    ensure!(result.stdout == "out\n" && result.stderr == "err\n", "{result:?}");
    ensure!(result.stdout_bytes == 4 && !result.stdout_truncated && !result.encoding_lossy, "{result:?}");
    Ok(())
}

async fn signaled(sb: &Sandbox) -> Checked {
    let result = sb.run(shell("kill -9 $$")).await?;
    ended_as(&result, Outcome::Signaled)?;
    ensure!(result.signal.as_deref() == Some("SIGKILL") && result.exit_code == 137, "{result:?}");
    Ok(())
}

async fn timed_out(sb: &Sandbox) -> Checked {
    let request = ExecRequest { timeout_seconds: Some(0.5), ..shell("echo partial; sleep 60") };
    let result = sb.run(request).await?;
    ended_as(&result, Outcome::TimedOut)?;
    ensure!(result.stdout == "partial\n", "{result:?}");
    ensure!((500..5000).contains(&result.duration_ms), "took {} ms", result.duration_ms);
    Ok(())
}

async fn oom_killed(sb: &Sandbox) -> Checked {
    let limits = Limits { memory_mib: Some(32), ..Default::default() };
    let request = ExecRequest { limits: Some(limits), ..shell("tail /dev/zero") };
    sb.limited("memory", request, |result| {
        ended_as(result, Outcome::OomKilled)?;
        ensure!(result.oom_kills >= 1 && result.oom_scope == Some(types::OomScope::Exec), "{result:?}");
        Ok(())
    })
    .await
}

async fn cpu_limit(sb: &Sandbox) -> Checked {
    let limits = Limits { cpu_seconds: Some(0.5), ..Default::default() };
    let request = ExecRequest { limits: Some(limits), ..shell("while :; do :; done") };
    let result = sb.run(request).await?;
    ended_as(&result, Outcome::CpuLimit)
}

async fn cancelled(sb: &Sandbox) -> Checked {
    let started = sb.api.exec_start(&sb.id, &shell("exec sleep 60")).await?.into_inner();
    ensure!(started.detached && started.result.is_none(), "{started:?}");
    let kill = KillRequest { grace_seconds: Some(0.0), wait_seconds: Some(20.0) };
    let killed = sb.api.exec_kill(&sb.id, &started.exec_id, &kill).await?.into_inner();
    ensure!(killed.state == ExecState::Finished, "{killed:?}");
    let result = killed.result.as_ref().ok_or("no result")?;
    ensure!(result.outcome == Outcome::Cancelled, "{result:?}");
    ensure!(result.cancel_reason == Some(CancelReason::Killed), "{result:?}");
    Ok(())
}

async fn spawn_failed(sb: &Sandbox) -> Checked {
    let request = ExecRequest { argv: Some(vec!["/no/such/program".into()]), ..Default::default() };
    let result = sb.run(request).await?;
    ended_as(&result, Outcome::SpawnFailed)?;
    let why = result.spawn_error.as_ref().ok_or("no spawn_error")?;
    ensure!(result.exit_code == 127 && why.errno == "ENOENT", "{result:?}");
    Ok(())
}

/// The events of a stream as the generated type, its terminal one among them.
async fn streams(sb: &Sandbox) -> Checked {
    let response = sb.api.exec_stream(&sb.id, None, &shell("echo out; exit 7")).await?;
    let mut body = response.into_inner_stream();
    let mut text = Vec::new();
    while let Some(bytes) = body.next().await {
        text.extend_from_slice(&bytes?);
    }
    let text = String::from_utf8(text)?;
    let events: Vec<ExecEvent> =
        text.lines().filter_map(|l| l.strip_prefix("data:")).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let [ExecEvent::Start { .. }, ExecEvent::Stdout { chunk }, ExecEvent::Exit { exit_code, result }] = &events[..]
    else {
        return Err(format!("{events:?}").into());
    };
    ensure!(chunk == "out\n" && *exit_code == 7 && result.outcome == Outcome::Exited, "{events:?}");
    Ok(())
}

async fn reads_detached(sb: &Sandbox) -> Checked {
    let started = sb.api.exec_start(&sb.id, &shell("exit 5")).await?.into_inner();
    let exec = sb.api.exec_get(&sb.id, &started.exec_id, Some(20.0)).await?.into_inner();
    ensure!(exec.finished_at.is_some(), "{exec:?}");
    ensure!(exec.result.as_ref().is_some_and(|r| r.exit_code == 5 && r.outcome == Outcome::Exited), "{exec:?}");
    let listed = sb.api.exec_list(&sb.id, None, None).await?.into_inner();
    ensure!(listed.items.iter().any(|e| e.exec_id == started.exec_id), "{listed:?}");
    sb.api.exec_delete(&sb.id, &started.exec_id).await?;
    refused(ErrorCode::ExecNotFound, sb.api.exec_get(&sb.id, &started.exec_id, None)).await
}

async fn id_conflict(sb: &Sandbox) -> Checked {
    let named = |cmd| ExecRequest { exec_id: Some("taken".parse().expect("an id")), ..shell(cmd) };
    ended_as(&sb.run(named("true")).await?, Outcome::Exited)?;
    refused(ErrorCode::ExecIdConflict, sb.api.exec_run(&sb.id, &named("false"))).await
}

async fn invalid_field(sb: &Sandbox) -> Checked {
    let request = ExecRequest { timeout_seconds: Some(-1.0), ..shell("true") };
    let Err(Error::ErrorResponse(response)) = sb.api.exec_run(&sb.id, &request).await else {
        return Err("was not refused with the documented envelope".into());
    };
    ensure!(response.status().as_u16() == 400, "status {}", response.status());
    let error = response.into_inner().error;
    ensure!(error.code.parse::<ErrorCode>()? == ErrorCode::RequestInvalidField, "code {}", error.code);
    ensure!(error.details.field.as_deref() == Some("timeout_seconds"), "field {:?}", error.details.field);
    Ok(())
}

async fn deleted(sb: &Sandbox) -> Checked {
    sb.api.sandbox_delete(&sb.id).await?;
    eventually("the sandbox is gone", || async {
        Ok(refusal(sb.api.exec_run(&sb.id, &shell("true"))).await? == ErrorCode::SandboxGone)
    })
    .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let bridge = Bridge::from_env();
    let mut report = Report::new("generated");
    let sandbox = match connect(&bridge.url, &bridge.token) {
        Ok(api) => Sandbox::create(api).await,
        Err(error) => Err(error),
    };
    let (sandbox, stranger) = match (sandbox, connect(&bridge.url, "not-the-token")) {
        (Ok(sandbox), Ok(stranger)) => (sandbox, stranger),
        (Err(error), _) | (_, Err(error)) => {
            report.check("creates a sandbox", async { Err(error) }).await;
            return report.exit_code();
        }
    };
    let sb = &sandbox;
    let no_template = template("nope");
    let nobody = "nobody".parse().expect("an id");

    report.check("outcome exited", exited(sb)).await;
    report.check("outcome signaled", signaled(sb)).await;
    report.check("outcome timed_out", timed_out(sb)).await;
    report.check("outcome oom_killed", oom_killed(sb)).await;
    report.check("outcome cpu_limit", cpu_limit(sb)).await;
    report.check("outcome cancelled", cancelled(sb)).await;
    report.check("outcome spawn_failed", spawn_failed(sb)).await;
    report.check("a stream's events", streams(sb)).await;
    report.check("a detached exec", reads_detached(sb)).await;
    report.check("code request.invalid_field names the field", invalid_field(sb)).await;
    report.check("code exec.id_conflict", id_conflict(sb)).await;
    report.check("code exec.not_found", refused(ErrorCode::ExecNotFound, sb.api.exec_get(&sb.id, &nobody, None))).await;
    report.check("code sandbox.not_found", refused(ErrorCode::SandboxNotFound, sb.api.sandbox_get("nobody"))).await;
    report
        .check(
            "code template.not_found",
            refused(ErrorCode::TemplateNotFound, sb.api.sandbox_create(None, &no_template)),
        )
        .await;
    report.check("code auth.invalid_token", refused(ErrorCode::AuthInvalidToken, stranger.quota_get())).await;
    report.check("code sandbox.gone", deleted(sb)).await;
    report.exit_code()
}
