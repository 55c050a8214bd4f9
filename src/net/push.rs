//! Notifications for waiters, and recalls. They arrive on connections that carry only subscriptions.
//!
//! Each channel is subscribed on its *owner link*: the link to the known owner of its slot. A node that owns channels
//! has one such [`link`], which is one connection and one task. Other nodes have none.
//!
//! One more task, the maintenance task ([`maintenance`]), moves channels whose slots have moved, and ends channels
//! without a listener. A channel *lingers* for a while after its last waiter has left. So a contended lock does not
//! need a new subscription for each waiter.
//!
//! Each runtime with waiters has its own links and its own maintenance task. So a message is read on the runtime of its
//! waiter. A runtime that ends or stands still delays no other runtime.
//!
//! Only pushes report which channels a server has subscribed. Each push names its channel, and pushes come in the order
//! in which the server acted. So after `ssubscribe` no message is missed until `sunsubscribe`, whatever caused these
//! pushes.
//!
//! The task that reads the connection passes each message directly to the waiter. After every confirmation, the waiters
//! of the channel ask the server again, since an earlier message has not reached them.
//!
//! # Clock samples
//!
//! A message may contain a deadline by the clock of the server that published it. The process converts this deadline
//! with a clock sample of the main connection to the same node. The sample is a request that was sent at the local
//! moment `s`, and was answered with the server's time `t`.
//!
//! The server read its clock as `t` after `s`. So its clock reaches a deadline `d` no earlier than the local moment `s
//! + (d - t)`, apart from clock rates. The moment at which the process reads the message does not matter.
//!
//! A message may lie in a socket while this process stands still, and is judged correctly after that. If no request was
//! answered after the pause, the clock sample is as old as the pause, and is refused because of its age. If a request
//! was answered after the pause, `t` is later, and the deadline is over. An answer that lay in the socket during the
//! pause came too late for its request, and gave no clock sample.
//!
//! A clock sample is refused in three cases:
//!
//! * The sample is older than [`Pace::max_clock_sample_age`].
//! * The node of the sample is suspect.
//! * The main connection is newer than the last answer on the link. The message may then come from a server that has
//!   been replaced since.
//!
//! No lock of this module is held while waiters are notified or dropped: their wakers are the user's code, and may do
//! anything.
//!
//! # Recalls
//!
//! A process with a cached hold listens on another channel for recalls ([`Recalls`]). The [background
//! runtime](crate::base::background_runtime) serves these channels, independently of the callers' runtimes. There may
//! be one such channel for each lock, so channels are small.
//!
//! A process that drops a cached hold need not unsubscribe, since the maintenance task finds the unused channel. A
//! cached hold may be used only while its subscription is live. So a link with recall channels pings its node, and
//! reports each break of a subscription.

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

use crate::base::attempt::{self, Notification, Subscription};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::lease::Moment;
use crate::base::options::Options;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::base::recalls::{LIVE_FOR, LiveSubscription, Liveness, Recalls};
use crate::base::throttle::Throttle;
use crate::net::ReadNotification;
use crate::net::node::Node;
use crate::net::slot_owners::SlotOwners;
use channel::{Channel, LinkId, Listener, Purpose};
use link::{LinkRun, Lost};

mod channel;
mod link;
mod maintenance;
mod on_push;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/push/tests.rs"]
mod tests;

/// Least number of new channels that causes a cleanup between two regular ones.
const BURST: usize = 1024;

/// Times and limits of subscriptions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Pause after which the channels of waiters are subscribed again, even if the server has confirmed them.
    pub(super) refresh: Duration,
    /// Time for which a channel stays after its last waiter, since the next contention is likely to come soon.
    pub(super) linger: Duration,
    /// Limit for lingering channels of waiters. Channels that linger the longest are removed first.
    pub(super) lingering_most: usize,
    /// Limit for lingering channels of recalls. These channels are not subscribed again regularly.
    pub(super) lingering_calls_most: usize,
    /// Limit for the age of a clock sample: two heartbeats of a waiter.
    pub(super) max_clock_sample_age: Duration,
    /// Time limit for an answer of a node.
    pub(super) response_timeout: Duration,
    /// Pause between two pings to a node that owns channels of recalls.
    pub(super) ping: Duration,
}

