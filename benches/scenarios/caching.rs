//! Patterns in which a lock goes from process to process, with cached holds and without, in turns. Each figure is what
//! the first takes, of what the second takes.

use futures_util::future::join;

use super::*;

const CACHE_FOR: Duration = Duration::from_secs(60);

async fn connect(node: &Node, count: usize, cache_for: Duration) -> Vec<RedisManager> {
    let one = || RedisManager::builder(node.url()).cache_for(cache_for).connect();
    join_all((0..count).map(|_| one())).await.into_iter().map(|manager| manager.expect("a manager")).collect()
}

/// Two processes write one after the other. All patterns return the number of operations.
async fn take_turns(managers: &[RedisManager], name: &str, effort: Effort) -> usize {
    let turns = effort.of(600, 300, 4);
    for _ in 0..turns {
        for manager in managers {
            pair(manager, name).await;
        }
    }
    turns * managers.len()
}

/// Sixteen tasks of each process write as fast as they can.
async fn crowds(managers: &[RedisManager], name: &str, effort: Effort) -> usize {
    let each = effort.of(100, 40, 2);
    let tasks = managers.iter().flat_map(|manager| (0..16).map(move |_| manager));
    let tasks: Vec<_> = tasks
        .map(async |manager| {
            for _ in 0..each {
                pair(manager, name).await;
            }
        })
        .collect();
    let count = tasks.len();
    join_all(tasks).await;
    each * count
}

/// Readers pause for a millisecond, and the last process writes now and then. The reads count.
async fn readers_and_a_writer(managers: &[RedisManager], name: &str, span: Duration, pause: Duration) -> usize {
    let until = Instant::now() + span;
    let (writer, readers) = managers.split_last().expect("there is one");
    let each = 100 / readers.len();
    let tasks = readers.iter().flat_map(|manager| (0..each).map(move |_| manager));
    let readers = join_all(tasks.map(async |manager| {
        let mut count = 0;
        while Instant::now() < until {
            manager.read(name).await.expect("granted").release().await.expect("released");
            count += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        count
    }));
    let writes = async {
        while Instant::now() < until {
            tokio::time::sleep(pause).await;
            pair(writer, name).await;
        }
    };
    join(readers, writes).await.0.into_iter().sum()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Turns,
    Crowds,
    /// A write every 10 ms.
    ManyWrites,
    /// A write every second.
    FewWrites,
}

/// Name, number of processes and pattern.
const PATTERNS: [(&str, usize, Pattern); 4] = [
    ("two processes write in turn", 2, Pattern::Turns),
    ("4 processes x 16 writers", 4, Pattern::Crowds),
    ("100 readers, a writer every 10 ms", 11, Pattern::ManyWrites),
    ("100 readers, a writer every second", 11, Pattern::FewWrites),
];

/// Returns microseconds and scripts of each operation.
async fn measure(node: &Node, managers: &[RedisManager], pattern: Pattern, effort: Effort, name: &str) -> [f64; 2] {
    let span = |full, quick| Duration::from_millis(effort.of(full, quick, 60));
    CommandStats::reset(node);
    let began = Instant::now();
    let count = match pattern {
        Pattern::Turns => take_turns(managers, name, effort).await,
        Pattern::Crowds => crowds(managers, name, effort).await,
        Pattern::ManyWrites => readers_and_a_writer(managers, name, span(3000, 1500), Duration::from_millis(10)).await,
        Pattern::FewWrites => readers_and_a_writer(managers, name, span(5000, 3500), Duration::from_secs(1)).await,
    } as f64;
    let (time, stats) = (micros(began.elapsed()), CommandStats::of(node));
    [time / count, (stats.calls("evalsha") + stats.calls("ssubscribe")) as f64 / count]
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    runtime().block_on(async {
        for (name, processes, pattern) in PATTERNS {
            let (mut times, mut scripts) = (Sides::default(), Sides::default());
            for round in 0..effort.of(7, 3, 1) {
                let mut took = [[0.0; 2]; 2];
                for (took, cache_for) in took.iter_mut().zip([CACHE_FOR, Duration::ZERO]) {
                    let managers = connect(&node, processes, cache_for).await;
                    *took = measure(&node, &managers, pattern, effort, &format!("lock-{round}-{cache_for:?}")).await;
                    for manager in managers {
                        manager.close().await.expect("closed");
                    }
                }
                times.push(took[0][0], took[1][0]);
                scripts.push(took[0][1], took[1][1]);
            }
            if pattern == Pattern::FewWrites {
                let [cached, plain] = scripts.medians();
                let words = format!("{cached:.3} scripts for each against {plain:.3}");
                tell(&format!("{name}: scripts for a read"), &words, cached, AtMost(0.2));
                continue;
            }
            scripts.tell(&format!("{name}: scripts, cached / not cached"), "for each", AtMost(1.2));
            times.tell(&format!("{name}: time, cached / not cached"), "us for each", AtMost(1.2));
        }
    });
}
