//! World of a run, with its servers, their networks, their clocks, and all faults. One seed determines all of it.
//!
//! The world has one server, which may fail over to its replica, or several independent masters of a quorum. `network`
//! carries requests to a server and answers back, and `parcel` has both. `faults` happen to each server. `replica`
//! takes over from the only server.

mod faults;
mod network;
mod notifications;
mod parcel;
mod recalls;
mod replica;

use std::sync::OnceLock;

use notifications::{Message, ProcessLink, Subscriber};
use parcel::Fate;
use recalls::ListeningProcess;
use tokio::sync::oneshot;

use super::mutants::{Wrong, parse};
use super::*;
use crate::base::recalls::{LiveSubscription, Liveness, Recall};
use crate::store::memory::replica::Image;
use crate::store::memory::{self, Store};

pub use network::Wire;
pub use notifications::Unsubscribe;
pub use parcel::{Answer, Delivery, Fates, Parcel, operate};

/// Server's clock at the start, in microseconds since the Unix epoch.
pub const EPOCH_US: u64 = 1_700_000_000_000_000;
/// Time for which the servers have been up at the start.
const UP_BEFORE: Micros = 600_000_000;
/// Place of the server in a world with one server. Only such a world has failovers, notifications and recalls.
const ONLY: Place = 0;

pub struct World {
    pub clock: Clock,
    pub origin: Moment,
    pub profile: Profile,
    pub mutant: Option<Mutant>,
    pub restarts: Restarts,
    /// Minority of the masters that may lose data, and that alone has faults if a majority is spared.
    pub fragile: Vec<Place>,
    state: Mutex<State>,
    /// Guards that users have forgotten. The end of the run drops them.
    pub leaked: Mutex<Vec<AnyGuard>>,
    /// Wakes requests that wait for a frozen server, when it goes on or is replaced.
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
    servers: Vec<Server>,
    /// Processes that no message from or to a server reaches.
    cut: BTreeSet<(Process, Place)>,
    /// Number of requests that were sent. A pipeline counts as one.
    pipelines: usize,
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
    store: Arc<Store>,
    down: Option<Down>,
    frozen: bool,
    /// True if all messages from and to it take long.
    is_slow: bool,
    /// Further time that its answers take.
    answers_after: Duration,
    /// Number of the address: each primary and each restarted master has a new one.
    node: u32,
    /// Time of the last death.
    died: Option<Micros>,
    /// Time of the last start, which may have been before the run.
    up_since: i64,
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
pub enum Down {
    Silent,
    Refusing,
    /// The process of the server has ended, and all connections with it.
    Dead,
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
pub struct Live {
    pub guard: Guard,
    pub process: Process,
    pub key: Arc<Key>,
    pub lock: Lock,
    pub id: Id,
    pub watch: HoldWatch,
}

pub fn micros(span: Duration) -> Micros {
    Micros::try_from(span.as_micros()).expect("runs and leases are short")
}

pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Server {
    /// Creates one of `many` servers, whose clocks differ.
    fn new(many: usize, rng: &mut fastrand::Rng) -> Self {
        Self {
            store: Arc::new(Store::new()),
            down: None,
            frozen: false,
            is_slow: false,
            answers_after: Duration::ZERO,
            node: 0,
            died: None,
            up_since: -UP_BEFORE.cast_signed(),
            lineage: 0,
            busy_until: 0,
            number: 0,
            rate_ppm: rng.i64(-9_000..=9_000),
            skew_ms: if many == 1 { 0 } else { rng.i64(-40..=40) },
            replica: Vec::new(),
            acknowledged: 0,
        }
    }
}

impl World {
    /// Creates the world. Needs a runtime whose clock is paused.
    pub fn new(seed: u64, profile: Profile, mutant: Option<Mutant>) -> Arc<Self> {
        // The engine's jitter comes from the generator of the thread.
        fastrand::seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Clock::runtime();
        let many =
            if let [many] = profile.servers { *many } else { profile.servers[rng.usize(0..profile.servers.len())] };
        let servers = (0..many).map(|_| Server::new(many, &mut rng)).collect();
        let restarts = match profile.restarts {
            Some(restarts) => restarts,
            // A restart that is delayed by a long lease would come after the run.
            None if many > 1 && (profile.lease > Some(Duration::from_secs(10)) || rng.bool()) => Restarts::Checked,
            None => Restarts::Delayed,
        };
        let mut fragile: Vec<_> = (0..many).collect();
        if many > 1 {
            rng.shuffle(&mut fragile);
        }
        fragile.truncate(many / 2);
        let world = Arc::new(Self {
            clock,
            origin: clock.now(),
            profile,
            mutant,
            restarts,
            fragile,
            state: Mutex::new(State {
                rng,
                history: History::default(),
                numbers: [0; 4],
                subscribers: BTreeMap::new(),
                confirmed: BTreeSet::new(),
                links: BTreeMap::new(),
                recall_listeners: BTreeMap::new(),
                servers,
                cut: BTreeSet::new(),
                pipelines: 0,
                live: Vec::new(),
                fences: BTreeMap::new(),
                wrong: Wrong::default(),
                healed: false,
                converted: HashMap::new(),
                acting: None,
                old: None,
                behind: BTreeSet::new(),
            }),
            leaked: Mutex::default(),
            thawed: Notify::new(),
        });
        if many > 1 {
            let is_faultless = |place: &Place| profile.spares_a_majority && !world.fragile.contains(place);
            let faultless = (0..many).filter(is_faultless).collect();
            let lease_ms = profile.lease.map_or(0, millis);
            world.record(What::Quorum { masters: many, faultless, lease_ms });
        }
        world
    }

