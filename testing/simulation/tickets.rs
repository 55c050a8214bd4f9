//! Detached holds. A process that dies at any step, a future that is dropped at any wait, late copies, lost answers, and
//! tickets that are lost, late, or used twice: there are never two valid guards, and nothing stays for long.

use super::*;
use crate::base::error::Result;

const NAME: &str = "job";
/// Longer than all that a run waits for before it looks at the lock.
const VALID_FOR: Duration = Duration::from_secs(300);
/// Time of the work under the lock.
const JOB: Duration = Duration::from_millis(50);
/// Time after which requests are lost no more, and then the time for retries, late copies and a lease.
const HEALED_AFTER: Duration = Duration::from_secs(20);

/// Fault of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The process with this number dies after this many milliseconds.
    Dies(u32, u64),
    /// The future of `detach` is dropped at this wait.
    DetachmentDropped(u32),
    /// The future of the first adoption is dropped at this wait.
    AdoptionDropped(u32),
    /// The ticket reaches no process.
    TicketLost,
}

#[derive(Debug)]
struct Outcome {
    is_detached: bool,
    adopted: u32,
    /// The lock is taken when all retries and late copies are over.
    is_left: bool,
    /// The lock is taken after the end of the ticket.
    is_left_for_ever: bool,
}

/// Guards that exist, with the highest number of valid ones at a time, and what happened to the ticket.
#[derive(Default)]
struct Inside {
    watches: Mutex<Vec<HoldWatch>>,
    most: AtomicU32,
    is_detached: AtomicBool,
    adopted: AtomicU32,
}

impl Inside {
    fn add(&self, guard: &WriteGuard) {
        self.watches.lock().push(guard.watch());
        self.look();
    }

    fn remove(&self, guard: &WriteGuard) {
        self.watches.lock().retain(|watch| watch.fencing_token() != guard.fencing_token());
    }

    fn look(&self) {
        let valid = self.watches.lock().iter().filter(|watch| !matches!(watch.state(), HoldState::Lost(_))).count();
        self.most.fetch_max(u32::try_from(valid).expect("few"), Ordering::SeqCst);
    }

    async fn work(&self, guard: WriteGuard) {
        self.add(&guard);
        sleep(JOB).await;
        self.look();
        self.remove(&guard);
        drop(guard.release().await);
    }
}

/// Works, and passes the lock on.
async fn detaches(manager: SimManager, inside: Arc<Inside>, fault: Fault) -> Option<Ticket> {
    let guard = manager.write(NAME).await.ok()?;
    inside.add(&guard);
    sleep(JOB).await;
    inside.remove(&guard);
    let detaching = guard.detach(VALID_FOR);
    let detached = match fault {
        Fault::DetachmentDropped(waits) => CutAt::new(waits, detaching).await?,
        _ => detaching.await,
    };
    detached.ok()
}

/// Adopts the ticket and works.
async fn adopts(adopting: impl Future<Output = Option<Result<WriteGuard>>>, inside: Arc<Inside>) {
    if let Some(Ok(guard)) = adopting.await {
        inside.adopted.fetch_add(1, Ordering::SeqCst);
        inside.work(guard).await;
    }
}

/// Wants the lock all the time.
async fn contends(manager: SimManager, inside: Arc<Inside>) {
    loop {
        if let Ok(guard) = manager.write(NAME).wait_timeout(Duration::from_secs(5)).await {
            inside.work(guard).await;
        }
        sleep(JOB * 4).await;
    }
}

/// Lets a process die, or the server fall back to an older state.
fn disturb(world: &Arc<World>, addresses: &[Address], profile: Profile, fault: Fault) {
    if let Fault::Dies(process, after_ms) = fault {
        let gate = Arc::clone(&addresses[process as usize].gate);
        drop(tokio::spawn(async move {
            sleep_ms(after_ms).await;
            gate.crash();
        }));
    }
    if profile.stale > 0 {
        drop(tokio::spawn(Arc::clone(world).replicate()));
        let world = Arc::clone(world);
        drop(tokio::spawn(async move {
            sleep_ms(world.draw(|rng| rng.u64(1..400))).await;
            world.falls_back();
        }));
    }
}

