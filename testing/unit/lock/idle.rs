//! Cached holds: holds that stay when their last guard has left.

use super::*;
use crate::base::attempt::NodeId;
use crate::base::recalls::{LiveSubscription, Liveness, OnRecall, Recall, Recalls};
use crate::lock::hold::{CacheAnswer, CacheOutcome, CacheState, CachedPermit, Next};
use crate::lock::wait::CachedCell;

const IDLE: Duration = Duration::from_secs(30);

/// Passes recalls on to the cell, as the engine does.
struct Ear(CachedCell);

impl OnRecall for Ear {
    fn on_recall(&self, call: &Recall) {
        drop(self.0.on_recall(call));
    }

    fn on_break(&self) {
        drop(self.0.on_break());
    }
}

fn node() -> NodeId {
    NodeId::of("a")
}

fn standing(epoch: u64) -> LiveSubscription {
    LiveSubscription { epoch, liveness: Arc::new(Liveness::until(node(), Moment::NEVER)) }
}

fn token(n: u64) -> FencingToken {
    FencingToken::from_wire(n).expect("small")
}

/// A process with a hold that it may cache.
struct Keeper {
    table: Arc<Table>,
    calls: Arc<Recalls>,
    hold: Arc<Hold>,
    share_id: ShareId,
}

fn wants() -> ShareRequest {
    ShareRequest { cache_for: IDLE, ..want() }
}

/// Answer to a request that was sent at `sent` and offered caching while the subscription was live. It allows caching.
fn word(calls: &Recalls, sent: Moment) -> CacheAnswer {
    CacheAnswer { offered_on: calls.subscription(), sent, node: node(), is_waited_for: false }
}

/// Grants the lock to a waiter. `tell` makes the answer about caching that comes with the grant.
fn granted_with(mode: Mode, tokens: u64, tell: impl FnOnce(&Recalls, Moment) -> Option<CacheAnswer>) -> Keeper {
    let (table, sent) = (table(), now());
    let entry = table.enter(&key(), mode, wants(), GRACE, sent).0;
    let calls = entry.recalls(|cell| Some(Arc::new(Recalls::new(Box::new(Ear(cell))))));
    let calls = calls.expect("somebody listens");
    calls.on_confirmed(standing(1));
    assert!(sends(&entry, 1).is_some());
    let told = tell(&calls, sent);
    let keep = CacheState::new(Arc::clone(&calls), IDLE, CachedPermit::among(&Arc::default()));
    let granted = NewHold {
        cache: Some((Box::new(keep), told)),
        granting: GrantIdentity { id: id(1), mode, token: token(FIRST), tokens },
        grant: answer(sent, LEASE, LEASE),
        share: wants().from(sent),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: false,
    };
    let Installed::Hold(hold, share_id) = entry.on_grant(granted, now()).0 else {
        panic!("there is something left of it")
    };
    Keeper { table, calls, hold, share_id }
}

const FIRST: u64 = 5;

/// A hold that is granted, and that may be cached.
fn kept(mode: Mode, tokens: u64) -> Keeper {
    granted_with(mode, tokens, |calls, sent| Some(word(calls, sent)))
}

/// A cached hold: its last guard has left.
fn idle(mode: Mode, tokens: u64) -> Keeper {
    let keeper = kept(mode, tokens);
    assert_eq!(remove(&keeper.hold, keeper.share_id), ShareRemoved::Kept);
    keeper
}

impl Keeper {
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

    fn leaves(&self) -> ShareRemoved {
        remove(&self.hold, self.share_id)
    }

    fn called(&self, n: u64) {
        self.calls.on_recall(&Recall { token: token(n), tries: None }, now());
    }

    fn is_given_up(&self) -> bool {
        self.hold.next(now()) == Next::GivenUp
    }
}

#[test]
fn idle_hold_is_joined_without_a_word() {
    let keeper = idle(Mode::Read, 1);
    assert!(keeper.hold.is_cached() && !keeper.is_given_up());
    let share_id = keeper.join().expect("it may be joined");
    assert!(share_id.token == token(FIRST) && !keeper.hold.is_cached());
    assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Kept);
    assert_eq!(keeper.hold.cache_outcome(), Some(CacheOutcome::Reused));
}

