//! Link: a connection to one node for subscriptions, with the task that serves it. The task makes the subscriptions of
//! the server equal to the channels that are wanted on the link.
//!
//! The task sends commands in batches, and one batch at a time. Each command has one channel. The server confirms a
//! subscription with a push, so the task examines a reply only if it is a refusal. A refusal does not name its channel.
//! The channel is known from the position of the refusal among the replies to the batch.
//!
//! A `sunsubscribe` that the server sends without a request looks like a reply, so the positions may be wrong.
//! Therefore the task replaces the connection if an answer in a batch does not fit its command.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{PushKind, RedisError, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::channel::{Channel, LinkId, Purpose};
use super::{Origin, PushShared};
use crate::base::error::Refusal;
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::recalls::Liveness;
use crate::net::CLOCK;
use crate::net::fault::{self, Fault};
use crate::net::fleet::SuspectReason;
use crate::net::node::{Connection, DialFault, Node, Request};
use crate::net::pushed::Pushed;
use crate::net::script::PublishCommand;

/// Limit for the number of commands in one batch.
const MAX_BATCH: usize = 128;
/// First pause before the next dial, if the last connection was soon lost. The pauses then grow up to [`MAX_REDIAL`]. A
/// connection that lasted at least that long is replaced without a pause.
const REDIAL_FIRST: Duration = Duration::from_millis(50);
const MAX_REDIAL: Duration = Duration::from_secs(1);
/// Pause between two questions to a single node about its role, while a waiter waits. The questions are necessary
/// because a primary that becomes a replica keeps its connections open and does not report the change. A waiter would
/// notice the change later, because it asks the server only once a second.
const ROLE_PAUSE: Duration = Duration::from_millis(400);
/// First and longest pause before the next attempt to subscribe a channel whose owner is not known.
const AGAIN_FIRST: Duration = Duration::from_millis(10);
const MAX_AGAIN: Duration = Duration::from_millis(500);
/// First and longest pause before the next attempt to subscribe a channel that the server refuses. The pauses are long,
/// because only an operator can remove the cause.
const REFUSED_FIRST: Duration = Duration::from_millis(500);
const MAX_REFUSED: Duration = Duration::from_secs(5);

/// Task that serves a link.
pub(super) struct LinkRun {
    shared: Arc<PushShared>,
    link: LinkId,
    node: Arc<Node>,
    wake: Arc<Notify>,
}

