//! One server: the multiplexed connection that everybody shares, and a pool for what needs a connection to itself.
//!
//! Pools make and replace connections; the hot path takes one out of one and keeps it, because a pool's `get` costs a round
//! trip. After silence the shared connection is given up for a new one: what still comes on it is never believed. It is made
//! for everybody, in a task of its own: a caller that gives up does not take it along, and those that use connections of
//! their own are not in its way.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::{Manager, Pool, PoolError, Runtime};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, Pipeline, RedisError, Value};

use crate::clock::Clock;
use crate::error::{Error, Refusal, Result};
use crate::lease::{self, Anchor, Moment, ServerTime};
use crate::options::Options;
use crate::scheme::{Answered, Route};
use crate::transport::address::invalid_url;
use crate::transport::fault::{self, Answer, Fault};
use crate::transport::{Call, Expiry, is_reply_to, server_time};

/// Requests that may queue up in front of one connection.
const PIPELINE_BUFFER: usize = 1024;
/// Connections for calls apart.
const POOL_SIZE: usize = 4;
/// After a failed dial others are told the same for this long, instead of queueing up to dial one after the other.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// An older anchor is not used: at 1 % its error would pass the clock margin.
const ANCHOR_AGE_MOST: Duration = Duration::from_secs(5);
/// Oldest servers that we work with.
const REDIS_OLDEST: (u32, u32) = (7, 0);
const VALKEY_OLDEST: (u32, u32) = (7, 2);

/// What all nodes of a manager have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) response_timeout: Duration,
    pub(super) clock_margin: Duration,
    pub(super) role: Role,
}

impl Limits {
    pub(super) fn new(options: &Options, role: Role) -> Self {
        Self { response_timeout: options.response_timeout, clock_margin: options.clock_margin, role }
    }
}

/// What a node is expected to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Standalone,
    ClusterMember,
}

/// How a call travels to a node that is about to own its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Owner,
    Asking,
}

pub(super) struct Node {
    line: Arc<Line>,
    info: ConnectionInfo,
    /// For calls apart.
    pool: Pool,
    limits: Limits,
    clock: Clock,
    dialing: Arc<tokio::sync::Mutex<()>>,
}

/// The shared connection, or how the last try to make it failed.
struct Line {
    address: Arc<str>,
    /// Every connection is taken out of it at once: none is old, and none is waited for.
    pool: Pool,
    limits: Limits,
    clock: Clock,
    live: Mutex<Option<Arc<Live>>>,
    /// How many connections there have been.
    dialed: AtomicU64,
    last_dial: Mutex<Option<FailedDial>>,
}

/// A connection, and what is known of its server's clock.
struct Live {
    /// No other connection to this node has the same.
    number: u64,
    connection: MultiplexedConnection,
    anchor: Mutex<Anchor>,
}

struct FailedDial {
    at: Moment,
    fault: DialFault,
}

/// A fault that can be told more than once.
#[derive(Clone)]
pub(super) enum DialFault {
    NotSent(Option<crate::error::Source>),
    Refused(Refusal, String),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.line.address).finish()
    }
}

impl Node {
    pub(super) fn new(address: String, info: ConnectionInfo, limits: Limits, clock: Clock) -> Result<Self> {
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let pool = |size| pool(info.clone(), limits.response_timeout, size);
        let line = Line {
            address: address.into(),
            pool: pool(1)?,
            limits,
            clock,
            live: Mutex::new(None),
            dialed: AtomicU64::new(0),
            last_dial: Mutex::new(None),
        };
        let pool = pool(POOL_SIZE)?;
        Ok(Self { line: Arc::new(line), info, pool, limits, clock, dialing: Arc::default() })
    }

    pub(super) fn address(&self) -> &str {
        &self.line.address
    }

    /// How to connect to it.
    pub(super) fn connection_info(&self) -> ConnectionInfo {
        self.info.clone()
    }

    /// The number of the shared connection, and what is known by it of the server's clock; `None` without one.
    pub(super) fn anchor(&self) -> Option<(u64, Anchor)> {
        let live = self.line.live.lock();
        live.as_ref().map(|live| (live.number, *live.anchor.lock()))
    }

    pub(super) fn route(&self) -> Route {
        Route(Arc::clone(&self.line.address))
    }

    /// Sends one call on the shared connection.
    pub(super) async fn call(&self, call: &Call, admission: Admission) -> Result<Answered<Value>, Fault> {
        // Paths that are seldom taken are boxed here and below: the future of a call is moved more than once.
        let live = match self.line.current() {
            Some(live) => live,
            None => Box::pin(self.live()).await?,
        };
        match self.send(&live, call, Load::Digest, admission).await {
            Err(Fault::NoScript) => Box::pin(self.send(&live, call, Load::Text, admission)).await,
            other => other,
        }
    }

