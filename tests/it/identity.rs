//! Requests that are sent twice, come late, are repeated after a lost reply, or are overtaken. Such requests change
//! nothing more.
//!
//! A proxy holds the requests, and a copy of one arrives when the case orders it. A case checks the stored state of the
//! server, and the guards of other processes, which must stay valid.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::Fault;
use futures_util::future::join_all;
use redis_rwlock::{Error, FencingToken, HoldState, LossReason, Mode};

use crate::either::{AnyGuard, take, take_for};
use crate::fixture::{Manager, SHORT, ServerFixture, Settings, proxied_on_every_server};
use crate::wait::{soon, until};
use crate::wire::{Copied, Script, arrives, is_applied, is_held};

proxied_on_every_server![
    duplicated_acquire_is_one_hold,
    acquire_retried_after_a_lost_reply_is_one_hold,
    copy_of_an_acquire_within_its_limit_is_the_same_hold,
    late_copy_of_an_acquire_extends_nothing,
    late_copy_of_an_acquire_creates_nothing,
    copy_of_an_acquire_within_its_limit_after_the_release_is_gone_with_the_last_leave,
    acquire_past_its_limit_after_its_cancel_creates_nothing,
    acquire_within_its_limit_after_its_cancel_is_gone_with_the_last_leave,
    acquire_of_a_dead_process_is_over_within_a_lease,
    late_cancel_spares_the_next_hold_of_the_same_manager,
    duplicated_release_ends_one_hold,
    release_retried_after_a_lost_reply_spares_the_next_holder,
    late_release_spares_the_next_holder,
    duplicated_renewal_changes_nothing_more,
    renewal_retried_after_a_lost_reply_keeps_the_hold,
    late_renewal_after_the_release_recreates_nothing,
    late_renewal_after_the_lease_recreates_nothing,
    duplicated_force_ends_no_newer_hold,
    force_retried_after_a_lost_reply_ends_no_newer_hold,
    late_copy_of_a_force_ends_no_newer_hold,
];

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
/// Lease that needs no renewal while a case runs, so that the server's stored state stays as it is.
const LONG: Duration = Duration::from_secs(60);
/// Lease that outlasts a release with a lost first copy, even on a busy machine.
const RENEWED: Duration = Duration::from_secs(4);
/// Response timeout, and so time limit of a request, within which a case can let a copy arrive.
const PATIENT: Duration = Duration::from_secs(2);

/// Acquires the lock in a task of its own.
fn taking(manager: &Manager, name: &str, mode: Mode) -> tokio::task::JoinHandle<AnyGuard> {
    let (manager, name) = (Arc::clone(manager), name.to_owned());
    tokio::spawn(async move { take(&manager, &name, mode).await })
}

async fn holder(f: &ServerFixture, label: &str) -> Manager {
    f.manager_with(Settings { label: label.to_owned(), max_handoffs: 1, ..Settings::lease(LONG) }).await
}

/// Waits until the proxy has carried the fault out.
async fn has_happened(fault: &Fault) {
    until("a fault of the network", async || fault.wait_applied(Duration::ZERO).is_ok()).await;
}

/// A manager with time limits so late that a case can act before them.
async fn patient(f: &ServerFixture) -> Manager {
    let settings =
        Settings { response_timeout: PATIENT, label: "one".to_owned(), max_handoffs: 1, ..Settings::lease(LONG) };
    f.manager_with(settings).await
}

async fn holders(f: &ServerFixture, name: &str) -> Vec<String> {
    f.view(name).await.holders.into_iter().map(|holder| holder.label).collect()
}

/// Asserts that the lock becomes free, and that these tokens and the next one grow.
async fn tokens_go_on(f: &ServerFixture, name: &str, tokens: &[FencingToken]) {
    f.becomes_free(name).await;
    let next = take(&f.manager().await, name, Mode::Write).await;
    let tokens = [tokens, &[next.token()]].concat();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    next.release_unharmed().await;
}

// Acquisitions.

