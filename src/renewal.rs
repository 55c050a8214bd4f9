//! The one task per manager that renews holds and buries those that are over.
//!
//! The agenda orders all live holds by the moment at which something is due: a renewal, or the local deadline. Renewals
//! that are due travel together, one chunk per route, and no chunk waits for another, so a node that hangs delays
//! nobody else's. The task needs no word from the holders: a new hold wakes it only if it is due earlier than all others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::departure::{Departure, Departures};
use crate::error::LossReason;
use crate::hold::{Grant, Hold, Next};
use crate::lease::Moment;
use crate::scheme::{Attempt, BoxFuture, Renewal, Renewed, Route, Scheme, loss_reason};
use crate::table::Table;

/// The most renewals in one pipeline: larger ones would keep other callers of the node waiting.
const CHUNK_MOST: usize = 128;
/// A node takes about 10 us for a renewal, so one chunk delays others by little more than a round trip takes.
const CHUNK_LEAST: usize = 16;
/// Renewals due within this time travel with the one that is due now.
const COMPANY: Duration = Duration::from_millis(6);
/// Between two chunks for one route, in which its node serves others.
const CHUNK_GAP: Duration = Duration::from_millis(3);
/// The same behind one of the largest chunks: a line that grows all the same would outlast leases.
const CHUNK_GAP_LEAST: Duration = Duration::from_millis(1);
/// Pause before a renewal that was not answered is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The holds of one manager and what is due for them.
#[derive(Debug)]
pub(crate) struct Renewals {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    departures: Arc<Departures>,
    clock: Clock,
    agenda: Mutex<Agenda>,
    /// Something is due earlier than the task knows, or it is to stop.
    wake: Notify,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Agenda {
    due: BTreeMap<(Moment, u64), Arc<Hold>>,
    next: u64,
    /// When the task looks again. An alarm stays until it goes off, also when what it was set for is gone: then it wakes
    /// the task for nothing, once, but meanwhile no later hold need wake it. Locks that are taken and released all the
    /// time would wake it every time.
    alarm: Moment,
    /// The task is looking: it sees what is scheduled before it sets the alarm.
    looking: bool,
}

impl Agenda {
    fn insert(&mut self, hold: Arc<Hold>, at: Moment) {
        self.next += 1;
        hold.agenda_slot.store(self.next, Ordering::Relaxed);
        hold.agenda_moment.store(at.as_nanos(), Ordering::Relaxed);
        self.due.insert((at, self.next), hold);
    }

    fn remove(&mut self, hold: &Hold) -> Option<Arc<Hold>> {
        let at = Moment::from_nanos(hold.agenda_moment.load(Ordering::Relaxed));
        self.due.remove(&(at, hold.agenda_slot.load(Ordering::Relaxed)))
    }
}

/// Holds whose renewal is due at one route. Meanwhile the agenda has each at its deadline, at which it is over.
#[derive(Debug)]
struct Line {
    holds: VecDeque<Arc<Hold>>,
    /// When its next chunk may go.
    next: Moment,
}

/// All lines. If the task ends with its runtime, its successor finds on the agenda who was in them.
struct Lines<'a> {
    renewals: &'a Renewals,
    lines: BTreeMap<Route, Line>,
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        let now = self.renewals.clock.now();
        for hold in self.lines.values().flat_map(|line| &line.holds) {
            self.renewals.look_again(hold, now);
        }
    }
}

/// A chunk that was sent. If the task ends with its runtime before the answer is there, its successor sends it again.
struct Sent {
    renewals: Arc<Renewals>,
    chunk: Vec<Due>,
}

impl Sent {
    fn answered(mut self, attempts: Vec<Attempt<Renewed>>) -> Answers {
        Answers { chunk: std::mem::take(&mut self.chunk), attempts }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let now = self.renewals.clock.now();
        for Due { hold, .. } in &self.chunk {
            if self.renewals.agenda.lock().remove(hold).is_some() {
                hold.unanswered(now.after(RETRY_PAUSE));
                self.renewals.watch(hold, now);
            }
        }
    }
}

/// A hold that is to be renewed, and the lease to ask for.
struct Due {
    hold: Arc<Hold>,
    lease: Duration,
}

/// The answers to one chunk.
struct Answers {
    chunk: Vec<Due>,
    attempts: Vec<Attempt<Renewed>>,
}

/// The size of chunks: small ones as long as they keep up, since a node serves one to its end before anybody else.
fn chunk_most(due: usize) -> usize {
    (due / 8).clamp(CHUNK_LEAST, CHUNK_MOST)
}

impl Renewals {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, table: Arc<Table>, departures: Arc<Departures>) -> Self {
        let clock = scheme.clock();
        Self {
            scheme,
            table,
            departures,
            clock,
            agenda: Mutex::new(Agenda { due: BTreeMap::new(), next: 0, alarm: Moment::NEVER, looking: false }),
            wake: Notify::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Looks after a hold until it is over or [`Renewals::forget`]ten.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, now: Moment) {
        match hold.next(now) {
            Next::At(at) => self.schedule(hold, at),
            // Found by the task, which buries it.
            Next::Lost(_) => self.schedule(hold, now),
            Next::Released => {}
        }
    }

