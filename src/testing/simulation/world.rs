//! The world of a run: one server, its network, its clock, and everything that goes wrong there. All of it is drawn from
//! one seed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::gate::Gate;
use super::history::{
    Attempt, Event, Guard, Held, History, Id, Lock, Micros, News, Op, Process, Reply, Request, Seen, Shown, What,
};
use super::mutants::{Mutant, Wrong};
use super::profile::Profile;
use super::runtime::Runtime;
use crate::clock::Clock;
use crate::guard::HoldWatch;
use crate::key::Key;
use crate::lease::{Anchor, FencingToken, Moment, ServerTime};
use crate::lock::hold::HoldState;
use crate::scheme::memory::replica::Image;
use crate::scheme::memory::{self, Limits, Record, Store};
use crate::scheme::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, Converted, Forced, Granted, IfTaken, Notice,
    ReleaseReply, Renewed, View,
};

/// When the server's clock stood at the start, in microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// How often the replica hears from the primary.
const REPLICATION: Duration = Duration::from_millis(100);
/// An older anchor judges no notice, as the transport has it.
const MAX_ANCHOR_AGE: Duration = Duration::from_secs(2);

/// What counts as slow.
const MIN_SLOW: Duration = Duration::from_millis(50);

pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) origin: Moment,
    pub(super) profile: Profile,
    pub(super) mutant: Option<Mutant>,
    pub(super) store: Arc<Store>,
    state: Mutex<State>,
    /// A primary that stood still goes on, or does not.
    thawed: Notify,
}

struct State {
    rng: fastrand::Rng,
    history: History,
    numbers: [u32; 4],
    subscribers: BTreeMap<u32, Subscriber>,
    /// Channels of which it is certain that the server has them subscribed.
    confirmed: BTreeSet<(Process, Lock)>,
    ears: BTreeMap<Process, Ear>,
    server: Server,
    live: Vec<Live>,
    /// The highest token that the fenced resource of each lock has seen.
    fences: BTreeMap<Lock, u64>,
    wrong: Wrong,
    healed: bool,
    /// New holds, and which ones they are to take the place of.
    converted: HashMap<Id, Id>,
    /// The attempt whose future is being polled.
    acting: Option<Attempt>,
    /// The primary before this one, until it knows.
    old: Option<OldPrimary>,
    /// Who has not heard of the new primary.
    behind: BTreeSet<Process>,
}

/// A primary that was replaced and does not know it.
struct OldPrimary {
    store: Arc<Store>,
    node: u32,
    /// As the current server has them.
    number: u32,
    lineage: u32,
    frozen: bool,
}

/// Which server a request has reached.
enum Reached {
    Primary,
    Deposed,
    Frozen,
    /// It is none any more, or not to be reached.
    Nobody(Down),
}

struct Server {
    down: Option<Down>,
    frozen: bool,
    /// One address after the other.
    node: u32,
    /// How many times data was lost.
    lineage: u32,
    /// When it has served all that has arrived.
    busy_until: Micros,
    /// Connections of before an outage are gone.
    number: u32,
    skew_ms: i64,
    /// Parts per million that its clock runs too fast.
    rate_ppm: i64,
    /// The replica's content, newest last.
    replica: Vec<(Micros, Image)>,
    /// The newest copy that was counted on.
    acknowledged: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Down {
    Silent,
    Refusing,
    /// It carries out what it is asked, and nobody hears of that.
    Unheard,
    /// Conversions never arrive, and all else works.
    ForConversions,
}

impl Down {
    fn is_reached(self) -> bool {
        matches!(self, Self::Unheard | Self::ForConversions)
    }
}

/// Who wants to be told.
struct Subscriber {
    process: Process,
    lock: Lock,
    to: mpsc::UnboundedSender<Notice>,
}

/// What a process judges notices by.
struct Ear {
    gate: Arc<Gate>,
    anchor: Arc<Mutex<Option<Anchor>>>,
}

/// A notice as it lies on the wire.
#[derive(Clone, Debug)]
struct Message {
    key: Arc<Key>,
    id: AcquisitionId,
    granted: Granted,
    at: ServerTime,
    /// Which of the servers, one after the other, has sent it.
    server: u32,
}

/// Ends a subscription when it is dropped.
pub(super) struct Unsubscribe {
    world: Arc<World>,
    number: u32,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.world.state.lock().subscribers.remove(&self.number);
    }
}

