//! A stock EventSource client against a running bridge: reads streams to their end, is
//! cut off at awkward places, resumes, and never makes the command run twice.

mod proxy;

use checks::{ensure, Bridge, Checked, Failure, Report};
use futures_util::StreamExt;
use proxy::CuttingProxy;
use reqwest::{Client, RequestBuilder, StatusCode};
use reqwest_eventsource::retry::Constant;
use reqwest_eventsource::{Error, Event, EventSource};
use serde::Deserialize;
use serde_json::{json, Value};
use std::process::ExitCode;
use std::time::Duration;

const LINES: usize = 200;
/// The first cut falls into the head of the answer, before any event id is known; the
/// others into the output, each at another place of an event.
const CUTS_FROM_THE_HEAD: &[usize] = &[100, 1501, 2503, 4007];
const CUTS_IN_THE_OUTPUT: &[usize] = &[2503, 1511, 4007];
const RETRY_AFTER: Duration = Duration::from_millis(20);
const MAX_RETRIES: usize = 50;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ExecEvent {
    Start { exec_id: String },
    Stdout { chunk: String },
    Stderr { chunk: String },
    Gap { bytes: u64 },
    Exit { exit_code: i32, result: Value },
    Error { code: String, message: String },
}

/// What a client has of a stream once it has stopped asking for more.
#[derive(Default)]
struct Reading {
    exec_id: String,
    stdout: String,
    stderr: String,
    exit: Option<(i32, Value)>,
    resumed_in_the_middle: usize,
    stopped_by: Option<StatusCode>,
}

impl Reading {
    fn take(&mut self, name: &str, id: &str, event: ExecEvent) -> Checked {
        ensure!(self.exit.is_none(), "a {name} event came after the terminal one");
        let expected = match event {
            ExecEvent::Start { exec_id } => {
                self.exec_id = exec_id;
                "start"
            }
            ExecEvent::Stdout { chunk } => {
                self.stdout.push_str(&chunk);
                "stdout"
            }
            ExecEvent::Stderr { chunk } => {
                self.stderr.push_str(&chunk);
                "stderr"
            }
            ExecEvent::Exit { exit_code, result } => {
                self.exit = Some((exit_code, result));
                "exit"
            }
            ExecEvent::Gap { bytes } => return Err(format!("{bytes} bytes were lost").into()),
            ExecEvent::Error { code, message } => return Err(format!("{code}: {message}").into()),
        };
        ensure!(name == expected, "event: {name} carries the type {expected}");
        let prefix = format!("{}:", self.exec_id);
        ensure!(id.starts_with(&prefix), "the id {id:?} of a {name} event");
        Ok(())
    }

    fn ended_as(&self, exit_code: i32, outcome: &str) -> Checked {
        let (code, result) = self.exit.as_ref().ok_or("no terminal event")?;
        ensure!(*code == exit_code, "exit code {code}");
        ensure!(result["outcome"] == outcome, "outcome {}", result["outcome"]);
        ensure!(result["exit_code"] == exit_code, "exit code {} in the result", result["exit_code"]);
        ensure!(result.get("stdout").is_none(), "the terminal event repeats the output");
        ensure!(self.stopped_by == Some(StatusCode::NO_CONTENT), "stopped by {:?}", self.stopped_by);
        Ok(())
    }
}

/// Reads until the library gives up, reconnecting as it does by default, only sooner.
async fn read(request: RequestBuilder) -> Result<Reading, Failure> {
    let mut source = EventSource::new(request)?;
    source.set_retry_policy(Box::new(Constant::new(RETRY_AFTER, Some(MAX_RETRIES))));
    let mut reading = Reading::default();
    while let Some(item) = source.next().await {
        match item {
            Ok(Event::Open) if reading.exit.is_none() && !reading.stdout.is_empty() => {
                reading.resumed_in_the_middle += 1;
            }
            Ok(Event::Open) => {}
            Ok(Event::Message(m)) => reading.take(&m.event, &m.id, serde_json::from_str(&m.data)?)?,
            Err(Error::StreamEnded | Error::Transport(_)) => {}
            Err(Error::InvalidStatusCode(status, _)) => reading.stopped_by = Some(status),
            Err(other) => return Err(other.into()),
        }
    }
    Ok(reading)
}