    /// Sends one call on a connection from the pool, which nobody else waits for.
    pub(super) async fn call_apart(&self, call: &Call) -> Result<Answered<Value>, Fault> {
        let live = self.live().await?;
        let pooled = self.connection_apart().await?;
        let apart = Arc::new(Live {
            number: live.number,
            connection: MultiplexedConnection::clone(&pooled),
            anchor: Mutex::new(*live.anchor.lock()),
        });
        let answer = match self.send(&apart, call, Load::Digest, Admission::Owner).await {
            Err(Fault::NoScript) => self.send(&apart, call, Load::Text, Admission::Owner).await,
            other => other,
        };
        if matches!(answer, Err(Fault::Unknown { .. })) {
            // Whatever comes on it later is nobody's.
            drop(deadpool_redis::Connection::take(pooled));
        }
        answer
    }

    /// A connection that nobody else waits for. Those that are there and do not answer are not tried one after the other.
    async fn connection_apart(&self) -> Result<deadpool_redis::Connection, Fault> {
        // One response timeout for a place, one for the connection.
        match tokio::time::timeout(self.limits.response_timeout * 2, self.pool.get()).await {
            Ok(pooled) => pooled.map_err(of_pool),
            Err(_) => {
                drop(self.pool.retain(|_, _| false));
                Err(Fault::NotSent(Some(Arc::new(Answer(format!("no connection to {} in time", self.line.address))))))
            }
        }
    }

    /// Sends calls in one pipeline; one answer each, in order.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Result<Vec<Result<Answered<Value>, Fault>>, Fault> {
        let live = self.live().await?;
        let (sent, not_after) = self.not_after(&live).await?;
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(command(call, Load::Digest, not_after));
        }
        let values = self.pipeline(&live, &pipeline, sent).await?;
        let pairs = calls.iter().zip(values);
        Ok(pairs.map(|(call, value)| self.answered(&live, call, sent, value)).collect())
    }

    /// Asks a question that changes nothing.
    pub(super) async fn ask(&self, question: &Cmd) -> Result<Value, Fault> {
        let live = self.live().await?;
        let sent = self.clock.now();
        let mut connection = live.connection.clone();
        let reply = pin!(connection.send_packed_command(question));
        fault::reply(self.in_time(&live, sent, reply).await?)
    }

    /// Succeeds when the server answers that we can work with.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.live().await.map(drop)
    }

    async fn send(
        &self,
        live: &Arc<Live>,
        call: &Call,
        load: Load,
        admission: Admission,
    ) -> Result<Answered<Value>, Fault> {
        let (sent, not_after) = match call.expiry {
            Expiry::ResponseTimeout => self.not_after(live).await?,
            Expiry::Never => (self.clock.now(), ServerTime::default()),
        };
        let command = command(call, load, not_after);
        let value = match admission {
            Admission::Owner => {
                let mut connection = live.connection.clone();
                let reply = pin!(connection.send_packed_command(&command));
                self.in_time(live, sent, reply).await?
            }
            Admission::Asking => {
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.cmd("ASKING").add_command(command);
                let mut replies = Box::pin(self.pipeline(live, &pipeline, sent)).await?.into_iter();
                // Refused, it lets the call be sent back to where it came from, and so on.
                fault::reply(replies.next().unwrap_or_default())?;
                replies.next().unwrap_or_default()
            }
        };
        self.answered(live, call, sent, value)
    }

    async fn pipeline(&self, live: &Arc<Live>, pipeline: &Pipeline, sent: Moment) -> Result<Vec<Value>, Fault> {
        let mut connection = live.connection.clone();
        let replies = pin!(connection.send_packed_commands(pipeline, 0, pipeline.len()));
        self.in_time(live, sent, replies).await
    }

    /// Waits for what was sent at `sent`, for as long as a reply is believed. Without one the connection is given up.
    async fn in_time<T>(
        &self,
        live: &Arc<Live>,
        sent: Moment,
        reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, Fault> {
        let stray_until = sent.after(lease::stray_span(self.limits.response_timeout, self.limits.clock_margin));
        let fault = match tokio::time::timeout(self.limits.response_timeout, reply).await {
            // A runtime that stood still sees the reply before the timer: the clock decides.
            Ok(Ok(_)) | Err(_) if self.clock.now().since(sent) > self.limits.response_timeout => Fault::Unknown {
                stray_until,
                source: Some(Arc::new(Answer(format!(
                    "no answer from {} within {:?}",
                    self.line.address, self.limits.response_timeout
                )))),
            },
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Fault::of_request(error, stray_until),
            Err(_) => Fault::Unknown { stray_until, source: None },
        };
        if matches!(fault, Fault::Unknown { .. }) {
            self.give_up(live);
        }
        Err(fault)
    }

    fn answered(&self, live: &Arc<Live>, call: &Call, sent: Moment, value: Value) -> Result<Answered<Value>, Fault> {
        let value = fault::reply(value)?;
        if !is_reply_to(&value, call.echo()) {
            // The connection hands out replies to the wrong callers. Ours may still be under way.
            self.give_up(live);
            return Err(Fault::Unknown {
                stray_until: sent.after(lease::stray_span(self.limits.response_timeout, self.limits.clock_margin)),
                source: Some(Arc::new(Answer("the reply is not one to this request".to_owned()))),
            });
        }
        let server = server_time(&value).unwrap_or_default();
        if server != ServerTime::default() {
            *live.anchor.lock() = Anchor { sent, server };
        }
        Ok(Answered { sent, server, value })
    }

    /// Now, and the server's time after which a call that is sent now must not be carried out any more.
    async fn not_after(&self, live: &Arc<Live>) -> Result<(Moment, ServerTime), Fault> {
        let mut now = self.clock.now();
        let mut anchor = *live.anchor.lock();
        if anchor.age_at(now) > ANCHOR_AGE_MOST {
            anchor = Box::pin(self.read_time(live)).await?;
            *live.anchor.lock() = anchor;
            now = self.clock.now();
        }
        Ok((now, anchor.server_time_at(now).after(self.limits.response_timeout)))
    }

    async fn read_time(&self, live: &Arc<Live>) -> Result<Anchor, Fault> {
        let sent = self.clock.now();
        let mut connection = live.connection.clone();
        let time = redis::cmd("TIME");
        let reply = pin!(connection.send_packed_command(&time));
        let value = fault::reply(self.in_time(live, sent, reply).await?)?;
        let server = parse_time(&value).ok_or_else(|| unreadable("TIME"))?;
        Ok(Anchor { sent, server })
    }

    fn give_up(&self, live: &Arc<Live>) {
        let mut current = self.line.live.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            *current = None;
        }
    }

    async fn live(&self) -> Result<Arc<Live>, Fault> {
        if let Some(live) = self.line.current() {
            return Ok(live);
        }
        let dialing = Arc::clone(&self.dialing).lock_owned().await;
        if let Some(live) = self.line.current() {
            return Ok(live);
        }
        if let Some(failed) = &*self.line.last_dial.lock()
            && self.clock.now().since(failed.at) < DIAL_PAUSE
        {
            return Err(failed.fault.clone().into());
        }
        let line = Arc::clone(&self.line);
        // Goes on when its caller does not: callers that wait less long than a connection takes would never get one.
        let dialed = tokio::spawn(async move {
            let _dialing = dialing;
            line.connect().await
        });
        // Without an outcome: its runtime has ended.
        dialed.await.unwrap_or(Err(DialFault::NotSent(None))).map_err(Fault::from)
    }
}

