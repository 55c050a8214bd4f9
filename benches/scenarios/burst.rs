//! 50,000 acquisitions of distinct locks at once, then 50,000 dropped guards at once, behind a proxy that lets 5,000
//! scripts pass in a second: how many scripts that takes, and how it delays others.

use cluster_testenv::Matcher;

use super::*;

const LEASE: Duration = Duration::from_secs(300);
/// Lease of the hold that has nothing to do with all this.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// Work that has not ended by then does not count as ended.
const BOUND: Duration = Duration::from_secs(60);
/// Share of a burst that is over when another acquisition comes.
const LATE_AT: [f64; 3] = [0.1, 0.4, 0.7];

/// Scripts by the count of the proxy. Renewals are those of the unrelated hold and count apart.
struct Scripts {
    node: Arc<Node>,
    all: Matcher,
    renewals: Matcher,
}

impl Scripts {
    fn new(node: &Arc<Node>) -> Self {
        let digest = digest(hash::RENEW);
        let renewals = Matcher::new(move |request| {
            let script = request.args().get(1);
            request.is_script()
                && script.is_some_and(|arg| [digest.as_bytes(), hash::RENEW.as_bytes()].contains(&&arg[..]))
        });
        Self { node: Arc::clone(node), all: Matcher::new(|request| request.is_script()), renewals }
    }

    fn sent(&self) -> usize {
        let renewals = self.node.proxy().requests_seen(self.renewals.clone());
        self.node.proxy().requests_seen(self.all.clone()) - renewals
    }

    /// Returns the scripts without those that wait in the proxy.
    fn passed(&self) -> usize {
        let sent = self.sent();
        sent.saturating_sub(self.node.proxy().scripts_waiting())
    }

    /// Waits until none has been sent for a second, and none waits. Returns whether it came to that.
    async fn end(&self) -> bool {
        let (mut last, mut since) = (self.sent(), Instant::now());
        let began = since;
        while since.elapsed() < Duration::from_secs(1) {
            if began.elapsed() > BOUND {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let sent = self.sent();
            if sent != last || self.node.proxy().scripts_waiting() > 1 {
                (last, since) = (sent, Instant::now());
            }
        }
        true
    }
}

/// Acquisition that came while others were at work.
struct Late {
    took: Duration,
    /// Scripts of the others that were still to be carried out when it came.
    in_front: usize,
}

impl Late {
    async fn acquire(manager: &RedisManager, in_front: usize) -> Result<Self, Error> {
        let began = Instant::now();
        let guard = manager.write(&format!("late-{in_front}")).await?;
        let took = began.elapsed();
        guard.release().await?;
        Ok(Self { took, in_front })
    }

    /// Returns the time as a multiple of what those in front of it take.
    fn share(&self, per_second: u32) -> f64 {
        self.took.as_secs_f64() / (self.in_front as f64 / f64::from(per_second))
    }
}

/// Effect of one half of the work.
#[derive(Default)]
struct Outcome {
    took: Duration,
    scripts: usize,
    connections: u64,
    late: Vec<Late>,
    unreachable: usize,
    cpu: Duration,
}

struct Burst {
    node: Arc<Node>,
    scripts: Scripts,
    manager: RedisManager,
    locks: usize,
}

impl Burst {
    /// Does something at once and waits for its end, while others come.
    async fn measure<T>(&self, act: impl AsyncFnOnce(&mut Outcome) -> T) -> (T, Outcome) {
        let mut outcome = Outcome::default();
        let proxy = self.node.proxy();
        let (scripts, connections, cpu) = (self.scripts.sent(), proxy.connections_made(), client_time());
        let began = Instant::now();
        let value = act(&mut outcome).await;
        outcome.took = began.elapsed();
        if !self.scripts.end().await {
            let waiting = proxy.scripts_waiting();
            println!("row: {BOUND:?} after the callers' end there was no quiet: {waiting} scripts wait for the server");
        }
        outcome.cpu = client_time() - cpu;
        outcome.connections = proxy.connections_made() - connections;
        // A late one is an acquisition and a release.
        outcome.scripts = self.scripts.sent() - scripts - 2 * outcome.late.len();
        (value, outcome)
    }