/// A guard that somebody has.
pub(super) struct Live {
    pub(super) guard: Guard,
    pub(super) process: Process,
    pub(super) key: Arc<Key>,
    pub(super) lock: Lock,
    pub(super) id: Id,
    pub(super) watch: HoldWatch,
}

/// A request as it lies on the wire.
#[derive(Clone, Debug)]
pub(super) enum Parcel {
    Acquire { request: AcquireRequest, not_after_ms: u64 },
    Conversion { old: AcquisitionId, request: AcquireRequest, not_after_ms: u64 },
    Leave { id: AcquisitionId },
    Renew { id: AcquisitionId, lease: Duration },
    Inspect,
    Force { seen: Option<FencingToken> },
    Time,
}

/// What comes back.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Acquired(Acquired),
    Converted(Converted),
    ReleaseReply(ReleaseReply),
    Renewed(Renewed),
    View(View),
    Forced(Forced),
    Time,
}

/// How a delivery ended, as far as the sender can hear of it.
#[derive(Clone, Debug)]
pub(super) enum Delivery {
    Answered(Answer, ServerTime),
    Refused,
    /// It gives a hold, and no replica has that.
    Unreplicated,
}

/// That of the first copy, and of the second if there is one.
pub(super) type Fates = (Fate, Option<Fate>);

/// What is to become of one copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    copy: u32,
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
}

impl Parcel {
    pub(super) fn op(&self) -> Op {
        match self {
            Self::Acquire { request, not_after_ms } => Op::Acquire {
                id: Id::of(request.id.as_str()),
                mode: request.mode,
                lease_ms: millis(request.lease),
                not_after_ms: *not_after_ms,
                patience_ms: match request.if_taken {
                    IfTaken::Leave => None,
                    IfTaken::Queue { patience } => Some(millis(patience)),
                },
            },
            Self::Conversion { old, request, not_after_ms } => Op::Conversion {
                old: Id::of(old.as_str()),
                id: Id::of(request.id.as_str()),
                mode: request.mode,
                lease_ms: millis(request.lease),
                not_after_ms: *not_after_ms,
            },
            Self::Leave { id } => Op::Leave { id: Id::of(id.as_str()) },
            Self::Renew { id, lease } => Op::Renew { id: Id::of(id.as_str()), lease_ms: millis(*lease) },
            Self::Inspect => Op::Inspect,
            Self::Force { seen } => Op::Force { seen: seen.map_or(0, FencingToken::as_u64) },
            Self::Time => Op::Time,
        }
    }
}

impl Answer {
    fn gives_hold(&self) -> bool {
        matches!(
            self,
            Self::Acquired(Acquired::Granted(_))
                | Self::Converted(Converted::Granted(_))
                | Self::Renewed(Renewed::Renewed { .. })
        )
    }

