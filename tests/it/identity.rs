//! Requests that are sent twice, come late, are repeated after a lost reply, or are overtaken. Such requests change
//! nothing more.
//!
//! A proxy holds the requests, and a copy of one arrives when the case orders it. A case checks the stored state of the
//! server, and the guards of other processes, which must stay valid.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cluster_testenv::{Fault, HeldRequest, Matcher, Proxy};
use futures_util::future::join_all;
use redis_rwlock::{Error, FencingToken, HoldState, LossReason, Mode};
use tokio::task::JoinHandle;

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

/// Runs a case for both modes at the same time.
async fn in_both_modes(case: impl AsyncFn(Mode)) {
    join_all(MODES.map(|mode| case(mode))).await;
}

/// Runs a case for both modes, each with and without a holder meanwhile, at the same time.
async fn held_meanwhile_or_not(case: impl AsyncFn(Mode, bool)) {
    let cases = MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
    join_all(cases.map(|(mode, is_held_meanwhile)| case(mode, is_held_meanwhile))).await;
}

fn settings_of(label: &str) -> Settings {
    Settings { label: label.to_owned(), max_handoffs: 1, ..Settings::lease(LONG) }
}

/// A manager with time limits so late that a case can act before them.
async fn patient(f: &ServerFixture) -> Manager {
    f.manager_with(Settings { response_timeout: PATIENT, ..settings_of("one") }).await
}

/// Waits until the proxy has carried the fault out.
async fn has_happened(fault: &Fault) {
    until("a fault of the network", async || fault.wait_applied(Duration::ZERO).is_ok()).await;
}

/// A lock, a manager whose requests the proxy treats, another manager, and the tokens of the guards in their order.
struct Lock<'a> {
    f: &'a ServerFixture,
    name: String,
    one: Manager,
    two: Manager,
    tokens: Mutex<Vec<FencingToken>>,
}

impl<'a> Lock<'a> {
    async fn of(f: &'a ServerFixture) -> Self {
        Self::with(f, f.manager_with(settings_of("one")).await).await
    }

    async fn with(f: &'a ServerFixture, one: Manager) -> Self {
        Self { f, name: f.name(), one, two: f.manager_with(settings_of("two")).await, tokens: Mutex::default() }
    }

    fn proxy(&self) -> &Proxy {
        self.f.proxy(&self.name)
    }

    fn requests(&self, script: Script) -> Matcher {
        self.f.requests(script, &self.name)
    }

    fn requests_of_one(&self, script: Script) -> Matcher {
        self.requests(script).and(".one")
    }

    fn tokens(&self) -> MutexGuard<'_, Vec<FencingToken>> {
        self.tokens.lock().expect("no case fails meanwhile")
    }

    /// Notes the token of a new guard, and returns it.
    fn note(&self, guard: AnyGuard) -> AnyGuard {
        self.tokens().push(guard.token());
        guard
    }

    async fn take(&self, manager: &Manager, mode: Mode) -> AnyGuard {
        self.note(take(manager, &self.name, mode).await)
    }

    /// Acquires the lock in a task of its own, by the first manager.
    fn taking(&self, mode: Mode) -> JoinHandle<AnyGuard> {
        let (manager, name) = (Arc::clone(&self.one), self.name.clone());
        tokio::spawn(async move { take(&manager, &name, mode).await })
    }

    async fn holders(&self) -> Vec<String> {
        self.f.view(&self.name).await.holders.into_iter().map(|holder| holder.label).collect()
    }

    async fn is_free(&self) -> bool {
        self.holders().await.is_empty()
    }

    /// Asserts that the last guard has the only hold.
    async fn has_one_hold(&self) {
        let view = self.f.view(&self.name).await;
        assert_eq!((view.holders.len(), view.last_token), (1, self.tokens().last().copied()));
    }

    /// Asserts that a copy was granted a hold, which the last release ends far sooner than its lease ends.
    async fn has_a_hold_until_the_last_leave(&self) {
        let view = self.f.view(&self.name).await;
        assert_eq!((view.holders.len(), &*view.holders[0].label), (1, "one"));
        self.tokens().extend(view.last_token);
        until("the last leave", async || self.is_free().await).await;
    }

    /// Lets a late request arrive, and asserts that it changes nothing.
    #[track_caller]
    fn is_unchanged_by(&self, held: HeldRequest, case: impl std::fmt::Debug) {
        let stored = self.f.stored(&self.name);
        arrives(held);
        assert_eq!(self.f.stored(&self.name), stored, "{case:?}");
    }

    /// Asserts that the lock becomes free, and that the tokens and the next one grow.
    async fn goes_on(&self) {
        self.f.becomes_free(&self.name).await;
        self.take(&self.f.manager().await, Mode::Write).await.release_unharmed().await;
        assert!(self.tokens().is_sorted_by(|a, b| a < b), "{:?}", self.tokens());
    }

    /// Releases the last guard, and asserts that the lock goes on.
    async fn goes_on_after(&self, guard: AnyGuard) {
        guard.release_unharmed().await;
        self.goes_on().await;
    }
}

