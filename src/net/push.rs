//! Notifications for waiters, and recalls of cached holds. They arrive on connections that carry only subscriptions.
//!
//! A *link* is a connection to one node for subscriptions, with the task that serves the connection ([`link`]). The
//! *owner link* of a channel is the link to the node that owns the channel's slot, as far as the owner is known. Each
//! channel is subscribed on its owner link. A node without channels has no link.
//!
//! The maintenance task ([`maintenance`]) moves a channel to another link when its slot moves, and removes channels
//! without a listener. A channel *lingers* for a while after its last waiter has left. So a contended lock does not
//! need a new subscription for each waiter.
//!
//! Each runtime with waiters has its own links and its own maintenance task. So a message is read on the runtime of its
//! waiter, and a runtime that ends or stands still delays no other runtime.
//!
//! Only the pushes of a server show which channels are subscribed on a connection. Each push names its channel, and the
//! server sends pushes in the order of the events. So from `ssubscribe` until `sunsubscribe` no message of the channel
//! is missed. This is true even if the process did not request the subscription or its end.
//!
//! The task that reads the connection passes each message directly to the waiters. After every confirmation of a
//! channel, its waiters ask the server again, because messages before the confirmation did not reach them.
//!
//! # Clock samples
//!
//! A message may contain a deadline by the clock of the server that published the message. The process converts this
//! deadline to local time with a clock sample. The sample comes from a request on the main connection to the same node.
//! This request was sent at the local moment `s`, and its answer contained the server's time `t`.
//!
//! The server read `t` from its clock after the moment `s`. So the server's clock does not reach a deadline `d` before
//! the local moment `s + (d - t)`. This ignores a difference of the clock rates. This holds no matter when the process
//! reads the message.
//!
//! A message may lie in a socket while this process stands still. After that pause the process judges the message
//! correctly in each of these cases:
//!
//! * No request was answered after the pause. The clock sample is then at least as old as the pause, and is refused
//!   because of its age.
//! * A request was sent and answered after the pause. Its time `t` is from after the pause, so it shows that the
//!   deadline is over.
//! * An answer lay in the socket during the pause. It came too late for its request, so it gave no clock sample.
//!
//! A clock sample is refused in three cases:
//!
//! * The sample is older than [`Pace::max_clock_sample_age`].
//! * The node of the sample is suspect.
//! * The main connection was opened after the last answered commands on the link were sent. The link may then still
//!   lead to an old server, which a new server has replaced on the main connection.
//!
//! No lock of this module is held while waiters are notified or dropped. Their wakers are the user's code, which may do
//! anything.
//!
//! # Recalls
//!
//! A process with a cached hold listens for recalls on another channel of the lock ([`Recalls`]). The [background
//! runtime](crate::base::background_runtime) serves these channels, so they do not depend on the runtimes of callers.
//! There may be one such channel for each lock, so the memory of a channel must be small.
//!
//! A process that drops a cached hold does not unsubscribe, because the maintenance task finds the unused channel. A
//! process may use a cached hold only while its subscription is live. So a link with recall channels pings its node,
//! and reports each break of a subscription.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem;
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
use crate::base::lease::Moment;
use crate::base::options::Options;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::base::recalls::{LIVE_FOR, LiveSubscription, Liveness, Recalls};
use crate::base::throttle::Throttle;
use crate::net::ReadNotification;
use crate::net::node::Node;
use crate::net::script::PublishCommand;
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

/// Number of new channels after which lingering channels are removed at once, without a wait for the maintenance task.
/// If the limit for cached holds is larger than this number, the limit is used instead.
const BURST: usize = 1024;

/// Pauses, time limits and numbers of channels for the subscriptions of a manager.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time after which the channels of waiters are subscribed again, even if the server has confirmed them.
    pub(super) refresh: Duration,
    /// Time for which a channel lingers after its last waiter has left. Another waiter is likely to come soon.
    pub(super) linger: Duration,
    /// Limit for the lingering channels of waiters. The channels that linger longest are removed first.
    pub(super) lingering_most: usize,
    /// Limit for the lingering channels of recalls. It may be high, because these channels are not subscribed again
    /// regularly.
    pub(super) lingering_calls_most: usize,
    /// Limit for the age of a clock sample. It is as long as two heartbeats of a waiter.
    pub(super) max_clock_sample_age: Duration,
    /// Time limit for an answer of a node to commands on a link.
    pub(super) response_timeout: Duration,
    /// Pause between two pings to a node, on a link with recall channels.
    pub(super) ping: Duration,
    /// Kind of the channels at a node that owns all slots. Clients of Redisson publish plain messages there.
    pub(super) channels: PublishCommand,
}