impl Line {
    fn current(&self) -> Option<Arc<Live>> {
        self.live.lock().clone()
    }

    async fn connect(&self) -> Result<Arc<Live>, DialFault> {
        let dialed = self.dial().await;
        match &dialed {
            Ok(live) => {
                *self.last_dial.lock() = None;
                *self.live.lock() = Some(Arc::clone(live));
            }
            Err(fault) => *self.last_dial.lock() = Some(FailedDial { at: self.clock.now(), fault: fault.clone() }),
        }
        dialed
    }

    /// Connects, and asks the server what it is and what its clock says.
    async fn dial(&self) -> Result<Arc<Live>, DialFault> {
        let connection =
            deadpool_redis::Connection::take(self.pool.get().await.map_err(|error| not_sent(of_pool(error)))?);
        let mut greeting = Pipeline::with_capacity(2);
        greeting.cmd("HELLO").cmd("TIME");
        let sent = self.clock.now();
        let mut asking = connection.clone();
        let replies = asking.send_packed_commands(&greeting, 0, 2);
        let replies = match tokio::time::timeout(self.limits.response_timeout, replies).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(error)) => return Err(not_sent(Fault::of_dial(error))),
            Err(_) => {
                let silence = Answer(format!("{} accepts connections and does not answer", self.address));
                return Err(DialFault::NotSent(Some(Arc::new(silence))));
            }
        };
        let [hello, time] = <[Value; 2]>::try_from(replies).map_err(|_| not_sent(unreadable("HELLO")))?;
        check_server(hello, self.limits.role).map_err(not_sent)?;
        let time = fault::reply(time).map_err(not_sent)?;
        let server = parse_time(&time).ok_or_else(|| not_sent(unreadable("TIME")))?;
        let number = self.dialed.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Live { number, connection, anchor: Mutex::new(Anchor { sent, server }) }))
    }
}