async fn duplicated_acquire_is_one_hold(f: &ServerFixture) {
    for mode in MODES {
        let (manager, name) = (holder(f, "one").await, f.name());
        let twice = f.proxy(&name).duplicate_request(f.requests(Script::Acquire, &name));
        let guard = take(&manager, &name, mode).await;
        has_happened(&twice).await;
        let view = f.view(&name).await;
        assert_eq!((view.holders.len(), view.last_token), (1, Some(guard.token())));
        let token = guard.token();
        guard.release_unharmed().await;
        tokens_go_on(f, &name, &[token]).await;
    }
}

async fn acquire_retried_after_a_lost_reply_is_one_hold(f: &ServerFixture) {
    for mode in MODES {
        let (manager, name) = (holder(f, "one").await, f.name());
        let requests = f.requests(Script::Acquire, &name);
        let cut = f.proxy(&name).cut_after_apply(requests.clone());
        let guard = take(&manager, &name, mode).await;
        has_happened(&cut).await;
        assert_eq!(f.proxy(&name).requests_seen(requests), 2, "it was retried");
        let view = f.view(&name).await;
        assert_eq!((view.holders.len(), view.last_token), (1, Some(guard.token())));
        let token = guard.token();
        guard.release_unharmed().await;
        assert!(f.view(&name).await.is_free(), "one release ends it");
        tokens_go_on(f, &name, &[token]).await;
    }
}

async fn copy_of_an_acquire_within_its_limit_is_the_same_hold(f: &ServerFixture) {
    for mode in MODES {
        let (manager, name, copy) = (patient(f).await, f.name(), Copied::default());
        let reply = f.proxy(&name).hold_reply(copy.first_of(f.requests(Script::Acquire, &name)));
        let taking = taking(&manager, &name, mode);
        is_applied(&reply).await;
        let token = f.view(&name).await.last_token;
        assert_eq!(copy.arrives(f, &name), "granted");
        let view = f.view(&name).await;
        assert_eq!((view.holders.len(), view.last_token), (1, token));
        reply.release();
        let guard = taking.await.expect("no panic");
        assert_eq!(Some(guard.token()), token);
        guard.release_unharmed().await;
        assert!(f.view(&name).await.is_free(), "one release ends it");
    }
}

async fn late_copy_of_an_acquire_extends_nothing(f: &ServerFixture) {
    for mode in MODES {
        let (manager, name, copy) = (holder(f, "one").await, f.name(), Copied::default());
        // The duplicate is only a way to copy the request.
        let twice = f.proxy(&name).duplicate_request(copy.first_of(f.requests(Script::Acquire, &name)));
        let guard = take(&manager, &name, mode).await;
        has_happened(&twice).await;
        copy.is_past_its_limit(f, &name).await;
        let stored = f.stored(&name);
        assert_eq!(copy.arrives(f, &name), "late");
        assert_eq!(f.stored(&name), stored);
        guard.release_unharmed().await;
    }
}

/// Takes the lock by a second copy while the first one is held back, and returns that one.
async fn late_copy_of_an_acquire_creates_nothing(f: &ServerFixture) {
    let case = async |mode: Mode, is_read_meanwhile: bool| {
        let (manager, other, name, copy) =
            (holder(f, "one").await, holder(f, "two").await, f.name(), Copied::default());
        let requests = f.requests(Script::Acquire, &name).and(".one");
        let held = f.proxy(&name).hold_request(copy.first_of(requests));
        let guard = take(&manager, &name, mode).await;
        is_held(&held).await;
        let mut tokens = vec![guard.token()];
        guard.release_unharmed().await;
        let next = if is_read_meanwhile { Some(take(&other, &name, Mode::Read).await) } else { None };
        tokens.extend(next.as_ref().map(AnyGuard::token));
        copy.is_past_its_limit(f, &name).await;
        let stored = f.stored(&name);
        arrives(held);
        assert_eq!(f.stored(&name), stored, "{mode}, read meanwhile: {is_read_meanwhile}");
        if let Some(next) = next {
            assert_eq!(holders(f, &name).await, ["two"]);
            next.release_unharmed().await;
        }
        tokens_go_on(f, &name, &tokens).await;
    };
    let cases = [(Mode::Read, false), (Mode::Read, true), (Mode::Write, false), (Mode::Write, true)];
    join_all(cases.map(|(mode, is_read_meanwhile)| case(mode, is_read_meanwhile))).await;
}

