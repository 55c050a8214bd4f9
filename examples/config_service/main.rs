//! A service whose workers share their configuration under one read-write lock.
//!
//! Workers read under `read("cfg")` and update under `write("cfg")`. One of them is killed in the middle of an update,
//! while it holds the lock. The others get in when its lease is over, find the update half done, and finish it. In the
//! end the run checks that no update was lost, and that no worker saw what it should not.
//!
//! - `worker`: the work under the locks, which is what you would write
//! - `store`: the configuration, which refuses an old fencing token; and how an update survives its writer
//! - `report`: what the workers say, and whether it can be true
//! - this file: starts workers as processes or as threads, shows the holders of the lock, and kills one worker

mod report;
mod store;
mod worker;

use std::env;
use std::io::{self, Write};
use std::process::{self, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_rwlock::{LockView, MemoryManager, RedisManager, RwLockManager, Topology};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{interval, timeout};

use crate::report::{Report, span};
use crate::store::{Fields, Look, Store, look, mark};
use crate::worker::Worker;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The lock that guards the configuration.
const LOCK: &str = "cfg";
/// Time for which a killed worker keeps the others out. Short, so that the run is short; the default is 10 s.
const LEASE: Duration = Duration::from_secs(2);
const WORKERS: usize = 4;
const DURATION: Duration = Duration::from_secs(6);
/// Time after which the last worker hangs in its next update, and time for which it is shown so before it is killed.
const HANGS_AFTER: Duration = Duration::from_millis(1_200);
const SHOWN_HANGING: Duration = Duration::from_millis(800);
/// Time after which a run ends, beyond its duration, although no worker has taken over from the victim.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(20);
/// Time that workers have to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

const HELP: &str = "\
usage: config_service                          everything in this process, no server needed
       config_service --redis URL              worker processes; locks and configuration on one Redis or Valkey
       config_service --cluster URL[,URL...]   the same on a cluster, found through any of these nodes

Workers read and update a shared configuration under one read-write lock. One is killed while it writes.
Exits with 0 if the invariant held.";

/// Servers of locks and configuration.
enum Servers {
    Node(String),
    Cluster(Vec<String>),
}

impl Servers {
    fn topology(&self) -> Topology {
        match self {
            Self::Node(url) => Topology::node(url),
            Self::Cluster(urls) => Topology::cluster(urls),
        }
    }

    async fn store(&self, key: String) -> Result<Arc<Store>> {
        Ok(Arc::new(match self {
            Self::Node(url) => {
                let client = redis::Client::open(url.as_str())?;
                Store::Node(client.get_multiplexed_async_connection().await?, key)
            }
            Self::Cluster(urls) => {
                let client = redis::cluster::ClusterClient::new(urls.iter().map(String::as_str))?;
                Store::Cluster(client.get_async_connection().await?, key)
            }
        }))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (servers, rest) = match &words[..] {
        ["--redis", url, rest @ ..] => (Some(Servers::Node((*url).to_owned())), rest),
        ["--cluster", urls, rest @ ..] => (Some(Servers::Cluster(urls.split(',').map(str::to_owned).collect())), rest),
        rest => (None, rest),
    };
    let all_hold = match (servers, rest) {
        (servers, []) => parent(servers).await,
        (Some(servers), ["worker", number, key]) => be_worker(&servers, number, key).await.map(|()| true),
        _ => {
            println!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match all_hold {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("config_service: {error}");
            ExitCode::FAILURE
        }
    }
}

fn name(number: usize) -> String {
    format!("w{}", number + 1)
}

/// Returns when the worker hangs. The last worker is the victim.
fn hangs_at(number: usize) -> Option<Instant> {
    (number + 1 == WORKERS).then(|| Instant::now() + HANGS_AFTER)
}

/// A worker process, from its start to its end.
async fn be_worker(servers: &Servers, number: &str, key: &str) -> Result<()> {
    let number = number.parse()?;
    let locks = RedisManager::builder(servers.topology()).label(name(number)).lease(LEASE).connect().await?;
    let (sender, stop) = watch::channel(());
    // A thread of its own, because a read from the standard input cannot be interrupted. The input ends when the parent
    // says so, and when it dies.
    thread::spawn(move || {
        io::stdin().lines().for_each(drop);
        drop(sender);
    });
    // The write fails only if the parent is gone. Then this worker stops soon.
    let tell = Box::new(|line| writeln!(io::stdout(), "{line}").unwrap_or_default());
    let store = servers.store(key.to_owned()).await?;
    Worker { locks: Arc::new(locks), store, tell, stop, hangs_at: hangs_at(number) }.run().await;
    Ok(())
}

/// A worker, as the parent sees it.
struct Member {
    /// The worker stops when this is dropped.
    work: Option<Box<dyn Send>>,
    /// The worker dies when this is dropped. It can neither release what it holds nor renew it any more.
    life: Option<Box<dyn Send>>,
}

/// Lines of the workers, by their numbers.
type News = mpsc::UnboundedSender<(usize, String)>;

/// Starts a worker as a process of this program.
fn start_process(number: usize, key: &str, news: News) -> Result<Member> {
    let mut child = Command::new(env::current_exe()?)
        .args(env::args().skip(1))
        .args(["worker", &number.to_string(), key])
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
    Ok(Member { work: Some(Box::new(input)), life: Some(Box::new(child)) })
}

/// Starts a worker as a thread of this process, with a runtime of its own.
fn start_thread(number: usize, locks: &MemoryManager, store: &Arc<Store>, news: News) -> Result<Member> {
    let (work, stop) = watch::channel(());
    let (life, death) = oneshot::channel::<()>();
    let builder = locks.peer_builder().label(name(number)).lease(LEASE);
    let store = Arc::clone(store);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async move {
            let tell = Box::new(move |line| news.send((number, line)).unwrap_or_default());
            let locks = Arc::new(builder.build().expect("the options are valid"));
            tokio::select! {
                () = Worker { locks, store, tell, stop, hangs_at: hangs_at(number) }.run() => {}
                // A killed process runs no destructors, and renews nothing. So this thread stops, with all that it
                // holds.
                _ = death => loop { thread::park() },
            }
        });
    });
    Ok(Member { work: Some(Box::new(work)), life: Some(Box::new(life)) })
}

