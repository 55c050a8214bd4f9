//! Search for possible deadlocks: cycles of waits among processes, and among the tasks of this process.
//!
//! The servers show holders and waiters of all locks, and the cells of this process show the waits that no server knows.
//! Servers know processes and no tasks. So a cycle among processes is only a possible deadlock.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::base::deadlock::{Cycle, CycleWait};
use crate::base::error::{Error, Refusal, Result};
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::reentry::OwnerId;
use crate::engine::Engine;
use crate::lock::hold::Hold;
use crate::lock::local_waits::{LocalWait, LocalWaits};
use crate::store::{Ability, AcquisitionId, Answered, Mode, View};

/// Time between the two looks in which a cycle has to be seen.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Limit of looks at locks that are in progress at the same time.
const AT_ONCE: usize = 32;

/// Node in the graph of waits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WaitNode {
    /// Process, by the id of its manager. It waits for all that one of its acquisitions waits for.
    Process(String),
    /// Acquisition that waits at a server, by its id. It waits at this lock only, whatever else its process waits for.
    Waiter(String),
    /// Task of this process, by a number of its own.
    Task(usize),
}

/// Wait for a client that has to go first.
#[derive(Clone, Debug)]
struct Wait {
    /// Lock, and the ids of both clients. Another wait never has the same ids.
    ids: (String, String, String),
    waiter: WaitNode,
    blocker: WaitNode,
    shown: CycleWait,
}

impl Engine {
    /// Returns the possible deadlocks: the cycles that two looks one second apart have shown.
    pub(crate) async fn deadlocks(&self) -> Result<Vec<Cycle>> {
        if let Some(reason) = self.scheme.lacks(Ability::Waiters) {
            return Err(Error::invalid("deadlocks", reason));
        }
        let first = self.waits(self.names().await?).await?;
        let suspects = cycles(&first);
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        self.clock.sleep_until(self.now().after(BETWEEN_LOOKS)).await;
        let locks: BTreeSet<String> = suspects.into_iter().flatten().map(|wait| first[wait].ids.0.clone()).collect();
        // A waiter that came first and holds the lock now has had its turn.
        let seen: HashSet<_> = first.into_iter().map(|wait| (wait.ids, wait.shown.is_held)).collect();
        let mut second = self.waits(locks.into_iter().collect()).await?;
        second.retain(|wait| seen.contains(&(wait.ids.clone(), wait.shown.is_held)));
        let shown = |cycle: Vec<usize>| Cycle { waits: cycle.into_iter().map(|n| second[n].shown.clone()).collect() };
        Ok(cycles(&second).into_iter().map(shown).collect())
    }

    /// Returns the waits for these locks at the servers, and all waits within this process.
    async fn waits(&self, names: Vec<String>) -> Result<Vec<Wait>> {
        let looks = stream::iter(names).map(|name| self.waits_at_server(name)).buffer_unordered(AT_ONCE);
        let mut waits: Vec<Wait> = looks.try_collect::<Vec<_>>().await?.concat();
        waits.extend(self.waits_here());
        Ok(waits)
    }