/// Reason why the connection of a link was given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("the connection was closed")]
    Closed,
    #[error("the server sent a message without a request or subscription")]
    Surprise,
    #[error("no subscription needs the connection")]
    Unused,
    #[error(transparent)]
    NotMade(#[from] DialFault),
    #[error("no answer in time")]
    NoAnswer,
    #[error("the login has ended: {0}")]
    NoLogin(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Subscribe,
    Unsubscribe,
}

/// Command for one channel: its verb, and the name of the channel.
type Command = (Verb, Arc<str>);

/// Deadlines of the task for one connection, and the channels that it will handle later.
struct LinkDeadlines {
    refresh_at: Instant,
    ping_at: Instant,
    role_at: Instant,
    /// Channels to subscribe again, although the server has confirmed them.
    again: Vec<Arc<str>>,
    /// Channels that the server refused, in the order of the times of their next attempts.
    refused: BTreeSet<(Instant, Arc<str>)>,
}

impl LinkRun {
    pub(super) fn new(shared: Arc<PushShared>, link: LinkId, node: Arc<Node>, wake: Arc<Notify>) -> Self {
        Self { shared, link, node, wake }
    }

    /// Serves the link until the task is aborted or the link is removed.
    pub(super) async fn run(self) {
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let Err(lost) = self.serve().await;
            self.shared.subscriptions.lock().unconfirm(self.link);
            self.shared.notify_break();
            events::link_lost(self.node.address(), &lost);
            match (lost, self.shared.slot_owners.fleet()) {
                (Lost::Unused, _) => return,
                // A waiter marks a silent node as suspect as well. This is done here too, because there may be few
                // waiters or none.
                (Lost::NotMade(_) | Lost::NoAnswer, Some(fleet)) => fleet.suspect(&self.node, SuspectReason::Silent),
                (Lost::Closed | Lost::Surprise | Lost::NoLogin(_), Some(fleet)) => fleet.look_in_background(),
                (_, None) => {}
            }
            if began.elapsed() >= MAX_REDIAL {
                pause = Duration::ZERO;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).clamp(REDIAL_FIRST, MAX_REDIAL);
        }
    }

    /// Dials one connection, and serves it until it is lost.
    async fn serve(&self) -> Result<std::convert::Infallible, Lost> {
        let (origin, fresh) = self.begin()?;
        let connection = self.dial(origin).await?;
        let now = Instant::now();
        let mut deadlines = LinkDeadlines {
            refresh_at: now + self.shared.pace.refresh,
            ping_at: now,
            role_at: now + ROLE_PAUSE,
            again: Vec::new(),
            refused: BTreeSet::new(),
        };
        loop {
            let has_cached_hold = self.ping(&connection, &mut deadlines, &fresh).await?;
            let is_watched = self.ask_role(&connection, &mut deadlines).await?;
            let batch = self.next_batch(&mut deadlines)?;
            if batch.is_empty() {
                let next =
                    deadlines.refused.first().map_or(deadlines.refresh_at, |(at, _)| deadlines.refresh_at.min(*at));
                let next = if has_cached_hold { next.min(deadlines.ping_at) } else { next };
                let next = if is_watched { next.min(deadlines.role_at) } else { next };
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(next) => {}
                }
                continue;
            }
            let sent = CLOCK.now();
            let replies = self.send(&connection, &batch).await?;
            fresh.on_answer(sent);
            self.resolve(origin, &batch, replies)?;
        }
    }

    /// Pings the node, if a ping is due and a cached hold may depend on this link. Returns true if a cached hold may
    /// depend on it.
    async fn ping(
        &self,
        connection: &Connection,
        deadlines: &mut LinkDeadlines,
        fresh: &Liveness,
    ) -> Result<bool, Lost> {
        let (now, is_due) = (Instant::now(), |at| at <= Instant::now());
        {
            let subscriptions = &mut *self.shared.subscriptions.lock();
            let link = subscriptions.links.get(&self.link).ok_or(Lost::Unused)?;
            if !link.has_cached_hold || is_due(deadlines.ping_at) && !subscriptions.update_has_cached_hold(self.link) {
                return Ok(false);
            }
        }
        if is_due(deadlines.ping_at) {
            deadlines.ping_at = now + self.shared.pace.ping;
            let (sent, ping) = (CLOCK.now(), redis::cmd("PING"));
            let pong = in_time(self.shared.pace.ping, connection.ask(Request::Command(&ping))).await?;
            match fault::reply(pong) {
                // A ping has no key, so no server redirects it. This reply must belong to an earlier command.
                Err(Fault::Moved { .. } | Fault::Ask { .. }) => return Err(Lost::Surprise),
                Err(Fault::Refused { refusal: Refusal::Unauthenticated, message }) => {
                    return Err(Lost::NoLogin(message));
                }
                // A server that refuses the ping has answered as well. In RESP2 the answer is a list.
                Ok(Value::SimpleString(_) | Value::Array(_)) | Err(_) => fresh.on_answer(sent),
                Ok(_) => return Err(Lost::Surprise),
            }
        }
        Ok(true)
    }

    /// Asks a single node whether it is still a primary, if the question is due and a waiter waits. Returns true for a
    /// single node, which must be asked again later.
    async fn ask_role(&self, connection: &Connection, deadlines: &mut LinkDeadlines) -> Result<bool, Lost> {
        let waits = |channel: &Channel| {
            channel.is_confirmed_at(self.link) && channel.purpose == Purpose::Turns && !channel.listeners.is_empty()
        };
        if self.shared.slot_owners.fleet().is_some() {
            return Ok(false);
        }
        if deadlines.role_at > Instant::now() {
            return Ok(true);
        }
        deadlines.role_at = Instant::now() + ROLE_PAUSE;
        if self.shared.subscriptions.lock().channels.values().any(|channel| waits(channel)) {
            let most = self.shared.pace.response_timeout;
            let hello = if self.node.speaks_resp2() {
                // Asked on another connection, whose silence says nothing about this one.
                tokio::time::timeout(most, self.node.hello()).await.ok().and_then(Result::ok)
            } else {
                let hello = redis::cmd("HELLO");
                Some(in_time(most, connection.ask(Request::Command(&hello))).await?)
            };
            hello.iter().for_each(|hello| self.node.note_role(hello));
        }
        Ok(true)
    }

    /// Prepares the link for a new connection. No channel is subscribed on the new connection, so all channels of the
    /// link must be checked.
    fn begin(&self) -> Result<(Origin, Arc<Liveness>), Lost> {
        let subscriptions = &mut *self.shared.subscriptions.lock();
        let connection = subscriptions.next_number().get();
        let link = subscriptions.links.get_mut(&self.link).ok_or(Lost::Unused)?;
        link.connection = connection;
        link.lost = None;
        link.awaited.clear();
        link.must_prove = false;
        // A new value replaces the old one, so that cached holds cannot depend on the earlier connection any more.
        let fresh = Arc::new(Liveness::until(link.node.id(), Moment::START));
        link.fresh = Arc::clone(&fresh);
        link.asked = None;
        link.proven = None;
        link.leftovers.clear();
        let ours = subscriptions.channels.iter().filter(|(_, channel)| channel.owner_link == Some(self.link));
        link.todo = ours.map(|(name, _)| Arc::clone(name)).collect();
        Ok((Origin { link: self.link, connection }, fresh))
    }

    async fn dial(&self, origin: Origin) -> Result<Connection, Lost> {
        // The references are weak, because a cycle would form otherwise: this task owns the connection, and the
        // connection owns these handlers.
        let (for_loss, for_push) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.shared));
        let on_loss = move || for_loss.upgrade().into_iter().for_each(|shared| shared.replace(origin, Lost::Closed));
        let on_push =
            move |pushed: Pushed<'_>| for_push.upgrade().into_iter().for_each(|shared| shared.take(origin, pushed));
        Ok(self.node.dial_link(Arc::new(on_loss), Arc::new(on_push)).await?)
    }

    fn next_batch(&self, deadlines: &mut LinkDeadlines) -> Result<Vec<Command>, Lost> {
        let main = self.node.clock_sample().map(|(connection, _)| connection);
        let now = Instant::now();
        let subscriptions = &mut *self.shared.subscriptions.lock();
        let link = subscriptions.links.get_mut(&self.link).ok_or(Lost::Unused)?;
        if let Some(lost) = link.lost.take() {
            return Err(lost);
        }
        let here = || subscriptions.channels.iter().filter(|(_, channel)| channel.is_confirmed_at(self.link));
        if now >= deadlines.refresh_at {
            deadlines.refresh_at = now + self.shared.pace.refresh;
            // Only channels of waiters are subscribed again, because there may be many channels of recalls. For
            // channels of recalls, pings show whether the connection still works.
            let of_waiters = here().filter(|(_, channel)| channel.purpose == Purpose::Turns).map(|(name, _)| name);
            deadlines.again = of_waiters.chain(&link.leftovers).cloned().collect();
            // A replica also confirms subscriptions, so the confirmations do not show that this node is still the
            // primary. Sentinels are therefore asked for the primary here. In a cluster this is not necessary, because
            // each waiter asks the node once a second, and a replica then redirects the waiter.
            if let Some(fleet) = self.shared.slot_owners.fleet() {
                fleet.refresh_from_time_to_time();
            }
        } else if std::mem::take(&mut link.must_prove) {
            // One channel is enough, because one answer on this connection proves that its server is still there.
            deadlines.again.extend(here().next().map(|(name, _)| Arc::clone(name)));
        }
        while deadlines.refused.first().is_some_and(|(at, _)| *at <= now) {
            link.todo.extend(deadlines.refused.pop_first().map(|(_, name)| name));
        }
        link.asked = main;
        let mut commands = Vec::new();
        while commands.len() < MAX_BATCH {
            // A channel is taken because it may have changed, or because it is due for a regular new subscription.
            let changed = link.todo.pop_front();
            let is_due_again = changed.is_none();
            let Some(name) = changed.or_else(|| deadlines.again.pop()) else { break };
            let channel = subscriptions.channels.get(&name).filter(|channel| channel.owner_link == Some(self.link));
            let not_before = channel.and_then(|channel| channel.refused.as_ref()?.not_before);
            match channel {
                Some(_) if not_before.is_some_and(|at| at > now) => {
                    deadlines.refused.insert((not_before.unwrap_or(now), name));
                }
                Some(channel) if is_due_again || !channel.is_confirmed => commands.push((Verb::Subscribe, name)),
                None if link.leftovers.contains(&name) => commands.push((Verb::Unsubscribe, name)),
                Some(_) | None => {}
            }
        }
        let subscribed = commands.iter().filter(|(verb, _)| *verb == Verb::Subscribe);
        link.awaited = subscribed.map(|(_, name)| Arc::clone(name)).collect();
        Ok(commands)
    }

    async fn send(&self, connection: &Connection, batch: &[Command]) -> Result<Vec<Value>, Lost> {
        let is_plain = [self.node.publish_command(), self.shared.pace.channels].contains(&PublishCommand::Plain);
        // In a cluster, a waiter without sharded channels asks once a second.
        let is_plain = is_plain && self.shared.slot_owners.has_one_primary();
        let channels = if is_plain { PublishCommand::Plain } else { PublishCommand::Sharded };
        let command = |(verb, channel): &Command| redis::cmd(verb.command(channels)).arg(&**channel).take();
        let commands: Vec<_> = batch.iter().map(command).collect();
        in_time(self.shared.pace.response_timeout, connection.subscribe_all(&commands)).await
    }

    fn resolve(&self, origin: Origin, batch: &[Command], replies: Vec<Value>) -> Result<(), Lost> {
        if replies.len() != batch.len() {
            return Err(Lost::Surprise);
        }
        let mut refusals = Vec::new();
        for ((verb, channel), reply) in batch.iter().zip(replies) {
            match reply {
                Value::Push { kind, data } if verb.is_confirmed_by(&kind, &data, channel) => {}
                Value::ServerError(error) => refusals.push((*verb, channel, error)),
                _ => return Err(Lost::Surprise),
            }
        }
        for (verb, channel, error) in refusals {
            let details = error.details().unwrap_or_default().to_owned();
            match (verb, fault::reply(Value::ServerError(error))) {
                (_, Err(Fault::Refused { refusal: Refusal::Unauthenticated, message })) => {
                    return Err(Lost::NoLogin(message));
                }
                (Verb::Subscribe, Err(fault)) => self.on_refusal(channel, fault, &details)?,
                // A refused unsubscription means that the slot has moved. The server has then ended the subscription
                // itself.
                (Verb::Unsubscribe, _) => {
                    if let Some(link) = self.shared.subscriptions.lock().current(origin) {
                        link.leftovers.remove(channel);
                    }
                }
                (Verb::Subscribe, Ok(_)) => {}
            }
        }
        Ok(())
    }

    /// Handles the refusal of a channel. Subscribes the channel again after a pause, at the owner that is known by
    /// then. The pauses grow.
    fn on_refusal(&self, name: &Arc<str>, fault: Fault, details: &str) -> Result<(), Lost> {
        let (first, longest) = match fault {
            Fault::Moved { .. } | Fault::Ask { .. } | Fault::Again(_) | Fault::WrongServer(_) => {
                (AGAIN_FIRST, MAX_AGAIN)
            }
            _ => (REFUSED_FIRST, MAX_REFUSED),
        };
        let is_redirect = matches!(fault, Fault::Moved { .. });
        let mut subscriptions = self.shared.subscriptions.lock();
        let Some(channel) =
            subscriptions.channels.get_mut(name).filter(|channel| channel.owner_link == Some(self.link))
        else {
            return Ok(());
        };
        let slot = channel.slot;
        if is_redirect && details.split(' ').next() != Some(&slot.to_string()) {
            // The redirect is about another slot, so this reply belongs to an earlier command. A push without a request
            // was counted as the answer to that command.
            return Err(Lost::Surprise);
        }
        // The first redirect is followed without a pause. Later redirects are followed after a pause, because two nodes
        // may name each other as the owner.
        let refused = channel.refused.get_or_insert_default();
        let doublings = if is_redirect { refused.times.checked_sub(1) } else { Some(refused.times) };
        let pause = doublings.map(|doublings| first.saturating_mul(1 << doublings.min(16)).min(longest));
        refused.times = refused.times.saturating_add(1);
        refused.not_before = pause.map(|pause| Instant::now() + pause);
        drop(subscriptions);
        match (fault, self.shared.slot_owners.fleet()) {
            (Fault::Refused { message, .. }, _) => self.tell_refusal(&message),
            // The result is ignored. After an invalid address, the fleet only asks for the slot map once more.
            (Fault::Moved { address }, Some(fleet)) => drop(fleet.on_moved(slot, &address, self.node.address())),
            (Fault::Ask { .. } | Fault::Again(_) | Fault::WrongServer(_), Some(fleet)) => fleet.look_in_background(),
            _ => {}
        }
        let mut subscriptions = self.shared.subscriptions.lock();
        self.shared.place(&mut subscriptions, name);
        if subscriptions.channels.get(name).is_some_and(|channel| channel.owner_link == Some(self.link))
            && let Some(link) = subscriptions.links.get_mut(&self.link)
        {
            link.look_at(name);
        }
        drop(subscriptions);
        self.shared.notify_break();
        Ok(())
    }

    /// Logs a refusal. Without a subscription waiters wait longer, and only this log message gives the reason.
    fn tell_refusal(&self, message: &str) {
        let node = self.node.address();
        if message.starts_with("NOPERM") && !self.shared.is_refusal_told.swap(true, Ordering::Relaxed) {
            events::may_not_subscribe(node, message);
        }
        events::subscription_refused(node, message);
    }
}

