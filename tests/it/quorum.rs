//! Locks that need a majority of independent masters.

mod contenders;
mod faults;
mod patterns;
mod restarts;

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Masters, Node, Server};
use futures_util::future::join_all;
use redis_rwlock::{Mode, QuorumManager, RwLockManager, TwoKeyManager};

use crate::fixture::Manager;
use crate::wait::until;

/// Masters for one case alone.
struct Field {
    masters: Masters,
}

const PREFIX: &str = "quorum";

impl Field {
    fn start(count: usize) -> Self {
        Self { masters: Masters::start(Server::Valkey91, count).expect("the masters start") }
    }

    fn nodes(&self) -> &[Node] {
        self.masters.nodes()
    }

    async fn manager(&self, lease: Duration) -> Manager {
        manager(&self.masters.urls(), lease).await
    }

    /// Managers of one master each, for holds that only some of the masters have.
    async fn at_each(&self) -> Vec<TwoKeyManager> {
        join_all(self.nodes().iter().map(at)).await
    }
}

/// Manager of these masters. They have just been started, so it does not let them wait before they vote.
async fn manager(urls: &[String], lease: Duration) -> Manager {
    let builder = QuorumManager::builder(urls.to_vec()).restarts_are_delayed();
    let builder = builder.key_prefix(PREFIX).lease(lease).max_clock_skew(Duration::from_millis(5));
    Arc::new(builder.connect().await.expect("a majority answers"))
}

async fn at(node: &Node) -> TwoKeyManager {
    TwoKeyManager::builder(node.url()).key_prefix(PREFIX).connect().await.expect("the master answers")
}

/// Waits until the lock has these holders at each of some masters.
async fn until_held_by(there: &[TwoKeyManager], name: &str, modes: &[Mode]) {
    for there in there {
        until("its holders are those", async || holders(there, name).await == modes).await;
    }
}

/// Modes of the lock's holders at that master.
async fn holders(there: &TwoKeyManager, name: &str) -> Vec<Mode> {
    let view = there.inspect(name).await.expect("inspected");
    view.holders.iter().map(|holder| holder.mode).collect()
}