    /// Comes late a few times, and does not wait for one before the next.
    async fn come_late(&self, outcome: &mut Outcome, done: impl Fn() -> usize) {
        let mut all_late = JoinSet::new();
        for share in LATE_AT {
            let due = (self.locks as f64 * share) as usize;
            while done() < due {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (manager, in_front) = (self.manager.clone(), self.locks.saturating_sub(done()));
            all_late.spawn(async move { Late::acquire(&manager, in_front).await });
        }
        while let Some(late) = all_late.join_next().await {
            match late.expect("it runs") {
                Ok(late) => outcome.late.push(late),
                Err(error) => {
                    println!("row: an acquisition that came late failed: {error}");
                    outcome.unreachable += 1;
                }
            }
        }
    }

    async fn acquire(&self, outcome: &mut Outcome) -> Vec<WriteGuard> {
        let done = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for lock in 0..self.locks {
            let (manager, done) = (self.manager.clone(), Arc::clone(&done));
            tasks.spawn(async move {
                let granted = manager.write(&format!("burst-{lock:05}")).lease(LEASE).await;
                done.fetch_add(1, Ordering::Relaxed);
                granted
            });
        }
        self.come_late(outcome, || done.load(Ordering::Relaxed)).await;
        let mut guards = Vec::new();
        while let Some(granted) = tasks.join_next().await {
            match granted.expect("it runs") {
                Ok(guard) => guards.push(guard),
                Err(Error::Unreachable { .. }) => outcome.unreachable += 1,
                Err(error) => panic!("{error}"),
            }
        }
        guards
    }

    async fn release(&self, guards: Vec<WriteGuard>, outcome: &mut Outcome) {
        let (before, count) = (self.scripts.passed(), guards.len());
        drop(guards);
        self.come_late(outcome, || self.scripts.passed() - before).await;
        let began = Instant::now();
        while self.scripts.passed() - before < count && began.elapsed() < BOUND {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Prints the figures of one half of the work, for which `needed` scripts had to be sent.
fn tell_outcome(what: &str, outcome: &Outcome, needed: usize, per_second: u32) {
    let Outcome { took, scripts, connections, late, unreachable, cpu } = outcome;
    println!("row: {what}: {took:.2?}, {cpu:.2?} of client CPU");
    let sides = format!("{scripts} sent, {needed} needed");
    tell(&format!("{what}, scripts sent / needed"), &sides, *scripts as f64 / needed as f64, AtMost(1.01));
    tell(&format!("{what}, new connections"), "", *connections as f64, AtMost(0.0));
    tell(&format!("{what}, Unreachable"), "of all callers", *unreachable as f64, AtMost(0.0));
    for late in late {
        let sides = format!("{:.2?} behind {} scripts", late.took, late.in_front);
        let what = format!("{what}, a late acquisition / what was in front of it");
        tell(&what, &sides, late.share(per_second), AtMost(1.5));
    }
}

async fn burst(effort: Effort) {
    let (locks, per_second) = effort.of((50_000, 5_000), (50_000, 5_000), (500, 5_000));
    let node = Arc::new(start_proxied_node());
    let manager = RedisManager::connect(node.url()).await.expect("a manager");
    let unrelated = manager.write("unrelated").lease(SHORT_LEASE).await.expect("granted");
    let watch = unrelated.watch();
    let began = Instant::now();
    let lost = tokio::spawn(async move { (watch.ended().await, began.elapsed()) });
    // Each script is known to the server, so that none is sent twice for that.
    pair(&manager, "warm").await;

    let scripts = Scripts::new(&node);
    node.proxy().limit_scripts(NonZeroU32::new(per_second).expect("not zero"));
    let burst = Burst { node, scripts, manager, locks };
    let (guards, acquired) = burst.measure(async |outcome| burst.acquire(outcome).await).await;
    tell_outcome(&format!("{locks} acquisitions at once"), &acquired, locks, per_second);
    let count = guards.len();
    let ((), released) = burst.measure(async |outcome| burst.release(guards, outcome).await).await;
    tell_outcome(&format!("{count} guards dropped at once"), &released, count, per_second);

    if lost.is_finished() {
        let (ended, after) = lost.await.expect("it runs");
        println!("row: the unrelated hold ended after {after:.2?}: {ended:?}");
    }
    let is_lost = f64::from(u8::from(unrelated.state() != HoldState::Held));
    tell("an unrelated hold with a lease of 3 s, losses", "", is_lost, AtMost(0.0));
}

pub(crate) fn run(effort: Effort) {
    runtime().block_on(burst(effort));
}
