//! Locks that need a majority of independent masters.

mod contenders;
mod faults;
mod patterns;
mod restarts;

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Masters, Node, Server};
use redis_rwlock::{Mode, QuorumManager, RwLockManager, TwoKeyManager};

use crate::fixture::Manager;

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

    /// A manager of one master, for a hold that only some of the masters have.
    async fn at(&self, master: usize) -> TwoKeyManager {
        at(&self.nodes()[master].url()).await
    }
}

/// A manager of these masters. They have just been started, so it does not let them wait before they vote.
async fn manager(urls: &[String], lease: Duration) -> Manager {
    let builder = QuorumManager::builder(urls.to_vec()).restarts_are_delayed();
    let builder = builder.key_prefix(PREFIX).lease(lease).max_clock_skew(Duration::from_millis(5));
    Arc::new(builder.connect().await.expect("a majority answers"))
}

async fn at(url: &str) -> TwoKeyManager {
    TwoKeyManager::builder(url).key_prefix(PREFIX).connect().await.expect("the master answers")
}

/// Returns true if the lock has no holder at that master.
async fn is_free(there: &TwoKeyManager, name: &str) -> bool {
    there.inspect(name).await.expect("inspected").is_free()
}

/// Modes of the lock's holders at that master.
async fn holders(there: &TwoKeyManager, name: &str) -> Vec<Mode> {
    let view = there.inspect(name).await.expect("inspected");
    view.holders.iter().map(|holder| holder.mode).collect()
}
