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
//! [home](crate::home), whatever the callers' runtimes do. What is kept may be relied on only while it would be heard, so a link
//! with such channels pings its node, and each break of a subscription is told.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::attempt::{Notice, Subscription};
use crate::calls::{Call, Calls, FRESH, Fresh, Standing};
use crate::clock::Clock;
use crate::home::Home;
use crate::lease::{Anchor, Moment};
use crate::options::Options;
use crate::transport::ReadNotice;
use crate::transport::node::Node;
use crate::transport::slot_owners::SlotOwners;
use link::Running;

mod keeper;
mod link;
#[cfg(test)]
mod tests;

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
    channels: HashMap<Arc<str>, Channel>,
    links: HashMap<u64, Link>,
    /// Channels without a waiter, in the order in which they lost their last, and when that was.
    lingering: Lingering,
    /// The same of those by which calls come.
    lingering_calls: Lingering,
    /// Runs as long as there are channels.
    keeper: Option<AbortHandle>,
    last_number: u64,
    /// Whoever is to be told that its subscription has broken, when no lock is held.
    broken: Vec<Arc<Calls>>,
}

type Lingering = BTreeMap<u64, (Arc<str>, Instant)>;

struct Channel {
    slot: u16,
    read: ReadNotice,
    /// Calls for a lock come by it.
    is_for_calls: bool,
    listeners: Vec<(u64, Listener)>,
    /// Its number among those that linger.
    lingers: Option<u64>,
    /// The link to the owner of its slot.
    home: Option<u64>,
    /// The server at home has it subscribed, on the link's connection.
    is_confirmed: bool,
    /// How often it was refused since it was confirmed, and until when it is not asked for again.
    refusals: u32,
    not_before: Option<Instant>,
}

/// Whoever wants to know what is published.
#[derive(Clone)]
enum Listener {
    /// Waits for the lock.
    Waiter(mpsc::UnboundedSender<Notice>),
    /// Keeps the lock.
    Keeper(Weak<Calls>),
}

impl Listener {
    fn keeper(&self) -> Option<Arc<Calls>> {
        match self {
            Self::Waiter(_) => None,
            Self::Keeper(calls) => calls.upgrade(),
        }
    }
}

/// What is known of a link by those who are not its task.
struct Link {
    node: Arc<Node>,
    wake: Arc<Notify>,
    task: AbortHandle,
    /// Pushes of an earlier connection count for nothing.
    connection: u64,
    is_lost: bool,
    /// What the server has subscribed on this connection.
    subscribed: HashSet<Arc<str>>,
    /// Channels at which the task shall look.
    todo: VecDeque<Arc<str>>,
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

    fn look_at(&mut self, name: &Arc<str>) {
        self.todo.push_back(Arc::clone(name));
        self.wake.notify_one();
    }
}

/// Where a push comes from.
#[derive(Clone, Copy)]
struct Origin {
    link: u64,
    connection: u64,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Push")
    }
}