#[test]
fn idle_write_hold_serves_the_next_writers_each_with_a_token_of_its_own() {
    let keeper = idle(Mode::Write, 3);
    assert!(keeper.join().is_none(), "no reader enters a write hold");
    for expected in [FIRST + 1, FIRST + 2] {
        let share_id = keeper.take().expect("there is a token");
        assert_eq!(share_id.token, token(expected));
        assert!(keeper.take().is_none(), "one at a time");
        assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Kept);
    }
    assert!(keeper.take().is_none(), "there is no token left");
}

/// The next writer takes a cached hold that has no token left.
fn tokenless() -> (Keeper, ShareId) {
    let keeper = idle(Mode::Write, 1);
    let mut entry = keeper.table.enter(&key(), Mode::Write, wants(), GRACE, now()).0;
    let Some(Wake::Handed(hold, share_id)) = called(&mut entry) else { panic!("it has the hold") };
    assert!(Arc::ptr_eq(&hold, &keeper.hold));
    assert!(matches!(accept(&keeper, share_id), Accepted::Tokenless));
    (keeper, share_id)
}

fn accept(keeper: &Keeper, share_id: ShareId) -> Accepted {
    keeper.hold.accept(share_id, wants().from(now()), now(), now()).0
}

#[test]
fn writer_for_whom_no_token_is_left_enters_with_the_first_of_a_new_block() {
    let (keeper, share_id) = tokenless();
    let own = keeper.hold.share(share_id);
    assert!(keeper.hold.join_own(own, now()).0.is_none(), "there is no token to share");
    let (standing, lease) = keeper.hold.begin_refill(wants().from(now()), now()).expect("it may ask for more");
    assert!(standing.epoch == 1 && lease > LEASE - secs(1) && keeper.hold.missing_tokens() == 64);
    let told = word(&keeper.calls, now());
    drop(keeper.hold.on_cache_answer(told, Some((token(90), 64)), now()));
    assert!(matches!(accept(&keeper, share_id), Accepted::Taken(first) if first == token(90)));
    assert!(matches!(accept(&keeper, share_id), Accepted::Taken(first) if first == token(90)), "it has it");
    assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Kept);
    assert_eq!(keeper.take().expect("there is a token").token, token(91));
}

#[test]
fn writer_for_whom_no_token_is_left_does_not_enter_before_who_waits_elsewhere() {
    let (keeper, share_id) = tokenless();
    let told = word(&keeper.calls, now());
    keeper.called(FIRST);
    drop(keeper.hold.on_cache_answer(told, Some((token(90), 64)), now()));
    assert!(matches!(accept(&keeper, share_id), Accepted::Tokenless));
    assert!(keeper.hold.begin_refill(wants().from(now()), now()).is_none(), "it asks for no more");
    assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Last);
}

#[test]
fn hold_without_a_token_left_is_handed_on_as_long_as_nobody_calls() {
    for is_called in [false, true] {
        let keeper = kept(Mode::Write, 1);
        let mut entry = keeper.table.enter(&key(), Mode::Write, wants(), GRACE, now()).0;
        assert!(called(&mut entry).is_none());
        if is_called {
            keeper.called(FIRST);
        }
        let left = keeper.leaves();
        assert_eq!(matches!(left, ShareRemoved::HandedOver(_)), !is_called, "{left:?}");
        assert!(is_called || matches!(called(&mut entry), Some(Wake::Handed(..))));
    }
}

/// A waiter of the other side takes a cached hold to convert it.
fn turned(mode: Mode) -> (Keeper, ShareId) {
    let keeper = idle(other(mode), 8);
    let mut entry = keeper.table.enter(&key(), mode, wants(), GRACE, now()).0;
    assert!(asks(&mut entry));
    let (Some((hold, share_id)), _) = entry.take_to_convert(now()) else { panic!("it may have it turned") };
    assert!(Arc::ptr_eq(&hold, &keeper.hold) && !keeper.is_given_up());
    (keeper, share_id)
}

fn other(mode: Mode) -> Mode {
    if mode == Mode::Read { Mode::Write } else { Mode::Read }
}

