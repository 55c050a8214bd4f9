//! What a scheme needs of servers: a script carried to whoever owns its slot, and the answer or its absence brought back.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures_util::stream::BoxStream;
use redis::Value;

use crate::attempt::{Answered, BoxFuture, Failure, Hearing, Notice, Route, Subscription};
use crate::calls::Calls;
use crate::clock::Clock;
use crate::digits::Digits;
use crate::error::Result;
use crate::health::{NodeHealth, Traffic};
use crate::home::Home;
use crate::lease::{Anchor, Moment, ServerTime};
use crate::options::Options;
use crate::topology::{Tls, Topology};
use crate::transport::secrets::Secrets;

mod address;
mod announced;
mod conditions;
mod encode;
#[cfg(test)]
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
#[cfg_attr(not(feature = "tls"), path = "transport/no_tls.rs")]
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

    /// The commands that it calls, and does not do without.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'static str> {
        self.text.split("redis.call('").skip(1).filter_map(|rest| rest.split('\'').next())
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// What every call by the digest begins with behind its number of parts, as a server reads it.
    fn named(&self) -> &str {
        self.named.get_or_init(|| {
            let digest = self.digest();
            format!("$7\r\nEVALSHA\r\n${}\r\n{digest}\r\n", digest.len())
        })
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

/// One script call. Its keys and arguments lie one after the other, as a server reads them, so that a call is one allocation
/// and is copied in two pieces.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) expiry: Expiry,
    /// It may give a hold, or more of one.
    pub(crate) grants: bool,
    encoded: Vec<u8>,
    /// Where each of them is, keys first.
    places: [Place; Call::MAX_PARTS],
    parts: usize,
    keys: usize,
    /// The part that the reply must repeat, by which it is known to be the reply to this call.
    echo: Option<usize>,
}

/// Names have a limit: 32 bits are enough.
#[derive(Clone, Copy, Default)]
struct Place {
    begin: u32,
    end: u32,
}

impl Call {
    /// Keys and arguments together; no script of ours has more.
    const MAX_PARTS: usize = 9;

    pub(crate) fn new(script: &'static Script, slot: u16) -> Self {
        let (encoded, places) = (Vec::with_capacity(224), [Place::default(); Self::MAX_PARTS]);
        Self { script, slot, expiry: Expiry::Never, grants: false, encoded, places, parts: 0, keys: 0, echo: None }
    }

    /// All keys come before the first argument. A key is given as the pieces that it consists of.
    pub(crate) fn key(&mut self, pieces: [&str; 3]) {
        self.add(&pieces);
        self.keys = self.parts;
    }

    /// An argument that the reply repeats.
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
        self.places[self.parts] = Place { begin, end: self.encoded.len() as u32 };
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
        let Place { begin, end } = self.places[part];
        &self.encoded[begin as usize..end as usize]
    }

    /// All keys, and all arguments, as a server reads them.
    fn encoded(&self) -> (&[u8], &[u8]) {
        let behind = |key: usize| self.places[key].end as usize + encode::END.len();
        self.encoded.split_at(self.keys.checked_sub(1).map_or(0, behind))
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
    /// Whether this runtime has a connection with room for a call for `slot`.
    fn is_at_hand(&self, slot: u16) -> bool;
    /// What the owner of `slot` has said of late, as far as it is known.
    fn hearing(&self, slot: u16) -> Hearing;
    /// What its clock has said last, on this runtime's connection, if it is one alone.
    fn anchor(&self) -> Option<Anchor>;
    /// Since when the server has been running, if it is one alone and was asked: not later than that.
    fn up_since(&self) -> Option<Moment>;
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// What is published on a channel of `slot`, read by `read`, which is the same for all who subscribe to it. The first
    /// notice is [`Notice::AskAgain`], as soon as it is certain that none will be missed; another whenever some may have been.
    fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// The same, if it is certain already that none will be missed: then no [`Notice::AskAgain`] comes first. Never waits.
    fn subscribed(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription>;
    /// Tells `calls` what is published, and whether it would be, from the home, as long as somebody has it. `false` if there is no home.
    /// Never waits.
    fn listen(&self, slot: u16, channel: &str, read: ReadNotice, calls: &Arc<Calls>) -> bool;
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

/// Transports to several servers that know nothing of each other, one to each.
pub(crate) fn open_voters(
    urls: &[String],
    tls: &Tls,
    password_file: Option<&Path>,
    options: &Options,
    home: &Home,
) -> Result<Vec<Arc<dyn Transport>>> {
    let voters = router::Router::voters(urls, Secrets::new(tls, password_file)?, options, home)?;
    Ok(voters.into_iter().map(|voter| Arc::new(voter) as Arc<dyn Transport>).collect())
}

/// Words with a blank between them, read from the front.
pub(crate) struct Words<'a>(Option<&'a [u8]>);

impl<'a> Words<'a> {
    /// Of a reply: code, id, the server's time in seconds and microseconds, and what the code has behind it.
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

    /// A number as a server writes it. Each reply has several: the standard library's reader looks for UTF-8 first.
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

    /// The server's time, which is two of them.
    pub(crate) fn time(&mut self) -> Option<ServerTime> {
        let seconds = self.number()?.checked_mul(1_000_000)?;
        Some(ServerTime::from_micros(seconds.checked_add(self.number()?)?))
    }
}

/// What the reply to a call that names no acquisition has in place of its id.
pub(crate) const NO_ID: &[u8] = b"-";

/// Whether a reply is one to a call that it repeats `echo` of: the second word of all of them.
fn is_reply_to(value: &Value, echo: &[u8]) -> bool {
    let id = Words::of(value).and_then(|mut words| words.word().and_then(|_| words.word()));
    id == Some(if echo.is_empty() { NO_ID } else { echo })
}

/// Whether a script has given a hold, or more of one.
fn gives_hold(value: &Value) -> bool {
    let code = Words::of(value).and_then(|mut words| words.word());
    matches!(code, Some(b"granted" | b"renewed"))
}

/// The server's time in the reply of a script.
fn server_time(value: &Value) -> Option<ServerTime> {
    let mut words = Words::of(value)?;
    words.word()?;
    words.word()?;
    words.time()
}
