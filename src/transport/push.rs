//! Wake-ups: what waiters are told without asking, on connections that carry nothing but subscriptions.
//!
//! Each channel is subscribed at the node that owns its slot as far as is known: its *home*. A node that is home to
//! channels has a [`link`], one connection and one task; no other node has. One more task, the keeper, moves channels
//! whose slots have moved, and ends what nobody needs any more: a channel *lingers* for a while after its last waiter,
//! so that a lock that is fought for does not subscribe at every hand-over. All of this is there once for each runtime that
//! waits: a message is read where it is waited for, and a runtime that ends or stands still keeps it from no other.
//!
//! What a server has subscribed is known from its pushes alone. They name their channel and come in the order in which
//! it did what they say, so after `ssubscribe` no message is missed until `sunsubscribe`, whoever asked for either. They
//! are handled by the task that reads the connection, and so are messages: from there to the waiter is one hop. Every
//! confirmation tells the channel's waiters to ask again, since what was published before it woke nobody.
//!
//! # Anchors
//!
//! A message may carry a deadline by the clock of the server that published it. It is judged by an anchor that the main
//! connection to the same node has: a request sent at the local moment `s`, answered with the server's time `t`. The
//! server read `t` after `s`, so its clock reaches a deadline `d` no earlier here than `s + (d - t)`, but for the clocks'
//! rates. When the message itself is read does not enter. So one that lay in a socket while this process stood still is
//! judged rightly: if no request was answered since, the anchor is as old as the pause and is refused for its age; if one
//! was, `t` is later, and the deadline is over. An answer that lay in the socket as well was too late for its request and
//! made no anchor.
//!
//! An anchor is refused if it is older than [`Pace::anchor_age_most`], if its node is suspect, or if its main connection is
//! newer than the last answer on the link: the message might come from a server that has been replaced since.
//!
//! Waiters are told, and let go, with no lock of ours: their wakers are the user's, and may do anything.
//!
//! # Calls
//!
//! A process that keeps a lock hears on another channel who waits for it ([`Calls`]). These channels are served in the
//! [home](crate::home), whatever the callers' runtimes do. There may be one for each lock, so they are small, and whoever keeps a
//! lock need not say that it does so no more: the keeper finds it out. What is kept may be relied on only while it would be heard, so a link
//! with such channels pings its node, and each break of a subscription is told.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::attempt::{self, Notice, Subscription};
use crate::calls::{Calls, FRESH, Fresh, Standing};
use crate::clock::Clock;
use crate::home::Home;
use crate::lease::Moment;
use crate::options::Options;
use crate::process;
use crate::shield::shielded;
use crate::throttle::Throttle;
use crate::transport::ReadNotice;
use crate::transport::node::Node;
use crate::transport::slot_owners::SlotOwners;
use channel::{Channel, LinkId, Listener, Purpose};
use link::{Lost, Running};

mod channel;
mod hearing;
mod keeper;
mod link;
#[cfg(test)]
mod tests;

/// So many channels more than at the last look are reason for another one.
const BURST: usize = 1024;

/// How long things are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How often everything is subscribed again, whatever the server said before.
    pub(super) refresh: Duration,
    /// How long a channel stays after its last waiter: the next contention is likely to come soon.
    pub(super) linger: Duration,
    /// The most channels of waiters that stay without one; those that have been so the longest go first.
    pub(super) lingering_most: usize,
    /// The same of channels by which calls come. These are not subscribed again and again.
    pub(super) lingering_calls_most: usize,
    /// An older anchor is not trusted: two heartbeats of a waiter.
    pub(super) anchor_age_most: Duration,
    /// How long a node may take to answer.
    pub(super) response_timeout: Duration,
    /// How often a node is pinged at which calls are listened for.
    pub(super) ping: Duration,
}

impl Pace {
    pub(super) fn of(options: &Options) -> Self {
        Self {
            refresh: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            lingering_most: 1024,
            // A hold stays if its lock's calls are heard when it is asked for: as many must linger as may stay, or locks that are
            // used in turn push each other's out.
            lingering_calls_most: options.idle_holds_max,
            anchor_age_most: Duration::from_secs(2),
            response_timeout: options.response_timeout,
            ping: FRESH / 2,
        }
    }
}

/// All subscriptions of one transport. Dropping it ends them.
pub(super) struct Push {
    common: Arc<Common>,
    /// Those of each runtime.
    of: Mutex<Vec<(Id, Arc<Shared>)>>,
}