#[test]
fn who_asks_for_the_other_side_has_an_idle_hold_to_itself() {
    for mode in [Mode::Read, Mode::Write] {
        let (keeper, share_id) = turned(mode);
        assert!(keeper.join().is_none() && keeper.take().is_none(), "it is to be turned");
        drop(keeper.hold.refuse_conversion(now()));
        drop(keeper.hold.note_wanted(now()));
        assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Last, "it is given up");
    }
}

#[test]
fn idle_hold_that_somebody_calls_for_is_not_turned() {
    let keeper = idle(Mode::Read, 1);
    let mut entry = keeper.table.enter(&key(), Mode::Write, wants(), GRACE, now()).0;
    assert!(asks(&mut entry));
    keeper.called(FIRST);
    assert!(entry.take_to_convert(now()).0.is_none() && keeper.is_given_up());
}

#[test]
fn who_has_something_under_way_has_idle_holds_given_up() {
    let keeper = idle(Mode::Read, 1);
    let mut entry = keeper.table.enter(&key(), Mode::Write, wants(), GRACE, now()).0;
    assert!(asks(&mut entry) && sends(&entry, 2).is_some());
    assert!(entry.take_to_convert(now()).0.is_none() && keeper.is_given_up());
}

#[test]
fn tokens_of_a_renewal_are_used_if_they_are_newer_than_those_that_were_handed_out() {
    let keeper = idle(Mode::Write, 8);
    let told = word(&keeper.calls, now());
    drop(keeper.hold.on_cache_answer(told.clone(), Some((token(90), 64)), now()));
    let share_id = keeper.take().expect("there is a token");
    assert_eq!(share_id.token, token(90));
    // The answer to an earlier renewal comes after the newer one.
    drop(keeper.hold.on_cache_answer(told, Some((token(40), 64)), now()));
    assert_eq!(remove(&keeper.hold, share_id), ShareRemoved::Kept);
    assert_eq!(keeper.take().expect("there is a token").token, token(91));
}

#[test]
fn who_is_called_gives_an_idle_hold_up_and_lets_nobody_in() {
    for mode in [Mode::Read, Mode::Write] {
        let keeper = idle(mode, 8);
        keeper.called(FIRST);
        assert!(keeper.join().is_none() && keeper.take().is_none());
        assert!(keeper.is_given_up());
        assert_eq!(keeper.hold.cache_outcome(), Some(CacheOutcome::Recalled));
        assert_eq!(keeper.hold.usage().0, 0, "nobody is inside");
    }
}

#[test]
fn call_for_an_earlier_hold_does_no_harm() {
    let keeper = idle(Mode::Read, 1);
    keeper.called(FIRST - 1);
    assert!(!keeper.is_given_up() && keeper.join().is_some());
}

#[test]
fn used_hold_stays_until_its_last_guard_leaves_and_lets_nobody_in_beside_it() {
    let keeper = kept(Mode::Read, 1);
    keeper.called(FIRST);
    assert!(!keeper.is_given_up() && keeper.join().is_none());
    assert_eq!(keeper.hold.state_of(keeper.share_id), HoldState::Held);
    assert_eq!(keeper.leaves(), ShareRemoved::Last);
}

#[test]
fn who_tries_closes_nothing_where_a_guard_is_inside() {
    let keeper = kept(Mode::Read, 1);
    keeper.calls.on_recall(&Recall { token: token(FIRST), tries: Some("m.7.l".into()) }, now());
    assert!(keeper.join().is_some(), "the door is open");
    assert!(!keeper.is_given_up());
}

#[test]
fn who_tries_has_an_idle_hold_given_up() {
    let keeper = idle(Mode::Write, 8);
    keeper.calls.on_recall(&Recall { token: token(FIRST), tries: Some("m.7.l".into()) }, now());
    assert!(keeper.is_given_up());
}

#[test]
fn hold_does_not_stay_where_a_writer_asks_for_it() {
    let keeper = kept(Mode::Read, 1);
    let mut writer = keeper.table.enter(&key(), Mode::Write, wants(), GRACE, now()).0;
    assert!(asks(&mut writer) && sends(&writer, 2).is_some());
    assert_eq!(keeper.leaves(), ShareRemoved::Last);
}