/// Ends one waiter's subscription.
struct Unsubscribe {
    shared: Weak<Shared>,
    channel: Arc<str>,
    number: u64,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.leave(&self.channel, self.number);
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
        let (sender, notices) = mpsc::unbounded_channel();
        // Outside of a runtime it panics here and not under the lock, which the subscription needs to be dropped.
        let end = self.add(&Handle::current(), slot, channel, read, Listener::Waiter(sender));
        Subscription { notices, _end: Box::new(end) }
    }

    /// Tells `calls` what is published, from the home. `None` if there is none. Never waits.
    pub(super) fn listen(
        &self,
        slot: u16,
        channel: &str,
        read: ReadNotice,
        calls: &Arc<Calls>,
    ) -> Option<impl Send + Sync + use<>> {
        let home = self.common.home.runtime()?;
        // The task of a link is spawned within.
        let _in_home = home.enter();
        Some(self.add(&home, slot, channel, read, Listener::Keeper(Arc::downgrade(calls))))
    }

    fn add(&self, runtime: &Handle, slot: u16, channel: &str, read: ReadNotice, listener: Listener) -> Unsubscribe {
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
        let (unsubscribe, is_kept) = shared.subscribe(slot, channel, read, listener);
        drop(of);
        shared.tell_broken();
        if !is_kept {
            // With no lock held: a runtime that is shutting down drops the task within this call, and what it leaves needs them.
            let keeper = runtime.spawn(Arc::clone(&shared).keep()).abort_handle();
            shared.subscriptions.lock().keeper = Some(keeper);
        }
        unsubscribe
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
    fn subscribe(
        self: &Arc<Self>,
        slot: u16,
        channel: &str,
        read: ReadNotice,
        listener: Listener,
    ) -> (Unsubscribe, bool) {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        let name = subscriptions.name(channel, || Channel::new(slot, read, &listener));
        self.counts(subscriptions.channels.len());
        let (is_confirmed, home) =
            subscriptions.channels.get(&name).map_or((false, None), |it| (it.is_confirmed, it.home));
        let unsubscribe = self.add_listener(&mut subscriptions, &name, listener);
        if is_confirmed {
            subscriptions.tell_newest(&name);
        } else if home.is_none() && !self.place(&mut subscriptions, &name) {
            self.strayed.notify_one();
        }
        let is_kept = subscriptions.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished());
        (unsubscribe, is_kept)
    }

    fn subscribed(self: &Arc<Self>, channel: &str) -> Option<Subscription> {
        let mut subscriptions = self.subscriptions.lock();
        let (name, entry) = subscriptions.channels.get_key_value(channel)?;
        let home = subscriptions.links.get(&entry.home.filter(|_| entry.is_confirmed)?)?;
        let slot_owners = &self.slot_owners;
        if home.has_ended() || !slot_owners.leaves(entry.slot, &home.node) || slot_owners.suspects(&home.node) {
            return None;
        }
        let (name, (sender, notices)) = (Arc::clone(name), mpsc::unbounded_channel());
        let end = self.add_listener(&mut subscriptions, &name, Listener::Waiter(sender));
        Some(Subscription { notices, _end: Box::new(end) })
    }

    fn add_listener(
        self: &Arc<Self>,
        subscriptions: &mut Subscriptions,
        name: &Arc<str>,
        listener: Listener,
    ) -> Unsubscribe {
        let number = subscriptions.next_number();
        if let Some(channel) = subscriptions.channels.get_mut(name) {
            // Mostly it stays the only one, and there may be many channels.
            if channel.listeners.is_empty() {
                channel.listeners.reserve_exact(1);
            }
            channel.listeners.push((number, listener));
            let (lingers, is_for_calls) = (channel.lingers.take(), channel.is_for_calls);
            if let Some(number) = lingers {
                subscriptions.lingering_of(is_for_calls).remove(&number);
            }
        }
        Unsubscribe { shared: Arc::downgrade(self), channel: Arc::clone(name), number }
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
        broken.into_iter().for_each(|calls| calls.tell_broken());
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let of = std::mem::take(&mut *self.of.lock());
        of.iter().for_each(|(_, shared)| shared.end());
    }
}

impl Channel {
    fn new(slot: u16, read: ReadNotice, first: &Listener) -> Self {
        Self {
            slot,
            read,
            is_for_calls: matches!(first, Listener::Keeper(_)),
            listeners: Vec::new(),
            lingers: None,
            home: None,
            is_confirmed: false,
            refusals: 0,
            not_before: None,
        }
    }

    fn news(&self, notice: Notice) -> News {
        News { notice, listeners: self.listeners.iter().map(|(_, listener)| listener.clone()).collect() }
    }

    fn keepers(&self) -> impl Iterator<Item = Arc<Calls>> {
        self.listeners.iter().filter_map(|(_, listener)| listener.keeper())
    }

    /// From now on nothing that is published is certain to be heard. Whoever relied on it is to be told.
    fn unconfirm(&mut self, broken: &mut Vec<Arc<Calls>>) {
        self.is_confirmed = false;
        broken.extend(self.keepers().filter(|calls| calls.breaks()));
    }
}

/// What the listeners of a channel are to be told, when no lock is held.
struct News {
    notice: Notice,
    listeners: Vec<Listener>,
}

impl News {
    fn tell(self, now: Moment) {
        for listener in self.listeners {
            match (&listener, &self.notice) {
                // One that has gone has no use for it.
                (Listener::Waiter(waiter), notice) => drop(waiter.send(notice.clone())),
                (Listener::Keeper(_), Notice::Called { token, id }) => {
                    if let Some(calls) = listener.keeper() {
                        calls.called(&Call { token: *token, tries: id.clone() }, now);
                    }
                }
                (Listener::Keeper(_), _) => {}
            }
        }
    }
}

impl Subscriptions {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The shared name of a channel, which is there afterwards.
    fn name(&mut self, channel: &str, new: impl FnOnce() -> Channel) -> Arc<str> {
        if let Some((name, _)) = self.channels.get_key_value(channel) {
            return Arc::clone(name);
        }
        let name: Arc<str> = channel.into();
        self.channels.insert(Arc::clone(&name), new());
        name
    }

