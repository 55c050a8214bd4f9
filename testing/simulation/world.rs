//! World of a run, with one server, its network, its clock, and all faults. One seed determines all of it.

mod network;
mod notifications;
mod parcel;
mod recalls;
mod replica;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use notifications::Unsubscribe;
use notifications::{Message, ProcessLink, Subscriber};
pub(super) use parcel::{Answer, Delivery, Fates, Parcel, operate};
use recalls::ListeningProcess;

use super::gate::Gate;
use super::history::{
    Attempt, Event, Guard, Held, History, Id, Lock, Micros, Process, Recalled, Request, Seen, SentGrant, What,
};
use super::mutants::{Mutant, Wrong};
use super::profile::Profile;
use super::runtime::Runtime;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::face::guard::HoldWatch;
use crate::lock::hold::HoldState;
use crate::store::Granted;
use crate::store::memory::replica::Image;
use crate::store::memory::{self, PendingRecall, Record, RecordLimits, Store};

/// Server's clock at the start, in microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) origin: Moment,
    pub(super) profile: Profile,
    pub(super) mutant: Option<Mutant>,
    pub(super) store: Arc<Store>,
    state: Mutex<State>,
    /// Wakes requests that wait for a frozen primary, when it goes on or is replaced.
    thawed: Notify,
}

struct State {
    rng: fastrand::Rng,
    history: History,
    numbers: [u32; 4],
    subscribers: BTreeMap<u32, Subscriber>,
    /// Channels that the server has certainly subscribed.
    confirmed: BTreeSet<(Process, Lock)>,
    links: BTreeMap<Process, ProcessLink>,
    /// Subscribers to recalls.
    recall_listeners: BTreeMap<u32, ListeningProcess>,
    server: Server,
    live: Vec<Live>,
    /// Highest token that the fenced resource of each lock has seen.
    fences: BTreeMap<Lock, u64>,
    wrong: Wrong,
    healed: bool,
    /// New holds, and the holds that they replace.
    converted: HashMap<Id, Id>,
    /// Attempt whose future is being polled.
    acting: Option<Attempt>,
    /// Primary before this one, until it learns of its successor.
    old: Option<OldPrimary>,
    /// Processes that do not know the new primary yet.
    behind: BTreeSet<Process>,
}

/// Primary that was replaced and does not know it.
struct OldPrimary {
    store: Arc<Store>,
    node: u32,
    /// Same values as in the current server.
    number: u32,
    lineage: u32,
    frozen: bool,
}

struct Server {
    down: Option<Down>,
    frozen: bool,
    /// Number of the address; each primary has a new one.
    node: u32,
    /// Number of times that data was lost.
    lineage: u32,
    /// Time at which all requests so far are served.
    busy_until: Micros,
    /// Number that grows with each outage: older connections are gone.
    number: u32,
    skew_ms: i64,
    /// Drift of the server's clock in parts per million; positive if it runs too fast.
    rate_ppm: i64,
    /// Images on the replica, newest last.
    replica: Vec<(Micros, Image)>,
    /// Newest write that a replica has acknowledged.
    acknowledged: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Down {
    Silent,
    Refusing,
    /// The server carries requests out, and all answers are lost.
    Unheard,
    /// Conversions never arrive, and all else works.
    ForConversions,
}

impl Down {
    fn is_reached(self) -> bool {
        matches!(self, Self::Unheard | Self::ForConversions)
    }
}

/// Guard in the hands of a user.
pub(super) struct Live {
    pub(super) guard: Guard,
    pub(super) process: Process,
    pub(super) key: Arc<Key>,
    pub(super) lock: Lock,
    pub(super) id: Id,
    pub(super) watch: HoldWatch,
}

pub(super) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl World {
    /// Creates the world. Needs a runtime whose clock is paused.
    pub(super) fn new(seed: u64, profile: Profile, mutant: Option<Mutant>) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Clock::runtime();
        let server = Server {
            down: None,
            frozen: false,
            node: 0,
            lineage: 0,
            busy_until: 0,
            number: 0,
            skew_ms: 0,
            rate_ppm: rng.i64(-9_000..=9_000),
            replica: Vec::new(),
            acknowledged: 0,
        };
        Arc::new(Self {
            clock,
            origin: clock.now(),
            profile,
            mutant,
            store: Arc::new(Store::new()),
            state: Mutex::new(State {
                rng,
                history: History::default(),
                numbers: [0; 4],
                subscribers: BTreeMap::new(),
                confirmed: BTreeSet::new(),
                links: BTreeMap::new(),
                recall_listeners: BTreeMap::new(),
                server,
                live: Vec::new(),
                fences: BTreeMap::new(),
                wrong: Wrong::default(),
                healed: false,
                converted: HashMap::new(),
                acting: None,
                old: None,
                behind: BTreeSet::new(),
            }),
            thawed: Notify::new(),
        })
    }

