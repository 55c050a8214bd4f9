//! Wake-ups of one node: a connection that carries nothing but subscriptions.
//!
//! Subscriptions come and go with waiters; one task keeps the server's set equal to ours, one channel per command. Every
//! confirmation wakes the channel's waiters, since a release before it woke nobody. On any surprise, an unsolicited
//! unsubscribe included, the connection is replaced: replies on it could no longer be told apart.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisResult,
    Value,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::scheme::{Notice, Subscription};
use crate::transport::ReadNotice;

/// How often everything is subscribed again, whatever the server said before.
const REFRESH: Duration = Duration::from_secs(5);
/// How long a connection stays after its last subscription: the next contention is likely to come soon.
const LINGER: Duration = Duration::from_secs(10);
/// First and longest pause before a connection is tried again.
const REDIAL_FIRST: Duration = Duration::from_millis(50);
const REDIAL_LONGEST: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    info: Mutex<ConnectionInfo>,
    response_timeout: Duration,
    wanted: Mutex<Wanted>,
    changed: Notify,
    /// The node has moved to another address.
    moved: Notify,
}

#[derive(Default)]
struct Wanted {
    channels: HashMap<String, Channel>,
    /// The task runs as long as there are channels.
    running: bool,
    next_ticket: u64,
}

struct Channel {
    read: ReadNotice,
    waiters: Vec<(u64, mpsc::UnboundedSender<Notice>)>,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Push")
    }
}

/// Ends one waiter's subscription.
struct Ticket {
    shared: Arc<Shared>,
    channel: String,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut wanted = self.shared.wanted.lock();
        let Some(channel) = wanted.channels.get_mut(&self.channel) else {
            return;
        };
        channel.waiters.retain(|(number, _)| *number != self.number);
        if channel.waiters.is_empty() {
            wanted.channels.remove(&self.channel);
            self.shared.changed.notify_one();
        }
    }
}

impl Push {
    pub(super) fn new(info: ConnectionInfo, response_timeout: Duration) -> Self {
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Self {
            shared: Arc::new(Shared {
                info: Mutex::new(info.set_redis_settings(redis).set_tcp_settings(tcp)),
                response_timeout,
                wanted: Mutex::default(),
                changed: Notify::new(),
                moved: Notify::new(),
            }),
        }
    }

    /// Subscribes there from now on.
    pub(super) fn follow(&self, address: ConnectionAddr) {
        let mut info = self.shared.info.lock();
        if *info.addr() != address {
            *info = info.clone().set_addr(address);
            self.shared.moved.notify_one();
        }
    }

    pub(super) fn subscribe(&self, channel: &str, read: ReadNotice) -> Subscription {
        let (sender, notices) = mpsc::unbounded_channel();
        let mut wanted = self.shared.wanted.lock();
        wanted.next_ticket += 1;
        let number = wanted.next_ticket;
        let entry = wanted.channels.entry(channel.to_owned()).or_insert_with(|| Channel { read, waiters: Vec::new() });
        entry.waiters.push((number, sender));
        if !wanted.running {
            wanted.running = true;
            drop(tokio::spawn(Arc::clone(&self.shared).run()));
        }
        drop(wanted);
        self.shared.changed.notify_one();
        Subscription {
            notices,
            _end: Box::new(Ticket { shared: Arc::clone(&self.shared), channel: channel.to_owned(), number }),
        }
    }
}

