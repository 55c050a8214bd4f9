//! Requests of a side: the tasks that send them, and the waiters that they are for.

use super::*;
use crate::base::attempt::{Acquired, Answered, NodeId};
use crate::lock::side::{Awaits, RequesterSignal, SideOutage};
use crate::lock::state::{FirstGrant, RequestTerms};

fn signal(requester: &RequesterEntry) -> Option<RequesterSignal> {
    match requester.poll_signal(&Context::from_waker(Waker::noop())) {
        Poll::Ready(signal) => Some(signal),
        Poll::Pending => None,
    }
}

/// Answers the newest copy of a request.
pub(super) fn answers(requester: &RequesterEntry, value: Acquired) {
    let answered = Answered { sent: now(), server: ServerTime::default(), node: NodeId::of("a"), value };
    requester.end_attempt(&Ok(answered), |_| ()).expect("it is the requester");
    requester.on_outage(None);
}

pub(super) fn queued() -> Acquired {
    Acquired::Queued { retry_in: secs(1), is_cached: false, holder: None }
}

pub(super) fn unreplicated() -> Failure {
    Failure::Unreplicated { asked: 1, acknowledged: 0, node: None }
}

fn is_id(pending: Option<Pending>, n: u64) -> bool {
    pending.is_some_and(|pending| pending.id == id(n))
}

#[test]
fn request_goes_on_when_the_task_that_sends_it_is_dropped() {
    let table = table();
    let (requester, [first, mut second]) = enter_all(&table, Write);
    sends(&requester, 1);
    assert!(leave(first).pending.is_none());
    let next = asked(&mut second);
    assert!(sends(&requester, 2).is_none() && requester.end(now()).is_none());
    assert_eq!(sends(&next, 2), Some(id(1)));
    let (installed, pending) = next.on_grant(new_hold(1, Write, (1000, 1), now()), now());
    taken(installed);
    assert!(
        pending.is_some_and(|pending| pending.copies.may_arrive(now())),
        "the copy of the dropped task is in doubt"
    );
}

#[test]
fn requester_that_ends_while_acquisitions_wait_is_replaced() {
    let table = table();
    let (requester, [first, mut second]) = enter_all(&table, Write);
    sends(&requester, 1);
    leave(first);
    assert!(asked(&mut second).end(now()).is_none());
    let next = asked(&mut second);
    assert_eq!(sends(&next, 2), Some(id(1)));
    assert!(is_id(leave(second).pending, 1));
    assert!(table.is_idle());
}

#[test]
fn last_waiter_that_leaves_takes_the_request() {
    let table = table();
    let (requester, [first, second, third]) = enter_all(&table, Write);
    sends(&requester, 1);
    for other in [second, third] {
        assert!(leave(other).pending.is_none() && signal(&requester).is_none());
    }
    let left = leave(first).pending.expect("no other waits");
    assert!(left.id == id(1) && left.copies.in_flight() == 0 && left.copies.may_arrive(now()));
    assert_eq!(signal(&requester), Some(RequesterSignal::Stop));
    assert!(requester.end(now()).is_none() && table.is_idle());
}

#[test]
fn request_stays_on_its_side_while_the_process_has_the_lock() {
    let table = table();
    let (requester, [first, mut second]) = enter_all(&table, Write);
    sends(&requester, 1);
    let (hold, share_id) = adopt(&table);
    assert!(leave(first).pending.is_none());
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    assert!(signal_of(&mut second).is_none());
    table.on_end(&hold);
    assert_eq!(sends(&asked(&mut second), 2), Some(id(1)));
}

