mod courses;
mod rests;
mod tickets;

use super::*;
use crate::store::{Converted, Forced, IfTaken};

const T0_US: u64 = 1_700_000_000_000_000;
const FEW: RecordLimits = RecordLimits { records: 2, tokens: 64 };

fn at(ms: u64) -> ServerTime {
    ServerTime::from_micros(T0_US + ms * 1000)
}

fn ask(n: u64, mode: Mode) -> AcquireRequest {
    let (lease, waiter_ttl) = (Duration::from_secs(10), Duration::from_secs(10));
    AcquireRequest { id: id(n), mode, lease, max_tokens: 64, if_taken: IfTaken::Queue { waiter_ttl }, caches: false }
}

fn id(n: u64) -> AcquisitionId {
    AcquisitionId::new("0123456789abcdef0123456789abcdef", n, "")
}

impl Record {
    fn with_limits(limits: RecordLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    fn queued(&mut self, ms: u64, n: u64, mode: Mode) {
        let acquired = self.acquire(at(ms), u64::MAX, &ask(n, mode));
        assert!(matches!(acquired, Acquired::Queued { .. }), "{n}: {acquired:?}");
    }

    fn granted_to(&mut self, ms: u64, n: u64, mode: Mode) -> Granted {
        let acquired = self.acquire(at(ms), u64::MAX, &ask(n, mode));
        let Acquired::Granted(granted) = acquired else { panic!("{n}: {acquired:?}") };
        granted
    }

    fn told(&mut self) -> Vec<AcquisitionId> {
        self.take_notifications().into_iter().map(|notification| notification.id).collect()
    }
}

#[test]
fn whole_batch_of_readers_is_in_before_the_next_writer() {
    let mut record = Record::with_limits(FEW);
    record.granted_to(0, 1, Mode::Write);
    (11..=15).for_each(|n| record.queued(0, n, Mode::Read));
    record.queued(0, 2, Mode::Write);
    assert_eq!(record.release(at(1), &id(1)), ReleaseReply::Held);
    assert_eq!(record.told(), [id(15), id(14)]);
    assert_eq!(record.take_next_to_ask(), Some(id(13)));
    // Readers leave, new ones come, the writer asks again: the phase goes on, and the new reader is not part of it.
    record.queued(2, 20, Mode::Read);
    assert_eq!(record.told(), [id(13), id(12)]);
    for n in 12..=15 {
        record.release(at(2), &id(n));
    }
    assert_eq!(record.told(), [id(11)]);
    assert_eq!(record.take_next_to_ask(), None);
    record.release(at(3), &id(11));
    assert_eq!(record.told(), [id(2)]);
    record.release(at(3), &id(2));
    assert_eq!(record.told(), [id(20)]);
}

#[test]
fn dead_readers_of_a_batch_count() {
    let mut record = Record::with_limits(FEW);
    record.granted_to(0, 1, Mode::Write);
    (11..=15).for_each(|n| record.queued(0, n, Mode::Read));
    record.queued(9_000, 2, Mode::Write);
    record.renew(at(9_000), &id(1), Duration::from_secs(10));
    record.release(at(11_000), &id(1));
    assert_eq!((record.told(), record.take_next_to_ask()), (vec![], Some(id(13))));
    record.queued(11_000, 3, Mode::Write);
    assert_eq!((record.told(), record.take_next_to_ask()), (vec![], Some(id(11))));
    record.queued(11_000, 3, Mode::Write);
    assert_eq!((record.told(), record.take_next_to_ask()), (vec![id(2)], None));
}

#[test]
fn tokens_reach_back_and_never_ahead() {
    let mut record = Record::default();
    let first = record.granted_to(0, 1, Mode::Write);
    assert_eq!((first.token.as_u64(), first.tokens), (T0_US, 1), "a record without a past gives one");
    record.release(at(0), &id(1));
    let soon = record.granted_to(0, 2, Mode::Write);
    assert_eq!((soon.token.as_u64(), soon.tokens), (T0_US + 1, 1), "no more than the clock has passed");
    record.release(at(1), &id(2));
    let later = record.granted_to(1, 3, Mode::Write);
    assert_eq!((later.token.as_u64(), later.tokens), (T0_US + 1000 - 63, 64));
}

#[test]
fn force_ends_all_at_once_and_removes_some() {
    let mut record = Record::with_limits(FEW);
    for n in 1..=5 {
        record.granted_to(0, n, Mode::Read);
    }
    record.queued(0, 9, Mode::Write);
    let seen = record.inspect(at(0));
    assert_eq!((seen.holders.len(), seen.more_holders, seen.waiters.len()), (1, 4, 1));
    let forced = record.force(at(0), seen.token);
    assert_eq!((forced.ids.len(), forced.has_more), (2, true));
    for n in 1..=5 {
        assert_eq!(record.renew(at(0), &id(n), Duration::from_secs(1)), Renewed::Lost { forced: seen.token });
    }
    assert_eq!(record.inspect(at(0)).holders, []);
    assert!(record.told().is_empty());
    assert!(record.force(at(0), seen.token).has_more);
    assert!(!record.force(at(0), seen.token).has_more);
    assert_eq!(record.told(), [id(9)]);
    assert_eq!(record.force(at(0), seen.token), Forced::default(), "what was seen is over");
    assert_eq!(record.inspect(at(0)).holders.len(), 1);
}