    /// The last one to come has a channel that is confirmed.
    fn tell_newest(&mut self, name: &str) {
        let epoch = self.next_number();
        let Some(channel) = self.channels.get(name) else {
            return;
        };
        match channel.listeners.last() {
            // It was made just now.
            Some((_, Listener::Waiter(waiter))) => drop(waiter.send(Notice::AskAgain)),
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

    fn lingering_of(&mut self, is_for_calls: bool) -> &mut Lingering {
        if is_for_calls { &mut self.lingering_calls } else { &mut self.lingering }
    }

    /// Nobody waits for it any more.
    fn forget(&mut self, name: &Arc<str>) {
        let Some(channel) = self.channels.remove(name) else {
            return;
        };
        if let Some(home) = channel.home.and_then(|home| self.links.get_mut(&home)) {
            home.look_at(name);
        }
    }

    /// The link that a push comes from, unless its connection was given up.
    fn current(&mut self, from: Origin) -> Option<&mut Link> {
        self.links.get_mut(&from.link).filter(|link| link.connection == from.connection)
    }

    /// Links whose task has ended are no home. They are found here, because a task that did this itself when it is dropped
    /// would wait for ever for the lock: a runtime that is shutting down drops it within the call that spawns it.
    fn bury(&mut self) {
        let dead: Vec<u64> = self.links.extract_if(|_, link| link.has_ended()).map(|(number, _)| number).collect();
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

    fn confirm(&mut self, from: Origin, channel: &str) -> Option<News> {
        let epoch = self.next_number();
        let link = self.links.get_mut(&from.link).filter(|link| link.connection == from.connection)?;
        let known = self.channels.get_key_value(channel).map(|(name, _)| Arc::clone(name));
        let name = known.unwrap_or_else(|| channel.into());
        link.subscribed.insert(Arc::clone(&name));
        // Here already, since a message may be next. No command but the last is under way.
        link.proven = link.asked;
        let Some(channel) = self.channels.get_mut(channel).filter(|channel| channel.home == Some(from.link)) else {
            // Not wanted here any more.
            link.look_at(&name);
            return None;
        };
        // Of what was confirmed all the while nothing has been missed.
        let was_confirmed = std::mem::replace(&mut channel.is_confirmed, true);
        let heard = channel.keepers().filter(|_| !was_confirmed);
        if heard.map(|calls| calls.stands(link.standing(epoch))).count() > 0 {
            link.is_pinged_from_now_on();
        }
        channel.refusals = 0;
        channel.not_before = None;
        Some(channel.news(Notice::AskAgain))
    }

    /// Nothing is confirmed at this link any more.
    fn unconfirm(&mut self, link: u64) {
        for channel in self.channels.values_mut().filter(|channel| channel.home == Some(link)) {
            channel.unconfirm(&mut self.broken);
        }
    }

    /// Whether somebody relies on this link; looks at all its channels.
    fn is_kept(&mut self, link: u64) -> bool {
        let is_kept = self.channels.values().any(|channel| channel.home == Some(link) && channel.keepers().count() > 0);
        if let Some(link) = self.links.get_mut(&link) {
            link.is_kept = is_kept;
        }
        is_kept
    }
}

impl Shared {
    fn leave(&self, name: &Arc<str>, number: u64) {
        let mut subscriptions = self.subscriptions.lock();
        let linger = subscriptions.next_number();
        let Some(channel) = subscriptions.channels.get_mut(name) else {
            return;
        };
        let left = channel.listeners.iter().position(|(listener, _)| *listener == number);
        let left = left.map(|place| channel.listeners.remove(place));
        let is_for_calls = channel.is_for_calls;
        let most = if is_for_calls { self.pace.lingering_calls_most } else { self.pace.lingering_most };
        let begins = channel.listeners.is_empty() && channel.lingers.is_none();
        if begins {
            channel.lingers = Some(linger);
        }
        let lingering = subscriptions.lingering_of(is_for_calls);
        if begins {
            lingering.insert(linger, (Arc::clone(name), Instant::now()));
        }
        if lingering.len() > most
            && let Some((_, (oldest, _))) = lingering.pop_first()
        {
            subscriptions.forget(&oldest);
            self.counts(subscriptions.channels.len());
        }
        drop(subscriptions);
        // The last sender wakes its receiver.
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
        for link in old.into_iter().chain([new]) {
            if let Some(link) = subscriptions.links.get_mut(&link) {
                link.look_at(name);
            }
        }
        if let Some(channel) = subscriptions.channels.get_mut(name) {
            channel.home = Some(new);
            channel.unconfirm(&mut subscriptions.broken);
        }
        true
    }

    /// The link to a node, which is there afterwards.
    fn link_to(self: &Arc<Self>, subscriptions: &mut Subscriptions, node: &Arc<Node>) -> u64 {
        let mut known = subscriptions.links.iter().filter(|(_, link)| link.node.address() == node.address());
        if let Some((number, _)) = known.next() {
            return *number;
        }
        let number = subscriptions.next_number();
        let wake = Arc::new(Notify::new());
        let running = Running::new(Arc::clone(self), number, Arc::clone(node), Arc::clone(&wake));
        let link = Link {
            node: Arc::clone(node),
            wake,
            task: tokio::spawn(running.run()).abort_handle(),
            connection: 0,
            is_lost: false,
            subscribed: HashSet::new(),
            todo: VecDeque::new(),
            fresh: Arc::new(Fresh::until(node.id(), Moment::from_nanos(0))),
            is_kept: false,
            asked: None,
            proven: None,
            must_prove: false,
        };
        subscriptions.links.insert(number, link);
        number
    }

    /// Handles what a server says of its own accord, within the task that reads the connection.
    fn take(&self, from: Origin, push: &PushInfo) {
        if push.kind == PushKind::Disconnection {
            return self.lose(from);
        }
        let Some(channel) = text(push.data.first()) else {
            return;
        };
        match push.kind {
            PushKind::SMessage => self.deliver(from, channel, bytes(push.data.get(1)).unwrap_or_default()),
            PushKind::SSubscribe => self.confirm(from, channel),
            PushKind::SUnsubscribe => self.unsubscribed(from, channel),
            _ => {}
        }
    }

    fn deliver(&self, from: Origin, name: &str, message: &[u8]) {
        let news = self.read(&mut self.subscriptions.lock(), from, name, message);
        if let Some(news) = news {
            news.tell(self.clock.now());
        }
    }

    fn read(&self, subscriptions: &mut Subscriptions, from: Origin, name: &str, message: &[u8]) -> Option<News> {
        let channel = subscriptions.channels.get(name).filter(|channel| !channel.listeners.is_empty())?;
        let is_at_home = channel.home == Some(from.link);
        // What a connection says that was given up is lost; the next confirmation makes up for it.
        let link = subscriptions.links.get_mut(&from.link).filter(|link| link.connection == from.connection)?;
        let anchor = if is_at_home { self.anchor(link) } else { None };
        Some(channel.news((channel.read)(message, anchor)))
    }

    fn anchor(&self, link: &mut Link) -> Option<Anchor> {
        let (connection, anchor) = link.node.anchor()?;
        if link.proven != Some(connection) {
            link.must_prove = true;
            link.wake.notify_one();
            return None;
        }
        let is_fresh = anchor.age_at(self.clock.now()) <= self.pace.anchor_age_most;
        (is_fresh && !self.slot_owners.suspects(&link.node)).then_some(anchor)
    }

    fn confirm(&self, from: Origin, channel: &str) {
        let news = self.subscriptions.lock().confirm(from, channel);
        if let Some(news) = news {
            news.tell(self.clock.now());
        }
    }

    /// Asked for by us, or not: then the slot has left, most likely.
    fn unsubscribed(&self, from: Origin, channel: &str) {
        let mut subscriptions = self.subscriptions.lock();
        let Some(name) = subscriptions.current(from).and_then(|link| link.subscribed.take(channel)) else {
            return;
        };
        let Some(entry) = subscriptions.channels.get_mut(channel).filter(|channel| channel.home == Some(from.link))
        else {
            return;
        };
        let mut broken = Vec::new();
        entry.unconfirm(&mut broken);
        if let Some(link) = subscriptions.current(from) {
            link.look_at(&name);
        }
        drop(subscriptions);
        broken.into_iter().for_each(|calls| calls.tell_broken());
        self.slot_owners.look_for_news();
    }

    fn lose(&self, from: Origin) {
        let mut subscriptions = self.subscriptions.lock();
        if let Some(link) = subscriptions.current(from) {
            link.is_lost = true;
            link.wake.notify_one();
            subscriptions.unconfirm(from.link);
        }
        drop(subscriptions);
        self.tell_broken();
    }
}

fn bytes(value: Option<&Value>) -> Option<&[u8]> {
    match value {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    bytes(value).and_then(|bytes| std::str::from_utf8(bytes).ok())
}
