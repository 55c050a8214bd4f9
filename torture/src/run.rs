//! Performs one run. Starts servers and workers, causes and repairs faults by the seed, ends the processes, and judges
//! the history.

use std::thread::sleep;
use std::time::Instant;
use std::{fs, process};

use super::*;
use crate::args::Keeps;
use crate::faults::{Fault, Scene};
use crate::judge::{Cycle, Evidence};
use crate::observer::Observer;
use crate::register::Registers;
use crate::report::Aftermath;

/// Pause before the first fault.
const CALM: Duration = Duration::from_secs(1);
/// Pause before the first fault with independent masters, which do not vote directly after their start.
const CALM_OF_MASTERS: Duration = Duration::from_secs(5);
/// Pause after each fault, so that its effects are over when the next one begins.
const SETTLING: Duration = Duration::from_millis(3500);
/// Pause after each fault with independent masters. A restarted master votes again one lease later, by its uptime in
/// whole seconds.
const SETTLING_OF_MASTERS: Duration = Duration::from_secs(5);
const PAIR_EVERY: usize = 4;

/// Folder with the histories.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    keeps: Keeps,
}

impl Folder {
    fn make(keeps: Keeps) -> Result<Self> {
        let path = env::temp_dir().join(format!("torture-{}", process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path, keeps })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match self.keeps {
            Keeps::Histories => println!("histories: {}", self.path.display()),
            Keeps::Nothing => fs::remove_dir_all(&self.path).unwrap_or_default(),
        }
    }
}

/// Returns true if the run was successful.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let faults = faults::chosen(args)?;
    let folder = Folder::make(args.keeps)?;
    let field = Field::start(args.level, args.server)?;
    let registers = Registers::start(&folder.path, LOCKS)?;
    let crew = Crew::start(args.workers, order(args, &field, &registers, &folder.path), &folder.path)?;
    let began = now();
    // A quorum has no queue.
    let has_queues = args.groups > 0 && args.level != Level::Quorum;
    let observer = has_queues.then(|| Observer::start(field.urls()));
    sleep(if matches!(field, Field::Cluster(_)) { CALM } else { CALM_OF_MASTERS });
    let mut plan = Plan::new(faults, args.seed);
    let (mut cycles, mut failed) = (Vec::new(), Vec::new());
    let over = Instant::now() + args.duration;
    let started = Instant::now();
    while Instant::now() < over {
        let pick = plan.next();
        println!("{:7.1} s  {}", started.elapsed().as_secs_f64(), names(&pick));
        let (cycle, outcome) = cycle(&field, &crew, &pick, &mut plan.rng);
        cycles.push(cycle);
        if let Err(error) = outcome {
            println!("           could not be done: {error}");
            failed.push(format!("{}: {error}", names(&pick)));
            if let Err(error) = recover(&field, &crew) {
                failed.push(format!("the run was broken off: {error}"));
                break;
            }
        }
    }
    let lasted = started.elapsed();
    let told = crew.finish()?;
    let sightings = observer.map(Observer::finish).transpose()?;
    sleep(longest_lease(&field) + LEASE / 3);
    let left = left_over(args.level, &field)?;
    let (ledger, sightings) = (&registers.ledger(), sightings.as_ref());
    let evidence = Evidence { told: &told, ledger, sightings, cycles: &cycles, began, locks: LOCKS };
    let findings = judge::judge(evidence);
    let aftermath = Aftermath { left, lasted, version: field.version(), failed, updates: ledger.updates };
    Ok(report::report(args, &findings, &aftermath))
}

fn order(args: &Args, field: &Field, registers: &Registers, dir: &Path) -> Order {
    Order {
        level: args.level,
        replicas: args.replicas,
        plant: args.plant,
        cache_for: args.cache_for,
        groups: args.groups,
        seed: args.seed,
        journal: dir.to_owned(),
        registers: registers.path().to_owned(),
        urls: field.urls(),
    }
}

/// Order of the faults by the seed. All chosen faults come in a random order, and then again in another order.
#[derive(Debug)]
struct Plan {
    rng: Rng,
    picks: Vec<Vec<Fault>>,
    ahead: Vec<Vec<Fault>>,
    picked: usize,
}

