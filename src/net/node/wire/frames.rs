//! Frames of RESP3: finds the end of each answer.
//!
//! Most scripts answer with one text, which is read here, and so are the messages of channels. All else is only
//! measured here, and read by the library.
//!
//! Source: the specification of RESP3.

use std::io;

use redis::Value;

use super::memory::MAX_TOGETHER;
use crate::net::pushed::Pushed;

/// Limit for nested lists. Answers to our requests nest far less.
const MAX_DEPTH: usize = 32;
/// Longest answer in bytes. The longest expected one is the map of a large cluster, of some megabytes.
pub(super) const MAX_BYTES: usize = 6 << 20;
/// Longest text within an answer, in bytes.
const MAX_TEXT: usize = 4 << 20;
/// Memory of one element: a value, and the cost of its allocation.
const ELEMENT_BYTES: usize = size_of::<Value>() + 16;
/// Longest line in bytes: a number, or the words of an error.
const MAX_LINE: usize = 64 << 10;

/// Limit for the size of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Limit {
    #[default]
    Answer,
    /// Map of a cluster: as many ranges as there are slots, with a replica each.
    Map,
}

impl Limit {
    /// Returns the limit for memory: the bytes, once as they came and once as they are read, and something for each
    /// element.
    pub(super) fn weight(self) -> usize {
        match self {
            Self::Answer => 12 << 20,
            Self::Map => MAX_TOGETHER,
        }
    }
}

/// Message of a server.
#[derive(PartialEq, Debug)]
pub(super) enum Frame<'a> {
    Answer(Value),
    /// Push, and its whole value unless it is a message of a channel: a caller may wait for it as a confirmation.
    Pushed(Pushed<'a>, Option<Value>),
    /// Push of an unknown kind.
    Other,
}

/// Reads the frame at the start of the bytes, with its length. `None` if its end has not come.
#[cfg(test)]
pub(super) fn first(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    Scan::default().first(bytes)
}

/// State of measuring an answer of which more is to come. Looks at each byte once, however small the pieces are.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) limit: Limit,
    /// Memory of the present answer, as far as its heads announce it.
    announced: usize,
    /// Position of the next part.
    at: usize,
    /// Number of bytes of the present line that were searched for its end.
    searched: usize,
    /// Number of parts that are to come in each open list.
    open: Vec<usize>,
    /// Number of parts that were announced.
    elements: usize,
    /// Memory of the answer that was read last.
    weight: usize,
}