    pub(super) fn now(&self) -> Micros {
        u64::try_from(self.clock.now().since(self.origin).as_micros()).expect("runs are short")
    }

    pub(super) fn record(&self, what: What) {
        let event = Event { at: self.now(), what };
        self.state.lock().history.events.push(event);
    }

    pub(super) fn take_history(&self) -> History {
        std::mem::take(&mut self.state.lock().history)
    }

    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.state.lock().rng)
    }

    fn number(&self, kind: usize) -> u32 {
        let mut state = self.state.lock();
        state.numbers[kind] += 1;
        state.numbers[kind]
    }

    pub(super) fn acts(&self, attempt: Option<Attempt>) {
        self.state.lock().acting = attempt;
    }

    pub(super) fn next_attempt(&self) -> u32 {
        self.number(0)
    }

    pub(super) fn next_guard(&self) -> Guard {
        self.number(1)
    }

    pub(super) fn server_time(&self) -> ServerTime {
        let server = &self.state.lock().server;
        self.time_of(server)
    }

    fn time_of(&self, server: &Server) -> ServerTime {
        let now = i64::try_from(self.now()).expect("runs are short");
        let off = now * server.rate_ppm / 1_000_000 + server.skew_ms * 1_000;
        ServerTime::from_micros(EPOCH_US.saturating_add_signed(now + off))
    }

    fn apply(
        self: &Arc<Self>,
        (request, copy): (Request, u32),
        deposed: bool,
        key: &Arc<Key>,
        parcel: &Parcel,
    ) -> (Answer, ServerTime) {
        let mut state = self.state.lock();
        let old = state.old.as_ref().filter(|_| deposed);
        let (store, number, primary) = match old {
            Some(old) => (Arc::clone(&old.store), old.number, old.lineage),
            None => (Arc::clone(&self.store), state.server.number, state.server.lineage),
        };
        let deposed = old.is_some();
        let now = self.time_of(&state.server);
        let now_ms = now.as_micros() / 1000;
        let wrong = &mut state.wrong;
        let (before, answer, told, recall, after, forget_ms) = store.operate(key, now, |record| {
            if let Some(records) = self.profile.records {
                record.set_limits(RecordLimits { records });
            }
            let before = seen(record, now_ms);
            let (answer, told) = match self.mutant {
                Some(mutant) => wrong.operate(mutant, key, record, now, parcel),
                None => (operate(record, now, parcel), record.take_notifications()),
            };
            let mut recall = record.take_recall();
            if let Some(mutant) = self.mutant {
                recall = wrong.recall(mutant, parcel, (&answer, record.recallable_flag().0), recall);
            }
            (before, answer, told, recall, seen(record, now_ms), record.forget_ms())
        });
        let notifications = told.iter().map(|notification| sent_grant(notification, now_ms)).collect();
        let lock = lock_of(key);
        let (op, reply, server_us) = (parcel.op(), answer.reply(), now.as_micros());
        let what = What::Applied {
            request,
            copy,
            primary,
            deposed,
            lock,
            op,
            reply,
            server_us,
            forget_ms,
            before,
            after,
            notifications,
            recalled: recall.as_ref().map(recalled_of),
        };
        let at = self.now();
        state.history.events.push(Event { at, what });
        drop(state);
        for memory::GrantNotification { id, granted } in told {
            self.publish(Message { key: Arc::clone(key), id, granted, at: now, server: number });
        }
        if let Some(recall) = recall {
            self.publish_recall(lock, recall, number);
        }
        (answer, now)
    }

    /// Returns the remaining lease on the server of a hold, or of the hold that it was converted into.
    pub(super) fn server_ms(&self, key: &Key, id: Id) -> Option<u64> {
        let now_ms = self.server_time().as_micros() / 1000;
        let held = seen(&self.store.record(key), now_ms).held;
        let state = self.state.lock();
        let is_of = |other: Id| other == id || state.converted.get(&other) == Some(&id);
        held.iter().find(|held| is_of(held.id)).map(|held| held.deadline_ms - now_ms)
    }

    // --- Users.

    /// Notes a new guard. All other guards of the lock record their state.
    pub(super) fn enters(&self, live: Live) {
        let lock = live.lock;
        self.state.lock().live.push(live);
        let stands: Vec<_> = {
            let state = self.state.lock();
            let others = state.live.iter().filter(|live| live.lock == lock);
            others.map(|live| (live.guard, Arc::clone(&live.key), live.id, live.watch.state())).collect()
        };
        for (guard, key, id, state) in stands {
            let server_ms = self.server_ms(&key, id);
            let (valid, confirmed) = (is_valid(state), state == HoldState::Held);
            self.record(What::Sample { guard, valid, confirmed, remaining_us: None, server_ms });
        }
    }

    pub(super) fn leaves(&self, guard: Guard) {
        self.state.lock().live.retain(|live| live.guard != guard);
    }

    pub(super) fn all_leave(&self, process: Process) {
        self.state.lock().live.retain(|live| live.process != process);
    }

    /// Uses the resource that checks tokens. Returns true if the resource accepts the token.
    pub(super) fn use_fenced(&self, lock: Lock, token: FencingToken) -> bool {
        let mut state = self.state.lock();
        let highest = state.fences.entry(lock).or_default();
        let accepted = token.as_u64() >= *highest;
        *highest = token.as_u64().max(*highest);
        accepted
    }
}