impl Pace {
    pub(super) fn of(options: &Options) -> Self {
        Self {
            refresh: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            lingering_most: 1024,
            // A hold can be cached if its recall channel is subscribed when the process requests the hold. So as many
            // channels must be able to linger as holds may be cached. With a lower limit, locks that are used one after
            // the other would remove each other's channels.
            lingering_calls_most: options.max_cached,
            max_clock_sample_age: Duration::from_secs(2),
            response_timeout: options.response_timeout,
            ping: LIVE_FOR / 2,
            channels: if options.redisson_watchdog.is_some() { PublishCommand::Plain } else { PublishCommand::Sharded },
        }
    }
}

/// All subscriptions of one transport. They end when this value is dropped.
pub(crate) struct Push {
    common: Arc<Common>,
    /// Subscriptions of each runtime.
    of: Mutex<Vec<(Id, Arc<PushShared>)>>,
}

/// State that the subscriptions of all runtimes share.
struct Common {
    slot_owners: SlotOwners,
    /// Runtime that serves the channels of recalls.
    background_runtime: BackgroundRuntime,
    pace: Pace,
    /// Number of channels of all runtimes. It is usually zero, and then a caller need not take a lock.
    count: AtomicUsize,
    /// True when the log has reported that the server user may not subscribe.
    is_refusal_told: AtomicBool,
}

/// Subscriptions of one runtime. All tasks that serve them run on this runtime.
struct PushShared {
    common: Arc<Common>,
    /// Number of channels of this runtime.
    count: AtomicUsize,
    subscriptions: Mutex<Subscriptions>,
    /// Wakes the maintenance task, because a channel has no owner link.
    strayed: Notify,
    /// True when the runtime has ended.
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
    /// Channels by name. They are boxed because the map reserves space for up to twice as many entries, and there may
    /// be one channel for each lock.
    channels: HashMap<Arc<str>, Box<Channel>>,
    links: HashMap<LinkId, Link>,
    /// Lingering channels by their purpose, in the order in which they began to linger. Each entry has the time at which
    /// the channel began to linger. The cached holds of the channels of recalls are gone.
    lingering: [Lingering; 2],
    /// Maintenance task. It runs while there are channels.
    maintenance: Option<AbortHandle>,
    /// Number of channels after the last removal of lingering channels.
    looked_at: usize,
    last_number: u64,
    last_link: Option<LinkId>,
    /// Recall handlers whose subscriptions broke. They are notified later, while no lock is held.
    broken: Vec<Arc<Recalls>>,
}

type Lingering = BTreeMap<NonZeroU64, (Arc<str>, Instant)>;

/// State of a link. The task of the link shares it with other code.
struct Link {
    node: Arc<Node>,
    wake: Arc<Notify>,
    task: AbortHandle,
    /// Number of the present connection. Pushes on earlier connections do not count.
    connection: u64,
    /// Reason why the connection must be replaced. `None` if it need not be replaced.
    lost: Option<Lost>,
    /// Channels that are subscribed on this link but are not wanted here any more. The task unsubscribes from them.
    leftovers: HashSet<Arc<str>>,
    /// Channels that the task must check. A push adds a channel only if this process has sent a command for this
    /// channel since its last check. So a server cannot make this queue grow without limit.
    todo: VecDeque<Arc<str>>,
    /// Channels of the last batch whose confirmations have not arrived yet.
    awaited: VecDeque<Arc<str>>,
    /// Rate limit for new subscriptions after the server has ended subscriptions without a request.
    ended: Throttle,
    /// Time until which the subscriptions of this connection count as live. Answers on the connection extend it.
    fresh: Arc<Liveness>,
    /// True if a cached hold may depend on a subscription of this link.
    has_cached_hold: bool,
    /// Number of the main connection at the time when the last commands were sent on this link.
    asked: Option<u64>,
    /// Value of `asked` at the time when the last answered commands were sent.
    proven: Option<u64>,
    must_prove: bool,
}