/// What those of all runtimes have in common.
struct Common {
    slot_owners: SlotOwners,
    clock: Clock,
    /// Where calls are listened for.
    home: Home,
    pace: Pace,
    /// How many channels there are: mostly none, which is then all that there is to know.
    count: AtomicUsize,
    /// Somebody has been told that a right is missing.
    is_refusal_told: AtomicBool,
}

/// The subscriptions of one runtime, whose tasks all run there.
struct Shared {
    common: Arc<Common>,
    /// How many of the channels are here.
    count: AtomicUsize,
    subscriptions: Mutex<Subscriptions>,
    /// A channel has no home.
    strayed: Notify,
    /// The runtime has.
    has_ended: AtomicBool,
}

impl Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

#[derive(Default)]
struct Subscriptions {
    /// Boxed, since a map has room for up to twice as many, and there may be one for each lock.
    channels: HashMap<Arc<str>, Box<Channel>>,
    links: HashMap<LinkId, Link>,
    /// Channels without a waiter, in the order in which they lost their last, and when that was.
    lingering: Lingering,
    /// The same of those by which calls come, once it was found.
    lingering_calls: Lingering,
    /// Runs as long as there are channels.
    keeper: Option<AbortHandle>,
    /// How many channels were left when somebody looked for those that nobody keeps any more.
    looked_at: usize,
    last_number: u64,
    last_link: Option<LinkId>,
    /// Whoever is to be told that its subscription has broken, when no lock is held.
    broken: Vec<Arc<Calls>>,
}

type Lingering = BTreeMap<NonZeroU64, (Arc<str>, Instant)>;

/// What is known of a link by those who are not its task.
struct Link {
    node: Arc<Node>,
    wake: Arc<Notify>,
    task: AbortHandle,
    /// Pushes of an earlier connection count for nothing.
    connection: u64,
    /// Present when it is to be replaced.
    lost: Option<Lost>,
    /// What the server has subscribed on this connection beside the channels that are confirmed here: it is to be ended.
    leftovers: HashSet<Arc<str>>,
    /// Channels at which the task shall look. Pushes add none that this process has not asked for since the last look.
    todo: VecDeque<Arc<str>>,
    /// Channels of the last commands whose confirmation has not come.
    awaited: VecDeque<Arc<str>>,
    /// Bound of the requests for channels that the server ends unasked.
    ended: Throttle,
    /// Until when what this connection has subscribed is heard.
    fresh: Arc<Fresh>,
    /// Somebody may rely on that.
    is_kept: bool,
    /// The main connection before the last commands were sent.
    asked: Option<u64>,
    /// The main connection before commands were sent of which one was answered.
    proven: Option<u64>,
    must_prove: bool,
}

impl Link {
    /// Its runtime has, most likely.
    fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    fn standing(&self, epoch: u64) -> Standing {
        Standing { epoch, fresh: Arc::clone(&self.fresh) }
    }

    /// Somebody may rely on it.
    fn is_pinged_from_now_on(&mut self) {
        if !std::mem::replace(&mut self.is_kept, true) {
            self.wake.notify_one();
        }
    }

    /// A channel that was at home here is so no more.
    fn lets_go(&mut self, name: &Arc<str>, channel: &Channel) {
        if channel.is_confirmed {
            self.leftovers.insert(Arc::clone(name));
        }
        self.look_at(name);
    }

    /// Counts a channel that the server has ended unasked. Returns when to subscribe it again, if that is not now.
    fn subscribes_again_at(&mut self, now: Moment) -> Option<Instant> {
        let at = self.ended.next_at().max(now);
        self.ended.take(at);
        (at > now).then(|| Instant::now() + at.since(now))
    }

    fn look_at(&mut self, name: &Arc<str>) {
        self.todo.push_back(Arc::clone(name));
        self.wake.notify_one();
    }
}

/// Where a push comes from.
#[derive(Clone, Copy)]
struct Origin {
    link: LinkId,
    connection: u64,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Push")
    }
}

/// A listener of a channel.
struct Place {
    channel: Arc<str>,
    number: NonZeroU64,
}

/// Ends one waiter's subscription.
struct Unsubscribe {
    shared: Weak<Shared>,
    place: Place,
}

impl Unsubscribe {
    fn new(shared: &Arc<Shared>, place: Place) -> Self {
        Self { shared: Arc::downgrade(shared), place }
    }
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.leave(&self.place);
        }
    }
}

impl Push {
    pub(super) fn new(slot_owners: SlotOwners, clock: Clock, home: Home, pace: Pace) -> Self {
        let (count, is_refusal_told) = (AtomicUsize::new(0), AtomicBool::new(false));
        let common = Common { slot_owners, clock, home, pace, count, is_refusal_told };
        Self { common: Arc::new(common), of: Mutex::default() }
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.common.count.load(Ordering::Acquire) > 0
    }

