//! What a scheme needs of servers: a script carried to whoever owns its slot, and the answer or its absence brought back.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::stream::BoxStream;
use redis::Value;

use crate::clock::Clock;
use crate::error::Result;
use crate::lease::{Anchor, ServerTime};
use crate::options::Options;
use crate::scheme::{Answered, BoxFuture, Failure, Notice, Route, Subscription};
use crate::topology::Topology;

mod address;
mod directory;
mod fault;
mod fleet;
mod node;
mod push;
mod router;
mod sentinels;
mod slots;
#[cfg(feature = "tls")]
mod tls;

/// A Lua script and its digest.
pub(crate) struct Script {
    text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, digest: OnceLock::new() }
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

/// Whether a request may be carried out late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// Late, it changes nothing more.
    Never,
    /// Its first argument is the server's time after which it is refused, put in when it is sent: a response timeout on.
    ResponseTimeout,
}

/// One script call. Its keys and arguments lie one after the other in one text, so that a call is one allocation.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) expiry: Expiry,
    text: String,
    /// Where each of them ends, keys first.
    ends: [usize; Call::PARTS_MOST],
    parts: usize,
    keys: usize,
    /// The part that the reply must repeat, by which it is known to be the reply to this call.
    echo: Option<usize>,
}

impl Call {
    /// Keys and arguments together; no script of ours has more.
    const PARTS_MOST: usize = 9;

    pub(crate) fn new(script: &'static Script, slot: u16) -> Self {
        let text = String::with_capacity(160);
        Self { script, slot, expiry: Expiry::Never, text, ends: [0; Self::PARTS_MOST], parts: 0, keys: 0, echo: None }
    }

    /// All keys come before the first argument. A key is given as the pieces that it consists of.
    pub(crate) fn key(&mut self, pieces: [&str; 3]) {
        pieces.into_iter().for_each(|piece| self.text.push_str(piece));
        self.arg("");
        self.keys = self.parts;
    }

    /// An argument that the reply repeats.
    pub(crate) fn echoed_arg(&mut self, arg: &str) {
        self.echo = Some(self.parts);
        self.arg(arg);
    }

    fn echo(&self) -> &str {
        self.echo.map_or("", |part| self.part(part))
    }

    pub(crate) fn arg(&mut self, arg: &str) {
        self.text.push_str(arg);
        self.ends[self.parts] = self.text.len();
        self.parts += 1;
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        (0..self.keys).map(|part| self.part(part))
    }

    fn args(&self) -> impl Iterator<Item = &str> {
        (self.keys..self.parts).map(|part| self.part(part))
    }

    fn part(&self, part: usize) -> &str {
        let begin = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[part]]
    }
}

/// Makes a notice of what was published, given an anchor of the node that published it, if there is one to trust.
pub(crate) type ReadNotice = fn(message: &[u8], anchor: Option<Anchor>) -> Notice;

/// Carries calls. An answer is one to this copy of this call, or none.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// The same on a connection of its own, for what may take long.
    fn call_apart(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// Calls of one route in one pipeline; one answer each, in order.
    fn call_all<'a>(
        &'a self,
        route: &'a Route,
        calls: Vec<Call>,
    ) -> BoxFuture<'a, Vec<Result<Answered<Value>, Failure>>>;
    fn route(&self, slot: u16) -> Route;
    /// Tells when routes may have changed; `None` where they never do.
    fn changes(&self) -> Option<BoxStream<'static, ()>>;
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// What is published on a channel of `slot`, read by `read`, which is the same for all who subscribe to it. The first
    /// notice is [`Notice::AskAgain`], as soon as it is certain that none will be missed; another whenever some may have been.
    fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// The same, if it is certain already that none will be missed: then no [`Notice::AskAgain`] comes first. Never waits.
    fn subscribed(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// Whether any channel is subscribed: if not, there is no need to put the name of one together.
    fn is_subscribing(&self) -> bool;
    fn clock(&self) -> Clock;
}

/// A transport to these servers. Connects at first use.
pub(crate) fn open(topology: Topology, options: &Options) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(router::Router::new(&topology, options)?))
}

/// Whether a reply is one to a call that it repeats `echo` of: the second element of all of them.
fn is_reply_to(value: &Value, echo: &str) -> bool {
    match value {
        Value::Array(items) => {
            matches!(items.get(1), Some(Value::BulkString(id)) if id.as_slice() == echo.as_bytes())
        }
        _ => false,
    }
}

/// The server's time in the reply of a script: the third element of all of them, in microseconds.
fn server_time(value: &Value) -> Option<ServerTime> {
    match value {
        Value::Array(items) => match items.get(2) {
            Some(Value::Int(micros)) => u64::try_from(*micros).ok().map(ServerTime::from_micros),
            _ => None,
        },
        _ => None,
    }
}