async fn copy_of_an_acquire_within_its_limit_after_the_release_is_gone_with_the_last_leave(f: &ServerFixture) {
    let case = async |mode: Mode, is_held_meanwhile: bool| {
        let (manager, other, name, copy) = (patient(f).await, holder(f, "two").await, f.name(), Copied::default());
        let held = f.proxy(&name).hold_request(copy.first_of(f.requests(Script::Acquire, &name).and(".one")));
        let taking = taking(&manager, &name, mode);
        is_held(&held).await;
        held.cut(); // so that this copy is unaccounted for, and another one is granted
        let guard = taking.await.expect("no panic");
        let mut tokens = vec![guard.token()];
        // Three releases come: the caller's, one of the background at once, and one after the time limit.
        let leaves = || f.proxy(&name).duplicate_request(f.requests(Script::Leave, &name).and(".one"));
        let (_release, at_once) = (leaves(), leaves());
        guard.release_unharmed().await;
        has_happened(&at_once).await;
        if is_held_meanwhile {
            let next = take(&other, &name, Mode::Write).await;
            tokens.push(next.token());
            assert_eq!(copy.arrives(f, &name), "queued", "until the last leave");
            next.release_unharmed().await;
        } else {
            assert_eq!(copy.arrives(f, &name), "granted", "its release was before it");
            let view = f.view(&name).await;
            assert_eq!((view.holders.len(), &*view.holders[0].label), (1, "one"));
            tokens.extend(view.last_token);
            // The last release frees the lock far sooner than its lease ends.
            until("the last leave", async || f.view(&name).await.is_free()).await;
        }
        tokens_go_on(f, &name, &tokens).await;
    };
    let cases = [(Mode::Read, false), (Mode::Read, true), (Mode::Write, false), (Mode::Write, true)];
    join_all(cases.map(|(mode, is_held_meanwhile)| case(mode, is_held_meanwhile))).await;
}

// Cancellations.

/// Cancels a waiter whose first request did not arrive, and waits for its release at the server. Returns the guard that
/// it waited for.
async fn cancelled_waiter(f: &ServerFixture, manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
    let (proxy, requests) = (f.proxy(name), f.requests(Script::Acquire, name).and(".one"));
    let holder = take(&holder(f, "two").await, name, Mode::Write).await;
    let waiting = taking(manager, name, mode);
    // The second and the third request have come, so one of them was answered.
    until("a denial", async || proxy.requests_seen(requests.clone()) >= 3).await;
    let told = proxy.duplicate_request(f.requests(Script::Leave, name).and(".one"));
    waiting.abort();
    assert!(waiting.await.expect_err("it waits").is_cancelled());
    has_happened(&told).await;
    holder
}

/// A cancelled waiter whose first copy seems to be lost with its connection, at once.
async fn cancelled_waiter_with_a_lost_copy(
    f: &ServerFixture,
    manager: &Manager,
    name: &str,
    mode: Mode,
    copy: &Copied,
) -> AnyGuard {
    let requests = f.requests(Script::Acquire, name).and(".one");
    let held = f.proxy(name).hold_request(copy.first_of(requests));
    let cut = async {
        is_held(&held).await;
        held.cut();
    };
    tokio::join!(cancelled_waiter(f, manager, name, mode), cut).0
}

async fn acquire_past_its_limit_after_its_cancel_creates_nothing(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, name, copy) = (patient(f).await, f.name(), Copied::default());
        let requests = f.requests(Script::Acquire, &name).and(".one");
        let held = f.proxy(&name).hold_request(copy.first_of(requests));
        let first = cancelled_waiter(f, &manager, &name, mode).await;
        let token = first.token();
        first.release_unharmed().await;
        copy.is_past_its_limit(f, &name).await;
        let stored = f.stored(&name);
        arrives(held);
        assert_eq!(f.stored(&name), stored, "{mode}");
        tokens_go_on(f, &name, &[token]).await;
    };
    join_all(MODES.map(case)).await;
}