impl Pace {
    pub(super) fn of(options: &Options) -> Self {
        Self {
            refresh: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            lingering_most: 1024,
            // A hold can be cached if its recall channel is subscribed when the hold is requested. So as many channels
            // must be able to linger as holds may be cached. Otherwise locks that are used in turn would push out each
            // other's channels.
            lingering_calls_most: options.max_cached,
            max_clock_sample_age: Duration::from_secs(2),
            response_timeout: options.response_timeout,
            ping: LIVE_FOR / 2,
        }
    }
}

/// All subscriptions of one transport. Dropping this value ends them.
pub(super) struct Push {
    common: Arc<Common>,
    /// Subscriptions of each runtime.
    of: Mutex<Vec<(Id, Arc<PushShared>)>>,
}

/// State that the subscriptions of all runtimes share.
struct Common {
    slot_owners: SlotOwners,
    clock: Clock,
    /// Runtime that serves channels of recalls.
    background_runtime: BackgroundRuntime,
    pace: Pace,
    /// Number of channels. It is usually zero, and then a caller need not take a lock.
    count: AtomicUsize,
    /// True once the log has a warning that the user may not subscribe.
    is_refusal_told: AtomicBool,
}

/// Subscriptions of one runtime. All their tasks run on this runtime.
struct PushShared {
    common: Arc<Common>,
    /// Number of channels of this runtime.
    count: AtomicUsize,
    subscriptions: Mutex<Subscriptions>,
    /// Wakes the maintenance task when a channel has no owner link.
    strayed: Notify,
    /// True once the runtime has ended.
    has_ended: AtomicBool,
}

impl Deref for PushShared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

#[derive(Default)]
struct Subscriptions {
    /// Boxed, since the map reserves space for up to twice as many channels, and there may be one for each lock.
    channels: HashMap<Arc<str>, Box<Channel>>,
    links: HashMap<LinkId, Link>,
    /// Channels without a waiter, in the order in which their last waiters left, with the time of that.
    lingering: Lingering,
    /// Channels of recalls whose cached hold is gone. The maintenance task finds them.
    lingering_calls: Lingering,
    /// Maintenance task, which runs while there are channels.
    maintenance: Option<AbortHandle>,
    /// Number of channels after the last cleanup.
    looked_at: usize,
    last_number: u64,
    last_link: Option<LinkId>,
    /// Recall handlers whose subscriptions broke. They are notified while no lock is held.
    broken: Vec<Arc<Recalls>>,
}

type Lingering = BTreeMap<NonZeroU64, (Arc<str>, Instant)>;

/// State of a link that its task shares with other code.
struct Link {
    node: Arc<Node>,
    wake: Arc<Notify>,
    task: AbortHandle,
    /// Number of the present connection. Pushes of earlier connections do not count.
    connection: u64,
    /// Reason why the connection is to be replaced, if it is.
    lost: Option<Lost>,
    /// Channels that are subscribed but not wanted on this link. The task unsubscribes from them.
    leftovers: HashSet<Arc<str>>,
    /// Channels that the task must check. A push adds only a channel that this process has requested since its last
    /// check. So a server cannot fill this queue.
    todo: VecDeque<Arc<str>>,
    /// Channels of the last batch whose confirmations have not arrived.
    awaited: VecDeque<Arc<str>>,
    /// Rate limit for subscribing again after the server has ended subscriptions unasked.
    ended: Throttle,
    /// Time until which the subscriptions of this connection count as live.
    fresh: Arc<Liveness>,
    /// True if a cached hold may depend on a subscription of this link.
    has_cached_hold: bool,
    /// Number of the main connection before the last commands were sent.
    asked: Option<u64>,
    /// Value of `asked` for the newest commands of which one was answered.
    proven: Option<u64>,
    must_prove: bool,
}

impl Link {
    /// Returns true if the task has ended, most likely with its runtime.
    fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    fn subscription(&self, epoch: u64) -> LiveSubscription {
        LiveSubscription { epoch, liveness: Arc::clone(&self.fresh) }
    }

    /// Starts the pings, since cached holds may depend on this link from now on.
    fn is_pinged_from_now_on(&mut self) {
        if !std::mem::replace(&mut self.has_cached_hold, true) {
            self.wake.notify_one();
        }
    }

    /// Gives up a channel of this link. If the channel is subscribed, the task unsubscribes from it.
    fn lets_go(&mut self, name: &Arc<str>, channel: &Channel) {
        if channel.is_confirmed {
            self.leftovers.insert(Arc::clone(name));
        }
        self.look_at(name);
    }

