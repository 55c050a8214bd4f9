//! The world of a run: one server, its network, its clock, and everything that goes wrong there. All of it is drawn from
//! one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::gate::Gate;
use super::history::{
    Attempt, Event, Guard, Held, History, Id, Lock, Micros, News, Op, Process, Reply, Request, Seen, What,
};
use super::mutants::{Mutant, Wrong};
use super::profile::Profile;
use crate::clock::Clock;
use crate::guard::HoldWatch;
use crate::hold::HoldState;
use crate::key::Key;
use crate::lease::{Anchor, FencingToken, Moment, ServerTime};
use crate::scheme::memory::replica::Image;
use crate::scheme::memory::{self, Record, Store};
use crate::scheme::{Acquired, Acquisition, Answered, Ask, Granted, IfTaken, Left, Notice, Renewed, Turned, View};

/// When the server's clock stood at the start, in microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// How often the replica hears from the primary.
const REPLICATION: Duration = Duration::from_millis(100);
/// An older anchor judges no notice, as the transport has it.
const ANCHOR_AGE_MOST: Duration = Duration::from_secs(2);

pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) origin: Moment,
    pub(super) profile: Profile,
    pub(super) mutant: Option<Mutant>,
    pub(super) store: Arc<Store>,
    state: Mutex<State>,
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
    /// The attempt whose future is being polled.
    acting: Option<Attempt>,
}

struct Server {
    down: Option<Down>,
    /// Connections of before an outage are gone.
    number: u32,
    skew_ms: i64,
    /// Parts per million that its clock runs too fast.
    rate_ppm: i64,
    /// The replica's content, newest last.
    replica: Vec<(Micros, Image)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Down {
    Silent,
    Refusing,
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
    id: Acquisition,
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
    Acquire { ask: Ask, not_after_ms: u64 },
    Turn { old: Acquisition, ask: Ask, not_after_ms: u64 },
    Leave { id: Acquisition },
    Renew { id: Acquisition, lease: Duration },
    Inspect,
    Force { seen: Option<FencingToken> },
    Time,
}

/// What comes back.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Acquired(Acquired),
    Turned(Turned),
    Left(Left),
    Renewed(Renewed),
    View(View),
    Forced(Vec<String>),
    Time,
}