#[test]
fn who_tries_is_not_kept_out_by_a_hold_on_its_way_back() {
    for mode in [Mode::Read, Mode::Write] {
        let keeper = idle(mode, 8);
        keeper.called(FIRST);
        assert!(keeper.is_given_up());
        assert!(try_enter(&keeper.table, Mode::Write).is_some_and(|entry| entry.is_leader()));
    }
    let keeper = kept(Mode::Write, 8);
    assert!(try_enter(&keeper.table, Mode::Read).is_none(), "a guard is inside");
}

#[test]
fn hold_stays_only_on_a_word_that_is_to_be_relied_on() {
    let leaves = |tell: &dyn Fn(&Recalls, Moment) -> Option<CacheAnswer>| granted_with(Mode::Read, 1, tell).leaves();
    assert_eq!(leaves(&|calls, sent| Some(word(calls, sent))), ShareRemoved::Kept);
    assert_eq!(leaves(&|_, _| None), ShareRemoved::Last, "a notification says nothing of it");
    let unsaid = |calls: &Recalls, sent| Some(CacheAnswer { offered_on: None, ..word(calls, sent) });
    assert_eq!(leaves(&unsaid), ShareRemoved::Last, "the lock is not marked, or was before the subscription stood");
    let elsewhere = |calls: &Recalls, sent| Some(CacheAnswer { node: NodeId::of("b"), ..word(calls, sent) });
    assert_eq!(leaves(&elsewhere), ShareRemoved::Last, "calls would be published elsewhere");
    let waited_for = |calls: &Recalls, sent| Some(CacheAnswer { is_waited_for: true, ..word(calls, sent) });
    assert_eq!(leaves(&waited_for), ShareRemoved::Last, "somebody waits");
    let broken = |calls: &Recalls, sent| {
        let word = word(calls, sent);
        calls.on_lost();
        calls.on_confirmed(standing(2));
        Some(word)
    };
    assert_eq!(leaves(&broken), ShareRemoved::Last, "a call may have been missed in between");
    let called = |calls: &Recalls, sent| {
        calls.on_recall(&Recall { token: token(FIRST), tries: None }, now());
        Some(word(calls, sent))
    };
    assert_eq!(leaves(&called), ShareRemoved::Last, "the call came before the grant");
}

#[test]
fn only_an_answer_to_what_was_sent_later_ends_a_call() {
    let keeper = kept(Mode::Read, 1);
    let early = word(&keeper.calls, now());
    keeper.called(FIRST);
    drop(keeper.hold.on_cache_answer(early, None, now()));
    assert!(keeper.join().is_none());
    drop(keeper.hold.on_cache_answer(word(&keeper.calls, now()), None, now()));
    assert!(keeper.join().is_some(), "whoever called has gone");
}

#[test]
fn word_that_somebody_waits_closes_the_share_window() {
    let keeper = kept(Mode::Read, 1);
    let grant = answer(now(), LEASE, LEASE);
    drop(keeper.hold.on_rechecked(grant, Some(now().after(LEASE)), now()));
    keeper.calls.on_lost();
    keeper.calls.notify_break();
    assert!(keeper.join().is_some(), "the window is open");
    let waited_for = CacheAnswer { is_waited_for: true, ..word(&keeper.calls, now()) };
    drop(keeper.hold.on_cache_answer(waited_for, None, now()));
    assert!(keeper.join().is_none());
}

#[test]
fn break_of_the_subscription_has_an_idle_hold_given_up_and_a_used_one_left_with_its_last_guard() {
    let (unused, used) = (idle(Mode::Read, 1), kept(Mode::Read, 1));
    for keeper in [&unused, &used] {
        assert!(keeper.calls.on_lost());
        keeper.calls.notify_break();
        assert!(keeper.join().is_none());
    }
    assert!(unused.is_given_up() && !used.is_given_up());
    assert_eq!(used.leaves(), ShareRemoved::Last);
}

#[test]
fn idle_hold_is_given_up_when_another_node_answers_than_the_one_where_calls_are_heard() {
    let keeper = idle(Mode::Read, 1);
    drop(keeper.hold.on_cache_answer(word(&keeper.calls, now()), None, now()));
    assert!(!keeper.is_given_up());
    let elsewhere = CacheAnswer { node: NodeId::of("b"), ..word(&keeper.calls, now()) };
    drop(keeper.hold.on_cache_answer(elsewhere, None, now()));
    assert!(keeper.is_given_up() && keeper.join().is_none());
}

