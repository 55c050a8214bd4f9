//! A service whose workers share their configuration under one read-write lock.
//!
//! Workers read under `read("cfg")` and update under `write("cfg")`. One of them is killed in the middle of an update,
//! while it holds the lock. The others get in when its lease is over, find the update half done, and finish it. In the
//! end the run checks that no update was lost, and that no worker saw what it should not.
//!
//! - `worker`: the work under the locks, which is what you would write
//! - `store`: the configuration, which refuses an old fencing token; and how an update survives its writer
//! - `report`: what the workers say, and whether it can be true
//! - this file: starts workers as processes or as tasks, shows the holders of the lock, and kills one worker

mod report;
mod store;
mod worker;

use std::env;
use std::io::{self, Write};
use std::process::{self, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_rwlock::{MemoryManager, RedisManager, RwLockManager, Topology};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, timeout};

use crate::report::{Report, say};
use crate::store::Store;
use crate::worker::Worker;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The lock that guards the configuration.
const LOCK: &str = "cfg";
/// Time for which a killed worker keeps the others out. Short, so that the run is short; the default is 10 s.
const LEASE: Duration = Duration::from_secs(2);
const WORKERS: usize = 4;
/// Number of the worker that is killed: the last one.
const VICTIM: usize = WORKERS - 1;
const DURATION: Duration = Duration::from_secs(6);
/// Time after which the victim hangs in its next update, and time for which it is shown so before it is killed.
const HANGS_AFTER: Duration = Duration::from_millis(1_200);
const SHOWN_HANGING: Duration = Duration::from_millis(800);
/// Time after which a run ends, beyond its duration, although no worker has taken over from the victim.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(20);
/// Time that workers have to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

const HELP: &str = "\
usage: config_service                          everything in this process, no server needed
       config_service --cluster URL[,URL...]   worker processes; locks and configuration on a cluster

Workers read and update a shared configuration under one read-write lock. One is killed while it writes.
Exits with 0 if the invariant held.";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let holds = match &words[..] {
        [] => in_this_process().await?,
        ["--cluster", urls] => on_a_cluster(urls).await?,
        ["worker", urls, key, number] => be_worker(urls, key, number.parse()?).await?,
        _ => {
            println!("{HELP}");
            return Ok(ExitCode::from(2));
        }
    };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn name(number: usize) -> String {
    format!("w{}", number + 1)
}

fn hangs_at(number: usize) -> Option<Instant> {
    (number == VICTIM).then(|| Instant::now() + HANGS_AFTER)
}

/// Lines of the workers, by their numbers.
type News = mpsc::UnboundedSender<(usize, String)>;

/// A worker, as the parent sees it.
struct Member {
    /// The worker stops when this is dropped.
    work: Option<Box<dyn Send>>,
    /// Kills the worker, so that it can neither release what it holds nor renew it any more.
    kill: Option<Box<dyn FnOnce() + Send>>,
}

async fn in_this_process() -> Result<bool> {
    let locks = MemoryManager::builder().label("parent").build()?;
    let store = Arc::new(Store::Memory(Default::default()));
    let start = |number, news| start_task(number, &locks, &store, news);
    parent(Arc::new(locks.clone()), Arc::clone(&store), start).await
}

/// Starts a worker as a task of this process.
fn start_task(number: usize, locks: &MemoryManager, store: &Arc<Store>, news: News) -> Result<Member> {
    let locks = locks.peer_builder().label(name(number)).lease(LEASE).build()?;
    let (work, stop) = watch::channel(());
    let tell = Box::new(move |line| news.send((number, line)).unwrap_or_default());
    let (store, hangs_at) = (Arc::clone(store), hangs_at(number));
    let task = tokio::spawn(Worker { locks: Arc::new(locks.clone()), store, tell, stop, hangs_at }.run());
    let kill = move || {
        // A killed process sends nothing more.
        locks.disconnect();
        task.abort();
    };
    Ok(Member { work: Some(Box::new(work)), kill: Some(Box::new(kill)) })
}

