//! Events in, effects out: no runtime, no clock.

mod cached;
mod stages;
mod threads;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake as Waking, Waker};
use std::time::Duration;

use crate::base::attempt::{AcquisitionId, Attempt, Failure, Subscription};
use crate::base::backoff::{Backoff, Jitter};
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::metrics::Metrics;
use crate::base::mode::Mode;
use crate::base::process::Process;
use crate::base::reentry::OwnerId;
use crate::lock::cell::Cell;
use crate::lock::effects::{InRenewalQueue, Rules};
use crate::lock::hold::{Accepted, Grant, GrantIdentity, Hold, HoldState, NewHold, Share, ShareId, ShareRemoved};
use crate::lock::shares::ShareRequest;
use crate::lock::side::{Pending, WaiterId};
use crate::lock::table::Table;
use crate::lock::wait::{Installed, Leaving, Notifications, WaitEntry, Wake};
use crate::lock::watch::Watch;

const POLL_WITHIN: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn rules() -> Rules {
    Rules {
        process: Process::current(),
        clock: Clock::System,
        max_clock_skew: Duration::ZERO,
        max_delay: MAX_DELAY,
        poll_within: POLL_WITHIN,
        max_handoffs: 64,
        handoff_span: secs(60),
        metrics: Metrics::default(),
        cached: Arc::default(),
    }
}

fn table() -> Arc<Table> {
    Arc::new(Table::new(rules()))
}

fn now() -> Moment {
    Clock::System.now()
}

fn key() -> Arc<Key> {
    Arc::new(Key::new("p", "cfg").expect("valid"))
}

fn want() -> ShareRequest {
    ShareRequest { owner: OwnerId::new(), lease: LEASE, max_hold: secs(3600), cache_for: Duration::ZERO }
}

fn enter(table: &Arc<Table>, mode: Mode) -> WaitEntry {
    table.enter(&key(), mode, want(), now())
}

fn try_enter(table: &Arc<Table>, mode: Mode) -> Option<WaitEntry> {
    table.try_enter(&key(), mode, want(), now())
}

fn id(n: u64) -> AcquisitionId {
    AcquisitionId::new("m", n, "l")
}

/// Grant of which the server has `remaining` left, by its answer.
fn answer(sent: Moment, remaining: Duration, asked: Duration) -> Grant {
    answer_at(sent, remaining, asked, ServerTime::default())
}

/// Grant with the server's time.
fn answer_at(sent: Moment, remaining: Duration, asked: Duration, server: ServerTime) -> Grant {
    Grant { sent, remaining, asked, server }
}

/// Sends a copy of the waiter's request.
fn sends(entry: &WaitEntry, n: u64) -> Option<AcquisitionId> {
    entry.begin_attempt(LEASE, now(), || Pending::new(id(n))).map(|begun| begun.id)
}

/// Grants a waiter's request, as the server would.
fn grant(entry: &WaitEntry, n: u64, mode: Mode, token: u64, tokens: u64) -> (Arc<Hold>, ShareId) {
    match granted(entry, n, mode, token, tokens) {
        Installed::Hold(hold, share_id) => (hold, share_id),
        other => panic!("{other:?}"),
    }
}

fn granted(entry: &WaitEntry, n: u64, mode: Mode, token: u64, tokens: u64) -> Installed {
    let now = now();
    sends(entry, n);
    let (installed, pending) = entry.on_grant(new_hold(n, mode, (token, tokens), now), now);
    assert!(pending.is_none_or(|pending| pending.copies.is_none()));
    if let Installed::Hold(hold, _) = &installed {
        assert!(looked_at(hold) < now.after(LEASE), "a new hold is scheduled");
    }
    installed
}

/// Grant of an answer to a request that was sent now.
fn new_hold(n: u64, mode: Mode, (token, tokens): (u64, u64), now: Moment) -> NewHold {
    NewHold {
        cache: None,
        granting: GrantIdentity { id: id(n), mode, token: FencingToken::from_wire(token).expect("small"), tokens },
        grant: answer(now, LEASE, LEASE),
        share: want().from(now),
        in_doubt_requests: InDoubt::default(),
        share_until: Some(now.after(secs(5))),
        is_claim: false,
        jitter: Jitter::of(0),
    }
}

/// Moment at which the background looks at a hold.
fn looked_at(hold: &Hold) -> Moment {
    Moment::from_nanos(hold.queue_moment.load(Ordering::Relaxed))
}

/// Lets a waiter leave, and returns what is to be taken back.
fn leave(entry: WaitEntry) -> Leaving {
    entry.leave(Notifications::default(), Backoff::new(), now())
}

/// Number of the waiter that takes shares in these tests.
const WAITER: WaiterId = WaiterId(99);

fn accept(hold: &Hold, share_id: ShareId, share: Share, since: Moment, now: Moment) -> Accepted {
    hold.accept(WAITER, (share_id, share), since, now)
}

