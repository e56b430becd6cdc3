//! The client that Rust callers write by hand: three calls, three fields of the result,
//! and a guard. Its requests and what it reads of the replies are the contract that this
//! test holds the bridge to, so nothing here may grow to suit the bridge.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Catches a connection that is stuck; the limit of a command is `timeout_seconds`.
const WEDGED: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("command exited with status {status}: {stderr}")]
    NonZeroExit { status: i32, stderr: String },
    #[error("transport: {0}")]
    Transport(#[from] reqwest::Error),
}

#[derive(Serialize)]
struct CreateRequest<'a> {
    template: &'a str,
    ttl_seconds: u64,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

#[derive(Serialize)]
struct ExecRequest<'a> {
    cmd: &'a str,
    timeout_seconds: u64,
}

#[derive(Debug, Deserialize)]
pub struct ExecResult {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
}

pub struct Sandbox {
    http: reqwest::Client,
    base: String,
    token: String,
    pub id: String,
}

impl Sandbox {
    pub async fn create(base: &str, token: &str, template: &str) -> Result<Self, SandboxError> {
        let http = reqwest::Client::builder().timeout(WEDGED).build()?;
        let created: Created = http
            .post(format!("{base}/v1/sandboxes"))
            .bearer_auth(token)
            .json(&CreateRequest { template, ttl_seconds: 1800 })
            .send()
            .await?
            .error_for_status()?
            .json()
            .await?;
        Ok(Self { http, base: base.into(), token: token.into(), id: created.id })
    }

    /// The same caller's handle on a sandbox that it knows by id only.
    pub fn named(&self, id: &str) -> Self {
        Self { http: self.http.clone(), base: self.base.clone(), token: self.token.clone(), id: id.into() }
    }

    pub async fn exec(&self, cmd: &str, timeout_seconds: u64) -> Result<ExecResult, SandboxError> {
        let result: ExecResult = self
            .http
            .post(format!("{}/v1/sandboxes/{}/exec", self.base, self.id))
            .bearer_auth(&self.token)
            .json(&ExecRequest { cmd, timeout_seconds })
            .send()
            .await?
            .error_for_status()?
            .json()
            .await?;
        match result.exit_code {
            0 => Ok(result),
            status => Err(SandboxError::NonZeroExit { status, stderr: result.stderr }),
        }
    }

    pub async fn delete(&self) -> Result<(), SandboxError> {
        self.http
            .delete(format!("{}/v1/sandboxes/{}", self.base, self.id))
            .bearer_auth(&self.token)
            .send()
            .await?
            .error_for_status()?;
        Ok(())
    }
}

/// Deletes its sandbox when dropped, however the scope is left. Drop cannot await, so a
/// task does it; the TTL is there for a process that dies before the task runs.
pub struct SandboxGuard(Arc<Sandbox>);

impl SandboxGuard {
    pub fn new(sandbox: Sandbox) -> Self {
        Self(Arc::new(sandbox))
    }

    pub fn get(&self) -> &Sandbox {
        &self.0
    }
}

impl Drop for SandboxGuard {
    fn drop(&mut self) {
        let sandbox = Arc::clone(&self.0);
        tokio::spawn(async move {
            if let Err(error) = sandbox.delete().await {
                eprintln!("sandbox {} was not deleted: {error}", sandbox.id);
            }
        });
    }
}