    /// The first notice is [`Notice::AskAgain`], as soon as the channel is confirmed at its home. It is served by this runtime,
    /// and ends with it.
    pub(super) fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Subscription {
        let (sender, notices) = attempt::notices();
        // Outside of a runtime it panics here and not under the lock, which the subscription needs to be dropped.
        let (shared, place) = self.add(&Handle::current(), slot, channel, read, Listener::Waiter(sender));
        Subscription { notices, _end: Box::new(Unsubscribe::new(&shared, place)) }
    }

    /// Tells `calls` what is published, from the home, as long as somebody has it. `false` if there is no home. Never waits.
    pub(super) fn listen(&self, slot: u16, channel: &str, read: ReadNotice, calls: &Arc<Calls>) -> bool {
        let Some(home) = self.common.home.runtime() else {
            return false;
        };
        // The task of a link is spawned within.
        let _in_home = home.enter();
        self.add(&home, slot, channel, read, Listener::Keeper(Arc::downgrade(calls)));
        true
    }

    /// Answers what the listener is known by there.
    fn add(
        &self,
        runtime: &Handle,
        slot: u16,
        channel: &str,
        read: ReadNotice,
        listener: Listener,
    ) -> (Arc<Shared>, Place) {
        let mut of = self.of.lock();
        let id = runtime.id();
        let known = of.iter().find(|(of, shared)| *of == id && !shared.has_ended.load(Ordering::Acquire));
        let shared = match known {
            Some((_, shared)) => Arc::clone(shared),
            None => {
                of.retain(|(of, shared)| *of != id && shared.count.load(Ordering::Acquire) > 0);
                let shared = Arc::new(Shared::new(Arc::clone(&self.common)));
                of.push((id, Arc::clone(&shared)));
                shared
            }
        };
        // Under this lock: what is in use is not taken for what is not.
        let (place, is_kept) = shared.subscribe(slot, channel, read, listener);
        drop(of);
        shared.tell_broken();
        if !is_kept {
            // With no lock held: a runtime that is shutting down drops the task within this call, and what it leaves needs them.
            let keeper = process::spawn_on(runtime, Arc::clone(&shared).keep()).abort_handle();
            shared.subscriptions.lock().keeper = Some(keeper);
        }
        (shared, place)
    }

    /// Only if the channel is confirmed at its home now, which is not in doubt.
    pub(super) fn subscribed(&self, channel: &str) -> Option<Subscription> {
        if !self.is_in_use() {
            return None;
        }
        let id = Handle::try_current().ok()?.id();
        let of = self.of.lock();
        let (_, shared) = of.iter().find(|(of, _)| *of == id)?;
        shared.subscribed(channel)
    }
}

impl Shared {
    fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            count: AtomicUsize::new(0),
            subscriptions: Mutex::default(),
            strayed: Notify::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    fn counts(&self, channels: usize) {
        let before = self.count.swap(channels, Ordering::AcqRel);
        self.common.count.fetch_add(channels.wrapping_sub(before), Ordering::AcqRel);
    }

    /// And whether there is somebody who keeps it in order.
    fn subscribe(self: &Arc<Self>, slot: u16, channel: &str, read: ReadNotice, listener: Listener) -> (Place, bool) {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        // The keeper looks once a second only. Names that are never used again may be many by then.
        if subscriptions.channels.len() > subscriptions.looked_at + self.pace.lingering_calls_most.max(BURST) {
            subscriptions.tidy(&self.pace);
        }
        let name = subscriptions.name(channel, || Channel::new(slot, read, &listener));
        self.counts(subscriptions.channels.len());
        let (is_confirmed, home) =
            subscriptions.channels.get(&name).map_or((false, None), |it| (it.is_confirmed, it.home));
        let place = subscriptions.add_listener(&name, listener);
        if is_confirmed {
            subscriptions.tell_newest(&name);
        } else if home.is_none() && !self.place(&mut subscriptions, &name) {
            self.strayed.notify_one();
        }
        let is_kept = subscriptions.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished());
        (place, is_kept)
    }

    fn subscribed(self: &Arc<Self>, channel: &str) -> Option<Subscription> {
        let mut subscriptions = self.subscriptions.lock();
        let (name, entry) = subscriptions.channels.get_key_value(channel)?;
        let home = subscriptions.links.get(&entry.home.filter(|_| entry.is_confirmed)?)?;
        let slot_owners = &self.slot_owners;
        if home.has_ended() || !slot_owners.leaves(entry.slot, &home.node) || slot_owners.suspects(&home.node) {
            return None;
        }
        let (name, (sender, notices)) = (Arc::clone(name), attempt::notices());
        let place = subscriptions.add_listener(&name, Listener::Waiter(sender));
        Some(Subscription { notices, _end: Box::new(Unsubscribe::new(self, place)) })
    }
}

