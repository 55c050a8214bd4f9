//! Slots that move and primaries that are replaced while holds are cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cluster_testenv::{Node, Server, SlotMigration};
use parking_lot::Mutex;
use redis_rwlock::{HoldState, HoldWatch, Mode};
use tokio::task::{JoinSet, block_in_place};

use super::cache_hold;
use super::faults::{LEASE, RENEWAL, SOON, caching_for, writer_is_in_within};
use crate::either::{AnyGuard, take};
use crate::fixture::{Manager, Settings, on_one_replica};
use crate::router::field::{Field, name_of, on_own_servers};
use crate::wait::until;

on_own_servers![
    slot_that_is_half_moved_costs_a_renewal,
    hold_is_given_up_where_its_slot_has_been,
    writer_is_in_soon_after_a_failover,
    writer_is_in_soon_after_a_primary_was_killed,
    failovers_let_no_two_in_where_replicas_know,
];

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
/// Time until managers ask the old primary no more and the waiter has found the new one.
const FAILED_OVER: Duration = SOON.saturating_add(Duration::from_secs(2));

/// A cluster, a lock at its first node, and two processes. The first of them caches holds.
struct Scene {
    f: Field,
    tag: String,
    holder: Manager,
    other: Manager,
}

impl Scene {
    async fn new(f: Field, lease: Duration) -> Self {
        let tag = f.tag_at(&f.cluster.nodes()[0]);
        let (holder, other) = (f.manager_with(caching_for(lease)).await, f.manager().await);
        Self { f, tag, holder, other }
    }

    fn half_moved(&self) -> SlotMigration<'_> {
        let slot = self.f.cluster.keyslot(&self.tag);
        let owner = self.f.owner(&self.tag).port();
        let to = self.f.cluster.primaries().into_iter().find(|node| node.port() != owner).expect("there are three");
        let migration = SlotMigration::begin(&self.f.cluster, slot, to).expect("the migration begins");
        migration.move_keys().expect("all keys move");
        migration
    }
}

async fn slot_that_is_half_moved_costs_a_renewal(server: Server) {
    let s = Scene::new(Field::primaries(server), LEASE).await;
    for (n, mode) in MODES.into_iter().enumerate() {
        let name = name_of(&s.tag, n);
        cache_hold(&s.holder, &name, mode).await;
        let migration = s.half_moved();
        writer_is_in_within(RENEWAL, &s.other, &name).await;
        migration.finish().expect("the migration ends");
        cache_hold(&s.holder, &name, mode).await;
        writer_is_in_within(SOON, &s.other, &name).await;
    }
}

async fn hold_is_given_up_where_its_slot_has_been(server: Server) {
    let s = Scene::new(Field::primaries(server), Duration::from_secs(3)).await;
    for (n, mode) in MODES.into_iter().enumerate() {
        let name = name_of(&s.tag, n);
        cache_hold(&s.holder, &name, mode).await;
        let migration = s.half_moved();
        until("it is given up when another node answers", async || s.holder.stats().holds == 0).await;
        for _ in 0..20 {
            take(&s.holder, &name, mode).await.release_unharmed().await;
            assert_eq!(s.holder.stats().cached_holds, 0, "recalls are published elsewhere");
        }
        migration.finish().expect("the migration ends");
        cache_hold(&s.holder, &name, mode).await;
        writer_is_in_within(SOON, &s.other, &name).await;
    }
}

async fn writer_is_in_after(server: Server, fails_over: impl AsyncFn(&Field, &Node)) {
    let s = Scene::new(Field::with_replicas(server), Duration::from_secs(30)).await;
    let name = name_of(&s.tag, 0);
    cache_hold(&s.holder, &name, Mode::Read).await;
    let (old, key) = (s.f.owner(&s.tag), s.f.hash_key(&name));
    for replica in s.f.cluster.replicas_of(old) {
        let mut replica = replica.client().expect("connected");
        replica.command(&["READONLY"]).expect("answered").into_result().expect("it may be read");
        until("the replica knows of it", async || !replica.command(&["HGET", &key, "h"]).expect("answered").is_nil())
            .await;
    }
    fails_over(&s.f, old).await;
    writer_is_in_within(FAILED_OVER, &s.other, &name).await;
    until("it has been given up", async || s.holder.stats().holds == 0).await;
    cache_hold(&s.holder, &name, Mode::Read).await;
    writer_is_in_within(SOON, &s.other, &name).await;
}

