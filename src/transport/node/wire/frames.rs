//! Where one answer ends and the next begins.
//!
//! Scripts answer with one text, which is read here, and so is what comes by a channel. Everything else is measured here and
//! read by the library.
//! Source: the specification of RESP3.

use std::io;

use redis::Value;

use crate::transport::pushed::Pushed;

/// Answers to what we ask are far less deep.
const MAX_DEPTH: usize = 32;

/// What a server says at one time.
#[derive(PartialEq, Debug)]
pub(super) enum Frame<'a> {
    Answer(Value),
    /// And the whole of it, unless it is a message: it may be what somebody waits for.
    Pushed(Pushed<'a>, Option<Value>),
    /// Pushed, and nothing that we know.
    Other,
}

/// What the bytes begin with, and its length. `None` if it is not there to its end.
pub(super) fn first(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    let Some(end) = end_of(bytes, 0, 0)? else {
        return Ok(None);
    };
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
    Ok(Some((frame, end)))
}

fn read(frame: &[u8]) -> io::Result<Value> {
    redis::parse_redis_value(frame).map_err(|error| garbage(&error.to_string()))
}

/// What is pushed of a channel. The frame is there to its end.
fn pushed(frame: &[u8]) -> io::Result<Option<Pushed<'_>>> {
    let mut begin = 1 + frame.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let mut texts = [None; 3];
    for part in &mut texts {
        // None behind the last.
        let Some(end) = end_of(frame, begin, 1)? else {
            break;
        };
        *part = text(&frame[begin..end]);
        begin = end;
    }
    let [Some(kind), Some(channel), message] = texts else {
        return Ok(None);
    };
    Ok(Pushed::of(kind, channel, message))
}

/// What a text says that is there to its end.
fn text(frame: &[u8]) -> Option<&[u8]> {
    let (&kind, rest) = frame.split_first()?;
    // A text that is none has a sign in front of its length.
    if kind != b'$' || rest.first() == Some(&b'-') {
        return None;
    }
    let line = rest.iter().position(|&byte| byte == b'\n')? + 1;
    rest[line..].strip_suffix(b"\r\n")
}

/// Where the answer ends that begins at `from`.
fn end_of(bytes: &[u8], from: usize, depth: usize) -> io::Result<Option<usize>> {
    let Some(length) = bytes[from..].iter().position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    let end = from + length + 1;
    let Some((&kind, number)) = bytes[from..end].strip_suffix(b"\r\n").and_then(<[u8]>::split_first) else {
        return Err(garbage("a line without an end"));
    };
    let parts = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => return Ok(Some(end)),
        b'$' | b'=' | b'!' => return end_of_text(bytes, end, number),
        b'*' | b'~' | b'>' => count(number)?.unwrap_or(0),
        b'%' => count(number)?.unwrap_or(0).saturating_mul(2),
        b'|' => count(number)?.unwrap_or(0).saturating_mul(2).saturating_add(1),
        _ => return Err(garbage("an answer of no known kind")),
    };
    if depth == MAX_DEPTH {
        return Err(garbage("an answer that is too deep"));
    }
    let mut end = end;
    for _ in 0..parts {
        match end_of(bytes, end, depth + 1)? {
            Some(next) => end = next,
            None => return Ok(None),
        }
    }
    Ok(Some(end))
}

fn end_of_text(bytes: &[u8], begin: usize, length: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = count(length)? else {
        return Ok(Some(begin));
    };
    let end = begin.saturating_add(length).saturating_add(2);
    match bytes.get(end.saturating_sub(2)..end) {
        Some(b"\r\n") => Ok(Some(end)),
        Some(_) => Err(garbage("a text that is longer than it says")),
        None => Ok(None),
    }
}

/// A number of bytes or parts; `None` for something that is not there.
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
            // A channel that is no text, no message, no channel.
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
    fn length_beyond_all_bounds_is_waited_for_or_refused() {
        assert_eq!(first(b"$18446744073709551615\r\n").expect("a number"), None);
        assert!(first(b"$18446744073709551616\r\n").is_err());
        assert_eq!(first(b"*18446744073709551615\r\n").expect("a number"), None);
    }
}