struct Sandbox {
    http: Client,
    bridge: Bridge,
    id: String,
}

impl Sandbox {
    async fn create(bridge: Bridge) -> Result<Self, Failure> {
        let mut sandbox = Self { http: Client::new(), bridge, id: String::new() };
        let url = format!("{}/v1/sandboxes", sandbox.bridge.url);
        let request = sandbox.http.post(url).bearer_auth(&sandbox.bridge.token);
        let created: Value =
            request.json(&json!({"template": "base"})).send().await?.error_for_status()?.json().await?;
        sandbox.id = created["id"].as_str().ok_or("the sandbox has no id")?.into();
        Ok(sandbox)
    }

    fn post(&self, base: &str, path: &str, body: Value) -> RequestBuilder {
        let url = format!("{base}/v1/sandboxes/{}/{path}", self.id);
        self.http.post(url).bearer_auth(&self.bridge.token).json(&body)
    }

    fn get(&self, base: &str, path: &str) -> RequestBuilder {
        let url = format!("{base}/v1/sandboxes/{}/{path}", self.id);
        self.http.get(url).bearer_auth(&self.bridge.token)
    }

    /// What a command of the test's own prints.
    async fn output_of(&self, cmd: &str) -> Result<String, Failure> {
        let request = self.post(&self.bridge.url, "exec", json!({"cmd": cmd}));
        let result: Value = request.send().await?.error_for_status()?.json().await?;
        Ok(result["stdout"].as_str().ok_or("no stdout")?.into())
    }

    /// A file of the sandbox's own, also where /tmp is the host's.
    fn scratch(&self, name: &str) -> String {
        format!("/tmp/{}-{name}", self.id)
    }

    async fn ran_once(&self, file: &str) -> Checked {
        let runs = self.output_of(&format!("wc -l < {file}")).await?;
        ensure!(runs.trim() == "1", "the command ran {} times", runs.trim());
        Ok(())
    }

    async fn delete(&self) -> Checked {
        let url = format!("{}/v1/sandboxes/{}", self.bridge.url, self.id);
        self.http.delete(url).bearer_auth(&self.bridge.token).send().await?.error_for_status()?;
        Ok(())
    }
}

/// Notes in a file that it runs, then prints numbered lines slowly enough to be cut.
fn counted(file: &str) -> String {
    format!(
        "echo run >> {file}; i=0; while [ $i -lt {LINES} ]; do \
         printf 'line %03d %090d\\n' $i 0; i=$((i+1)); sleep 0.01; done"
    )
}

fn counted_output() -> String {
    (0..LINES).map(|i| format!("line {i:03} {:090}\n", 0)).collect()
}

fn whole_after_cuts(reading: &Reading, proxy: &CuttingProxy, cuts: usize) -> Checked {
    reading.ended_as(0, "exited")?;
    ensure!(proxy.cuts() == cuts, "cut {} times, not {cuts}", proxy.cuts());
    ensure!(reading.resumed_in_the_middle > 0, "no cut fell into the output");
    let (read, printed) = (&reading.stdout, counted_output());
    let same = read.bytes().zip(printed.bytes()).take_while(|(a, b)| a == b).count();
    ensure!(*read == printed, "{} of {} bytes, wrong from byte {same} on", read.len(), printed.len());
    Ok(())
}

async fn post_to_the_end(sb: &Sandbox) -> Checked {
    let file = sb.scratch("end");
    let cmd = format!("echo run >> {file}; echo out; echo err >&2; exit 3");
    let body = json!({"cmd": cmd, "on_disconnect": "detach"});
    let reading = read(sb.post(&sb.bridge.url, "exec/stream", body)).await?;
    ensure!(reading.stdout == "out\n" && reading.stderr == "err\n", "{:?} {:?}", reading.stdout, reading.stderr);
    reading.ended_as(3, "exited")?;
    sb.ran_once(&file).await
}

