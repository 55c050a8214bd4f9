//! What a scheme needs of servers: a script carried to whoever owns its slot, and the answer or its absence brought back.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::stream::BoxStream;
use redis::Value;

use crate::attempt::{Answered, BoxFuture, Failure, Hearing, Notice, Route, Subscription};
use crate::clock::Clock;
use crate::error::Result;
use crate::health::{NodeHealth, Traffic};
use crate::home::Home;
use crate::lease::{Anchor, ServerTime};
use crate::options::Options;
use crate::topology::Topology;

mod address;
#[cfg(test)]
mod fake;
mod fault;
mod fleet;
mod members;
mod node;
mod push;
mod router;
mod sentinels;
mod slot_owners;
mod slots;
mod survey;
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
    ends: [usize; Call::MAX_PARTS],
    parts: usize,
    keys: usize,
    /// The part that the reply must repeat, by which it is known to be the reply to this call.
    echo: Option<usize>,
}

impl Call {
    /// Keys and arguments together; no script of ours has more.
    const MAX_PARTS: usize = 9;

    pub(crate) fn new(script: &'static Script, slot: u16) -> Self {
        let text = String::with_capacity(160);
        Self { script, slot, expiry: Expiry::Never, text, ends: [0; Self::MAX_PARTS], parts: 0, keys: 0, echo: None }
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
    /// The same, without waiting for those who acquire.
    fn call_ahead(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
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
    /// What the owner of `slot` has said of late, as far as it is known.
    fn hearing(&self, slot: u16) -> Hearing;
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// What is published on a channel of `slot`, read by `read`, which is the same for all who subscribe to it. The first
    /// notice is [`Notice::AskAgain`], as soon as it is certain that none will be missed; another whenever some may have been.
    fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// The same, if it is certain already that none will be missed: then no [`Notice::AskAgain`] comes first. Never waits.
    fn subscribed(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// Whether any channel is subscribed: if not, there is no need to put the name of one together.
    fn is_subscribing(&self) -> bool;
    /// Names every key on every primary that `pattern` matches to `found`; one may come twice.
    fn scan<'a>(
        &'a self,
        pattern: &'a str,
        found: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), Failure>>;
    /// What each server says of itself. Ends in time whatever they do.
    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>>;
    /// How busy it is.
    fn traffic(&self) -> Traffic;
    fn clock(&self) -> Clock;
}

/// A transport to these servers. Connects at first use.
pub(crate) fn open(topology: &Topology, options: &Options, home: &Home) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(router::Router::new(topology, options, home)?))
}

/// The words that all replies begin with: code, id, and the server's time in seconds and microseconds.
fn head(value: &Value) -> Option<&[u8]> {
    let head = match value {
        Value::Array(items) => items.first()?,
        text => text,
    };
    match head {
        Value::BulkString(head) => Some(head),
        _ => None,
    }
}

/// The first word, and what comes behind it.
fn first_word(words: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = words.iter().position(|&byte| byte == b' ');
    blank.map(|blank| (&words[..blank], &words[blank + 1..]))
}

/// A number as a server writes it. Each reply has two: the standard library's reader looks for UTF-8 first.
fn decimal(word: &[u8]) -> Option<u64> {
    let add = |number: u64, digit: &u8| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    if word.is_empty() { None } else { word.iter().try_fold(0, add) }
}

/// Whether a reply is one to a call that it repeats `echo` of: the second word of all of them, `-` for nothing.
fn is_reply_to(value: &Value, echo: &str) -> bool {
    if let Value::Array(items) = value
        && let [Value::BulkString(_), Value::BulkString(id), ..] = items.as_slice()
        && id.as_slice() == echo.as_bytes()
    {
        return true; // of the two-key scheme
    }
    let echo = if echo.is_empty() { "-" } else { echo };
    let behind = head(value).and_then(first_word).and_then(|(_, rest)| rest.strip_prefix(echo.as_bytes()));
    behind.is_some_and(|behind| matches!(behind, [] | [b' ', ..]))
}

/// The server's time in the reply of a script.
fn server_time(value: &Value) -> Option<ServerTime> {
    if let Value::Array(items) = value
        && let Some(Value::Int(micros)) = items.get(2)
    {
        return u64::try_from(*micros).ok().map(ServerTime::from_micros); // of the two-key scheme
    }
    let (_, words) = first_word(head(value)?)?;
    let (_, words) = first_word(words)?;
    let (seconds, words) = first_word(words)?;
    let micros = first_word(words).map_or(words, |(micros, _)| micros);
    Some(ServerTime::from_micros(decimal(seconds)?.checked_mul(1_000_000)?.checked_add(decimal(micros)?)?))
}