// Acquisitions.

async fn duplicated_acquire_is_one_hold(f: &ServerFixture) {
    for mode in MODES {
        let lock = Lock::of(f).await;
        let twice = lock.proxy().duplicate_request(lock.requests(Script::Acquire));
        let guard = lock.take(&lock.one, mode).await;
        has_happened(&twice).await;
        lock.has_one_hold().await;
        lock.goes_on_after(guard).await;
    }
}

async fn acquire_retried_after_a_lost_reply_is_one_hold(f: &ServerFixture) {
    for mode in MODES {
        let lock = Lock::of(f).await;
        let requests = lock.requests(Script::Acquire);
        let cut = lock.proxy().cut_after_apply(requests.clone());
        let guard = lock.take(&lock.one, mode).await;
        has_happened(&cut).await;
        assert_eq!(lock.proxy().requests_seen(requests), 2, "it was retried");
        lock.has_one_hold().await;
        guard.release_unharmed().await;
        assert!(lock.is_free().await, "one release ends it");
        lock.goes_on().await;
    }
}

async fn copy_of_an_acquire_within_its_limit_is_the_same_hold(f: &ServerFixture) {
    for mode in MODES {
        let (lock, copy) = (Lock::with(f, patient(f).await).await, Copied::default());
        let reply = lock.proxy().hold_reply(copy.first_of(lock.requests(Script::Acquire)));
        let taking = lock.taking(mode);
        is_applied(&reply).await;
        let token = f.view(&lock.name).await.last_token;
        assert_eq!(copy.arrives(f, &lock.name), "granted");
        lock.tokens().extend(token);
        lock.has_one_hold().await;
        reply.release();
        let guard = taking.await.expect("no panic");
        assert_eq!(Some(guard.token()), token);
        guard.release_unharmed().await;
        assert!(lock.is_free().await, "one release ends it");
    }
}

async fn late_copy_of_an_acquire_extends_nothing(f: &ServerFixture) {
    for mode in MODES {
        let (lock, copy) = (Lock::of(f).await, Copied::default());
        // The duplicate is only a way to copy the request.
        let twice = lock.proxy().duplicate_request(copy.first_of(lock.requests(Script::Acquire)));
        let guard = lock.take(&lock.one, mode).await;
        has_happened(&twice).await;
        copy.is_past_its_limit(f, &lock.name).await;
        let stored = f.stored(&lock.name);
        assert_eq!(copy.arrives(f, &lock.name), "late");
        assert_eq!(f.stored(&lock.name), stored);
        guard.release_unharmed().await;
    }
}

/// Takes the lock by a second copy while the first one is held back, and returns that one.
async fn late_copy_of_an_acquire_creates_nothing(f: &ServerFixture) {
    held_meanwhile_or_not(async |mode, is_read_meanwhile| {
        let (lock, copy) = (Lock::of(f).await, Copied::default());
        let held = lock.proxy().hold_request(copy.first_of(lock.requests_of_one(Script::Acquire)));
        let guard = lock.take(&lock.one, mode).await;
        is_held(&held).await;
        guard.release_unharmed().await;
        let next = if is_read_meanwhile { Some(lock.take(&lock.two, Mode::Read).await) } else { None };
        copy.is_past_its_limit(f, &lock.name).await;
        lock.is_unchanged_by(held, (mode, is_read_meanwhile));
        if let Some(next) = next {
            assert_eq!(lock.holders().await, ["two"]);
            next.release_unharmed().await;
        }
        lock.goes_on().await;
    })
    .await;
}