    pub fn now(&self) -> Micros {
        micros(self.clock.now().since(self.origin))
    }

    /// Passes the memory of the mutants to `act`.
    pub fn wrong<T>(&self, act: impl FnOnce(&mut Wrong) -> T) -> T {
        act(&mut self.state.lock().wrong)
    }

    pub fn count_pipeline(&self) {
        self.state.lock().pipelines += 1;
    }

    /// Returns how many requests were sent. A pipeline counts as one.
    pub fn pipelines(&self) -> usize {
        self.state.lock().pipelines
    }

    /// Records an event. A guard that a user lets go, or whose process dies, is not live any more.
    pub fn record(&self, what: What) {
        let at = self.now();
        let mut state = self.state.lock();
        match what {
            What::LetGo { guard, .. } => state.live.retain(|live| live.guard != guard),
            What::Crashed { process } => state.live.retain(|live| live.process != process),
            _ => {}
        }
        state.history.events.push(Event { at, what });
    }

    pub fn take_history(&self) -> History {
        std::mem::take(&mut self.state.lock().history)
    }

    pub fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.state.lock().rng)
    }

    fn number(&self, kind: usize) -> u32 {
        let mut state = self.state.lock();
        state.numbers[kind] += 1;
        state.numbers[kind]
    }

    pub fn acts(&self, attempt: Option<Attempt>) {
        self.state.lock().acting = attempt;
    }

    pub fn next_attempt(&self) -> u32 {
        self.number(0)
    }

    pub fn next_guard(&self) -> Guard {
        self.number(1)
    }

    /// Returns true if a quorum of several servers decides.
    pub fn is_quorum(&self) -> bool {
        self.profile.servers != [1]
    }