async fn acquire_within_its_limit_after_its_cancel_is_gone_with_the_last_leave(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, name, copy) = (patient(f).await, f.name(), Copied::default());
        let first = cancelled_waiter_with_a_lost_copy(f, &manager, &name, mode, &copy).await;
        let mut tokens = vec![first.token()];
        first.release_unharmed().await;
        assert_eq!(copy.arrives(f, &name), "granted", "its cancel was before it");
        let view = f.view(&name).await;
        assert_eq!((view.holders.len(), &*view.holders[0].label), (1, "one"));
        tokens.extend(view.last_token);
        // Far sooner than its lease ends.
        until("the last leave", async || f.view(&name).await.is_free()).await;
        tokens_go_on(f, &name, &tokens).await;
    };
    join_all(MODES.map(case)).await;
}

async fn acquire_of_a_dead_process_is_over_within_a_lease(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let settings = Settings { response_timeout: PATIENT, max_handoffs: 1, ..Settings::lease(SHORT) };
        let (mut process, name, copy) = (f.process(settings).await, f.name(), Copied::default());
        let held = f.proxy(&name).hold_request(copy.first_of(f.requests(Script::Acquire, &name)));
        let asked = name.clone();
        process.start(move |manager| Box::pin(async move { take(&manager, &asked, mode).await }));
        is_held(&held).await;
        process.die().await;
        arrives(held);
        let view = f.view(&name).await;
        assert!(view.holders.iter().all(|ghost| ghost.remaining <= SHORT), "{view:?}");
        let token = view.last_token.expect("it was granted");
        tokens_go_on(f, &name, &[token]).await;
    };
    join_all(MODES.map(case)).await;
}

async fn late_cancel_spares_the_next_hold_of_the_same_manager(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, name) = (patient(f).await, f.name());
        let proxy = f.proxy(&name);
        let cancel = proxy.hold_request(f.requests(Script::Leave, &name).and(".1.one"));
        let first = cancelled_waiter_with_a_lost_copy(f, &manager, &name, mode, &Copied::default()).await;
        let mut tokens = vec![first.token()];
        first.release_unharmed().await;
        let second = take(&manager, &name, mode).await;
        tokens.push(second.token());
        let stored = f.stored(&name);
        is_held(&cancel).await;
        arrives(cancel);
        assert_eq!(f.stored(&name), stored, "{mode}");
        second.release_unharmed().await;
        tokens_go_on(f, &name, &tokens).await;
    };
    join_all(MODES.map(case)).await;
}

// Releases.

async fn duplicated_release_ends_one_hold(f: &ServerFixture) {
    let (manager, other, name) = (holder(f, "one").await, holder(f, "two").await, f.name());
    let (first, beside) = (take(&manager, &name, Mode::Read).await, take(&other, &name, Mode::Read).await);
    let twice = f.proxy(&name).duplicate_request(f.requests(Script::Leave, &name));
    first.release_unharmed().await;
    has_happened(&twice).await;
    assert_eq!(holders(f, &name).await, ["two"]);
    beside.release_unharmed().await;

    let first = take(&manager, &name, Mode::Write).await;
    let token = first.token();
    let twice = f.proxy(&name).duplicate_request(f.requests(Script::Leave, &name));
    first.release_unharmed().await;
    has_happened(&twice).await;
    tokens_go_on(f, &name, &[token]).await;
}

async fn release_retried_after_a_lost_reply_spares_the_next_holder(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, other, name) = (holder(f, "one").await, holder(f, "two").await, f.name());
        let first = take(&manager, &name, mode).await;
        let leaves = f.requests(Script::Leave, &name);
        let reply = f.proxy(&name).hold_reply(leaves.clone());
        let mut tokens = vec![first.token()];
        let releasing = tokio::spawn(first.release());
        is_applied(&reply).await;
        let next = take(&other, &name, Mode::Write).await;
        tokens.push(next.token());
        let stored = f.stored(&name);
        reply.cut();
        soon("the release", releasing).await.expect("no panic").expect("it was ours until it was released");
        assert_eq!(f.proxy(&name).requests_seen(leaves), 2, "it was retried");
        assert_eq!(f.stored(&name), stored, "{mode}");
        next.release_unharmed().await;
        tokens_go_on(f, &name, &tokens).await;
    };
    join_all(MODES.map(case)).await;
}

/// Holder of the lock when a late copy arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Nobody,
    SameManager,
    OtherManager,
}

