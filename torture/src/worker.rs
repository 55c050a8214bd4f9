//! Worker process, whose tasks take locks, use the registers that the locks protect, and write the events into a
//! journal.

use std::io::Read;
use std::thread;

use redis_rwlock::{Build, Builder, Durability};
use rustix::process::set_parent_process_death_signal;
use tokio::time::{Instant, sleep};

use super::*;
use crate::tasks::Role;

/// Environment variable with the order for a worker.
pub(crate) const ORDER: &str = "TORTURE_WORKER";
/// Shortest pause of this process that may have delayed a task.
const STALL: Duration = Duration::from_millis(40);
const PULSE: Duration = Duration::from_millis(10);
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Limit for the acknowledgement of a replica. Each primary has one replica.
const ACKNOWLEDGED: Duration = Duration::from_millis(200);
/// Limit for connecting, which is longer than most faults.
const CONNECTING: Duration = Duration::from_secs(10);
const CLOSING: Duration = Duration::from_secs(10);
/// First letter of the labels of managers that only take groups.
pub(crate) const GROUPS_LABEL: char = 'g';

/// Order for a worker process.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) level: Level,
    pub(crate) replicas: Replicas,
    pub(crate) plant: Option<Plant>,
    /// Time for which the worker caches holds.
    pub(crate) cache_for: Duration,
    /// Number of tasks that take several locks at once.
    pub(crate) groups: usize,
    /// Seed of the worker, different for each process.
    pub(crate) seed: u64,
    pub(crate) journal: PathBuf,
    pub(crate) registers: PathBuf,
    pub(crate) urls: Vec<String>,
}

impl Order {
    pub(crate) fn to_words(&self) -> String {
        let plant = self.plant.map_or("-", Plant::name);
        let paths = [&self.journal, &self.registers].map(|path| path.display().to_string());
        let [journal, registers] = &paths;
        let (level, idle_ms, urls) = (self.level.name(), self.cache_for.as_millis(), self.urls.join(" "));
        let (replicas, groups, seed) = (self.replicas, self.groups, self.seed);
        format!("{level} {replicas} {plant} {idle_ms} {groups} {seed} {journal} {registers} {urls}")
    }

    /// Returns the order for this process if this process is a worker.
    pub(crate) fn of_this_process() -> Option<Result<Self>> {
        let words = env::var(ORDER).ok()?;
        let read = || {
            let mut words = words.split(' ');
            let mut next = || words.next().ok_or("an order with too few words");
            let level = next()?.parse()?;
            let replicas = args::replicas(next()?)?;
            let plant = Some(next()?).filter(|word| *word != "-").map(str::parse).transpose()?;
            let cache_for = Duration::from_millis(next()?.parse()?);
            let groups = next()?.parse()?;
            let seed = next()?.parse()?;
            let (journal, registers) = (next()?.into(), next()?.into());
            Ok(Self {
                level,
                replicas,
                plant,
                cache_for,
                groups,
                seed,
                journal,
                registers,
                urls: words.map(str::to_owned).collect(),
            })
        };
        Some(read())
    }

    /// Returns the label of the managers that take single locks.
    pub(crate) fn label(&self) -> String {
        format!("w{}", self.seed)
    }

    /// Returns the label of the manager that only takes groups. So a waiter with this label is a group that waits.
    pub(crate) fn groups_label(&self) -> String {
        format!("{GROUPS_LABEL}{}", self.seed)
    }

    /// Returns the label of a guest's manager.
    pub(crate) fn guest_label(&self) -> String {
        match self.plant {
            // The judge believes that this is another process. The history has the label of the worker.
            Some(Plant::QueueJumper) => "jumper".to_owned(),
            _ => self.label(),
        }
    }
}

/// Runs the worker until the standard input ends.
pub(crate) fn run(order: &Order) -> Result<()> {
    // A worker that is stopped by SIGSTOP does not notice the end of its parent. So the kernel kills the worker when
    // the parent ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let journal = Arc::new(Journal::create(&order.journal)?);
    let (stop, stopped) = watch::channel(false);
    let told = Arc::clone(&journal);
    // A read from standard input cannot be interrupted, so a thread of its own reads.
    thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap_or_default();
        told.stops();
        stop.send_replace(true);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(work(order, journal, stopped))
}

async fn work(order: &Order, journal: Arc<Journal>, stopped: watch::Receiver<bool>) -> Result<()> {
    let order = Arc::new(order.clone());
    let locks = connect(&order, order.label()).await?;
    let groups = if order.groups > 0 { connect(&order, order.groups_label()).await? } else { Arc::clone(&locks) };
    tokio::spawn(pulse(Arc::clone(&journal), Arc::clone(&locks)));
    let mut rng = Rng::with_seed(order.seed);
    let mut tasks = Vec::new();
    for role in Role::of(&order) {
        let (locks, label) = match role {
            Role::Group => (&groups, order.groups_label()),
            _ => (&locks, order.label()),
        };
        let task = Task {
            locks: Arc::clone(locks),
            label,
            journal: Arc::clone(&journal),
            registers: Client::connect(&order.registers).await?,
            rng: rng.fork(),
            role,
            order: Arc::clone(&order),
        };
        tasks.push(tokio::spawn(task.run(stopped.clone())));
    }
    journal.ready();
    for task in tasks {
        task.await??;
    }
    timeout(CLOSING, async { tokio::join!(locks.close(), groups.close()) }).await.ok();
    Ok(())
}

/// Connects a manager with this label.
pub(crate) async fn connect(order: &Order, label: String) -> Result<Arc<dyn RwLockManager>> {
    async fn finish<M: Build>(builder: Builder<M>, label: String) -> Result<Arc<dyn RwLockManager>> {
        let builder = builder.key_prefix(PREFIX).lease(LEASE).label(label);
        // The worker may start while a server has a fault or no replica.
        let began = Instant::now();
        loop {
            match builder.clone().connect().await {
                Ok(manager) => return Ok(Arc::new(manager)),
                Err(error) if began.elapsed() > CONNECTING => eprintln!("a worker connects: {error}"),
                Err(_) => {}
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    let urls = order.urls.clone();
    match order.level {
        Level::Primary => {
            let builder = RedisManager::builder(Topology::cluster(urls)).cache_for(order.cache_for);
            finish(builder, label).await
        }
        Level::Replicated => {
            let level = match order.plant {
                Some(Plant::SkippedWait) => Durability::Primary,
                _ => Durability::Replicated { replicas: order.replicas, timeout: ACKNOWLEDGED },
            };
            let builder = RedisManager::builder(Topology::cluster(urls)).durability(level);
            finish(builder.cache_for(order.cache_for), label).await
        }
        Level::Quorum => finish(QuorumManager::builder(urls), label).await,
    }
}

/// Writes pauses of this process, its memory, and the number of its cached holds.
async fn pulse(journal: Arc<Journal>, locks: Arc<dyn RwLockManager>) {
    let (mut last, mut looked) = (now(), Instant::now());
    loop {
        sleep(PULSE).await;
        let this = now();
        if this - last > nanos(STALL) {
            journal.stalled(last, this);
        }
        last = this;
        if looked.elapsed() >= BETWEEN_LOOKS {
            looked = Instant::now();
            journal.memory(resident_kib());
            journal.cached_holds(locks.stats().cached_holds);
        }
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