impl Scan {
    /// Looks at the bytes of an answer: those of the last call, and some more.
    pub(super) fn first<'a>(&mut self, bytes: &'a [u8]) -> io::Result<Option<(Frame<'a>, usize)>> {
        match self.end_of(bytes)? {
            Some(end) => {
                let weight = self.elements.saturating_mul(ELEMENT_BYTES).saturating_add(ELEMENT_BYTES + end);
                *self = Self { weight, limit: self.limit, ..Self::default() };
                frame(bytes, end).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Returns roughly how much memory the answer takes that was read last.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns roughly how much memory the present, unfinished answer takes.
    pub(super) fn announced(&self) -> usize {
        self.announced
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

    /// Returns the text, line or list head that begins where the last part ended.
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
            return text_ends(bytes, end, part.end).map(|()| Some(part));
        }
        // Searches the next piece from the end of this head on: only the head is read again.
        self.searched = end - self.at - 1;
        Ok(None)
    }

    /// Refuses an answer that would take too much memory, as soon as it announces so much.
    fn weigh(&mut self, end: usize, more: usize) -> io::Result<()> {
        let (elements, most) = (self.elements.saturating_add(more), self.limit.weight());
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

/// Text or line, or the head of a list of `parts` parts.
struct Part {
    end: usize,
    parts: Option<usize>,
}

fn frame(bytes: &[u8], end: usize) -> io::Result<(Frame<'_>, usize)> {
    let bytes = &bytes[..end];
    let frame = match (bytes.first(), text(bytes)) {
        (_, Some(text)) => Frame::Answer(Value::BulkString(text.to_vec())),
        (Some(b'>'), None) => match pushed(bytes)? {
            Some(message @ Pushed::Message { .. }) => Frame::Pushed(message, None),
            Some(pushed) => Frame::Pushed(pushed, Some(read(bytes)?)),
            None => Frame::Other,
        },
        (_, None) => Frame::Answer(read(bytes)?),
    };
    Ok((frame, end))
}

fn read(frame: &[u8]) -> io::Result<Value> {
    redis::parse_redis_value(frame).map_err(|error| garbage(&error.to_string()))
}

/// Reads the push of a channel. The frame is complete.
fn pushed(frame: &[u8]) -> io::Result<Option<Pushed<'_>>> {
    let mut begin = 1 + frame.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let mut texts = [None; 3];
    for part in &mut texts {
        // No part follows the last one.
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

/// Returns the content of a complete text.
fn text(frame: &[u8]) -> Option<&[u8]> {
    let (&kind, rest) = frame.split_first()?;
    // A null text has a negative length.
    if kind != b'$' || rest.first() == Some(&b'-') {
        return None;
    }
    let line = rest.iter().position(|&byte| byte == b'\n')? + 1;
    rest[line..].strip_suffix(b"\r\n")
}

/// Returns the part whose first line is complete.
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

fn text_ends(bytes: &[u8], line: usize, end: usize) -> io::Result<()> {
    let ends = line == end || bytes[..end].ends_with(b"\r\n");
    if ends { Ok(()) } else { Err(garbage("a text that is longer than it says")) }
}

/// Reads a number of bytes or parts; `None` for a null.
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

fn garbage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [&str; 16] = [
        "+OK\r\n",
        "-NOSCRIPT No matching script.\r\n",
        ":-7\r\n",
        "$0\r\n\r\n",
        "$13\r\ntwo\r\nlines $3\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
        "%1\r\n+mode\r\n$7\r\ncluster\r\n",
        "~1\r\n:1\r\n",
        "_\r\n",
        ",1.5\r\n",
        "#t\r\n",
        "=7\r\ntxt:abc\r\n",
        ">2\r\n+invalidate\r\n*0\r\n",
    ];

    #[test]
    fn answers_are_what_the_library_reads_in_them() {
        for answer in ANSWERS {
            let bytes = [answer.as_bytes(), b"+behind it\r\n"].concat();
            let (frame, length) = first(&bytes).expect(answer).expect(answer);
            assert_eq!(length, answer.len(), "{answer}");
            let value = redis::parse_redis_value(answer.as_bytes()).expect(answer);
            let is_pushed = matches!(value, Value::Push { .. });
            assert_eq!(frame, if is_pushed { Frame::Other } else { Frame::Answer(value) }, "{answer}");
        }
    }

    #[test]
    fn what_is_pushed_of_a_channel_is_read_here() {
        let message = ">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$4\r\nx\r\ny\r\n";
        let pushed = Pushed::Message { channel: "a", message: b"x\r\ny" };
        assert_eq!(first(message.as_bytes()).expect("whole"), Some((Frame::Pushed(pushed, None), message.len())));
        for half in 0..message.len() {
            assert_eq!(first(&message.as_bytes()[..half]).expect(message), None, "{half} bytes");
        }
        for (kind, pushed) in [
            ("ssubscribe", Pushed::Subscribed { channel: "a" }),
            ("sunsubscribe", Pushed::Unsubscribed { channel: "a" }),
        ] {
            let frame = format!(">3\r\n${}\r\n{kind}\r\n$1\r\na\r\n:1\r\n", kind.len());
            let whole = Some(redis::parse_redis_value(frame.as_bytes()).expect("a push"));
            assert_eq!(first(frame.as_bytes()).expect("whole"), Some((Frame::Pushed(pushed, whole), frame.len())));
        }
        let others = [
            &b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n"[..],
            // The channel is no text, the message is missing, the message is null, the channel is missing.
            b">3\r\n$8\r\nsmessage\r\n$1\r\n\xfe\r\n$1\r\nx\r\n",
            b">2\r\n$8\r\nsmessage\r\n$1\r\na\r\n",
            b">3\r\n$8\r\nsmessage\r\n$-1\r\n$1\r\nx\r\n",
            b">1\r\n$8\r\nsmessage\r\n",
        ];
        for other in others {
            let text = other.escape_ascii();
            assert_eq!(first(other).expect("whole"), Some((Frame::Other, other.len())), "{text}");
        }
    }

    #[test]
    fn half_an_answer_is_waited_for() {
        for answer in ANSWERS {
            for half in 0..answer.len() {
                assert_eq!(first(&answer.as_bytes()[..half]).expect(answer), None, "{half} bytes of {answer}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_ends_the_connection() {
        let deep = "*1\r\n".repeat(MAX_DEPTH + 2);
        for bytes in ["hello\r\n", "+\n", "\r\n", "$1\r\nabc\r\n", "$x\r\n", "$\r\n", "*-2\r\n", &deep] {
            assert!(first(bytes.as_bytes()).is_err(), "{bytes}");
        }
    }

    #[test]
    fn length_beyond_all_bounds_is_refused_at_once() {
        for head in
            ["$18446744073709551615\r\n", "$18446744073709551616\r\n", "*18446744073709551615\r\n", "%9999999\r\n"]
        {
            assert!(first(head.as_bytes()).is_err(), "{head}");
        }
        let longest = MAX_TEXT - 2;
        assert_eq!(first(format!("${longest}\r\n").as_bytes()).expect("it may be so long"), None);
        assert!(first(format!("${}\r\n", longest + 1).as_bytes()).is_err());
        assert!(first(&vec![b'+'; MAX_LINE + 2]).is_err(), "a line without an end");
    }

    /// Nodes with a replica each, and a range for each slot: each range is at another node than its neighbours.
    #[test]
    fn map_of_a_torn_cluster_is_no_too_much_where_it_was_asked_for() {
        let node = "*4\r\n$13\r\n10.100.100.10\r\n:6379\r\n$40\r\n0123456789012345678901234567890123456789\r\n*0\r\n";
        let range = format!("*4\r\n:16383\r\n:16383\r\n{}", node.repeat(2));
        let map = format!("*16384\r\n{}", range.repeat(16_384));
        let mut asked_for = Scan { limit: Limit::Map, ..Scan::default() };
        assert!(asked_for.first(map.as_bytes()).expect("not too much").is_some());
        assert!(first(map.as_bytes()).is_err(), "no other answer is so large");
    }

    /// With every piece measured from the start, this takes minutes.
    #[test]
    fn answer_in_small_pieces_is_measured_once() {
        let answer = format!("*100000\r\n{}", ":1\r\n".repeat(100_000)).into_bytes();
        let (mut scan, began) = (Scan::default(), std::time::Instant::now());
        for end in (1..answer.len()).step_by(7) {
            assert_eq!(scan.first(&answer[..end]).expect("an answer"), None);
        }
        assert!(scan.first(&answer).expect("an answer").is_some());
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn random_answers_are_read_alike_however_they_are_cut() {
        let (mut random, time) = crate::net::fake::randomness();
        let began = std::time::Instant::now();
        while began.elapsed() < time {
            let mut bytes: Vec<u8> =
                (0..random.usize(1..6)).flat_map(|_| ANSWERS[random.usize(..ANSWERS.len())].bytes()).collect();
            for _ in 0..random.usize(..4) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.insert(at, b"$*>%:-0123456789\r\n"[random.usize(..18)]),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let whole = read_all(&bytes, bytes.len());
            let step = random.usize(1..8);
            assert_eq!(read_all(&bytes, step), whole, "by {step}: {}", bytes.escape_ascii());
        }
    }

    /// Reads bytes that come in pieces. Returns the frames, and true if the connection ends.
    fn read_all(bytes: &[u8], step: usize) -> (Vec<String>, bool) {
        let (mut scan, mut begin, mut read) = (Scan::default(), 0, Vec::new());
        for end in (step..bytes.len()).step_by(step).chain([bytes.len()]) {
            loop {
                match scan.first(&bytes[begin..end]) {
                    Ok(Some((frame, length))) => {
                        read.push(format!("{frame:?}"));
                        begin += length;
                    }
                    Ok(None) => break,
                    Err(_) => return (read, true),
                }
            }
        }
        (read, false)
    }
}