impl Plan {
    fn new(picks: Vec<Vec<Fault>>, seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), picks, ahead: Vec::new(), picked: 0 }
    }

    /// Returns the next fault, or two faults that happen at the same time.
    fn next(&mut self) -> Vec<Fault> {
        if self.ahead.is_empty() {
            self.ahead = self.picks.clone();
            self.rng.shuffle(&mut self.ahead);
        }
        self.picked += 1;
        let mut pick = self.ahead.pop().unwrap_or_default();
        let mixes = |fault: &&Fault| fault.mixes == Mixes::Yes;
        let others: Vec<_> = self.picks.iter().filter(|pick| pick.len() == 1).flatten().filter(mixes).collect();
        if self.picked.is_multiple_of(PAIR_EVERY) && pick.len() == 1 && self.picks.len() > 1 && !others.is_empty() {
            let other = *others[self.rng.usize(..others.len())];
            pick.extend((pick[0].name != other.name).then_some(other));
        }
        pick
    }
}

fn names(pick: &[Fault]) -> String {
    pick.iter().map(|fault| fault.name).collect::<Vec<_>>().join(" + ")
}

/// Returns the row of a pick. All pairs of a column share one row, since hundreds of pairs are possible.
fn row_name(pick: &[Fault], column: Column) -> String {
    match (pick.len(), column) {
        (1, _) => names(pick),
        (_, Column::Left) => "two at once".to_owned(),
        (_, Column::Right) => "two at once, one not survived".to_owned(),
    }
}

/// Causes faults, repairs the servers, and waits until the effects are over.
fn cycle(field: &Field, crew: &Crew, pick: &[Fault], rng: &mut Rng) -> (Cycle, Result<()>) {
    let began = now();
    let outcome = happen(field, crew, pick, rng).and_then(|()| {
        field.heal()?;
        crew.replace()
    });
    let healed = now();
    if outcome.is_ok() {
        sleep(settling(field));
    }
    let column = pick.iter().map(|fault| fault.column).max().unwrap_or(Column::Left);
    let mixes = if pick.iter().all(|fault| fault.mixes == Mixes::Yes) { Mixes::Yes } else { Mixes::No };
    let count = if outcome.is_ok() { pick.len() } else { 0 };
    (Cycle { name: row_name(pick, column), column, mixes, began, healed, over: now(), count }, outcome)
}

/// Causes all picked faults at the same time.
fn happen(field: &Field, crew: &Crew, pick: &[Fault], rng: &mut Rng) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = pick
            .iter()
            .map(|fault| {
                let mut scene = Scene { field, crew, rng: rng.fork() };
                scope.spawn(move || (fault.happen)(&mut scene))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a fault panicked")?)
    })
}

/// Repairs the servers after a fault that was only partly carried out.
fn recover(field: &Field, crew: &Crew) -> Result<()> {
    field.nodes().iter().for_each(|node| node.proxy().cut());
    field.heal()?;
    crew.replace()?;
    sleep(settling(field));
    Ok(())
}

fn longest_lease(field: &Field) -> Duration {
    match field {
        Field::Cluster(_) => LONGEST_LEASE,
        Field::Masters(_) => LEASE,
    }
}

fn settling(field: &Field) -> Duration {
    match field {
        Field::Cluster(_) => SETTLING,
        Field::Masters(_) => SETTLING_OF_MASTERS,
    }
}

/// Counts locks with a holder or a waiter, and keys without an expiry.
fn left_over(level: Level, field: &Field) -> Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks: Arc<dyn RwLockManager> = match level {
            Level::Primary | Level::Replicated => {
                Arc::new(RedisManager::builder(Topology::cluster(field.urls())).key_prefix(PREFIX).connect().await?)
            }
            Level::Quorum => Arc::new(QuorumManager::builder(field.urls()).key_prefix(PREFIX).connect().await?),
        };
        let mut left = field.endless_keys()?;
        for name in (0..LOCKS).map(lock_name) {
            let view = locks.inspect(name).await?;
            if !view.is_free() || !view.waiters.is_empty() {
                println!("left: {view:?}");
                left += 1;
            }
        }
        Ok(left)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(faults: &str) -> Plan {
        let words = ["--faults".to_owned(), faults.to_owned()];
        Plan::new(faults::chosen(&Args::parse(words).unwrap()).unwrap(), 1)
    }

    #[test]
    fn faults_named_together_always_happen_together() {
        let mut plan = plan("restart+acl,cut+delay");
        let mut seen: Vec<_> = (0..8).map(|_| names(&plan.next())).collect();
        seen.sort();
        assert_eq!(seen, [["cut + delay"; 4], ["restart + acl"; 4]].concat());
    }

    #[test]
    fn every_fourth_time_two_happen_of_which_one_mixes() {
        let mut plan = plan("all");
        for number in 1..200 {
            let pick = plan.next();
            assert!(pick.len() <= if number % PAIR_EVERY == 0 { 2 } else { 1 });
            assert!(pick[1..].iter().all(|fault| fault.mixes == Mixes::Yes && fault.name != pick[0].name));
        }
    }
}