async fn in_time<T>(most: Duration, answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, Lost> {
    match tokio::time::timeout(most, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if !error.is_timeout() => Err(Lost::Closed),
        Ok(Err(_)) | Err(_) => Err(Lost::NoAnswer),
    }
}

impl Verb {
    fn command(self, channels: PublishCommand) -> &'static str {
        match (self, channels) {
            (Self::Subscribe, PublishCommand::Sharded) => "SSUBSCRIBE",
            (Self::Unsubscribe, PublishCommand::Sharded) => "SUNSUBSCRIBE",
            (Self::Subscribe, PublishCommand::Plain) => "SUBSCRIBE",
            (Self::Unsubscribe, PublishCommand::Plain) => "UNSUBSCRIBE",
        }
    }

    /// Returns true if a push that the `redis` crate has decoded confirms this command for the channel.
    fn is_confirmed_by(self, kind: &PushKind, data: &[Value], channel: &str) -> bool {
        let confirmed = match kind {
            PushKind::SSubscribe | PushKind::Subscribe => Self::Subscribe,
            PushKind::SUnsubscribe | PushKind::Unsubscribe => Self::Unsubscribe,
            _ => return false,
        };
        confirmed == self && matches!(data.first(), Some(Value::BulkString(name)) if *name == channel.as_bytes())
    }
}
