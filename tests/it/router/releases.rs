//! Outcome of a release: `Ok` only when the hold is known to have been ours to the end.

use std::time::Duration;

use redis_rwlock::{Error, LossReason, Mode};
use tokio::task::JoinHandle;

use crate::either::take;
use crate::fixture::{ServerFixture, Settings, alone_on_every_server, proxied_on_every_server};
use crate::wait::{soon, until};
use crate::wire::{Script, is_applied};

proxied_on_every_server![
    release_whose_reply_was_lost_is_a_success,
    release_of_a_lost_hold_whose_reply_was_lost_is_no_success,
];

alone_on_every_server![hold_that_is_gone_with_its_connection_is_lost];

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
/// Lease of holds that need no renewal while a case runs.
const LONG: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { response_timeout: Duration::from_secs(2), ..Settings::lease(LONG) }
}

async fn is_lost(releasing: JoinHandle<redis_rwlock::Result<()>>, what: &str) {
    match soon("the release", releasing).await.expect("no panic") {
        Err(Error::Lost { reason: LossReason::Gone, .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// Deletes all keys of a lock.
fn delete(f: &ServerFixture, name: &str) {
    for key in f.keys_of(name) {
        f.on_key("DEL", &key, &[]);
    }
}

async fn release_whose_reply_was_lost_is_a_success(f: &ServerFixture) {
    for mode in MODES {
        for is_taken_meanwhile in [false, true] {
            let (manager, other, name) = (f.manager_with(settings()).await, f.manager().await, f.name());
            let guard = take(&manager, &name, mode).await;
            let reply = f.proxy(&name).hold_reply(f.requests(Script::Leave, &name));
            let releasing = tokio::spawn(guard.release());
            is_applied(&reply).await;
            // More than one writer has been inside since.
            for _ in 0..if is_taken_meanwhile { 3 } else { 0 } {
                take(&other, &name, Mode::Write).await.release_unharmed().await;
            }
            reply.cut();
            let released = soon("the release", releasing).await.expect("no panic");
            released.unwrap_or_else(|error| panic!("{mode}, taken meanwhile: {is_taken_meanwhile}: {error}"));
        }
    }
}

/// The server had lost the hold before the first copy of its release came.
async fn release_of_a_lost_hold_whose_reply_was_lost_is_no_success(f: &ServerFixture) {
    for mode in MODES {
        for is_taken_meanwhile in [false, true] {
            let (manager, other, name) = (f.manager_with(settings()).await, f.manager().await, f.name());
            let guard = take(&manager, &name, mode).await;
            delete(f, &name);
            if is_taken_meanwhile {
                take(&other, &name, Mode::Write).await.release_unharmed().await;
            }
            let cut = f.proxy(&name).cut_after_apply(f.requests(Script::Leave, &name));
            let releasing = tokio::spawn(guard.release());
            until("the reply is lost", async || cut.wait_applied(Duration::ZERO).is_ok()).await;
            is_lost(releasing, &format!("{mode}, taken meanwhile: {is_taken_meanwhile}")).await;
        }
    }
}

/// The test deletes a key, another process takes the lock, and the connection breaks while no request uses it.
async fn hold_that_is_gone_with_its_connection_is_lost(f: &ServerFixture) {
    for mode in MODES {
        let (manager, other, name) = (f.manager_with(settings()).await, f.manager().await, f.name());
        let guard = take(&manager, &name, mode).await;
        delete(f, &name);
        for node in f.servers.primaries() {
            node.kill_clients().expect("killed");
        }
        let heir = take(&other, &name, Mode::Write).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        is_lost(tokio::spawn(guard.release()), "after an idle second").await;
        heir.release_unharmed().await;
    }
}

async fn hold_on_a_server_that_was_restarted_empty_is_lost(f: &ServerFixture) {
    let node = f.servers.primaries()[0];
    for mode in MODES {
        let ([manager], name) = f.scene_with(settings()).await;
        let guard = take(&manager, &name, mode).await;
        node.kill();
        node.restart().expect("empty");
        let heir = take(&f.manager().await, &name, Mode::Write).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        is_lost(tokio::spawn(guard.release()), "restarted empty").await;
        heir.release_unharmed().await;
    }
}

mod hold_on_a_server_that_was_restarted_empty_is_lost {
    crate::fixture::on_nodes!(hold_on_a_server_that_was_restarted_empty_is_lost, alone.await);
}