async fn copy_of_an_acquire_within_its_limit_after_the_release_is_gone_with_the_last_leave(f: &ServerFixture) {
    held_meanwhile_or_not(async |mode, is_held_meanwhile| {
        let (lock, copy) = (Lock::with(f, patient(f).await).await, Copied::default());
        let held = lock.proxy().hold_request(copy.first_of(lock.requests_of_one(Script::Acquire)));
        let taking = lock.taking(mode);
        is_held(&held).await;
        held.cut(); // so that this copy is unaccounted for, and another one is granted
        let guard = lock.note(taking.await.expect("no panic"));
        // Three releases come: the caller's, one of the background at once, and one after the time limit.
        let leaves = || lock.proxy().duplicate_request(lock.requests_of_one(Script::Leave));
        let (_release, at_once) = (leaves(), leaves());
        guard.release_unharmed().await;
        has_happened(&at_once).await;
        if is_held_meanwhile {
            let next = lock.take(&lock.two, Mode::Write).await;
            assert_eq!(copy.arrives(f, &lock.name), "queued", "until the last leave");
            next.release_unharmed().await;
        } else {
            assert_eq!(copy.arrives(f, &lock.name), "granted", "its release was before it");
            lock.has_a_hold_until_the_last_leave().await;
        }
        lock.goes_on().await;
    })
    .await;
}

// Cancellations.

/// Cancels a waiter whose first request did not arrive, and waits for its release at the server. Returns the guard that
/// it waited for.
async fn cancelled_waiter(lock: &Lock<'_>, mode: Mode) -> AnyGuard {
    let holder = lock.take(&lock.two, Mode::Write).await;
    let (proxy, requests, waiting) = (lock.proxy(), lock.requests_of_one(Script::Acquire), lock.taking(mode));
    // The second and the third request have come, so one of them was answered.
    until("a denial", async || proxy.requests_seen(requests.clone()) >= 3).await;
    let told = proxy.duplicate_request(lock.requests_of_one(Script::Leave));
    waiting.abort();
    assert!(waiting.await.expect_err("it waits").is_cancelled());
    has_happened(&told).await;
    holder
}

/// A cancelled waiter whose first copy seems to be lost with its connection, at once.
async fn cancelled_waiter_with_a_lost_copy(lock: &Lock<'_>, mode: Mode, copy: &Copied) -> AnyGuard {
    let held = lock.proxy().hold_request(copy.first_of(lock.requests_of_one(Script::Acquire)));
    let cut = async {
        is_held(&held).await;
        held.cut();
    };
    tokio::join!(cancelled_waiter(lock, mode), cut).0
}

async fn acquire_past_its_limit_after_its_cancel_creates_nothing(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let (lock, copy) = (Lock::with(f, patient(f).await).await, Copied::default());
        let held = lock.proxy().hold_request(copy.first_of(lock.requests_of_one(Script::Acquire)));
        cancelled_waiter(&lock, mode).await.release_unharmed().await;
        copy.is_past_its_limit(f, &lock.name).await;
        lock.is_unchanged_by(held, mode);
        lock.goes_on().await;
    })
    .await;
}

async fn acquire_within_its_limit_after_its_cancel_is_gone_with_the_last_leave(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let (lock, copy) = (Lock::with(f, patient(f).await).await, Copied::default());
        cancelled_waiter_with_a_lost_copy(&lock, mode, &copy).await.release_unharmed().await;
        assert_eq!(copy.arrives(f, &lock.name), "granted", "its cancel was before it");
        lock.has_a_hold_until_the_last_leave().await;
        lock.goes_on().await;
    })
    .await;
}

