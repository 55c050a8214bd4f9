//! Connections to the servers: TLS, Sentinels, URLs, addresses that change. Cases have servers of their own.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Node, Reply, Sentinels};
use redis_rwlock::{Build, Builder, Error, Topology};

use crate::errors::option_of;
use crate::wait::{soon, works};

mod announced;
mod credentials;
mod proxy;
mod resp2;
mod rotated;
mod sentinels;
#[cfg(feature = "tls")]
mod tls;
mod urls;

/// Time that a manager tries where it is to find no server.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(1200);
/// Allowance beyond the patience, for a machine that is busy with other tests.
const LATE: Duration = Duration::from_secs(5);
/// Time that a manager tries where it is to find a server. Longer than any case waits, so a refusal does not come from
/// impatience.
const FOR_EVER: Duration = Duration::from_secs(300);

/// The primary that Sentinels name.
pub fn behind_sentinels(servers: &Sentinels) -> Topology {
    Topology::sentinel(servers.primary_name(), servers.urls())
}

fn patient<M: Build>(builder: Builder<M>) -> Builder<M> {
    builder.max_clock_skew(Duration::from_millis(5)).unreachable_after(FOR_EVER)
}

fn impatient<M: Build>(builder: Builder<M>) -> Builder<M> {
    patient(builder).unreachable_after(UNREACHABLE_AFTER)
}

/// Error of a manager that connects. It comes before the patience ends.
async fn refused<M: Build>(builder: Builder<M>) -> Error {
    let error = soon("the refusal", patient(builder).connect()).await.expect_err("no");
    assert!(!matches!(error, Error::Unreachable { .. }), "{error:?}");
    error
}

/// Asserts that a manager fails in time when its patience ends, both at connect and at first use.
async fn finds_nobody<M: Build>(builder: impl Fn() -> Builder<M> + Send) {
    let asked = Instant::now();
    let now = soon("the end of connecting", impatient(builder()).connect()).await.expect_err("nobody");
    let manager = impatient(builder()).build().expect("built");
    let later = soon("the end of the wait", manager.write("cfg")).await.expect_err("nobody");
    assert!(
        (2 * UNREACHABLE_AFTER..2 * (UNREACHABLE_AFTER + LATE)).contains(&asked.elapsed()),
        "{:?}",
        asked.elapsed()
    );
    for error in [now, later] {
        assert_matches!(error, Error::Unreachable { .. });
    }
}

/// Text of an error as a log would show it, with its sources.
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

/// Returns how often a host is named in an answer.
fn mentions(reply: &Reply, host: &str) -> usize {
    match reply {
        Reply::Array(replies) => replies.iter().map(|reply| mentions(reply, host)).sum(),
        other => usize::from(other.text().is_some_and(|text| text == host)),
    }
}

/// Names of locks, one on each primary of a cluster.
fn names_on_every_primary(cluster: &Cluster) -> Vec<String> {
    let owns = |port: u16, name: &str| cluster.primary_of_slot(cluster.keyslot(name)).port() == port;
    let ports: Vec<u16> = cluster.primaries().into_iter().map(Node::port).collect();
    let name = |port| (0..).map(|n| format!("cfg{n}")).find(|name| owns(port, name));
    ports.into_iter().filter_map(name).collect()
}
