//! Writers that take turns: tasks of one process, and 100 clients.

use super::*;

/// Lets a task of each manager write without a pause. Returns the turns a second, and how often the most served task
/// had its turn, of the least served one.
async fn turns<M: RwLockManager + Clone>(managers: &[M], name: &str, span: Duration) -> (f64, f64) {
    let (stop, began, mut tasks) = (Arc::new(AtomicBool::new(false)), Instant::now(), JoinSet::new());
    for manager in managers {
        let (manager, stop, name) = (manager.clone(), Arc::clone(&stop), name.to_owned());
        tasks.spawn(async move {
            let mut served = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                pair(&manager, &name).await;
                served += 1;
            }
            served
        });
    }
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    let spent = began.elapsed().as_secs_f64();
    let served = tasks.join_all().await;
    let (most, least) = (served.iter().max().copied().unwrap_or(0), served.iter().min().copied().unwrap_or(0));
    (served.iter().sum::<u64>() as f64 / spent, most as f64 / least.max(1) as f64)
}

async fn one_process(effort: Effort, topology: &Topology) {
    let (rounds, span) = effort.of((15, 200), (7, 150), (1, 10));
    let span = Duration::from_millis(span);
    let shared = vec![RedisManager::connect(topology.clone()).await.expect("a manager"); 16];
    let single = RedisManager::builder(topology.clone()).max_handoffs(1).connect().await.expect("a manager");
    let (single, mut sides) = (vec![single; 16], Sides::default());
    for _ in 0..rounds {
        sides.push(turns(&shared, "turns", span).await.0, turns(&single, "single-turns", span).await.0);
    }
    sides.tell("writers of one process, budget of 64 / of 1", "a second", AtLeast(20.0));
}

async fn clients(effort: Effort, topology: &Topology) {
    let (rounds, span, count) = effort.of((9, 2000, 100), (3, 2000, 100), (1, 20, 4));
    let span = Duration::from_millis(span);
    let (mut queueing, mut retrying) = (Vec::new(), Vec::new());
    for _ in 0..count {
        queueing.push(RedisManager::connect(topology.clone()).await.expect("a manager"));
        retrying.push(TwoKeyManager::connect(topology.clone()).await.expect("a manager"));
    }
    let (mut sides, mut spreads) = (Sides::default(), Vec::new());
    for round in 0..=rounds {
        let span = if round == 0 { span / 4 } else { span };
        let (fast, spread) = turns(&queueing, "crowd", span).await;
        let (slow, _) = turns(&retrying, "retrying-crowd", span).await;
        // The first round only warms up.
        if round > 0 {
            sides.push(fast, slow);
            spreads.push(spread);
        }
    }
    sides.tell("100 clients on one lock, handed over / told to ask again", "a second", AtLeast(1.5));
    tell("100 clients, most served / least served", "", median(&mut spreads), AtMost(2.0));
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    let topology = Topology::node(node.url());
    runtime().block_on(async {
        one_process(effort, &topology).await;
        clients(effort, &topology).await;
    });
}