    pub(super) fn reply(&self) -> Reply {
        let sorted = |ids: &mut dyn Iterator<Item = &String>| {
            let mut ids: Vec<_> = ids.map(|id| Id::of(id)).collect();
            ids.sort_unstable();
            ids
        };
        match self {
            Self::Acquired(Acquired::Granted(granted)) | Self::Converted(Converted::Granted(granted)) => {
                Reply::Granted {
                    token: granted.token.as_u64(),
                    tokens: granted.tokens,
                    remaining_ms: millis(granted.remaining),
                    writers_waiting: granted.writers_waiting,
                }
            }
            Self::Acquired(Acquired::Queued { retry_in }) => Reply::Queued { retry_in_ms: millis(*retry_in) },
            Self::Acquired(Acquired::Contended { retry_in }) => Reply::Contended { retry_in_ms: millis(*retry_in) },
            Self::Acquired(Acquired::Late) | Self::Converted(Converted::Late) => Reply::Late,
            Self::Converted(Converted::Refused) => Reply::Refused,
            Self::ReleaseReply(ReleaseReply::Held) => Reply::Held,
            Self::ReleaseReply(ReleaseReply::Queued) => Reply::Waited,
            Self::ReleaseReply(ReleaseReply::None(Absence { forced, .. })) => Reply::None { forced: raw(*forced) },
            Self::Renewed(Renewed::Renewed { remaining }) => Reply::Renewed { remaining_ms: millis(*remaining) },
            Self::Renewed(Renewed::Lost { forced }) | Self::Converted(Converted::Lost { forced }) => {
                Reply::Lost { forced: raw(*forced) }
            }
            Self::View(view) => Reply::View(shown(view)),
            Self::Forced(forced) => Reply::Forced(sorted(&mut forced.ids.iter())),
            Self::Time => Reply::Time,
        }
    }
}

fn raw(token: Option<FencingToken>) -> u64 {
    token.map_or(0, FencingToken::as_u64)
}

fn shown(view: &View) -> Shown {
    let holders = view.holders.iter();
    let mut holders: Vec<_> =
        holders.map(|holder| (Id::of(&holder.id), holder.mode, millis(holder.remaining))).collect();
    holders.sort_unstable_by_key(|(id, _, _)| *id);
    let waiters = view.waiters.iter().map(|waiter| (Id::of(&waiter.id), waiter.mode)).collect();
    Shown { token: raw(view.token), holders, waiters }
}

