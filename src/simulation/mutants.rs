//! Locks that are wrong on purpose, to see that a checker says so. They live in the fault layer: the product has none.

use std::collections::HashMap;

use super::world::{Answer, Parcel, operate};
use crate::key::Key;
use crate::lease::{FencingToken, ServerTime};
use crate::scheme::memory::{News, Record};
use crate::scheme::{Acquired, Acquisition, Ask, Granted, Left, Mode, Renewed, Turned};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mutant {
    /// The server lets a writer in beside readers.
    WriterBesideReaders,
    /// A release ends whatever holds the lock.
    ReleaseOfAnybody,
    /// Validity is counted from the reply.
    DeadlineFromReply,
    /// A renewal brings a hold back.
    RenewalRecreates,
    /// A renewal with a shorter lease shortens the hold.
    RenewalShortens,
    /// Tokens are counted up, from one again after a loss.
    PlainTokens,
    /// Each reader of a phase has a token of its own.
    TokenForEachReader,
    /// A reply that came after the response timeout is taken for the answer to the next copy.
    LateGrantBelieved,
    /// A repeated acquisition counts as one more.
    RetryCountsTwice,
    /// Copies are carried out after their limit.
    LimitIgnored,
    /// A hold is renewed though its guard is gone.
    RenewalOutlivesGuard,
    /// A grant is answered that was not recorded.
    GrantNotRecorded,
    /// A silent server counts as one that says "others hold it".
    SilenceIsDenial,
    /// A waiter asks again after ten seconds.
    SlowHeartbeat,
    /// One failed renewal is told as a loss.
    LostAtOnce,
    /// A renewal that failed is repeated a second later.
    SlowRenewal,
    /// Waiting ends long before `unreachable_after`.
    GivesUpSoon,
    /// Waiting ends long after `unreachable_after`.
    GivesUpLate,
    /// There is no response timeout.
    WaitsForEver,
    /// Records are kept for ever.
    NeverForgets,
    /// A copy of a force that comes late ends what came after it.
    ForceEndsNewer,
    /// Who comes later is served first.
    OutOfOrder,
    /// A writer that waits is not seen by the readers of its process.
    UnseenWriter,
    /// A reader is let in beside readers though a writer waits.
    ReaderPassesWriter,
    /// The writer that came last is served first.
    NewestFirst,
    /// A waiter that was cancelled stays in the queue.
    CancelledStays,
    /// A waiter is granted a full lease, claimed or not.
    FullLeaseUnclaimed,
    /// A notice names another waiter.
    NoticeToAnother,
    /// A notice of before is taken for one of a new grant.
    StaleNotice,
    /// A downgrade lets the next writer in.
    DowngradeLetsWriterIn,
    /// An upgrade is granted beside other readers.
    UpgradeBesideReaders,
    /// What was given back is not given back again when its last copy may have arrived.
    LeavesOnce,
    /// Readers join long after the server was asked.
    SharesForEver,
    /// A hold is passed on more often than it may.
    OverBudget,
    /// Holds are renewed for less than their guards want.
    RenewsShort,
}

#[cfg(test)]
pub(super) const ALL: [Mutant; 35] = [
    Mutant::WriterBesideReaders,
    Mutant::ReleaseOfAnybody,
    Mutant::DeadlineFromReply,
    Mutant::RenewalRecreates,
    Mutant::RenewalShortens,
    Mutant::PlainTokens,
    Mutant::TokenForEachReader,
    Mutant::LateGrantBelieved,
    Mutant::RetryCountsTwice,
    Mutant::LimitIgnored,
    Mutant::RenewalOutlivesGuard,
    Mutant::GrantNotRecorded,
    Mutant::SilenceIsDenial,
    Mutant::SlowHeartbeat,
    Mutant::LostAtOnce,
    Mutant::SlowRenewal,
    Mutant::GivesUpSoon,
    Mutant::GivesUpLate,
    Mutant::WaitsForEver,
    Mutant::NeverForgets,
    Mutant::ForceEndsNewer,
    Mutant::OutOfOrder,
    Mutant::UnseenWriter,
    Mutant::ReaderPassesWriter,
    Mutant::NewestFirst,
    Mutant::CancelledStays,
    Mutant::FullLeaseUnclaimed,
    Mutant::NoticeToAnother,
    Mutant::StaleNotice,
    Mutant::DowngradeLetsWriterIn,
    Mutant::UpgradeBesideReaders,
    Mutant::LeavesOnce,
    Mutant::SharesForEver,
    Mutant::OverBudget,
    Mutant::RenewsShort,
];