struct Parent {
    started: Instant,
    /// Only to look at the lock.
    locks: Arc<dyn RwLockManager>,
    store: Arc<Store>,
    team: Vec<Member>,
    news: mpsc::UnboundedReceiver<(usize, String)>,
    report: Report,
}

/// Starts the workers and watches them. Returns whether the invariant held.
async fn parent(servers: Option<Servers>) -> Result<bool> {
    let (sender, news) = mpsc::unbounded_channel();
    let (locks, store, team): (Arc<dyn RwLockManager>, _, Result<Vec<_>>) = match &servers {
        None => {
            let (locks, store) =
                (MemoryManager::builder().label("parent").build()?, Arc::new(Store::Memory(Default::default())));
            let team = (0..WORKERS).map(|number| start_thread(number, &locks, &store, sender.clone())).collect();
            (Arc::new(locks), store, team)
        }
        Some(servers) => {
            // New for each run, so that runs do not count each other's updates.
            let key = format!("config_service:{}-{:08x}", process::id(), fastrand::u32(..));
            let locks = RedisManager::builder(servers.topology()).label("parent").connect().await?;
            let team = (0..WORKERS).map(|number| start_process(number, &key, sender.clone())).collect();
            (Arc::new(locks), servers.store(key).await?, team)
        }
    };
    // From here on only workers have a sender. So the news end when the last process does.
    drop(sender);
    println!("{WORKERS} workers, each with a manager of its own; lock {LOCK:?}, lease {LEASE:?}");
    Parent { started: Instant::now(), locks, store, team: team?, news, report: Report::default() }.run().await
}

impl Parent {
    async fn run(mut self) -> Result<bool> {
        let mut ticks = interval(Duration::from_millis(300));
        while self.started.elapsed() < DURATION
            || !self.report.is_taken_over && self.started.elapsed() < DURATION + TAKE_OVER_LIMIT
        {
            tokio::select! {
                news = self.news.recv() => match news {
                    Some((number, line)) => self.hear(number, &line),
                    None => break, // all workers have died, which the report tells
                },
                _ = ticks.tick() => {
                    self.show_lock().await;
                    self.kill_victim();
                }
            }
        }
        self.say("the workers stop");
        self.team.iter_mut().for_each(|member| member.work = None);
        let all_stop = async {
            while self.report.stopped < WORKERS - 1
                && let Some((number, line)) = self.news.recv().await
            {
                self.hear(number, &line);
            }
        };
        if timeout(STOP_LIMIT, all_stop).await.is_err() {
            self.say("not all workers stopped in time");
        }
        // The write that the victim would do if it were not dead but had only been asleep.
        let token = self.report.victim.as_ref().map_or(0, |victim| victim.token);
        let late = self.store.access(Some(token), Some(("upstream", "late"))).await?;
        let stored = self.store.access(None, None).await?.unwrap_or_default();
        Ok(self.report.print(WORKERS, &stored, &late))
    }

    fn say(&self, what: &str) {
        println!("{:5.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    fn hear(&mut self, number: usize, line: &str) {
        if let Some(what) = self.report.hear(&name(number), line) {
            self.say(&what);
        }
    }

    /// Prints the holders of the lock, beside the configuration as it looks without the lock.
    async fn show_lock(&mut self) {
        match (self.locks.inspect(LOCK).await, self.store.access(None, None).await) {
            (Ok(lock), Ok(fields)) => {
                let fields = fields.unwrap_or_default();
                self.report.note_mark(&fields);
                self.say(&format!("{LOCK}: {:<54} | {}", holders(&lock), seen_from_outside(&fields)));
            }
            (Err(error), _) => self.say(&format!("{LOCK}: cannot be inspected: {error}")),
            (_, Err(error)) => self.say(&format!("{LOCK}: the configuration cannot be read: {error}")),
        }
    }

    fn kill_victim(&mut self) {
        if let Some(victim) = &mut self.report.victim
            && victim.killed.is_none()
            && victim.hangs_since.elapsed() >= SHOWN_HANGING
        {
            self.team[WORKERS - 1].life = None;
            victim.killed = Some(Instant::now());
            let what = format!("killed {} while it writes v{}", victim.name, victim.version);
            self.say(&what);
        }
    }
}

fn holders(lock: &LockView) -> String {
    let holders = lock.holders.iter();
    let holders: Vec<_> = holders
        .map(|holder| format!("{} (age {}, {} left)", holder.label, span(holder.age), span(holder.remaining)))
        .collect();
    // Several hold it only if all of them read.
    match lock.holders.first().map(|holder| holder.mode) {
        None => "free".to_owned(),
        Some(mode) => format!("{mode} by {}", holders.join(", ")),
    }
}

fn seen_from_outside(fields: &Fields) -> String {
    let token = mark(fields);
    match look(fields) {
        Look::Whole(version) => format!("v{version} token {token}"),
        Look::HalfDone(version) => format!("v{version} HALF DONE, token {token}"),
        Look::Corrupt => format!("CORRUPT, token {token}"),
    }
}
