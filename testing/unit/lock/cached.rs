//! Cached holds: holds that stay when their last guard has left.

use super::*;
use crate::base::attempt::NodeId;
use crate::base::recalls::{LiveSubscription, Liveness, OnRecall, Recall, Recalls};
use crate::lock::hold::{CacheAnswer, CacheOutcome, CacheState, Next};
use crate::lock::wait::CachedCell;

const CACHE_FOR: Duration = Duration::from_secs(30);

/// Passes recalls on to the cell, as the engine does.
struct PassOn(CachedCell);

impl OnRecall for PassOn {
    fn on_recall(&self, recall: &Recall) {
        drop(self.0.on_recall(recall));
    }

    fn on_break(&self) {
        self.0.on_break();
    }
}

fn node() -> NodeId {
    NodeId::of("a")
}

fn subscription(epoch: u64) -> LiveSubscription {
    LiveSubscription { epoch, liveness: Arc::new(Liveness::until(node(), Moment::NEVER)) }
}

fn token(n: u64) -> FencingToken {
    FencingToken::from_wire(n).expect("small")
}

/// A process with a hold that it may cache.
struct CachingHolder {
    table: Arc<Table>,
    recalls: Arc<Recalls>,
    hold: Arc<Hold>,
    share_id: ShareId,
}

fn wants() -> ShareRequest {
    ShareRequest { cache_for: CACHE_FOR, ..want() }
}

/// Answer to a request that was sent at `sent` and offered caching while the subscription was live. It allows caching.
fn cache_answer(recalls: &Recalls, sent: Moment) -> CacheAnswer {
    CacheAnswer { offered_on: recalls.subscription(), sent, node: node(), is_waited_for: false }
}

/// Grants the lock to a waiter. `tell` makes the answer about caching that comes with the grant.
fn granted_with(mode: Mode, tokens: u64, tell: impl FnOnce(&Recalls, Moment) -> Option<CacheAnswer>) -> CachingHolder {
    let table = table();
    let requester = carried(&mut table.enter(&key(), mode, wants(), now()));
    granted_to(table, &requester, (mode, tokens), tell)
}

/// Grants the request of this requester to the waiter whose task it is.
fn granted_to(
    table: Arc<Table>,
    requester: &RequesterEntry,
    (mode, tokens): (Mode, u64),
    tell: impl FnOnce(&Recalls, Moment) -> Option<CacheAnswer>,
) -> CachingHolder {
    let sent = now();
    let recalls = requester.recalls(|cell| Some(Arc::new(Recalls::new(Box::new(PassOn(cell))))));
    let recalls = recalls.expect("somebody listens");
    recalls.on_confirmed(subscription(1));
    assert!(sends(requester, 1).is_some());
    let answered = tell(&recalls, sent);
    let new_hold = NewHold {
        cache: Some((Box::new(CacheState::new(CACHE_FOR)), answered)),
        share: wants().from(sent),
        share_until: None,
        ..new_hold(1, mode, (FIRST, tokens), sent)
    };
    let (hold, share_id) = taken(requester.on_grant(new_hold, now()).0);
    CachingHolder { table, recalls, hold, share_id }
}

const FIRST: u64 = 5;

/// A hold that is granted, and that may be cached.
fn granted(mode: Mode, tokens: u64) -> CachingHolder {
    granted_with(mode, tokens, |recalls, sent| Some(cache_answer(recalls, sent)))
}

/// A cached hold: its last guard has left.
fn cached(mode: Mode, tokens: u64) -> CachingHolder {
    let holder = granted(mode, tokens);
    assert_eq!(remove(&holder.hold, holder.share_id), ShareRemoved::Kept);
    holder
}

impl CachingHolder {
    fn join(&self) -> Option<ShareId> {
        let (hold, share_id) = self.table.join(key().hashed_name(), wants(), now())?;
        assert!(Arc::ptr_eq(&hold, &self.hold));
        Some(share_id)
    }

    /// Adds a waiter that may cache its hold.
    fn enters(&self, mode: Mode) -> WaitEntry {
        self.table.enter(&key(), mode, wants(), now())
    }

    fn take(&self) -> Option<ShareId> {
        let (hold, share_id) = self.table.take_cached(key().hashed_name(), wants(), now())?;
        assert!(Arc::ptr_eq(&hold, &self.hold));
        Some(share_id)
    }

    fn leave(&self) -> ShareRemoved {
        remove(&self.hold, self.share_id)
    }

    fn recall(&self, n: u64) {
        self.recalls.on_recall(&Recall { token: token(n), tries: None }, now());
    }