#[test]
fn requester_that_is_polled_goes_on_asking() {
    let table = table();
    let (requester, [_first, mut second]) = enter_all(&table, Read);
    sends(&requester, 1);
    for looks in 1..=4 {
        let woken = Arc::new(Woken::default());
        assert!(requester.poll_stop(&Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
        table.deadlines.look_for_stalled(now().after(POLL_WITHIN * looks));
        assert!(woken.0.load(Ordering::SeqCst) && signal_of(&mut second).is_none());
        assert_eq!(table.deadlines.requesters(), 1, "it is looked at again");
    }
    leave(second);
    table.deadlines.look_for_stalled(now().after(POLL_WITHIN * 6));
    assert_eq!(table.deadlines.requesters(), 0, "only the waiter whose task it is depends on it");
    assert!(signal(&requester).is_none());
}

/// Returns two waiters, the first of which was not polled in time, the requester that its task was, and the next requester,
/// whose copy of the request is under way.
fn stalled(table: &Arc<Table>) -> ([RequesterEntry; 2], [WaitEntry; 2]) {
    let (requester, mut waiters) = enter_all(table, Write);
    sends(&requester, 1);
    requester_stalls(table);
    let next = asked(&mut waiters[1]);
    assert_eq!(sends(&next, 2), Some(id(1)));
    ([requester, next], waiters)
}

fn granted_late(requester: &RequesterEntry) -> Installed {
    requester.on_grant(new_hold(1, Write, (1000, 64), now()), now()).0
}

#[test]
fn stalled_waiter_gives_up_its_place_and_has_no_grant_of_its_own() {
    let table = table();
    let ([requester, next], [mut first, _second]) = stalled(&table);
    assert!(matches!(granted_late(&requester), Installed::NotMine), "its answer comes late");
    assert!(matches!(signal_of(&mut first), Some(Wake::PlaceLost)), "it is polled again");
    let mut again = enter(&table, Write);
    let (hold, share_id) = taken(granted_late(&next));
    assert!(signal_of(&mut again).is_none());
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    handed(&mut again);
    assert!(leave(first).pending.is_none());
}

#[test]
fn write_try_asks_while_a_hold_of_its_process_is_being_released() {
    let table = table();
    let (hold, share_id) = grant(&enter_first(&table, Write).0, 9, Write, 1000, 64);
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    assert!(try_enter(&table, Write).expect("no guard is left").is_requester());
}

#[test]
fn waiter_that_is_not_polled_keeps_the_lock_from_no_other() {
    let table = table();
    let ([_, next], [mut first, _second]) = stalled(&table);
    let (hold, share_id) = taken(granted_late(&next));
    let mut third = enter(&table, Write);
    assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    let (hold, share_id) = handed(&mut third);
    assert!(matches!(signal_of(&mut first), Some(Wake::PlaceLost)), "it is polled again");
    assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
}

#[test]
fn first_waiter_gets_the_lock_whose_request_the_task_of_another_has_sent() {
    let table = table();
    let (requester, [_, mut first]) = enter_all(&table, Write);
    let _reader = enter(&table, Read);
    let (lost, share_id) = grant(&requester, 1, Write, 1, 3);
    assert!(matches!(remove(&lost, share_id), ShareRemoved::HandedOver(_)));
    let (_, share_id) = handed(&mut first);
    lost.lose(LossReason::Gone);
    table.on_end(&lost);
    let (requester, mut later) = enter_first(&table, Write);
    assert!(first.waits_again(want(), now()) && !first.is_requester());
    remove(&lost, share_id);
    assert!(matches!(granted(&requester, 2, Write, 1000, 1), Installed::Hold(_, None)));
    assert!(!Arc::ptr_eq(&handed(&mut first).0, &lost));
    assert!(signal_of(&mut later).is_none());
}

#[test]
fn readers_that_wait_share_the_hold_that_one_of_them_has_got() {
    let table = table();
    let (requester, mut readers) = enter_all::<3>(&table, Read);
    sends(&requester, 1);
    answers(&requester, queued());
    let Installed::Hold(hold, None) = granted(&requester, 1, Read, 1000, 1) else { panic!("it is a hold") };
    assert!(readers.iter_mut().all(|reader| Arc::ptr_eq(&handed(reader).0, &hold)));
}

/// Its task looks for the requester first, and the requester withdraws the request.
#[test]
fn reader_that_joins_before_its_task_goes_on_with_the_request_withdraws_it() {
    let table = table();
    let (old, old_share) = write_hold(&table);
    let (requester, [first, mut second]) = enter_all(&table, Read);
    sends(&requester, 7);
    leave(first);
    assert!(old.begin_conversion(now()));
    let (new, _) = old.convert_into(new_hold(2, Read, (1001, 1), now()), now()).expect("there is enough left of it");
    old.note_share_converted(old_share);
    let requester = asked(&mut second);
    assert!(sends(&requester, 8).is_none());
    assert_eq!(signal(&requester), Some(RequesterSignal::Stop));
    assert!(is_id(requester.end(now()), 7));
    assert!(Arc::ptr_eq(&handed(&mut second).0, &new));
}

#[test]
fn grant_with_too_little_time_is_not_taken_at_once() {
    let table = table();
    let (requester, mut waits) = enter_first(&table, Write);
    sends(&requester, 1);
    let claim =
        NewHold { grant: answer(now(), secs(1), LEASE), is_claim: true, ..new_hold(1, Write, (1000, 1), now()) };
    assert!(matches!(requester.on_grant(claim, now()).0, Installed::Hold(_, None)));
    let Some(Wake::Handed(Handed { hold, share_id, grant: Some(FirstGrant { enough_until, .. }) })) =
        signal_of(&mut waits)
    else {
        panic!("it has a share")
    };
    assert!(enough_until < now());
    let accepted = accept(&hold, share_id, want().from(now()), now(), now());
    assert!(matches!(accepted, Accepted::Short { .. }), "{accepted:?}");
}

/// The renewal of a share that its waiter has not taken requests a short lease. The command-line program waits for
/// `confirmed` and then relies on the whole lease.
#[test]
fn share_is_confirmed_when_the_granted_lease_covers_it() {
    let table = table();
    let (requester, mut waits) = enter_first(&table, Write);
    sends(&requester, 1);
    answers(&requester, queued());
    sends(&requester, 1);
    let claim = answer(now(), secs(3), secs(3));
    let installed =
        requester.on_grant(NewHold { grant: claim, is_claim: true, ..new_hold(1, Write, (1000, 1), now()) }, now()).0;
    assert!(matches!(installed, Installed::Hold(_, None)), "{installed:?}");
    let Some(Wake::Handed(Handed { hold, share_id, grant: Some(FirstGrant { share, .. }) })) = signal_of(&mut waits)
    else {
        panic!("it has a share")
    };
    let asked = hold.begin_renewal(now().after(secs(1)), now()).expect("a claim is due");
    assert!(asked <= secs(3), "{asked:?}");
    hold.on_renewed(answer(now(), asked, asked), now());
    assert!(matches!(hold.accept_granted((share_id, share), now()), Accepted::Taken(_)));
    assert!(!hold.is_confirmed(&hold.share(share_id)));
    let asked = hold.begin_renewal(now().after(secs(1)), now()).expect("the whole lease is due");
    hold.on_renewed(answer(now(), asked, asked), now());
    assert!(hold.is_confirmed(&hold.share(share_id)));
}

/// The server counts the lease from the request. A fixed lease that began later here would be renewed.
#[test]
fn share_of_a_grant_begins_with_the_request_however_late_it_is_taken() {
    let table = table();
    let fixed = ShareRequest { max_hold: LEASE, ..want() };
    let mut waits = table.enter(&key(), Write, fixed, now());
    let requester = carried(&mut waits);
    sends(&requester, 1);
    answers(&requester, queued());
    sends(&requester, 1);
    let sent = now();
    let installed = requester.on_grant(new_hold(1, Write, (1000, 1), sent), now()).0;
    assert!(matches!(installed, Installed::Hold(_, None)), "{installed:?}");
    let Some(Wake::Handed(Handed { hold, share_id, grant: Some(FirstGrant { share, .. }) })) = signal_of(&mut waits)
    else {
        panic!("it has a share")
    };
    assert!(matches!(hold.accept_granted((share_id, share), now()), Accepted::Taken(_)));
    assert_eq!(hold.share(share_id).ends, sent.after(LEASE));
}

#[test]
fn request_is_for_what_the_first_waiter_wants_and_waits_if_a_waiter_does() {
    let table = table();
    let terms = |requester: &RequesterEntry| -> RequestTerms {
        requester.begin_attempt(|| Pending::new(id(1))).expect("a waiter is there").terms
    };
    let mut once = try_enter(&table, Read).expect("it is free");
    let requester = carried(&mut once);
    assert!(!terms(&requester).waits);
    let patient = table.enter(&key(), Read, ShareRequest { lease: LEASE * 6, ..want() }, now());
    assert!(terms(&requester).waits && terms(&requester).lease() == LEASE);
    answers(&requester, queued());
    leave(patient);
    assert!(!terms(&requester).waits && terms(&requester).is_recorded, "the server has a place for it");
}

#[test]
fn write_try_is_refused_while_an_acquisition_of_the_process_waits() {
    for mode in [Read, Write] {
        let table = table();
        let waits = enter(&table, mode);
        assert!(try_enter(&table, Write).is_none());
        assert_eq!(try_enter(&table, Read).is_some(), mode == Read);
        drop(waits);
    }
}

#[test]
fn refusal_ends_the_tries_that_came_before_the_request() {
    let table = table();
    let (requester, mut patient) = enter_first(&table, Read);
    let mut early = try_enter(&table, Read).expect("no writer waits");
    assert_eq!(signal(&requester), Some(RequesterSignal::AskAtOnce));
    sends(&requester, 1);
    let mut late = try_enter(&table, Read).expect("no writer waits");
    requester.deny_tries(now());
    assert!(matches!(signal_of(&mut early), Some(Wake::Denied)));
    assert!(signal_of(&mut patient).is_none() && signal_of(&mut late).is_none());
    assert_eq!(signal(&requester), Some(RequesterSignal::AskAtOnce), "for the other try");
    sends(&requester, 1);
    assert!(signal(&requester).is_none());
    requester.deny_tries(now());
    assert!(matches!(signal_of(&mut late), Some(Wake::Denied)) && signal_of(&mut patient).is_none());
}

#[test]
fn failure_that_the_next_request_may_not_have_ends_only_the_tries() {
    let unknown = Failure::Unknown { arrives_until: now(), source: None };
    for (failure, ends_all) in [(unknown, false), (Failure::NotDone { source: None }, false), (unreplicated(), true)] {
        let table = table();
        let (requester, mut patient) = enter_first(&table, Read);
        let mut once = try_enter(&table, Read).expect("no writer waits");
        sends(&requester, 1);
        let mut late = enter(&table, Read);
        requester.fail_waiters(failure, now());
        assert!(matches!(signal_of(&mut once), Some(Wake::Failed(_))));
        assert_eq!(matches!(signal_of(&mut patient), Some(Wake::Failed(_))), ends_all);
        assert!(!matches!(signal_of(&mut late), Some(Wake::Failed(_))), "the request was not for it");
    }
}

#[test]
fn first_waiter_that_leaves_a_side_without_others_takes_its_request() {
    let table = table();
    let (requester, [first, second]) = enter_all(&table, Write);
    sends(&requester, 1);
    requester.fail_waiters(unreplicated(), now());
    assert_eq!(signal(&requester), Some(RequesterSignal::Stop));
    assert!(requester.end(now()).is_none());
    assert!(is_id(leave(first).pending, 1));
    assert!(leave(second).pending.is_none() && table.is_idle());
}

#[test]
fn request_of_refused_waiters_goes_on_for_an_acquisition_that_comes_before_they_have_left() {
    let table = table();
    let (requester, first) = enter_first(&table, Write);
    sends(&requester, 1);
    requester.fail_waiters(unreplicated(), now());
    let (next, second) = enter_first(&table, Write);
    assert_eq!(sends(&next, 2), Some(id(1)));
    assert!(leave(first).pending.is_none());
    assert!(is_id(leave(second).pending, 1) && table.is_idle());
}

#[test]
fn join_that_ends_the_last_wait_stops_the_requester_which_takes_the_request() {
    let table = table();
    let (old, old_share) = write_hold(&table);
    let (requester, mut reader) = enter_first(&table, Read);
    sends(&requester, 7);
    let woken = Arc::new(Woken::default());
    assert!(requester.poll_stop(&Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    assert!(old.begin_conversion(now()));
    let (new, _) = old.convert_into(new_hold(2, Read, (1001, 1), now()), now()).expect("there is enough left of it");
    old.note_share_converted(old_share);
    assert!(woken.0.load(Ordering::SeqCst) && Arc::ptr_eq(&handed(&mut reader).0, &new));
    assert_eq!(signal(&requester), Some(RequesterSignal::Stop));
    assert!(is_id(requester.end(now()), 7));
}

#[test]
fn reader_that_comes_after_such_a_join_goes_on_with_the_request() {
    let table = table();
    let (old, _) = write_hold(&table);
    let (requester, _reader) = enter_first(&table, Read);
    sends(&requester, 7);
    assert!(old.begin_conversion(now()));
    old.convert_into(new_hold(2, Read, (1001, 1), now()), now()).expect("there is enough left of it");
    let mut later = enter(&table, Read);
    assert_eq!(signal(&requester), Some(RequesterSignal::Stop));
    assert!(requester.end(now()).is_none());
    assert_eq!(sends(&asked(&mut later), 8), Some(id(7)));
    assert!(is_id(leave(later).pending, 7));
}

#[test]
fn share_of_an_older_hold_goes_to_the_first_reader_and_the_request_is_withdrawn() {
    let table = table();
    let (hold, _guard) = read_hold(&table);
    let (requester, [mut first, mut second]) = enter_all(&table, Read);
    sends(&requester, 7);
    let joined = || {
        let (share_id, _) = hold.begin_recheck(want().from(now()), now()).expect("it may be joined");
        Handed { hold: Arc::clone(&hold), share_id, grant: None }
    };
    let pending = requester.on_joined(joined(), now()).expect("it is the requester");
    assert!(pending.as_ref().is_some_and(|pending| pending.copies.may_arrive(now())) && is_id(pending, 7));
    assert!([&mut first, &mut second].into_iter().all(|reader| Arc::ptr_eq(&handed(reader).0, &hold)));
    assert!(requester.on_joined(joined(), now()).is_err(), "it is the requester no more");
}

/// The answer that no writer waits may be older than a writer of this process.
#[test]
fn reader_behind_a_writer_of_the_process_joins_no_older_hold() {
    let table = table();
    let (hold, _guard) = read_hold(&table);
    let (requester, mut first) = enter_first(&table, Read);
    let joined = || {
        let (share_id, _) = hold.begin_recheck(want().from(now()), now()).expect("it may be joined");
        Handed { hold: Arc::clone(&hold), share_id, grant: None }
    };
    let share = joined();
    let _writer = enter(&table, Write);
    let mut second = enter(&table, Read);
    assert!(requester.on_joined(share, now()).expect("it is the requester").is_none());
    assert!(Arc::ptr_eq(&handed(&mut first).0, &hold));
    let requester = asked(&mut second);
    assert!(requester.on_joined(joined(), now()).is_err(), "a writer came before it");
}

#[test]
fn waiters_are_woken_at_the_answer_to_the_copy_under_way() {
    let table = table();
    let (requester, [_first, second]) = enter_all(&table, Write);
    assert!(second.side().awaits() != Awaits::Nothing, "the first answer");
    for _ in 0..2 {
        sends(&requester, 1);
        assert!(second.side().awaits() != Awaits::Nothing);
        let woken = Arc::new(Woken::default());
        assert!(second.poll_wake(None, &Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
        answers(&requester, queued());
        assert!(woken.0.load(Ordering::SeqCst) && second.side().awaits() == Awaits::Nothing);
    }
    requester.on_outage(Some(SideOutage::new(now(), None)));
    assert!(second.side().awaits() == Awaits::Nothing, "the copy before was the last");
}

#[test]
fn requester_leaves_no_task_in_the_cell_of_its_hold() {
    let table = table();
    let (requester, _waits) = enter_first(&table, Write);
    let woken = Arc::new(Woken::default());
    assert!(requester.poll_stop(&Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    let _held = granted(&requester, 1, Write, 1000, 1);
    assert_eq!(Arc::strong_count(&woken), 1, "the cell has it");
}
