//! Requests that were applied and whose replies were lost: no false success, no false denial, nothing counts twice.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Fault, HeldReply, Matcher, Node, Proxy, Server};
use redis_rwlock::{HoldState, LossReason, Mode};
use tokio::task::block_in_place;

use super::field::on_own_servers;
use crate::fixture::{Fixture, RENEWED, Settings};
use crate::nodes::{hash_on, proxied};
use crate::scripts::hash::{ACQUIRE, LEAVE, RENEW};
use crate::servers::ask;
use crate::wait::{BOUND, Outcome, granted, soon, spawn, until};
use crate::wire::{arrives, is_held};

on_own_servers![
    acquisition_finds_its_own_hold,
    renewal_is_repeated_and_no_loss_is_told,
    release_is_repeated_and_frees_nobody_elses_hold,
    copy_that_comes_late_changes_nothing,
];

/// Way in which a reply is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// The connection breaks.
    Cut,
    /// The reply never comes, and the connection stays.
    Dropped,
}

impl Lost {
    const EITHER: [Self; 2] = [Self::Cut, Self::Dropped];

    /// Loses the reply to the next request that matches.
    fn next(self, proxy: &Proxy, matcher: Matcher) -> Losing {
        match self {
            Self::Cut => Losing::Cut(proxy.cut_after_apply(matcher)),
            Self::Dropped => Losing::Drop(proxy.hold_reply(matcher)),
        }
    }
}

enum Losing {
    Cut(Fault),
    Drop(HeldReply),
}

impl Losing {
    /// Returns once the server has applied the request and the reply is lost.
    fn wait(self) {
        block_in_place(|| match self {
            Self::Cut(fault) => fault.wait_applied(BOUND).expect("applied"),
            Self::Drop(held) => {
                held.wait_applied(BOUND).expect("applied");
                held.drop_reply();
            }
        });
    }
}

/// Calls of a script that name a lock.
fn calls(script: &str, key: &str) -> Matcher {
    let digest = redis::Script::new(script).get_hash().to_owned();
    Matcher::command("EVALSHA").and(digest).and(key.to_owned())
}

/// A server behind a proxy that knows all scripts already.
fn start(server: Server) -> (Node, Fixture) {
    let node = proxied(server);
    for script in [ACQUIRE, LEAVE, RENEW] {
        ask(&node, &["SCRIPT", "LOAD", script]);
    }
    let fixture = hash_on(&node);
    (node, fixture)
}

fn quick() -> Settings {
    // One token a grant, so that the last one is the guard's.
    Settings { response_timeout: Duration::from_millis(200), max_handoffs: 1, ..Settings::default() }
}

async fn acquisition_finds_its_own_hold(server: Server) -> Outcome {
    let (node, fixture) = start(server);
    let (manager, other) = (fixture.manager_with(quick()).await, fixture.manager().await);
    for lost in Lost::EITHER {
        for mode in [Mode::Read, Mode::Write] {
            let name = fixture.name();
            let key = fixture.hash_key(&name);
            let losing = lost.next(node.proxy(), calls(ACQUIRE, &key));
            let (asking, wanted) = (Arc::clone(&manager), name.clone());
            // A try, which needs one answer: silence is no denial for it either.
            let asking = tokio::spawn(async move {
                Ok::<_, redis_rwlock::Error>(match mode {
                    Mode::Read => asking.try_read(&wanted).await?.map(|guard| (guard.fencing_token(), Ok(guard))),
                    Mode::Write => asking.try_write(&wanted).await?.map(|guard| (guard.fencing_token(), Err(guard))),
                })
            });
            losing.wait();
            let token = ask(&node, &["HGET", &key, "t"]).text().expect("a token").into_owned();
            let granted = soon("the grant", asking).await??;
            let (seen, guard) = granted.expect("silence is no denial");
            assert_eq!(u64::from(seen).to_string(), token, "{lost:?} {mode}: the same hold");
            assert_eq!(other.inspect(&name).await?.holders.len(), 1, "{lost:?} {mode}: one hold");
            match guard {
                Ok(guard) => guard.release().await?,
                Err(guard) => guard.release().await?,
            }
            let guard = other.try_write(&name).await?.expect("one release frees it");
            guard.release().await?;
        }
    }
    Ok(())
}

