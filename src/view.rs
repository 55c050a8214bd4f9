//! What `inspect` shows.

use std::time::Duration;

use crate::lease::FencingToken;
use crate::options::PublishedLimits;
use crate::scheme::{Acquisition, Answered, Mode, View};

/// One lock as the server sees it at one moment. For people and dashboards: it may be out of date when it is read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockView {
    /// The lock's name.
    pub name: String,
    /// The last token that was granted or reserved, if the server remembers one: a writer's process reserves a few, one for
    /// each turn among its tasks.
    pub last_token: Option<FencingToken>,
    /// Who holds the lock, writers first. A process counts as one, however many of its tasks share the hold.
    pub holders: Vec<HolderView>,
    /// Who waits in the server's queue, in the order in which they came. A process counts as one for each side.
    pub waiters: Vec<WaiterView>,
}

/// One holder of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HolderView {
    /// The label of the holder's manager; `published client` for one that runs the published scheme.
    pub label: String,
    /// The side it holds.
    pub mode: Mode,
    /// How long it has held the lock, by the server's clock.
    pub age: Duration,
    /// How long the server will keep the hold if it hears nothing more.
    pub remaining: Duration,
}

/// One waiter of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WaiterView {
    /// The label of the waiter's manager.
    pub label: String,
    /// The side it waits for.
    pub mode: Mode,
    /// How long it has waited, by the server's clock.
    pub waiting: Duration,
}

impl LockView {
    /// Whether nobody held the lock.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    pub(crate) fn new(name: &str, answer: Answered<View>, limits: PublishedLimits) -> Self {
        let now_ms = answer.server.as_micros() / 1000;
        let view = answer.value;
        let ours = view.holders.into_iter().map(|holder| HolderView {
            label: Acquisition::label_of(&holder.id).to_owned(),
            mode: holder.mode,
            age: Duration::from_millis(now_ms.saturating_sub(holder.since_ms)),
            remaining: holder.remaining,
        });
        let foreign_write = foreign(Mode::Write, view.foreign_write_ms, limits.write, now_ms);
        let foreign_read = foreign(Mode::Read, view.foreign_read_ms, limits.read, now_ms);
        let waiters = view.waiters.into_iter().map(|waiter| WaiterView {
            label: Acquisition::label_of(&waiter.id).to_owned(),
            mode: waiter.mode,
            waiting: Duration::from_millis(now_ms.saturating_sub(waiter.since_ms)),
        });
        Self {
            name: name.to_owned(),
            last_token: view.token,
            waiters: waiters.collect(),
            holders: foreign_write.into_iter().chain(ours).chain(foreign_read).collect(),
        }
    }
}

/// A client of the published scheme: its stamp is the time of its grant, its limit is ours to know.
fn foreign(mode: Mode, stamp_ms: Option<u64>, limit: Duration, now_ms: u64) -> Option<HolderView> {
    let stamp_ms = stamp_ms?;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let left_ms = stamp_ms.saturating_add(limit_ms).saturating_sub(now_ms);
    (left_ms > 0).then(|| HolderView {
        label: "published client".to_owned(),
        mode,
        age: Duration::from_millis(now_ms.saturating_sub(stamp_ms)),
        remaining: Duration::from_millis(left_ms),
    })
}
