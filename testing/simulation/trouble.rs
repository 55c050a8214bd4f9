//! Faults by chance, except those of messages. The seed determines which of them happen, when, and to which process or
//! server.

use super::*;

/// Time during which faults happen.
const TROUBLE: Duration = Duration::from_secs(12);

/// Machines of a run.
pub struct Cast {
    /// Number of the next process.
    pub next: u32,
    pub machines: Vec<Machine>,
    pub gone: Vec<Machine>,
    /// Faults of masters and of links to them, several at a time.
    pub faults: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Pause,
    Crash,
    Close,
    Outage,
    Empty,
    Stale,
    Split,
    Step,
    RuntimeStops,
    RuntimeEnds,
    MasterFault,
    Cut,
}

/// Causes all faults except those of messages. The seed determines their order and their times.
pub async fn trouble(world: &Arc<World>, cast: &mut Cast) {
    let profile = world.profile;
    let mut plan = Vec::new();
    let kinds = [
        (Trouble::Pause, profile.pauses),
        (Trouble::Crash, profile.crashes),
        (Trouble::Close, profile.closes),
        (Trouble::Outage, profile.outages),
        (Trouble::Empty, profile.empties),
        (Trouble::Stale, profile.stale),
        (Trouble::Split, profile.splits),
        (Trouble::Step, profile.steps),
        (Trouble::RuntimeStops, profile.runtime_stops),
        (Trouble::RuntimeEnds, profile.runtime_ends),
        (Trouble::MasterFault, profile.master_faults),
        (Trouble::Cut, profile.cuts),
    ];
    // A profile without the last four kinds must draw no random numbers for them. Otherwise its runs would change.
    let (first, last) = kinds.split_at(8);
    let kinds = first.iter().chain(last.iter().filter(|(_, most)| *most > 0));
    for (kind, most) in kinds {
        for _ in 0..world.draw(|rng| rng.u32(0..=*most)) {
            plan.push((world.draw(|rng| rng.u64(0..millis(TROUBLE))), *kind));
        }
    }
    plan.sort_by_key(|(at, _)| *at);
    let began = world.now() / 1000;
    for (at, kind) in plan {
        sleep_until(world, began + at).await;
        happens(world, cast, kind).await;
    }
    sleep_until(world, began + millis(TROUBLE)).await;
    cast.faults.drain(..).for_each(|fault| fault.abort());
}

/// Returns at this time of the run, in milliseconds.
async fn sleep_until(world: &World, at_ms: u64) {
    sleep_ms(at_ms.saturating_sub(world.now() / 1000)).await;
}

async fn happens(world: &Arc<World>, cast: &mut Cast, kind: Trouble) {
    let victim = world.draw(|rng| rng.usize(0..cast.machines.len()));
    match kind {
        Trouble::Pause => {
            let long = world.draw(|rng| rng.bool());
            let for_ms = world.draw(|rng| if long { rng.u64(1..12_000) } else { rng.u64(1..1_000) });
            cast.machines[victim].pause(for_ms);
        }
        Trouble::Crash | Trouble::Close => {
            let heir = Machine::start(world, cast.next, world.profile.cast.2 / 2);
            cast.next += 1;
            let mut old = std::mem::replace(&mut cast.machines[victim], heir);
            if matches!(kind, Trouble::Crash) {
                old.crash()
            } else {
                old.close()
            }
            cast.gone.push(old);
        }
        Trouble::Outage => outage(world, |_| {}).await,
        Trouble::Empty => outage(world, |world| world.empties(0)).await,
        Trouble::Stale => outage(world, World::falls_back).await,
        Trouble::Split => split(world).await,
        Trouble::Step => world.steps_clock(world.profile.step_band_ms),
        Trouble::RuntimeStops => {
            let (pick, how_long) = world.draw(|rng| (rng.usize(0..8), rng.u32(0..4)));
            let for_ms = match how_long {
                0 => Some(world.draw(|rng| rng.u64(1..1_000))),
                1 => Some(world.draw(|rng| rng.u64(1_000..12_000))),
                // A task of the runtime computes.
                2 => Some(20_000),
                _ => None,
            };
            cast.machines[victim].stop_runtime(pick, for_ms);
        }
        Trouble::RuntimeEnds => {
            let (pick, leaks) = world.draw(|rng| (rng.usize(0..8), rng.u32(0..4) == 0));
            cast.machines[victim].end_runtime(pick, leaks, world.profile.cast.2 / 2);
        }
        Trouble::MasterFault => cast.faults.push(tokio::spawn(master_fault(Arc::clone(world)))),
        Trouble::Cut => {
            let process = cast.machines[victim].address.process;
            cast.faults.push(tokio::spawn(cut(Arc::clone(world), process)));
        }
    }
}

