//! The masters of a run: each with its data, its clock and its fate, and the network between them and the processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::super::history::{Id, Process};
use super::Wrong;
use super::profile::Profile;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::store::memory::Record;
use crate::store::{AcquireRequest, Acquired, Floor, Forced, View};

/// When the masters' clocks stood at the start, in microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// They had been up for so long by then.
const UP_BEFORE: Duration = Duration::from_secs(600);

/// A master's place among all.
pub(super) type Place = usize;

pub(super) struct Field {
    pub(super) clock: Clock,
    origin: Moment,
    pub(super) profile: Profile,
    pub(super) wrong: Option<Wrong>,
    state: Mutex<State>,
    /// One goes on, or has ended.
    changed: Notify,
    requests: AtomicUsize,
    /// Whether a run is told as it goes.
    is_told: bool,
}

struct State {
    rng: fastrand::Rng,
    masters: Vec<Master>,
    /// Who does not reach whom.
    cut: BTreeSet<(Process, Place)>,
    spared: Vec<Place>,
    is_healed: bool,
    /// What an operator was told to be over, and what of it was there again.
    over: BTreeSet<Id>,
    undone: BTreeSet<Id>,
}

/// One of them.
pub(super) struct Master {
    is_up: bool,
    is_frozen: bool,
    is_slow: bool,
    /// So much longer its answers take.
    answers_after: Duration,
    /// Connections belong to one process of it: those to the one before it are gone.
    incarnation: u32,
    up_since: Moment,
    /// Parts per million that its clock runs too fast.
    rate_ppm: i64,
    skew_us: i64,
    locks: BTreeMap<String, Record>,
    /// What an operator has ended here, and has named.
    ended: BTreeSet<Id>,
    named: BTreeSet<Id>,
    /// What it has granted since to a first request that came late.
    late: BTreeSet<Id>,
}

impl Master {
    /// What is kept of a lock.
    pub(super) fn lock(&mut self, key: &Key) -> &mut Record {
        self.locks.entry(key.name().to_owned()).or_default()
    }

    /// An operator ends what was shown.
    pub(super) fn force(&mut self, now: ServerTime, key: &Key, token: Option<FencingToken>, seen: &View) -> Forced {
        let forced = self.lock(key).force_shown(now, token, seen);
        self.ended.extend(forced.ids.iter().map(|id| Id::of(id)));
        self.named.extend(seen.holders.iter().map(|holder| Id::of(&holder.id)));
        forced
    }

    /// Until that time of the master.
    pub(super) fn acquire(
        &mut self,
        (now, not_after_ms): (ServerTime, u64),
        key: &Key,
        request: &AcquireRequest,
        floor: Floor,
    ) -> Acquired {
        let acquired = self.lock(key).acquire_above(now, not_after_ms, request, floor);
        let id = Id::of(request.id.as_str());
        if let (Floor::New(_), Acquired::Granted(_), true) = (floor, acquired, self.named.contains(&id)) {
            self.late.insert(id);
        }
        acquired
    }

    fn has(&self, id: Id, now: ServerTime) -> bool {
        let mut holds = self.locks.values().flat_map(|record| record.live_holds(now.as_micros() / 1000));
        holds.any(|(held, _, _)| Id::of(&held) == id)
    }
}

/// What a new connection is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) incarnation: u32,
    /// In whole seconds, as servers say it.
    pub(super) uptime: Duration,
}

/// How a request ended, as far as its sender can hear of it.
#[derive(Debug)]
pub(super) enum Delivery<T> {
    Answered(T, ServerTime),
    /// There is no such connection, or there was.
    Closed,
}

/// What becomes of one copy.
#[derive(Clone, Copy, Debug)]
struct Fate {
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
}

