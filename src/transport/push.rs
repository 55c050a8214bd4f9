//! Wake-ups: what waiters are told without asking, on connections that carry nothing but subscriptions.
//!
//! Each channel is subscribed at the node that owns its slot as far as is known: its *home*. A node that is home to
//! channels has a [`link`], one connection and one task; no other node has. One more task, the keeper, moves channels
//! whose slots have moved, and ends what nobody needs any more: a channel *lingers* for a while after its last waiter,
//! so that a lock that is fought for does not subscribe at every hand-over.
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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::lease::Anchor;
use crate::scheme::{Notice, Subscription};
use crate::transport::ReadNotice;
use crate::transport::directory::Directory;
use crate::transport::node::Node;
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
    /// The most channels that stay without a waiter; those that have been so the longest go first.
    pub(super) lingering_most: usize,
    /// An older anchor is not trusted: two heartbeats of a waiter.
    pub(super) anchor_age_most: Duration,
    /// How long a node may take to answer.
    pub(super) response_timeout: Duration,
}

impl Pace {
    pub(super) fn new(response_timeout: Duration) -> Self {
        Self {
            refresh: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            lingering_most: 1024,
            anchor_age_most: Duration::from_secs(2),
            response_timeout,
        }
    }
}

/// All subscriptions of one transport. Dropping it ends them.
pub(super) struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    directory: Directory,
    clock: Clock,
    pace: Pace,
    /// How many channels there are: mostly none, which is then all that there is to know.
    count: AtomicUsize,
    book: Mutex<Book>,
    /// A channel has no home.
    strayed: Notify,
    /// Somebody has been told that a right is missing.
    is_refusal_told: AtomicBool,
}

#[derive(Default)]
struct Book {
    channels: HashMap<Arc<str>, Channel>,
    links: HashMap<u64, Link>,
    /// Channels without a waiter, in the order in which they lost their last.
    lingering: BTreeMap<u64, Arc<str>>,
    /// Runs as long as there are channels.
    keeper: Option<AbortHandle>,
    last_number: u64,
}

struct Channel {
    slot: u16,
    read: ReadNotice,
    waiters: Vec<(u64, mpsc::UnboundedSender<Notice>)>,
    lingers: Option<Lingers>,
    /// The link to the owner of its slot.
    home: Option<u64>,
    /// The server at home has it subscribed, on the link's connection.
    is_confirmed: bool,
    /// How often it was refused since it was confirmed, and until when it is not asked for again.
    refusals: u32,
    not_before: Option<Instant>,
}

struct Lingers {
    number: u64,
    since: Instant,
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
struct Ticket {
    shared: Weak<Shared>,
    channel: Arc<str>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.leave(&self.channel, self.number);
        }
    }
}

impl Push {
    pub(super) fn new(directory: Directory, clock: Clock, pace: Pace) -> Self {
        Self {
            shared: Arc::new(Shared {
                directory,
                clock,
                pace,
                count: AtomicUsize::new(0),
                book: Mutex::default(),
                strayed: Notify::new(),
                is_refusal_told: AtomicBool::new(false),
            }),
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) > 0
    }

    /// The first notice is [`Notice::AskAgain`], as soon as the channel is confirmed at its home.
    pub(super) fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Subscription {
        let shared = &self.shared;
        // Outside of a runtime it panics here and not under the lock, which the subscription needs to be dropped.
        let runtime = Handle::current();
        let mut book = shared.book.lock();
        book.bury();
        let name = book.name(channel, || Channel::new(slot, read));
        shared.count.store(book.channels.len(), Ordering::Release);
        let (is_confirmed, home) = book.channels.get(&name).map_or((false, None), |it| (it.is_confirmed, it.home));
        let subscription = self.add_waiter(&mut book, &name);
        if is_confirmed {
            book.tell_newest(&name, Notice::AskAgain);
        } else if home.is_none() && !shared.place(&mut book, &name) {
            shared.strayed.notify_one();
        }
        if book.keeper.as_ref().is_none_or(AbortHandle::is_finished) {
            book.keeper = Some(runtime.spawn(Arc::clone(shared).keep()).abort_handle());
        }
        subscription
    }

    /// Only if the channel is confirmed at its home now, which is not in doubt.
    pub(super) fn subscribed(&self, channel: &str) -> Option<Subscription> {
        if !self.is_in_use() {
            return None;
        }
        let mut book = self.shared.book.lock();
        let (name, entry) = book.channels.get_key_value(channel)?;
        let home = book.links.get(&entry.home.filter(|_| entry.is_confirmed)?)?;
        let directory = &self.shared.directory;
        if home.has_ended() || !directory.leaves(entry.slot, &home.node) || directory.suspects(&home.node) {
            return None;
        }
        let name = Arc::clone(name);
        Some(self.add_waiter(&mut book, &name))
    }

    fn add_waiter(&self, book: &mut Book, name: &Arc<str>) -> Subscription {
        let (sender, notices) = mpsc::unbounded_channel();
        let number = book.next_number();
        if let Some(channel) = book.channels.get_mut(name) {
            channel.waiters.push((number, sender));
            if let Some(lingers) = channel.lingers.take() {
                book.lingering.remove(&lingers.number);
            }
        }
        let ticket = Ticket { shared: Arc::downgrade(&self.shared), channel: Arc::clone(name), number };
        Subscription { notices, _end: Box::new(ticket) }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        let book = std::mem::take(&mut *self.shared.book.lock());
        self.shared.count.store(0, Ordering::Release);
        let links = book.links.values().map(|link| &link.task);
        book.keeper.iter().chain(links).for_each(AbortHandle::abort);
    }
}

