//! Transcripts of the tests of the scripts, on the specification in memory.

#[path = "../tests/lua/transcripts/harness.rs"]
mod harness;

use std::time::Duration;

use harness::{Answer, Limit, MANAGER, READ_LIMIT_MS, Seen, Server, Side, Step, WRITE_LIMIT_MS, Wish};

use crate::base::lease::{FencingToken, ServerTime};
use crate::store::memory::{Record, TimestampClientsMs};
use crate::store::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Converted, Floor, Forced, Granted, Holder, IfTaken, Mode,
    NamedHolder, Note, Noted, ReleaseReply, Renewed, View,
};
use crate::testing::oracle::{grant_message, recall_message};

#[test]
fn specification_plays_the_transcripts() {
    harness::play("specification", |limit| {
        let record = if limit == Limit::TwoRecords { Record::with_limit(2) } else { Record::default() };
        record.beside_timestamp_clients(TimestampClientsMs { read_ms: READ_LIMIT_MS, write_ms: WRITE_LIMIT_MS })
    });
}

impl Server for Record {
    fn run(&mut self, now_us: u64, step: &Step) -> Answer {
        let now = ServerTime::from_micros(now_us);
        let mut rows = Vec::new();
        let text = match step {
            Step::Acquire(wish) => acquired(match floor_of(wish) {
                Some(floor) => self.acquire_above(now, wish.not_after_ms, &request(wish), floor),
                None => self.acquire(now, wish.not_after_ms, &request(wish)),
            }),
            Step::Release { id: name, rest_until_ms } => {
                released(self.release_until(now, &id(name), until(*rest_until_ms)))
            }
            Step::Renew { id: name, lease_ms, tokens, rest_until_ms } => renewed(
                *tokens,
                match tokens {
                    Some(tokens) => self.renew_cached(now, &id(name), Duration::from_millis(*lease_ms), *tokens),
                    None => {
                        let lease = Duration::from_millis(*lease_ms);
                        self.renew_until(now, &id(name), lease, until(*rest_until_ms))
                    }
                },
            ),
            Step::Note { id: name, number, text } => {
                let note = Note { number: *number, text: text.as_str().into() };
                match self.set_note(now, &id(name), &note) {
                    Noted::Noted => "noted".to_owned(),
                    Noted::None => "none".to_owned(),
                }
            }
            Step::Convert(old, wish) => converted(self.convert(now, wish.not_after_ms, &id(old), &request(wish))),
            Step::Inspect => {
                let view = self.inspect(now);
                rows.extend(rows_of(&view));
                view_text(&view)
            }
            Step::Force(seen) => {
                let forced = force(self, now, seen);
                rows = forced.ids;
                format!("forced {}", u8::from(forced.has_more))
            }
            Step::ClientLock(side, stamp_ms) => u8::from(self.client_lock(mode(*side), *stamp_ms)).to_string(),
            Step::ClientUnlock(side, stamp_ms) => {
                self.client_unlock(mode(*side), *stamp_ms);
                String::new()
            }
            Step::SetStamp(side, stamp_ms) => {
                self.set_client_stamp(mode(*side), *stamp_ms);
                String::new()
            }
            Step::LoseKey => {
                self.forget();
                String::new()
            }
            Step::Used(_) => "told".to_owned(),
            // Keys and channels are not specified here.
            Step::LoseTtl | Step::LoseChannels => String::new(),
        };
        Answer { text, rows, messages: messages(self, now, step), ..Answer::default() }
    }
}

/// Returns the messages that a server publishes. A waiter whose own request gets the lock receives the reply only.
fn messages(record: &mut Record, now: ServerTime, step: &Step) -> Vec<String> {
    let own = match step {
        Step::Acquire(wish) | Step::Convert(_, wish) => Some(wish.id.as_str()),
        _ => None,
    };
    let others = record.take_notifications().into_iter().filter(|told| own != Some(told.id.as_str()));
    let mut messages: Vec<_> = others.map(|told| grant_message(&told, now)).collect();
    if let Step::Used(id) = step {
        messages.push(format!("used {id}"));
    }
    let next = record.take_next_to_ask().map(|id| id.as_str().to_owned());
    messages.extend(next.filter(|id| own != Some(id)));
    messages.extend(record.take_recall().map(|recall| recall_message(&recall)));
    messages
}

fn force(record: &mut Record, now: ServerTime, seen: &Seen) -> Forced {
    match seen.highest {
        Some(highest) => {
            let shown = View { token: FencingToken::from_wire(highest), ..view_of(seen) };
            record.force_shown(now, FencingToken::from_wire(seen.token), &shown)
        }
        None => record.force_seen(now, &view_of(seen)),
    }
}

fn released(reply: ReleaseReply) -> String {
    match reply {
        ReleaseReply::Held => "held".to_owned(),
        ReleaseReply::Queued => "queued".to_owned(),
        ReleaseReply::None(Absence { forced, last, first }) => {
            let [forced, last, first] = [forced, last, first].map(number);
            format!("none {forced} {last} {first}")
        }
    }
}

fn id(text: &str) -> AcquisitionId {
    let label = text.strip_prefix(MANAGER).and_then(|rest| rest.strip_prefix(".0.")).expect("an id");
    AcquisitionId::new(MANAGER, 0, label)
}