impl Shared {
    /// Ends all of them. Whoever waits learns that nothing will come.
    fn end(&self) {
        let mut subscriptions = std::mem::take(&mut *self.subscriptions.lock());
        self.counts(0);
        let links = subscriptions.links.values().map(|link| &link.task);
        subscriptions.keeper.iter().chain(links).for_each(AbortHandle::abort);
        subscriptions.unconfirm_all();
        subscriptions.broken.into_iter().for_each(|calls| calls.tell_broken());
    }

    /// Whoever relied on what has broken by now is told.
    fn tell_broken(&self) {
        let broken = std::mem::take(&mut self.subscriptions.lock().broken);
        // What they tell may go to a user's subscriber of `tracing`.
        for calls in broken {
            shielded(|| calls.tell_broken());
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let of = std::mem::take(&mut *self.of.lock());
        of.iter().for_each(|(_, shared)| shared.end());
    }
}

impl Subscriptions {
    fn next_number(&mut self) -> NonZeroU64 {
        self.last_number += 1;
        NonZeroU64::MIN.saturating_add(self.last_number)
    }

    fn next_link(&mut self) -> LinkId {
        *self.last_link.insert(self.last_link.map_or(LinkId::FIRST, LinkId::next))
    }

    fn add_listener(&mut self, name: &Arc<str>, listener: Listener) -> Place {
        let number = self.next_number();
        if let Some(channel) = self.channels.get_mut(name) {
            channel.add(number, listener);
            let (lingers, purpose) = (channel.lingers.take(), channel.purpose);
            if let Some(number) = lingers {
                self.lingering_of(purpose).remove(&number);
            }
        }
        Place { channel: Arc::clone(name), number }
    }

    /// Nobody listens to a channel any more.
    fn begin_to_linger(&mut self, name: &Arc<str>) {
        let number = self.next_number();
        if let Some(channel) = self.channels.get_mut(name).filter(|channel| channel.lingers.is_none()) {
            channel.lingers = Some(number);
            let purpose = channel.purpose;
            self.lingering_of(purpose).insert(number, (Arc::clone(name), Instant::now()));
        }
    }

    /// Channels that nobody keeps any more begin to linger, and of these those go that are too many.
    fn tidy(&mut self, pace: &Pace) {
        self.note_kept_no_more();
        self.bound_lingering(pace);
        self.looked_at = self.channels.len();
    }

    /// Those go that linger the longest, if there are too many.
    fn bound_lingering(&mut self, pace: &Pace) {
        let bounds = [(Purpose::Turns, pace.lingering_most), (Purpose::Calls, pace.lingering_calls_most)];
        for (purpose, most) in bounds {
            while self.lingering_of(purpose).len() > most
                && let Some((_, (oldest, _))) = self.lingering_of(purpose).pop_first()
            {
                self.forget(&oldest);
            }
        }
    }

    /// The shared name of a channel, which is there afterwards.
    fn name(&mut self, channel: &str, new: impl FnOnce() -> Channel) -> Arc<str> {
        if let Some((name, _)) = self.channels.get_key_value(channel) {
            return Arc::clone(name);
        }
        let name: Arc<str> = channel.into();
        self.channels.insert(Arc::clone(&name), Box::new(new()));
        name
    }

    /// The last one to come has a channel that is confirmed.
    fn tell_newest(&mut self, name: &str) {
        let epoch = self.next_number().get();
        let Some(channel) = self.channels.get(name) else {
            return;
        };
        match channel.listeners.last() {
            // It was made just now.
            Some((_, Listener::Waiter(waiter))) => drop(waiter.try_send(Notice::AskAgain)),
            Some((_, listener)) => {
                let link = channel.home.and_then(|home| self.links.get_mut(&home));
                if let (Some(calls), Some(link)) = (listener.keeper(), link) {
                    calls.stands(link.standing(epoch));
                    link.is_pinged_from_now_on();
                }
            }
            None => {}
        }
    }

    fn unconfirm_all(&mut self) {
        self.channels.values_mut().for_each(|channel| channel.unconfirm(&mut self.broken));
    }

