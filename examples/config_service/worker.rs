//! The work under the locks, which is the part that a service would have. The worker does not know whether locks and
//! configuration are on servers.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{HoldState, HoldWatch, RwLockManager};
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

const CORRUPT: &str = "inconsistent values that do not belong together";

/// Outcome of work. A failure is the event that the parent hears of it.
type Outcome<T> = Result<T, String>;

fn trouble(error: impl Display) -> String {
    format!("trouble {error}").replace('\n', " ")
}

impl Worker {
    /// Works until it is to stop.
    pub(crate) async fn run(self) {
        while self.stop.has_changed().is_ok() {
            let done = if self.hangs() || fastrand::u8(..4) == 0 { self.update().await } else { self.read().await };
            if let Err(event) = done {
                (self.tell)(event);
                sleep(Duration::from_millis(200)).await;
            }
            sleep(Duration::from_millis(fastrand::u64(40..80))).await;
        }
        if let Err(error) = self.locks.close().await {
            (self.tell)(trouble(error));
        }
        (self.tell)("stopped".to_owned());
    }

    fn hangs(&self) -> bool {
        self.hangs_at.is_some_and(|at| at <= Instant::now())
    }

    /// Reads the configuration and uses it for a while. No worker changes it meanwhile.
    async fn read(&self) -> Outcome<()> {
        // If the hold is lost, `run` drops the work where it is, and returns `Lost`.
        let reading = self.locks.read(LOCK).run(async |guard| {
            let first = self.look(&guard.watch()).await?;
            sleep(Duration::from_millis(10)).await;
            let second = self.look(&guard.watch()).await?;
            if first == second { Ok(second) } else { Err(format!("inconsistent {first:?}, {second:?} in one read")) }
        });
        match reading.await.map_err(trouble)?? {
            Look::Whole(version) => (self.tell)(format!("read {version}")),
            // The writer of this update is gone. Readers must not repair, because there may be many of them.
            Look::HalfDone(_) => self.update().await?,
            Look::Corrupt => return Err(CORRUPT.to_owned()),
        }
        Ok(())
    }

    /// Changes the configuration. No other worker is inside meanwhile.
    async fn update(&self) -> Outcome<()> {
        let updating = self.locks.write(LOCK).run(async |guard| self.change(&guard.watch()).await);
        updating.await.map_err(trouble)?
    }

    /// First finishes the update of a writer that is gone, then makes one of its own.
    async fn change(&self, hold: &HoldWatch) -> Outcome<()> {
        let token = hold.fencing_token();
        let stored = match self.look(hold).await? {
            Look::Whole(version) => version,
            Look::HalfDone(draft) => {
                for (field, value) in steps(draft) {
                    self.access(hold, Some((field, &value))).await?;
                }
                (self.tell)(format!("finished {draft} {token}"));
                draft
            }
            Look::Corrupt => return Err(CORRUPT.to_owned()),
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
                return Err(format!("trouble stopped instead of killed: {stopped:?}"));
            }
            self.access(hold, Some((field, &value))).await?;
            sleep(Duration::from_millis(3)).await;
        }
        // The resource has accepted each step. So the update counts, whatever becomes of the hold now.
        (self.tell)(format!("updated {version} {token}"));
        Ok(())
    }

    async fn look(&self, hold: &HoldWatch) -> Outcome<Look> {
        Ok(look(&self.access(hold, None).await?))
    }

    async fn access(&self, hold: &HoldWatch, change: Option<(&str, &str)>) -> Outcome<Fields> {
        let token = hold.fencing_token().into();
        match (self.store.access(Some(token), change).await.map_err(trouble)?, hold.state()) {
            (Some(fields), _) => Ok(fields),
            // Fencing has done its work.
            (None, HoldState::Lost(reason)) => Err(trouble(reason)),
            // Another holder was inside.
            (None, _) => Err(format!("overlap: the resource refused token {token}")),
        }
    }
}