fn until(until_ms: Option<u64>) -> Option<ServerTime> {
    until_ms.map(|until_ms| ServerTime::from_micros(until_ms * 1000))
}

fn mode(side: Side) -> Mode {
    if side == Side::Read { Mode::Read } else { Mode::Write }
}

fn number(token: Option<FencingToken>) -> u64 {
    token.map_or(0, FencingToken::as_u64)
}

fn request(wish: &Wish) -> AcquireRequest {
    let waiter_ttl = Duration::from_millis(wish.waiter_ms);
    let if_taken = match wish.waiter_ms {
        0 => IfTaken::Leave,
        _ if wish.is_try => IfTaken::Try { waiter_ttl },
        _ => IfTaken::Queue { waiter_ttl },
    };
    AcquireRequest {
        id: id(&wish.id),
        mode: mode(wish.side),
        lease: Duration::from_millis(wish.lease_ms),
        max_tokens: wish.tokens,
        if_taken,
        caches: wish.caches,
    }
}

fn floor_of(wish: &Wish) -> Option<Floor> {
    let (token, is_raised) = wish.floor?;
    let token = FencingToken::from_wire(token).expect("a token");
    Some(if is_raised { Floor::Any(token) } else { Floor::New(token) })
}

fn granted(Granted { token, tokens, remaining, is_waited_for }: Granted) -> String {
    let (last, flag) = (token.as_u64() + tokens - 1, u8::from(is_waited_for));
    format!("granted {last} {tokens} {} {flag}", remaining.as_millis())
}

fn acquired(acquired: Acquired) -> String {
    match acquired {
        Acquired::Granted(grant) => granted(grant),
        Acquired::Queued { retry_in, is_cached, holder } => {
            format!("queued {} {}{}", retry_in.as_millis(), u8::from(is_cached), named(holder.as_deref()))
        }
        Acquired::Contended { retry_in, holder } => {
            format!("contended {} 0{}", retry_in.as_millis(), named(holder.as_deref()))
        }
        Acquired::Cached { retry_in, holder } => {
            format!("kept {} 0{}", retry_in.as_millis(), named(holder.as_deref()))
        }
        Acquired::Late => "late".to_owned(),
    }
}

fn named(holder: Option<&NamedHolder>) -> String {
    let Some(NamedHolder { id, mode, since_ms, deadline_ms, more }) = holder else { return String::new() };
    let (since_ms, holders) = (since_ms.unwrap_or(0), more + 1);
    match mode {
        Mode::Write => format!(" w {deadline_ms} {since_ms} 1 {id} {holders}"),
        Mode::Read => format!(" s {deadline_ms} {since_ms} {id} {holders}"),
    }
}

fn renewed(asked: Option<u64>, renewed: Renewed) -> String {
    match renewed {
        Renewed::Renewed { remaining, is_waited_for, tokens } if asked.is_some() => {
            let (first, tokens) = tokens.map_or((0, 0), |(first, tokens)| (first.as_u64(), tokens));
            format!("renewed {} {} {first} {tokens}", remaining.as_millis(), u8::from(is_waited_for))
        }
        Renewed::Renewed { remaining, .. } => format!("renewed {}", remaining.as_millis()),
        Renewed::Lost { forced } => format!("lost {}", number(forced)),
    }
}

fn converted(converted: Converted) -> String {
    match converted {
        Converted::Granted(grant) => granted(grant),
        Converted::Refused => "refused".to_owned(),
        Converted::Cached => "kept".to_owned(),
        Converted::Lost { forced } => format!("lost {}", number(forced)),
        Converted::Late => "late".to_owned(),
    }
}

fn view_text(view: &View) -> String {
    let (write_ms, read_ms) = (view.client_write_ms.unwrap_or(0), view.client_read_ms.unwrap_or(0));
    let (more_holders, more_waiters) = (view.more_holders, view.more_waiters);
    let recallable = u8::from(view.is_recallable);
    format!("view {} {write_ms} {read_ms} {more_holders} {more_waiters} {recallable}", number(view.token))
}

fn rows_of(view: &View) -> impl Iterator<Item = String> {
    let letter = |mode| if mode == Mode::Read { "r" } else { "w" };
    let holds = view.holders.iter().flat_map(move |hold| {
        let sign = if hold.note.is_some() { " note" } else { "" };
        let (since_ms, remaining_ms) = (hold.since_ms, hold.remaining.as_millis());
        let row = format!("hold {} {} {since_ms} {remaining_ms}{sign}", hold.id, letter(hold.mode));
        [row].into_iter().chain(hold.note.clone())
    });
    let waits =
        view.waiters.iter().map(move |wait| format!("wait {} {} {}", wait.id, letter(wait.mode), wait.since_ms));
    holds.chain(waits)
}

fn view_of(seen: &Seen) -> View {
    let holder =
        |id: &String| Holder { id: id.clone(), mode: Mode::Write, since_ms: 0, remaining: Duration::ZERO, note: None };
    View {
        token: FencingToken::from_wire(seen.token).filter(|_| seen.token > 0),
        holders: seen.ids.iter().map(holder).collect(),
        client_write_ms: (seen.write_ms > 0).then_some(seen.write_ms),
        client_read_ms: (seen.read_ms > 0).then_some(seen.read_ms),
        ..View::default()
    }
}