pub(super) fn is_valid(state: HoldState) -> bool {
    !matches!(state, HoldState::Lost(_))
}

pub(super) fn lock_of(key: &Key) -> Lock {
    key.name().bytes().next().unwrap_or_default()
}

fn seen(record: &Record, now_ms: u64) -> Seen {
    let known = |(id, mode, deadline_ms): (String, _, _)| Held { id: Id::of(&id), mode, deadline_ms };
    let mut held: Vec<_> = record.live_holds(now_ms).into_iter().map(known).collect();
    held.sort_unstable_by_key(|held| held.id);
    let queue = record.live_waiters(now_ms).into_iter().map(known).collect();
    let (token, forced) = record.recallable_flag();
    Seen { held, queue, anybody_recorded: record.has_waiters(), token, forced }
}

fn recalled_of(recall: &PendingRecall) -> Recalled {
    Recalled { token: recall.token.as_u64(), tries: recall.id.as_ref().map(|id| Id::of(id.as_str())) }
}

fn sent_grant(notification: &memory::GrantNotification, now_ms: u64) -> SentGrant {
    let memory::GrantNotification { id, granted: Granted { token, tokens, remaining, is_waited_for } } = notification;
    let (deadline_ms, is_waited_for) = (now_ms + millis(*remaining), *is_waited_for);
    SentGrant { id: Id::of(id.as_str()), token: token.as_u64(), tokens: *tokens, deadline_ms, is_waited_for }
}

/// Virtual process as the world knows it.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) process: Process,
    pub(super) gate: Arc<Gate>,
    /// Runtime that used the manager first. Mutants run background work there.
    pub(super) first: Arc<OnceLock<Arc<Runtime>>>,
}

impl Address {
    pub(super) fn new(process: Process) -> Self {
        Self { process, gate: Arc::default(), first: Arc::default() }
    }
}
