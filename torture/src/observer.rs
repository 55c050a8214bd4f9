//! Observer of the queues. While the workers run, it inspects each lock again and again, because only the server knows
//! the order of a queue. `judge/queue.rs` checks what the views prove.

use std::thread::JoinHandle;

use redis_rwlock::LockView;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;

/// Pause between two views of a lock.
const BETWEEN_VIEWS: Duration = Duration::from_millis(20);
/// Limit for a view. A view that takes long says little about the order, so the observer asks again.
const VIEW: Duration = Duration::from_secs(1);

/// Part of a client in a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Holds,
    Waits,
}

/// Holder or waiter in a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Label of the client's manager.
    pub(crate) label: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) standing: Standing,
    /// Time since the grant, or since the client entered the queue, by the server's clock.
    pub(crate) age_ms: u32,
}

/// View of a lock that had waiters. The server made it between the two moments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sighting {
    pub(crate) sent: Moment,
    pub(crate) received: Moment,
    /// Last token that was granted or reserved.
    pub(crate) last_token: u64,
    /// All holders and waiters, the waiting writers in their order.
    pub(crate) records: Vec<Record>,
}

/// Views of each lock, in their order.
pub(crate) type Sightings = Vec<Vec<Sighting>>;

/// Running observer.
#[derive(Debug)]
pub(crate) struct Observer {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<Sightings>>,
}

impl Observer {
    pub(crate) fn start(urls: Vec<String>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(observe(urls, stopped))
        });
        Self { stop, thread }
    }

    /// Ends the observer, and returns its views.
    pub(crate) fn finish(self) -> Result<Sightings> {
        self.stop.send_replace(true);
        self.thread.join().map_err(|_| "the observer panicked")?
    }
}

async fn observe(urls: Vec<String>, stopped: watch::Receiver<bool>) -> Result<Sightings> {
    let locks = RedisManager::builder(Topology::cluster(urls)).key_prefix(PREFIX).label("observer").connect().await?;
    let (locks, mut observers) = (Arc::new(locks), JoinSet::new());
    for lock in 0..LOCKS {
        let (locks, stopped) = (Arc::clone(&locks), stopped.clone());
        observers.spawn(async move { (lock, observe_lock(&locks, lock, stopped).await) });
    }
    let mut sightings = vec![Vec::new(); LOCKS];
    while let Some(observed) = observers.join_next().await {
        let (lock, of_lock) = observed?;
        sightings[lock] = of_lock;
    }
    locks.close().await.ok();
    Ok(sightings)
}

async fn observe_lock(locks: &RedisManager, lock: usize, stopped: watch::Receiver<bool>) -> Vec<Sighting> {
    let (mut sightings, mut labels) = (Vec::new(), HashSet::new());
    while !*stopped.borrow() {
        let sent = now();
        // While a server has a fault, there is no view.
        if let Ok(Ok(view)) = timeout(VIEW, locks.inspect(lock_name(lock))).await {
            let received = now();
            // A view that leaves out records does not prove that a client is absent. Without a waiter there is no order.
            if view.more_holders + view.more_waiters == 0 && !view.waiters.is_empty() {
                sightings.push(sighting(&view, sent, received, &mut labels));
            }
        }
        sleep(BETWEEN_VIEWS).await;
    }
    sightings
}

fn sighting(view: &LockView, sent: Moment, received: Moment, labels: &mut HashSet<Arc<str>>) -> Sighting {
    let mut record = |label: &str, mode, standing, age: Duration| {
        let label = labels.get(label).cloned().unwrap_or_else(|| {
            let label: Arc<str> = label.into();
            labels.insert(Arc::clone(&label));
            label
        });
        Record { label, mode, standing, age_ms: u32::try_from(age.as_millis()).unwrap_or(u32::MAX) }
    };
    let mut records = Vec::with_capacity(view.holders.len() + view.waiters.len());
    for holder in &view.holders {
        records.push(record(&holder.label, holder.mode, Standing::Holds, holder.age));
    }
    for waiter in &view.waiters {
        records.push(record(&waiter.label, waiter.mode, Standing::Waits, waiter.waiting));
    }
    Sighting { sent, received, last_token: view.last_token.map_or(0, u64::from), records }
}
