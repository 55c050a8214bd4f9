//! A rolling upgrade: the nodes of a cluster get a newer server one after the other, replicas first, while processes take
//! and hold locks. Servers of both versions serve the cluster meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use parking_lot::Mutex;
use redis_rwlock::{HoldState, Mode};
use tokio::task::JoinSet;

use super::field::{Field, name_of};
use crate::either::{AnyGuard, take};
use crate::fixture::{Manager, Settings};
use crate::servers::software;
use crate::wait::{run, until};

/// Time limit of a case: each of six nodes takes some seconds.
const BOUND: Duration = Duration::from_secs(240);
/// Lease of the workers' holds, and the time for which some are held: over several renewals.
const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(5);
const MANAGERS: usize = 3;
const WORKERS: usize = 6;

/// Data that a lock protects: it notices holders that are inside at the same time, and tokens that do not grow.
#[derive(Debug, Default)]
struct Register {
    inside: Mutex<Inside>,
    uses: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inside {
    readers: usize,
    writers: usize,
    last_token: u64,
}

impl Register {
    fn enter(&self, name: &str, guard: &AnyGuard) {
        let mut inside = self.inside.lock();
        let token = u64::from(guard.token());
        if matches!(guard, AnyGuard::Write(_)) {
            assert_eq!((inside.readers, inside.writers), (0, 0), "{name}: a writer beside others");
            assert!(token > inside.last_token, "{name}: token {token} after {}", inside.last_token);
            inside.writers += 1;
        } else {
            assert_eq!(inside.writers, 0, "{name}: a reader beside a writer");
            // Readers of one phase share a token.
            assert!(token >= inside.last_token, "{name}: token {token} after {}", inside.last_token);
            inside.readers += 1;
        }
        inside.last_token = token;
    }

    fn leave(&self, guard: &AnyGuard) {
        let mut inside = self.inside.lock();
        match guard {
            AnyGuard::Read(_) => inside.readers -= 1,
            AnyGuard::Write(_) => inside.writers -= 1,
        }
        self.uses.fetch_add(1, Ordering::SeqCst);
    }
}

/// Workers on locks of each shard, and one hold in each shard from the beginning to the end.
struct Crew {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    registers: Vec<Arc<Register>>,
    held: Vec<AnyGuard>,
    /// Number of refused tries of the locks that are held.
    refused: Arc<AtomicUsize>,
}

impl Crew {
    async fn start(field: &Field, tags: &[String]) -> Self {
        let mut managers = Vec::new();
        for _ in 0..MANAGERS {
            managers.push(field.manager_with(Settings::lease(LEASE)).await);
        }
        let mut crew = Self {
            stop: Arc::default(),
            tasks: JoinSet::new(),
            registers: Vec::new(),
            held: Vec::new(),
            refused: Arc::default(),
        };
        for tag in tags {
            for (n, hold_for) in [SHORT, LONG].into_iter().enumerate() {
                crew.put_to_work(&managers, &name_of(tag, n), hold_for);
            }
            let name = name_of(tag, 99);
            crew.held.push(take(&managers[0], &name, Mode::Write).await);
            crew.try_again_and_again(Arc::clone(&managers[1]), name);
        }
        crew
    }