/// Takes the server away for longer than clocks can differ. Another server may come in its place.
async fn outage(world: &Arc<World>, change: impl FnOnce(&World)) {
    let is_silent = world.draw(|rng| rng.bool());
    world.goes_down(0, if is_silent { Down::Silent } else { Down::Refusing });
    let long = world.draw(|rng| rng.u32(0..4) == 0);
    let for_ms = world.draw(|rng| if long { rng.u64(2_000..8_000) } else { rng.u64(120..1_500) });
    sleep_ms(for_ms).await;
    change(world);
    world.comes_up(0);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reroute(Process),
    Wake,
    Demote,
}

/// Splits the primaries. The primary freezes, a replica takes over, and processes learn of it one after the other. Then
/// the old primary wakes up. For milliseconds or seconds it answers the requests in its sockets, and the processes that
/// still ask it.
async fn split(world: &Arc<World>) {
    world.freezes(0);
    let for_ms = world.draw(|rng| rng.u64(200..1_500));
    sleep_ms(for_ms).await;
    world.promotes();
    let wakes = world.draw(|rng| rng.u64(0..2_000));
    let long = world.draw(|rng| rng.bool());
    let awake = world.draw(|rng| if long { rng.u64(200..4_000) } else { rng.u64(2..12) });
    let mut steps = vec![(wakes, Step::Wake), (wakes + awake, Step::Demote)];
    for process in world.behind() {
        // The old primary refuses a process that still asks it later, and the process looks for another primary.
        let learns_after = world.draw(|rng| rng.u64(0..wakes + awake + 100));
        steps.push((learns_after, Step::Reroute(process)));
    }
    steps.sort_by_key(|(at, _)| *at);
    let began = world.now() / 1000;
    for (at, step) in steps {
        sleep_until(world, began + at).await;
        match step {
            Step::Reroute(process) => world.reroutes(process),
            Step::Wake => world.wakes(),
            Step::Demote => world.demotes(),
        }
    }
}

/// Causes one fault of one master, which lasts for a while.
async fn master_fault(world: Arc<World>) {
    let profile = world.profile;
    let servers = world.servers();
    let (victim, kind, takes) = world.draw(|rng| {
        let victim = if profile.spares_a_majority {
            world.fragile[rng.usize(0..world.fragile.len())]
        } else {
            rng.usize(0..servers)
        };
        (victim, profile.kinds[rng.usize(0..profile.kinds.len())], rng.u64(20..millis(profile.fault_takes)))
    });
    let takes = Duration::from_millis(takes);
    match kind {
        MasterFault::Freezes => {
            world.freezes(victim);
            sleep(takes).await;
            world.thaws(victim);
        }
        MasterFault::IsSlow => {
            world.slows(victim, true);
            sleep(takes).await;
            world.slows(victim, false);
        }
        MasterFault::Dies | MasterFault::Forgets if world.is_down(victim) => {}
        MasterFault::Dies | MasterFault::Forgets => {
            // Never more than a minority forgets anything within a lease.
            let forgets = kind == MasterFault::Forgets && world.fragile.contains(&victim);
            // The operator delays the restart of a master without its data.
            let is_delayed = world.restarts == Restarts::Delayed && world.mutant != Some(Mutant::ForgetfulVotes);
            let lease = profile.lease.filter(|_| forgets && is_delayed).unwrap_or_default();
            world.goes_down(victim, Down::Dead);
            sleep(takes + lease * 11 / 10).await;
            if forgets {
                world.empties(victim);
            }
            world.comes_up(victim);
        }
    }
}

/// Cuts a process off from some masters, or from all, for a while.
async fn cut(world: Arc<World>, process: Process) {
    let mut places: Vec<_> = (0..world.servers()).collect();
    let (many, takes) = world.draw(|rng| {
        rng.shuffle(&mut places);
        (rng.usize(1..=places.len()), rng.u64(300..3_000))
    });
    world.cuts(process, &places[..many]);
    sleep_ms(takes).await;
    world.cuts(process, &[]);
}
