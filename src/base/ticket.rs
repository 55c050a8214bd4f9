//! Ticket of a detached hold: what a process needs to take the hold over.

use std::fmt;
use std::time::Duration;

use crate::base::attempt::AcquisitionId;
use crate::base::duration_text::millis;
use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::lease::FencingToken;
use crate::base::mode::Mode;

/// Layout of a ticket. A process adopts only tickets of its own layout.
const VERSION: u32 = 1;

/// Right to take a detached hold over, once, in this process or another one.
///
/// [`WriteGuard::detach`](crate::WriteGuard::detach) and [`ReadGuard::detach`](crate::ReadGuard::detach) create it,
/// [`adopt_write`](crate::RwLockManager::adopt_write) and [`adopt_read`](crate::RwLockManager::adopt_read) use it. With
/// the feature `serde`, a ticket can be sent as JSON or in another format.
///
/// A process that knows the ticket can take the lock, so treat it as a secret. Its `Debug` output and log lines do not contain
/// the secret part.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use redis_rwlock::{MemoryManager, RwLockManager, Ticket};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// let guard = manager.write("job:7").await?;
/// let ticket: Ticket = guard.detach(Duration::from_secs(60)).await?;
/// println!("{} to {}, with token {}", ticket.name(), ticket.mode(), ticket.fencing_token());
/// assert_eq!(ticket.valid_for(), Duration::from_secs(60));
/// // … another process, which got the ticket with the job …
/// let worker = manager.peer();
/// let guard = worker.adopt_write(ticket).await?;
/// guard.release().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ticket {
    version: u32,
    name: String,
    /// Base of the lock's keys on the server.
    key: String,
    mode: Mode,
    /// Id of the detached hold. Only the ticket has its 128 random bits.
    id: String,
    token: FencingToken,
    valid_for_ms: u64,
}

impl Ticket {
    pub(crate) fn new(key: &Key, mode: Mode, (id, token): (&AcquisitionId, FencingToken), valid_for: Duration) -> Self {
        Self {
            version: VERSION,
            name: key.name().to_owned(),
            key: key.base().to_owned(),
            mode,
            id: id.as_str().to_owned(),
            token,
            valid_for_ms: millis(valid_for),
        }
    }

    /// Returns the lock's name, as the caller of the acquisition gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mode of the detached hold.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns how long the ticket is valid, counted from [`detach`](crate::WriteGuard::detach).
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        Duration::from_millis(self.valid_for_ms)
    }

    /// Returns the fencing token of the detached hold. A writer that adopts the ticket gets a greater one, and a reader
    /// the same one.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the id of the detached hold, if the ticket is for this lock and this mode. The fields may come from
    /// another process, so each of them is checked.
    pub(crate) fn id_for(&self, key: &Key, mode: Mode) -> Result<AcquisitionId> {
        let reason = if self.version != VERSION {
            format!("its version is {}, and this process knows only {VERSION}", self.version)
        } else if self.mode != mode {
            format!("it is for a {} hold: adopt it with `adopt_{}`", self.mode, self.mode)
        } else if self.key != key.base() {
            "it is for another lock or another key prefix: adopt it with a manager of the same options".to_owned()
        } else if let Some(id) = AcquisitionId::of_ticket(&self.id) {
            return Ok(id);
        } else {
            "its id is damaged".to_owned()
        };
        Err(Error::invalid("ticket", reason))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/ticket/tests.rs"]
mod tests;