async fn acquire_of_a_dead_process_is_over_within_a_lease(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let settings = Settings { response_timeout: PATIENT, max_handoffs: 1, ..Settings::lease(SHORT) };
        let mut process = f.process(settings).await;
        let lock = Lock::with(f, Arc::clone(&process.manager)).await;
        let held = lock.proxy().hold_request(lock.requests(Script::Acquire));
        let asked = lock.name.clone();
        process.start(move |manager| Box::pin(async move { take(&manager, &asked, mode).await }));
        is_held(&held).await;
        process.die().await;
        arrives(held);
        let view = f.view(&lock.name).await;
        assert!(view.holders.iter().all(|ghost| ghost.remaining <= SHORT), "{view:?}");
        lock.tokens().push(view.last_token.expect("it was granted"));
        lock.goes_on().await;
    })
    .await;
}

async fn late_cancel_spares_the_next_hold_of_the_same_manager(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let lock = Lock::with(f, patient(f).await).await;
        let cancel = lock.proxy().hold_request(lock.requests(Script::Leave).and(".1.one"));
        cancelled_waiter_with_a_lost_copy(&lock, mode, &Copied::default()).await.release_unharmed().await;
        let second = lock.take(&lock.one, mode).await;
        is_held(&cancel).await;
        lock.is_unchanged_by(cancel, mode);
        lock.goes_on_after(second).await;
    })
    .await;
}

// Releases.

async fn duplicated_release_ends_one_hold(f: &ServerFixture) {
    let lock = Lock::of(f).await;
    let is_released_twice = async |mode| {
        let guard = lock.take(&lock.one, mode).await;
        let twice = lock.proxy().duplicate_request(lock.requests(Script::Leave));
        guard.release_unharmed().await;
        has_happened(&twice).await;
    };
    let beside = take(&lock.two, &lock.name, Mode::Read).await;
    is_released_twice(Mode::Read).await;
    assert_eq!(lock.holders().await, ["two"]);
    beside.release_unharmed().await;
    is_released_twice(Mode::Write).await;
    lock.goes_on().await;
}

async fn release_retried_after_a_lost_reply_spares_the_next_holder(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let lock = Lock::of(f).await;
        let first = lock.take(&lock.one, mode).await;
        let leaves = lock.requests(Script::Leave);
        let reply = lock.proxy().hold_reply(leaves.clone());
        let releasing = tokio::spawn(first.release());
        is_applied(&reply).await;
        let next = lock.take(&lock.two, Mode::Write).await;
        let stored = f.stored(&lock.name);
        reply.cut();
        soon("the release", releasing).await.expect("no panic").expect("it was ours until it was released");
        assert_eq!(lock.proxy().requests_seen(leaves), 2, "it was retried");
        assert_eq!(f.stored(&lock.name), stored, "{mode}");
        lock.goes_on_after(next).await;
    })
    .await;
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
    let lock = Lock::of(f).await;
    let lease = if script == Script::Renew { RENEWED } else { LONG };
    let first = lock.note(match mode {
        Mode::Read => AnyGuard::Read(lock.one.read(&lock.name).lease(lease).await.expect("granted")),
        Mode::Write => AnyGuard::Write(lock.one.write(&lock.name).lease(lease).await.expect("granted")),
    });
    let held = lock.proxy().hold_request(lock.requests(script));
    if script == Script::Renew {
        is_held(&held).await;
    }
    // The proxy holds the first release back too: it is that request, or it follows it on the same connection.
    first.release().await.expect("a second copy has arrived");
    is_held(&held).await;
    assert!(lock.is_free().await);
    let manager = match next {
        Next::Nobody => None,
        Next::SameManager => Some(&lock.one),
        Next::OtherManager => Some(&lock.two),
    };
    let second = match manager {
        // The lease is shorter than a renewal of the first hold would last.
        Some(manager) => Some(lock.note(take_for(lease * 3 / 4, manager, &lock.name, mode).await)),
        None => None,
    };
    lock.is_unchanged_by(held, (mode, next));
    if let Some(second) = second {
        second.release_unharmed().await;
    }
    lock.goes_on().await;
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
    held_meanwhile_or_not(async |mode, is_held_meanwhile| {
        let short = f.manager_with(Settings { max_handoffs: 1, ..Settings::lease(SHORT) }).await;
        let lock = Lock::with(f, short).await;
        let held = lock.proxy().hold_request(lock.requests(Script::Renew));
        let guard = lock.take(&lock.one, mode).await;
        assert_eq!(soon("the end of the lease", guard.lost()).await, LossReason::Expired);
        is_held(&held).await;
        until("its end on the server", async || lock.is_free().await).await;
        let next = if is_held_meanwhile { Some(lock.take(&lock.two, mode).await) } else { None };
        arrives(held);
        assert_eq!(lock.holders().await, next.as_ref().map(|_| "two").into_iter().collect::<Vec<_>>());
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Expired), "once lost, lost");
        if let Some(next) = next {
            next.release_unharmed().await;
        }
        lock.goes_on().await;
    })
    .await;
}