    /// Counts a subscription that the server has ended unasked. Returns the time of the next subscription. `None` if
    /// the channel may be subscribed at once.
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

/// Connection from which a push comes.
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

/// Position of a listener in a channel.
struct ChannelPlace {
    channel: Arc<str>,
    number: NonZeroU64,
}

/// Ends the subscription of one waiter when this value is dropped.
struct Unsubscribe {
    shared: Weak<PushShared>,
    place: ChannelPlace,
}

impl Unsubscribe {
    fn new(shared: &Arc<PushShared>, place: ChannelPlace) -> Self {
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
    pub(super) fn new(
        slot_owners: SlotOwners,
        clock: Clock,
        background_runtime: BackgroundRuntime,
        pace: Pace,
    ) -> Self {
        let (count, is_refusal_told) = (AtomicUsize::new(0), AtomicBool::new(false));
        let common = Common { slot_owners, clock, background_runtime, pace, count, is_refusal_told };
        Self { common: Arc::new(common), of: Mutex::default() }
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.common.count.load(Ordering::Acquire) > 0
    }

    /// Subscribes a waiter. The first notification is [`Notification::AskAgain`]. It comes as soon as the channel is
    /// confirmed on its owner link. This runtime serves the subscription, which ends with the runtime.
    pub(super) fn subscribe(&self, slot: u16, channel: &str, read: ReadNotification) -> Subscription {
        let (sender, notices) = attempt::notifications();
        // Outside of a runtime, `Handle::current` panics here. Under the lock a panic would do harm, since a drop of
        // the subscription needs the lock.
        let (shared, place) = self.add(&Handle::current(), slot, channel, read, Listener::Waiter(sender));
        Subscription { notices, _end: Box::new(Unsubscribe::new(&shared, place)) }
    }

    /// Passes published recalls to `calls` while `calls` has an owner. This happens in the background runtime. Never
    /// waits; returns `false` if there is no such runtime.
    pub(super) fn listen(&self, slot: u16, channel: &str, read: ReadNotification, calls: &Arc<Recalls>) -> bool {
        let Some(runtime) = self.common.background_runtime.runtime() else {
            return false;
        };
        // The task of a link is spawned on the runtime of this context.
        let _context = runtime.enter();
        self.add(&runtime, slot, channel, read, Listener::Holder(Arc::downgrade(calls)));
        true
    }

    /// Adds a listener, and returns its position.
    fn add(
        &self,
        runtime: &Handle,
        slot: u16,
        channel: &str,
        read: ReadNotification,
        listener: Listener,
    ) -> (Arc<PushShared>, ChannelPlace) {
        let mut of = self.of.lock();
        let id = runtime.id();
        let known = of.iter().find(|(of, shared)| *of == id && !shared.has_ended.load(Ordering::Acquire));
        let shared = match known {
            Some((_, shared)) => Arc::clone(shared),
            None => {
                of.retain(|(of, shared)| *of != id && shared.count.load(Ordering::Acquire) > 0);
                let shared = Arc::new(PushShared::new(Arc::clone(&self.common)));
                of.push((id, Arc::clone(&shared)));
                shared
            }
        };
        // Called under the lock of the list, so that no other thread removes the entry before it counts as used.
        let (place, is_maintained) = shared.subscribe(slot, channel, read, listener);
        drop(of);
        shared.notify_break();
        if !is_maintained {
            // Spawned with no lock held. A runtime that shuts down drops the task within this call, and the drop needs
            // the locks.
            let maintenance = process::spawn_on(runtime, Arc::clone(&shared).maintain()).abort_handle();
            shared.subscriptions.lock().maintenance = Some(maintenance);
        }
        (shared, place)
    }

    /// Subscribes a waiter only if the channel is confirmed on its owner link now and the node of the link is not
    /// suspect.
    pub(super) fn subscribe_if_live(&self, channel: &str) -> Option<Subscription> {
        if !self.is_in_use() {
            return None;
        }
        let id = Handle::try_current().ok()?.id();
        let of = self.of.lock();
        let (_, shared) = of.iter().find(|(of, _)| *of == id)?;
        shared.subscribe_if_live(channel)
    }
}

impl PushShared {
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