/// With an id of the client's own even a cut before the first event is survived.
async fn post_with_id_is_cut(sb: &Sandbox) -> Checked {
    let proxy = CuttingProxy::start(&sb.bridge.url, CUTS_FROM_THE_HEAD).await?;
    let file = sb.scratch("id");
    let body = json!({"cmd": counted(&file), "exec_id": "es-with-id", "on_disconnect": "detach"});
    let reading = read(sb.post(&proxy.url, "exec/stream", body)).await?;
    whole_after_cuts(&reading, &proxy, CUTS_FROM_THE_HEAD.len())?;
    ensure!(reading.exec_id == "es-with-id", "exec id {}", reading.exec_id);
    sb.ran_once(&file).await
}

async fn post_without_id_is_cut(sb: &Sandbox) -> Checked {
    let proxy = CuttingProxy::start(&sb.bridge.url, CUTS_IN_THE_OUTPUT).await?;
    let file = sb.scratch("noid");
    let body = json!({"cmd": counted(&file), "on_disconnect": "detach"});
    let reading = read(sb.post(&proxy.url, "exec/stream", body)).await?;
    whole_after_cuts(&reading, &proxy, CUTS_IN_THE_OUTPUT.len())?;
    sb.ran_once(&file).await
}

async fn get_is_cut(sb: &Sandbox) -> Checked {
    let proxy = CuttingProxy::start(&sb.bridge.url, CUTS_FROM_THE_HEAD).await?;
    let file = sb.scratch("get");
    let body = json!({"cmd": counted(&file), "exec_id": "es-detached"});
    sb.post(&sb.bridge.url, "execs", body).send().await?.error_for_status()?;
    let reading = read(sb.get(&proxy.url, "execs/es-detached/stream")).await?;
    whole_after_cuts(&reading, &proxy, CUTS_FROM_THE_HEAD.len())?;
    sb.ran_once(&file).await
}

async fn spawn_failure_is_an_exit(sb: &Sandbox) -> Checked {
    let body = json!({"argv": ["/no/such/program"], "on_disconnect": "detach"});
    let reading = read(sb.post(&sb.bridge.url, "exec/stream", body)).await?;
    reading.ended_as(127, "spawn_failed")
}

/// A reconnect that names what the bridge does not know, or nothing, starts nothing.
async fn never_starts(sb: &Sandbox, last_event_id: &str, status: StatusCode, code: &str) -> Checked {
    let file = sb.scratch("started");
    let body = json!({"cmd": format!("touch {file}")});
    let request = sb.post(&sb.bridge.url, "exec/stream", body).header("Last-Event-ID", last_event_id);
    let response = request.send().await?;
    ensure!(response.status() == status, "answered {}", response.status());
    let envelope: Value = response.json().await?;
    ensure!(envelope["error"]["code"] == code, "code {}", envelope["error"]["code"]);
    let found = sb.output_of(&format!("test -e {file} && echo started; true")).await?;
    ensure!(found.is_empty(), "the command was started");
    Ok(())
}

async fn reconnect_to_unknown(sb: &Sandbox) -> Checked {
    never_starts(sb, "no-such-exec:7", StatusCode::NOT_FOUND, "exec.not_found").await
}

async fn reconnect_without_id(sb: &Sandbox) -> Checked {
    never_starts(sb, "", StatusCode::BAD_REQUEST, "request.invalid_field").await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut report = Report::new("eventsource");
    let sandbox = match Sandbox::create(Bridge::from_env()).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            report.check("creates a sandbox", async { Err(error) }).await;
            return report.exit_code();
        }
    };
    let sb = &sandbox;

    report.check("a started stream is read to its end and stops at 204", post_to_the_end(sb)).await;
    report.check("a failed spawn is a terminal event", spawn_failure_is_an_exit(sb)).await;
    report.check("a started stream is cut, resumes and runs once", post_without_id_is_cut(sb)).await;
    report.check("cut before the first event, it still runs once", post_with_id_is_cut(sb)).await;
    report.check("a detached exec's stream is cut and resumes", get_is_cut(sb)).await;
    report.check("a reconnect to an unknown exec starts nothing", reconnect_to_unknown(sb)).await;
    report.check("a reconnect without any id starts nothing", reconnect_without_id(sb)).await;
    report.check("the sandbox is deleted", sb.delete()).await;
    report.exit_code()
}