/// Marks the task as ended, also when its runtime drops it.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.wanted.lock().running = false;
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        let running = Running(&self);
        let mut pause = REDIAL_FIRST;
        let mut warned = false;
        while !self.ends() {
            let (pushes, mut received) = mpsc::unbounded_channel();
            match self.dial(pushes).await {
                Ok(connection) => match self.serve(connection, &mut received).await {
                    Ok(()) => pause = REDIAL_FIRST,
                    // Subscribing is refused: that must not be asked as fast as it is answered.
                    Err(error) if error.code() == Some("NOPERM") && !warned => {
                        warned = true;
                        tracing::warn!(%error, "may not subscribe: waiters are not woken and ask once a second");
                    }
                    Err(error) => tracing::debug!(%error, "lost a subscription connection"),
                },
                Err(error) => tracing::debug!(%error, "no subscription connection"),
            }
            if !self.is_idle() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(REDIAL_LONGEST);
            }
        }
        // `ends` has marked it as ended under the lock: a newer task may be running already.
        std::mem::forget(running);
    }

    /// Ends the task if nobody subscribes; decided under the lock, so that a new subscriber starts another.
    fn ends(&self) -> bool {
        let mut wanted = self.wanted.lock();
        if wanted.channels.is_empty() {
            wanted.running = false;
        }
        wanted.channels.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.wanted.lock().channels.is_empty()
    }

    async fn dial(&self, pushes: mpsc::UnboundedSender<PushInfo>) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.response_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(pushes);
        let info = self.info.lock().clone();
        Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Keeps the subscriptions of one connection right. Returns when nobody subscribes any more, or when it is lost.
    async fn serve(
        &self,
        mut connection: MultiplexedConnection,
        received: &mut mpsc::UnboundedReceiver<PushInfo>,
    ) -> RedisResult<()> {
        let mut confirmed = HashSet::new();
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.reset();
        let mut idle_since = None;
        loop {
            self.reconcile(&mut connection, &mut confirmed).await?;
            idle_since = self.is_idle().then(|| idle_since.unwrap_or_else(Instant::now));
            let linger_until = idle_since.map_or_else(|| Instant::now() + LINGER, |since| since + LINGER);
            tokio::select! {
                () = tokio::time::sleep_until(linger_until), if idle_since.is_some() => return Ok(()),
                () = self.changed.notified() => {}
                () = self.moved.notified() => return Ok(()),
                _ = refresh.tick() => confirmed.clear(),
                push = received.recv() => match push {
                    Some(push) if self.take(&push, &confirmed) => {}
                    _ => return Ok(()),
                },
            }
        }
    }

    /// Subscribes what is wanted and not confirmed, unsubscribes what is no longer wanted.
    async fn reconcile(
        &self,
        connection: &mut MultiplexedConnection,
        confirmed: &mut HashSet<String>,
    ) -> RedisResult<()> {
        let wanted: HashSet<String> = self.wanted.lock().channels.keys().cloned().collect();
        for channel in &wanted - confirmed {
            command(connection, "SSUBSCRIBE", &channel).await?;
            self.tell(&channel, |_| Notice::AskAgain);
            confirmed.insert(channel);
        }
        for channel in &*confirmed - &wanted {
            confirmed.remove(&channel);
            command(connection, "SUNSUBSCRIBE", &channel).await?;
        }
        Ok(())
    }

    /// Handles one push. `false` if the connection cannot be trusted any more.
    fn take(&self, push: &PushInfo, confirmed: &HashSet<String>) -> bool {
        let channel = match push.data.first() {
            Some(Value::BulkString(channel)) => String::from_utf8_lossy(channel).into_owned(),
            _ => String::new(),
        };
        match push.kind {
            PushKind::SMessage => {
                let message = match push.data.get(1) {
                    Some(Value::BulkString(message)) => message.as_slice(),
                    _ => &[],
                };
                self.tell(&channel, |read| read(message, None));
                true
            }
            PushKind::SUnsubscribe => !confirmed.contains(&channel),
            PushKind::Disconnection => false,
            _ => true,
        }
    }

    fn tell(&self, channel: &str, notice: impl FnOnce(ReadNotice) -> Notice) {
        if let Some(channel) = self.wanted.lock().channels.get(channel) {
            let notice = notice(channel.read);
            for (_, waiter) in &channel.waiters {
                // One that has gone has no use for it.
                drop(waiter.send(notice.clone()));
            }
        }
    }
}

async fn command(connection: &mut MultiplexedConnection, verb: &str, channel: &str) -> RedisResult<()> {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    match connection.send_packed_command(&command).await? {
        Value::ServerError(error) => Err(error.into()),
        _ => Ok(()),
    }
}