pub(super) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl World {
    /// Within a runtime whose clock is paused.
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
                ears: BTreeMap::new(),
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

    // --- The network.

    /// Sends a request: whatever becomes of the sender, the copies travel on.
    pub(super) fn post(
        self: &Arc<Self>,
        process: Process,
        key: &Arc<Key>,
        parcel: &Parcel,
        (first, second): Fates,
    ) -> (Request, oneshot::Receiver<Delivery>) {
        let request = self.number(2);
        let (answer, answered) = oneshot::channel();
        let attempt = self.state.lock().acting;
        if let Op::Conversion { old, id, .. } = parcel.op() {
            self.state.lock().converted.insert(id, old);
        }
        self.record(What::Sent { request, process, lock: lock_of(key), op: parcel.op(), attempt });
        let node = self.node_of(process);
        if first.there.max(first.back) >= MIN_SLOW {
            self.record(What::Slow { request });
        }
        let refused = Arc::default();
        if let Some(second) = second {
            self.deliver((request, node), (second, &refused), key, parcel, None);
        }
        self.deliver((request, node), (first, &refused), key, parcel, Some(answer));
        (request, answered)
    }

    /// What is to become of a request, or of several that travel together.
    pub(super) fn fates(&self, parcel: &Parcel) -> Fates {
        let mut state = self.state.lock();
        let (healed, profile) = (state.healed, &self.profile);
        let rng = &mut state.rng;
        let mut chance = |per_mille: u32| !healed && rng.u32(0..1000) < per_mille;
        let lost = (chance(profile.lost_request), chance(profile.lost_reply));
        let slow = (chance(profile.slow), chance(profile.slow));
        let copied = chance(profile.copied);
        let mut trip =
            |slow| Duration::from_millis(if slow { rng.u64(millis(MIN_SLOW)..2_500) } else { rng.u64(0..4) });
        let (there, back) = (trip(slow.0), trip(slow.1));
        let late = if copied { trip(true) } else { Duration::ZERO };
        let first = Fate {
            copy: 1,
            there,
            back,
            request_lost: lost.0,
            // A late copy of an acquisition or a turn that was answered would be one that its sender cannot know of. On one
            // connection a request is not carried out after a later one, so there it does not happen.
            reply_lost: lost.1 || (copied && matches!(parcel, Parcel::Acquire { .. } | Parcel::Conversion { .. })),
        };
        let second = copied.then(|| Fate { copy: 2, there: first.there + late, ..first });
        (first, second)
    }

    fn deliver(
        self: &Arc<Self>,
        (request, node): (Request, u32),
        (fate, refused): (Fate, &Arc<AtomicBool>),
        key: &Arc<Key>,
        parcel: &Parcel,
        answer: Option<oneshot::Sender<Delivery>>,
    ) {
        let (world, key, parcel) = (Arc::clone(self), Arc::clone(key), parcel.clone());
        let refused = Arc::clone(refused);
        drop(tokio::spawn(async move {
            let copy = fate.copy;
            world.travels(fate.there).await;
            let mut reached = world.reached(node).await;
            if matches!(reached, Reached::Primary) {
                world.served().await;
                reached = world.reached(node).await;
            }
            let deposed = match reached {
                // Where no connection was to be had, nothing was sent, and nothing comes again.
                _ if refused.load(Ordering::SeqCst) => return world.record(What::RequestLost { request, copy }),
                Reached::Nobody(Down::Refusing) => {
                    refused.store(true, Ordering::SeqCst);
                    if let Some(answer) = answer {
                        answer.send(Delivery::Refused).ok();
                    }
                    return;
                }
                _ if fate.request_lost || world.loses(&parcel) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Nobody(_) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Deposed => true,
                Reached::Primary | Reached::Frozen => false,
            };
            let (reply, server) = world.apply((request, copy), deposed, &key, &parcel);
            let counts = world.counts(&reply, deposed).await;
            world.travels(fate.back).await;
            let Some(answer) = answer else {
                return;
            };
            let down = !deposed && world.state.lock().server.down.is_some_and(|down| down != Down::ForConversions);
            if fate.reply_lost || down {
                return world.record(What::ReplyLost { request, copy });
            }
            let delivery = if counts { Delivery::Answered(reply, server) } else { Delivery::Unreplicated };
            answer.send(delivery).ok();
        }));
    }

    fn loses(&self, parcel: &Parcel) -> bool {
        let down = self.state.lock().server.down;
        down == Some(Down::ForConversions) && matches!(parcel, Parcel::Conversion { .. })
    }

    async fn travels(&self, time: Duration) {
        // A timer takes a millisecond at least.
        if !self.profile.hot {
            tokio::time::sleep(time).await;
        }
    }

    /// The address that a process has for the primary.
    fn node_of(&self, process: Process) -> u32 {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        old.map_or(state.server.node, |old| old.node)
    }

    /// Who is there, as soon as somebody is that moves.
    async fn reached(&self, node: u32) -> Reached {
        loop {
            let thawed = self.thawed.notified();
            tokio::pin!(thawed);
            thawed.as_mut().enable();
            match self.reaches(node) {
                Reached::Frozen => thawed.await,
                other => return other,
            }
        }
    }

    fn reaches(&self, node: u32) -> Reached {
        let state = self.state.lock();
        match (&state.old, state.server.down) {
            _ if state.server.frozen => Reached::Frozen,
            (_, Some(down)) if node == state.server.node && !down.is_reached() => Reached::Nobody(down),
            _ if node == state.server.node => Reached::Primary,
            (Some(old), _) if old.node == node && old.frozen => Reached::Frozen,
            (Some(old), _) if old.node == node => Reached::Deposed,
            _ => Reached::Nobody(Down::Refusing),
        }
    }

    /// Returns when the server has done what came before.
    async fn served(&self) {
        if self.profile.service_ms == 0 {
            return;
        }
        let now = self.now();
        let done = {
            let server = &mut self.state.lock().server;
            server.busy_until = server.busy_until.max(now) + self.profile.service_ms * 1000;
            server.busy_until
        };
        tokio::time::sleep(Duration::from_micros(done - now)).await;
    }

    // --- The server.

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
        let (before, answer, told, after, forget_ms) = store.operate(key, now, |record| {
            if let Some(records) = self.profile.records {
                record.set_limits(Limits { records });
            }
            let before = seen(record, now_ms);
            let (answer, told) = match self.mutant {
                Some(mutant) => wrong.operate(mutant, key, record, now, parcel),
                None => (operate(record, now, parcel), record.take_news()),
            };
            (before, answer, told, seen(record, now_ms), record.forget_ms())
        });
        let news = told.iter().map(|news| news_of(news, now_ms)).collect();
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
            news,
        };
        let at = self.now();
        state.history.events.push(Event { at, what });
        drop(state);
        for memory::News { id, granted } in told {
            self.publish(Message { key: Arc::clone(key), id, granted, at: now, server: number });
        }
        (answer, now)
    }

    /// What the server has left of a hold, or of what that was converted into, by its own clock.
    pub(super) fn server_ms(&self, key: &Key, id: Id) -> Option<u64> {
        let now_ms = self.server_time().as_micros() / 1000;
        let held = seen(&self.store.record(key), now_ms).held;
        let state = self.state.lock();
        let is_of = |other: Id| other == id || state.converted.get(&other) == Some(&id);
        held.iter().find(|held| is_of(held.id)).map(|held| held.deadline_ms - now_ms)
    }

    /// Copies the primary to the replica from time to time.
    pub(super) async fn replicate(self: Arc<Self>) {
        // After that nobody takes over.
        while !self.state.lock().healed {
            self.copy_to_replica();
            let pause = if self.profile.wait_ms > 0 { self.lag() } else { REPLICATION };
            tokio::time::sleep(pause).await;
        }
    }

    /// Until the replica has heard of what is written now: mostly in time for whoever waits for that.
    fn lag(&self) -> Duration {
        let ms = self.draw(|rng| match rng.u32(0..200) {
            0 => rng.u64(1_000..5_000),
            1..10 => rng.u64(50..700),
            _ => rng.u64(1..20),
        });
        Duration::from_millis(ms)
    }

    /// Whether an answer counts: where a replica has to know of a hold, when it does, within the time that is given to it.
    async fn counts(&self, answer: &Answer, deposed: bool) -> bool {
        if self.profile.wait_ms == 0 || !answer.gives_hold() || self.mutant == Some(Mutant::WaitsBeforeTheGrant) {
            return true;
        }
        if self.mutant == Some(Mutant::RenewalsUnacknowledged) && matches!(answer, Answer::Renewed(_)) {
            return true;
        }
        let applied = self.now();
        let lineage = self.state.lock().server.lineage;
        while self.now() <= applied + self.profile.wait_ms * 1000 {
            if self.state.lock().healed || !deposed && self.acknowledges(applied, lineage) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        false
    }

    /// Whether a replica has what was written then. A primary that was replaced has none any more.
    fn acknowledges(&self, written: Micros, lineage: u32) -> bool {
        let server = &mut self.state.lock().server;
        let newest = server.replica.last().map_or(0, |(at, _)| *at);
        let has_it = server.lineage == lineage && newest > written;
        if has_it {
            server.acknowledged = newest;
        }
        has_it
    }

    fn copy_to_replica(&self) {
        let copy = (self.now(), self.store.image());
        let replica = &mut self.state.lock().server.replica;
        replica.push(copy);
        if replica.len() > 20 {
            replica.remove(0);
        }
    }

    pub(super) fn goes_down(&self, down: Down) {
        let mut state = self.state.lock();
        state.server.down = Some(down);
        state.server.number += 1;
        if down == Down::Refusing {
            // A silent one is not noticed.
            state.confirmed.clear();
        }
        drop(state);
        self.record(What::Down { refuses: down == Down::Refusing });
    }

    /// Subscriptions are made anew.
    pub(super) fn comes_up(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.server.down = None;
        state.confirmed.clear();
        let channels: BTreeSet<_> = state.subscribers.values().map(|to| (to.process, to.lock)).collect();
        drop(state);
        self.record(What::Up);
        for (process, lock) in channels {
            self.confirm(process, lock);
        }
    }

    pub(super) fn empties(&self) {
        self.store.replace(Image::new());
        let mut state = self.state.lock();
        state.wrong.forget();
        state.server.lineage += 1;
        drop(state);
        self.record(What::Emptied);
    }

    /// A replica takes over that is behind.
    pub(super) fn falls_back(&self) {
        let Some(behind_ms) = self.replica_takes_over() else {
            return;
        };
        self.state.lock().server.lineage += 1;
        self.record(What::Stale { behind_ms });
    }

    /// How far it is behind.
    fn replica_takes_over(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let many = state.server.replica.len();
        // It is not behind what it has acknowledged.
        let acknowledged = state.server.acknowledged;
        let first = state.server.replica.partition_point(|(at, _)| *at < acknowledged);
        let pick = first + state.rng.usize(0..(many - first).max(1));
        let (at, image) = state.server.replica.get(pick).cloned()?;
        state.server.replica.clear();
        drop(state);
        self.store.replace(image);
        Some((self.now() - at) / 1000)
    }

    // --- Two primaries.

    /// The primary stands still.
    pub(super) fn freezes(&self) {
        self.state.lock().server.frozen = true;
        self.record(What::Frozen);
    }

    /// A replica takes over from a primary that stands still. Nobody knows of it yet.
    pub(super) fn promotes(&self) {
        let store = Arc::new(Store::with(self.store.image()));
        let mut state = self.state.lock();
        let server = &mut state.server;
        server.frozen = false;
        let (node, number, lineage) = (server.node, server.number, server.lineage);
        server.node += 1;
        server.number += 1;
        state.behind = state.ears.keys().copied().collect();
        state.old = Some(OldPrimary { store, node, number, lineage, frozen: true });
        drop(state);
        let behind_ms = self.replica_takes_over().unwrap_or_default();
        self.state.lock().server.lineage += 1;
        self.record(What::Promoted { behind_ms });
        self.thawed.notify_waiters();
    }

    /// A process hears of the new primary, and subscribes there.
    pub(super) fn reroutes(self: &Arc<Self>, process: Process) {
        let mut state = self.state.lock();
        if !state.behind.remove(&process) {
            return;
        }
        state.confirmed.retain(|(whose, _)| *whose != process);
        if let Some(ear) = state.ears.get(&process) {
            *ear.anchor.lock() = None;
        }
        let channels: BTreeSet<_> =
            state.subscribers.values().filter(|to| to.process == process).map(|to| to.lock).collect();
        drop(state);
        self.record(What::Rerouted { process });
        for lock in channels {
            self.confirm(process, lock);
        }
    }

    /// The old primary answers what lies in its sockets, and whoever still asks it.
    pub(super) fn wakes(&self) {
        if let Some(old) = &mut self.state.lock().old {
            old.frozen = false;
        }
        self.record(What::Woken);
        self.thawed.notify_waiters();
    }

    pub(super) fn demotes(&self) {
        self.state.lock().old = None;
        self.record(What::Demoted);
        self.thawed.notify_waiters();
    }

    /// The processes that have not heard of the new primary.
    pub(super) fn behind(&self) -> Vec<Process> {
        self.state.lock().behind.iter().copied().collect()
    }

    pub(super) fn steps_clock(&self, band_ms: i64) {
        let mut state = self.state.lock();
        let skew_ms = state.rng.i64(-band_ms / 2..=band_ms / 2);
        state.server.skew_ms = skew_ms;
        drop(state);
        self.record(What::Stepped { skew_ms });
    }

    /// From now on nothing goes wrong.
    pub(super) fn heals(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.healed = true;
        let down = state.server.down.is_some();
        drop(state);
        if down {
            self.comes_up();
        }
        self.record(What::Healed);
    }

    // --- Notices.

    /// A process judges notices by this anchor from now on.
    pub(super) fn listens(&self, address: &Address, anchor: &Arc<Mutex<Option<Anchor>>>) {
        let ear = Ear { gate: Arc::clone(&address.gate), anchor: Arc::clone(anchor) };
        self.state.lock().ears.insert(address.process, ear);
    }

    /// Notices for one waiter.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        process: Process,
        key: &Key,
    ) -> (mpsc::UnboundedReceiver<Notice>, Unsubscribe) {
        let lock = lock_of(key);
        let confirmed = self.state.lock().confirmed.contains(&(process, lock));
        let subscription = self.listen(process, lock);
        if confirmed {
            self.tell(process, lock, &Notice::AskAgain);
        } else {
            self.confirm(process, lock);
        }
        subscription
    }

    /// The same, if a channel of a waiter before still lingers.
    pub(super) fn subscribed(
        self: &Arc<Self>,
        process: Process,
        key: &Key,
    ) -> Option<(mpsc::UnboundedReceiver<Notice>, Unsubscribe)> {
        let lock = lock_of(key);
        let mut state = self.state.lock();
        let lingers = state.confirmed.contains(&(process, lock)) && state.rng.bool();
        drop(state);
        lingers.then(|| self.listen(process, lock))
    }

    fn listen(self: &Arc<Self>, process: Process, lock: Lock) -> (mpsc::UnboundedReceiver<Notice>, Unsubscribe) {
        let number = self.number(3);
        let (to, notices) = mpsc::unbounded_channel();
        self.state.lock().subscribers.insert(number, Subscriber { process, lock, to });
        (notices, Unsubscribe { world: Arc::clone(self), number })
    }

    /// The server is told of a channel, in its time.
    fn confirm(self: &Arc<Self>, process: Process, lock: Lock) {
        let (late, server) = {
            let mut state = self.state.lock();
            let late = !state.healed && state.rng.u32(0..1000) < self.profile.slow;
            (late, state.server.number)
        };
        let by_ms = self.draw(|rng| if late { rng.u64(50..2_500) } else { rng.u64(0..4) });
        let world = Arc::clone(self);
        drop(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(by_ms)).await;
            {
                let mut state = world.state.lock();
                // It is told again when it is up.
                if state.server.down.is_some() || state.server.number != server {
                    return;
                }
                state.confirmed.insert((process, lock));
            }
            world.tell(process, lock, &Notice::AskAgain);
        }));
    }

    /// Passes one notice on, or not, or twice.
    fn publish(self: &Arc<Self>, message: Message) {
        let (process, lock) = (Id::of(message.id.as_str()).process, lock_of(&message.key));
        let (lost, late, twice) = {
            let mut state = self.state.lock();
            let healed = state.healed;
            let mut chance = |per_mille| !healed && state.rng.u32(0..1000) < per_mille;
            (chance(self.profile.notice_lost), chance(self.profile.notice_late), chance(self.profile.copied))
        };
        let unheard = !self.state.lock().confirmed.contains(&(process, lock));
        if lost || unheard {
            return self.record(What::NoticeLost { process, lock, unheard });
        }
        for _ in 0..=u32::from(twice) {
            let by_ms = if late { self.draw(|rng| rng.u64(5..2_500)) } else { self.draw(|rng| rng.u64(0..4)) };
            if late {
                self.record(What::NoticeLate { process, lock, by_ms });
            }
            let (world, message) = (Arc::clone(self), message.clone());
            drop(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(by_ms)).await;
                world.arrives(process, lock, message).await;
            }));
        }
    }

    /// A process reads a notice when it runs, and counts from what it was answered last.
    async fn arrives(&self, process: Process, lock: Lock, message: Message) {
        let Some((gate, anchor)) =
            self.state.lock().ears.get(&process).map(|ear| (Arc::clone(&ear.gate), Arc::clone(&ear.anchor)))
        else {
            return;
        };
        gate.pass().await;
        if !self.hears(process, message.server) {
            return self.record(What::NoticeLost { process, lock, unheard: false });
        }
        let now = self.clock.now();
        let anchor = (*anchor.lock()).filter(|anchor| anchor.age_at(now) <= MAX_ANCHOR_AGE);
        let counted = anchor.and_then(|anchor| Some((anchor, remaining_from(anchor, &message)?)));
        let micros = |span: Duration| u64::try_from(span.as_micros()).expect("runs are short");
        let anchor_us = counted.map(|(anchor, left)| (micros(anchor.sent.since(self.origin)), micros(left)));
        self.record(What::Noticed { process, lock, id: Id::of(message.id.as_str()), anchor: anchor_us });
        let notice = match counted {
            None => Notice::AskAgain,
            Some((anchor, remaining)) => {
                let value = Granted { remaining, ..message.granted };
                let answer = Answered { sent: anchor.sent, server: anchor.server, value };
                Notice::Granted { id: message.id.shared(), at: message.at, answer }
            }
        };
        self.tell(process, lock, &notice);
    }

    /// Whether a process has a connection to that server.
    fn hears(&self, process: Process, server: u32) -> bool {
        let state = self.state.lock();
        match &state.old {
            Some(old) if state.behind.contains(&process) => old.number == server && !old.frozen,
            _ => state.server.number == server && !state.behind.contains(&process),
        }
    }

    fn tell(&self, process: Process, lock: Lock, notice: &Notice) {
        let state = self.state.lock();
        let to = state.subscribers.values().filter(|to| (to.process, to.lock) == (process, lock));
        for subscriber in to {
            subscriber.to.send(notice.clone()).ok();
        }
    }

    pub(super) fn subscribers(&self) -> usize {
        self.state.lock().subscribers.len()
    }

    // --- Users.

    /// A guard is somebody's from now on. All others of the lock say how they stand.
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

    /// The resource that checks tokens is used: whether it lets that happen.
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
    let (token, forced) = record.marks();
    Seen { held, queue, token, forced }
}