/// How a delivery ended, as far as the sender can hear of it.
#[derive(Clone, Debug)]
pub(super) enum Delivery {
    Answered(Answer, ServerTime),
    Refused,
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
            Self::Acquire { ask, not_after_ms } => Op::Acquire {
                id: Id::of(ask.id.as_str()),
                mode: ask.mode,
                lease_ms: millis(ask.lease),
                not_after_ms: *not_after_ms,
                patience_ms: match ask.if_taken {
                    IfTaken::Leave => None,
                    IfTaken::Queue { patience } => Some(millis(patience)),
                },
            },
            Self::Turn { old, ask, not_after_ms } => Op::Turn {
                old: Id::of(old.as_str()),
                id: Id::of(ask.id.as_str()),
                mode: ask.mode,
                lease_ms: millis(ask.lease),
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
    pub(super) fn reply(&self) -> Reply {
        let sorted = |ids: &mut dyn Iterator<Item = &String>| {
            let mut ids: Vec<_> = ids.map(|id| Id::of(id)).collect();
            ids.sort_unstable();
            ids
        };
        match self {
            Self::Acquired(Acquired::Granted(granted)) | Self::Turned(Turned::Granted(granted)) => Reply::Granted {
                token: granted.token.as_u64(),
                turns: granted.turns,
                remaining_ms: millis(granted.remaining),
                writers_waiting: granted.writers_waiting,
            },
            Self::Acquired(Acquired::Queued { retry_in }) => Reply::Queued { retry_in_ms: millis(*retry_in) },
            Self::Acquired(Acquired::Contended { retry_in }) => Reply::Contended { retry_in_ms: millis(*retry_in) },
            Self::Acquired(Acquired::Late) | Self::Turned(Turned::Late) => Reply::Late,
            Self::Turned(Turned::Refused) => Reply::Refused,
            Self::Left(Left::Held) => Reply::Held,
            Self::Left(Left::Queued) => Reply::Waited,
            Self::Left(Left::None { .. }) => Reply::None,
            Self::Renewed(Renewed::Renewed { remaining }) => Reply::Renewed { remaining_ms: millis(*remaining) },
            Self::Renewed(Renewed::Lost { .. }) | Self::Turned(Turned::Lost { .. }) => Reply::Lost,
            Self::View(view) => Reply::View(sorted(&mut view.holders.iter().map(|holder| &holder.id))),
            Self::Forced(ids) => Reply::Forced(sorted(&mut ids.iter())),
            Self::Time => Reply::Time,
        }
    }
}

pub(super) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl World {
    /// Within a runtime whose clock is paused.
    pub(super) fn new(seed: u64, profile: Profile, mutant: Option<Mutant>) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Clock::runtime();
        let server =
            Server { down: None, number: 0, skew_ms: 0, rate_ppm: rng.i64(-9_000..=9_000), replica: Vec::new() };
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
                acting: None,
            }),
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
        self.record(What::Sent { request, process, lock: lock_of(key), op: parcel.op(), attempt });
        if let Some(second) = second {
            self.deliver(request, second, key, parcel, None);
        }
        self.deliver(request, first, key, parcel, Some(answer));
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
        let mut trip = |slow| Duration::from_millis(if slow { rng.u64(50..2_500) } else { rng.u64(0..4) });
        let first = Fate {
            copy: 1,
            there: trip(slow.0),
            back: trip(slow.1),
            request_lost: lost.0,
            // A late copy of an acquisition or a turn that was answered would be one that its sender cannot know of. On one
            // connection a request is not carried out after a later one, so there it does not happen.
            reply_lost: lost.1 || (copied && matches!(parcel, Parcel::Acquire { .. } | Parcel::Turn { .. })),
        };
        let second = copied.then(|| Fate { copy: 2, there: first.there + trip(true), ..first });
        (first, second)
    }

    fn deliver(
        self: &Arc<Self>,
        request: Request,
        fate: Fate,
        key: &Arc<Key>,
        parcel: &Parcel,
        answer: Option<oneshot::Sender<Delivery>>,
    ) {
        let (world, key, parcel) = (Arc::clone(self), Arc::clone(key), parcel.clone());
        drop(tokio::spawn(async move {
            let copy = fate.copy;
            tokio::time::sleep(fate.there).await;
            let down = world.state.lock().server.down;
            if down == Some(Down::Refusing) {
                if let Some(answer) = answer {
                    answer.send(Delivery::Refused).ok();
                }
                return;
            }
            if fate.request_lost || down.is_some() {
                return world.record(What::RequestLost { request, copy });
            }
            let (reply, server) = world.apply(request, copy, &key, &parcel);
            tokio::time::sleep(fate.back).await;
            let Some(answer) = answer else {
                return;
            };
            if fate.reply_lost || world.state.lock().server.down.is_some() {
                return world.record(What::ReplyLost { request, copy });
            }
            answer.send(Delivery::Answered(reply, server)).ok();
        }));
    }

    // --- The server.

    fn apply(self: &Arc<Self>, request: Request, copy: u32, key: &Arc<Key>, parcel: &Parcel) -> (Answer, ServerTime) {
        let mut state = self.state.lock();
        let now = self.time_of(&state.server);
        let now_ms = now.as_micros() / 1000;
        let wrong = &mut state.wrong;
        let (before, answer, told, after, forget_ms) = self.store.operate(key, now, |record| {
            let before = seen(record, now_ms);
            let (answer, told) = match self.mutant {
                Some(mutant) => wrong.operate(mutant, key, record, now, parcel),
                None => (operate(record, now, parcel), record.take_news()),
            };
            (before, answer, told, seen(record, now_ms), record.forget_ms())
        });
        let news = told.iter().map(|news| news_of(news, now_ms)).collect();
        let server_number = state.server.number;
        let lock = lock_of(key);
        let (op, reply, server_us) = (parcel.op(), answer.reply(), now.as_micros());
        let what = What::Applied { request, copy, lock, op, reply, server_us, forget_ms, before, after, news };
        let at = self.now();
        state.history.events.push(Event { at, what });
        drop(state);
        for memory::News { id, granted } in told {
            self.publish(Message { key: Arc::clone(key), id, granted, at: now, server: server_number });
        }
        (answer, now)
    }

    /// What the server has left of a hold, by its own clock.
    pub(super) fn server_ms(&self, key: &Key, id: Id) -> Option<u64> {
        let now_ms = self.server_time().as_micros() / 1000;
        let held = seen(&self.store.record(key), now_ms).held;
        held.iter().find(|held| held.id == id).map(|held| held.deadline_ms - now_ms)
    }

    /// Copies the primary to the replica from time to time.
    pub(super) async fn replicate(self: Arc<Self>) {
        loop {
            self.copy_to_replica();
            tokio::time::sleep(REPLICATION).await;
        }
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
        self.state.lock().wrong.forget();
        self.record(What::Emptied);
    }

    /// A replica takes over that is behind.
    pub(super) fn falls_back(&self) {
        let mut state = self.state.lock();
        let many = state.server.replica.len();
        let pick = state.rng.usize(0..many.max(1));
        let Some((at, image)) = state.server.replica.get(pick).cloned() else {
            return;
        };
        state.server.replica.clear();
        drop(state);
        self.store.replace(image);
        let behind_ms = (self.now() - at) / 1000;
        self.record(What::Stale { behind_ms });
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
        if lost || !self.state.lock().confirmed.contains(&(process, lock)) {
            return self.record(What::NoticeLost { process, lock });
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
        if self.state.lock().server.number != message.server {
            return self.record(What::NoticeLost { process, lock });
        }
        let now = self.clock.now();
        let anchor = (*anchor.lock()).filter(|anchor| anchor.age_at(now) <= ANCHOR_AGE_MOST);
        let counted = anchor.and_then(|anchor| Some((anchor, remaining_from(anchor, &message)?)));
        let anchor_us = counted.map(|(anchor, left)| {
            (u64::try_from(anchor.sent.since(self.origin).as_micros()).expect("runs are short"), millis(left))
        });
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
            others.map(|live| (live.guard, Arc::clone(&live.key), live.id, is_valid(live.watch.state()))).collect()
        };
        for (guard, key, id, valid) in stands {
            let server_ms = self.server_ms(&key, id);
            self.record(What::Sample { guard, valid, remaining_us: None, server_ms });
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
    Seen { held, queue: record.live_waiters(now_ms).into_iter().map(known).collect() }
}

fn news_of(news: &memory::News, now_ms: u64) -> News {
    let memory::News { id, granted: Granted { token, turns, remaining, .. } } = news;
    let deadline_ms = now_ms + millis(*remaining);
    News { id: Id::of(id.as_str()), token: token.as_u64(), turns: *turns, deadline_ms }
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
        Parcel::Acquire { ask, not_after_ms } => Answer::Acquired(record.acquire(now, *not_after_ms, ask)),
        Parcel::Turn { old, ask, not_after_ms } => Answer::Turned(record.turn(now, *not_after_ms, old, ask)),
        Parcel::Leave { id } => Answer::Left(record.leave(now, id)),
        Parcel::Renew { id, lease } => Answer::Renewed(record.renew(now, id, *lease)),
        Parcel::Inspect => Answer::View(record.inspect(now)),
        Parcel::Force { seen } => Answer::Forced(record.force(now, *seen)),
        Parcel::Time => Answer::Time,
    }
}

/// A virtual process as the world knows it.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) process: Process,
    pub(super) gate: Arc<Gate>,
}
