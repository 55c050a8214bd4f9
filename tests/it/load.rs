//! Many calls at once: their requests, counted by the proxy in front of the server.

use std::num::NonZeroU32;
use std::time::Duration;

use cluster_testenv::{Matcher, Node, Proxy, Request, Server};
use redis::Script;
use redis_rwlock::{Topology, WriteGuard};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, Manager, Settings};
use crate::scripts;
use crate::wait::{BOUND, until};

mod burst;
mod crowd;
mod full;
mod groups;
mod outage;

/// Lease whose renewals are due long after a case is over.
const LONG: Duration = Duration::from_secs(300);

/// A server of the case's own, behind a proxy.
fn proxied_node() -> (Node, Fixture) {
    let node = Node::builder(Server::Redis70).proxied().start().expect("the server starts");
    let fixture = Fixture::hash(Topology::node(node.url()));
    (node, fixture)
}

fn limit(proxy: &Proxy, per_second: u32) {
    proxy.limit_scripts(NonZeroU32::new(per_second).expect("not zero"));
}

/// The calls of one script, by its digest or with its text.
fn calls_of(text: &'static str) -> Matcher {
    let is_call = is_call_of(text);
    Matcher::new(is_call)
}

fn is_call_of(text: &'static str) -> impl Fn(&Request) -> bool {
    let digest = Script::new(text).get_hash().to_owned();
    move |request| {
        let script = request.args().get(1).filter(|_| request.is_script());
        script.is_some_and(|script| [digest.as_bytes(), text.as_bytes()].contains(&&script[..]))
    }
}

/// Calls of scripts that renew nothing.
struct Calls(Matcher);

impl Calls {
    fn new() -> Self {
        let renews = is_call_of(scripts::hash::RENEW);
        Self(Matcher::new(move |request| request.is_script() && !renews(request)))
    }

    /// Number of calls that have come to the proxy. One count, because a renewal could come between two of them.
    fn without_renewals(&self, proxy: &Proxy) -> usize {
        proxy.requests_seen(self.0.clone())
    }
}

/// Loads the scripts, so that the manager sends none of them twice, and opens the connections that each kind of call
/// needs.
async fn warm(manager: &Manager) {
    manager.write("warm").await.expect("granted").release().await.expect("released");
    drop(manager.write("warm").await.expect("granted"));
    until("the dropped guard's lock is free", async || manager.inspect("warm").await.expect("inspected").is_free())
        .await;
}

/// Starts `count` acquisitions at once, each of a lock of its own.
fn acquire_at_once(manager: &Manager, count: usize) -> JoinSet<Result<WriteGuard, redis_rwlock::Error>> {
    let mut tasks = JoinSet::new();
    for lock in 0..count {
        let acquire = manager.write(&format!("burst-{lock}")).lease(LONG);
        tasks.spawn(async move { acquire.await });
    }
    tasks
}

/// Waits until nothing waits in front of the server.
async fn all_have_passed(proxy: &Proxy) {
    until("all scripts have passed", async || proxy.scripts_waiting() == 0).await;
}