async fn on_a_cluster(urls: &str) -> Result<bool> {
    // New for each run, so that runs do not count each other's updates.
    let key = format!("config_service:{}-{:08x}", process::id(), fastrand::u32(..));
    let locks = RedisManager::builder(Topology::cluster(urls.split(','))).label("parent").connect().await?;
    let store = Arc::new(Store::connect(urls, &key).await?);
    parent(Arc::new(locks), store, |number, news| start_process(number, urls, &key, news)).await
}

/// Starts a worker as a process of this program.
fn start_process(number: usize, urls: &str, key: &str, news: News) -> Result<Member> {
    let mut child = Command::new(env::current_exe()?)
        .args(["worker", urls, key, &number.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true) // by SIGKILL
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            news.send((number, line)).unwrap_or_default();
        }
    });
    let input = child.stdin.take().ok_or("no input")?;
    Ok(Member { work: Some(Box::new(input)), kill: Some(Box::new(|| drop(child))) })
}

/// A worker process, from its start to its end.
async fn be_worker(urls: &str, key: &str, number: usize) -> Result<bool> {
    let builder = RedisManager::builder(Topology::cluster(urls.split(','))).label(name(number));
    let (locks, store) = (Arc::new(builder.lease(LEASE).connect().await?), Arc::new(Store::connect(urls, key).await?));
    let (sender, stop) = watch::channel(());
    // A thread of its own, because a read from the standard input cannot be interrupted. The input ends when the parent
    // says so, and when it dies.
    thread::spawn(move || {
        io::stdin().lines().for_each(drop);
        drop(sender);
    });
    // The write fails only if the parent is gone. Then this worker stops soon.
    let tell = Box::new(|line| writeln!(io::stdout(), "{line}").unwrap_or_default());
    Worker { locks, store, tell, stop, hangs_at: hangs_at(number) }.run().await;
    Ok(true)
}

/// Starts the workers, watches them, and kills one. Uses the locks only to look at them. Returns whether the invariant
/// held.
async fn parent(
    locks: Arc<dyn RwLockManager>,
    store: Arc<Store>,
    start: impl Fn(usize, News) -> Result<Member> + Send,
) -> Result<bool> {
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut team = (0..WORKERS).map(|number| start(number, sender.clone())).collect::<Result<Vec<_>>>()?;
    // From here on only workers have a sender. So the news end when the last process does.
    drop(sender);
    println!("{WORKERS} workers, each with a manager of its own; lock {LOCK:?}, lease {LEASE:?}");
    let mut report = Report::default();
    let mut ticks = interval(Duration::from_millis(300));
    while !report.is_over() {
        tokio::select! {
            news = news.recv() => match news {
                Some((number, line)) => report.hear(&name(number), &line),
                None => break, // all workers have died, which the report tells
            },
            _ = ticks.tick() => {
                match (locks.inspect(LOCK).await, store.access(None, None).await) {
                    (Ok(lock), Ok(fields)) => report.show(&lock, &fields.unwrap_or_default()),
                    (lock, fields) => say(&format!("{LOCK}: {:?} {:?}", lock.err(), fields.err())),
                }
                if report.is_time_to_kill() && let Some(kill) = team[VICTIM].kill.take() {
                    kill();
                }
            }
        }
    }
    say("the workers stop");
    team.iter_mut().for_each(|member| member.work = None);
    let all_stop = async {
        while report.stopped < WORKERS - 1
            && let Some((number, line)) = news.recv().await
        {
            report.hear(&name(number), &line);
        }
    };
    if timeout(STOP_LIMIT, all_stop).await.is_err() {
        say("not all workers stopped in time");
    }
    // The write that the victim would do if it were not dead but had only been asleep.
    let late = store.access(Some(report.token_of_victim()), Some(("upstream", "late"))).await?;
    let stored = store.access(None, None).await?.unwrap_or_default();
    Ok(report.print(&stored, late.is_none()))
}
