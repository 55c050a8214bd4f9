//! Views of locks, which `inspect` returns.

use std::fmt;
use std::time::Duration;

use crate::base::lease::{FencingToken, ServerTime};
use crate::base::options::TimestampClients;
use crate::store::{AcquisitionId, Answered, Mode, View};

/// State of one lock at one moment, as the server sees it. The view is for people and dashboards. It may be out of date
/// when they read it.
///
/// With the cargo feature `serde` the view can be serialized. Each time is a text for people and a number of
/// milliseconds for programs: `"age": "1.2s"`, `"age_ms": 1204`. [`inspect`](crate::RwLockManager::inspect) has an
/// example.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockView {
    /// Name of the lock.
    pub name: String,
    /// Last token that was granted or reserved, if the server has one. The process of a writer reserves a few tokens,
    /// one for each writer that may follow by a hand-off.
    pub last_token: Option<FencingToken>,
    /// Holders of the lock, writers first. A process counts as one holder, however many of its tasks share the hold.
    pub holders: Vec<HolderView>,
    /// Number of further holders in the server's record, dead ones included. A view has at most a hundred holders and
    /// waiters.
    pub more_holders: usize,
    /// Waiters in the server's queue, in the order of their arrival. A process counts as one waiter for each side.
    pub waiters: Vec<WaiterView>,
    /// Number of further waiters in the server's record, dead ones included.
    pub more_waiters: usize,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) seen: Seen,
}

/// Answer of the server, from which the view was made. It also has the ids of the holds.
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
        // The other fields of the view show this already.
        f.write_str("…")
    }
}

/// Holder of a lock: a process, however many of its tasks share the hold.
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
    /// Label of the holder's manager, or `published client` for a client of the timestamp scheme.
    pub label: String,
    /// Side of the lock that the holder has.
    pub mode: Mode,
    /// True if the holder is the manager that made this view.
    pub is_ours: bool,
    /// Number of guards of this manager that share the hold, each nested guard counted. It is 0 for the holds of other
    /// managers, since only they know their guards. It is also 0 for a hold of this manager that has no guard and is
    /// being released.
    pub guards: usize,
    /// True if the process may only cache the hold ([`cache_for`](crate::Builder::cache_for)): no guard uses the hold,
    /// and the hold stays until another process wants the lock. For a hold of this manager, the value is exact. For a
    /// hold of another manager, `true` means that one of the lock's holds may be cached. The server does not know which
    /// of them.
    pub cached: bool,
    /// True if the holder is done and its lock *rests*: no guard is inside, and the lock stays taken for
    /// [`remaining`](HolderView::remaining), as [`at_least`](crate::Acquire::at_least) asked for.
    pub resting: bool,
    /// True if the hold is *detached*: no guard is inside, and the lock stays taken for
    /// [`remaining`](HolderView::remaining), or until a guard takes the hold over with its [`Ticket`](crate::Ticket).
    pub detached: bool,
    /// Time since the grant, by the server's clock.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::age"))]
    pub age: Duration,
    /// Time for which the server will keep the hold without a further renewal.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::remaining"))]
    pub remaining: Duration,
    /// [Note](crate::Acquire::note) of the hold. The text may contain any character, so escape it before you print it.
    pub note: Option<String>,
}

/// Waiter of a lock, as [`inspect`](crate::RwLockManager::inspect) shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WaiterView {
    /// Label of the waiter's manager.
    pub label: String,
    /// Side of the lock for which the waiter waits.
    pub mode: Mode,
    /// Time since the waiter entered the queue, by the server's clock.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::waiting"))]
    pub waiting: Duration,
}

/// Guards of one manager that share a hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guards {
    pub(crate) many: usize,
    /// True if the hold is cached and no guard uses it.
    pub(crate) is_idle: bool,
}

impl LockView {
    /// Returns true if the lock had no holder when [`inspect`](crate::RwLockManager::inspect) asked the server.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.more_holders == 0
    }

    /// Makes a view of the server's answer. `guards` returns the guards of this manager that share the hold with a
    /// given id. It returns `None` if the hold belongs to another manager.
    pub(crate) fn new(
        name: &str,
        seen: Seen,
        limits: TimestampClients,
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
    /// Returns the holders of a lock, writers first, with the ids of their holds. Clients of the timestamp scheme have
    /// no id.
    pub(crate) fn all(
        seen: &Seen,
        limits: TimestampClients,
        guards: impl Fn(&str) -> Option<Guards>,
    ) -> Vec<(Option<&str>, Self)> {
        let now_ms = seen.at.as_micros() / 1000;
        let view = &seen.view;
        let ours = view.holders.iter().map(|holder| {
            let guards = guards(&holder.id);
            let shown = Self {
                mode: holder.mode,
                cached: guards
                    .map_or(view.is_recallable && !AcquisitionId::is_detached(&holder.id), |guards| guards.is_idle),
                age: Duration::from_millis(now_ms.saturating_sub(holder.since_ms)),
                remaining: holder.remaining,
                note: holder.note.clone(),
                ..Self::unseen_reader(&holder.id, guards)
            };
            (Some(&*holder.id), shown)
        });
        let foreign_write = foreign(Mode::Write, view.client_write_ms, limits.write, now_ms);
        let foreign_read = foreign(Mode::Read, view.client_read_ms, limits.read, now_ms);
        let nameless = |holder| (None, holder);
        foreign_write.map(nameless).into_iter().chain(ours).chain(foreign_read.map(nameless)).collect()
    }

    /// Makes the view of a reader's hold that a force ended and that the earlier `inspect` had not shown. Only the id
    /// of the hold is known.
    pub(crate) fn unseen_reader(id: &str, guards: Option<Guards>) -> Self {
        Self {
            label: AcquisitionId::label_of(id).to_owned(),
            mode: Mode::Read,
            resting: AcquisitionId::before_rest(id).is_some(),
            detached: AcquisitionId::is_detached(id),
            is_ours: guards.is_some(),
            guards: guards.unwrap_or_default().many,
            cached: guards.is_some_and(|guards| guards.is_idle),
            age: Duration::ZERO,
            remaining: Duration::ZERO,
            note: None,
        }
    }
}

/// Makes the view of a client of the timestamp scheme, or returns `None` if the timestamp does not count any more. The
/// timestamp `stamp_ms` is the time of the client's grant. `limit` is the time for which a timestamp counts, by the
/// options of this manager.
fn foreign(mode: Mode, stamp_ms: Option<u64>, limit: Duration, now_ms: u64) -> Option<HolderView> {
    let stamp_ms = stamp_ms?;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX - 1);
    // For timestamp clients, a timestamp still counts in the millisecond in which it reaches the limit.
    let left_ms = stamp_ms.saturating_add(limit_ms + 1).saturating_sub(now_ms);
    (left_ms > 0).then(|| HolderView {
        label: "published client".to_owned(),
        mode,
        is_ours: false,
        guards: 0,
        cached: false,
        resting: false,
        detached: false,
        age: Duration::from_millis(now_ms.saturating_sub(stamp_ms)),
        remaining: Duration::from_millis(left_ms),
        note: None,
    })
}