    fn is_given_up(&self) -> bool {
        self.hold.next(now()) == Next::GivenUp
    }
}

#[test]
fn cached_hold_reports_what_became_of_it() {
    let (reused, recalled) = (cached(Read, 1), cached(Write, 8));
    assert!(reused.join().is_some());
    recalled.recall(FIRST);
    assert!(recalled.is_given_up());
    assert_eq!(reused.hold.cache_outcome(), Some(CacheOutcome::Reused));
    assert_eq!(recalled.hold.cache_outcome(), Some(CacheOutcome::Recalled));
}

/// The budget of 64 hand-offs is for waiters elsewhere, so without one the hand-offs go on.
#[test]
fn write_hold_is_handed_on_until_it_is_recalled() {
    for is_recalled in [false, true] {
        let holder = granted(Write, 100);
        let mut share_id = holder.share_id;
        for handoff in 1..=64 {
            if handoff == 64 && is_recalled {
                holder.recall(FIRST);
            }
            let mut entry = holder.enters(Write);
            assert!(signal_of(&mut entry).is_none());
            match remove(&holder.hold, share_id) {
                ShareRemoved::HandedOver(next) => share_id = next,
                left => return assert!(left == ShareRemoved::Last && is_recalled && handoff == 64, "{left:?}"),
            }
            assert!(matches!(signal_of(&mut entry), Some(Wake::Handed(..))));
        }
        assert!(!is_recalled);
    }
}

#[test]
fn tokens_of_a_renewal_are_used_if_they_are_newer_than_those_that_were_handed_out() {
    let holder = cached(Write, 8);
    let answered = cache_answer(&holder.recalls, now());
    holder.hold.on_cache_answer(answered.clone(), Some((token(90), 64)), now());
    let share_id = holder.take().expect("there is a token");
    assert_eq!(share_id.token, token(90));
    // The answer to an earlier renewal comes after the newer one.
    holder.hold.on_cache_answer(answered, Some((token(40), 64)), now());
    assert_eq!(remove(&holder.hold, share_id), ShareRemoved::Kept);
    assert_eq!(holder.take().expect("there is a token").token, token(91));
}

#[test]
fn recall_of_an_earlier_hold_does_no_harm() {
    let holder = cached(Read, 1);
    holder.recall(FIRST - 1);
    assert!(!holder.is_given_up() && holder.join().is_some());
}

#[test]
fn hold_is_not_cached_where_a_writer_asks_for_it() {
    let holder = granted(Read, 1);
    let mut writer = holder.enters(Write);
    assert!(sends(&carried(&mut writer), 2).is_some());
    assert_eq!(holder.leave(), ShareRemoved::Last);
}

#[test]
fn try_is_not_shut_out_by_a_hold_that_is_given_up() {
    for mode in [Read, Write] {
        let holder = cached(mode, 8);
        holder.recall(FIRST);
        assert!(holder.is_given_up());
        let mut entry = try_enter(&holder.table, Write).expect("no guard is inside");
        holder.table.on_end(&holder.hold);
        // While the process has a write hold, its writers do not ask.
        assert!(entry.is_requester() || sends(&asked(&mut entry), 2).is_some());
    }
    let holder = granted(Write, 8);
    assert!(try_enter(&holder.table, Read).is_none(), "a guard is inside");
}

#[test]
fn hold_is_cached_only_on_an_answer_that_counts() {
    let left_after = |tell: &dyn Fn(&Recalls, Moment) -> Option<CacheAnswer>| granted_with(Read, 1, tell).leave();
    assert_eq!(left_after(&|recalls, sent| Some(cache_answer(recalls, sent))), ShareRemoved::Kept);
    assert_eq!(left_after(&|_, _| None), ShareRemoved::Last, "a notification says nothing of it");
    let waited_for = |recalls: &Recalls, sent| Some(CacheAnswer { is_waited_for: true, ..cache_answer(recalls, sent) });
    assert_eq!(left_after(&waited_for), ShareRemoved::Last, "somebody waits");
    let recalled = |recalls: &Recalls, sent| {
        recalls.on_recall(&Recall { token: token(FIRST), tries: None }, now());
        Some(cache_answer(recalls, sent))
    };
    assert_eq!(left_after(&recalled), ShareRemoved::Last, "the call came before the grant");
}