    fn schedule(&self, hold: &Arc<Hold>, at: Moment) {
        let mut agenda = self.agenda.lock();
        agenda.insert(Arc::clone(hold), at);
        let wakes = at < agenda.alarm && !agenda.looking;
        agenda.alarm = agenda.alarm.min(at);
        drop(agenda);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// What is due for a hold has changed.
    pub(crate) fn look_again(&self, hold: &Arc<Hold>, now: Moment) {
        // Not there: it is over, or the task has it in hand and looks itself.
        if self.agenda.lock().remove(hold).is_some() {
            self.watch(hold, now);
        }
    }

    pub(crate) fn forget(&self, hold: &Hold) {
        self.agenda.lock().remove(hold);
    }

    /// The task ends, the holds with their leases.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.agenda.lock().due.is_empty()
    }

    /// The task. Ends when it is stopped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut lines = Lines { renewals: &self, lines: BTreeMap::new() };
        let mut underway: FuturesUnordered<BoxFuture<'static, Answers>> = FuturesUnordered::new();
        while !self.stopped.load(Ordering::Acquire) {
            let now = self.clock.now();
            self.line_up(&mut lines.lines, now);
            for (route, line) in &mut lines.lines {
                if let Some(chunk) = self.next_chunk(route, line, now) {
                    underway.push(Arc::clone(&self).send(route.clone(), chunk));
                }
            }
            lines.lines.retain(|_, line| !line.holds.is_empty() || line.next > now);
            let next_chunk = lines.lines.values().filter(|line| !line.holds.is_empty()).map(|line| line.next).min();
            let alarm = self.set_alarm().min(next_chunk.unwrap_or(Moment::NEVER));
            // In any order: each round looks at all that is due, whatever ended the wait.
            tokio::select! {
                biased;
                Some(answers) = underway.next() => self.take_answers(answers),
                () = self.wake.notified() => {}
                () = self.clock.sleep_until(alarm) => {}
            }
        }
    }

    fn set_alarm(&self) -> Moment {
        let mut agenda = self.agenda.lock();
        let next = agenda.due.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
        agenda.alarm = agenda.alarm.min(next);
        agenda.looking = false;
        agenda.alarm
    }

    /// Takes what is due from the agenda: renewals go into the line of their route, what is over is buried.
    fn line_up(&self, lines: &mut BTreeMap<Route, Line>, now: Moment) {
        for hold in self.pop_due(now) {
            match hold.next(now) {
                Next::At(_) if hold.is_renewal_due(now.after(COMPANY)) => {
                    let route = self.scheme.route(hold.key());
                    let line = lines.entry(route).or_insert_with(|| Line { holds: VecDeque::new(), next: now });
                    self.schedule(&hold, hold.deadline());
                    line.holds.push_back(hold);
                }
                Next::At(at) => self.schedule(&hold, at),
                Next::Lost(reason) => self.bury(&hold, reason),
                Next::Released => {}
            }
        }
    }

    fn next_chunk(&self, route: &Route, line: &mut Line, now: Moment) -> Option<Vec<Due>> {
        if line.holds.is_empty() || line.next > now {
            return None;
        }
        let most = chunk_most(line.holds.len()).min(line.holds.len());
        let mut chunk = Vec::with_capacity(most);
        for hold in line.holds.drain(..most) {
            // Its slot has another owner since it came into the line: there is another line for it.
            if self.scheme.route(hold.key()) != *route {
                self.look_again(&hold, now);
                continue;
            }
            match hold.begin_renewal(now, now.after(COMPANY)) {
                Some(lease) => chunk.push(Due { hold, lease }),
                // Over, or no longer due: it has changed while it was in the line.
                None => self.look_again(&hold, now),
            }
        }
        line.next = now.after(if most < CHUNK_MOST { CHUNK_GAP } else { CHUNK_GAP_LEAST });
        (!chunk.is_empty()).then_some(chunk)
    }

    fn pop_due(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut agenda = self.agenda.lock();
        agenda.looking = true;
        if agenda.alarm <= now {
            agenda.alarm = Moment::NEVER; // it has gone off
        }
        if agenda.due.first_key_value().is_none_or(|((at, _), _)| *at > now) {
            return Vec::new();
        }
        let later = agenda.due.split_off(&(now.after(COMPANY), u64::MAX));
        std::mem::replace(&mut agenda.due, later).into_values().collect()
    }

    /// Sends one chunk. The agenda has its holds at their deadlines, beyond which no answer is waited for.
    fn send(self: Arc<Self>, route: Route, chunk: Vec<Due>) -> BoxFuture<'static, Answers> {
        let mut batch = Vec::with_capacity(chunk.len());
        for Due { hold, lease } in &chunk {
            batch.push(Renewal { key: Arc::clone(hold.key()), id: hold.id().clone(), lease: *lease });
        }
        let sent = Sent { renewals: Arc::clone(&self), chunk };
        Box::pin(async move {
            let attempts = self.scheme.renew(&route, &batch).await;
            sent.answered(attempts)
        })
    }

    fn take_answers(&self, answers: Answers) {
        let now = self.clock.now();
        for (Due { hold, lease }, attempt) in answers.chunk.iter().zip(answers.attempts) {
            // Released meanwhile: nobody looks after it any more.
            if self.agenda.lock().remove(hold).is_none() {
                continue;
            }
            match attempt {
                Ok(answer) => match answer.value {
                    Renewed::Renewed { remaining } => {
                        hold.renewed(Grant { sent: answer.sent, remaining, asked: *lease }, now);
                    }
                    Renewed::Lost { forced } => {
                        hold.lose(loss_reason(hold.token(), forced));
                    }
                },
                Err(failure) => {
                    tracing::debug!(lock = hold.key().name(), ?failure, "a renewal was not answered");
                    hold.unanswered(now.after(RETRY_PAUSE));
                }
            }
            self.watch(hold, now);
        }
    }

    /// A hold was lost: local waiters may ask the server, and the server is told, should it still know the hold.
    fn bury(&self, hold: &Arc<Hold>, reason: LossReason) {
        tracing::warn!(lock = hold.key().name(), mode = %hold.mode(), token = hold.token().as_u64(), %reason, "lost a hold");
        self.table.ended(hold);
        self.departures.in_background(Departure::of(hold), None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::{Engine, Held};
    use crate::options::{Options, Overrides, Terms};
    use crate::pursuit::{Patience, acquire};
    use crate::scheme::Mode;
    use crate::scheme::memory::{Memory, Store};
    use crate::scheme::staged::Staged;

    const LEASE: Duration = Duration::from_secs(3);
    const LOCKS: usize = 4_000;

    async fn take(engine: &Arc<Engine>, name: &str) -> Held {
        let overrides = Overrides { lease: Some(LEASE), ..Overrides::default() };
        let terms = Terms::new(engine.options(), overrides).expect("valid");
        let taken = acquire(engine, engine.key(name).expect("valid"), Mode::Write, terms, Patience::Wait).await;
        taken.expect("answered").expect("granted")
    }

    /// Locks that are taken in one moment: all their renewals are due within a quarter of an interval.
    async fn taken_together(scheme: &Arc<Staged>) -> (Arc<Engine>, Vec<Held>) {
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(scheme), Options::default()));
        let mut held = Vec::new();
        for lock in 0..LOCKS {
            held.push(take(&engine, &format!("lock-{lock}")).await);
        }
        (engine, held)
    }

    fn staged() -> Arc<Staged> {
        Arc::new(Staged::new(Memory::new(Arc::new(Store::new()))))
    }

    #[tokio::test(start_paused = true)]
    async fn node_is_left_to_others_between_chunks() {
        let scheme = staged();
        let (_engine, _held) = taken_together(&scheme).await;
        tokio::time::sleep(LEASE / 2).await;
        let chunks = scheme.chunks();
        for pair in chunks.windows(2) {
            let gap = pair[1].0.since(pair[0].0);
            assert!(gap >= CHUNK_GAP, "a chunk {gap:?} after another");
        }
        let sizes: Vec<_> = chunks.iter().map(|(_, ids)| ids.len()).collect();
        assert!(sizes.iter().all(|&size| size <= CHUNK_MOST), "{sizes:?}");
        let renewed: BTreeSet<_> = chunks.iter().flat_map(|(_, ids)| ids).map(|id| id.as_str()).collect();
        assert_eq!(renewed.len(), LOCKS, "each was renewed within half of its lease");
        assert_eq!(sizes.iter().sum::<usize>(), LOCKS, "and once");
    }

    #[test]
    fn what_is_due_or_under_way_when_the_runtime_ends_is_renewed_on_the_next() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (first, second) = (runtime(), runtime());
        let (_word, answer) = oneshot::channel();
        let (scheme, (engine, held)) = first.block_on(async {
            let scheme = staged();
            scheme.next_renewals(answer);
            let taken = taken_together(&scheme).await;
            while scheme.chunks().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (scheme, taken)
        });
        drop(first);
        assert!(scheme.chunks().iter().map(|(_, ids)| ids.len()).sum::<usize>() < LOCKS, "there is more to renew");
        second.block_on(async {
            let _other = take(&engine, "another").await;
            tokio::time::sleep(LEASE).await;
        });
        let now = scheme.memory.clock().now();
        let lost = held.iter().filter(|held| !matches!(held.hold().next(now), Next::At(_))).count();
        assert_eq!(lost, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn released_in_the_line_is_not_renewed() {
        let scheme = staged();
        let (_engine, held) = taken_together(&scheme).await;
        while scheme.chunks().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // So many are due by now that most of them are in the line.
        tokio::time::sleep(LEASE / 24).await;
        for held in held {
            held.release().await.expect("released");
        }
        let sent = scheme.chunks().len();
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(scheme.chunks().len(), sent, "nothing is renewed any more");
    }
}