    async fn waits_at_server(&self, name: String) -> Result<Vec<Wait>> {
        let Ok(key) = self.key(&name) else { return Ok(Vec::new()) };
        match self.look(&key).await {
            Ok(answer) => Ok(self.waits_in(&key, &answer)),
            // The key has no lock of this version.
            Err(Error::Refused { refusal: Refusal::ForeignKey | Refusal::OtherVersion | Refusal::Other, .. }) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    fn waits_in(&self, key: &Key, answer: &Answered<View>) -> Vec<Wait> {
        let (view, now_ms) = (&answer.value, answer.server.as_micros() / 1000);
        // A cached hold that no guard uses is given up when it is recalled. Of other processes the server does not know
        // which hold that is: an unused one is gone in the second look.
        let is_used = |id: &str| self.guards_of(key, id).is_none_or(|guards| guards.many > 0 && !guards.is_idle);
        let held = view.holders.iter().filter(|holder| is_used(&holder.id));
        let holders: Vec<Client<'_>> =
            held.map(|holder| Client::new(&holder.id, holder.mode, holder.since_ms, now_ms)).collect();
        let waiters: Vec<Client<'_>> =
            view.waiters.iter().map(|waiter| Client::new(&waiter.id, waiter.mode, waiter.since_ms, now_ms)).collect();
        let mut waits = Vec::new();
        for (place, waiter) in waiters.iter().enumerate() {
            let ahead = ahead_of(&holders, &waiters, place).map(|blocker| (blocker, false));
            let inside = holders.iter().filter(|holder| holder.mode.excludes(waiter.mode)).map(|holder| (holder, true));
            waits.extend(
                inside.chain(ahead).flat_map(|(blocker, is_held)| waiter.edges_to(blocker, key.name(), is_held)),
            );
        }
        waits
    }

    /// Returns the waits among tasks of this process.
    fn waits_here(&self) -> Vec<Wait> {
        let (mut tasks, mut waits) = (Vec::new(), Vec::new());
        let now = self.now();
        for (key, local) in self.table.local_waits() {
            for wait in &local.waits {
                waits.extend(self.waits_of(wait, &key, &local, now, &mut tasks));
            }
        }
        waits
    }

    fn waits_of(
        &self,
        wait: &LocalWait,
        key: &Key,
        local: &LocalWaits<Hold>,
        now: Moment,
        tasks: &mut Vec<OwnerId>,
    ) -> Vec<Wait> {
        let mut blockers: Vec<(String, OwnerId, Mode, Duration, bool)> = Vec::new();
        for (hold, owners) in local.holds.iter().filter(|(hold, _)| hold.mode().excludes(wait.mode)) {
            let age = now.since(hold.began());
            blockers.extend(
                owners
                    .iter()
                    .map(|owner| (format!("{} {owner:?}", hold.id().as_str()), *owner, hold.mode(), age, true)),
            );
        }
        let is_ahead =
            |other: &&LocalWait| wait.mode == Mode::Read && other.mode == Mode::Write && other.number < wait.number;
        for other in local.waits.iter().filter(is_ahead) {
            blockers.push((format!("waiter {}", other.number), other.owner, other.mode, now.since(other.since), false));
        }
        let mut place = |owner| WaitNode::Task(number_of(tasks, owner));
        let waiter = place(wait.owner);
        let waits = blockers.into_iter().map(|(id, owner, holder_mode, age, is_held)| Wait {
            ids: (key.name().to_owned(), format!("waiter {}", wait.number), id),
            waiter: waiter.clone(),
            blocker: place(owner),
            shown: CycleWait {
                lock: key.name().to_owned(),
                waiter: self.label.clone(),
                mode: wait.mode,
                waiting: now.since(wait.since),
                holder: self.label.clone(),
                holder_mode,
                age,
                is_held,
                is_local: true,
            },
        });
        waits.collect()
    }
}

/// Returns the number of a task, which is its index in `tasks`.
fn number_of(tasks: &mut Vec<OwnerId>, owner: OwnerId) -> usize {
    tasks.iter().position(|task| *task == owner).unwrap_or_else(|| {
        tasks.push(owner);
        tasks.len() - 1
    })
}

/// Holder or waiter, as a server shows it.
#[derive(Clone, Copy, Debug)]
struct Client<'a> {
    id: &'a str,
    mode: Mode,
    since: Duration,
}

impl<'a> Client<'a> {
    fn new(id: &'a str, mode: Mode, since_ms: u64, now_ms: u64) -> Self {
        Self { id, mode, since: Duration::from_millis(now_ms.saturating_sub(since_ms)) }
    }

    /// Returns the id of the client's manager. `None` for clients that wait for nothing: the rest of a hold, whose id
    /// begins with `@`, and clients without an id.
    fn manager(&self) -> Option<&'a str> {
        let (manager, _) = self.id.split_once('.')?;
        (!manager.starts_with('@')).then_some(manager)
    }