/// What mutants remember.
#[derive(Default)]
pub(super) struct Wrong {
    /// The last token of each lock, and which right ones stand for which.
    tokens: HashMap<String, (u64, HashMap<u64, u64>)>,
    asked: HashMap<Acquisition, Ask>,
}

impl Wrong {
    /// The server lost its data.
    pub(super) fn forget(&mut self) {
        self.tokens.clear();
    }

    /// What the wrong server does with a request, and whom it tells of grants.
    pub(super) fn operate(
        &mut self,
        mutant: Mutant,
        key: &Key,
        record: &mut Record,
        now: ServerTime,
        parcel: &Parcel,
    ) -> (Answer, Vec<News>) {
        if let Parcel::Acquire { ask, .. } | Parcel::Turn { ask, .. } = parcel {
            self.asked.insert(ask.id.clone(), ask.clone());
        }
        let answer = self.answer(mutant, record, now, parcel);
        let mut news = record.take_news();
        match mutant {
            Mutant::PlainTokens | Mutant::TokenForEachReader => {
                let answer = self.with_wrong_token(mutant, key, answer);
                for news in &mut news {
                    news.granted = self.wrong_token(mutant, key, news.granted);
                }
                return (answer, news);
            }
            Mutant::FullLeaseUnclaimed => {
                for news in &mut news {
                    let lease = self.asked[&news.id].lease;
                    record.set_lease(now, &news.id, lease);
                    news.granted.remaining = lease;
                }
            }
            Mutant::NoticeToAnother => {
                let waiting = record.live_waiters(now.as_micros() / 1000);
                if let (Some(news), Some((id, _, _))) = (news.first_mut(), waiting.first()) {
                    news.id = parse(id);
                }
            }
            _ => {}
        }
        (answer, news)
    }

    fn answer(&mut self, mutant: Mutant, record: &mut Record, now: ServerTime, parcel: &Parcel) -> Answer {
        let now_ms = now.as_micros() / 1000;
        let holds = |record: &Record, id: &Acquisition| {
            record.live_holds(now_ms).iter().any(|(held, _, _)| held == id.as_str())
        };
        match (mutant, parcel) {
            (Mutant::WriterBesideReaders, Parcel::Acquire { ask, not_after_ms })
                if ask.mode == Mode::Write && record.is_read() && now_ms <= *not_after_ms =>
            {
                record.let_in(now, ask);
                operate(record, now, parcel)
            }
            (Mutant::ReaderPassesWriter, Parcel::Acquire { ask, not_after_ms })
                if ask.mode == Mode::Read
                    && record.is_read()
                    && record.a_writer_waits()
                    && !holds(record, &ask.id)
                    && now_ms <= *not_after_ms =>
            {
                record.let_in(now, ask);
                operate(record, now, parcel)
            }
            (Mutant::ReleaseOfAnybody, Parcel::Leave { id }) => {
                for (other, _, _) in record.live_holds(now_ms) {
                    record.leave(now, &parse(&other));
                }
                record.leave(now, id);
                Answer::Left(Left::Held)
            }
            (Mutant::CancelledStays, Parcel::Leave { id })
                if record.live_waiters(now_ms).iter().any(|(waiting, _, _)| waiting == id.as_str()) =>
            {
                Answer::Left(Left::Queued)
            }
            (Mutant::NewestFirst, Parcel::Acquire { .. }) => {
                let before = record.live_waiters(now_ms).len();
                let answer = operate(record, now, parcel);
                if record.live_waiters(now_ms).len() > before {
                    record.newest_writer_first();
                }
                answer
            }
            (Mutant::DowngradeLetsWriterIn, Parcel::Turn { ask, .. }) if ask.mode == Mode::Read => {
                let answer = operate(record, now, parcel);
                if matches!(answer, Answer::Turned(Turned::Granted(_))) {
                    record.let_writer_in(now);
                }
                answer
            }
            (Mutant::UpgradeBesideReaders, Parcel::Turn { old, ask, not_after_ms })
                if ask.mode == Mode::Write && holds(record, old) && now_ms <= *not_after_ms =>
            {
                self.upgrade_beside(record, now, (old, parcel))
            }
            (Mutant::RenewalRecreates, Parcel::Renew { id, lease }) => match record.renew(now, id, *lease) {
                Renewed::Lost { .. } if self.asked.contains_key(id) => {
                    record.let_in(now, &Ask { lease: *lease, ..self.asked[id].clone() });
                    Answer::Renewed(record.renew(now, id, *lease))
                }
                renewed => Answer::Renewed(renewed),
            },
            (Mutant::RenewalShortens, Parcel::Renew { id, lease }) if holds(record, id) => {
                // Half of what was asked for, from now on.
                record.set_lease(now, id, *lease / 2);
                Answer::Renewed(Renewed::Renewed { remaining: *lease / 2 })
            }
            (Mutant::RetryCountsTwice, Parcel::Acquire { ask, .. }) => {
                let repeated = holds(record, &ask.id);
                let answer = operate(record, now, parcel);
                if repeated && ask.mode == Mode::Read && record.is_read() {
                    record.let_in(now, &Ask { id: twin(&ask.id), ..ask.clone() });
                }
                answer
            }
            (Mutant::ForceEndsNewer, Parcel::Force { .. }) => {
                Answer::Forced(record.force(now, FencingToken::from_wire(1 << 53)))
            }
            (Mutant::NeverForgets, Parcel::Acquire { .. }) => {
                let answer = operate(record, now, parcel);
                record.keep_for_ever();
                answer
            }
            (Mutant::LimitIgnored, Parcel::Acquire { ask, .. }) => Answer::Acquired(record.acquire(now, u64::MAX, ask)),
            (Mutant::LimitIgnored, Parcel::Turn { old, ask, .. }) => {
                Answer::Turned(record.turn(now, u64::MAX, old, ask))
            }
            (Mutant::GrantNotRecorded, Parcel::Acquire { ask, .. }) => {
                let kept = record.clone();
                let answer = operate(record, now, parcel);
                if ask.mode == Mode::Read && matches!(answer, Answer::Acquired(Acquired::Granted { .. })) {
                    *record = kept;
                }
                answer
            }
            _ => operate(record, now, parcel),
        }
    }

