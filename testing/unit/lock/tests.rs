//! Events in, effects out: no runtime, no clock.

mod cached;
mod requesters;
mod stages;
mod threads;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake as Waking, Waker};
use std::time::Duration;

use Mode::{Read, Write};

use crate::base::attempt::{AcquisitionId, Failure};
use crate::base::backoff::Jitter;
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
use crate::lock::wait::{Handed, Installed, Leaving, RequesterEntry, WaitEntry, Wake};
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
        try_within: POLL_WITHIN / 2,
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

/// Takes the requester from the waiter whose task it is.
fn carried(entry: &mut WaitEntry) -> RequesterEntry {
    entry.take_requester().expect("its side had no request")
}

/// Adds an acquisition whose task is the requester of its side.
fn enter_first(table: &Arc<Table>, mode: Mode) -> (RequesterEntry, WaitEntry) {
    let mut entry = enter(table, mode);
    (carried(&mut entry), entry)
}

/// Adds acquisitions. The task of the first one is the requester of their side.
fn enter_all<const N: usize>(table: &Arc<Table>, mode: Mode) -> (RequesterEntry, [WaitEntry; N]) {
    let mut entries = [0; N].map(|_| enter(table, mode));
    (carried(&mut entries[0]), entries)
}

/// Lets the background look at a requester that is not polled: it is woken, and then it is stalled.
fn requester_stalls(table: &Table) {
    for looks in 1..=2 {
        table.deadlines.look_for_stalled(now().after(POLL_WITHIN * looks));
    }
}

