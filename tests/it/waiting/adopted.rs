//! Waiters for a lock whose key timestamp clients use: the server notifies them on a channel in the key's slot.

use std::sync::Arc;

use cluster_testenv::Reply;
use futures_util::future::join_all;
use redis_rwlock::Mode;

use super::process::Process;
use super::{HEARTBEAT, patient};
use crate::either::take;
use crate::fixture::{ServerFixture, Settings, hash_on_every_server};
use crate::servers::ask;
use crate::wait::{soon, until};

hash_on_every_server![hundred_waiters_are_woken_by_notifications];

const WAITERS: usize = 100;

async fn hundred_waiters_are_woken_by_notifications(f: &ServerFixture) {
    let limits = Settings::default().timestamp_clients;
    let template = format!("{}:*", f.prefix());
    let settings = || Settings {
        timestamp_keys: Some(template.clone()),
        timestamp_clients: limits.key_ttl(patient("").lease),
        ..patient("waits")
    };
    // As many managers as there are waiters: each of them has its own place in the queue, and its own channel.
    let managers = join_all((0..WAITERS).map(|_| f.manager_with(settings()))).await;
    let holder = f.manager_with(settings()).await;
    // The process records the events of the managers' tasks.
    let process = Process::start(f, 0, settings()).await;
    for mode in [Mode::Read, Mode::Write] {
        let name = f.name();
        let guard = take(&holder, &name, Mode::Write).await;
        let mut tasks = Vec::new();
        for manager in &managers {
            let (manager, name) = (Arc::clone(manager), name.clone());
            tasks.push(process.spawn(async move { take(&manager, &name, mode).await.release_unharmed().await }));
            // Their heartbeats are spread, so that few of them are under way at any time.
            tokio::time::sleep(HEARTBEAT / u32::try_from(WAITERS).expect("few")).await;
        }
        all_wait(f, &template.replace('*', &name)).await;
        guard.release_unharmed().await;
        for task in soon("all their turns", join_all(tasks)).await {
            task.expect("no panic");
        }
        let told = process.told();
        let by_notification =
            told.iter().filter(|told| told.lock == name && told.what == "granted by notification").count();
        println!("{by_notification} of {WAITERS} that waited to {mode} were granted by notification");
        // A waiter whose heartbeat was under way may be granted by its answer instead.
        assert!(by_notification > WAITERS / 2, "{by_notification}");
    }
}

/// Waits until all waiters are in the queue and have subscribed to their channels.
async fn all_wait(f: &ServerFixture, key: &str) {
    let node = f.servers.owner_of(key);
    let channels = format!("{{{key}}}:wake:*");
    until("they wait", async || {
        let subscribed = ask(node, &["PUBSUB", "SHARDCHANNELS", &channels]);
        let fields = f.on_key("HKEYS", key, &[]);
        let waiting =
            fields.array().expect("a list").iter().filter_map(Reply::text).filter(|field| field.starts_with('U'));
        subscribed.array().is_some_and(|channels| channels.len() == WAITERS) && waiting.count() == WAITERS
    })
    .await;
}
