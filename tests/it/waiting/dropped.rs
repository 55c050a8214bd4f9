//! A waiter is dropped at each of its awaits, which the proxy holds in place: nothing stays on the server. The
//! lease is long, so that no end of a lease hides a rest.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Proxy};
use redis_rwlock::Mode;

use super::{MACHINE, patient, recorded};
use crate::either::{AnyGuard, take};
use crate::fixture::{Manager, ServerFixture, proxied_on_every_hash};
use crate::wait::{BOUND, soon, until};
use crate::wire::{is_applied, is_held};

proxied_on_every_hash![
    dropped_with_the_reply_to_its_first_question_on_its_way,
    dropped_with_its_first_question_on_its_way,
    dropped_while_it_subscribes,
    dropped_while_it_waits_for_its_notification,
    dropped_with_a_heartbeat_on_its_way,
    dropped_with_the_reply_to_a_heartbeat_on_its_way,
    dropped_with_its_grant_on_its_way,
    dropped_with_its_grant_not_looked_at,
    next_of_its_process_has_the_grant_that_was_on_its_way,
];

/// Time until a dropped waiter is taken back: a response timeout for the unanswered request, and one more until no copy
/// of it can arrive.
const TAKEN_BACK: Duration = Duration::from_secs(1);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A lock that is held to write, and a waiter for it. The proxy can hold each request and reply of the waiter.
struct Scene<'a> {
    f: &'a ServerFixture,
    name: String,
    waiter: Manager,
    /// Side of the waiter.
    mode: Mode,
    proxy: &'a Proxy,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = AnyGuard> + Send + 'a>>;

/// Polls a waiter until something happens.
async fn polled_until(waiting: &mut Waiting<'_>, event: impl Future<Output = ()>) {
    tokio::select! {
        _ = waiting => panic!("it is granted"),
        () = event => {}
    }
}

impl<'a> Scene<'a> {
    async fn new(f: &'a ServerFixture, mode: Mode) -> (Scene<'a>, AnyGuard) {
        let name = f.name();
        let held = take(&f.manager_with(patient("holds")).await, &name, Mode::Write).await;
        let proxy = f.servers.owner_of(&f.hash_key(&name)).proxy();
        (Scene { f, name, waiter: f.manager_with(patient("waits")).await, mode, proxy }, held)
    }

    /// A scene with a waiting writer and one with a waiting reader, each with the guard of the holder.
    async fn both(f: &'a ServerFixture) -> [(Scene<'a>, AnyGuard); 2] {
        [Self::new(f, Mode::Write).await, Self::new(f, Mode::Read).await]
    }

    /// A waiter that was not polled yet.
    fn waiting(&self) -> Waiting<'_> {
        Box::pin(take(&self.waiter, &self.name, self.mode))
    }

    /// A waiter that was polled for a response timeout, so that all its requests are answered.
    async fn waiting_for_its_notification(&self) -> Waiting<'_> {
        let mut waiting = self.waiting();
        polled_until(&mut waiting, tokio::time::sleep(RESPONSE_TIMEOUT)).await;
        self.waits().await;
        waiting
    }

    /// Matches the waiter's scripts for this lock.
    fn questions(&self) -> Matcher {
        let script = Matcher::new(|request| request.name().starts_with("EVAL"));
        script.and(self.f.hash_key(&self.name)).and(".waits")
    }

    fn subscriptions(&self) -> Matcher {
        Matcher::command("SSUBSCRIBE").and(self.f.hash_key(&self.name) + ":wake")
    }

    async fn waits(&self) {
        until("it waits", async || recorded(self.f, &self.name) == 1).await;
    }

    /// Drops the waiter while the proxy holds the reply to its next request of this kind.
    async fn dropped_before_the_reply(&self, mut waiting: Waiting<'_>, request: Matcher) {
        let reply = self.proxy.hold_reply(request);
        polled_until(&mut waiting, is_applied(&reply)).await;
        self.waits().await;
        drop(waiting);
        self.only_the_holder(Instant::now()).await;
    }

    /// Drops the waiter while the proxy holds its next request, which arrives after the waiter was taken back.
    async fn dropped_before_the_request(&self, mut waiting: Waiting<'_>) {
        let seen = self.proxy.requests_seen(self.questions());
        let request = self.proxy.hold_request(self.questions());
        polled_until(&mut waiting, is_held(&request)).await;
        drop(waiting);
        let dropped = Instant::now();
        // The release takes another connection, because this one is given up. So it overtakes the request.
        self.proxy.wait_for_requests(self.questions(), seen + 2, BOUND).expect("it is taken back");
        request.release_and_wait(BOUND).expect("the server has answered");
        self.only_the_holder(dropped).await;
    }

    /// Waits until the lock has the holder only, and asserts that this was in time.
    async fn only_the_holder(&self, dropped: Instant) {
        until("nobody waits", async || recorded(self.f, &self.name) == 0).await;
        let view = self.f.view(&self.name).await;
        assert!(view.waiters.is_empty(), "{view:?}");
        assert!(view.holders.iter().all(|holder| holder.label == "holds"), "{view:?}");
        assert!(dropped.elapsed() < TAKEN_BACK + MACHINE, "{:?}", dropped.elapsed());
    }

    /// Releases the hold, and waits until the lock is free.
    async fn becomes_free(&self, held: AnyGuard) {
        held.release_unharmed().await;
        self.f.becomes_free(&self.name).await;
        assert_eq!(recorded(self.f, &self.name), 0);
    }

    /// Releases the hold, which the waiter gets and does not know. Drops the waiter, and waits until the lock is free.
    async fn dropped_with_its_grant(&self, waiting: Waiting<'_>, held: AnyGuard) {
        held.release_unharmed().await;
        assert_eq!(self.f.view(&self.name).await.holders[0].label, "waits", "it has the lock and does not know");
        drop(waiting);
        let dropped = Instant::now();
        until("the lock is free", async || self.f.view(&self.name).await.is_free()).await;
        assert!(dropped.elapsed() < TAKEN_BACK + MACHINE, "{:?}", dropped.elapsed());
        self.f.becomes_free(&self.name).await;
    }
}