/// Returns true if the waiter waits for the answer to a renewal.
fn awaits_renewal(hold: &Hold) -> bool {
    hold.cell().ask(|state| state.record(hold.number()).awaits_renewal(WAITER))
}

fn remove(hold: &Hold, share_id: ShareId) -> ShareRemoved {
    hold.remove_share(share_id, now())
}

/// Signal that a waiter has got, if there is one.
fn signal_of(entry: &mut WaitEntry) -> Option<Wake> {
    let mut signal = std::pin::pin!(entry.woken(None));
    match signal.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(call) => call,
        Poll::Pending => None,
    }
}

fn asks(entry: &mut WaitEntry) -> bool {
    matches!(signal_of(entry), Some(Wake::Ask))
}

#[test]
fn one_waiter_of_a_side_asks() {
    let table = table();
    let mut first = enter(&table, Mode::Read);
    let mut second = enter(&table, Mode::Read);
    let mut writer = enter(&table, Mode::Write);
    assert!(asks(&mut first) && asks(&mut writer));
    assert!(signal_of(&mut second).is_none());
    leave(first);
    assert!(asks(&mut second));
}

#[test]
fn waiter_that_leaves_does_not_stop_those_behind_it() {
    let table = table();
    let [first, second, mut third] = [0; 3].map(|_| enter(&table, Mode::Write));
    leave(second);
    leave(first);
    assert!(asks(&mut third));
}

#[test]
fn right_to_ask_is_passed_on_when_it_came_to_a_future_that_died() {
    let table = table();
    let [first, second, mut third] = [0; 3].map(|_| enter(&table, Mode::Write));
    leave(first); // second may ask now, though it never looked
    leave(second);
    assert!(asks(&mut third));
}

#[test]
fn what_is_under_way_goes_to_the_next_waiter_and_back_to_the_last() {
    let table = table();
    let [first, second] = [0; 2].map(|_| enter(&table, Mode::Write));
    sends(&first, 1);
    assert!(leave(first).pending.is_none());
    assert_eq!(sends(&second, 2), Some(id(1)), "left by the one before");
    let pending = leave(second).pending.expect("nobody goes on with it");
    assert!(pending.copies.arrives_until().is_some(), "a copy is on its way");
}

#[test]
fn what_is_under_way_is_not_forgotten_by_a_waiter_that_never_looked() {
    let table = table();
    let [first, second] = [0; 2].map(|_| enter(&table, Mode::Write));
    sends(&first, 1);
    leave(first);
    assert!(leave(second).pending.is_some());
}

#[test]
fn what_is_under_way_is_not_left_to_a_waiter_that_may_not_ask() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let once = try_enter(&table, Mode::Write).expect("nobody is in the way");
    let mut second = enter(&table, Mode::Write);
    sends(&first, 1);
    let (hold, share_id) = grant(&once, 2, Mode::Write, 1000, 64);
    assert!(leave(first).pending.is_some(), "the next one is handed the hold");
    remove(&hold, share_id);
    assert!(matches!(signal_of(&mut second), Some(Wake::Handed(..))));
}

#[test]
fn leader_that_stalls_loses_the_right_to_ask_and_waits_again() {
    let table = table();
    let mut first = enter(&table, Mode::Write);
    sends(&first, 1);
    assert_eq!(table.deadlines.leaders(), 0, "nobody waits behind it");
    let mut second = enter(&table, Mode::Write);
    assert_eq!(table.deadlines.leaders(), 1);
    let later = now().after(POLL_WITHIN);
    table.deadlines.look_for_stalled(later);
    assert!(asks(&mut second), "the first one has not been seen");
    assert_eq!(sends(&second, 2), Some(id(1)), "with what it had under way");
    assert_eq!(sends(&first, 3), None);
    assert!(matches!(granted(&first, 3, Mode::Write, 1000, 1), Installed::NotMine), "nor is its late answer taken");
    assert!(first.waits_again(want(), later));
    assert!(signal_of(&mut first).is_none());
    // The first waiter's request may yet arrive.
    assert!(leave(second).pending.is_none());
    assert!(asks(&mut first), "it is polled again");
    assert!(leave(first).pending.is_some_and(|pending| pending.copies.arrives_until().is_some()));
    assert!(table.is_idle());
}

#[test]
fn leader_that_is_polled_goes_on_asking() {
    let table = table();
    let first = enter(&table, Mode::Read);
    let mut second = enter(&table, Mode::Read);
    let later = now().after(POLL_WITHIN);
    assert!(first.note_polled(later));
    table.deadlines.look_for_stalled(later);
    assert!(signal_of(&mut second).is_none());
    assert_eq!(table.deadlines.leaders(), 1, "it is looked at again");
    leave(second);
    table.deadlines.look_for_stalled(later.after(POLL_WITHIN));
    assert_eq!(table.deadlines.leaders(), 0, "nobody waits behind it any more");
    assert!(first.note_polled(later));
}

