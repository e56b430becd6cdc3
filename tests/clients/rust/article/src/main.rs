//! Drives the handwritten client against a running bridge.

mod client;

use checks::{ensure, eventually, Bridge, Checked, Failure, Report};
use client::{Sandbox, SandboxError, SandboxGuard};
use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const TEMPLATE: &str = "base";
const NOT_FOUND: &str = "exec 2>/dev/null; no-such-command";
/// One beat every 50 ms, so that half a second without one means that it has stopped.
const HEARTBEAT: &str = "while :; do echo beat >> \"$HB\"; sleep 0.05; done";

async fn create(bridge: &Bridge) -> Result<SandboxGuard, Failure> {
    Ok(SandboxGuard::new(Sandbox::create(&bridge.url, &bridge.token, TEMPLATE).await?))
}

/// A file of the sandbox's own, also where /tmp is the host's.
fn scratch(sandbox: &Sandbox, name: &str) -> String {
    format!("/tmp/{}-{name}", sandbox.id)
}

fn heartbeat(file: &str) -> String {
    format!("HB={file}; {HEARTBEAT}")
}

/// Whether the heartbeat file grows within half a second, as a command in the guest sees it.
async fn is_beating(sandbox: &Sandbox, file: &str) -> Result<bool, Failure> {
    let probe = format!("a=$(cat {file} 2>/dev/null | wc -c); sleep 0.5; [ $(cat {file} 2>/dev/null | wc -c) != $a ]");
    match sandbox.exec(&probe, 10).await {
        Ok(_) => Ok(true),
        Err(SandboxError::NonZeroExit { status: 1, .. }) => Ok(false),
        Err(other) => Err(other.into()),
    }
}

fn status_of(error: &SandboxError) -> Option<u16> {
    match error {
        SandboxError::Transport(e) => e.status().map(|s| s.as_u16()),
        SandboxError::NonZeroExit { .. } => None,
    }
}

async fn is_gone(sandbox: &Sandbox) -> Result<bool, Failure> {
    Ok(matches!(sandbox.exec("true", 5).await, Err(e) if status_of(&e) == Some(410)))
}

async fn reads_output(sandbox: &Sandbox) -> Checked {
    let result = sandbox.exec("echo out; echo err >&2", 30).await?;
    ensure!(result.exit_code == 0, "exit code {}", result.exit_code);
    ensure!(result.stdout == "out\n", "stdout {:?}", result.stdout);
    ensure!(result.stderr == "err\n", "stderr {:?}", result.stderr);
    Ok(())
}

/// What the client makes of a command that does not end with 0.
async fn fails_with(sandbox: &Sandbox, cmd: &str, timeout: u64, code: i32, said: &str) -> Checked {
    match sandbox.exec(cmd, timeout).await {
        Err(SandboxError::NonZeroExit { status, stderr }) => {
            ensure!(status == code && stderr == said, "status {status}, stderr {stderr:?}");
            Ok(())
        }
        Err(other) => Err(other.into()),
        Ok(result) => Err(format!("taken for a success: {result:?}").into()),
    }
}

async fn times_out_in_the_guest(sandbox: &Sandbox) -> Checked {
    let file = &scratch(sandbox, "timeout");
    let started = Instant::now();
    fails_with(sandbox, &heartbeat(file), 1, 124, "").await?;
    let took = started.elapsed();
    ensure!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "took {took:?}");
    sandbox.exec(&format!("test -s {file}"), 10).await?;
    ensure!(!is_beating(sandbox, file).await?, "the command ran on after its timeout");
    Ok(())
}

/// `select!` drops the losing branch, which is how an agent loop cancels.
async fn drop_cancels(sandbox: &Sandbox) -> Checked {
    let file = &scratch(sandbox, "drop");
    let cmd = heartbeat(file);
    tokio::select! {
        ended = sandbox.exec(&cmd, 120) => ensure!(false, "ended by itself: {ended:?}"),
        seen = eventually("the command beats", || is_beating(sandbox, file)) => seen?,
    }
    eventually("the beat has stopped", || async { Ok(!is_beating(sandbox, file).await?) }).await
}