fn news_of(news: &memory::News, now_ms: u64) -> News {
    let memory::News { id, granted: Granted { token, tokens, remaining, writers_waiting } } = news;
    let (deadline_ms, writers_waiting) = (now_ms + millis(*remaining), *writers_waiting);
    News { id: Id::of(id.as_str()), token: token.as_u64(), tokens: *tokens, deadline_ms, writers_waiting }
}

/// What is left of a grant from the moment on at which the anchor was sent; `None` if it is over by then.
fn remaining_from(anchor: Anchor, message: &Message) -> Option<Duration> {
    let deadline_ms = message.at.as_micros() / 1000 + millis(message.granted.remaining);
    let left_us = (deadline_ms * 1000).checked_sub(anchor.server.as_micros()).filter(|left_us| *left_us > 0)?;
    Some(Duration::from_micros(left_us))
}

/// What a server does with a request.
pub(super) fn operate(record: &mut Record, now: ServerTime, parcel: &Parcel) -> Answer {
    match parcel {
        Parcel::Acquire { request, not_after_ms } => Answer::Acquired(record.acquire(now, *not_after_ms, request)),
        Parcel::Conversion { old, request, not_after_ms } => {
            Answer::Converted(record.convert(now, *not_after_ms, old, request))
        }
        Parcel::Leave { id } => Answer::ReleaseReply(record.leave(now, id)),
        Parcel::Renew { id, lease } => Answer::Renewed(record.renew(now, id, *lease)),
        Parcel::Inspect => Answer::View(record.inspect(now)),
        Parcel::Force { seen } => Answer::Forced(record.force(now, *seen)),
        Parcel::Time => Answer::Time,
    }
}

/// A virtual process as the world knows it.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) process: Process,
    pub(super) gate: Arc<Gate>,
    /// The runtime that has used the manager first: where mutants do what belongs to none.
    pub(super) first: Arc<OnceLock<Arc<Runtime>>>,
}

impl Address {
    pub(super) fn new(process: Process) -> Self {
        Self { process, gate: Arc::default(), first: Arc::default() }
    }
}