    fn server_time(&self) -> ServerTime {
        self.time_of(&self.state.lock().servers[ONLY])
    }

    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.state.lock().servers[ONLY].store)
    }

    /// Returns the live holds of all servers.
    pub fn holds(&self) -> Vec<(Place, Held)> {
        let state = self.state.lock();
        let holds = state.servers.iter().enumerate().flat_map(|(place, server)| {
            let now_ms = self.time_of(server).as_micros() / 1000;
            let records = server.store.image().into_values();
            records.flat_map(move |record| seen(&record, now_ms).held).map(move |held| (place, held))
        });
        holds.collect()
    }

    /// Records what is left on the servers at the end.
    pub fn record_left(&self) {
        let holds = self.holds();
        let state = self.state.lock();
        let subscribers = state.subscribers.len();
        let records = state.servers.iter().map(|server| server.store.left_at(self.time_of(server))).sum();
        drop(state);
        self.record(What::Left { records, subscribers, holds });
    }

    fn time_of(&self, server: &Server) -> ServerTime {
        let now = i64::try_from(self.now()).expect("runs are short");
        let off = now * server.rate_ppm / 1_000_000 + server.skew_ms * 1_000;
        ServerTime::from_micros(EPOCH_US.saturating_add_signed(now + off))
    }

    fn apply(
        self: &Arc<Self>,
        (request, copy): (Request, u32),
        (place, deposed): (Place, bool),
        key: &Arc<Key>,
        parcel: &Parcel,
    ) -> (Answer, ServerTime) {
        let mut state = self.state.lock();
        let server = &state.servers[place];
        let old = state.old.as_ref().filter(|_| deposed);
        let (store, number, primary) = match old {
            Some(old) => (Arc::clone(&old.store), old.number, old.lineage),
            None => (Arc::clone(&server.store), server.number, server.lineage),
        };
        let deposed = old.is_some();
        let now = self.time_of(server);
        let now_ms = now.as_micros() / 1000;
        let up = Duration::from_micros(self.now().cast_signed().abs_diff(server.up_since));
        let wrong = &mut state.wrong;
        let (before, answer, told, recall, after, forget_ms) = store.operate(key, now, |record| {
            record.set_limits(self.profile.limits());
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
        let answer = if let Answer::Time { .. } = answer { Answer::Time { up } } else { answer };
        let lock = lock_of(key);
        let (op, reply, server_us) = (parcel.op(), answer.reply(), now.as_micros());
        let at = self.now();
        if let Parcel::ForceShown { seen, .. } = parcel {
            let what = What::ForceAsked { place, ids: ids_of(seen) };
            state.history.events.push(Event { at, what });
        }
        let what = What::Applied {
            request,
            copy,
            place,
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
    pub fn server_ms(&self, key: &Key, id: Id) -> Option<u64> {
        let now_ms = self.server_time().as_micros() / 1000;
        let held = seen(&self.store().record(key), now_ms).held;
        let state = self.state.lock();
        let is_of = |other: Id| other == id || state.converted.get(&other) == Some(&id);
        held.iter().find(|held| is_of(held.id)).map(|held| held.deadline_ms - now_ms)
    }

    // --- Users.

    /// Notes a new guard. All other guards of the lock record their state.
    pub fn enters(&self, live: Live) {
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

    /// Uses the resource that checks tokens. Returns true if the resource accepts the token.
    pub fn use_fenced(&self, lock: Lock, token: FencingToken) -> bool {
        let mut state = self.state.lock();
        let highest = state.fences.entry(lock).or_default();
        let accepted = token.as_u64() >= *highest;
        *highest = token.as_u64().max(*highest);
        accepted
    }
}

pub fn is_valid(state: HoldState) -> bool {
    !matches!(state, HoldState::Lost(_))
}

pub fn lock_of(key: &Key) -> Lock {
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

/// Returns the holders that a view shows.
pub fn ids_of(view: &View) -> Vec<Id> {
    view.holders.iter().map(|holder| Id::of(&holder.id)).collect()
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
pub struct Address {
    pub process: Process,
    pub gate: Arc<Gate>,
    /// Runtime that used the manager first. Mutants run background work there.
    pub first: Arc<OnceLock<Arc<Runtime>>>,
}

impl Address {
    pub fn new(process: Process) -> Self {
        Self { process, gate: Arc::default(), first: Arc::default() }
    }
}