    /// Adds a listener. Returns its position, and true if the maintenance task runs.
    fn subscribe(
        self: &Arc<Self>,
        slot: u16,
        channel: &str,
        read: ReadNotification,
        listener: Listener,
    ) -> (ChannelPlace, bool) {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        // The maintenance task checks only once a second. By then there may be many channels that are never used again.
        if subscriptions.channels.len() > subscriptions.looked_at + self.pace.lingering_calls_most.max(BURST) {
            subscriptions.tidy(&self.pace);
        }
        let name = subscriptions.name(channel, || Channel::new(slot, read, &listener));
        self.counts(subscriptions.channels.len());
        let (is_confirmed, owner_link) =
            subscriptions.channels.get(&name).map_or((false, None), |it| (it.is_confirmed, it.owner_link));
        let place = subscriptions.add_listener(&name, listener);
        if is_confirmed {
            subscriptions.tell_newest(&name);
        } else if owner_link.is_none() && !self.place(&mut subscriptions, &name) {
            self.strayed.notify_one();
        }
        let is_maintained = subscriptions.maintenance.as_ref().is_some_and(|maintenance| !maintenance.is_finished());
        (place, is_maintained)
    }

    fn subscribe_if_live(self: &Arc<Self>, channel: &str) -> Option<Subscription> {
        let mut subscriptions = self.subscriptions.lock();
        let (name, entry) = subscriptions.channels.get_key_value(channel)?;
        let owner_link = subscriptions.links.get(&entry.owner_link.filter(|_| entry.is_confirmed)?)?;
        let slot_owners = &self.slot_owners;
        if owner_link.has_ended()
            || !slot_owners.leaves(entry.slot, &owner_link.node)
            || slot_owners.suspects(&owner_link.node)
        {
            return None;
        }
        let (name, (sender, notices)) = (Arc::clone(name), attempt::notifications());
        let place = subscriptions.add_listener(&name, Listener::Waiter(sender));
        Some(Subscription { notices, _end: Box::new(Unsubscribe::new(self, place)) })
    }
}

impl PushShared {
    /// Ends all subscriptions of the runtime. Waiters learn that no notification will come.
    fn end(&self) {
        // Taken out of the lock, since a dropped listener wakes its waiter.
        let mut subscriptions = std::mem::take(&mut *self.subscriptions.lock());
        self.counts(0);
        let links = subscriptions.links.values().map(|link| &link.task);
        subscriptions.maintenance.iter().chain(links).for_each(AbortHandle::abort);
        subscriptions.unconfirm_all();
        subscriptions.broken.into_iter().for_each(|calls| calls.notify_break());
    }