    fn upgrade_beside(&self, record: &mut Record, now: ServerTime, (old, parcel): (&Acquisition, &Parcel)) -> Answer {
        let now_ms = now.as_micros() / 1000;
        let others: Vec<_> = record.live_holds(now_ms).into_iter().filter(|(id, _, _)| id != old.as_str()).collect();
        for (id, _, _) in &others {
            record.leave(now, &parse(id));
        }
        let answer = operate(record, now, parcel);
        for (id, mode, _) in others {
            if let Some(other) = self.asked.get(&parse(&id)).filter(|_| mode == Mode::Read) {
                record.let_in(now, other);
            }
        }
        answer
    }

    fn with_wrong_token(&mut self, mutant: Mutant, key: &Key, answer: Answer) -> Answer {
        match answer {
            Answer::Acquired(Acquired::Granted(granted)) => {
                Answer::Acquired(Acquired::Granted(self.wrong_token(mutant, key, granted)))
            }
            Answer::Turned(Turned::Granted(granted)) => {
                Answer::Turned(Turned::Granted(self.wrong_token(mutant, key, granted)))
            }
            other => other,
        }
    }

    fn wrong_token(&mut self, mutant: Mutant, key: &Key, granted: Granted) -> Granted {
        let (last, phases) = self.tokens.entry(key.name().to_owned()).or_default();
        let right = granted.token.as_u64();
        let wrong = if mutant == Mutant::TokenForEachReader {
            *last += 1;
            right + *last
        } else {
            *phases.entry(right).or_insert_with(|| {
                let first = *last + 1;
                *last += granted.turns;
                first
            })
        };
        Granted { token: FencingToken::from_wire(wrong).expect("small"), ..granted }
    }
}

fn parse(id: &str) -> Acquisition {
    let mut parts = id.splitn(3, '.');
    let mut next = || parts.next().expect("an id");
    let (manager, n, label) = (next(), next(), next());
    Acquisition::new(manager, n.parse().expect("a number"), label)
}

/// The id of the same holder counted once more.
fn twin(id: &Acquisition) -> Acquisition {
    let mut parts = id.as_str().splitn(3, '.');
    let mut next = || parts.next().expect("an id");
    let (manager, n, label) = (next(), next(), next());
    Acquisition::new(manager, n.parse::<u64>().expect("a number") + 1_000_000, label)
}