/// A lock whose first manager renews its holds while a case runs.
async fn lock_with_renewals(f: &ServerFixture) -> Lock<'_> {
    Lock::with(f, f.manager_with(Settings { max_handoffs: 1, ..Settings::lease(RENEWED) }).await).await
}

async fn duplicated_renewal_changes_nothing_more(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let lock = lock_with_renewals(f).await;
        let twice = lock.proxy().duplicate_request(lock.requests(Script::Renew));
        let guard = lock.take(&lock.one, mode).await;
        has_happened(&twice).await;
        lock.has_one_hold().await;
        let view = f.view(&lock.name).await;
        assert!(view.holders[0].remaining <= RENEWED, "{view:?}");
        lock.goes_on_after(guard).await;
    })
    .await;
}

async fn renewal_retried_after_a_lost_reply_keeps_the_hold(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let lock = lock_with_renewals(f).await;
        let renewals = lock.requests(Script::Renew);
        let cut = lock.proxy().cut_after_apply(renewals.clone());
        let guard = lock.take(&lock.one, mode).await;
        has_happened(&cut).await;
        until("another renewal", async || lock.proxy().requests_seen(renewals.clone()) >= 2).await;
        until("its answer", async || guard.state() == HoldState::Held).await;
        lock.has_one_hold().await;
        lock.goes_on_after(guard).await;
    })
    .await;
}

// Force.

/// Asserts that a guard was ended by force and that the lock goes on after the next one.
async fn is_forced(lock: &Lock<'_>, guard: AnyGuard, next: AnyGuard) {
    assert_matches!(guard.release().await, Err(Error::Lost { reason: LossReason::Forced, .. }));
    lock.goes_on_after(next).await;
}

async fn duplicated_force_ends_no_newer_hold(f: &ServerFixture) {
    for mode in MODES {
        let lock = Lock::of(f).await;
        let guard = lock.take(&lock.one, mode).await;
        let twice = lock.proxy().duplicate_request(lock.requests(Script::Force));
        lock.two.force_release(&lock.name).await.expect("forced");
        has_happened(&twice).await;
        let next = lock.take(&lock.two, mode).await;
        is_forced(&lock, guard, next).await;
    }
}

async fn force_retried_after_a_lost_reply_ends_no_newer_hold(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let lock = Lock::of(f).await;
        let guard = lock.take(&lock.two, mode).await;
        let forces = lock.requests(Script::Force);
        let reply = lock.proxy().hold_reply(forces.clone());
        let forcing = tokio::spawn(lock.two.force_release(&lock.name));
        is_applied(&reply).await;
        let next = lock.take(&lock.one, mode).await;
        let stored = f.stored(&lock.name);
        reply.cut();
        soon("the force", forcing).await.expect("no panic").expect("forced");
        assert_eq!(lock.proxy().requests_seen(forces), 2, "it was retried");
        assert_eq!(f.stored(&lock.name), stored, "{mode}");
        assert_eq!(soon("word of it", guard.lost()).await, LossReason::Forced, "the operator's own hold is over");
        is_forced(&lock, guard, next).await;
    })
    .await;
}

async fn late_copy_of_a_force_ends_no_newer_hold(f: &ServerFixture) {
    in_both_modes(async |mode| {
        let (lock, other) = (Lock::of(f).await, f.manager_with(settings_of("three")).await);
        let guard = lock.take(&lock.one, mode).await;
        let held = lock.proxy().hold_request(lock.requests(Script::Force));
        lock.two.force_release(&lock.name).await.expect("forced by a second copy");
        is_held(&held).await;
        let next = lock.take(&other, mode).await;
        lock.is_unchanged_by(held, mode);
        is_forced(&lock, guard, next).await;
    })
    .await;
}