async fn writer_is_in_soon_after_a_failover(server: Server) {
    let failover = async |f: &Field, primary: &Node| {
        block_in_place(|| f.cluster.failover(primary)).expect("a replica takes over");
    };
    writer_is_in_after(server, failover).await;
}

async fn writer_is_in_soon_after_a_primary_was_killed(server: Server) {
    let failover = async |f: &Field, primary: &Node| {
        primary.kill();
        block_in_place(|| f.cluster.failover_force(primary)).expect("a replica takes over");
    };
    writer_is_in_after(server, failover).await;
}

/// Locks of which several processes cache holds, and the guards that are inside of them.
#[derive(Debug, Default)]
struct Workload {
    inside: Mutex<Vec<(usize, String, Mode, HoldWatch)>>,
    grants: AtomicUsize,
    is_over: AtomicBool,
}

impl Workload {
    /// Notes a guard, and asserts that no guard which it excludes is still valid.
    fn enters(&self, name: &str, mode: Mode, watch: HoldWatch) -> usize {
        let number = self.grants.fetch_add(1, Ordering::SeqCst);
        let mut inside = self.inside.lock();
        let excludes = |other: Mode| mode == Mode::Write || other == Mode::Write;
        let mut others = inside.iter().filter(|(_, of, other, _)| of == name && excludes(*other));
        let conflict = others.find(|(.., other)| is_valid(other) && is_valid(&watch));
        assert!(conflict.is_none(), "{mode}, {watch:?} beside {conflict:?}");
        inside.push((number, name.to_owned(), mode, watch));
        number
    }

    fn leaves(&self, number: usize) {
        self.inside.lock().retain(|(of, ..)| *of != number);
    }

    /// Uses the lock if it is granted in time. While a primary is replaced, it may not be.
    async fn use_lock(&self, manager: &Manager, name: &str, mode: Mode) {
        let wait = Duration::from_secs(2);
        let guard = match mode {
            Mode::Read => manager.read(name).wait_timeout(wait).await.map(AnyGuard::Read),
            Mode::Write => manager.write(name).wait_timeout(wait).await.map(AnyGuard::Write),
        };
        if let Ok(guard) = guard {
            let number = self.enters(name, mode, guard.watch());
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.leaves(number);
            drop(guard);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn goes_on(&self) {
        let before = self.grants.load(Ordering::SeqCst);
        until("it goes on", async || self.grants.load(Ordering::SeqCst) >= before + 200).await;
    }
}

fn is_valid(watch: &HoldWatch) -> bool {
    !matches!(watch.state(), HoldState::Lost(_))
}

async fn failovers_let_no_two_in_where_replicas_know(server: Server) {
    let f = Field::with_replicas(server);
    let tag = f.tag_at(&f.cluster.nodes()[0]);
    let durability = on_one_replica(Duration::from_millis(250));
    let settings = Settings { durability, ..caching_for(Duration::from_secs(3)) };
    let managers = [f.manager_with(settings.clone()).await, f.manager_with(settings).await];
    let workload = Arc::<Workload>::default();
    let mut tasks = JoinSet::new();
    for task in 0..8_usize {
        let (managers, workload, tag) = (managers.clone(), Arc::clone(&workload), tag.clone());
        tasks.spawn(async move {
            let mut rounds = task..;
            while !workload.is_over.load(Ordering::SeqCst) {
                let round = rounds.next().expect("there are always more");
                // One process uses each lock nearly always, so that it caches the hold. At times the other one does.
                let lock = task % 4;
                let manager = &managers[if round % 50 == 0 { lock % 2 } else { (lock + 1) % 2 }];
                let mode = if round % 5 == 0 { Mode::Write } else { Mode::Read };
                workload.use_lock(manager, &name_of(&tag, lock), mode).await;
            }
        });
    }
    for round in 0..3 {
        workload.goes_on().await;
        until("holds stay", async || managers.iter().any(|manager| manager.stats().cached_holds > 0)).await;
        let owner = f.owner(&tag);
        let promoted =
            block_in_place(|| if round == 2 { f.cluster.failover_force(owner) } else { f.cluster.failover(owner) });
        promoted.expect("a replica takes over");
    }
    workload.goes_on().await;
    workload.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no two were inside");
    }
}
