//! The work under the locks, which is the part that a service would have. The worker does not know whether locks and
//! configuration are on servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;
use redis_rwlock::{Error, HoldState, RwLockManager};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::LOCK;
use crate::store::{Fields, Look, Store, look, steps};

pub(crate) struct Worker {
    pub(crate) locks: Arc<dyn RwLockManager>,
    pub(crate) store: Arc<Store>,
    /// Sends an event to the parent, as a line: its kind, and a version and a token, or a text.
    pub(crate) tell: Box<dyn Fn(String) + Send + Sync>,
    /// Channel whose sender is dropped when the worker is to stop.
    pub(crate) stop: watch::Receiver<()>,
    /// Start of the update in whose middle the worker hangs, so that the parent can kill it there.
    pub(crate) hangs_at: Option<Instant>,
}

/// Reason why an operation was given up: kind and text of its event.
struct Fault(&'static str, String);

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self(if matches!(error, Error::Lost { .. }) { "lost" } else { "trouble" }, error.to_string())
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self("trouble", error.to_string())
    }
}

impl Fault {
    /// Explains a refused token by the state of the hold. If the hold is lost, fencing has done its work. Otherwise
    /// another holder was inside.
    fn judge(self, hold: HoldState) -> Self {
        match (self.0, hold) {
            ("overlap", HoldState::Lost(reason)) => Self("lost", reason.to_string()),
            _ => self,
        }
    }
}

impl Worker {
    /// Works until it is to stop.
    pub(crate) async fn run(self) {
        while self.stop.has_changed().is_ok() {
            let done = if self.hangs() || fastrand::u8(..4) == 0 { self.update().await } else { self.read().await };
            if let Err(Fault(kind, text)) = done {
                (self.tell)(format!("{kind} {}", text.replace('\n', " ")));
                sleep(Duration::from_millis(200)).await;
            }
            sleep(Duration::from_millis(fastrand::u64(40..80))).await;
        }
        if let Err(error) = self.locks.close().await {
            (self.tell)(format!("trouble {error}"));
        }
        (self.tell)("stopped".to_owned());
    }

    fn hangs(&self) -> bool {
        self.hangs_at.is_some_and(|at| at <= Instant::now())
    }

    /// Reads the configuration and uses it for a while. No worker changes it meanwhile.
    async fn read(&self) -> Result<(), Fault> {
        let reading = self.locks.read(LOCK).run(async |guard| {
            let looked = self.look_twice(guard.fencing_token().into()).await;
            looked.map_err(|fault| fault.judge(guard.state()))
        });
        // If the hold is lost, `run` drops the work where it is, and returns `Lost`.
        match reading.await?? {
            Look::Whole(version) => (self.tell)(format!("read {version}")),
            // The writer of this update is gone. Readers must not repair, because there may be many of them.
            Look::HalfDone(_) => self.update().await?,
            Look::Corrupt => return Err(Fault("inconsistent", "values that do not belong together".into())),
        }
        Ok(())
    }

    async fn look_twice(&self, token: u64) -> Result<Look, Fault> {
        let first = look(&self.access(token, None).await?);
        sleep(Duration::from_millis(10)).await;
        let second = look(&self.access(token, None).await?);
        if first != second {
            return Err(Fault("inconsistent", format!("{first:?} become {second:?} while it read")));
        }
        Ok(second)
    }

    /// Changes the configuration. No other worker is inside meanwhile.
    async fn update(&self) -> Result<(), Fault> {
        let updating = self.locks.write(LOCK).run(async |guard| {
            self.change(guard.fencing_token().into()).await.map_err(|fault| fault.judge(guard.state()))
        });
        updating.await?
    }

    /// First finishes the update of a writer that is gone, then makes one of its own.
    async fn change(&self, token: u64) -> Result<(), Fault> {
        let stored = match look(&self.access(token, None).await?) {
            Look::Whole(version) => version,
            Look::HalfDone(draft) => {
                for (field, value) in steps(draft) {
                    self.access(token, Some((field, &value))).await?;
                }
                (self.tell)(format!("finished {draft} {token}"));
                draft
            }
            Look::Corrupt => return Err(Fault("inconsistent", "values that do not belong together".into())),
        };
        let version = stored + 1;
        // Before the first step, because from here on the update may be stored even if its writer reports nothing more.
        (self.tell)(format!("began {version} {token}"));
        for (taken, (field, value)) in steps(version).into_iter().enumerate() {
            // Draft and version are new, all else is old.
            if taken == 2 && self.hangs() {
                (self.tell)(format!("hangs {version} {token}"));
                // The hold is renewed until the parent kills this worker.
                let stopped = self.stop.clone().changed().await;
                return Err(Fault("trouble", format!("stopped instead of killed: {stopped:?}")));
            }
            self.access(token, Some((field, &value))).await?;
            sleep(Duration::from_millis(3)).await;
        }
        // The resource has accepted each step. So the update counts, whatever becomes of the hold now.
        (self.tell)(format!("updated {version} {token}"));
        Ok(())
    }

    async fn access(&self, token: u64, change: Option<(&str, &str)>) -> Result<Fields, Fault> {
        let fields = self.store.access(Some(token), change).await?;
        fields.ok_or_else(|| Fault("overlap", format!("the resource refused token {token}")))
    }
}