impl Channel {
    fn new(slot: u16, read: ReadNotice) -> Self {
        Self {
            slot,
            read,
            waiters: Vec::new(),
            lingers: None,
            home: None,
            is_confirmed: false,
            refusals: 0,
            not_before: None,
        }
    }

    fn tell(&self, notice: &Notice) {
        for (_, waiter) in &self.waiters {
            // One that has gone has no use for it.
            drop(waiter.send(notice.clone()));
        }
    }
}

impl Book {
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

    fn tell_newest(&self, name: &str, notice: Notice) {
        if let Some((_, waiter)) = self.channels.get(name).and_then(|channel| channel.waiters.last()) {
            // It was made just now.
            drop(waiter.send(notice));
        }
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
        for channel in
            self.channels.values_mut().filter(|channel| channel.home.is_some_and(|home| dead.contains(&home)))
        {
            channel.home = None;
            channel.is_confirmed = false;
        }
    }

    /// Nothing is confirmed at this link any more.
    fn unconfirm(&mut self, link: u64) {
        for channel in self.channels.values_mut().filter(|channel| channel.home == Some(link)) {
            channel.is_confirmed = false;
        }
    }
}

impl Shared {
    fn leave(&self, name: &Arc<str>, number: u64) {
        let mut book = self.book.lock();
        let linger = book.next_number();
        let Some(channel) = book.channels.get_mut(name) else {
            return;
        };
        channel.waiters.retain(|(waiter, _)| *waiter != number);
        if channel.waiters.is_empty() && channel.lingers.is_none() {
            channel.lingers = Some(Lingers { number: linger, since: Instant::now() });
            book.lingering.insert(linger, Arc::clone(name));
        }
        if book.lingering.len() > self.pace.lingering_most
            && let Some((_, oldest)) = book.lingering.pop_first()
        {
            book.forget(&oldest);
            self.count.store(book.channels.len(), Ordering::Release);
        }
    }

    /// Gives a channel the known owner of its slot for a home. `false` if it has none then.
    fn place(self: &Arc<Self>, book: &mut Book, name: &Arc<str>) -> bool {
        let Some(channel) = book.channels.get(name) else {
            return true;
        };
        let old = channel.home;
        let Some(owner) = self.directory.known_owner(channel.slot) else {
            return old.is_some();
        };
        let new = self.link_to(book, &owner);
        if old == Some(new) {
            return true;
        }
        for link in old.into_iter().chain([new]) {
            if let Some(link) = book.links.get_mut(&link) {
                link.look_at(name);
            }
        }
        if let Some(channel) = book.channels.get_mut(name) {
            channel.home = Some(new);
            channel.is_confirmed = false;
        }
        true
    }

    /// The link to a node, which is there afterwards.
    fn link_to(self: &Arc<Self>, book: &mut Book, node: &Arc<Node>) -> u64 {
        let mut known = book.links.iter().filter(|(_, link)| link.node.address() == node.address());
        if let Some((number, _)) = known.next() {
            return *number;
        }
        let number = book.next_number();
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
            asked: None,
            proven: None,
            must_prove: false,
        };
        book.links.insert(number, link);
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
        let book = &mut *self.book.lock();
        let Some(channel) = book.channels.get(name).filter(|channel| !channel.waiters.is_empty()) else {
            return;
        };
        let is_at_home = channel.home == Some(from.link);
        let link = book.links.get_mut(&from.link).filter(|link| link.connection == from.connection);
        // What a connection says that was given up is lost; the next confirmation makes up for it.
        if let Some(link) = link {
            let anchor = if is_at_home { self.anchor(link) } else { None };
            channel.tell(&(channel.read)(message, anchor));
        }
    }

    fn anchor(&self, link: &mut Link) -> Option<Anchor> {
        let (connection, anchor) = link.node.anchor()?;
        if link.proven != Some(connection) {
            link.must_prove = true;
            link.wake.notify_one();
            return None;
        }
        let is_fresh = anchor.age_at(self.clock.now()) <= self.pace.anchor_age_most;
        (is_fresh && !self.directory.suspects(&link.node)).then_some(anchor)
    }

    fn confirm(&self, from: Origin, channel: &str) {
        let book = &mut *self.book.lock();
        let Some(link) = book.links.get_mut(&from.link).filter(|link| link.connection == from.connection) else {
            return;
        };
        let known = book.channels.get_key_value(channel).map(|(name, _)| Arc::clone(name));
        let name = known.unwrap_or_else(|| channel.into());
        link.subscribed.insert(Arc::clone(&name));
        // Here already, since a message may be next. No command but the last is under way.
        link.proven = link.asked;
        match book.channels.get_mut(channel).filter(|channel| channel.home == Some(from.link)) {
            Some(channel) => {
                channel.is_confirmed = true;
                channel.refusals = 0;
                channel.not_before = None;
                channel.tell(&Notice::AskAgain);
            }
            // Not wanted here any more.
            None => link.look_at(&name),
        }
    }

    /// Asked for by us, or not: then the slot has left, most likely.
    fn unsubscribed(&self, from: Origin, channel: &str) {
        let mut book = self.book.lock();
        let Some(name) = book.current(from).and_then(|link| link.subscribed.take(channel)) else {
            return;
        };
        let Some(entry) = book.channels.get_mut(channel).filter(|channel| channel.home == Some(from.link)) else {
            return;
        };
        entry.is_confirmed = false;
        if let Some(link) = book.current(from) {
            link.look_at(&name);
        }
        drop(book);
        self.directory.look();
    }

    fn lose(&self, from: Origin) {
        let mut book = self.book.lock();
        if let Some(link) = book.current(from) {
            link.is_lost = true;
            link.wake.notify_one();
            book.unconfirm(from.link);
        }
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