/// Returns the requester that the task of this waiter is from now on.
fn asked(waiter: &mut WaitEntry) -> RequesterEntry {
    match signal_of(waiter) {
        Some(Wake::Requests(requester_id)) => waiter.requester(requester_id),
        other => panic!("{other:?}"),
    }
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

/// Sends a copy of the request of a side.
fn sends(requester: &RequesterEntry, n: u64) -> Option<AcquisitionId> {
    requester.begin_attempt(|| Pending::new(id(n))).map(|begun| begun.id)
}

/// Grants the request of a side to the waiter whose task has sent it, as the server would.
fn grant(requester: &RequesterEntry, n: u64, mode: Mode, token: u64, tokens: u64) -> (Arc<Hold>, ShareId) {
    taken(granted(requester, n, mode, token, tokens))
}

/// Returns the hold and the share of the waiter that takes the share at once.
fn taken(installed: Installed) -> (Arc<Hold>, ShareId) {
    match installed {
        Installed::Hold(hold, Some(share_id)) => (hold, share_id),
        other => panic!("{other:?}"),
    }
}

fn read_hold(table: &Arc<Table>) -> (Arc<Hold>, ShareId) {
    grant(&enter_first(table, Read).0, 1, Read, 1000, 1)
}

/// Returns the hold of a writer that hands it to nobody, because it has one token.
fn write_hold(table: &Arc<Table>) -> (Arc<Hold>, ShareId) {
    grant(&enter_first(table, Write).0, 1, Write, 1000, 1)
}

fn join(table: &Arc<Table>) -> ShareId {
    table.join(key().hashed_name(), want(), now()).expect("it is open").1
}

fn granted(requester: &RequesterEntry, n: u64, mode: Mode, token: u64, tokens: u64) -> Installed {
    let now = now();
    sends(requester, n);
    let (installed, pending) = requester.on_grant(new_hold(n, mode, (token, tokens), now), now);
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
    entry.leave(now())
}

/// Number of the waiter that takes shares in these tests.
const WAITER: WaiterId = WaiterId(99);

fn accept(hold: &Hold, share_id: ShareId, share: Share, since: Moment, now: Moment) -> Accepted {
    hold.accept(WAITER, (share_id, share), since, now)
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

/// Returns the share that a waiter was handed.
fn handed(entry: &mut WaitEntry) -> (Arc<Hold>, ShareId) {
    match signal_of(entry) {
        Some(Wake::Handed(Handed { hold, share_id, .. })) => (hold, share_id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hold_that_is_being_converted_is_renewed_and_not_lost_by_the_answer() {
    let table = table();
    let (hold, share_id) = write_hold(&table);
    let now = now();
    hold.on_no_answer(now);
    assert!(hold.begin_conversion(now));
    hold.send_conversion(LEASE, now);
    let soon = now.after(secs(1));
    assert!(hold.begin_renewal(soon, now).is_some(), "it stands if the conversion is refused");
    hold.on_unknown(LossReason::Gone);
    assert!(hold.is_live(), "the server may have converted it");
    hold.refuse_conversion(now);
    assert!(looked_at(&hold) <= now, "the background looks now");
    assert_eq!(hold.state_of(share_id), HoldState::Unconfirmed, "nobody has answered for it");
    assert!(hold.begin_renewal(soon, now).is_some(), "it is asked for again");
}

#[test]
fn hold_that_no_request_can_have_converted_is_lost_by_the_answer() {
    let table = table();
    let (hold, share_id) = write_hold(&table);
    let now = now();
    assert!(hold.begin_conversion(now));
    hold.send_conversion(LEASE, now);
    hold.cancel_conversion();
    hold.on_unknown(LossReason::Gone);
    assert_eq!(hold.state_of(share_id), HoldState::Lost(LossReason::Gone));
}

#[test]
fn newer_grant_ends_an_older_hold_that_it_conflicts_with_in_whichever_order_they_are_told() {
    for writer_is_first in [false, true] {
        let table = table();
        let ((reader, _), (writer, _)) = (enter_first(&table, Read), enter_first(&table, Write));
        let read = || granted(&reader, 1, Read, 1000, 1);
        let early = (!writer_is_first).then(read);
        let (write, _) = grant(&writer, 2, Write, 2000, 1);
        match early.unwrap_or_else(read) {
            Installed::Hold(read, _) => assert!(!writer_is_first && !read.is_live()),
            // Told late, it is no hold, so no guard begins with a loss.
            other => assert!(writer_is_first && matches!(other, Installed::Over), "{other:?}"),
        }
        assert!(write.is_live());
    }
}

#[test]
fn hold_that_is_over_does_not_come_back() {
    let table = table();
    let (hold, guard) = read_hold(&table);
    let (requester, mut reader) = enter_first(&table, Read);
    let (share_id, _) = hold.begin_recheck(want().from(now()), now()).expect("it may be joined");
    hold.lose(LossReason::Forced);
    remove(&hold, guard);
    table.on_end(&hold);
    let joined = Handed { hold: Arc::clone(&hold), share_id, grant: None };
    assert!(requester.on_joined(joined, now()).is_ok_and(|pending| pending.is_none()));
    assert!(table.holds(&key()).is_empty());
    let (_, share_id) = handed(&mut reader);
    assert!(matches!(accept(&hold, share_id, want().from(now()), now(), now()), Accepted::Over));
    remove(&hold, share_id);
    assert!(table.is_idle());
}

#[test]
fn hold_is_handed_past_no_request_that_came_before() {
    let table = table();
    let (requester, _first) = enter_first(&table, Write);
    sends(&requester, 1);
    let (hold, share_id) = adopt(&table);
    let mut later = enter(&table, Write);
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    table.on_end(&hold);
    assert!(signal_of(&mut later).is_none(), "it is the turn of the first");
    assert_eq!(sends(&requester, 2), Some(id(1)));
}

/// Returns the hold of a ticket, which the process takes over although it waits for the lock.
fn adopt(table: &Arc<Table>) -> (Arc<Hold>, ShareId) {
    table.adopt(&key(), new_hold(9, Write, (900, 64), now()), now()).expect("it is in time")
}

#[test]
fn writer_whose_time_is_over_hands_nothing_on_and_is_told() {
    let table = table();
    let (requester, [_, mut second]) = enter_all(&table, Write);
    let (hold, share_id) = grant(&requester, 1, Write, 1000, 3);
    let over = now();
    let accepted = accept(&hold, share_id, Share { ends: over, ..want().from(over) }, over, over);
    assert!(matches!(accepted, Accepted::Taken(_)), "{accepted:?}");
    assert_eq!(remove(&hold, share_id), ShareRemoved::LastLate(LossReason::MaxHold));
    assert!(signal_of(&mut second).is_none());
}

/// Returns a hold that is handed to a writer who wants a longer lease than the hold was granted for, the wants of this
/// writer, and the time since which it waits for a renewal.
fn waits_with_too_little_left() -> (Arc<Hold>, ShareId, ShareRequest, Moment) {
    let table = table();
    let long = ShareRequest { lease: LEASE * 6, ..want() };
    let (requester, _) = enter_first(&table, Write);
    let mut second = table.enter(&key(), Write, long, now());
    let (hold, share_id) = grant(&requester, 1, Write, 1000, 3);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    let (_, share_id) = handed(&mut second);
    let since = now();
    let accepted = accept(&hold, share_id, long.from(since), since, since);
    assert!(matches!(accepted, Accepted::Short { is_late: false, .. }), "{accepted:?}");
    (hold, share_id, long, since)
}

#[test]
fn renewal_for_a_waiter_with_too_little_left_serves_its_guard() {
    let (hold, share_id, long, sent) = waits_with_too_little_left();
    assert_eq!(hold.begin_renewal(sent, sent), Some(LEASE * 6), "for all that it wants");
    hold.on_renewed(answer(sent, LEASE * 6, LEASE * 6), sent);
    assert!(matches!(accept(&hold, share_id, long.from(sent), sent, sent), Accepted::Taken(_)));
    assert!(hold.begin_renewal(sent.after(LEASE), sent).is_none(), "it was renewed for the guard, not for the offer");
    assert!(hold.begin_renewal(sent.after(LEASE * 3), sent).is_some());
}

#[test]
fn guard_starts_with_what_an_answer_leaves_that_was_long_on_its_way() {
    let (hold, share_id, long, since) = waits_with_too_little_left();
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
    let (hold, share_id) = read_hold(&table);
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

/// A hold is renewed for long. The answer to a shorter renewal takes long, so by the local clock alone it is open whether
/// the server grants less than before.
#[test]
fn deadline_moves_back_by_the_clock_of_the_server_however_long_its_answer_took() {
    const LEFT: Duration = LEASE.saturating_mul(5);
    let server = |seconds| ServerTime::from_micros(1_000_000_000).after(secs(seconds));
    let renewed = |granted, answered| {
        let (hold, _) = write_hold(&table());
        let sent = now();
        hold.on_renewed(answer_at(sent, LEASE * 6, LEASE * 6, granted), sent);
        let (deadline, sent) = (hold.deadline(), sent.after(secs(1)));
        let late = sent.after(LEASE);
        assert!(sent.after(LEFT) < deadline && deadline < late.after(LEFT));
        hold.on_renewed(answer_at(sent, LEFT, LEASE, answered), late);
        (hold.deadline(), deadline, sent.after(LEFT))
    };
    // The server read its clock soon after the request. It may let others in eight seconds sooner than it had granted.
    let (after, _, is_over) = renewed(server(0), server(2));
    assert!(after <= is_over, "it may be over on the server, and another process inside");
    let (after, before, _) = renewed(server(0), server(10));
    assert_eq!(after, before, "the server keeps what it had granted");
    let (after, before, _) = renewed(server(10), server(9));
    assert_eq!(after, before, "a request that was carried out before it knows nothing of it");
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
    let (hold, _) = read_hold(&table);
    let sent = now();
    assert!(hold.begin_recheck(want().from(sent), sent).is_some());
    // The server has lost its last renewal, and was slow to answer with the rest.
    let (is_held, _) = hold.on_rechecked(answer(sent, secs(1), secs(1)), Some(sent.after(LEASE)), sent.after(secs(2)));
    assert!(!is_held);
}

#[test]
fn short_renewal_counts_for_all_that_a_longer_one_without_an_answer_was_granted() {
    let (hold, _, _, since) = waits_with_too_little_left();
    assert_eq!(hold.begin_renewal(since, since), Some(LEASE * 6));
    hold.on_no_answer(since);
    let sent = since.after(secs(1));
    let left = LEASE * 6 - secs(1);
    hold.on_renewed(answer(sent, left, secs(1)), sent);
    assert!(hold.deadline() > sent.after(LEASE * 5), "the server has granted as much as was asked for");
}

/// A claim counts from an earlier answer, so the server may have more left from then on than the claim's length.
#[test]
fn claim_counts_from_when_it_was_granted() {
    let table = table();
    let (requester, _) = enter_first(&table, Write);
    sends(&requester, 1);
    let sent = now();
    let told = sent.after(LEASE / 2);
    let granted =
        NewHold { grant: answer(sent, LEASE * 3 / 2, LEASE), is_claim: true, ..new_hold(1, Write, (5, 1), told) };
    let Installed::Hold(hold, _) = requester.on_grant(granted, told).0 else { panic!("it is a hold") };
    assert!(hold.deadline() > told.after(LEASE * 9 / 10));
}

#[test]
fn share_of_a_waiter_that_is_not_polled_is_over_with_its_offer() {
    let (hold, share_id, long, since) = waits_with_too_little_left();
    assert!(hold.begin_renewal(since, since).is_some());
    hold.on_renewed(answer(since, LEASE * 6, LEASE * 6), since);
    let later = since.after(secs(4));
    hold.next(later);
    assert!(matches!(accept(&hold, share_id, long.from(later), since, later), Accepted::Over));
}

#[test]
fn what_others_share_is_left_without_a_clock() {
    let table = table();
    let (hold, first) = read_hold(&table);
    hold.queue_moment.store(0, Ordering::Relaxed);
    assert!(hold.leave_quietly(join(&table)));
    assert_eq!(looked_at(&hold), Moment::from_nanos(0), "it is not scheduled again");
    let watched = join(&table);
    let _watch = Watch::of(&hold, watched);
    assert!(!hold.leave_quietly(watched), "its watcher has to hear of it");
    assert_eq!(remove(&hold, watched), ShareRemoved::Shared);
    assert!(!hold.leave_quietly(first), "nobody else has it");
    assert_eq!(hold.usage().0, 1);
}

#[test]
fn hold_ends_with_those_who_are_left_when_the_last_one_leaves_early() {
    let table = table();
    let (hold, first) = read_hold(&table);
    let (soon, later) = (now().after(secs(1)), now().after(LEASE / 4));
    let lasts = join(&table);
    let share = Share { ends: soon, ..want().from(now()) };
    assert!(matches!(accept(&hold, first, share, now(), now()), Accepted::Taken(_)));
    hold.queue_moment.store(later.as_nanos(), Ordering::Relaxed);
    assert!(hold.leave_quietly(lasts), "another one has it");
    assert!(looked_at(&hold) <= soon, "the background looks when the other one's time is over");
}

/// Counts its drops. A drop under the mutex of the cell counts as very many.
struct Ends(Weak<Cell<Hold>>, Arc<AtomicUsize>);

impl Waking for Ends {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Ends {
    fn drop(&mut self) {
        let is_free = self.0.upgrade().is_none_or(|cell| cell.try_ask_heard(|_, _| ()).is_some());
        self.1.fetch_add(if is_free { 1 } else { 1000 }, Ordering::Relaxed);
    }
}

#[test]
fn task_that_waits_no_more_is_dropped_when_the_mutex_is_free() {
    let (table, ended) = (table(), Arc::<AtomicUsize>::default());
    let (requester, [first, second]) = enter_all(&table, Write);
    let task = || Waker::from(Arc::new(Ends(Arc::downgrade(first.cell()), Arc::clone(&ended))));
    assert!(requester.poll_signal(&Context::from_waker(&task())).is_pending());
    assert!(second.poll_wake(None, &Context::from_waker(&task())).is_pending());
    assert!(second.poll_wake(None, &Context::from_waker(&task())).is_pending());
    assert_eq!(ended.load(Ordering::Relaxed), 1, "the task before");
    requester.end(now());
    assert_eq!(ended.load(Ordering::Relaxed), 2);
    leave(second);
    assert_eq!(ended.load(Ordering::Relaxed), 3);
}

#[test]
fn cell_goes_with_its_last_hold_and_guard_even_if_a_hold_was_converted() {
    let table = table();
    let (old, old_share) = write_hold(&table);
    let cell = Arc::downgrade(old.cell());
    assert!(old.begin_conversion(now()));
    let granted = NewHold { grant: answer(now(), LEASE, LEASE), ..new_hold(2, Read, (1001, 1), now()) };
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
    let (requester, [_, mut second]) = enter_all(&table, Write);
    let (hold, share_id) = grant(&requester, 1, Write, 1000, 3);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    let (_, share_id) = handed(&mut second);
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
        let waiters: Vec<_> = (0..many).map(|_| enter(&table, Write)).collect();
        waiters.into_iter().rev().for_each(|waiter| drop(leave(waiter)));
        assert!(table.is_idle());
    });
    is_linear("readers that come and go, and one who waits for itself", |many| {
        let (table, at) = (table(), now());
        let (hold, _) = read_hold(&table);
        let (waits, owner) = (enter(&table, Read), OwnerId::new());
        let shares: Vec<_> = (0..many).map(|_| join(&table)).collect();
        for share_id in shares.into_iter().rev() {
            assert!(!waits.waits_for(owner, at));
            hold.next(at);
            remove(&hold, share_id);
        }
        leave(waits);
    });
    is_linear("readers with leases of their own", |many| {
        let (table, at) = (table(), now());
        let (hold, _) = read_hold(&table);
        for n in 0..many {
            let wants = ShareRequest { lease: LEASE / 2 + Duration::from_micros(n as u64), ..want() };
            table.join(key().hashed_name(), wants, at).expect("it is open");
            hold.next(at);
        }
    });
    is_linear("guards of one hold that are watched, each and all", |many| {
        let (table, at) = (table(), now());
        let (hold, first) = read_hold(&table);
        let mut watches = Vec::new();
        for _ in 0..many {
            let share_id = join(&table);
            watches.extend([first, share_id].map(|share_id| Watch::of(&hold, share_id)));
            hold.next(at);
        }
        hold.lose(LossReason::Forced);
        assert!(watches.iter().all(|watch| watch.state() == HoldState::Lost(LossReason::Forced)));
    });
}

#[cfg(unix)]
#[test]
fn nothing_costs_more_the_more_are_refused_or_let_in() {
    is_linear("tries that are refused together", |many| {
        let table = table();
        let mut tries: Vec<_> = (0..many).map(|_| try_enter(&table, Read).expect("it is free")).collect();
        let requester = carried(&mut tries[0]);
        sends(&requester, 1);
        requester.deny_tries(now());
        assert!(tries.iter_mut().all(|entry| matches!(signal_of(entry), Some(Wake::Denied))));
        tries.into_iter().rev().for_each(|entry| drop(leave(entry)));
        assert!(table.is_idle());
    });
    is_linear("readers and writers whose requests fail", |many| {
        let table = table();
        let sides = [Read, Write].map(|mode| {
            let (requester, first) = enter_first(&table, mode);
            let waiters: Vec<_> = (0..many).map(|_| enter(&table, mode)).collect();
            sends(&requester, 1);
            requester.fail_waiters(Failure::Unreplicated { asked: 1, acknowledged: 0, node: None }, now());
            (waiters, first)
        });
        let waiters = sides.into_iter().rev().flat_map(|(waiters, first)| waiters.into_iter().chain([first]));
        waiters.for_each(|waiter| drop(leave(waiter)));
        assert!(table.is_idle());
    });
    is_linear("readers that are let in together", |many| {
        let table = table();
        let (requester, _) = enter_first(&table, Read);
        let mut others: Vec<_> = (0..many).map(|_| enter(&table, Read)).collect();
        grant(&requester, 1, Read, 1000, 1);
        assert!(others.iter_mut().all(|other| matches!(signal_of(other), Some(Wake::Handed(..)))));
    });
}

#[test]
fn claim_whose_first_renewal_would_come_too_late_is_not_enough() {
    let sent = now();
    let claim = |remaining| NewHold {
        grant: answer(sent, remaining, secs(3)),
        is_claim: true,
        ..new_hold(1, Write, (1, 1), sent)
    };
    assert!(claim(secs(3)).enough_until(Duration::from_millis(5)) > sent);
    assert!(claim(secs(3)).enough_until(secs(1)) > sent);
    // 0.5 s are left by the local clock, and the first renewal comes after 0.9 s.
    assert!(claim(secs(3)).enough_until(Duration::from_millis(2500)) < sent);
    let granted = NewHold { is_claim: false, ..claim(secs(3)) };
    let until = granted.enough_until(Duration::from_millis(2500));
    assert!(until > sent, "a lease is renewed in time by its options");
}