    fn put_to_work(&mut self, managers: &[Manager], name: &str, hold_for: Duration) {
        let register = Arc::<Register>::default();
        self.registers.push(Arc::clone(&register));
        for n in 0..WORKERS {
            let (manager, name, register) =
                (Arc::clone(&managers[n % MANAGERS]), name.to_owned(), Arc::clone(&register));
            let (stop, mode) = (Arc::clone(&self.stop), if n < 2 { Mode::Write } else { Mode::Read });
            self.tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    // The wait has no limit: a long hold in front takes as long as it takes.
                    let guard = match mode {
                        Mode::Read => manager.read(&name).await.map(AnyGuard::Read),
                        Mode::Write => manager.write(&name).await.map(AnyGuard::Write),
                    };
                    let guard = guard.expect("granted");
                    register.enter(&name, &guard);
                    tokio::time::sleep(hold_for).await;
                    assert!(!matches!(guard.state(), HoldState::Lost(_)), "{name}: {:?}", guard.state());
                    register.leave(&guard);
                    guard.release().await.expect("ours to the end");
                }
            });
        }
    }

    /// Tries to get a lock that another process holds until the end.
    fn try_again_and_again(&mut self, manager: Manager, name: String) {
        let (stop, refused) = (Arc::clone(&self.stop), Arc::clone(&self.refused));
        self.tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                assert!(manager.try_write(&name).await.expect("answered").is_none(), "{name} is held twice");
                refused.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }

    /// Waits until each lock has been used again, and the held ones refused again.
    async fn goes_on(&mut self, what: &str) {
        let uses = |register: &Arc<Register>| register.uses.load(Ordering::SeqCst);
        let before: Vec<usize> = self.registers.iter().map(uses).collect();
        let refused = self.refused.load(Ordering::SeqCst);
        until(what, async || {
            if let Some(ended) = self.tasks.try_join_next() {
                ended.expect("no worker ends by itself");
            }
            self.registers.iter().zip(&before).all(|(register, before)| uses(register) > *before)
                && self.refused.load(Ordering::SeqCst) > refused
        })
        .await;
        for guard in &self.held {
            assert!(!matches!(guard.state(), HoldState::Lost(_)), "{what}: {:?}", guard.state());
        }
    }

    /// Lets all workers come to their end, and releases what was held from the beginning.
    async fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no worker fails");
        }
        for guard in self.held {
            guard.release_unharmed().await;
        }
    }
}

fn versions(cluster: &Cluster) -> BTreeSet<(String, String)> {
    cluster.nodes().iter().map(software).collect()
}

async fn rolling_upgrade_loses_nothing(from: Server, to: Server) {
    // No replica takes over by itself, however busy the machine is.
    let mut field = Field::on(Cluster::builder(from).node_timeout(Duration::from_secs(15)).start());
    let (old, new) = (versions(&field.cluster), BTreeSet::from([software(&Node::start(to).expect("it starts"))]));
    assert!(old.is_disjoint(&new), "{old:?} {new:?}");
    let ports: Vec<u16> = field.cluster.nodes().iter().map(Node::port).collect();
    let tags = field.tags();
    let mut crew = Crew::start(&field, &tags).await;
    crew.goes_on("before the upgrade").await;
    // The replicas stand behind the primaries.
    let order: Vec<usize> = (0..field.cluster.nodes().len()).rev().collect();
    for (done, index) in (1..).zip(&order) {
        tokio::task::block_in_place(|| field.cluster.upgrade(*index, to)).expect("upgraded");
        crew.goes_on(&format!("after {done} nodes")).await;
        let both = versions(&field.cluster);
        assert_eq!(both, if done == order.len() { new.clone() } else { old.union(&new).cloned().collect() });
    }
    assert!(field.cluster.nodes().iter().map(Node::port).eq(ports), "each node keeps its address");
    let (uses, refused) = (crew.registers.iter().map(|r| r.uses.load(Ordering::SeqCst)).sum::<usize>(), &crew.refused);
    println!("{from} to {to}: {uses} holds, {} refused tries", refused.load(Ordering::SeqCst));
    crew.end().await;
    field.nothing_is_left(tags.iter().flat_map(|tag| [0, 1, 99].map(|n| name_of(tag, n)))).await;
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn rolling_upgrade_from_redis_7_0_to_8_2_loses_nothing() {
    run(BOUND, 4, Box::pin(rolling_upgrade_loses_nothing(Server::Redis70, Server::Redis82)));
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn rolling_upgrade_from_valkey_8_1_to_9_1_loses_nothing() {
    run(BOUND, 4, Box::pin(rolling_upgrade_loses_nothing(Server::Valkey81, Server::Valkey91)));
}