impl Link {
    fn subscription(&self, epoch: u64) -> LiveSubscription {
        LiveSubscription { epoch, liveness: Arc::clone(&self.fresh) }
    }

    /// Starts the pings of this link, because cached holds may depend on its subscriptions from now on.
    fn is_pinged_from_now_on(&mut self) {
        if !mem::replace(&mut self.has_cached_hold, true) {
            self.wake.notify_one();
        }
    }

    /// Gives up a channel of this link. If the channel is subscribed, the task of the link unsubscribes from it.
    fn lets_go(&mut self, name: &Arc<str>, channel: &Channel) {
        if channel.is_confirmed {
            self.leftovers.insert(Arc::clone(name));
        }
        self.look_at(name);
    }

    /// Counts a subscription that the server has ended without a request. Returns the time at which the channel may be
    /// subscribed again, or `None` if it may be subscribed at once.
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

/// Connection on which a push arrived.
#[derive(Clone, Copy)]
struct Origin {
    link: LinkId,
    connection: u64,
}

/// Channel and number of one listener. The number identifies the listener within its channel.
struct ChannelPlace {
    channel: Arc<str>,
    number: NonZeroU64,
}

/// Guard that ends the subscription of one waiter when it is dropped.
struct Unsubscribe {
    shared: Weak<PushShared>,
    place: ChannelPlace,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.leave(&self.place);
        }
    }
}

impl Push {
    pub(super) fn new(slot_owners: SlotOwners, background_runtime: BackgroundRuntime, pace: Pace) -> Self {
        let (count, is_refusal_told) = (AtomicUsize::new(0), AtomicBool::new(false));
        let common = Common { slot_owners, background_runtime, pace, count, is_refusal_told };
        Self { common: Arc::new(common), of: Mutex::default() }
    }

    /// Returns true if this process subscribes to any channel. If not, a caller can skip the work of building a channel
    /// name.
    pub(crate) fn is_in_use(&self) -> bool {
        self.common.count.load(Ordering::Acquire) > 0
    }

    /// Subscribes a waiter to a channel of `slot`. `read` converts the messages of the channel. All subscribers of a
    /// channel must pass the same function. The present runtime serves the subscription, so the subscription ends with
    /// this runtime.
    ///
    /// The first notification is [`Notification::AskAgain`]. It comes as soon as the server has confirmed the channel on
    /// its owner link, because no later notification is missed from then on. Another `AskAgain` comes whenever
    /// notifications may have been missed.
    pub(crate) fn subscribe(&self, slot: u16, channel: &str, read: ReadNotification) -> Subscription {
        let (sender, notices) = attempt::notifications();
        // Taken before any lock: `Handle::current` panics outside of a runtime. A panic under a lock would do harm,
        // because a drop of the subscription needs the lock.
        let (shared, place) = self.add(&Handle::current(), slot, channel, read, Listener::Waiter(sender));
        Subscription { notices, _end: Box::new(Unsubscribe { shared: Arc::downgrade(&shared), place }) }
    }

    /// Passes published recalls to `calls` until the last owner of `calls` drops it. Also reports to `calls` when the
    /// subscription becomes live or breaks. The background runtime does this work. Never waits. Returns `false` if there
    /// is no background runtime.
    pub(crate) fn listen(&self, slot: u16, channel: &str, read: ReadNotification, calls: &Arc<Recalls>) -> bool {
        let Some(runtime) = self.common.background_runtime.runtime() else {
            return false;
        };
        // Enters the background runtime, because the task of a new link is spawned on the current runtime.
        let _context = runtime.enter();
        self.add(&runtime, slot, channel, read, Listener::Holder(Arc::downgrade(calls)));
        true
    }

