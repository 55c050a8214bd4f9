//! Recalls of many waiters: their rate stays low.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Client, Reply};
use futures_util::future::join_all;
use redis_rwlock::Mode;
use tokio::task::{JoinSet, block_in_place};

use super::{cache_hold, caching};
use crate::either::take;
use crate::fixture::{ServerFixture, hash_on_every_server};
use crate::wait::{Outcome, soon, until};

hash_on_every_server![waiters_of_many_processes_recall_twice_a_second];

/// Number of processes with a cached hold, and of processes that wait. All of them have a heartbeat each second.
const PROCESSES: usize = 50;
const TASKS: usize = 3;
/// Number of recalls that the case times.
const RECALLS: u32 = 7;
/// Least time between two recalls. One millisecond is off, because the server counts whole ones.
const BETWEEN_RECALLS: Duration = Duration::from_millis(499);

/// Listener for the recalls of a lock.
struct RecallSubscriber {
    subscriber: Client,
    channel: String,
}

impl RecallSubscriber {
    fn of(f: &ServerFixture, name: &str) -> Self {
        let key = f.hash_key(name);
        let (mut subscriber, channel) = (f.servers.owner_of(&key).client().expect("connected"), key + ":call");
        subscriber.command(&["SSUBSCRIBE", &channel]).expect("answered").into_result().expect("subscribed");
        Self { subscriber, channel }
    }

    fn next(&mut self) -> String {
        let message = block_in_place(|| self.subscriber.receive()).expect("a message");
        let text = message.array().expect("kind, channel, text").last().and_then(Reply::text);
        text.expect("a text").into_owned()
    }

    /// Skips all messages that were published before this call.
    fn skip_the_past(&mut self, f: &ServerFixture) {
        const NOW: &str = "now";
        let mut tells = f.servers.owner_of(&self.channel).client().expect("connected");
        tells.command(&["SPUBLISH", &self.channel, NOW]).expect("answered").into_result().expect("published");
        while self.next() != NOW {}
    }
}

async fn waiters_of_many_processes_recall_twice_a_second(f: &ServerFixture) -> Outcome {
    let ([user], name) = f.scene_with(caching()).await;
    cache_hold(&user, &name, Mode::Read).await;
    let guard = user.read(&name).await?;
    let holders = join_all((0..PROCESSES).map(|_| f.manager_with(caching()))).await;
    for holder in &holders {
        cache_hold(holder, &name, Mode::Read).await;
    }
    let mut recalls = RecallSubscriber::of(f, &name);
    let mut waiting = JoinSet::new();
    for other in join_all((0..PROCESSES).map(|_| f.manager())).await {
        for _ in 0..TASKS {
            let (other, name) = (Arc::clone(&other), name.clone());
            waiting.spawn(async move { take(&other, &name, Mode::Write).await.release_unharmed().await });
        }
    }
    until("they all wait", async || f.view(&name).await.waiters.len() >= PROCESSES).await;
    until("who is not inside has left", async || holders.iter().all(|holder| holder.stats().holds == 0)).await;
    let view = f.view(&name).await;
    assert_eq!((view.holders.len(), view.holders[0].cached), (1, true), "who is inside has not: {view:?}");

    let began = Instant::now();
    recalls.skip_the_past(f);
    for _ in 0..RECALLS {
        recalls.next();
    }
    let took = began.elapsed();
    assert!(took >= BETWEEN_RECALLS * (RECALLS - 1), "{RECALLS} calls in {took:?}");
    guard.release().await?;
    while let Some(ended) = soon("the next writer", waiting.join_next()).await {
        ended?;
    }
    Ok(())
}