    fn lingering_of(&mut self, purpose: Purpose) -> &mut Lingering {
        match purpose {
            Purpose::Turns => &mut self.lingering,
            Purpose::Calls => &mut self.lingering_calls,
        }
    }

    /// Nobody waits for it any more.
    fn forget(&mut self, name: &Arc<str>) {
        let Some(channel) = self.channels.remove(name) else {
            return;
        };
        if let Some(home) = channel.home.and_then(|home| self.links.get_mut(&home)) {
            home.lets_go(name, &channel);
        }
    }

    /// Links whose task has ended are no home. They are found here, because a task that did this itself when it is dropped
    /// would wait for ever for the lock: a runtime that is shutting down drops it within the call that spawns it.
    fn bury(&mut self) {
        let dead: Vec<_> = self.links.extract_if(|_, link| link.has_ended()).map(|(number, _)| number).collect();
        // Mostly none is: then nobody looks at all the channels.
        if dead.is_empty() {
            return;
        }
        for channel in
            self.channels.values_mut().filter(|channel| channel.home.is_some_and(|home| dead.contains(&home)))
        {
            channel.home = None;
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Nothing is confirmed at this link any more. Whoever reads its connection may have some of it in hand still: that counts for
    /// nothing from now on.
    fn unconfirm(&mut self, link: LinkId) {
        let none = self.next_number().get();
        if let Some(link) = self.links.get_mut(&link) {
            link.connection = none;
        }
        for channel in self.channels.values_mut().filter(|channel| channel.home == Some(link)) {
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Whether somebody relies on this link; looks at all its channels.
    fn is_kept(&mut self, link: LinkId) -> bool {
        let is_kept = self.channels.values().any(|channel| channel.home == Some(link) && channel.is_kept());
        if let Some(link) = self.links.get_mut(&link) {
            link.is_kept = is_kept;
        }
        is_kept
    }
}

impl Shared {
    fn leave(&self, Place { channel: name, number }: &Place) {
        let mut subscriptions = self.subscriptions.lock();
        let Some(channel) = subscriptions.channels.get_mut(name) else {
            return;
        };
        let left = channel.remove(*number);
        if channel.listeners.is_empty() {
            subscriptions.begin_to_linger(name);
            subscriptions.bound_lingering(&self.pace);
            self.counts(subscriptions.channels.len());
        }
        drop(subscriptions);
        drop(left);
    }

    /// Gives a channel the known owner of its slot for a home. `false` if it has none then.
    fn place(self: &Arc<Self>, subscriptions: &mut Subscriptions, name: &Arc<str>) -> bool {
        let Some(channel) = subscriptions.channels.get(name) else {
            return true;
        };
        let old = channel.home;
        let Some(owner) = self.slot_owners.known_owner(channel.slot) else {
            return old.is_some();
        };
        let new = self.link_to(subscriptions, &owner);
        if old == Some(new) {
            return true;
        }
        let channel = subscriptions.channels.get(name);
        if let (Some(link), Some(channel)) = (old.and_then(|old| subscriptions.links.get_mut(&old)), channel) {
            link.lets_go(name, channel);
        }
        if let Some(link) = subscriptions.links.get_mut(&new) {
            link.look_at(name);
        }
        if let Some(channel) = subscriptions.channels.get_mut(name) {
            channel.home = Some(new);
            // A server that has ended it says nothing of the next one.
            drop(channel.refused.take_if(|refused| refused.times == 0));
            channel.unconfirm(&mut subscriptions.broken);
        }
        true
    }

    /// The link to a node, which is there afterwards.
    fn link_to(self: &Arc<Self>, subscriptions: &mut Subscriptions, node: &Arc<Node>) -> LinkId {
        let mut known = subscriptions.links.iter().filter(|(_, link)| link.node.address() == node.address());
        if let Some((number, _)) = known.next() {
            return *number;
        }
        let number = subscriptions.next_link();
        let wake = Arc::new(Notify::new());
        let running = Running::new(Arc::clone(self), number, Arc::clone(node), Arc::clone(&wake));
        let link = Link {
            node: Arc::clone(node),
            wake,
            task: process::spawn(running.run()).abort_handle(),
            connection: 0,
            lost: None,
            leftovers: HashSet::new(),
            todo: VecDeque::new(),
            awaited: VecDeque::new(),
            ended: Throttle::new(),
            fresh: Arc::new(Fresh::until(node.id(), Moment::from_nanos(0))),
            is_kept: false,
            asked: None,
            proven: None,
            must_prove: false,
        };
        subscriptions.links.insert(number, link);
        number
    }
}
