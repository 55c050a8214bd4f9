//! Worker of this program: carries a load with a lock in Rust, and reports the times. Workers in other languages do the
//! same.

mod blocking;
mod wake;

use std::io::{BufRead, Write};

use clap::Args;
use redis_rwlock::blocking::RedisManager;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::*;
use crate::peer::version;
use crate::setup::process::processor_time;

/// Time for which a task may still wait for a lock when a turn is over. After this time, the task counts as not served.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, value_enum)]
    lock: Kind,
    #[arg(long, value_delimiter = ',')]
    urls: Vec<String>,
    #[command(flatten)]
    load: Load,
}

/// Latencies of the acquisitions of one task, in nanoseconds.
type Latencies = Vec<u64>;

pub(crate) fn run(arguments: &Arguments) {
    let Arguments { lock, urls, load } = arguments;
    if *lock == Kind::OursBlocking {
        let builder = redis_rwlock::RedisManager::builder(urls[0].as_str()).lease(load.lease());
        let manager = RedisManager::build(builder).expect("a manager");
        return tell(|| blocking::carry(&manager, &warm(load)), || blocking::carry(&manager, load), *lock);
    }
    let runtime = Runtime::new().expect("a runtime");
    let clients = runtime.block_on(async {
        let mut clients: Vec<Arc<dyn Peer>> = Vec::with_capacity(load.clients);
        for _ in 0..load.clients {
            clients.push(Arc::from(lock.connect(urls, load.lease()).await));
        }
        clients
    });
    if load.shape == Shape::Held {
        // Only the time in which they are held is measured.
        let take = async |lock| clients[0].enter(Mode::Write, &format!("held {lock}")).await;
        let hold = || {
            std::thread::sleep(load.span());
            Vec::new()
        };
        return tell(|| runtime.block_on(few_at_a_time(0..load.tasks, take)), hold, *lock);
    }
    tell(|| runtime.block_on(carry(&clients, &warm(load))), || runtime.block_on(carry(&clients, load)), *lock);
}

/// Follows the protocol: reports that it is ready, waits for a line, and reports the outcome. What was prepared stays.
fn tell<T>(prepare: impl FnOnce() -> T, carry: impl FnOnce() -> Vec<Latencies>, lock: Kind) {
    let _prepared = prepare();
    println!("{}", serde_json::json!({ "ready": version(lock) }));
    std::io::stdin().lock().read_line(&mut String::new()).expect("a line");
    let (began, used) = (Instant::now(), processor_time());
    let latencies = carry();
    let (elapsed, used) = (began.elapsed(), processor_time().saturating_sub(used));
    let outcome = Outcome {
        served: latencies.iter().map(|of_task| of_task.len() as u64).collect(),
        latencies_ns: latencies.concat(),
        elapsed_ns: nanos(elapsed),
        cpu_ns: nanos(used),
    };
    println!("{}", serde_json::to_string(&outcome).expect("it is text"));
    std::io::stdout().flush().expect("somebody reads");
    // This also ends the background work of a peer, whose server ends too.
    std::process::exit(0);
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the load with which a worker warms up.
fn warm(load: &Load) -> Load {
    Load { shape: Shape::Own, tasks: load.tasks.max(load.clients), span_ms: load.warm_ms, ..load.clone() }
}

async fn carry(clients: &[Arc<dyn Peer>], load: &Load) -> Vec<Latencies> {
    if load.shape == Shape::Wake {
        return vec![wake::carry(clients, load).await];
    }
    let until = Instant::now() + load.span();
    let mut running = JoinSet::new();
    for task in 0..load.tasks {
        let client = Arc::clone(&clients[task % clients.len()]);
        let (shape, writes) = (load.shape, load.writes);
        // The adapter of distkit sees from the first letters that no other task wants the lock.
        let name = if shape == Shape::Own { format!("own {task}") } else { "hot".to_owned() };
        running.spawn(async move {
            let mut latencies = Vec::with_capacity(16_384);
            while let Some(took) = once(&*client, shape, mode(writes), &name, until).await {
                latencies.push(nanos(took));
            }
            (task, latencies)
        });
    }
    let mut of_tasks = running.join_all().await;
    of_tasks.sort_unstable_by_key(|(task, _)| *task);
    of_tasks.into_iter().map(|(_, latencies)| latencies).collect()
}

/// Acquires and releases a lock. Returns the time, with the release if the lock is the task's own. Returns `None` if
/// the turn is over.
async fn once(client: &dyn Peer, shape: Shape, mode: Mode, name: &str, until: Instant) -> Option<Duration> {
    let asked = Instant::now();
    if asked >= until {
        return None;
    }
    if shape == Shape::Own {
        client.enter(mode, name).await.leave().await;
        return Some(asked.elapsed());
    }
    let left = until.saturating_duration_since(asked) + GRACE;
    let held = tokio::time::timeout(left, client.enter(mode, name)).await.ok()?;
    let entered = asked.elapsed();
    held.leave().await;
    Some(entered)
}

fn mode(writes: usize) -> Mode {
    let is_write = match writes {
        0 => false,
        100.. => true,
        some => fastrand::usize(0..100) < some,
    };
    if is_write { Mode::Write } else { Mode::Read }
}