/// A command that is silent is cancelled just the same: no write of its finds the way shut.
async fn drop_cancels_silent(sandbox: &Sandbox) -> Checked {
    let file = scratch(sandbox, "pid");
    let probe = format!("kill -0 $(cat {file}) 2>/dev/null || exit 9");
    let lives = || async {
        match sandbox.exec(&probe, 10).await {
            Ok(_) => Ok(true),
            Err(SandboxError::NonZeroExit { status: 9, .. }) => Ok(false),
            Err(other) => Err(Failure::from(other)),
        }
    };
    let cmd = format!("echo $$ > {file}; exec sleep 120");
    tokio::select! {
        ended = sandbox.exec(&cmd, 120) => ensure!(false, "ended by itself: {ended:?}"),
        seen = eventually("the command runs", lives) => seen?,
    }
    eventually("the command is gone", || async { Ok(!lives().await?) }).await
}

async fn refuses<T>(expected: u16, call: impl Future<Output = Result<T, SandboxError>>) -> Checked {
    match call.await {
        Ok(_) => Err("was not refused".into()),
        Err(error) => {
            ensure!(status_of(&error) == Some(expected), "{error}");
            Ok(())
        }
    }
}

async fn deletes(sandbox: &Sandbox) -> Checked {
    sandbox.delete().await?;
    ensure!(is_gone(sandbox).await?, "an exec on it is not a 410");
    Ok(sandbox.delete().await?)
}

async fn guard_deletes(bridge: &Bridge, watcher: &Sandbox) -> Checked {
    let guard = create(bridge).await?;
    let same = watcher.named(&guard.get().id);
    same.exec("true", 30).await?;
    drop(guard);
    eventually("the sandbox is gone", || is_gone(&same)).await?;
    Ok(same.delete().await?)
}

/// The whole scope is cancelled in the middle of an exec: the guard's delete still happens.
async fn cancelled_scope_deletes(bridge: &Bridge, watcher: &Sandbox) -> Checked {
    let (tell, told) = oneshot::channel();
    let run_tool = async {
        let guard = create(bridge).await?;
        tell.send(guard.get().id.clone()).expect("the id is awaited");
        guard.get().exec(&heartbeat(&scratch(guard.get(), "scope")), 120).await?;
        Ok::<(), Failure>(())
    };
    let running = async {
        let same = watcher.named(&told.await?);
        let file = scratch(&same, "scope");
        eventually("the command beats", || is_beating(&same, &file)).await?;
        Ok::<Sandbox, Failure>(same)
    };
    let same = tokio::select! {
        ended = run_tool => return Err(format!("ended by itself: {ended:?}").into()),
        seen = running => seen?,
    };
    eventually("the sandbox is gone", || is_gone(&same)).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let bridge = Bridge::from_env();
    let mut report = Report::new("article");
    let sandbox = match Sandbox::create(&bridge.url, &bridge.token, TEMPLATE).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            report.check("creates a sandbox", async { Err(error.into()) }).await;
            return report.exit_code();
        }
    };
    let sb = &sandbox;
    let unknown = sb.named("no-such-sandbox");
    let create_with = |token, template| Sandbox::create(&bridge.url, token, template);

    report.check("exec answers stdout, stderr and exit code 0", reads_output(sb)).await;
    report.check("exit 3 is a typed error with its stderr", fails_with(sb, "echo no >&2; exit 3", 30, 3, "no\n")).await;
    report.check("exit 255 is a typed error", fails_with(sb, "exit 255", 30, 255, "")).await;
    report.check("a command that is not found is 127", fails_with(sb, NOT_FOUND, 30, 127, "")).await;
    report.check("kill -9 is 137", fails_with(sb, "kill -9 $$", 30, 137, "")).await;
    report.check("a timeout is 124 and the command is stopped", times_out_in_the_guest(sb)).await;
    report.check("dropping the future cancels the command", drop_cancels(sb)).await;
    report.check("dropping the future cancels a silent command", drop_cancels_silent(sb)).await;
    report.check("an unknown template is a 404", refuses(404, create_with(&bridge.token, "nope"))).await;
    report.check("a wrong token is a 401", refuses(401, create_with("not-the-token", TEMPLATE))).await;
    report.check("an unknown sandbox is a 404", refuses(404, unknown.exec("true", 5))).await;
    report.check("the guard deletes the sandbox", guard_deletes(&bridge, sb)).await;
    report.check("a cancelled scope deletes the sandbox", cancelled_scope_deletes(&bridge, sb)).await;
    report.check("delete answers, twice, and then the sandbox is gone", deletes(sb)).await;
    report.exit_code()
}
