//! Server time for the release of a read hold when 1, 100 and 1,000 other managers read the same lock. The server does
//! one thing at a time, so a cost that grows with the readers would delay all clients.

use super::*;

const OTHERS: [usize; 3] = [1, 100, 1000];
/// Managers among the others. The rest are ids of managers that do not exist, which is all that the server sees.
const REAL: usize = 100;
/// Locks with each number of other readers. One release from each lies between two looks at the server's statistics.
const LOCKS: usize = 8;

/// Locks that so many others read.
struct Crowded {
    locks: Vec<String>,
    _guards: Vec<ReadGuard>,
}

impl Crowded {
    async fn new(others: usize, managers: &[RedisManager], bare: &mut Bare) -> Self {
        let locks: Vec<String> = (0..LOCKS).map(|lock| format!("{others}-others-{lock}")).collect();
        let mut guards = Vec::new();
        for lock in &locks {
            for manager in managers.iter().take(others) {
                guards.push(manager.read(lock).await.expect("granted"));
            }
            for _ in managers.len().min(others)..others {
                bare.acquire(&lock_key(lock), &foreign_id(), "r").await;
            }
        }
        Self { locks, _guards: guards }
    }

    /// Reads all locks, and returns the microseconds of the server for one release.
    async fn release(&self, manager: &RedisManager, node: &Node) -> f64 {
        let mut guards = Vec::new();
        for lock in &self.locks {
            guards.push(manager.read(lock).await.expect("granted"));
        }
        let before = CommandStats::of(node);
        for guard in guards {
            guard.release().await.expect("released");
        }
        let after = CommandStats::of(node);
        assert_eq!(after.calls("evalsha") - before.calls("evalsha"), LOCKS as u64, "one command for each release");
        (after.micros("evalsha") - before.micros("evalsha")) / LOCKS as f64
    }
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    runtime().block_on(async {
        let mut bare = Bare::connect(&node).await;
        let (own, mut managers) = (manager(&node).await, Vec::new());
        for _ in 0..effort.of(REAL, REAL, 5) {
            managers.push(manager(&node).await);
        }
        let mut crowded = Vec::new();
        for others in OTHERS {
            crowded.push(Crowded::new(others, &managers, &mut bare).await);
        }
        let mut costs = OTHERS.map(|_| Vec::new());
        for _ in 0..effort.of(400, 150, 2) {
            for (crowd, costs) in crowded.iter().zip(&mut costs) {
                costs.push(crowd.release(&own, &node).await);
            }
        }
        let [one, hundred, thousand] = costs.map(|mut costs| median(&mut costs));
        for (others, cost, bound) in [(OTHERS[1], hundred, 2.0), (OTHERS[2], thousand, 1.3)] {
            let what = format!("read release, {others} other managers / 1");
            tell_ratio(&what, [cost, one], "us of the server", AtMost(bound));
        }
    });
}
