//! Transport between the schemes and the servers. It sends each script to the node that owns the script's slot. It
//! returns the answer, or reports that there is none.
//!
//! Knows `base` only. Must not know the meaning of a script.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures_util::stream::BoxStream;
use redis::Value;

use crate::base::attempt::{Answered, BoxFuture, Failure, Notification, Route, ServerContact, Subscription};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::digits::Digits;
use crate::base::error::Result;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::lease::{ClockSample, Moment, ServerTime};
use crate::base::options::Options;
use crate::base::recalls::Recalls;
use crate::base::topology::{Tls, Topology};
use crate::net::secrets::Secrets;

mod address;
mod announced;
mod conditions;
mod encode;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/unit/net/fake.rs"]
mod fake;
mod fault;
mod fleet;
mod members;
mod node;
mod outages;
mod push;
mod pushed;
mod recheck;
mod router;
mod secrets;
mod sentinels;
mod slot_owners;
mod slots;
mod survey;
#[cfg_attr(not(feature = "tls"), path = "net/no_tls.rs")]
mod tls;

/// A Lua script and its digest.
pub(crate) struct Script {
    text: &'static str,
    digest: OnceLock<String>,
    named: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, digest: OnceLock::new(), named: OnceLock::new() }
    }

    /// Returns the commands that the script calls with `redis.call` and cannot do without.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'static str> {
        self.text.split("redis.call('").skip(1).filter_map(|rest| rest.split('\'').next())
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// Returns the beginning of every call by digest, in RESP, without the number of parts before it.
    fn call_start(&self) -> &str {
        self.named.get_or_init(|| {
            let digest = self.digest();
            format!("$7\r\nEVALSHA\r\n${}\r\n{digest}\r\n", digest.len())
        })
    }
}

/// Effect of a request that the server executes late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// No effect. A late copy of such a request changes nothing.
    Never,
    /// The server refuses the late request. The first argument of the request is a limit in server time. The connection
    /// fills in this limit, one response timeout after the sending.
    ResponseTimeout,
}

/// Script call. Its keys and arguments are stored in RESP, one after the other. So a call needs one allocation, and a
/// sender copies two pieces: the keys, and the arguments.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) expiry: Expiry,
    /// True if the call may grant a hold, or extend one.
    pub(crate) grants: bool,
    encoded: Vec<u8>,
    /// Position of each part in `encoded`, keys first.
    places: [ArgumentPlace; Call::MAX_PARTS],
    parts: usize,
    keys: usize,
    /// Index of the part that the reply must repeat. The repetition proves that the reply belongs to this call.
    echo: Option<usize>,
}

/// Position of one part. Keys and arguments have limited lengths, so 32 bits are enough.
#[derive(Clone, Copy, Default)]
struct ArgumentPlace {
    begin: u32,
    end: u32,
}

impl Call {
    /// Limit for the number of keys and arguments of one call.
    const MAX_PARTS: usize = 9;

    pub(crate) fn new(script: &'static Script, slot: u16) -> Self {
        let (encoded, places) = (Vec::with_capacity(224), [ArgumentPlace::default(); Self::MAX_PARTS]);
        Self { script, slot, expiry: Expiry::Never, grants: false, encoded, places, parts: 0, keys: 0, echo: None }
    }

    /// Appends a key, given as the pieces that it consists of. All keys come before the first argument.
    pub(crate) fn key(&mut self, pieces: [&str; 3]) {
        self.add(&pieces);
        self.keys = self.parts;
    }

    /// Appends an argument that the reply repeats.
    pub(crate) fn echoed_arg(&mut self, arg: &str) {
        self.echo = Some(self.parts);
        self.arg(arg);
    }

    fn echo(&self) -> &[u8] {
        self.echo.map_or(b"", |part| self.part(part))
    }

    pub(crate) fn arg(&mut self, arg: &str) {
        self.add(&[arg]);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.arg(Digits::of(number).as_str());
    }

    fn add(&mut self, pieces: &[&str]) {
        encode::head(&mut self.encoded, b'$', pieces.iter().map(|piece| piece.len()).sum());
        let begin = self.encoded.len() as u32;
        pieces.iter().for_each(|piece| self.encoded.extend_from_slice(piece.as_bytes()));
        self.places[self.parts] = ArgumentPlace { begin, end: self.encoded.len() as u32 };
        self.encoded.extend_from_slice(encode::END);
        self.parts += 1;
    }

    #[cfg(test)]
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.keys).map(|part| self.part(part))
    }

    #[cfg(test)]
    fn args(&self) -> impl Iterator<Item = &[u8]> {
        (self.keys..self.parts).map(|part| self.part(part))
    }

    fn part(&self, part: usize) -> &[u8] {
        let ArgumentPlace { begin, end } = self.places[part];
        &self.encoded[begin as usize..end as usize]
    }

    /// Returns all keys, and all arguments, in RESP.
    fn encoded_parts(&self) -> (&[u8], &[u8]) {
        let behind = |key: usize| self.places[key].end as usize + encode::END.len();
        self.encoded.split_at(self.keys.checked_sub(1).map_or(0, behind))
    }
}

/// Function that turns a published message into a notification. The clock sample is of the node that published the
/// message; `None` if there is no sample to trust.
pub(crate) type ReadNotification = fn(message: &[u8], clock_sample: Option<ClockSample>) -> Notification;

