//! Frames of the protocols RESP3 and RESP2. This module finds the end of each frame, which is an answer or a push.
//!
//! RESP2 has no pushes: a subscribing connection gets lists instead. No other request on such a connection has a list as
//! its answer that begins like a push about a channel.
//!
//! Most scripts reply with a single text. This module decodes such texts and the messages of channels. It only measures
//! all other frames, and the `redis` crate decodes them.
//!
//! Source: the specifications of RESP2 and RESP3.

use std::io;

use redis::Value;

use super::memory::MAX_TOGETHER;
use crate::net::pushed::Pushed;

/// Limit for the depth of nested lists. The answers to this library's requests have only a few levels.
const MAX_DEPTH: usize = 32;
/// Longest answer, in bytes. The longest expected answer is the slot map of a large cluster, which has a few megabytes.
pub(super) const MAX_BYTES: usize = 6 << 20;
/// Longest text within an answer, in bytes.
const MAX_TEXT: usize = 4 << 20;
/// Limit for the memory of an answer, in bytes, unless it is a slot map that is awaited. It covers the bytes of the answer as received, its bytes as decoded,
/// and the overhead of each list element.
pub(super) const MAX_WEIGHT: usize = 12 << 20;
/// Memory of one list element in bytes: the size of its value, and the overhead of one allocation.
const ELEMENT_BYTES: usize = size_of::<Value>() + 16;
/// Longest line, in bytes. A line holds a number or the text of an error.
const MAX_LINE: usize = 64 << 10;

/// Frame that a server has sent.
#[derive(PartialEq, Debug)]
pub(super) enum Frame<'a> {
    Answer(Value),
    /// Push about a channel, with its decoded value. The value is `None` for a message. Other pushes need the value,
    /// because they may confirm the command of a caller that waits.
    Pushed(Pushed<'a>, Option<Value>),
    /// Push that is not about a channel.
    Other,
}

/// Progress of the measurement of an answer that arrives in pieces. Each call continues where the previous call
/// stopped.
#[derive(Default)]
pub(super) struct Scan {
    /// True while a caller waits for the slot map of a cluster, so that the limit is larger. The largest expected map
    /// has one range for each slot, with one replica in each range.
    pub(super) is_map_awaited: bool,
    /// True if lists of RESP2 about a channel are pushes, beside the marked frames of RESP3. For connections that carry
    /// subscriptions only.
    pub(super) has_listed_pushes: bool,
    /// Approximate memory of the present answer in bytes, according to the sizes that it has announced so far.
    pub(super) announced: usize,
    /// Position at which the next part of the answer begins.
    at: usize,
    /// Number of bytes of the present line in which its end was already searched for.
    searched: usize,
    /// Number of parts that are still missing in each list whose end has not been reached. The innermost list comes
    /// last.
    open: Vec<usize>,
    /// Number of list elements that the present answer has announced so far.
    elements: usize,
    /// Approximate memory of the last complete answer, in bytes.
    pub(super) weight: usize,
}

impl Scan {
    /// Returns the limit for the memory of the present answer, in bytes.
    pub(super) fn max_weight(&self) -> usize {
        if self.is_map_awaited { MAX_TOGETHER } else { MAX_WEIGHT }
    }