    /// Adds a listener to a channel of this runtime. Returns the runtime's subscriptions, and the place of the
    /// listener.
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
                let shared = Arc::new(PushShared {
                    common: Arc::clone(&self.common),
                    count: AtomicUsize::new(0),
                    subscriptions: Mutex::default(),
                    strayed: Notify::new(),
                    has_ended: AtomicBool::new(false),
                });
                of.push((id, Arc::clone(&shared)));
                shared
            }
        };
        // Called while the list is locked. Otherwise another thread could remove this entry from the list before the
        // entry has a channel.
        let (place, is_maintained) = shared.subscribe(slot, channel, read, listener);
        drop(of);
        shared.notify_break();
        if !is_maintained {
            // Spawned while no lock is held. If the runtime is shutting down, it drops the task within this call, and
            // that drop needs the locks.
            let maintenance = process::spawn_on(runtime, Arc::clone(&shared).maintain()).abort_handle();
            shared.subscriptions.lock().maintenance = Some(maintenance);
        }
        (shared, place)
    }

    /// Subscribes a waiter only if the channel is confirmed on its owner link now, and the node of this link is not
    /// suspect. So no notification is missed, and no [`Notification::AskAgain`] comes first. Never waits.
    pub(crate) fn subscribe_if_live(&self, channel: &str) -> Option<Subscription> {
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
    fn counts(&self, channels: usize) {
        let before = self.count.swap(channels, Ordering::AcqRel);
        self.common.count.fetch_add(channels.wrapping_sub(before), Ordering::AcqRel);
    }

    /// Adds a listener to a channel. Returns the place of the listener, and true if the maintenance task runs.
    fn subscribe(
        self: &Arc<Self>,
        slot: u16,
        channel: &str,
        read: ReadNotification,
        listener: Listener,
    ) -> (ChannelPlace, bool) {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        // The maintenance task checks only once a second. In that time many channels may be added that are never used
        // again, so they are removed here.
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
        let node = &owner_link.node;
        if owner_link.task.is_finished() || !slot_owners.leaves(entry.slot, node) || slot_owners.suspects(node) {
            return None;
        }
        let (name, (sender, notices)) = (Arc::clone(name), attempt::notifications());
        let place = subscriptions.add_listener(&name, Listener::Waiter(sender));
        Some(Subscription { notices, _end: Box::new(Unsubscribe { shared: Arc::downgrade(self), place }) })
    }
}

impl PushShared {
    /// Ends all subscriptions of this runtime. Waiters learn from the end that no notification will come.
    fn end(&self) {
        // Moved out of the lock, because the drop of a listener wakes its waiter.
        let mut subscriptions = mem::take(&mut *self.subscriptions.lock());
        self.counts(0);
        let links = subscriptions.links.values().map(|link| &link.task);
        subscriptions.maintenance.iter().chain(links).for_each(AbortHandle::abort);
        subscriptions.channels.values_mut().for_each(|channel| channel.unconfirm(&mut subscriptions.broken));
        subscriptions.broken.into_iter().for_each(|calls| calls.notify_break());
    }

    /// Reports to the recall handlers in `broken` that their subscriptions have broken.
    fn notify_break(&self) {
        let broken = mem::take(&mut self.subscriptions.lock().broken);
        // No lock is held here, because the handlers may call a user's subscriber of `tracing`.
        for calls in broken {
            catch_panic(|| calls.notify_break());
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let of = mem::take(&mut *self.of.lock());
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
            let purpose = channel.purpose;
            if let Some(number) = channel.lingers.take() {
                self.lingering[purpose as usize].remove(&number);
            }
        }
        ChannelPlace { channel: Arc::clone(name), number }
    }

    /// Notes that a channel has no listener any more. The channel lingers from now on.
    fn begin_to_linger(&mut self, name: &Arc<str>) {
        let number = self.next_number();
        if let Some(channel) = self.channels.get_mut(name).filter(|channel| channel.lingers.is_none()) {
            channel.lingers = Some(number);
            let purpose = channel.purpose;
            self.lingering[purpose as usize].insert(number, (Arc::clone(name), Instant::now()));
        }
    }

    /// Lets channels linger whose cached holds are gone. Then removes lingering channels above the limits.
    fn tidy(&mut self, pace: &Pace) {
        self.note_dropped_holds();
        self.bound_lingering(pace);
        self.looked_at = self.channels.len();
    }

