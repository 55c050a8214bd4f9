//! A proxied cluster for one case alone, and load on it that checks exclusion and tokens.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use redis_rwlock::{Error, FencingToken, Topology};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, Manager};
use crate::servers::ask;
use crate::wait::until;

/// Node timeout that is longer than any stall of a busy machine. No replica takes over where no case asks for it.
const NO_FAILOVER: Duration = Duration::from_secs(15);

/// Each case with servers of its own, as `fn(Server)`.
macro_rules! on_own_servers {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_each_server!(super::$case);
        }
    )+};
}
pub(crate) use on_own_servers;

/// A cluster, and locks on its nodes.
pub struct Field {
    fixture: Fixture,
    pub cluster: Cluster,
}

impl Deref for Field {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl Field {
    /// Three primaries behind proxies, without replicas.
    pub fn primaries(server: Server) -> Self {
        Self::on(Cluster::builder(server).replicas(0).node_timeout(NO_FAILOVER).proxied().start())
    }

    /// Three primaries behind proxies, each with a replica that takes over when the test orders it.
    pub fn with_replicas(server: Server) -> Self {
        Self::on(Cluster::builder(server).node_timeout(NO_FAILOVER).proxied().start())
    }

    pub fn on(cluster: cluster_testenv::Result<Cluster>) -> Self {
        let cluster = cluster.expect("the cluster starts");
        Self { fixture: Fixture::hash(Topology::cluster(cluster.urls())), cluster }
    }

    /// A hash tag whose slot the node owns: all names with it are locks of this slot.
    pub fn tag_at(&self, node: &Node) -> String {
        let tags = (0..10_000).map(|n| format!("tag{n}"));
        let mut ours = tags.filter(|tag| self.cluster.primary_of_slot(self.cluster.keyslot(tag)).port() == node.port());
        ours.next().expect("one of so many lies there")
    }

    /// A hash tag whose slot the first node owns.
    pub fn tag(&self) -> String {
        self.tag_at(&self.cluster.nodes()[0])
    }

    /// The owner of a tag's slot.
    pub fn owner(&self, tag: &str) -> &Node {
        self.cluster.primary_of_slot(self.cluster.keyslot(tag))
    }

    /// Hash tags, one for each primary.
    pub fn tags(&self) -> Vec<String> {
        self.cluster.primaries().into_iter().map(|node| self.tag_at(node)).collect()
    }

    /// Waits until none of the locks has a holder on its server.
    pub async fn nothing_is_left(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            let key = self.hash_key(&name);
            until("nothing is left", async || {
                let owner = self.cluster.primary_of_slot(self.cluster.keyslot(&key));
                ask(owner, &["HGET", &key, "h"]).is_nil()
            })
            .await;
        }
    }

    /// Number of calls of a command, such as `cluster|slots`, at the running nodes.
    pub fn calls_of(&self, command: &str) -> u64 {
        let running = self.cluster.nodes().iter().filter(|node| node.is_running());
        running.map(|node| calls_of(node, command)).sum()
    }
}

/// Number of calls of a command at a node since it started.
pub fn calls_of(node: &Node, command: &str) -> u64 {
    let line = format!("cmdstat_{command}:calls=");
    let stats = ask(node, &["INFO", "commandstats"]).text().expect("text").into_owned();
    let count = stats.split_once(&line).and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    count.unwrap_or(0)
}

/// The name of the n-th lock with a tag.
pub fn name_of(tag: &str, n: usize) -> String {
    format!("{{{tag}}}-{n}")
}

/// A lock that many tasks write in turns, and its checks: one writer at a time, tokens that grow.
#[derive(Debug, Default)]
pub struct Witness {
    inside: AtomicBool,
    last_token: AtomicU64,
    pub uses: AtomicUsize,
}

impl Witness {
    pub fn uses(&self) -> usize {
        self.uses.load(Ordering::SeqCst)
    }

    /// Takes the lock once as a writer. The writer must be alone, and its token greater than all before.
    pub async fn use_once(&self, manager: &Manager, name: &str) -> Result<FencingToken, Error> {
        let guard = manager.write(name).await?;
        let token = guard.fencing_token();
        assert!(!self.inside.swap(true, Ordering::SeqCst), "{name}: two writers are inside");
        let number = u64::from(token);
        let last = self.last_token.swap(number, Ordering::SeqCst);
        assert!(number > last, "{name}: token {token} after {last}");
        tokio::task::yield_now().await;
        self.inside.store(false, Ordering::SeqCst);
        guard.release().await?;
        self.uses.fetch_add(1, Ordering::SeqCst);
        Ok(token)
    }
}

/// Tasks that take locks until they are stopped. Every one of their requests must succeed.
pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Result<(), Error>>,
    pub locks: Vec<(String, Arc<Witness>)>,
}

impl Load {
    /// Starts `tasks` tasks, spread over the locks and the managers.
    pub fn start(managers: &[Manager], names: impl IntoIterator<Item = String>, tasks: usize) -> Self {
        let locks: Vec<(String, Arc<Witness>)> = names.into_iter().map(|name| (name, Arc::default())).collect();
        let mut load = Self { stop: Arc::default(), tasks: JoinSet::new(), locks };
        for n in 0..tasks {
            let (name, witness) = load.locks[n % load.locks.len()].clone();
            // Spread so that all managers want each lock.
            let manager = Arc::clone(&managers[n / load.locks.len() % managers.len()]);
            let stop = Arc::clone(&load.stop);
            load.tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    witness.use_once(&manager, &name).await?;
                }
                Ok(())
            });
        }
        load
    }

    /// Waits until each lock has changed hands `uses` times from now on.
    pub async fn goes_on(&self, what: &str, uses: usize) {
        let before: Vec<usize> = self.locks.iter().map(|(_, lock)| lock.uses()).collect();
        until(what, async || self.locks.iter().zip(&before).all(|((_, lock), before)| lock.uses() >= before + uses))
            .await;
    }

    /// Lets all tasks come to their end, each with success.
    pub async fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic").expect("no request fails");
        }
    }
}
