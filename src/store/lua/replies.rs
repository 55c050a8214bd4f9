//! Replies and notifications of the scripts, read into types.
//!
//! A reply is one text of words. It may also be an array: the first element is such a text, and the other elements are
//! rows. The first words are a code, the id in the request, and the server's time as two words. Numbers follow. The
//! router has already compared the id with the request. A reply in another form comes from a foreign script. The
//! result of the request then counts as unknown, because that script may have changed the lock.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::base::attempt::NodeId;
use crate::base::error::{Refusal, UnreachableSource};
use crate::base::lease::{ClockSample, FencingToken, ServerTime};
use crate::net::{NO_ID, Words};
use crate::store::{
    Absence, Acquired, AcquisitionId, Answered, Attempt, Converted, Failure, Forced, Granted, Holder, Mode,
    NamedHolder, Noted, Notification, QueuedWaiter, ReleaseReply, Renewed, View,
};

/// Reads from the reply to a check of rights which commands the user may not run.
pub(super) fn refused_commands(reply: &Value) -> Option<Vec<String>> {
    let mut words = Words::of(reply)?;
    words.word()?;
    words.word()?;
    words.time()?;
    let refused = std::iter::from_fn(|| words.word()).filter(|word| !word.is_empty());
    Some(refused.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Checks the words that all replies have and hands the rest to `parse`.
pub(super) fn read_reply<T>(
    reply: Answered<Value>,
    id: &str,
    parse: impl FnOnce(&str, &mut Fields<'_>) -> Option<T>,
) -> Attempt<T> {
    let Answered { sent, node, value, .. } = reply;
    let read = Fields::of(&value).and_then(|mut fields| {
        let code = fields.text()?;
        if fields.words.word()? != if id.is_empty() { NO_ID } else { id.as_bytes() } {
            return None;
        }
        let server = fields.words.time()?;
        if code == "version" {
            return Some(Err(other_version()));
        }
        let value = parse(code, &mut fields)?;
        Some(Ok(Answered { sent, server, node, value }))
    });
    read.unwrap_or_else(|| {
        Err(Failure::Unknown {
            // A script has run and replied, so no copy of this request is on its way.
            arrives_until: sent,
            source: Some(Arc::new(UnreachableSource("the reply is not one to this request".to_owned()))),
        })
    })
}

fn other_version() -> Failure {
    let message = "another version of this crate, which keeps its records differently, holds the lock or waits for it";
    Failure::Refused { refusal: Refusal::OtherVersion, node: None, message: message.to_owned() }
}

pub(super) fn parse_acquired(code: &str, fields: &mut Fields<'_>) -> Option<Acquired> {
    match code {
        "granted" => Some(Acquired::Granted(parse_granted(fields)?)),
        "queued" | "contended" | "kept" => parse_refused(code, fields),
        "late" => Some(Acquired::Late),
        _ => None,
    }
}

/// Reads a refusal: the time, the flag of a recall, and the holder that the refusal names.
fn parse_refused(code: &str, fields: &mut Fields<'_>) -> Option<Acquired> {
    let (retry_in, is_cached) = (fields.millis()?, fields.number()? == 1);
    let holder = match fields.text() {
        Some("w") => Some(Arc::new(parse_named(Mode::Write, fields)?)),
        Some("s") => Some(Arc::new(parse_named(Mode::Read, fields)?)),
        Some(_) | None => None,
    };
    Some(match code {
        "queued" => Acquired::Queued { retry_in, is_cached, holder },
        "kept" => Acquired::Cached { retry_in, holder },
        _ => Acquired::Contended { retry_in, holder },
    })
}

/// Reads `deadline_ms since_ms tokens id holders` of a writer, or `deadline_ms since_ms id holders` of a reader.
fn parse_named(mode: Mode, fields: &mut Fields<'_>) -> Option<NamedHolder> {
    let (deadline_ms, since_ms) = (fields.number()?, fields.number()?);
    if mode == Mode::Write {
        fields.number()?;
    }
    // The two-key scheme does not read the time of a reader's grant, and says 0.
    let since_ms = Some(since_ms).filter(|&since_ms| since_ms > 0);
    let id = fields.text()?.to_owned();
    Some(NamedHolder { id, mode, since_ms, deadline_ms, more: fields.count()?.checked_sub(1)? })
}

fn parse_granted(fields: &mut Fields<'_>) -> Option<Granted> {
    let (last, tokens) = (fields.number()?, fields.number()?);
    Some(Granted {
        token: first_token(last, tokens)?,
        tokens,
        remaining: fields.millis()?,
        is_waited_for: fields.number()? == 1,
    })
}

/// Returns the first of `tokens` consecutive tokens. `last` is the last of them.
fn first_token(last: u64, tokens: u64) -> Option<FencingToken> {
    FencingToken::from_wire(last)?;
    FencingToken::from_wire(last.checked_sub(tokens.checked_sub(1)?)?)
}

pub(super) fn parse_converted(code: &str, fields: &mut Fields<'_>) -> Option<Converted> {
    match code {
        "granted" => Some(Converted::Granted(parse_granted(fields)?)),
        "refused" => Some(Converted::Refused),
        "kept" => Some(Converted::Cached),
        "lost" => Some(Converted::Lost { forced: fields.token()? }),
        "late" => Some(Converted::Late),
        _ => None,
    }
}

pub(super) fn parse_released(code: &str, fields: &mut Fields<'_>) -> Option<ReleaseReply> {
    match code {
        "held" => Some(ReleaseReply::Held),
        "queued" => Some(ReleaseReply::Queued),
        "none" => {
            Some(ReleaseReply::None(Absence { forced: fields.token()?, last: fields.token()?, first: fields.token()? }))
        }
        _ => None,
    }
}

pub(super) fn parse_renewed(code: &str, fields: &mut Fields<'_>) -> Option<Renewed> {
    match code {
        "renewed" => parse_renewed_hold(fields),
        "lost" => Some(Renewed::Lost { forced: fields.token()? }),
        _ => None,
    }
}

pub(super) fn parse_noted(code: &str, _: &mut Fields<'_>) -> Option<Noted> {
    match code {
        "noted" => Some(Noted::Noted),
        "none" => Some(Noted::None),
        _ => None,
    }
}

fn parse_renewed_hold(fields: &mut Fields<'_>) -> Option<Renewed> {
    let remaining = fields.millis()?;
    // The reply has more numbers only if the renewal asked to cache the hold.
    let Some(waited_for) = fields.number() else {
        return Some(Renewed::of(remaining));
    };
    let (first, count) = (fields.token()?, fields.number()?);
    let tokens = first.filter(|_| count > 0).map(|first| (first, count));
    Some(Renewed::Renewed { remaining, is_waited_for: waited_for == 1, tokens })
}

pub(super) fn parse_view(code: &str, fields: &mut Fields<'_>) -> Option<View> {
    if code != "view" {
        return None;
    }
    let mut view = View {
        token: fields.token()?,
        client_write_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        client_read_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        more_holders: fields.count()?,
        more_waiters: fields.count()?,
        // Only the hash scheme has this number.
        is_recallable: fields.number() == Some(1),
        ..View::default()
    };
    while let Some(mut row) = fields.row() {
        let kind = row.text()?;
        let (id, mode, since_ms) = (row.text()?.to_owned(), row.mode()?, row.number()?);
        match kind {
            "hold" => {
                let remaining = row.millis()?;
                // The text may contain blanks, so it is an element of its own behind the row.
                let note = if row.text() == Some("note") { Some(fields.whole_text()?) } else { None };
                view.holders.push(Holder { id, mode, since_ms, remaining, note });
            }
            "wait" => view.waiters.push(QueuedWaiter { id, mode, since_ms }),
            _ => return None,
        }
    }
    view.sort_waiters();
    Some(view)
}

pub(super) fn parse_forced(code: &str, fields: &mut Fields<'_>) -> Option<Forced> {
    if code != "forced" {
        return None;
    }
    let more = fields.number()? == 1;
    let ids = std::iter::from_fn(|| fields.row()?.text().map(str::to_owned)).collect();
    Some(Forced { ids, has_more: more })
}

/// Reads a notification for waiters. The notification of a grant has the id of its acquisition. Any message that is
/// neither a grant nor a recall reply makes the waiter ask again.
pub(super) fn read_notification(message: &[u8], clock_sample: Option<ClockSample>) -> Notification {
    if let Some(id) = message.strip_prefix(b"used ").and_then(id_of) {
        return Notification::Used { id };
    }
    clock_sample
        .and_then(|clock_sample| parse_grant_notification(message, clock_sample))
        .unwrap_or(Notification::AskAgain)
}

fn id_of(text: &[u8]) -> Option<Arc<str>> {
    str::from_utf8(text).ok().filter(|id| AcquisitionId::is_one(id)).map(Arc::from)
}

/// Reads a recall: `<last_token>`, or `<last_token> <id>` from a try. Any other message becomes a recall with a token
/// below all others, which recalls no hold.
pub(super) fn read_recall(message: &[u8], _: Option<ClockSample>) -> Notification {
    parse_recall(message).unwrap_or(Notification::Called { token: FencingToken::ZERO, id: None })
}

fn parse_recall(message: &[u8]) -> Option<Notification> {
    let mut words = message.splitn(2, |byte| *byte == b' ');
    let token = FencingToken::from_wire(str::from_utf8(words.next()?).ok()?.parse().ok()?)?;
    let id = match words.next() {
        Some(id) => Some(id_of(id)?),
        None => None,
    };
    Some(Notification::Called { token, id })
}

/// Reads `<id> <last_token> <tokens> <deadline_ms> <server_us> <is_waited_for>`. The remaining time counts from the
/// clock sample, which comes from an earlier answer of the same node. So a late message causes no error.
fn parse_grant_notification(message: &[u8], clock_sample: ClockSample) -> Option<Notification> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    let id = words.next()?.into();
    let mut number = || words.next()?.parse::<u64>().ok();
    let (last, tokens) = (number()?, number()?);
    let token = first_token(last, tokens)?;
    let deadline = ServerTime::from_micros(number()?.checked_mul(1000)?);
    let at = ServerTime::from_micros(number()?);
    let is_waited_for = number()? == 1;
    let micros = deadline.as_micros().checked_sub(clock_sample.server.as_micros()).filter(|&micros| micros > 0)?;
    let remaining = Duration::from_micros(micros);
    let value = Granted { token, tokens, remaining, is_waited_for };
    Some(Notification::Granted {
        id,
        at,
        answer: Answered { sent: clock_sample.sent, server: clock_sample.server, node: NodeId::default(), value },
    })
}

/// Words of a reply or of a row, and the rows of the reply.
pub(super) struct Fields<'a> {
    words: Words<'a>,
    rows: &'a [Value],
}

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        let rows = match value {
            Value::Array(items) => items.get(1..)?,
            _ => &[],
        };
        Some(Self { words: Words::of(value)?, rows })
    }

    fn row(&mut self) -> Option<Self> {
        Self::of(self.rows.split_off_first()?)
    }

    /// Takes the next row, which is one text.
    fn whole_text(&mut self) -> Option<String> {
        match self.rows.split_off_first()? {
            Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.words.word()?).ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.words.number()
    }

    fn count(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn mode(&mut self) -> Option<Mode> {
        match self.text()? {
            "r" => Some(Mode::Read),
            "w" => Some(Mode::Write),
            _ => None,
        }
    }

    fn millis(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_millis)
    }

    /// Reads a token. The number 0 means that there is no token.
    fn token(&mut self) -> Option<Option<FencingToken>> {
        let raw = self.number()?;
        if raw == 0 {
            return Some(None);
        }
        FencingToken::from_wire(raw).map(Some)
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/lua/replies/tests.rs"]
mod tests;