    /// Removes the channels that linger longest, until the number of lingering channels is within its limit.
    fn bound_lingering(&mut self, pace: &Pace) {
        let bounds = [(Purpose::Turns, pace.lingering_most), (Purpose::Recalls, pace.lingering_calls_most)];
        for (purpose, most) in bounds {
            while self.lingering[purpose as usize].len() > most
                && let Some((_, (oldest, _))) = self.lingering[purpose as usize].pop_first()
            {
                self.forget(&oldest);
            }
        }
    }

    /// Returns the shared name of a channel. Adds the channel if it does not exist.
    fn name(&mut self, channel: &str, new: impl FnOnce() -> Channel) -> Arc<str> {
        if let Some((name, _)) = self.channels.get_key_value(channel) {
            return Arc::clone(name);
        }
        let name: Arc<str> = channel.into();
        self.channels.insert(Arc::clone(&name), Box::new(new()));
        name
    }

    /// Notifies the newest listener of a channel that the server has confirmed the channel.
    fn tell_newest(&mut self, name: &str) {
        let epoch = self.next_number().get();
        let Some(channel) = self.channels.get(name) else {
            return;
        };
        match channel.listeners.last() {
            // Cannot fail: the waiter's queue was created just now, so it has space.
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

    /// Removes a channel, which must have no listener.
    fn forget(&mut self, name: &Arc<str>) {
        if let Some(channel) = self.channels.remove(name)
            && let Some(owner_link) = channel.owner_link.and_then(|owner_link| self.links.get_mut(&owner_link))
        {
            owner_link.lets_go(name, &channel);
        }
    }

    /// Removes links whose tasks have ended. Their channels then have no owner link.
    ///
    /// The task of a link cannot do this when it is dropped. A runtime that is shutting down drops a task within the
    /// call that spawns the task. That call is made while the lock is held, so the drop would wait for the lock for
    /// ever.
    fn bury(&mut self) {
        let dead: Vec<_> = self.links.extract_if(|_, link| link.task.is_finished()).map(|(number, _)| number).collect();
        // Usually no link has ended, and then a search of all channels is not necessary.
        if dead.is_empty() {
            return;
        }
        for channel in self.channels.values_mut() {
            if channel.owner_link.take_if(|owner_link| dead.contains(owner_link)).is_some() {
                channel.unconfirm(&mut self.broken);
            }
        }
    }

    /// Marks all channels of a link as unconfirmed. The link's connection gets a new number, so pushes that still
    /// arrive on the old connection do not count.
    fn unconfirm(&mut self, link: LinkId) {
        let none = self.next_number().get();
        if let Some(link) = self.links.get_mut(&link) {
            link.connection = none;
        }
        for channel in self.channels.values_mut().filter(|channel| channel.owner_link == Some(link)) {
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Checks again whether a cached hold depends on this link, and returns the result. Searches all channels.
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
        // The listener is dropped after the lock is released, because a dropped sender wakes its receiver.
        drop(subscriptions);
        drop(left);
    }

    /// Makes the link to the known owner of the channel's slot the owner link of the channel. Returns `false` if the
    /// channel has no owner link after that.
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
        if let Some(channel) = subscriptions.channels.get(name)
            && let Some(link) = old.and_then(|old| subscriptions.links.get_mut(&old))
        {
            link.lets_go(name, channel);
        }
        if let Some(link) = subscriptions.links.get_mut(&new) {
            link.look_at(name);
        }
        if let Some(channel) = subscriptions.channels.get_mut(name) {
            channel.owner_link = Some(new);
            // The old server had ended the subscription without a request. The pause after that does not apply to the
            // new server.
            drop(channel.refused.take_if(|refused| refused.times == 0));
            channel.unconfirm(&mut subscriptions.broken);
        }
        true
    }

    /// Returns the link to a node. Adds the link if it does not exist.
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
            fresh: Arc::new(Liveness::until(node.id(), Moment::START)),
            has_cached_hold: false,
            asked: None,
            proven: None,
            must_prove: false,
        };
        subscriptions.links.insert(number, link);
        number
    }
}
