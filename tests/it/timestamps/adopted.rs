//! Keys that timestamp clients use already, with any name.

use std::fmt::Debug;
use std::time::Duration;

use cluster_testenv::Reply;
use redis_rwlock::{Builder, Error, LossReason, Mode, RedisManager, RwLockManager, TimestampClients, blocking};

use super::{LONG, MODES, TimestampClient, excludes, is_denied};
use crate::either::take;
use crate::errors::assert_lost;
use crate::errors::option_of;
use crate::fixture::{ServerFixture, Settings, hash_on_every_server};
use crate::wait::Outcome;

hash_on_every_server![
    our_hold_and_theirs_exclude_each_other,
    lock_is_the_key_as_it_was,
    join_with_a_lease_beyond_their_ttl_is_refused,
];

/// Keys with and without a hash tag, which is in the template or in the name. Each is a template, without the case's
/// prefix, and a name.
const KEYS: [(&str, &str); 5] =
    [(":*", "cfg"), (":*", "{user}:1"), (":{*}", "cfg"), (":{shop}:*", "cfg"), (":*:rw", "a{b")];

/// Settings with which the clients' stamps count, and their keys live, for as long as a case runs.
fn adopting(template: &str) -> Settings {
    let timestamp_clients = TimestampClients::new(LONG, LONG).key_ttl(LONG);
    Settings { timestamp_keys: Some(template.to_owned()), timestamp_clients, ..Settings::lease(LONG) }
}

async fn our_hold_and_theirs_exclude_each_other(f: &ServerFixture) {
    for (template, name) in KEYS {
        let template = [f.prefix(), template].concat();
        let manager = f.manager_with(adopting(&template)).await;
        let mut timestamp_client = TimestampClient { ttl: LONG, ..TimestampClient::at(f, template.replace('*', name)) };
        for ours in MODES {
            for theirs in MODES.into_iter().filter(|&theirs| excludes(ours, theirs)) {
                let guard = take(&manager, name, ours).await;
                timestamp_client.is_refused(theirs);
                guard.release_unharmed().await;
                let stamp = timestamp_client.lock(theirs);
                is_denied(&manager, name, ours).await;
                timestamp_client.unlock(stamp);
                take(&manager, name, ours).await.release_unharmed().await;
            }
        }
        // Readers of both kinds do not exclude each other.
        let (guard, stamp) = (take(&manager, name, Mode::Read).await, timestamp_client.lock(Mode::Read));
        timestamp_client.unlock(stamp);
        guard.release_unharmed().await;
    }
}

async fn lock_is_the_key_as_it_was(f: &ServerFixture) -> Outcome {
    for (template, name) in KEYS {
        let template = [f.prefix(), template].concat();
        let key = template.replace('*', name);
        let (manager, by_key) = (f.manager_with(adopting(&template)).await, f.manager_with(adopting("*")).await);
        let guard = take(&manager, name, Mode::Write).await;
        assert_eq!(f.on_key("HEXISTS", &key, &["write"]), Reply::Int(1), "{key}");
        let view = manager.inspect(name).await?;
        assert_eq!((view.name.as_str(), view.holders.len()), (name, 1));
        let names = manager.locks().await?;
        assert!(names.iter().any(|listed| listed == name), "{template}: {names:?}");
        is_denied(&by_key, &key, Mode::Read).await;
        by_key.force_release(&key).await?;
        let error = guard.release().await.expect_err("it was ended");
        assert_lost(&error, LossReason::Forced);
        take(&manager, name, Mode::Write).await.release_unharmed().await;
    }
    Ok(())
}

async fn join_with_a_lease_beyond_their_ttl_is_refused(f: &ServerFixture) {
    let timestamp_clients = TimestampClients::default();
    let settings = adopting(&format!("{}:*", f.prefix()));
    let manager = f.manager_with(Settings { timestamp_clients, lease: timestamp_clients.key_ttl, ..settings }).await;
    let guard = take(&manager, "cfg", Mode::Read).await;
    assert_eq!(refused(manager.read("cfg").lease(Duration::from_secs(27)).await), "lease");
    guard.release_unharmed().await;
}

fn refused<T: Debug>(outcome: Result<T, Error>) -> &'static str {
    option_of(&outcome.expect_err("refused"))
}

/// A builder for an address where no server listens: a request would get no answer.
fn nowhere() -> Builder<RedisManager> {
    RedisManager::builder("redis://127.0.0.1:1")
}

#[test]
fn templates_that_are_none_are_refused() {
    for template in ["", "lock", "lock:{}", "*:*", "lock{}:*", "lock:*\n", &"x*".repeat(200)] {
        assert_eq!(refused(nowhere().timestamp_keys(template).build()), "timestamp_keys", "{template}");
        let blocking = blocking::Blocking::build(nowhere().timestamp_keys(template));
        assert_eq!(refused(blocking), "timestamp_keys", "{template}");
    }
    nowhere().timestamp_keys("*").build().expect("the key is the name");
}

#[tokio::test]
async fn leases_beyond_their_ttl_are_refused() {
    let adopted = || nowhere().timestamp_keys("lock:*");
    let secs = Duration::from_secs;
    assert_eq!(refused(adopted().lease(secs(27)).build()), "lease");
    assert_eq!(
        refused(adopted().lease(TimestampClients::default().key_ttl + Duration::from_millis(1)).build()),
        "lease"
    );
    // A fixed lease is a lease.
    assert_eq!(refused(adopted().lease(secs(27)).max_hold(secs(20)).build()), "lease");
    nowhere().lease(secs(27)).build().expect("keys of our own");
    let longer = TimestampClients::default().key_ttl(secs(27));
    adopted().timestamp_clients(longer).lease(secs(27)).build().expect("as long as their ttl");
    let shorter = TimestampClients::default().key_ttl(secs(5));
    assert_eq!(refused(adopted().timestamp_clients(shorter).build()), "lease", "the default is longer");

    let manager = adopted().build().expect("the default is not longer");
    assert_eq!(refused(manager.write("cfg").lease(secs(27)).await), "lease");
    assert_eq!(refused(manager.read("cfg").lease(secs(27)).await), "lease");
    assert_eq!(refused(manager.read("cfg").lease(secs(27)).max_hold(secs(20)).try_now().await), "lease");
}

#[tokio::test]
async fn names_that_no_channel_fits_are_refused() {
    for (template, name) in [("lock:*", "a}b"), ("lock:{*}", "}"), ("*", "{cfg}"), ("*", ""), ("lock}*", "cfg")] {
        let manager = nowhere().timestamp_keys(template).build().expect("a template");
        for outcome in [
            manager.write(name).await.map(drop),
            manager.try_read(name).await.map(drop),
            manager.inspect(name).await.map(drop),
            manager.force_release(name).await.map(drop),
        ] {
            assert!(matches!(outcome, Err(Error::InvalidName { .. })), "{template} {name}: {outcome:?}");
        }
    }
}