impl Field {
    /// Within a runtime whose clock is paused.
    pub(super) fn new(seed: u64, profile: Profile, wrong: Option<Wrong>) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let many = if rng.bool() { 3 } else { 5 };
        Self::of(many, rng, profile, wrong)
    }

    /// So many of them.
    pub(super) fn of(many: usize, mut rng: fastrand::Rng, profile: Profile, wrong: Option<Wrong>) -> Arc<Self> {
        let clock = Clock::runtime();
        let masters = (0..many).map(|_| Master {
            is_up: true,
            is_frozen: false,
            is_slow: false,
            answers_after: Duration::ZERO,
            incarnation: 0,
            up_since: Moment::from_nanos(clock.now().as_nanos().saturating_sub(UP_BEFORE.as_nanos() as u64)),
            rate_ppm: rng.i64(-9_000..=9_000),
            skew_us: rng.i64(-40_000..=40_000),
            locks: BTreeMap::new(),
            ended: BTreeSet::new(),
            named: BTreeSet::new(),
            late: BTreeSet::new(),
        });
        let masters = masters.collect();
        let state = State {
            rng,
            masters,
            cut: BTreeSet::new(),
            spared: Vec::new(),
            is_healed: false,
            over: BTreeSet::new(),
            undone: BTreeSet::new(),
        };
        let (changed, requests, is_told) = (Notify::new(), AtomicUsize::new(0), std::env::var("TELL").is_ok());
        Arc::new(Self {
            clock,
            origin: clock.now(),
            profile,
            wrong,
            state: Mutex::new(state),
            changed,
            requests,
            is_told,
        })
    }

    /// For whoever looks at one run.
    pub(super) fn tells(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("{:>12?} {}", self.now(), what());
        }
    }

    /// How many requests were sent, several in one pipeline counted once.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.state.lock().rng)
    }

    pub(super) fn count(&self) -> usize {
        self.state.lock().masters.len()
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now().since(self.origin)
    }

    /// Time that a right clock shows.
    pub(super) fn true_time_us(&self) -> u64 {
        EPOCH_US + u64::try_from(self.now().as_micros()).expect("runs are short")
    }

    fn time_of(&self, master: &Master) -> ServerTime {
        let now = i64::try_from(self.now().as_micros()).expect("runs are short");
        let off = now + now * master.rate_ppm / 1_000_000 + master.skew_us;
        ServerTime::from_micros(EPOCH_US.saturating_add_signed(off))
    }

    // --- The network.

    /// Greets a master, whichever it is by now.
    pub(super) fn greet(self: &Arc<Self>, from: Process, to: Place) -> oneshot::Receiver<Delivery<Greeting>> {
        let clock = self.clock;
        self.post(from, to, None, move |master, _| {
            let uptime = Duration::from_secs(clock.now().since(master.up_since).as_secs());
            Greeting { incarnation: master.incarnation, uptime }
        })
    }

    /// Sends a request on a connection to one incarnation. Whatever becomes of the sender, it travels on.
    pub(super) fn post<T: Send + 'static>(
        self: &Arc<Self>,
        from: Process,
        to: Place,
        incarnation: Option<u32>,
        act: impl Fn(&mut Master, ServerTime) -> T + Send + Sync + 'static,
    ) -> oneshot::Receiver<Delivery<T>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let (fate, copy) = self.fate(to);
        let act = Arc::new(act);
        if let Some(copy) = copy {
            let (field, act) = (Arc::clone(self), Arc::clone(&act));
            drop(tokio::spawn(async move {
                drop(field.delivered((from, to), incarnation, copy, &*act).await);
            }));
        }
        let field = Arc::clone(self);
        drop(tokio::spawn(async move {
            if let Some(delivery) = field.delivered((from, to), incarnation, fate, &*act).await {
                drop(answer.send(delivery));
            }
        }));
        answered
    }

    /// One whose answer is lost may be carried out once more, later.
    fn fate(&self, to: Place) -> (Fate, Option<Fate>) {
        let mut state = self.state.lock();
        let Master { is_slow, answers_after, .. } = state.masters[to];
        let is_healed = state.is_healed;
        let (rng, profile) = (&mut state.rng, self.profile);
        let mut chance = |per_mille: u32| !is_healed && rng.u32(0..1000) < per_mille;
        let (request_lost, reply_lost) = (chance(profile.lost), chance(profile.lost));
        let slow = (is_slow || chance(profile.slow), is_slow || chance(profile.slow));
        let is_copied = reply_lost && chance(500);
        let mut trip = |slow: bool| Duration::from_millis(if slow { rng.u64(30..900) } else { rng.u64(0..4) });
        let fate = Fate { there: trip(slow.0), back: trip(slow.1) + answers_after, request_lost, reply_lost };
        let copy = is_copied.then(|| Fate { there: fate.there + trip(true), request_lost: false, ..fate });
        (fate, copy)
    }

    /// What the sender hears. `None`: nothing.
    async fn delivered<T>(
        &self,
        (from, to): (Process, Place),
        incarnation: Option<u32>,
        fate: Fate,
        act: &(impl Fn(&mut Master, ServerTime) -> T + Sync),
    ) -> Option<Delivery<T>> {
        tokio::time::sleep(fate.there).await;
        let answer = loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(answer) = self.arrives((from, to), incarnation, fate, act) {
                break answer?;
            }
            changed.await;
        };
        tokio::time::sleep(fate.back).await;
        let (is_cut, is) = {
            let state = self.state.lock();
            (state.cut.contains(&(from, to)), state.masters[to].incarnation)
        };
        let is_another = incarnation.is_some_and(|asked| asked != is);
        (!is_cut && !fate.reply_lost && !is_another).then_some(answer)
    }

    /// `None` as long as the master stands still, `Some(None)` if it does not get there.
    fn arrives<T>(
        &self,
        (from, to): (Process, Place),
        incarnation: Option<u32>,
        fate: Fate,
        act: &impl Fn(&mut Master, ServerTime) -> T,
    ) -> Option<Option<Delivery<T>>> {
        let mut state = self.state.lock();
        if fate.request_lost || state.cut.contains(&(from, to)) {
            return Some(None);
        }
        let master = &mut state.masters[to];
        if !master.is_up || incarnation.is_some_and(|asked| asked != master.incarnation) {
            return Some(Some(Delivery::Closed));
        }
        if master.is_frozen {
            return None;
        }
        let now = self.time_of(master);
        let answer = act(master, now);
        self.looks_for_undone(&mut state);
        Some(Some(Delivery::Answered(answer, now)))
    }

    // --- What operators end.

    /// An operator was told that these are over.
    pub(super) fn is_over(&self, ids: impl Iterator<Item = Id>) {
        let mut state = self.state.lock();
        state.over.extend(ids);
        self.looks_for_undone(&mut state);
    }

    fn looks_for_undone(&self, state: &mut State) {
        // The next renewal finds what a late request for it has brought.
        let has = |master: &Master, id| master.has(id, self.time_of(master)) && !master.late.contains(&id);
        let is_there = |id: &&Id| {
            let many = state.masters.iter().filter(|master| has(master, **id)).count();
            many > state.masters.len() / 2
        };
        let there: Vec<Id> = state.over.iter().filter(is_there).copied().collect();
        for id in there {
            state.over.remove(&id);
            state.undone.insert(id);
        }
    }

    /// What an operator was told to be over, and what a majority had then or later.
    pub(super) fn undone(&self) -> BTreeSet<Id> {
        self.state.lock().undone.clone()
    }

    /// Whether an operator has ended it at any master. Its holder hears of it with its next renewal.
    pub(super) fn is_forced(&self, id: Id) -> bool {
        self.state.lock().masters.iter().any(|master| master.ended.contains(&id))
    }

    // --- What becomes of masters.

    fn changes(&self, place: Place, what: &str, change: impl FnOnce(&mut Master)) {
        self.tells(|| format!("master {place} {what}"));
        change(&mut self.state.lock().masters[place]);
        self.changed.notify_waiters();
    }

    pub(super) fn dies(&self, place: Place) {
        self.changes(place, "dies", |master| {
            (master.is_up, master.is_frozen) = (false, false);
            master.incarnation += 1;
        });
    }

    pub(super) fn restarts(&self, place: Place, with: Data) {
        let now = self.clock.now();
        self.changes(place, if with == Data::Kept { "is back" } else { "is back and empty" }, |master| {
            (master.is_up, master.up_since) = (true, now);
            if with == Data::Lost {
                master.locks.clear();
            }
        });
    }

    /// Its clock is ahead of the true time by so much.
    pub(super) fn is_ahead(&self, place: Place, ms: i64) {
        self.changes(place, "has another time", |master| master.skew_us = ms * 1000);
    }

    /// Without a restart.
    pub(super) fn forgets(&self, place: Place) {
        self.changes(place, "forgets all", |master| master.locks.clear());
    }

    pub(super) fn freezes(&self, place: Place) {
        self.changes(place, "stands still", |master| master.is_frozen = true);
    }

    pub(super) fn goes_on(&self, place: Place) {
        self.changes(place, "goes on", |master| master.is_frozen = false);
    }

    pub(super) fn slows(&self, place: Place) {
        self.changes(place, "is slow", |master| master.is_slow = true);
    }

    pub(super) fn speeds_up(&self, place: Place) {
        self.changes(place, "is fast", |master| master.is_slow = false);
    }

    pub(super) fn answers_after(&self, place: Place, span: Duration) {
        self.changes(place, "answers later or sooner", |master| master.answers_after = span);
    }

    pub(super) fn is_up(&self, place: Place) -> bool {
        self.state.lock().masters[place].is_up
    }

    /// Nothing gets through between a process and some masters.
    pub(super) fn cuts(&self, process: Process, places: &[Place]) {
        self.tells(|| format!("process {process} is cut off from {places:?}"));
        self.state.lock().cut.extend(places.iter().map(|place| (process, *place)));
    }

    pub(super) fn mends(&self, process: Process) {
        self.state.lock().cut.retain(|(of, _)| *of != process);
    }

    /// From now on nothing goes wrong.
    pub(super) fn heals(&self) {
        let places = self.count();
        {
            let mut state = self.state.lock();
            (state.is_healed, state.cut) = (true, BTreeSet::new());
        }
        for place in 0..places {
            self.goes_on(place);
            self.speeds_up(place);
            if !self.is_up(place) {
                self.restarts(place, Data::Kept);
            }
        }
    }

    /// Nothing happens to these.
    pub(super) fn spares(&self, places: &[Place]) {
        self.state.lock().spared = places.to_vec();
    }

    /// Whether all masters to which nothing happens have a hold.
    pub(super) fn is_held_by_the_spared(&self, id: Id) -> bool {
        let state = self.state.lock();
        let mut spared = state.spared.iter().map(|place| &state.masters[*place]);
        spared.all(|master| master.has(id, self.time_of(master)))
    }

    /// The live holds that masters have.
    pub(super) fn holds(&self) -> Vec<String> {
        let state = self.state.lock();
        let mut holds = Vec::new();
        for (place, master) in state.masters.iter().enumerate() {
            let now_ms = self.time_of(master).as_micros() / 1000;
            for (name, record) in &master.locks {
                let live = record.live_holds(now_ms).into_iter();
                holds.extend(
                    live.map(|(id, mode, _)| format!("{mode} hold of {name} at master {place}: {:?}", Id::of(&id))),
                );
            }
        }
        holds
    }
}

/// What a master has when it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Data {
    Kept,
    Lost,
}