#[test]
fn only_an_answer_to_a_later_request_ends_a_recall() {
    let holder = granted(Read, 1);
    let early = cache_answer(&holder.recalls, now());
    holder.recall(FIRST);
    holder.hold.on_cache_answer(early, None, now());
    assert!(holder.join().is_none());
    holder.hold.on_cache_answer(cache_answer(&holder.recalls, now()), None, now());
    assert!(holder.join().is_some(), "whoever called has gone");
}

#[test]
fn cached_hold_is_renewed_for_no_longer_than_cache_for_and_then_given_up() {
    let holder = cached(Read, 1);
    let began = now();
    for (after, asked) in [(9, LEASE), (18, LEASE), (27, secs(3))] {
        let at = began.after(secs(after));
        let lease = holder.hold.begin_renewal(at, at).expect("it is due");
        assert!(lease <= asked && lease >= asked - secs(1), "{lease:?} after {after} s");
        holder.hold.on_renewed(answer(at, LEASE, lease), at);
        assert!(matches!(holder.hold.next(at), Next::At(_)));
    }
    let late = began.after(secs(29));
    assert!(holder.hold.begin_renewal(late.after(LEASE), late).is_none(), "its end is covered");
    assert!(matches!(holder.hold.next(late), Next::At(_)));
    assert_eq!(holder.hold.next(began.after(CACHE_FOR + secs(1))), Next::GivenUp);
    assert_eq!(holder.hold.cache_outcome(), Some(CacheOutcome::Unused));
}

#[test]
fn guard_that_joins_an_unrenewed_hold_has_a_renewal_in_time() {
    let holder = granted(Read, 1);
    let began = now();
    let brief = ShareRequest { cache_for: LEASE * 9 / 10, ..wants() };
    let (hold, last) = holder.table.join(key().hashed_name(), brief, began).expect("it is open");
    assert_eq!((holder.leave(), remove(&hold, last)), (ShareRemoved::Shared, ShareRemoved::Kept));
    // The lease outlasts the time in the cache. So the process asks for no renewal, however often the queue looks.
    let mut at = began;
    while at < began.after(LEASE * 7 / 10) {
        let Next::At(due) = hold.next(at) else { panic!("it stays") };
        at = due;
        assert_eq!(hold.begin_renewal(at, at), None);
    }
    let short = ShareRequest { lease: secs(1), ..wants() };
    let (_, share_id) = holder.table.join(key().hashed_name(), short, at).expect("enough is left for it");
    let Next::At(due) = hold.next(at) else { panic!("somebody is inside") };
    let left = hold.deadline().since(due);
    assert!(left >= secs(1) / 4, "{left:?} are left for the renewal");
    assert!(hold.begin_renewal(due, due).is_some());
    assert_eq!(remove(&hold, share_id), ShareRemoved::Kept);
}

#[test]
fn writer_with_too_little_left_is_handed_a_cached_hold_and_waits_for_its_renewal() {
    let holder = cached(Write, 8);
    let long = ShareRequest { lease: LEASE * 6, ..wants() };
    assert!(holder.table.take_cached(key().hashed_name(), long, now()).is_none());
    let mut entry = holder.table.enter(&key(), Write, long, now());
    let (hold, share_id) = handed(&mut entry);
    let accepted = accept(&hold, share_id, long.from(now()), now(), now());
    assert!(matches!(accepted, Accepted::Short { .. }), "{accepted:?}");
}

#[test]
fn writer_that_takes_a_cached_hold_as_it_waits_again_leaves_nothing_in_its_cell() {
    let table = table();
    let (requester, [_, mut again]) = enter_all(&table, Write);
    let (lost, share_id) = grant(&requester, 1, Write, 1, 3);
    assert!(matches!(remove(&lost, share_id), ShareRemoved::HandedOver(_)));
    let (_, share_id) = handed(&mut again);
    lost.lose(LossReason::Gone);
    let reader = enter(&table, Read);
    table.on_end(&lost);
    let requester = carried(&mut table.enter(&key(), Write, wants(), now()));
    leave(reader);
    let tell = |recalls: &Recalls, sent| Some(cache_answer(recalls, sent));
    let holder = granted_to(Arc::clone(&table), &requester, (Write, 64), tell);
    remove(&lost, share_id);
    assert_eq!(remove(&holder.hold, holder.share_id), ShareRemoved::Kept);
    assert!(again.waits_again(wants(), now()));
    let (hold, share_id) = handed(&mut again);
    let accepted = hold.accept(again.waiter_id(), (share_id, wants().from(now())), now(), now());
    assert!(matches!(accepted, Accepted::Taken(_)), "{accepted:?}");
    assert_eq!(table.counts().waiters, 0);
}