/// Holds a request of a hold back, lets it arrive after the hold's release, and asserts that it changes nothing.
async fn late_copy_changes_nothing(f: &ServerFixture, script: Script, mode: Mode, next: Next) {
    let settings = Settings { label: "one".to_owned(), max_handoffs: 1, ..Settings::lease(LONG) };
    let (manager, other, name) = (f.manager_with(settings).await, holder(f, "two").await, f.name());
    let lease = if script == Script::Renew { RENEWED } else { LONG };
    let first = match mode {
        Mode::Read => AnyGuard::Read(manager.read(&name).lease(lease).await.expect("granted")),
        Mode::Write => AnyGuard::Write(manager.write(&name).lease(lease).await.expect("granted")),
    };
    let held = f.proxy(&name).hold_request(f.requests(script, &name));
    if script == Script::Renew {
        is_held(&held).await;
    }
    let mut tokens = vec![first.token()];
    // The proxy holds the first release back too: it is that request, or it follows it on the same connection.
    first.release().await.expect("a second copy has arrived");
    is_held(&held).await;
    assert!(f.view(&name).await.is_free());
    let second = match next {
        Next::Nobody => None,
        // The lease is shorter than a renewal of the first hold would last.
        Next::SameManager => Some(take_for(lease * 3 / 4, &manager, &name, mode).await),
        Next::OtherManager => Some(take_for(lease * 3 / 4, &other, &name, mode).await),
    };
    tokens.extend(second.as_ref().map(AnyGuard::token));
    let stored = f.stored(&name);
    arrives(held);
    assert_eq!(f.stored(&name), stored, "{mode}, then {next:?}");
    if let Some(second) = second {
        second.release_unharmed().await;
    }
    tokens_go_on(f, &name, &tokens).await;
}

async fn late_copies_change_nothing(f: &ServerFixture, script: Script) {
    let nexts = [Next::Nobody, Next::SameManager, Next::OtherManager];
    let cases = MODES.into_iter().flat_map(|mode| nexts.map(|next| (mode, next)));
    join_all(cases.map(|(mode, next)| late_copy_changes_nothing(f, script, mode, next))).await;
}

async fn late_release_spares_the_next_holder(f: &ServerFixture) {
    late_copies_change_nothing(f, Script::Leave).await;
}

// Renewals.

async fn late_renewal_after_the_release_recreates_nothing(f: &ServerFixture) {
    late_copies_change_nothing(f, Script::Renew).await;
}

async fn late_renewal_after_the_lease_recreates_nothing(f: &ServerFixture) {
    let case = async |mode: Mode, is_held_meanwhile: bool| {
        let (manager, other, name) = (
            f.manager_with(Settings { max_handoffs: 1, ..Settings::lease(SHORT) }).await,
            holder(f, "two").await,
            f.name(),
        );
        let held = f.proxy(&name).hold_request(f.requests(Script::Renew, &name));
        let guard = take(&manager, &name, mode).await;
        let mut tokens = vec![guard.token()];
        assert_eq!(soon("the end of the lease", guard.lost()).await, LossReason::Expired);
        is_held(&held).await;
        until("its end on the server", async || f.view(&name).await.is_free()).await;
        let next = if is_held_meanwhile { Some(take(&other, &name, mode).await) } else { None };
        tokens.extend(next.as_ref().map(AnyGuard::token));
        arrives(held);
        assert_eq!(holders(f, &name).await, next.as_ref().map(|_| "two").into_iter().collect::<Vec<_>>());
        assert!(matches!(guard.state(), HoldState::Lost(LossReason::Expired)), "once lost, lost");
        if let Some(next) = next {
            next.release_unharmed().await;
        }
        tokens_go_on(f, &name, &tokens).await;
    };
    let cases = [(Mode::Read, false), (Mode::Read, true), (Mode::Write, false), (Mode::Write, true)];
    join_all(cases.map(|(mode, is_held_meanwhile)| case(mode, is_held_meanwhile))).await;
}

