use std::collections::BTreeSet;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::acquire::{Patience, acquire};
use crate::engine::background::{BATCH_GAP, MAX_BATCH};
use crate::engine::{Engine, Held};
use crate::lock::hold::HoldState;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{Mode, Scheme};
use crate::testing::staged::Staged;

const LEASE: Duration = Duration::from_secs(3);
const LOCKS: usize = 4_000;

async fn take(engine: &Arc<Engine>, name: &str) -> Held {
    let overrides = Overrides { lease: Some(LEASE), ..Overrides::default() };
    let terms = Terms::new(engine.options(), overrides).expect("valid");
    let taken = acquire(engine, engine.key(name).expect("valid"), Mode::Write, terms, Patience::Wait).await;
    taken.expect("answered").expect("granted")
}

/// Takes locks at one moment: all their renewals are due within a quarter of an interval.
async fn taken_together(scheme: &Arc<Staged>, locks: usize) -> (Arc<Engine>, Vec<Held>) {
    let engine = Arc::new(Engine::new(Arc::<Staged>::clone(scheme), Options::default()));
    let mut held = Vec::new();
    for lock in 0..locks {
        held.push(take(&engine, &format!("lock-{lock}")).await);
    }
    (engine, held)
}

fn renewed_in_a_stage() -> Arc<Staged> {
    Arc::new(Staged::new(MemoryScheme::new(Arc::new(Store::new()))))
}

async fn renewal_is_sent(scheme: &Staged) {
    while scheme.chunks().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn node_is_left_to_others_between_chunks() {
    let scheme = renewed_in_a_stage();
    let (_engine, _held) = taken_together(&scheme, LOCKS).await;
    sleep(LEASE / 2).await;
    let chunks = scheme.chunks();
    for pair in chunks.windows(2) {
        let gap = pair[1].0.since(pair[0].0);
        assert!(gap >= BATCH_GAP, "a chunk {gap:?} after another");
    }
    let sizes: Vec<_> = chunks.iter().map(|(_, ids)| ids.len()).collect();
    assert!(sizes.iter().all(|&size| size <= MAX_BATCH), "{sizes:?}");
    let renewed: BTreeSet<_> = chunks.iter().flat_map(|(_, ids)| ids).map(|id| id.as_str()).collect();
    assert_eq!(renewed.len(), LOCKS, "each was renewed within half of its lease");
    assert_eq!(sizes.iter().sum::<usize>(), LOCKS, "and once");
}

#[test]
fn what_is_due_or_under_way_when_the_runtime_ends_is_renewed_on_the_next() {
    // The clock is the machine's, so the locks must be few enough to take soon on a busy machine.
    const FEW: usize = 200;
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (first, second) = (runtime(), runtime());
    let (_word, answer) = oneshot::channel();
    let (scheme, (engine, held)) = first.block_on(async {
        let scheme = renewed_in_a_stage();
        scheme.next_renewals(answer);
        let taken = taken_together(&scheme, FEW).await;
        renewal_is_sent(&scheme).await;
        (scheme, taken)
    });
    drop(first);
    assert!(scheme.chunks().iter().map(|(_, ids)| ids.len()).sum::<usize>() < FEW, "there is more to renew");
    second.block_on(async {
        let _other = take(&engine, "another").await;
        sleep(LEASE).await;
    });
    let now = scheme.memory.clock().now();
    let lost = held.iter().filter(|held| !matches!(held.hold().next(now), Next::At(_))).count();
    assert_eq!(lost, 0);
}

#[tokio::test(start_paused = true)]
async fn answer_counts_also_while_somebody_else_has_the_hold_in_hand() {
    let scheme = renewed_in_a_stage();
    let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
    let (word, answer) = oneshot::channel();
    scheme.next_renewals(answer);
    let held = take(&engine, "cfg").await;
    renewal_is_sent(&scheme).await;
    // A driver does the same, just before it joins the holds to a batch.
    let taken = engine.table.deadlines.take_due(Moment::NEVER, Duration::ZERO);
    assert!(taken.iter().any(|hold| Arc::ptr_eq(hold, held.hold())));
    word.send(()).expect("it is waited for");
    sleep(LEASE * 3).await;
    assert_eq!(held.state(), HoldState::Held, "it was renewed no more");
}

#[tokio::test(start_paused = true)]
async fn released_in_the_line_is_not_renewed() {
    let scheme = renewed_in_a_stage();
    let (_engine, held) = taken_together(&scheme, LOCKS).await;
    renewal_is_sent(&scheme).await;
    // By now most of the due holds are in the queue.
    sleep(LEASE / 24).await;
    for held in held {
        held.release().await.expect("released");
    }
    let sent = scheme.chunks().len();
    sleep(LEASE * 2).await;
    assert_eq!(scheme.chunks().len(), sent, "nothing is renewed any more");
}

#[tokio::test(start_paused = true)]
async fn own_force_that_is_lost_in_a_failover_is_followed_by_a_release_before_any_renewal() {
    let scheme = renewed_in_a_stage();
    let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
    let (held, key) = (take(&engine, "cfg").await, engine.key("cfg").expect("valid"));
    scheme.next_force_is_lost();
    engine.force(&key).await.expect("answered");
    assert_eq!(held.state(), HoldState::Lost(LossReason::Forced));
    sleep(Duration::from_millis(1)).await;
    let there = scheme.inspect(&key).await.expect("memory answers").value;
    assert!(there.holders.is_empty(), "the server without the force has {:?}", there.holders);
    assert!(scheme.chunks().is_empty(), "a renewal was first");
}