#[test]
fn waiter_that_was_passed_by_keeps_its_place() {
    let table = table();
    let mut first = enter(&table, Mode::Write);
    let mut second = enter(&table, Mode::Write);
    let mut third = enter(&table, Mode::Write);
    table.deadlines.look_for_stalled(now().after(POLL_WITHIN));
    assert!(asks(&mut second));
    assert!(first.waits_again(want(), now()));
    leave(second);
    assert!(asks(&mut first));
    assert!(signal_of(&mut third).is_none());
}

#[test]
fn hold_that_is_being_converted_is_renewed_and_not_lost_by_the_answer() {
    let table = table();
    let (hold, share_id) = grant(&enter(&table, Mode::Write), 1, Mode::Write, 1000, 1);
    let now = now();
    hold.on_no_answer(now);
    assert!(hold.begin_conversion(now));
    hold.send_conversion(now, LEASE);
    let soon = now.after(secs(1));
    assert!(hold.begin_renewal(now, soon).is_some(), "it stands if the conversion is refused");
    hold.on_unknown(LossReason::Gone);
    assert!(hold.is_live(), "the server may have converted it");
    hold.refuse_conversion(now);
    assert!(looked_at(&hold) <= now, "the background looks now");
    assert_eq!(hold.state_of(share_id), HoldState::Unconfirmed, "nobody has answered for it");
    assert!(hold.begin_renewal(now, soon).is_some(), "it is asked for again");
}

#[test]
fn hold_that_no_request_can_have_converted_is_lost_by_the_answer() {
    let table = table();
    let (hold, share_id) = grant(&enter(&table, Mode::Write), 1, Mode::Write, 1000, 1);
    let now = now();
    assert!(hold.begin_conversion(now));
    hold.send_conversion(now, LEASE);
    hold.cancel_conversion();
    hold.on_unknown(LossReason::Gone);
    assert_eq!(hold.state_of(share_id), HoldState::Lost(LossReason::Gone));
}

#[test]
fn newer_grant_ends_an_older_hold_that_it_conflicts_with() {
    let table = table();
    let reader = enter(&table, Mode::Read);
    let writer = enter(&table, Mode::Write);
    let (read, _) = grant(&reader, 1, Mode::Read, 1000, 1);
    let (write, _) = grant(&writer, 2, Mode::Write, 2000, 1);
    assert!(!read.is_live() && write.is_live());
}

#[test]
fn grant_that_is_told_late_ends_nothing_newer() {
    let table = table();
    let reader = enter(&table, Mode::Read);
    let writer = enter(&table, Mode::Write);
    let (write, _) = grant(&writer, 2, Mode::Write, 2000, 1);
    let (read, _) = grant(&reader, 1, Mode::Read, 1000, 1);
    assert!(!read.is_live() && write.is_live());
}

#[test]
fn release_is_repeated_for_as_long_as_a_request_may_be_in_doubt() {
    let table = table();
    let (hold, _) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    let until = now().after(secs(60));
    assert!(hold.begin_recheck(want().from(now()), now()).is_some());
    let unknown: Attempt<()> = Err(Failure::Unknown { arrives_until: until, source: None });
    hold.end_recheck(&unknown);
    assert!(hold.until(now()).server_until >= until.after(LEASE));
}

#[test]
fn hold_that_is_over_does_not_come_back() {
    let table = table();
    let reader = enter(&table, Mode::Read);
    let (hold, _) = grant(&enter(&table, Mode::Write), 1, Mode::Write, 1000, 1);
    hold.lose(LossReason::Forced);
    table.on_end(&hold);
    let pending = reader.on_seated(&hold, now());
    assert!(pending.is_none());
    assert!(table.holds(&key()).is_empty() && table.is_idle());
}

#[test]
fn grant_that_is_over_when_it_comes_is_no_hold() {
    let table = table();
    let entry = enter(&table, Mode::Write);
    sends(&entry, 1);
    let sent = now();
    let granted = NewHold {
        cache: None,
        granting: GrantIdentity {
            id: id(1),
            mode: Mode::Write,
            token: FencingToken::from_wire(1).expect("small"),
            tokens: 1,
        },
        grant: answer(sent, Duration::ZERO, LEASE),
        share: want().from(sent),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: false,
        jitter: Jitter::of(0),
    };
    let (installed, _) = entry.on_grant(granted, sent);
    assert!(matches!(installed, Installed::Over));
    let pending = entry.give_up_pending().expect("it is to be given back");
    assert!(pending.is_recorded && pending.copies.is_none());
}