fn pool(info: ConnectionInfo, response_timeout: Duration, size: usize) -> Result<Pool> {
    // Replies are waited for here and with our own clock, so the library need not set a timer of its own for each.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(response_timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    let manager = Manager::new_with_config(info, config).map_err(|error| invalid_url(&error))?;
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(response_timeout))
        .create_timeout(Some(response_timeout))
        .recycle_timeout(Some(response_timeout))
        .build()
        .map_err(|error| Error::InvalidOption { option: "topology", reason: error.to_string() })
}

impl From<DialFault> for Fault {
    fn from(fault: DialFault) -> Self {
        match fault {
            DialFault::NotSent(source) => Self::NotSent(source),
            DialFault::Refused(refusal, message) => Self::Refused { refusal, message },
        }
    }
}

/// While connecting nothing of ours was sent, whatever went wrong.
pub(super) fn not_sent(fault: Fault) -> DialFault {
    match fault {
        Fault::Refused { refusal, message } => DialFault::Refused(refusal, message),
        Fault::NotSent(source) | Fault::Unknown { source, .. } => DialFault::NotSent(source),
        Fault::Again(source) => DialFault::NotSent(Some(source)),
        Fault::Moved { .. } | Fault::Ask { .. } | Fault::NoScript => DialFault::NotSent(None),
    }
}

fn of_pool(error: PoolError) -> Fault {
    match error {
        PoolError::Backend(error) => Fault::of_dial(error),
        PoolError::Timeout(_) | PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            Fault::NotSent(Some(Arc::new(Answer(error.to_string()))))
        }
    }
}

fn unreadable(question: &str) -> Fault {
    Fault::NotSent(Some(Arc::new(Answer(format!("the reply to {question} is not one")))))
}

/// How a script is named in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Digest,
    Text,
}

fn command(call: &Call, load: Load, not_after: ServerTime) -> Cmd {
    let (name, script) = match load {
        Load::Digest => ("EVALSHA", call.script.digest()),
        Load::Text => ("EVAL", call.script.text),
    };
    // Two short numbers and a name more than the call and the script.
    let mut command = Cmd::with_capacity(call.parts + 4, call.text.len() + script.len() + 32);
    command.arg(name).arg(script).arg(call.keys);
    for key in call.keys() {
        command.arg(key);
    }
    if call.expiry == Expiry::ResponseTimeout {
        command.arg(not_after.as_millis_up());
    }
    for arg in call.args() {
        command.arg(arg);
    }
    command
}

fn parse_time(reply: &Value) -> Option<ServerTime> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::BulkString(secs), Value::BulkString(micros)] = parts.as_slice() else {
        return None;
    };
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
    Some(ServerTime::from_micros(number(secs)?.checked_mul(1_000_000)? + number(micros)?))
}

/// Refuses servers that are too old, or not what the topology says.
fn check_server(hello: Value, role: Role) -> Result<(), Fault> {
    let refuse = |refusal, message| Err(Fault::Refused { refusal, message });
    let unsupported = |what: &str| {
        let (redis, valkey) = (REDIS_OLDEST, VALKEY_OLDEST);
        let needs =
            format!("Redis {}.{} or Valkey {}.{} is the oldest that works", redis.0, redis.1, valkey.0, valkey.1);
        refuse(Refusal::UnsupportedServer, format!("{what}; {needs}"))
    };
    let hello = match fault::reply(hello) {
        Ok(hello) => hello,
        // Before Redis 6 there was no HELLO.
        Err(Fault::Refused { refusal: Refusal::Other, message }) => return unsupported(&message),
        Err(fault) => return Err(fault),
    };
    let field = |name: &str| hello_field(&hello, name).unwrap_or_default();
    let (server, version) = (field("server"), field("version"));
    let oldest = if server == "valkey" { VALKEY_OLDEST } else { REDIS_OLDEST };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < oldest {
        return unsupported(&format!("the server is {server} {version}"));
    }
    let mode = field("mode");
    let expected = match role {
        Role::Standalone => "standalone",
        Role::ClusterMember => "cluster",
    };
    if mode != expected {
        let message = format!("the server runs in {mode} mode, the topology says {expected}");
        return refuse(Refusal::OtherTopology, message);
    }
    Ok(())
}

fn hello_field(hello: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    let Value::Array(fields) = hello else {
        return None;
    };
    let pairs = fields.chunks_exact(2);
    let found = pairs.filter_map(|pair| pair.split_first()).find(|(key, _)| text(key).as_deref() == Some(name));
    found.and_then(|(_, value)| value.first().and_then(text))
}
