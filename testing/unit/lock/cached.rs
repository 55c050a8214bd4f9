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
    let entry = table.enter(&key(), mode, wants(), now());
    granted_to(table, &entry, (mode, tokens), tell)
}

/// Grants the lock to this leader.
fn granted_to(
    table: Arc<Table>,
    entry: &WaitEntry,
    (mode, tokens): (Mode, u64),
    tell: impl FnOnce(&Recalls, Moment) -> Option<CacheAnswer>,
) -> CachingHolder {
    let sent = now();
    let recalls = entry.recalls(|cell| Some(Arc::new(Recalls::new(Box::new(PassOn(cell))))));
    let recalls = recalls.expect("somebody listens");
    recalls.on_confirmed(subscription(1));
    assert!(sends(entry, 1).is_some());
    let answered = tell(&recalls, sent);
    let cache = CacheState::new(CACHE_FOR);
    let new_hold = NewHold {
        cache: Some((Box::new(cache), answered)),
        granting: GrantIdentity { id: id(1), mode, token: token(FIRST), tokens },
        grant: answer(sent, LEASE, LEASE),
        share: wants().from(sent),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: false,
        jitter: Jitter::of(0),
    };
    let Installed::Hold(hold, share_id) = entry.on_grant(new_hold, now()).0 else {
        panic!("there is something left of it")
    };
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
fn cached_hold_is_joined_without_a_request() {
    let holder = cached(Mode::Read, 1);
    assert!(holder.hold.is_cached() && !holder.is_given_up());
    let share_id = holder.join().expect("it may be joined");
    assert!(share_id.token == token(FIRST) && !holder.hold.is_cached());
    assert_eq!(remove(&holder.hold, share_id), ShareRemoved::Kept);
    assert_eq!(holder.hold.cache_outcome(), Some(CacheOutcome::Reused));
}

#[test]
fn cached_write_hold_serves_the_next_writers_each_with_a_token_of_its_own() {
    let holder = cached(Mode::Write, 3);
    assert!(holder.join().is_none(), "no reader enters a write hold");
    for (expected, left) in [(FIRST + 1, ShareRemoved::Kept), (FIRST + 2, ShareRemoved::Last)] {
        let share_id = holder.take().expect("there is a token");
        assert_eq!(share_id.token, token(expected));
        assert!(holder.take().is_none(), "one at a time");
        assert_eq!(remove(&holder.hold, share_id), left, "the last token is {}", FIRST + 2);
    }
}

#[test]
fn write_hold_whose_tokens_are_used_up_is_neither_cached_nor_handed_on() {
    let holder = granted(Mode::Write, 1);
    assert_eq!(holder.leave(), ShareRemoved::Last);
    let holder = granted(Mode::Write, 1);
    let mut entry = holder.table.enter(&key(), Mode::Write, wants(), now());
    assert!(signal_of(&mut entry).is_none());
    assert_eq!(holder.leave(), ShareRemoved::Last);
}

/// The budget of 64 hand-offs is for waiters elsewhere, so without one the hand-offs go on.
#[test]
fn write_hold_is_handed_on_until_it_is_recalled() {
    for is_recalled in [false, true] {
        let holder = granted(Mode::Write, 100);
        let mut share_id = holder.share_id;
        for handoff in 1..=64 {
            if handoff == 64 && is_recalled {
                holder.recall(FIRST);
            }
            let mut entry = holder.table.enter(&key(), Mode::Write, wants(), now());
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
fn acquisition_of_the_other_mode_ends_the_cached_holds_that_exclude_it() {
    for mode in [Mode::Read, Mode::Write] {
        let holder = cached(other(mode), 8);
        let mut entry = holder.table.enter(&key(), mode, wants(), now());
        assert!(asks(&mut entry));
        let ended = entry.end_cached();
        assert!(matches!(&ended[..], [hold] if Arc::ptr_eq(hold, &holder.hold)));
        assert!(holder.hold.due() == Next::Released && holder.join().is_none() && holder.take().is_none());
        assert_eq!(holder.hold.cache_outcome(), Some(CacheOutcome::Unused));
        assert!(entry.end_cached().is_empty(), "once");
    }
}

#[test]
fn acquisition_does_not_end_a_used_hold_or_one_that_it_can_share() {
    let used = granted(Mode::Read, 1);
    let mut writer = used.table.enter(&key(), Mode::Write, wants(), now());
    assert!(asks(&mut writer) && writer.end_cached().is_empty());
    let shared = cached(Mode::Read, 1);
    let reader = try_enter(&shared.table, Mode::Read).expect("no writer is here");
    assert!(reader.end_cached().is_empty() && shared.join().is_some());
}

fn other(mode: Mode) -> Mode {
    if mode == Mode::Read { Mode::Write } else { Mode::Read }
}

#[test]
fn tokens_of_a_renewal_are_used_if_they_are_newer_than_those_that_were_handed_out() {
    let holder = cached(Mode::Write, 8);
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
fn recalled_process_gives_a_cached_hold_up_and_lets_nobody_in() {
    for mode in [Mode::Read, Mode::Write] {
        let holder = cached(mode, 8);
        holder.recall(FIRST);
        assert!(holder.join().is_none() && holder.take().is_none());
        assert!(holder.is_given_up());
        assert_eq!(holder.hold.cache_outcome(), Some(CacheOutcome::Recalled));
        assert_eq!(holder.hold.usage().0, 0, "nobody is inside");
    }
}

#[test]
fn recall_of_an_earlier_hold_does_no_harm() {
    let holder = cached(Mode::Read, 1);
    holder.recall(FIRST - 1);
    assert!(!holder.is_given_up() && holder.join().is_some());
}

#[test]
fn recalled_hold_ends_with_its_last_guard_and_lets_nobody_in() {
    let holder = granted(Mode::Read, 1);
    holder.recall(FIRST);
    assert!(!holder.is_given_up() && holder.join().is_none());
    assert_eq!(holder.hold.state_of(holder.share_id), HoldState::Held);
    assert_eq!(holder.leave(), ShareRemoved::Last);
}

#[test]
fn try_closes_nothing_where_a_guard_is_inside() {
    let holder = granted(Mode::Read, 1);
    holder.recalls.on_recall(&Recall { token: token(FIRST), tries: Some("m.7.l".into()) }, now());
    assert!(holder.join().is_some(), "the door is open");
    assert!(!holder.is_given_up());
}

#[test]
fn try_has_a_cached_hold_given_up() {
    let holder = cached(Mode::Write, 8);
    holder.recalls.on_recall(&Recall { token: token(FIRST), tries: Some("m.7.l".into()) }, now());
    assert!(holder.is_given_up());
}

#[test]
fn hold_is_not_cached_where_a_writer_asks_for_it() {
    let holder = granted(Mode::Read, 1);
    let mut writer = holder.table.enter(&key(), Mode::Write, wants(), now());
    assert!(asks(&mut writer) && sends(&writer, 2).is_some());
    assert_eq!(holder.leave(), ShareRemoved::Last);
}

#[test]
fn try_is_not_shut_out_by_a_hold_that_is_given_up() {
    for mode in [Mode::Read, Mode::Write] {
        let holder = cached(mode, 8);
        holder.recall(FIRST);
        assert!(holder.is_given_up());
        assert!(try_enter(&holder.table, Mode::Write).is_some_and(|entry| entry.is_leader()));
    }
    let holder = granted(Mode::Write, 8);
    assert!(try_enter(&holder.table, Mode::Read).is_none(), "a guard is inside");
}

#[test]
fn hold_is_cached_only_on_an_answer_that_counts() {
    let left_after = |tell: &dyn Fn(&Recalls, Moment) -> Option<CacheAnswer>| granted_with(Mode::Read, 1, tell).leave();
    assert_eq!(left_after(&|recalls, sent| Some(cache_answer(recalls, sent))), ShareRemoved::Kept);
    assert_eq!(left_after(&|_, _| None), ShareRemoved::Last, "a notification says nothing of it");
    let not_offered = |recalls: &Recalls, sent| Some(CacheAnswer { offered_on: None, ..cache_answer(recalls, sent) });
    assert_eq!(
        left_after(&not_offered),
        ShareRemoved::Last,
        "the lock is not marked, or was before the subscription stood"
    );
    let elsewhere =
        |recalls: &Recalls, sent| Some(CacheAnswer { node: NodeId::of("b"), ..cache_answer(recalls, sent) });
    assert_eq!(left_after(&elsewhere), ShareRemoved::Last, "calls would be published elsewhere");
    let waited_for = |recalls: &Recalls, sent| Some(CacheAnswer { is_waited_for: true, ..cache_answer(recalls, sent) });
    assert_eq!(left_after(&waited_for), ShareRemoved::Last, "somebody waits");
    let broken = |recalls: &Recalls, sent| {
        let answered = cache_answer(recalls, sent);
        recalls.on_lost();
        recalls.on_confirmed(subscription(2));
        Some(answered)
    };
    assert_eq!(left_after(&broken), ShareRemoved::Last, "a call may have been missed in between");
    let recalled = |recalls: &Recalls, sent| {
        recalls.on_recall(&Recall { token: token(FIRST), tries: None }, now());
        Some(cache_answer(recalls, sent))
    };
    assert_eq!(left_after(&recalled), ShareRemoved::Last, "the call came before the grant");
}

#[test]
fn only_an_answer_to_a_later_request_ends_a_recall() {
    let holder = granted(Mode::Read, 1);
    let early = cache_answer(&holder.recalls, now());
    holder.recall(FIRST);
    holder.hold.on_cache_answer(early, None, now());
    assert!(holder.join().is_none());
    holder.hold.on_cache_answer(cache_answer(&holder.recalls, now()), None, now());
    assert!(holder.join().is_some(), "whoever called has gone");
}

#[test]
fn answer_that_reports_a_waiter_closes_the_join_window() {
    let holder = granted(Mode::Read, 1);
    let grant = answer(now(), LEASE, LEASE);
    holder.hold.on_rechecked(grant, Some(now().after(LEASE)), now());
    holder.recalls.on_lost();
    holder.recalls.notify_break();
    assert!(holder.join().is_some(), "the window is open");
    let waited_for = CacheAnswer { is_waited_for: true, ..cache_answer(&holder.recalls, now()) };
    holder.hold.on_cache_answer(waited_for, None, now());
    assert!(holder.join().is_none());
}

#[test]
fn lost_subscription_ends_a_cached_hold_at_once_and_a_used_one_with_its_last_guard() {
    let (unused, used) = (cached(Mode::Read, 1), granted(Mode::Read, 1));
    for holder in [&unused, &used] {
        assert!(holder.recalls.on_lost());
        holder.recalls.notify_break();
        assert!(holder.join().is_none());
    }
    assert!(unused.is_given_up() && !used.is_given_up());
    assert_eq!(used.leave(), ShareRemoved::Last);
}

#[test]
fn cached_hold_is_given_up_when_another_node_answers_than_the_one_that_recalls() {
    let holder = cached(Mode::Read, 1);
    holder.hold.on_cache_answer(cache_answer(&holder.recalls, now()), None, now());
    assert!(!holder.is_given_up());
    let elsewhere = CacheAnswer { node: NodeId::of("b"), ..cache_answer(&holder.recalls, now()) };
    holder.hold.on_cache_answer(elsewhere, None, now());
    assert!(holder.is_given_up() && holder.join().is_none());
}

#[test]
fn nobody_enters_when_the_node_has_not_answered_for_long() {
    let holder = granted_with(Mode::Read, 1, |recalls, sent| {
        recalls
            .on_confirmed(LiveSubscription { liveness: Arc::new(Liveness::until(node(), now())), ..subscription(2) });
        Some(cache_answer(recalls, sent))
    });
    assert!(holder.join().is_none());
    assert_eq!(holder.leave(), ShareRemoved::Last);
}

#[test]
fn cached_hold_is_renewed_for_no_longer_than_cache_for_and_then_given_up() {
    let holder = cached(Mode::Read, 1);
    let began = now();
    for (after, asked) in [(9, LEASE), (18, LEASE), (27, secs(3))] {
        let at = began.after(secs(after));
        let lease = holder.hold.begin_renewal(at, at).expect("it is due");
        assert!(lease <= asked && lease >= asked - secs(1), "{lease:?} after {after} s");
        holder.hold.on_renewed(answer(at, LEASE, lease), at);
        assert!(matches!(holder.hold.next(at), Next::At(_)));
    }
    let late = began.after(secs(29));
    assert!(holder.hold.begin_renewal(late, late.after(LEASE)).is_none(), "its end is covered");
    assert!(matches!(holder.hold.next(late), Next::At(_)));
    assert_eq!(holder.hold.next(began.after(CACHE_FOR + secs(1))), Next::GivenUp);
    assert_eq!(holder.hold.cache_outcome(), Some(CacheOutcome::Unused));
}

#[test]
fn guard_that_joins_an_unrenewed_hold_has_a_renewal_in_time() {
    let holder = granted(Mode::Read, 1);
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
fn cached_hold_is_not_handed_out_after_its_deadline() {
    let holder = cached(Mode::Write, 8);
    let late = now().after(LEASE);
    assert!(holder.table.take_cached(key().hashed_name(), wants(), late).is_none());
    assert!(matches!(holder.hold.next(late), Next::Lost(_)));
    assert!(holder.take().is_none());
}

#[test]
fn writer_with_too_little_left_is_handed_a_cached_hold_and_waits_for_its_renewal() {
    let holder = cached(Mode::Write, 8);
    let long = ShareRequest { lease: LEASE * 6, ..wants() };
    assert!(holder.table.take_cached(key().hashed_name(), long, now()).is_none());
    let mut entry = holder.table.enter(&key(), Mode::Write, long, now());
    let Some(Wake::Handed(hold, share_id)) = signal_of(&mut entry) else { panic!("it has the lock") };
    let accepted = accept(&hold, share_id, long.from(now()), now(), now());
    assert!(matches!(accepted, Accepted::Short { .. }), "{accepted:?}");
}

#[test]
fn zero_of_the_last_user_gives_the_hold_back_at_once() {
    let holder = cached(Mode::Read, 1);
    let (hold, share_id) = holder.table.join(key().hashed_name(), want(), now()).expect("it may be joined");
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
}

#[test]
fn stalled_writer_that_takes_a_cached_hold_leaves_nothing_in_its_cell() {
    let table = table();
    let mut stalled = enter(&table, Mode::Write);
    let mut next = enter(&table, Mode::Write);
    table.deadlines.look_for_stalled(now().after(POLL_WITHIN));
    assert!(asks(&mut next));
    let tell = |recalls: &Recalls, sent| Some(cache_answer(recalls, sent));
    let holder = granted_to(Arc::clone(&table), &next, (Mode::Write, 64), tell);
    assert_eq!(remove(&holder.hold, holder.share_id), ShareRemoved::Kept);
    assert!(stalled.waits_again(wants(), now()));
    let Some(Wake::Handed(hold, share_id)) = signal_of(&mut stalled) else { panic!("the hold is cached") };
    assert!(matches!(stalled.accept(&hold, share_id, wants().from(now()), now(), now()), Accepted::Taken(_)));
    assert_eq!(table.counts().waiters, 0);
}
