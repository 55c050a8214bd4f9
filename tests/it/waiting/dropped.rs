//! A waiter is dropped at each of its awaits, which the proxy holds in place: nothing stays on the server. The
//! lease is long, so that no end of a lease hides a rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{HeldReply, HeldRequest, Matcher, Proxy};
use redis_rwlock::{Acquiring, Guard, Mode, RwLockManager};

use super::{MACHINE, patient, recorded};
use crate::either::take;
use crate::fixture::{Manager, ServerFixture, proxied_on_every_hash};
use crate::wait::{BOUND, soon, stays_pending, until};

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

/// A lock with a holder, and a waiter for it. The proxy can hold each request and reply of the waiter.
struct Scene<'a> {
    f: &'a ServerFixture,
    name: String,
    holder: Manager,
    waiter: Manager,
    proxy: &'a Proxy,
}

impl<'a> Scene<'a> {
    async fn new(f: &'a ServerFixture) -> Scene<'a> {
        let name = f.name();
        let proxy = f.servers.owner_of(&f.hash_key(&name)).proxy();
        Scene {
            f,
            holder: f.manager_with(patient("holds")).await,
            waiter: f.manager_with(patient("waits")).await,
            name,
            proxy,
        }
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

    /// Waits until the lock has the holder only, and asserts that this was in time.
    async fn only_the_holder(&self, dropped: Instant) {
        until("nobody waits", async || recorded(self.f, &self.name) == 0).await;
        let view = self.f.view(&self.name).await;
        assert!(view.waiters.is_empty(), "{view:?}");
        assert!(view.holders.iter().all(|holder| holder.label == "holds"), "{view:?}");
        assert!(dropped.elapsed() < TAKEN_BACK + MACHINE, "{:?}", dropped.elapsed());
    }

    /// Waits until the lock is free, and asserts that this was in time.
    async fn nobody(&self, dropped: Instant) {
        until("the lock is free", async || self.f.view(&self.name).await.is_free()).await;
        assert!(dropped.elapsed() < TAKEN_BACK + MACHINE, "{:?}", dropped.elapsed());
        self.f.becomes_free(&self.name).await;
    }
}

/// Runs one scene as a writer and as a reader.
macro_rules! both {
    ($f:ident, $scene:ident, $waiting:ident => $body:block) => {{
        {
            let $scene = Scene::new($f).await;
            let mut $waiting = $scene.waiter.write(&$scene.name).into_future();
            $body
        }
        {
            let $scene = Scene::new($f).await;
            let mut $waiting = $scene.waiter.read(&$scene.name).into_future();
            $body
        }
    }};
}

/// Polls a waiter for a response timeout, so that all its requests are answered.
async fn polled_for_a_response_timeout<G: Guard>(waiting: &mut Acquiring<G>) {
    let began = Instant::now();
    while began.elapsed() < RESPONSE_TIMEOUT {
        stays_pending("the grant", waiting).await;
    }
}

/// Polls a waiter until the proxy holds its request.
async fn until_held<G: Guard>(waiting: &mut Acquiring<G>, request: &HeldRequest) {
    let began = Instant::now();
    loop {
        stays_pending("the grant", waiting).await;
        if request.wait_held(Duration::ZERO).is_ok() {
            return;
        }
        assert!(began.elapsed() < BOUND, "the request did not come");
    }
}

/// Polls a waiter until the proxy holds the answer to its request.
async fn until_applied<G: Guard>(waiting: &mut Acquiring<G>, reply: &HeldReply) {
    let began = Instant::now();
    loop {
        stays_pending("the grant", waiting).await;
        if reply.wait_applied(Duration::ZERO).is_ok() {
            return;
        }
        assert!(began.elapsed() < BOUND, "the answer did not come");
    }
}

async fn dropped_with_the_reply_to_its_first_question_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        let reply = scene.proxy.hold_reply(scene.questions());
        until_applied(&mut waiting, &reply).await;
        drop(waiting);
        scene.only_the_holder(Instant::now()).await;
        drop(reply);
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
    });
}

/// The waiter's first request may arrive after it was taken back, and changes nothing then.
async fn dropped_with_its_first_question_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        let request = scene.proxy.hold_request(scene.questions());
        until_held(&mut waiting, &request).await;
        drop(waiting);
        let dropped = Instant::now();
        // The release takes another connection, because this one is given up. So it overtakes the request.
        scene.proxy.wait_for_requests(scene.questions(), 2, BOUND).expect("it is taken back");
        request.release_and_wait(BOUND).expect("the server has answered");
        scene.only_the_holder(dropped).await;
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
        assert_eq!(recorded(f, &scene.name), 0);
    });
}

async fn dropped_while_it_subscribes(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        let reply = scene.proxy.hold_reply(scene.subscriptions());
        until_applied(&mut waiting, &reply).await;
        scene.waits().await;
        drop(waiting);
        scene.only_the_holder(Instant::now()).await;
        drop(reply);
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
    });
}

async fn dropped_while_it_waits_for_its_notification(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        polled_for_a_response_timeout(&mut waiting).await;
        scene.waits().await;
        drop(waiting);
        scene.only_the_holder(Instant::now()).await;
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
    });
}

async fn dropped_with_a_heartbeat_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        polled_for_a_response_timeout(&mut waiting).await;
        scene.waits().await;
        let seen = scene.proxy.requests_seen(scene.questions());
        let request = scene.proxy.hold_request(scene.questions());
        until_held(&mut waiting, &request).await;
        drop(waiting);
        let dropped = Instant::now();
        scene.proxy.wait_for_requests(scene.questions(), seen + 2, BOUND).expect("it is taken back");
        request.release_and_wait(BOUND).expect("the server has answered");
        scene.only_the_holder(dropped).await;
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
    });
}

async fn dropped_with_the_reply_to_a_heartbeat_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        polled_for_a_response_timeout(&mut waiting).await;
        scene.waits().await;
        let reply = scene.proxy.hold_reply(scene.questions());
        until_applied(&mut waiting, &reply).await;
        drop(waiting);
        scene.only_the_holder(Instant::now()).await;
        drop(reply);
        held.release_unharmed().await;
        f.becomes_free(&scene.name).await;
    });
}

/// The proxy holds the waiter's notification, with the confirmation of the subscription in front of it.
async fn dropped_with_its_grant_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        let reply = scene.proxy.hold_reply(scene.subscriptions());
        until_applied(&mut waiting, &reply).await;
        scene.waits().await;
        held.release_unharmed().await;
        assert_eq!(f.view(&scene.name).await.holders[0].label, "waits", "it has the lock and does not know");
        drop(waiting);
        scene.nobody(Instant::now()).await;
        drop(reply);
    });
}

async fn dropped_with_its_grant_not_looked_at(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        polled_for_a_response_timeout(&mut waiting).await;
        scene.waits().await;
        held.release_unharmed().await;
        assert_eq!(f.view(&scene.name).await.holders[0].label, "waits", "it has the lock and does not know");
        drop(waiting);
        scene.nobody(Instant::now()).await;
    });
}

async fn next_of_its_process_has_the_grant_that_was_on_its_way(f: &ServerFixture) {
    both!(f, scene, waiting => {
        let held = take(&scene.holder, &scene.name, Mode::Write).await;
        let reply = scene.proxy.hold_reply(scene.subscriptions());
        until_applied(&mut waiting, &reply).await;
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
    });
}
