//! Transport between the lock schemes and the servers. It sends each script to the node that owns the script's slot.
//! Then it returns the server's answer, or an error if no answer came.
//!
//! Knows `base` only. Must not know the meaning of a script.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;

use crate::base::attempt::Notification;
use crate::base::clock::Clock;
use crate::base::digits::Digits;
use crate::base::lease::{ClockSample, ServerTime};
pub(crate) use crate::net::router::{CallRoute, Router};
pub(crate) use crate::net::script::Script;

mod address;
mod announced;
mod conditions;
mod encode;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/unit/net/fake.rs"]
mod fake;
mod fault;
mod fleet;
mod issuer;
mod members;
mod node;
mod outages;
mod push;
mod pushed;
mod recheck;
mod router;
mod script;
mod secrets;
mod sentinels;
mod slot_owners;
mod slots;
mod survey;
#[cfg_attr(not(feature = "tls"), path = "net/no_tls.rs")]
mod tls;

/// Clock of the transport. Servers and their connections take real time, in tests too.
const CLOCK: Clock = Clock::System;

/// Effect of a request that reaches the server late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// The late request has no effect, because a second execution changes nothing.
    Never,
    /// The server refuses the late request. For this purpose the first argument of the request is a limit in server
    /// time. The connection sets this limit to the time of sending plus one response timeout.
    ResponseTimeout,
}

/// Call of a script. Its keys and arguments are stored in one buffer in RESP, so a call needs one allocation. To send a
/// call, the connection copies two pieces of this buffer: all keys, and all arguments.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) expiry: Expiry,
    /// True if the call may grant a new hold or extend an existing hold.
    pub(crate) grants: bool,
    encoded: Vec<u8>,
    /// Position of each part in `encoded`. A part is a key or an argument; the keys come first.
    places: [ArgumentPlace; Call::MAX_PARTS],
    parts: usize,
    keys: usize,
    /// Index of the part that the reply must repeat. This repetition proves that the reply belongs to this call.
    echo: Option<usize>,
}

/// Position of one key or argument in the buffer. Keys and arguments have limited lengths, so 32 bits are enough.
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

    /// Appends a key, which is the concatenation of `pieces`. All keys must be appended before the first argument.
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

    fn part(&self, part: usize) -> &[u8] {
        let ArgumentPlace { begin, end } = self.places[part];
        &self.encoded[begin as usize..end as usize]
    }

    /// Returns all keys in RESP, and all arguments in RESP.
    fn encoded_parts(&self) -> (&[u8], &[u8]) {
        let behind = |key: usize| self.places[key].end as usize + encode::END.len();
        self.encoded.split_at(self.keys.checked_sub(1).map_or(0, behind))
    }
}

/// Guard for a number of things, such as calls that wait for their answers. The things count until it is dropped.
struct CountGuard<'a> {
    count: &'a AtomicUsize,
    things: usize,
}

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicUsize, things: usize) -> Self {
        count.fetch_add(things, Ordering::AcqRel);
        Self { count, things }
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.things, Ordering::AcqRel);
    }
}

/// Function that turns a published message into a notification. `clock_sample` compares this process's clock with the
/// clock of the node that published the message. It is `None` if there is no sample that can be trusted.
pub(crate) type ReadNotification = fn(message: &[u8], clock_sample: Option<ClockSample>) -> Notification;

/// Reader for words with one blank between them.
pub(crate) struct Words<'a>(Option<&'a [u8]>);

impl<'a> Words<'a> {
    /// Returns a reader for the head of a reply. The head consists of a code, an id, the server's time in seconds and
    /// microseconds, and further fields that depend on the code.
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

    /// Reads a number in decimal digits. The parser of the standard library would have to check first that the bytes
    /// are UTF-8. This function avoids that check, because each reply has several numbers.
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

    /// Reads the server's time: one number of seconds, and one number of microseconds.
    pub(crate) fn time(&mut self) -> Option<ServerTime> {
        let seconds = self.number()?.checked_mul(1_000_000)?;
        Some(ServerTime::from_micros(seconds.checked_add(self.number()?)?))
    }
}

/// Text in the place of the id, in the reply to a call that belongs to no acquisition.
pub(crate) const NO_ID: &[u8] = b"-";

/// Returns true if the reply belongs to the call with this `echo`. The second word of each reply repeats the echo of
/// its call.
fn is_reply_to(value: &Value, echo: &[u8]) -> bool {
    let id = Words::of(value).and_then(|mut words| words.word().and_then(|_| words.word()));
    id == Some(if echo.is_empty() { NO_ID } else { echo })
}

/// Returns true if the script granted a new hold or extended an existing hold.
fn gives_hold(value: &Value) -> bool {
    let code = Words::of(value).and_then(|mut words| words.word());
    matches!(code, Some(b"granted" | b"renewed"))
}

/// Returns true if the server refused a notification of the script. The last word of the reply's head then says so.
fn is_unpublished(value: &Value) -> bool {
    Words::of(value).is_some_and(|words| words.0.is_some_and(|head| head.ends_with(b" unpublished")))
}

/// Reads the server's time from the reply of a script.
fn server_time(value: &Value) -> Option<ServerTime> {
    let mut words = Words::of(value)?;
    words.word()?;
    words.word()?;
    words.time()
}