    /// Measures the answer at the start of `bytes`. If the previous call found no end, `bytes` must begin with the
    /// bytes of that call. Returns the frame and its length, or `None` if the answer is incomplete.
    pub(super) fn first<'a>(&mut self, bytes: &'a [u8]) -> io::Result<Option<(Frame<'a>, usize)>> {
        let Some(end) = self.end_of(bytes)? else { return Ok(None) };
        let weight = self.elements.saturating_mul(ELEMENT_BYTES).saturating_add(ELEMENT_BYTES + end);
        let Self { is_map_awaited, has_listed_pushes, .. } = *self;
        *self = Self { weight, is_map_awaited, has_listed_pushes, ..Self::default() };
        Ok(Some((self.frame(&bytes[..end])?, end)))
    }

    fn frame<'a>(&self, bytes: &'a [u8]) -> io::Result<Frame<'a>> {
        Ok(match (bytes.first(), text(bytes)) {
            (_, Some(text)) => Frame::Answer(Value::BulkString(text.to_vec())),
            (Some(kind), None) if *kind == b'>' || *kind == b'*' && self.has_listed_pushes => match read_push(bytes)? {
                Some(message @ Pushed::Message { .. }) => Frame::Pushed(message, None),
                Some(pushed) => Frame::Pushed(pushed, Some(read(&[b">", &bytes[1..]].concat())?)),
                None if *kind == b'>' => Frame::Other,
                None => Frame::Answer(read(bytes)?),
            },
            (_, None) => Frame::Answer(read(bytes)?),
        })
    }

    fn end_of(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            let Some(part) = self.part(bytes)? else {
                return Ok(None);
            };
            self.at = part.end;
            self.searched = 0;
            self.count(part)?;
            while self.open.last() == Some(&0) {
                self.open.pop();
            }
            match self.open.last_mut() {
                Some(left) => *left -= 1,
                None => return Ok(Some(self.at)),
            }
        }
    }

    /// Returns the part at the present position: a text, a line, or the head of a list. Returns `None` if the part is
    /// incomplete.
    fn part(&mut self, bytes: &[u8]) -> io::Result<Option<Part>> {
        let Some(length) = bytes[self.at + self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = bytes.len() - self.at;
            return if self.searched > MAX_LINE { Err(too_much("a line", MAX_LINE)) } else { Ok(None) };
        };
        let end = self.at + self.searched + length + 1;
        if end - self.at > MAX_LINE {
            return Err(too_much("a line", MAX_LINE));
        }
        let part = part_at(bytes, self.at, end)?;
        if part.end - end > MAX_TEXT {
            return Err(too_much("a text", MAX_TEXT));
        }
        if part.end > MAX_BYTES {
            return Err(too_much("an answer", MAX_BYTES));
        }
        self.weigh(part.end, part.parts.unwrap_or(0))?;
        if part.end <= bytes.len() {
            let ends = part.end == end || bytes[..part.end].ends_with(b"\r\n");
            return if ends { Ok(Some(part)) } else { Err(garbage("a text that is longer than it says")) };
        }
        // The head is complete, but its text is not. The next call begins its search at the end of the head, so it does
        // not search the head again.
        self.searched = end - self.at - 1;
        Ok(None)
    }

    /// Refuses an answer that needs too much memory, as soon as the announced sizes show this.
    fn weigh(&mut self, end: usize, more: usize) -> io::Result<()> {
        let (elements, most) = (self.elements.saturating_add(more), self.max_weight());
        self.announced = elements.saturating_mul(ELEMENT_BYTES).saturating_add(end * 2);
        if self.announced > most { Err(too_much("the memory of an answer", most)) } else { Ok(()) }
    }

    fn count(&mut self, part: Part) -> io::Result<()> {
        let Some(parts) = part.parts else { return Ok(()) };
        self.elements = self.elements.saturating_add(parts);
        if self.open.len() > MAX_DEPTH {
            return Err(garbage("an answer that is too deep"));
        }
        self.open.push(parts);
        Ok(())
    }
}

/// Part of an answer: a text, a line, or the head of a list. `parts` is the number of list elements.
struct Part {
    end: usize,
    parts: Option<usize>,
}

fn read(frame: &[u8]) -> io::Result<Value> {
    redis::parse_redis_value(frame).map_err(|error| garbage(&error.to_string()))
}

/// Reads a complete push. Returns `None` if the push is not about a channel.
fn read_push(frame: &[u8]) -> io::Result<Option<Pushed<'_>>> {
    let mut begin = 1 + frame.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let mut texts = [None; 3];
    for part in &mut texts {
        // A push may have fewer than three parts.
        let Some(length) = Scan::default().end_of(&frame[begin..])? else {
            break;
        };
        *part = text(&frame[begin..begin + length]);
        begin += length;
    }
    let [Some(kind), Some(channel), message] = texts else {
        return Ok(None);
    };
    Ok(Pushed::of(kind, channel, message))
}

/// Returns the content of a complete text. Returns `None` for other frames.
fn text(frame: &[u8]) -> Option<&[u8]> {
    let (&kind, rest) = frame.split_first()?;
    // A null text states a negative length.
    if kind != b'$' || rest.first() == Some(&b'-') {
        return None;
    }
    let line = rest.iter().position(|&byte| byte == b'\n')? + 1;
    rest[line..].strip_suffix(b"\r\n")
}

/// Returns the part that begins at `begin`. Its first line ends at `end`.
fn part_at(bytes: &[u8], begin: usize, end: usize) -> io::Result<Part> {
    let Some((&kind, number)) = bytes[begin..end].strip_suffix(b"\r\n").and_then(<[u8]>::split_first) else {
        return Err(garbage("a line without an end"));
    };
    let parts = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => return Ok(Part { end, parts: None }),
        b'$' | b'=' | b'!' => {
            let length = count(number)?.map_or(0, |length| length.saturating_add(2));
            return Ok(Part { end: end.saturating_add(length), parts: None });
        }
        b'*' | b'~' | b'>' => count(number)?.unwrap_or(0),
        b'%' => count(number)?.unwrap_or(0).saturating_mul(2),
        b'|' => count(number)?.unwrap_or(0).saturating_mul(2).saturating_add(1),
        _ => return Err(garbage("an answer of no known kind")),
    };
    Ok(Part { end, parts: Some(parts) })
}

/// Reads a number of bytes or list elements. Returns `None` for the length of a null value.
fn count(digits: &[u8]) -> io::Result<Option<usize>> {
    if digits == b"-1" {
        return Ok(None);
    }
    let add = |number: usize, digit: &u8| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    let number = if digits.is_empty() { None } else { digits.iter().try_fold(0, add) };
    number.map(Some).ok_or_else(|| garbage("a length that is no number"))
}

pub(super) fn too_much(what: &str, limit: usize) -> io::Error {
    garbage(&format!("{what} of the server is longer than {limit} bytes, which is the limit"))
}

pub(super) fn garbage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../../testing/unit/net/node/wire/frames/tests.rs"]
mod tests;