#[test]
fn nobody_enters_when_the_node_was_not_heard_of_for_long() {
    let keeper = granted_with(Mode::Read, 1, |calls, sent| {
        calls.on_confirmed(LiveSubscription { liveness: Arc::new(Liveness::until(node(), now())), ..standing(2) });
        Some(word(calls, sent))
    });
    assert!(keeper.join().is_none());
    assert_eq!(keeper.leaves(), ShareRemoved::Last);
}

#[test]
fn idle_hold_is_renewed_for_no_longer_than_it_may_stay_and_then_given_up() {
    let keeper = idle(Mode::Read, 1);
    let began = now();
    for (after, asked) in [(9, LEASE), (18, LEASE), (27, secs(3))] {
        let at = began.after(secs(after));
        let lease = keeper.hold.begin_renewal(at, at).expect("it is due");
        assert!(lease <= asked && lease >= asked - secs(1), "{lease:?} after {after} s");
        keeper.hold.on_renewed(answer(at, LEASE, lease), at);
        assert!(matches!(keeper.hold.next(at), Next::At(_)));
    }
    let late = began.after(secs(29));
    assert!(keeper.hold.begin_renewal(late, late.after(LEASE)).is_none(), "its end is covered");
    assert!(matches!(keeper.hold.next(late), Next::At(_)));
    assert_eq!(keeper.hold.next(began.after(IDLE + secs(1))), Next::GivenUp);
    assert_eq!(keeper.hold.cache_outcome(), Some(CacheOutcome::Unused));
}

#[test]
fn whoever_joins_what_was_not_to_be_renewed_has_a_renewal_in_time() {
    let keeper = kept(Mode::Read, 1);
    let began = now();
    let brief = ShareRequest { cache_for: LEASE * 9 / 10, ..wants() };
    let (hold, last) = keeper.table.join(key().hashed_name(), brief, began).expect("it is open");
    assert_eq!((keeper.leaves(), remove(&hold, last)), (ShareRemoved::Shared, ShareRemoved::Kept));
    // The lease outlasts the time in the cache. So the process asks for no renewal, however often the queue looks.
    let mut at = began;
    while at < began.after(LEASE * 7 / 10) {
        let Next::At(due) = hold.next(at) else { panic!("it stays") };
        at = due;
        assert_eq!(hold.begin_renewal(at, at), None);
    }
    let short = ShareRequest { lease: secs(1), ..wants() };
    let (_, share_id) = keeper.table.join(key().hashed_name(), short, at).expect("enough is left for it");
    let Next::At(due) = hold.next(at) else { panic!("somebody is inside") };
    let left = hold.deadline().since(due);
    assert!(left >= secs(1) / 4, "{left:?} are left for the renewal");
    assert!(hold.begin_renewal(due, due).is_some());
    assert_eq!(remove(&hold, share_id), ShareRemoved::Kept);
}

#[test]
fn idle_hold_is_not_handed_out_after_its_deadline() {
    let keeper = idle(Mode::Write, 8);
    let late = now().after(LEASE);
    assert!(keeper.table.take_cached(key().hashed_name(), wants(), late).is_none());
    assert!(matches!(keeper.hold.next(late), Next::Lost(_)));
    assert!(keeper.take().is_none());
}

#[test]
fn writer_for_whom_too_little_is_left_is_handed_an_idle_hold_and_waits_for_its_renewal() {
    let keeper = idle(Mode::Write, 8);
    let long = ShareRequest { lease: LEASE * 6, ..wants() };
    assert!(keeper.table.take_cached(key().hashed_name(), long, now()).is_none());
    let mut entry = keeper.table.enter(&key(), Mode::Write, long, GRACE, now()).0;
    let Some(Wake::Handed(hold, share_id)) = called(&mut entry) else { panic!("it has the lock") };
    let (accepted, _) = hold.accept(share_id, long.from(now()), now(), now());
    assert!(matches!(accepted, Accepted::Short { .. }), "{accepted:?}");
}

#[test]
fn zero_of_the_last_user_gives_the_hold_back_at_once() {
    let keeper = idle(Mode::Read, 1);
    let (hold, share_id) = keeper.table.join(key().hashed_name(), want(), now()).expect("it may be joined");
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
}