    /// Notifies recall handlers that their subscriptions have broken.
    fn notify_break(&self) {
        let broken = std::mem::take(&mut self.subscriptions.lock().broken);
        // The handlers may log to a user's subscriber of `tracing`.
        for calls in broken {
            catch_panic(|| calls.notify_break());
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

    fn add_listener(&mut self, name: &Arc<str>, listener: Listener) -> ChannelPlace {
        let number = self.next_number();
        if let Some(channel) = self.channels.get_mut(name) {
            channel.add(number, listener);
            let (lingers, purpose) = (channel.lingers.take(), channel.purpose);
            if let Some(number) = lingers {
                self.lingering_of(purpose).remove(&number);
            }
        }
        ChannelPlace { channel: Arc::clone(name), number }
    }

    /// Notes that a channel has no listener any more, so that it lingers.
    fn begin_to_linger(&mut self, name: &Arc<str>) {
        let number = self.next_number();
        if let Some(channel) = self.channels.get_mut(name).filter(|channel| channel.lingers.is_none()) {
            channel.lingers = Some(number);
            let purpose = channel.purpose;
            self.lingering_of(purpose).insert(number, (Arc::clone(name), Instant::now()));
        }
    }

    /// Lets the channels of former cached holds linger, and removes lingering channels above the limits.
    fn tidy(&mut self, pace: &Pace) {
        self.note_dropped_holds();
        self.bound_lingering(pace);
        self.looked_at = self.channels.len();
    }

    /// Removes the channels that linger the longest, as long as there are too many lingering channels.
    fn bound_lingering(&mut self, pace: &Pace) {
        let bounds = [(Purpose::Turns, pace.lingering_most), (Purpose::Recalls, pace.lingering_calls_most)];
        for (purpose, most) in bounds {
            while self.lingering_of(purpose).len() > most
                && let Some((_, (oldest, _))) = self.lingering_of(purpose).pop_first()
            {
                self.forget(&oldest);
            }
        }
    }

    /// Returns the shared name of a channel, and adds the channel if it is new.
    fn name(&mut self, channel: &str, new: impl FnOnce() -> Channel) -> Arc<str> {
        if let Some((name, _)) = self.channels.get_key_value(channel) {
            return Arc::clone(name);
        }
        let name: Arc<str> = channel.into();
        self.channels.insert(Arc::clone(&name), Box::new(new()));
        name
    }

    /// Notifies the newest listener of a channel that the channel is confirmed.
    fn tell_newest(&mut self, name: &str) {
        let epoch = self.next_number().get();
        let Some(channel) = self.channels.get(name) else {
            return;
        };
        match channel.listeners.last() {
            // Cannot fail, since the queue was created just now.
            Some((_, Listener::Waiter(waiter))) => drop(waiter.try_send(Notification::AskAgain)),
            Some((_, listener)) => {
                let link = channel.owner_link.and_then(|owner_link| self.links.get_mut(&owner_link));
                if let (Some(recalls), Some(link)) = (listener.recalls(), link) {
                    recalls.on_confirmed(link.subscription(epoch));
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
            Purpose::Recalls => &mut self.lingering_calls,
        }
    }

    /// Removes a channel without listeners.
    fn forget(&mut self, name: &Arc<str>) {
        let Some(channel) = self.channels.remove(name) else {
            return;
        };
        if let Some(owner_link) = channel.owner_link.and_then(|owner_link| self.links.get_mut(&owner_link)) {
            owner_link.lets_go(name, &channel);
        }
    }

    /// Removes links whose tasks have ended. Their channels then have no owner link.
    ///
    /// A task cannot do that when it is dropped. A runtime that shuts down drops the task within the call that spawns
    /// it. The lock is held at that time, so the task would wait for ever.
    fn bury(&mut self) {
        let dead: Vec<_> = self.links.extract_if(|_, link| link.has_ended()).map(|(number, _)| number).collect();
        // Usually no link has ended, and then the channels need not be searched.
        if dead.is_empty() {
            return;
        }
        for channel in self
            .channels
            .values_mut()
            .filter(|channel| channel.owner_link.is_some_and(|owner_link| dead.contains(&owner_link)))
        {
            channel.owner_link = None;
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Unconfirms all channels of a link. The task that reads its connection may still deliver pushes, but they do not
    /// count any more.
    fn unconfirm(&mut self, link: LinkId) {
        let none = self.next_number().get();
        if let Some(link) = self.links.get_mut(&link) {
            link.connection = none;
        }
        for channel in self.channels.values_mut().filter(|channel| channel.owner_link == Some(link)) {
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Returns true if a cached hold depends on this link. Searches all channels.
    fn update_has_cached_hold(&mut self, link: LinkId) -> bool {
        let has_cached_hold =
            self.channels.values().any(|channel| channel.owner_link == Some(link) && channel.has_cached_hold());
        if let Some(link) = self.links.get_mut(&link) {
            link.has_cached_hold = has_cached_hold;
        }
        has_cached_hold
    }
}

impl PushShared {
    fn leave(&self, ChannelPlace { channel: name, number }: &ChannelPlace) {
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
        // Dropped after the lock, since a dropped sender wakes its receiver.
        drop(subscriptions);
        drop(left);
    }

    /// Assigns a channel to the link to the known owner of its slot. Returns `false` if the channel has no owner link
    /// after that.
    fn place(self: &Arc<Self>, subscriptions: &mut Subscriptions, name: &Arc<str>) -> bool {
        let Some(channel) = subscriptions.channels.get(name) else {
            return true;
        };
        let old = channel.owner_link;
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
            channel.owner_link = Some(new);
            // The old server ended the subscription. The pause after that does not count for the new server.
            drop(channel.refused.take_if(|refused| refused.times == 0));
            channel.unconfirm(&mut subscriptions.broken);
        }
        true
    }

    /// Returns the link to a node, and adds it if there is none.
    fn link_to(self: &Arc<Self>, subscriptions: &mut Subscriptions, node: &Arc<Node>) -> LinkId {
        let mut known = subscriptions.links.iter().filter(|(_, link)| link.node.address() == node.address());
        if let Some((number, _)) = known.next() {
            return *number;
        }
        let number = subscriptions.next_link();
        let wake = Arc::new(Notify::new());
        let running = LinkRun::new(Arc::clone(self), number, Arc::clone(node), Arc::clone(&wake));
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
            fresh: Arc::new(Liveness::until(node.id(), Moment::from_nanos(0))),
            has_cached_hold: false,
            asked: None,
            proven: None,
            must_prove: false,
        };
        subscriptions.links.insert(number, link);
        number
    }
}