/// Sends script calls to servers. An answer always belongs to the copy of the call that was sent last.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// Sends a call ahead of calls that acquire.
    fn call_ahead(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// Sends a call that may take long on a connection of its own.
    fn call_apart(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// Sends calls of one route in one pipeline. Returns one answer for each, in order.
    fn call_all<'a>(
        &'a self,
        route: &'a Route,
        calls: Vec<Call>,
    ) -> BoxFuture<'a, Vec<Result<Answered<Value>, Failure>>>;
    fn route(&self, slot: u16) -> Route;
    /// Yields an item when routes may have changed. `None` if routes never change.
    fn changes(&self) -> Option<BoxStream<'static, ()>>;
    /// Returns true if this runtime has a connection that can take a call for `slot` without a wait.
    fn can_send_inline(&self, slot: u16) -> bool;
    /// Returns the last contact with the owner of `slot`, as far as the owner is known.
    fn server_contact(&self, slot: u16) -> ServerContact;
    /// Returns the newest clock sample of this runtime's connection, if there is only one server.
    fn clock_sample(&self) -> Option<ClockSample>;
    /// Returns a moment at or after the start of the server. `None` with several servers, or if no connection asked for
    /// the server's uptime.
    fn up_since(&self) -> Option<Moment>;
    /// Succeeds when a server has answered and this library can work with it.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Subscribes to a channel of `slot`. `read` reads the messages; all subscribers of a channel must pass the same
    /// function.
    ///
    /// The first notification is [`Notification::AskAgain`]. It comes as soon as no later notification can be missed.
    /// Another one comes whenever notifications may have been missed.
    fn subscribe(&self, slot: u16, channel: &str, read: ReadNotification) -> Option<Subscription>;
    /// Subscribes only if the channel is confirmed already, so that no notification can be missed. Then no
    /// [`Notification::AskAgain`] comes first. Never waits.
    fn subscribe_if_live(&self, slot: u16, channel: &str, read: ReadNotification) -> Option<Subscription>;
    /// Passes the recalls of a channel to `calls`, and reports there when the subscription becomes live or breaks. Ends
    /// when `calls` has no owner any more. The background runtime does this work. Never waits; returns `false` if there
    /// is no such runtime.
    fn listen(&self, slot: u16, channel: &str, read: ReadNotification, calls: &Arc<Recalls>) -> bool;
    /// Returns true if any channel is subscribed. If none is, the caller need not build a channel name.
    fn is_subscribing(&self) -> bool;
    /// Passes each key that matches `pattern`, on every primary, to `found`. A key may come twice.
    fn scan<'a>(
        &'a self,
        pattern: &'a str,
        found: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<(), Failure>>;
    /// Asks each server for its health. Ends within a time limit, even if servers do not answer.
    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>>;
    /// Returns the load on this transport.
    fn traffic(&self) -> Traffic;
    fn clock(&self) -> Clock;
}

/// Opens a transport to these servers. Connects at first use.
pub(crate) fn open(
    topology: &Topology,
    options: &Options,
    background_runtime: &BackgroundRuntime,
) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(router::Router::new(topology, options, background_runtime)?))
}

/// Opens one transport to each of several independent servers.
pub(crate) fn open_voters(
    urls: &[String],
    tls: &Tls,
    password_file: Option<&Path>,
    options: &Options,
    background_runtime: &BackgroundRuntime,
) -> Result<Vec<Arc<dyn Transport>>> {
    let voters = router::Router::voters(urls, Secrets::new(tls, password_file)?, options, background_runtime)?;
    Ok(voters.into_iter().map(|voter| Arc::new(voter) as Arc<dyn Transport>).collect())
}

/// Reader for words that are separated by one blank.
pub(crate) struct Words<'a>(Option<&'a [u8]>);

impl<'a> Words<'a> {
    /// Reads the head of a reply: code, id, the server's time in seconds and microseconds, and the fields of the code.
    pub(crate) fn of(value: &'a Value) -> Option<Self> {
        let head = match value {
            Value::Array(items) => items.first()?,
            text => text,
        };
        match head {
            Value::BulkString(head) => Some(Self(Some(head))),
            _ => None,
        }
    }

    pub(crate) fn word(&mut self) -> Option<&'a [u8]> {
        let words = self.0?;
        let length = words.iter().position(|&byte| byte == b' ').unwrap_or(words.len());
        self.0 = words.get(length + 1..);
        Some(&words[..length])
    }

    /// Reads a number in decimal digits. Each reply has several numbers, and the standard library's reader needs a
    /// check for UTF-8 first.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let words = self.0?;
        let (mut number, mut length) = (0_u64, 0);
        for &byte in words.iter().take_while(|&&byte| byte != b' ') {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            number = number.checked_mul(10)?.checked_add(digit.into())?;
            length += 1;
        }
        self.0 = words.get(length + 1..);
        (length > 0).then_some(number)
    }

    /// Reads the server's time, which is two numbers.
    pub(crate) fn time(&mut self) -> Option<ServerTime> {
        let seconds = self.number()?.checked_mul(1_000_000)?;
        Some(ServerTime::from_micros(seconds.checked_add(self.number()?)?))
    }
}

/// Stand-in for the id in the reply to a call that names no acquisition.
pub(crate) const NO_ID: &[u8] = b"-";

/// Returns true if the reply belongs to the call with this `echo`. Each reply repeats the echo of its call as its
/// second word.
fn is_reply_to(value: &Value, echo: &[u8]) -> bool {
    let id = Words::of(value).and_then(|mut words| words.word().and_then(|_| words.word()));
    id == Some(if echo.is_empty() { NO_ID } else { echo })
}

/// Returns true if the script granted a hold, or extended one.
fn gives_hold(value: &Value) -> bool {
    let code = Words::of(value).and_then(|mut words| words.word());
    matches!(code, Some(b"granted" | b"renewed"))
}

/// Reads the server's time from the reply of a script.
fn server_time(value: &Value) -> Option<ServerTime> {
    let mut words = Words::of(value)?;
    words.word()?;
    words.word()?;
    words.time()
}
