//! Whether it pays to keep holds: patterns in which a lock goes from process to process, with holds that stay and without, in turns.
//! Each figure is what the first takes over what the second takes.

mod figures;

use std::future::Future;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::{CommandStats, Effort, Target, median, start_node, tell};
use futures_util::future::{join, join_all};
use redis_rwlock::{RedisManager, RwLockManager, Topology};
use tokio::runtime::Runtime;

const IDLE: Duration = Duration::from_secs(60);

async fn connect(node: &Node, count: usize, cache_for: Duration) -> Vec<RedisManager> {
    let one = || RedisManager::builder(Topology::node(node.url())).cache_for(cache_for).connect();
    join_all((0..count).map(|_| one())).await.into_iter().map(|manager| manager.expect("a manager")).collect()
}

async fn write(manager: &RedisManager, name: &str) {
    manager.write(name).await.expect("granted").release().await.expect("released");
}

async fn read(manager: &RedisManager, name: &str) {
    manager.read(name).await.expect("granted").release().await.expect("released");
}

/// Two processes write one after the other.
async fn take_turns(managers: &[RedisManager], name: &str, effort: Effort) -> usize {
    let turns = effort.of(600, 300, 4);
    for _ in 0..turns {
        for manager in managers {
            write(manager, name).await;
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
                write(manager, name).await;
            }
        })
        .collect();
    let count = tasks.len();
    join_all(tasks).await;
    each * count
}

/// Readers that pause for a millisecond, and the last process, which writes now and then. Answers how many reads there were.
async fn readers_and_a_writer(managers: &[RedisManager], name: &str, span: Duration, pause: Duration) -> usize {
    let until = Instant::now() + span;
    let (writer, readers) = managers.split_last().expect("there is one");
    let each = 100 / readers.len();
    let tasks = readers.iter().flat_map(|manager| (0..each).map(move |_| manager));
    let readers = join_all(tasks.map(async |manager| {
        let mut count = 0;
        while Instant::now() < until {
            read(manager, name).await;
            count += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        count
    }));
    let writes = async {
        while Instant::now() < until {
            tokio::time::sleep(pause).await;
            write(writer, name).await;
        }
    };
    join(readers, writes).await.0.into_iter().sum()
}

/// What each operation took: microseconds and scripts.
struct Took {
    time: f64,
    scripts: f64,
}

async fn measured(node: &Node, pattern: impl Future<Output = usize>) -> Took {
    CommandStats::reset(node);
    let began = Instant::now();
    let count = pattern.await as f64;
    let time = began.elapsed().as_secs_f64() * 1e6 / count;
    let stats = CommandStats::of(node);
    Took { time, scripts: (stats.calls("evalsha") + stats.calls("ssubscribe")) as f64 / count }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Turns,
    Crowds,
    /// A write every 10 ms.
    ManyWrites,
    /// One a second.
    FewWrites,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::Turns => "two processes write in turn",
            Self::Crowds => "4 processes x 16 writers",
            Self::ManyWrites => "100 readers, a writer every 10 ms",
            Self::FewWrites => "100 readers, a writer every second",
        }
    }

    async fn run(self, node: &Node, cache_for: Duration, effort: Effort, name: &str) -> Took {
        let count = match self {
            Self::Turns => 2,
            Self::Crowds => 4,
            Self::ManyWrites | Self::FewWrites => 11,
        };
        let managers = connect(node, count, cache_for).await;
        let span = |full, quick| Duration::from_millis(effort.of(full, quick, 60));
        let took = measured(node, async {
            match self {
                Self::Turns => take_turns(&managers, name, effort).await,
                Self::Crowds => crowds(&managers, name, effort).await,
                Self::ManyWrites => {
                    readers_and_a_writer(&managers, name, span(3000, 1500), Duration::from_millis(10)).await
                }
                Self::FewWrites => {
                    readers_and_a_writer(&managers, name, span(5000, 3500), Duration::from_secs(1)).await
                }
            }
        })
        .await;
        for manager in managers {
            manager.close().await.expect("closed");
        }
        took
    }
}

async fn tell_pattern(node: &Node, pattern: Pattern, effort: Effort) {
    let (mut times, mut scripts, mut sides) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    for round in 0..effort.of(7, 3, 1) {
        let mut took = Vec::new();
        for (n, cache_for) in [IDLE, Duration::ZERO].into_iter().enumerate() {
            let one = pattern.run(node, cache_for, effort, &format!("lock-{round}-{n}")).await;
            times[n].push(one.time);
            scripts[n].push(one.scripts);
            took.push(one);
        }
        sides[0].push(took[0].time / took[1].time);
        sides[1].push(took[0].scripts / took[1].scripts);
    }
    let name = pattern.name();
    let [kept, plain] = &mut scripts;
    let (kept, plain) = (median(kept), median(plain));
    let both = format!("{kept:.3} scripts for each against {plain:.3}");
    if pattern == Pattern::FewWrites {
        tell(effort, &format!("{name}: scripts for a read"), &both, kept, Target::AtMost(0.2));
        return;
    }
    tell(effort, &format!("{name}: scripts, kept / not kept"), &both, median(&mut sides[1]), Target::AtMost(1.2));
    let [kept, plain] = &mut times;
    let both = format!("{:.0} us for each against {:.0} us", median(kept), median(plain));
    tell(effort, &format!("{name}: time, kept / not kept"), &both, median(&mut sides[0]), Target::AtMost(1.2));
}

fn bench(_: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    for pattern in [Pattern::Turns, Pattern::Crowds, Pattern::ManyWrites, Pattern::FewWrites] {
        runtime.block_on(tell_pattern(&node, pattern, effort));
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
