//! What the client programs share: where the bridge is, one line a check, and waiting
//! for a condition with a deadline. It never speaks HTTP: that is what is being tested.

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

pub type Failure = Box<dyn Error + Send + Sync>;
pub type Checked = Result<(), Failure>;

/// No check may hang: past this it has failed.
const CHECK_DEADLINE: Duration = Duration::from_secs(60);
/// How long something that must happen may take on a slow machine.
const CONDITION_DEADLINE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Ends a check as failed, with a message, unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}

/// The bridge under test, as the environment names it.
#[derive(Clone)]
pub struct Bridge {
    pub url: String,
    pub token: String,
}

impl Bridge {
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        Self { url: var("SANDGATE_URL").trim_end_matches('/').into(), token: var("SANDGATE_TOKEN") }
    }
}

/// Prints `ok CLIENT: NAME` or `FAIL CLIENT: NAME: WHY` for each check.
pub struct Report {
    client: &'static str,
    failed: bool,
}

impl Report {
    pub fn new(client: &'static str) -> Self {
        Self { client, failed: false }
    }

    pub async fn check(&mut self, name: &str, body: impl Future<Output = Checked>) {
        let outcome = tokio::time::timeout(CHECK_DEADLINE, body).await;
        let client = self.client;
        match outcome.unwrap_or_else(|_| Err("took longer than a check may".into())) {
            Ok(()) => println!("ok {client}: {name}"),
            Err(why) => {
                self.failed = true;
                println!("FAIL {client}: {name}: {}", with_sources(&*why).replace('\n', " "));
            }
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.failed))
    }
}

/// Asks again and again until the answer is yes; fails past a deadline.
pub async fn eventually<F, Fut>(what: &str, mut holds: F) -> Checked
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool, Failure>>,
{
    let waiting = async {
        while !holds().await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    };
    match tokio::time::timeout(CONDITION_DEADLINE, waiting).await {
        Ok(result) => result,
        Err(_) => Err(format!("still not so after {CONDITION_DEADLINE:?}: {what}").into()),
    }
}

fn with_sources(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
