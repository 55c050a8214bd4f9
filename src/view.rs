//! What `inspect` shows.

use std::fmt;
use std::time::Duration;

use crate::lease::{FencingToken, ServerTime};
use crate::options::PublishedLimits;
use crate::scheme::{AcquisitionId, Answered, Mode, View};

/// One lock as the server sees it at one moment. For people and dashboards: it may be out of date when it is read.
///
/// With the cargo feature `serde` it can be serialized, with times as people write them and in milliseconds, to compare:
/// `"age": "1.2s"`, `"age_ms": 1204`.
/// [`inspect`](crate::RwLockManager::inspect) has an example.
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
    /// How many more are recorded at the server, dead ones too: a look shows a hundred holders and waiters at most.
    pub more_holders: usize,
    /// Who waits in the server's queue, in the order in which they came. A process counts as one for each side.
    pub waiters: Vec<WaiterView>,
    /// How many more wait, dead ones too.
    pub more_waiters: usize,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) seen: Seen,
}

/// Answer of the server that a view shows, with the ids of the holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    at: ServerTime,
    pub(crate) view: View,
}

impl From<Answered<View>> for Seen {
    fn from(answer: Answered<View>) -> Self {
        Self { at: answer.server, view: answer.value }
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The view beside it says the same for people.
        f.write_str("…")
    }
}

/// One holder of a lock: a process, however many of its tasks are inside.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let here = MemoryManager::new();
/// let (first, second) = (here.read("cfg").await?, here.read("cfg").await?);
/// let holder = &here.inspect("cfg").await?.holders[0];
/// assert_eq!((holder.is_ours, holder.guards), (true, 2));
/// let holder = &here.peer().inspect("cfg").await?.holders[0];
/// assert_eq!((holder.is_ours, holder.guards), (false, 0));
/// # drop((first, second));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HolderView {
    /// The label of the holder's manager; `published client` for one that runs the published scheme.
    pub label: String,
    /// The side it holds.
    pub mode: Mode,
    /// Whether it is the manager that was asked.
    pub is_ours: bool,
    /// How many guards of that manager share the hold, nested ones each. 0 for the holds of others, of which only they know,
    /// and for one of ours that nobody has any more and that is being given back.
    pub guards: usize,
    /// Whether its process may not be inside, and keeps the hold until somebody wants it
    /// ([`idle_hold`](crate::Builder::idle_hold)). Of a hold of ours this is exact. Of the others it says that one of them may
    /// be such a hold: which one, only their processes know.
    pub kept: bool,
    /// How long it has held the lock, by the server's clock.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::span::json::age"))]
    pub age: Duration,
    /// How long the server will keep the hold if it hears nothing more.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::span::json::remaining"))]
    pub remaining: Duration,
}

/// One waiter of a lock, as [`inspect`](crate::RwLockManager::inspect) shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WaiterView {
    /// The label of the waiter's manager.
    pub label: String,
    /// The side it waits for.
    pub mode: Mode,
    /// How long it has waited, by the server's clock.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::span::json::waiting"))]
    pub waiting: Duration,
}

/// Who of one manager shares a hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guards {
    pub(crate) many: usize,
    /// Nobody, and it stays until somebody does.
    pub(crate) is_idle: bool,
}

impl LockView {
    /// Whether nobody held the lock, when [`inspect`](crate::RwLockManager::inspect) looked.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.more_holders == 0
    }

    /// `guards` tells of an id who of this manager shares its hold, and `None` if it is not this manager's.
    pub(crate) fn new(
        name: &str,
        seen: Seen,
        limits: PublishedLimits,
        guards: impl Fn(&str) -> Option<Guards>,
    ) -> Self {
        let now_ms = seen.at.as_micros() / 1000;
        let view = &seen.view;
        let waiters = view.waiters.iter().map(|waiter| WaiterView {
            label: AcquisitionId::label_of(&waiter.id).to_owned(),
            mode: waiter.mode,
            waiting: Duration::from_millis(now_ms.saturating_sub(waiter.since_ms)),
        });
        Self {
            name: name.to_owned(),
            last_token: view.token,
            more_holders: view.more_holders,
            more_waiters: view.more_waiters,
            waiters: waiters.collect(),
            holders: HolderView::all(&seen, limits, guards).into_iter().map(|(_, holder)| holder).collect(),
            seen,
        }
    }
}

impl HolderView {
    /// Who holds a lock, writers first, with their ids. Clients of the published scheme have none.
    pub(crate) fn all(
        seen: &Seen,
        limits: PublishedLimits,
        guards: impl Fn(&str) -> Option<Guards>,
    ) -> Vec<(Option<&str>, Self)> {
        let now_ms = seen.at.as_micros() / 1000;
        let view = &seen.view;
        let ours = view.holders.iter().map(|holder| {
            let guards = guards(&holder.id);
            let shown = Self {
                mode: holder.mode,
                kept: guards.map_or(view.is_marked, |guards| guards.is_idle),
                age: Duration::from_millis(now_ms.saturating_sub(holder.since_ms)),
                remaining: holder.remaining,
                ..Self::unseen_reader(&holder.id, guards)
            };
            (Some(&*holder.id), shown)
        });
        let foreign_write = foreign(Mode::Write, view.foreign_write_ms, limits.write, now_ms);
        let foreign_read = foreign(Mode::Read, view.foreign_read_ms, limits.read, now_ms);
        let nameless = |holder| (None, holder);
        foreign_write.map(nameless).into_iter().chain(ours).chain(foreign_read.map(nameless)).collect()
    }

    /// A reader of which only the id is known.
    pub(crate) fn unseen_reader(id: &str, guards: Option<Guards>) -> Self {
        Self {
            label: AcquisitionId::label_of(id).to_owned(),
            mode: Mode::Read,
            is_ours: guards.is_some(),
            guards: guards.unwrap_or_default().many,
            kept: guards.is_some_and(|guards| guards.is_idle),
            age: Duration::ZERO,
            remaining: Duration::ZERO,
        }
    }
}

/// A client of the published scheme: its stamp is the time of its grant, its limit is ours to know.
fn foreign(mode: Mode, stamp_ms: Option<u64>, limit: Duration, now_ms: u64) -> Option<HolderView> {
    let stamp_ms = stamp_ms?;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX - 1);
    // At its limit it still counts.
    let left_ms = stamp_ms.saturating_add(limit_ms + 1).saturating_sub(now_ms);
    (left_ms > 0).then(|| HolderView {
        label: "published client".to_owned(),
        mode,
        is_ours: false,
        guards: 0,
        kept: false,
        age: Duration::from_millis(now_ms.saturating_sub(stamp_ms)),
        remaining: Duration::from_millis(left_ms),
    })
}