async fn renewal_is_repeated_and_no_loss_is_told(server: Server) {
    let (node, fixture) = start(server);
    let manager = fixture.manager_with(Settings { lease: RENEWED * 2, ..quick() }).await;
    for lost in Lost::EITHER {
        let name = fixture.name();
        let guard = manager.write(&name).await.expect("granted");
        lost.next(node.proxy(), calls(RENEW, &fixture.hash_key(&name))).wait();
        // The lease counts from the moment at which the answered copy was sent.
        let renewed = async || guard.state() == HoldState::Held && guard.remaining() > RENEWED * 3 / 2;
        until("the repeated renewal is answered", renewed).await;
        tokio::time::sleep(RENEWED * 2).await;
        // On a busy machine a later renewal may have no answer yet.
        until("an answer to the last renewal", async || guard.state() != HoldState::Unconfirmed).await;
        assert_eq!(guard.state(), HoldState::Held, "{lost:?}");
        guard.release().await.expect("ours to the end");
    }
}

async fn release_is_repeated_and_frees_nobody_elses_hold(server: Server) -> Outcome {
    let (node, fixture) = start(server);
    let (manager, other) = (fixture.manager_with(quick()).await, fixture.manager().await);
    for lost in Lost::EITHER {
        let name = fixture.name();
        let guard = manager.write(&name).await?;
        let losing = lost.next(node.proxy(), calls(LEAVE, &fixture.hash_key(&name)));
        let releasing = tokio::spawn(guard.release());
        losing.wait();
        // The server has applied the release, so the next writer may enter before the repeated release comes.
        let heir = other.write(&name).await?;
        soon("the release", releasing).await?.expect("it was ours to the end");
        assert_eq!(other.inspect(&name).await?.holders.len(), 1, "{lost:?}: the heir's");
        heir.release().await.expect("nobody else released it");
    }
    // A release succeeds only if the server still had the hold, or if a copy of this release can have ended it.
    let name = fixture.name();
    let guard = manager.write(&name).await?;
    other.force_release(&name).await?;
    let losing = Lost::Cut.next(node.proxy(), calls(LEAVE, &fixture.hash_key(&name)));
    let releasing = tokio::spawn(guard.release());
    losing.wait();
    match soon("the release", releasing).await?.expect_err("it was ended before") {
        redis_rwlock::Error::Lost { reason, .. } => assert_eq!(reason, LossReason::Forced),
        error => panic!("{error:?}"),
    }
    Ok(())
}

/// A request hangs for longer than its caller waits. It arrives after its lock was given back, once while the lock is
/// free and once while another process has it.
async fn copy_that_comes_late_changes_nothing(server: Server) -> Outcome {
    let (node, fixture) = start(server);
    // Long enough that the release which follows the limit of a copy comes after this case has looked.
    let settings = Settings { response_timeout: Duration::from_secs(1), ..Settings::default() };
    let (manager, other) = (fixture.manager_with(settings).await, fixture.manager().await);
    for is_taken_by_another in [false, true] {
        let name = fixture.name();
        let key = fixture.hash_key(&name);
        let held = node.proxy().hold_request(calls(ACQUIRE, &key));
        let asking = spawn(manager.write(&name));
        is_held(&held).await;
        // The retry, on a connection of its own.
        let guard = granted(asking).await;
        guard.release().await?;
        // Two releases come: the caller's, and one of the background because a request is in doubt.
        block_in_place(|| node.proxy().wait_for_requests(calls(LEAVE, &key), 2, BOUND)).expect("told twice");
        let heir = match is_taken_by_another {
            true => Some(other.write(&name).await?),
            false => None,
        };
        let writer = || ask(&node, &["HGET", &key, "h"]);
        let before = writer();
        arrives(held);
        assert_eq!(writer(), before, "taken by another: {is_taken_by_another}");
        if let Some(heir) = heir {
            heir.release().await?;
        }
        fixture.becomes_free(&name).await;
    }
    Ok(())
}