#[test]
fn waiting_readers_enter_with_the_first() {
    let table = table();
    let first = enter(&table, Mode::Read);
    let mut others = [0; 3].map(|_| enter(&table, Mode::Read));
    grant(&first, 1, Mode::Read, 1000, 1);
    assert!(others.iter_mut().all(|other| matches!(signal_of(other), Some(Wake::Handed(..)))));
}

#[test]
fn reader_joins_unless_a_writer_waits() {
    let table = table();
    let first = enter(&table, Mode::Read);
    grant(&first, 1, Mode::Read, 1000, 1);
    assert!(table.join(key().hashed_name(), want(), now()).is_some());
    let writer = enter(&table, Mode::Write);
    assert!(writer.is_leader(), "it may queue on the server");
    assert!(table.join(key().hashed_name(), want(), now()).is_none());
    leave(writer);
    assert!(table.join(key().hashed_name(), want(), now()).is_some());
}

#[test]
fn writers_have_the_hold_one_after_the_other_with_a_token_each() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let mut others = [0; 3].map(|_| enter(&table, Mode::Write));
    let (hold, mut share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    let mut tokens = vec![share_id.token];
    for other in &mut others[..2] {
        assert!(signal_of(other).is_none());
        let removed = remove(&hold, share_id);
        assert!(matches!(removed, ShareRemoved::HandedOver(_)), "{removed:?}");
        let Some(Wake::Handed(_, next)) = signal_of(other) else { panic!("it has the lock") };
        tokens.push(next.token);
        share_id = next;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // Three tokens, three writers: the hold is given back, and then the next one may ask.
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    assert!(signal_of(&mut others[2]).is_none());
    table.on_end(&hold);
    assert!(asks(&mut others[2]));
}

#[test]
fn offer_to_a_future_that_nobody_polls_is_due_before_the_hold() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let _second = enter(&table, Mode::Write);
    let (hold, share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    let renewal = now().after(LEASE / 3);
    hold.queue_moment.store(renewal.after(LEASE).as_nanos(), Ordering::Relaxed);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    assert!(looked_at(&hold) < renewal, "the background looks when the offer is over");
}

#[test]
fn hold_is_handed_past_no_writer_that_asks_and_came_before() {
    let table = table();
    let (mut first, tries) = (enter(&table, Mode::Write), try_enter(&table, Mode::Write));
    assert!(asks(&mut first));
    // Both ask, and the server answers the try first.
    let (hold, share_id) = grant(&tries.expect("nobody waits"), 1, Mode::Write, 5, 64);
    let mut later = enter(&table, Mode::Write);
    assert!(signal_of(&mut later).is_none());
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    table.on_end(&hold);
    assert!(signal_of(&mut later).is_none() && sends(&first, 2).is_some(), "it is the turn of the first");
}

#[test]
fn writer_whose_time_is_over_hands_nothing_on_and_is_told() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let mut second = enter(&table, Mode::Write);
    let (hold, share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    let over = now();
    let accepted = accept(&hold, share_id, Share { ends: over, ..want().from(over) }, over, over);
    assert!(matches!(accepted, Accepted::Taken(_)), "{accepted:?}");
    assert_eq!(remove(&hold, share_id), ShareRemoved::LastLate(LossReason::MaxHold));
    assert!(signal_of(&mut second).is_none());
}

/// Hands a hold to a writer that wants a longer lease than the hold was granted for.
fn handed_with_little_left(table: &Arc<Table>) -> (Arc<Hold>, ShareId, ShareRequest) {
    let long = ShareRequest { lease: LEASE * 6, ..want() };
    let first = enter(table, Mode::Write);
    let mut second = table.enter(&key(), Mode::Write, long, now());
    let (hold, share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    let Some(Wake::Handed(_, share_id)) = signal_of(&mut second) else { panic!("it has the lock") };
    (hold, share_id, long)
}

#[test]
fn guard_that_would_start_with_less_than_half_of_its_lease_waits_for_a_renewal() {
    let table = table();
    let (hold, share_id, long) = handed_with_little_left(&table);
    let since = now();
    hold.queue_moment.store(since.after(LEASE).as_nanos(), Ordering::Relaxed);
    let accepted = accept(&hold, share_id, long.from(since), since, since);
    let Accepted::Short { is_late: false, until, .. } = accepted else { panic!("{accepted:?}") };
    assert!(looked_at(&hold) <= since, "the background looks now");
    assert!(until <= since.after(secs(3)), "nobody knows whether its future is polled");
    assert_eq!(hold.begin_renewal(since, since), Some(LEASE * 6), "for all that it wants");
    let sent = now();
    assert!(matches!(accept(&hold, share_id, long.from(sent), since, sent), Accepted::Short { .. }), "not yet");
    hold.on_renewed(answer(sent, LEASE * 6, LEASE * 6), sent);
    assert!(matches!(accept(&hold, share_id, long.from(sent), since, sent), Accepted::Taken(_)));
    assert!(hold.remaining(share_id) > LEASE * 5);
    assert!(
        hold.begin_renewal(sent, sent.after(LEASE)).is_none(),
        "it was renewed for the guard, and not for the offer"
    );
    assert!(hold.begin_renewal(sent, sent.after(LEASE * 3)).is_some());
}

#[test]
fn guard_starts_with_what_an_answer_leaves_that_was_long_on_its_way() {
    let table = table();
    let (hold, share_id, long) = handed_with_little_left(&table);
    let since = now();
    assert!(matches!(accept(&hold, share_id, long.from(since), since, since), Accepted::Short { .. }));
    assert!(hold.begin_renewal(since, since).is_some());
    hold.on_renewed(answer(since, LEASE, LEASE * 6), since);
    assert!(
        matches!(accept(&hold, share_id, long.from(since), since, since), Accepted::Taken(_)),
        "no renewal brings more"
    );
}

/// A new primary may not know the last renewal. Its answer to a shorter renewal sets the deadline then.
#[tokio::test]
async fn deadline_moves_back_only_if_the_server_has_lost_a_renewal() {
    let table = table();
    let entry = enter(&table, Mode::Read);
    let (hold, share_id) = grant(&entry, 1, Mode::Read, 5, 1);
    let at = |passed| now().after(Duration::from_millis(passed));
    let (first, second, third) = (at(0), at(10), at(20));
    hold.on_renewed(answer(second, LEASE * 6, LEASE * 6), second);
    let long = hold.deadline();
    assert!(long > second.after(LEASE * 5));
    hold.on_renewed(answer(first, LEASE, LEASE), third);
    assert_eq!(hold.deadline(), long, "the answer to an earlier request");
    hold.on_renewed(answer(third, LEASE * 6, LEASE), third.after(secs(1)));
    assert!(hold.deadline() >= long, "it knows all of it");
    let watch = Watch::of(&hold, share_id);
    let (mut ended, woken) = (std::pin::pin!(watch.ended()), Arc::new(Woken::default()));
    assert!(ended.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    hold.on_renewed(answer(third, LEASE, LEASE), third);
    assert!(hold.deadline() <= third.after(LEASE), "a guard counts on no more than the server has");
    assert!(woken.0.load(Ordering::SeqCst), "whoever waits for its end looks again");
}

/// A hold that the server has renewed for long, and the time of that renewal.
fn renewed_for_long(server: ServerTime) -> (Arc<Hold>, Moment) {
    let (hold, _) = grant(&enter(&table(), Mode::Write), 1, Mode::Write, 5, 1);
    let sent = now();
    hold.on_renewed(answer_at(sent, LEASE * 6, LEASE * 6, server), sent);
    (hold, sent)
}

/// Applies the answer to a shorter renewal, which took long. By the local clock alone it is open whether the server
/// grants less than before.
fn renewed_slowly(hold: &Hold, renewed: Moment, server: ServerTime) -> Moment {
    const LEFT: Duration = LEASE.saturating_mul(5);
    let sent = renewed.after(secs(1));
    let answered = sent.after(LEASE);
    assert!(sent.after(LEFT) < hold.deadline() && hold.deadline() < answered.after(LEFT));
    hold.on_renewed(answer_at(sent, LEFT, LEASE, server), answered);
    sent.after(LEFT)
}

#[test]
fn deadline_moves_back_when_the_server_names_an_earlier_one_however_long_its_answer_took() {
    let server = ServerTime::from_micros(1_000_000_000);
    let (hold, renewed) = renewed_for_long(server);
    // The server read its clock soon after the request. It may let others in eight seconds sooner than it had granted.
    let is_over = renewed_slowly(&hold, renewed, server.after(secs(2)));
    assert!(hold.deadline() <= is_over, "it may be over on the server, and another process inside");
}

#[test]
fn deadline_stays_when_a_slow_answer_names_the_same_one() {
    let server = ServerTime::from_micros(1_000_000_000);
    let (hold, renewed) = renewed_for_long(server);
    let deadline = hold.deadline();
    renewed_slowly(&hold, renewed, server.after(LEASE));
    assert_eq!(hold.deadline(), deadline, "the server keeps what it had granted");
}

#[test]
fn deadline_stays_when_an_answer_is_older_than_the_grant() {
    let server = ServerTime::from_micros(1_000_000_000);
    let (hold, renewed) = renewed_for_long(server.after(LEASE));
    let deadline = hold.deadline();
    renewed_slowly(&hold, renewed, server.after(secs(9)));
    assert_eq!(hold.deadline(), deadline, "a request that was carried out before it knows nothing of it");
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Waking for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn answer_that_is_over_when_it_comes_joins_nobody() {
    let table = table();
    let (hold, _) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    let sent = now();
    assert!(hold.begin_recheck(want().from(sent), sent).is_some());
    // The server has lost its last renewal, and was slow to answer with the rest.
    let (is_held, _) = hold.on_rechecked(answer(sent, secs(1), secs(1)), Some(sent.after(LEASE)), sent.after(secs(2)));
    assert!(!is_held);
}

#[test]
fn short_renewal_counts_for_all_that_a_longer_one_without_an_answer_was_granted() {
    let (hold, share_id, long) = handed_with_little_left(&table());
    let since = now();
    assert!(matches!(accept(&hold, share_id, long.from(since), since, since), Accepted::Short { .. }));
    assert_eq!(hold.begin_renewal(since, since), Some(LEASE * 6));
    hold.on_no_answer(since);
    let sent = since.after(secs(1));
    let left = LEASE * 6 - secs(1);
    hold.on_renewed(answer(sent, left, secs(1)), sent);
    assert!(hold.deadline() > sent.after(LEASE * 5), "the server has granted as much as was asked for");
}

#[test]
fn no_answer_counts_for_more_than_was_asked_for() {
    let (hold, _) = grant(&enter(&table(), Mode::Write), 1, Mode::Write, 5, 1);
    let sent = now();
    hold.on_renewed(answer(sent, LEASE * 30, LEASE), sent);
    assert!(hold.deadline() <= sent.after(LEASE), "the server's clock has gone back");
}

/// A claim counts from an earlier answer, so the server may have more left from then on than the claim's length.
#[test]
fn claim_counts_from_when_it_was_granted() {
    let table = table();
    let entry = enter(&table, Mode::Write);
    sends(&entry, 1);
    let sent = now();
    let told = sent.after(LEASE / 2);
    let granted = NewHold {
        cache: None,
        granting: GrantIdentity {
            id: id(1),
            mode: Mode::Write,
            token: FencingToken::from_wire(5).expect("small"),
            tokens: 1,
        },
        grant: answer(sent, LEASE * 3 / 2, LEASE),
        share: want().from(told),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: true,
        jitter: Jitter::of(0),
    };
    let Installed::Hold(hold, _) = entry.on_grant(granted, told).0 else { panic!("it is a hold") };
    assert!(hold.deadline() > told.after(LEASE * 9 / 10));
}

#[test]
fn waiter_whose_renewal_goes_unanswered_learns_of_it_and_of_the_end() {
    let table = table();
    let (hold, share_id, long) = handed_with_little_left(&table);
    let since = now();
    let accepts = || accept(&hold, share_id, long.from(now()), since, now());
    assert!(matches!(accepts(), Accepted::Short { .. }) && awaits_renewal(&hold), "it has too little");
    assert!(hold.begin_renewal(now(), now()).is_some());
    hold.on_no_answer(since);
    assert!(!awaits_renewal(&hold));
    assert!(matches!(accepts(), Accepted::Short { is_late: true, .. }), "it waits for the next");
    assert!(hold.begin_renewal(since, since).is_none(), "after a pause");
    hold.lose(LossReason::Gone);
    assert!(!awaits_renewal(&hold));
    assert!(matches!(accepts(), Accepted::Over));
}

#[test]
fn share_of_a_waiter_that_is_not_polled_is_over_with_its_offer() {
    let table = table();
    let (hold, share_id, long) = handed_with_little_left(&table);
    let since = now();
    assert!(matches!(accept(&hold, share_id, long.from(since), since, since), Accepted::Short { .. }));
    assert!(hold.begin_renewal(since, since).is_some());
    hold.on_renewed(answer(since, LEASE * 6, LEASE * 6), since);
    let later = since.after(secs(4));
    hold.next(later);
    assert!(matches!(accept(&hold, share_id, long.from(later), since, later), Accepted::Over));
}

#[test]
fn what_was_handed_to_a_future_that_died_is_given_back() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let second = enter(&table, Mode::Write);
    let (hold, share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    remove(&hold, share_id);
    assert!(leave(second).handed.is_some());
}

#[test]
fn what_others_share_is_left_without_a_clock() {
    let table = table();
    let (hold, first) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    hold.queue_moment.store(0, Ordering::Relaxed);
    let join = || table.join(key().hashed_name(), want(), now()).expect("it is open").1;
    assert!(hold.leave_quietly(join()));
    assert_eq!(looked_at(&hold), Moment::from_nanos(0), "it is not scheduled again");
    let watched = join();
    let _watch = Watch::of(&hold, watched);
    assert!(!hold.leave_quietly(watched), "its watcher has to hear of it");
    assert_eq!(remove(&hold, watched), ShareRemoved::Shared);
    assert!(!hold.leave_quietly(first), "nobody else has it");
    assert_eq!(hold.usage().0, 1);
}

#[test]
fn hold_ends_with_those_who_are_left_when_the_last_one_leaves_early() {
    let table = table();
    let (hold, first) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    let (soon, later) = (now().after(secs(1)), now().after(LEASE / 4));
    let (_, lasts) = table.join(key().hashed_name(), want(), now()).expect("it is open");
    let share = Share { ends: soon, ..want().from(now()) };
    assert!(matches!(accept(&hold, first, share, now(), now()), Accepted::Taken(_)));
    hold.queue_moment.store(later.as_nanos(), Ordering::Relaxed);
    assert!(hold.leave_quietly(lasts), "another one has it");
    assert!(looked_at(&hold) <= soon, "the background looks when the other one's time is over");
}

/// Counts its drops. A drop under the mutex of the cell counts as very many.
struct Ends(Weak<Cell<Hold>>, Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        let is_free = self.0.upgrade().is_none_or(|cell| cell.try_ask_heard(|_, _| ()).is_some());
        self.1.fetch_add(if is_free { 1 } else { 1000 }, Ordering::Relaxed);
    }
}

#[test]
fn subscription_that_nobody_needs_ends_when_the_mutex_is_free() {
    let table = table();
    let ended = Arc::new(AtomicUsize::new(0));
    let [first, second, third] = [0; 3].map(|_| enter(&table, Mode::Write));
    let asking = |entry: &WaitEntry| {
        let end = Ends(Arc::downgrade(entry.cell()), Arc::clone(&ended));
        let (_, notices) = crate::base::attempt::notifications();
        Notifications::Subscribed(Subscription { notices, _end: Box::new(end) })
    };
    let [mine, others, last] = [&first, &second, &third].map(asking);
    sends(&first, 1);
    assert!(first.leave(mine, Backoff::new(), now()).pending.is_none());
    // The second waiter never looked at the request that was left to it.
    assert!(second.leave(others, Backoff::new(), now()).pending.is_none());
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    let left = third.leave(last, Backoff::new(), now());
    assert!(left.pending.is_some());
    drop(left);
    assert_eq!(ended.load(Ordering::Relaxed), 3);
}

#[test]
fn subscription_of_one_that_has_nothing_under_way_ends_when_the_mutex_is_free() {
    let table = table();
    let ended = Arc::new(AtomicUsize::new(0));
    let [entry, _other] = [0; 2].map(|_| enter(&table, Mode::Write));
    let end = Ends(Arc::downgrade(entry.cell()), Arc::clone(&ended));
    let (_, notices) = crate::base::attempt::notifications();
    let notices = Notifications::Subscribed(Subscription { notices, _end: Box::new(end) });
    drop(entry.leave(notices, Backoff::new(), now()));
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

#[test]
fn idle_locks_are_forgotten() {
    let table = table();
    leave(enter(&table, Mode::Read));
    leave(try_enter(&table, Mode::Write).expect("free"));
    let (hold, share_id) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    assert!(!table.is_idle(), "the server is to be told");
    table.on_end(&hold);
    assert!(table.is_idle());
}

#[test]
fn cell_goes_with_its_last_hold_and_guard() {
    let table = table();
    let (hold, share_id) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
    let cell = Arc::downgrade(hold.cell());
    hold.lose(LossReason::Gone);
    table.on_end(&hold);
    remove(&hold, share_id);
    table.deadlines.forget(&hold);
    drop(hold);
    assert_eq!(cell.strong_count(), 0);
}

#[test]
fn cell_goes_with_a_hold_that_was_converted() {
    let table = table();
    let (old, old_share) = grant(&enter(&table, Mode::Write), 1, Mode::Write, 1000, 1);
    let cell = Arc::downgrade(old.cell());
    assert!(old.begin_conversion(now()));
    let granted = NewHold {
        cache: None,
        granting: GrantIdentity {
            id: id(2),
            mode: Mode::Read,
            token: FencingToken::from_wire(1001).expect("small"),
            tokens: 1,
        },
        grant: answer(now(), LEASE, LEASE),
        share: want().from(now()),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: false,
        jitter: Jitter::of(0),
    };
    let (new, share_id) = old.convert_into(granted, now()).expect("there is enough left of it");
    old.note_share_converted(old_share);
    remove(&new, share_id);
    table.on_end(&new);
    [&old, &new].into_iter().for_each(|hold| table.deadlines.forget(hold));
    drop((old, new));
    assert_eq!(cell.strong_count(), 0);
}

#[test]
fn one_who_waits_again_when_the_lock_is_forgotten_enters_anew() {
    let table = table();
    let first = enter(&table, Mode::Write);
    let mut second = enter(&table, Mode::Write);
    let (hold, share_id) = grant(&first, 1, Mode::Write, 1000, 3);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    let Some(Wake::Handed(_, share_id)) = signal_of(&mut second) else { panic!("it has the lock") };
    // The hold ends before the waiter looks.
    hold.lose(LossReason::Gone);
    remove(&hold, share_id);
    table.on_end(&hold);
    assert!(table.is_idle());
    assert!(!second.waits_again(want(), now()), "nobody would call it here");
}

/// CPU time that `run` costs the thread, in the best of three runs.
#[cfg(unix)]
fn cpu(mut run: impl FnMut()) -> Duration {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.try_into().expect("not negative"), time.tv_nsec.try_into().expect("not negative"))
    };
    let runs = (0..3).map(|_| {
        let began = now();
        run();
        now().saturating_sub(began)
    });
    runs.min().expect("three")
}

/// Asserts that eight times the work costs less than 24 times the time. A quadratic cost would be 64 times.
#[cfg(unix)]
fn is_linear(what: &str, run: impl Fn(usize)) {
    let (few, many) = (cpu(|| run(2_000)), cpu(|| run(16_000)));
    assert!(many < few * 24, "{what}: {few:?} for 2,000, {many:?} for 16,000");
}

#[cfg(unix)]
#[test]
fn nothing_costs_more_the_more_wait_or_share() {
    is_linear("waiters that give up", |many| {
        let table = table();
        let waiters: Vec<_> = (0..many).map(|_| enter(&table, Mode::Write)).collect();
        waiters.into_iter().rev().for_each(|waiter| drop(leave(waiter)));
        assert!(table.is_idle());
    });
    is_linear("readers that come and go, and one who waits for itself", |many| {
        let (table, at) = (table(), now());
        let (hold, _) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
        let (waits, owner) = (enter(&table, Mode::Read), OwnerId::new());
        let shares: Vec<_> =
            (0..many).map(|_| table.join(key().hashed_name(), want(), at).expect("it is open").1).collect();
        for share_id in shares.into_iter().rev() {
            assert!(!waits.waits_for(owner, at));
            hold.next(at);
            remove(&hold, share_id);
        }
        leave(waits);
    });
    is_linear("acquisitions that ask once, all at the same time", |many| {
        let table = table();
        let extra_requests: Vec<_> = (0..many).map(|_| try_enter(&table, Mode::Write).expect("it is free")).collect();
        for (n, extra) in extra_requests.iter().enumerate() {
            sends(extra, n as u64);
        }
        extra_requests.into_iter().rev().for_each(|extra| drop(leave(extra)));
        assert!(table.is_idle());
    });
    is_linear("readers with leases of their own", |many| {
        let (table, at) = (table(), now());
        let (hold, _) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
        for n in 0..many {
            let wants = ShareRequest { lease: LEASE / 2 + Duration::from_micros(n as u64), ..want() };
            table.join(key().hashed_name(), wants, at).expect("it is open");
            hold.next(at);
        }
    });
    is_linear("guards of one hold that are watched, each and all", |many| {
        let (table, at) = (table(), now());
        let (hold, first) = grant(&enter(&table, Mode::Read), 1, Mode::Read, 1000, 1);
        let mut watches = Vec::new();
        for _ in 0..many {
            let (_, share_id) = table.join(key().hashed_name(), want(), at).expect("it is open");
            watches.extend([first, share_id].map(|share_id| Watch::of(&hold, share_id)));
            hold.next(at);
        }
        hold.lose(LossReason::Forced);
        assert!(watches.iter().all(|watch| watch.state() == HoldState::Lost(LossReason::Forced)));
    });
    is_linear("readers that are let in together", |many| {
        let table = table();
        let first = enter(&table, Mode::Read);
        let mut others: Vec<_> = (0..many).map(|_| enter(&table, Mode::Read)).collect();
        grant(&first, 1, Mode::Read, 1000, 1);
        assert!(others.iter_mut().all(|other| matches!(signal_of(other), Some(Wake::Handed(..)))));
    });
}

#[test]
fn claim_whose_first_renewal_would_come_too_late_is_not_enough() {
    let sent = now();
    let claim = |remaining| NewHold {
        cache: None,
        granting: GrantIdentity {
            id: id(1),
            mode: Mode::Write,
            token: FencingToken::from_wire(1).expect("small"),
            tokens: 1,
        },
        grant: answer(sent, remaining, secs(3)),
        share: want().from(sent),
        in_doubt_requests: InDoubt::default(),
        share_until: None,
        is_claim: true,
        jitter: Jitter::of(0),
    };
    assert!(claim(secs(3)).has_enough(sent, Duration::from_millis(5)));
    assert!(claim(secs(3)).has_enough(sent, secs(1)));
    // 0.5 s are left by the local clock, and the first renewal comes after 0.9 s.
    assert!(!claim(secs(3)).has_enough(sent, Duration::from_millis(2500)));
    let granted = NewHold { is_claim: false, ..claim(secs(3)) };
    assert!(granted.has_enough(sent, Duration::from_millis(2500)), "a lease is renewed in time by its options");
}