async fn dropped_with_the_reply_to_its_first_question_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_before_the_reply(scene.waiting(), scene.questions()).await;
        scene.becomes_free(held).await;
    }
}

async fn dropped_with_its_first_question_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_before_the_request(scene.waiting()).await;
        scene.becomes_free(held).await;
    }
}

async fn dropped_while_it_subscribes(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_before_the_reply(scene.waiting(), scene.subscriptions()).await;
        scene.becomes_free(held).await;
    }
}

async fn dropped_while_it_waits_for_its_notification(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        drop(scene.waiting_for_its_notification().await);
        scene.only_the_holder(Instant::now()).await;
        scene.becomes_free(held).await;
    }
}

async fn dropped_with_a_heartbeat_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_before_the_request(scene.waiting_for_its_notification().await).await;
        scene.becomes_free(held).await;
    }
}

async fn dropped_with_the_reply_to_a_heartbeat_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_before_the_reply(scene.waiting_for_its_notification().await, scene.questions()).await;
        scene.becomes_free(held).await;
    }
}

/// The proxy holds the waiter's notification, with the confirmation of the subscription in front of it.
async fn dropped_with_its_grant_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        let mut waiting = scene.waiting();
        let reply = scene.proxy.hold_reply(scene.subscriptions());
        polled_until(&mut waiting, is_applied(&reply)).await;
        scene.waits().await;
        scene.dropped_with_its_grant(waiting, held).await;
    }
}

async fn dropped_with_its_grant_not_looked_at(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        scene.dropped_with_its_grant(scene.waiting_for_its_notification().await, held).await;
    }
}

async fn next_of_its_process_has_the_grant_that_was_on_its_way(f: &ServerFixture) {
    for (scene, held) in Scene::both(f).await {
        let mut waiting = scene.waiting();
        let reply = scene.proxy.hold_reply(scene.subscriptions());
        polled_until(&mut waiting, is_applied(&reply)).await;
        scene.waits().await;
        // One waiter of each side, so that one of them takes the place over.
        let next = [Mode::Read, Mode::Write].map(|mode| {
            let (manager, name) = (Arc::clone(&scene.waiter), scene.name.clone());
            tokio::spawn(async move { take(&manager, &name, mode).await.release_unharmed().await })
        });
        until("the other side waits too", async || recorded(f, &scene.name) == 2).await;
        held.release_unharmed().await;
        drop(waiting);
        drop(reply);
        for waiting in next {
            soon("its turn", waiting).await.expect("no panic");
        }
        f.becomes_free(&scene.name).await;
    }
}