async fn duplicated_renewal_changes_nothing_more(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let ([manager], name) = f.scene_with(Settings { max_handoffs: 1, ..Settings::lease(RENEWED) }).await;
        let twice = f.proxy(&name).duplicate_request(f.requests(Script::Renew, &name));
        let guard = take(&manager, &name, mode).await;
        let token = guard.token();
        has_happened(&twice).await;
        let view = f.view(&name).await;
        assert_eq!((view.holders.len(), view.last_token), (1, Some(token)));
        assert!(view.holders[0].remaining <= RENEWED, "{view:?}");
        guard.release_unharmed().await;
        tokens_go_on(f, &name, &[token]).await;
    };
    join_all(MODES.map(case)).await;
}

async fn renewal_retried_after_a_lost_reply_keeps_the_hold(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let ([manager], name) = f.scene_with(Settings { max_handoffs: 1, ..Settings::lease(RENEWED) }).await;
        let renewals = f.requests(Script::Renew, &name);
        let cut = f.proxy(&name).cut_after_apply(renewals.clone());
        let guard = take(&manager, &name, mode).await;
        let token = guard.token();
        has_happened(&cut).await;
        let retried = async || f.proxy(&name).requests_seen(renewals.clone()) >= 2;
        until("another renewal", retried).await;
        until("its answer", async || guard.state() == HoldState::Held).await;
        assert_eq!(f.view(&name).await.holders.len(), 1);
        guard.release_unharmed().await;
        tokens_go_on(f, &name, &[token]).await;
    };
    join_all(MODES.map(case)).await;
}

// Force.

async fn is_forced(guard: AnyGuard) -> FencingToken {
    let token = guard.token();
    let error = guard.release().await.expect_err("it was ended");
    assert_matches!(error, Error::Lost { reason: LossReason::Forced, .. });
    token
}

async fn duplicated_force_ends_no_newer_hold(f: &ServerFixture) {
    for mode in MODES {
        let (manager, operator, name) = (holder(f, "one").await, holder(f, "two").await, f.name());
        let guard = take(&manager, &name, mode).await;
        let twice = f.proxy(&name).duplicate_request(f.requests(Script::Force, &name));
        operator.force_release(&name).await.expect("forced");
        has_happened(&twice).await;
        let next = take(&operator, &name, mode).await;
        let tokens = [is_forced(guard).await, next.token()];
        next.release_unharmed().await;
        tokens_go_on(f, &name, &tokens).await;
    }
}

async fn force_retried_after_a_lost_reply_ends_no_newer_hold(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, operator, name) = (holder(f, "one").await, holder(f, "two").await, f.name());
        let guard = take(&operator, &name, mode).await;
        let forces = f.requests(Script::Force, &name);
        let reply = f.proxy(&name).hold_reply(forces.clone());
        let forcing = tokio::spawn(operator.force_release(&name));
        is_applied(&reply).await;
        let next = take(&manager, &name, mode).await;
        let stored = f.stored(&name);
        reply.cut();
        soon("the force", forcing).await.expect("no panic").expect("forced");
        assert_eq!(f.proxy(&name).requests_seen(forces), 2, "it was retried");
        assert_eq!(f.stored(&name), stored, "{mode}");
        assert_eq!(soon("word of it", guard.lost()).await, LossReason::Forced, "the operator's own hold is over");
        let tokens = [is_forced(guard).await, next.token()];
        next.release_unharmed().await;
        tokens_go_on(f, &name, &tokens).await;
    };
    join_all(MODES.map(case)).await;
}

async fn late_copy_of_a_force_ends_no_newer_hold(f: &ServerFixture) {
    let case = async |mode: Mode| {
        let (manager, operator, name) = (holder(f, "one").await, holder(f, "two").await, f.name());
        let other = holder(f, "three").await;
        let guard = take(&manager, &name, mode).await;
        let held = f.proxy(&name).hold_request(f.requests(Script::Force, &name));
        operator.force_release(&name).await.expect("forced by a second copy");
        is_held(&held).await;
        let next = take(&other, &name, mode).await;
        let stored = f.stored(&name);
        arrives(held);
        assert_eq!(f.stored(&name), stored, "{mode}");
        let tokens = [is_forced(guard).await, next.token()];
        next.release_unharmed().await;
        tokens_go_on(f, &name, &tokens).await;
    };
    join_all(MODES.map(case)).await;
}
