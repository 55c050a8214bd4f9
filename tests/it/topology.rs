//! Where servers are and how they are reached: TLS, Sentinels, URLs. Cases have servers of their own.

use std::time::Duration;

use cluster_testenv::{Cluster, Node};
use redis_rwlock::{Build, Builder, Error, RwLockManager};

use crate::wait::soon;

mod sentinels;
#[cfg(feature = "tls")]
mod tls;
mod urls;

/// How long a manager that finds nobody tries.
const PATIENCE: Duration = Duration::from_millis(1200);

/// Options of managers on a machine that is busy with other tests.
fn settled<M: Build>(builder: Builder<M>) -> Builder<M> {
    builder.clock_margin(Duration::from_millis(5)).unreachable_after(PATIENCE)
}

/// Takes a lock for writing and gives it back.
async fn works(manager: &dyn RwLockManager, name: &str) {
    let guard = soon("the grant", manager.write(name).into_future()).await.expect("granted");
    guard.release().await.expect("ours to the end");
}

fn option_of(error: &Error) -> &'static str {
    match error {
        Error::InvalidOption { option, .. } => option,
        other => panic!("{other:?}"),
    }
}

/// An error as a log would show it: all of its words, and those of its sources.
fn shown(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    if let Error::Unreachable { source: Some(below), .. } = error {
        text += &format!(" {below} {below:?}");
        source = below.source();
    }
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

/// One name for each primary of a cluster, whose lock lies there.
fn names_on_every_primary(cluster: &Cluster) -> Vec<String> {
    let owns = |port: u16, name: &str| cluster.primary_of_slot(cluster.keyslot(name)).port() == port;
    let ports: Vec<u16> = cluster.primaries().into_iter().map(Node::port).collect();
    let name = |port| (0..).map(|n| format!("cfg{n}")).find(|name| owns(port, name));
    ports.into_iter().filter_map(name).collect()
}