    /// Returns the wait for a client of another process, once as that of the process and once as that of the
    /// acquisition. Tasks of one process may wait for each other without a deadlock, and the server does not know them.
    fn edges_to(&self, blocker: &Self, lock: &str, is_held: bool) -> Vec<Wait> {
        let (Some(waiter), Some(other)) = (self.manager(), blocker.manager()) else { return Vec::new() };
        if waiter == other {
            return Vec::new();
        }
        let wait = Wait {
            ids: (lock.to_owned(), self.id.to_owned(), blocker.id.to_owned()),
            waiter: WaitNode::Process(waiter.to_owned()),
            // A waiter that comes first does not hold this lock, and blocks others only until its turn.
            blocker: match is_held {
                true => WaitNode::Process(other.to_owned()),
                false => WaitNode::Waiter(blocker.id.to_owned()),
            },
            shown: CycleWait {
                lock: lock.to_owned(),
                waiter: AcquisitionId::label_of(self.id).to_owned(),
                mode: self.mode,
                waiting: self.since,
                holder: AcquisitionId::label_of(blocker.id).to_owned(),
                holder_mode: blocker.mode,
                age: blocker.since,
                is_held,
                is_local: false,
            },
        };
        vec![Wait { waiter: WaitNode::Waiter(self.id.to_owned()), ..wait.clone() }, wait]
    }
}

/// Returns the waiters that enter before the waiter at `place`, by the rules of phases. A writer inside is followed by
/// all waiting readers, and readers inside by the first waiting writer.
fn ahead_of<'a>(
    holders: &[Client<'_>],
    waiters: &'a [Client<'a>],
    place: usize,
) -> impl Iterator<Item = &'a Client<'a>> {
    let is_writer = |client: &Client<'_>| client.mode == Mode::Write;
    let writer_inside = holders.iter().any(is_writer);
    let first_writer = waiters.iter().position(is_writer);
    let is_ahead = move |other: usize| match (waiters[place].mode, waiters[other].mode) {
        (Mode::Read, Mode::Write) => !writer_inside && first_writer == Some(other),
        (Mode::Read, Mode::Read) => false,
        (Mode::Write, Mode::Write) => other < place,
        (Mode::Write, Mode::Read) => writer_inside || first_writer != Some(place),
    };
    waiters.iter().enumerate().filter(move |(other, _)| is_ahead(*other)).map(|(_, waiter)| waiter)
}

/// Returns cycles of waits, each as the indices of its waits. Each place that is in a cycle is in at least one of them.
fn cycles(waits: &[Wait]) -> Vec<Vec<usize>> {
    let mut by_waiter: BTreeMap<&WaitNode, Vec<usize>> = BTreeMap::new();
    for (n, wait) in waits.iter().enumerate() {
        by_waiter.entry(&wait.waiter).or_default().push(n);
    }
    let (mut found, mut covered) = (Vec::new(), BTreeSet::<WaitNode>::new());
    for start in by_waiter.keys() {
        if !covered.contains(*start)
            && let Some(cycle) = shortest_cycle(waits, &by_waiter, start)
        {
            let (waits, acquisition) = (cycle.iter().map(|n| &waits[*n]), |wait: &Wait| wait.ids.1.clone());
            covered.extend(waits.flat_map(|wait| [wait.waiter.clone(), WaitNode::Waiter(acquisition(wait))]));
            found.push(cycle);
        }
    }
    found
}

/// Returns the shortest cycle through `start`, by a search in breadth.
fn shortest_cycle(waits: &[Wait], by_waiter: &BTreeMap<&WaitNode, Vec<usize>>, start: &WaitNode) -> Option<Vec<usize>> {
    // Wait by which the search has reached a place.
    let mut reached: BTreeMap<&WaitNode, usize> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(place) = next.pop_front() {
        for &n in by_waiter.get(place).into_iter().flatten() {
            let blocker = &waits[n].blocker;
            if blocker == start {
                return Some(path_to(waits, &reached, start, n));
            }
            if !reached.contains_key(blocker) {
                reached.insert(blocker, n);
                next.push_back(blocker);
            }
        }
    }
    None
}

/// Returns the waits from `start` up to the wait `last`.
fn path_to(waits: &[Wait], reached: &BTreeMap<&WaitNode, usize>, start: &WaitNode, last: usize) -> Vec<usize> {
    let mut path = vec![last];
    while let Some(first) = path.last().map(|n| &waits[*n].waiter).filter(|waiter| *waiter != start) {
        path.push(reached[first]);
    }
    path.reverse();
    path
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/deadlocks/tests.rs"]
mod tests;