fn play(seed: u64, profile: Profile, fault: Fault) -> (Outcome, u32) {
    paused_runtime().block_on(async {
        let world = World::new(seed, profile, None);
        let addresses: Vec<_> = (0..4).map(Address::new).collect();
        let managers: Vec<_> =
            addresses.iter().map(|address| SimManager::with(&world, address, world.profile.short_options())).collect();
        let [first, second, third, other] = managers.try_into().unwrap_or_else(|_| unreachable!("there are four"));
        let inside = Arc::<Inside>::default();
        disturb(&world, &addresses, profile, fault);
        let contending = tokio::spawn(contends(other, Arc::clone(&inside)));
        let story = {
            let inside = Arc::clone(&inside);
            let gates: Vec<_> = addresses.iter().map(|address| Arc::clone(&address.gate)).collect();
            async move {
                let ticket = Pausable::new(&gates[0], detaches(first, Arc::clone(&inside), fault)).await;
                let Some(ticket) = ticket else { return };
                inside.is_detached.store(true, Ordering::SeqCst);
                if fault == Fault::TicketLost {
                    return;
                }
                let one = second.adopt_write(ticket.clone());
                let one = async move {
                    match fault {
                        Fault::AdoptionDropped(waits) => CutAt::new(waits, one).await,
                        _ => Some(one.await),
                    }
                };
                let one = adopts(one, Arc::clone(&inside));
                let other = async {
                    sleep_ms(seed % 90).await;
                    adopts(async { Some(third.adopt_write(ticket).await) }, inside).await;
                };
                tokio::join!(Pausable::new(&gates[1], one), Pausable::new(&gates[2], other));
            }
        };
        let story = tokio::spawn(story);
        sleep(HEALED_AFTER).await;
        world.heals();
        contending.abort();
        sleep(HEALED_AFTER * 2).await;
        inside.look();
        let is_left = !world.holds().is_empty();
        sleep(VALID_FOR).await;
        story.abort();
        let outcome = Outcome {
            is_detached: inside.is_detached.load(Ordering::SeqCst),
            adopted: inside.adopted.load(Ordering::SeqCst),
            is_left,
            is_left_for_ever: !world.holds().is_empty(),
        };
        (outcome, inside.most.load(Ordering::SeqCst))
    })
}

/// Asserts what every run must keep, and returns its outcome.
fn judged(seed: u64, profile: Profile, fault: Fault) -> Outcome {
    let (outcome, most) = play(seed, profile, fault);
    let what = || format!("seed {seed}, {}, {fault:?}: {outcome:?}", profile.name);
    assert!(most < 2, "{most} valid guards: {}", what());
    assert!(outcome.adopted < 2, "a ticket is used twice: {}", what());
    // An unused ticket stays. A dead process can release nothing.
    let may_stay = outcome.is_detached && outcome.adopted == 0 || matches!(fault, Fault::Dies(..));
    assert!(!outcome.is_left || may_stay, "something is left: {}", what());
    assert!(!outcome.is_left_for_ever, "something is left after the end of the ticket: {}", what());
    outcome
}

fn all(profile: Profile, seeds: u64, faults: impl Iterator<Item = Fault> + Clone) -> Vec<Outcome> {
    (0..seeds).flat_map(|seed| faults.clone().map(move |fault| judged(seed, profile, fault))).collect()
}

#[test]
fn ticket_passes_the_lock_on_once_whatever_is_lost_or_comes_twice() {
    for profile in [CALM, LOSSY, COPIES, REPLICATED] {
        let outcomes = all(profile, seeds_of_build(150), [Fault::None].into_iter());
        assert_one(&outcomes, profile.name, |outcome| outcome.adopted == 1);
        assert!(profile.name != CALM.name || outcomes.iter().all(|outcome| outcome.adopted == 1), "nothing is lost");
    }
}

#[test]
fn lost_ticket_ends_with_its_time() {
    for profile in [CALM, COPIES] {
        let outcomes = all(profile, seeds_of_build(60), [Fault::TicketLost].into_iter());
        assert_one(&outcomes, profile.name, |outcome| outcome.is_left);
    }
}

#[test]
fn step_that_is_dropped_at_any_wait_leaves_nothing() {
    for profile in [CALM, COPIES] {
        let faults = (0..9).flat_map(|waits| [Fault::DetachmentDropped(waits), Fault::AdoptionDropped(waits)]);
        let outcomes = all(profile, seeds_of_build(120), faults);
        assert_one(&outcomes, "before the ticket", |outcome| !outcome.is_detached);
        assert_one(&outcomes, "before the guard", |outcome| outcome.is_detached && outcome.adopted == 0);
        assert_one(&outcomes, "after it", |outcome| outcome.adopted == 1);
    }
}

#[test]
fn process_that_dies_at_any_step_leaves_no_second_guard() {
    for profile in [CALM, COPIES] {
        let times = (0..20).step_by(2).chain((20..200).step_by(20));
        let faults = times.flat_map(|after_ms| [0, 1, 2].map(|process| Fault::Dies(process, after_ms)));
        let outcomes = all(profile, seeds_of_build(60), faults);
        assert_one(&outcomes, "before the ticket", |outcome| !outcome.is_detached);
        assert_one(&outcomes, "after the guard", |outcome| outcome.adopted == 1);
    }
}
