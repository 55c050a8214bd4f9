//! A primary of a 3 + 3 cluster is killed, stopped or replaced while 64 tasks acquire and release locks on all shards:
//! the delay of the other shards, and how soon the shard works again once its new primary does.
//!
//! A new primary works when a bare write to it, tried all the time, succeeds. The shard works when each of its tasks
//! has acquired and released its lock after that.

use super::*;

const TASKS: usize = 64;
/// Time before a fault that is measured.
const BEFORE: Duration = Duration::from_secs(3);
/// A failover takes some seconds at most.
const BOUND: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    Stop,
    Failover,
}

/// Lock that was acquired and released.
#[derive(Clone, Copy, Debug)]
struct Sample {
    task: usize,
    began: Instant,
    ended: Instant,
}

/// Tasks that go on until they are stopped; task n works on shard n modulo their number.
struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    samples: Mutex<Vec<Sample>>,
    failed: AtomicUsize,
    stop: AtomicBool,
}

impl Load {
    fn start(runtime: &Runtime, manager: &RedisManager, tags: &[String]) -> Self {
        let mut load = Self { shared: Arc::default(), tasks: JoinSet::new() };
        for task in 0..TASKS {
            let name = format!("{{{}}}-{task}", tags[task % tags.len()]);
            let (manager, shared) = (manager.clone(), Arc::clone(&load.shared));
            let work = async move {
                while !shared.stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    match acquire_and_release(&manager, &name).await {
                        Ok(()) => shared.samples.lock().push(Sample { task, began, ended: Instant::now() }),
                        Err(error) => {
                            eprintln!("failed after {:?}: {error}", began.elapsed());
                            shared.failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            };
            load.tasks.spawn_on(work, runtime.handle());
        }
        load
    }

    /// Returns how many of these tasks have released a lock since.
    fn worked_since(&self, since: Instant, is_meant: impl Fn(usize) -> bool) -> usize {
        let samples = self.shared.samples.lock();
        let recent = samples.iter().rev().take_while(|sample| sample.ended + BEFORE > since);
        let mut worked = [false; TASKS];
        recent.filter(|sample| sample.ended > since && is_meant(sample.task)).for_each(|s| worked[s.task] = true);
        worked.iter().filter(|worked| **worked).count()
    }

    fn end(mut self, runtime: &Runtime) {
        self.shared.stop.store(true, Ordering::Relaxed);
        runtime.block_on(async { while self.tasks.join_next().await.is_some() {} });
    }
}

async fn acquire_and_release(manager: &RedisManager, name: &str) -> Result<(), Error> {
    manager.write(name).await?.release().await
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "{what} did not come true within {BOUND:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Effect of one fault.
struct Outcome {
    p99_before: Duration,
    p99_during: Duration,
    /// Time from the fault to the new primary's first write.
    outage: Duration,
    /// Time from then until all tasks of the shard had worked.
    recovery: Duration,
}

/// Hurts the primary of the shard once, and repairs it.
fn hurt(cluster: &Cluster, load: &Load, tags: &[String], shard: usize, fault: Fault) -> Outcome {
    load.shared.samples.lock().clear();
    thread::sleep(BEFORE);
    let slot = cluster.keyslot(&tags[shard]);
    let old = cluster.primary_of_slot(slot);
    let heir = cluster.replicas_of(old)[0];
    let began = Instant::now();
    let works = thread::scope(|scope| {
        match fault {
            Fault::Kill => old.kill(),
            Fault::Stop => old.pause(),
            Fault::Failover => drop(scope.spawn(|| cluster.failover(old).expect("a replica takes over"))),
        }
        let probe = format!("{{{}}}-probe", tags[shard]);
        wait_until("the new primary's first write", || is_written(heir, &probe));
        Instant::now()
    });
    let is_hurt = |task: usize| task % tags.len() == shard;
    let tasks = (0..TASKS).filter(|task| is_hurt(*task)).count();
    wait_until("work on the shard", || load.worked_since(works, is_hurt) == tasks);
    let ended = Instant::now();
    let samples = load.shared.samples.lock().clone();
    let others = samples.iter().filter(|sample| !is_hurt(sample.task));
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for sample in others {
        let side = if sample.ended < began { &mut before } else { &mut during };
        if sample.began < ended {
            side.push(sample.ended - sample.began);
        }
    }
    match fault {
        Fault::Kill => old.restart().expect("it starts again"),
        Fault::Stop => old.resume(),
        Fault::Failover => {}
    }
    cluster.wait_ok().expect("the cluster is well again");
    Outcome {
        p99_before: quantile(&mut before, 0.99),
        p99_during: quantile(&mut during, 0.99),
        outage: works - began,
        recovery: ended - works,
    }
}

fn is_written(node: &Node, key: &str) -> bool {
    node.command(&["SET", key, "1"]).is_ok_and(|reply| reply.is_ok())
}

pub(crate) fn run(effort: Effort) {
    let cluster = Cluster::start(server()).expect("a cluster starts; cluster-testenv/install brings the servers");
    let runtime = runtime();
    let manager =
        runtime.block_on(RedisManager::connect(Topology::cluster(cluster.urls()))).expect("a manager connects");
    let tags: Vec<String> = tags(&cluster, 3).into_iter().map(|(_, tag)| tag).collect();
    let load = Load::start(&runtime, &manager, &tags);
    let rounds = effort.of(9, 3, 1);
    for fault in [Fault::Kill, Fault::Stop, Fault::Failover] {
        let outcomes: Vec<Outcome> =
            (0..rounds).map(|round| hurt(&cluster, &load, &tags, round % tags.len(), fault)).collect();
        let of = |value: fn(&Outcome) -> Duration| {
            median(&mut outcomes.iter().map(|outcome| value(outcome).as_secs_f64() * 1e3).collect::<Vec<f64>>())
        };
        let p99s = [of(|outcome| outcome.p99_during), of(|outcome| outcome.p99_before)];
        tell_ratio(&format!("{fault:?}: other shards' p99, during / before"), p99s, "ms", AtMost(2.0));
        let longest = outcomes.iter().map(|outcome| outcome.recovery).max().unwrap_or_default();
        let (recovery, outage) = (of(|outcome| outcome.recovery), of(|outcome| outcome.outage));
        let sides = format!(
            "medians {recovery:.0} ms after its new primary, which worked {outage:.0} ms after the fault; longest in s"
        );
        tell(&format!("{fault:?}: the shard works again"), &sides, longest.as_secs_f64(), AtMost(1.0));
    }
    let failed = load.shared.failed.load(Ordering::Relaxed);
    load.end(&runtime);
    tell("requests that failed in all this", "of all tasks", failed as f64, AtMost(0.0));
}
