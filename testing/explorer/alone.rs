//! Exploration of a process alone, against answers that the trait [`Scheme`](crate::store::Scheme) allows.
//!
//! There is no server, so an answer may contradict earlier ones. A real server answers so after it has lost its record,
//! and here that is a fault. The tasks of the process run on several threads: effects of events are carried out in steps
//! of their own, and later than other events and their effects. At most two effects wait at a time.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::time::Instant;

use super::interned::ProcessPrint;
use super::search::Own;
use super::server::{CLAIM, LEASE, PATIENCE, TOKENS};
use crate::base::mode::Mode::{self, Read, Write};
use crate::lock::process::{AwaitedAnswer, Blunder, Broken, HeardGrant, HeardReply, Process, Told};

/// Slots of acquisitions of the process.
const SLOTS: u16 = 0x0fff;

/// Tasks of the process, and the answers that it gets.
#[derive(Clone, Copy, Debug)]
struct AloneScene {
    /// Modes of the tasks, in the order in which they come. Each task has one acquisition.
    modes: &'static [Mode],
    has_tries: bool,
    /// True if the scheme has a queue, and notifies its waiters.
    has_queue: bool,
    /// Remaining times that a grant may tell, in ticks.
    remaining: &'static [u8],
    /// True if a grant may tell that a waiter of another process waits.
    has_others: bool,
    has_late_answers: bool,
    /// Number of cancelled tasks, of requests without an answer, of holds that the server has lost, and of ticks in which
    /// an answer is under way.
    faults: u8,
    ticks: u8,
}

/// Broken rule of a process alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BrokenAlone {
    Within(Broken),
    /// Guards of a writer and of another task are valid at once.
    Exclusion,
    /// All guards leave and the server grants, but a waiter does not enter.
    Progress,
}

/// Inputs of one step, in their order.
type ToldAlone = Vec<Told>;

/// Faults and ticks that may still come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    faults: u8,
    ticks: u8,
}

impl Left {
    /// Returns what is left after a step with so many faults.
    fn after(self, faults: u8, step: &ToldAlone) -> Option<Self> {
        let ticks = u8::from(matches!(step[..], [Told::Tick]));
        Some(Self { faults: self.faults.checked_sub(faults)?, ticks: self.ticks.checked_sub(ticks)? })
    }

    fn print(self, process: &Process) -> u128 {
        ProcessPrint::of(process) ^ u128::from(self.faults) ^ (u128::from(self.ticks) << 8)
    }
}

/// Step, with the number of faults in it.
type StepAlone = (u8, ToldAlone);

/// Fingerprints of states.
type Prints = HashSet<u128, BuildHasherDefault<Own>>;

struct ExploredAlone {
    states: usize,
    steps: usize,
    found: Option<(BrokenAlone, Vec<ToldAlone>)>,
}

impl AloneScene {
    /// Returns the steps that a process may take.
    fn steps(&self, process: &Process) -> Vec<StepAlone> {
        // At most two threads have effects to carry out.
        if process.woken().count() + process.unscheduled().count() >= 2 {
            return effects(process).into_iter().map(|step| (0, step)).collect();
        }
        let mut steps: Vec<StepAlone> = self.steps_without_faults(process).into_iter().map(|step| (0, step)).collect();
        steps.extend(process.waiting().map(|task| (1, vec![Told::Cancel { task }])));
        for (copy, awaited) in process.awaited() {
            let cost = |reply| cost(process, awaited, reply);
            let replies = self.replies(awaited);
            steps.extend(replies.map(|(grown, reply)| (cost(reply), told(grown, Told::Answer { copy, reply }))));
        }
        for (slot, mode) in process.queued_sides() {
            let cost = u8::from(process.excludes(mode));
            steps.extend(self.grants(CLAIM).map(|grant| {
                let grown = i8::try_from(grant.tokens).expect("few");
                (cost, told(grown, Told::Notice { slot, grant: Some(grant) }))
            }));
            steps.push((0, vec![Told::Notice { slot, grant: None }]));
        }
        // The effects of a thread are carried out before the next tick.
        if process.unscheduled().next().is_none() && !process.is_due() {
            steps.push((u8::from(process.copies().next().is_some()), vec![Told::Tick]));
        }
        steps
    }

    fn steps_without_faults(&self, process: &Process) -> Vec<ToldAlone> {
        let mut steps = Vec::new();
        if let Some(mode) = self.modes.get(usize::from(process.begun)).copied() {
            steps.push(vec![Told::Acquire { mode, waits: true }]);
            if self.has_tries {
                steps.push(vec![Told::Acquire { mode, waits: false }]);
            }
        }
        steps.extend(process.holding().map(|task| vec![Told::Release { task }]));
        steps.extend(process.pausing().map(|task| vec![Told::Retry { task }]));
        steps.extend(process.pausing_sides().map(|mode| vec![Told::AskAgain { mode }]));
        steps.extend(effects(process));
        steps
    }

    /// Returns the grants with these remaining times, each with all tokens that it may have.
    fn grants(&self, remaining: u8) -> impl Iterator<Item = HeardGrant> + use<> {
        let tokens = u8::try_from(TOKENS).expect("few");
        let others = if self.has_others { &[false, true][..] } else { &[false][..] };
        others.iter().map(move |is_waited_for| HeardGrant {
            remaining,
            first: 1 - i8::try_from(tokens).expect("few"),
            tokens,
            is_waited_for: *is_waited_for,
        })
    }

    /// Returns the answers to a request, each with the number of tokens by which the lock has moved on.
    fn replies(&self, awaited: AwaitedAnswer) -> impl Iterator<Item = (i8, Option<HeardReply>)> {
        let mut replies = vec![(0, None)];
        let grown = i8::try_from(TOKENS).expect("few");
        match awaited {
            AwaitedAnswer::Acquire { waits, .. } => {
                let granted = self.remaining.iter().flat_map(|remaining| self.grants(*remaining));
                replies.extend(granted.map(|grant| (grown, Some(HeardReply::Granted(grant)))));
                let is_queued = waits && self.has_queue;
                let refusal = if is_queued { HeardReply::Queued { is_cached: false } } else { HeardReply::Contended };
                replies.push((0, Some(refusal)));
            }
            AwaitedAnswer::Recheck { first } => {
                let granted = self.grants(LEASE).map(|grant| HeardGrant { first, ..grant });
                replies.extend(granted.map(|grant| (0, Some(HeardReply::Granted(grant)))));
                replies.push((0, Some(HeardReply::Contended)));
            }
            AwaitedAnswer::Renew => {
                let renewed = HeardReply::Renewed { remaining: LEASE, is_waited_for: false, tokens: None };
                replies.extend([renewed, HeardReply::Lost].map(|reply| (0, Some(reply))));
            }
            AwaitedAnswer::Leave => replies.push((0, Some(HeardReply::Left { held: true }))),
        }
        let may_be_late = matches!(awaited, AwaitedAnswer::Acquire { .. } | AwaitedAnswer::Recheck { .. });
        if self.has_late_answers && may_be_late {
            replies.push((0, Some(HeardReply::Late)));
        }
        replies.into_iter()
    }

    fn explored(&self, blunder: Option<Blunder>) -> ExploredAlone {
        let start = Process::with_threads(blunder);
        let (mut seen, mut known) = (Prints::default(), Prints::default());
        let left = Left { faults: self.faults, ticks: self.ticks };
        seen.insert(left.print(&start));
        let mut ways: Vec<(usize, ToldAlone)> = vec![(0, Vec::new())];
        let mut queue = VecDeque::from([(start, left, 0)]);
        let (mut count, mut found) = (0, None);
        'all: while let Some((process, left, own)) = queue.pop_front() {
            if !self.has_progress(&process, &mut known) {
                found = Some((BrokenAlone::Progress, way(&ways, own)));
                break;
            }
            for (faults, step) in self.steps(&process) {
                let Some(left) = left.after(faults, &step) else { continue };
                count += 1;
                let next = match take(&process, &step) {
                    Ok(next) => next,
                    Err(broken) => {
                        let mut way = way(&ways, own);
                        way.push(step);
                        found = Some((broken, way));
                        break 'all;
                    }
                };
                if seen.insert(left.print(&next)) {
                    ways.push((own, step));
                    queue.push_back((next, left, ways.len() - 1));
                }
            }
        }
        ExploredAlone { states: seen.len(), steps: count, found }
    }

    /// If all guards leave and the server grants each request, all waiters enter. `known` has the states for which this is
    /// known.
    fn has_progress(&self, process: &Process, known: &mut Prints) -> bool {
        let mut process = process.clone();
        let mut seen = Vec::new();
        for _ in 0..20 * (LEASE + PATIENCE) {
            let print = ProcessPrint::of(&process);
            seen.push(print);
            if process.waiting().next().is_none() || known.contains(&print) {
                known.extend(seen);
                return true;
            }
            let release = process.holding().next().map(|task| vec![Told::Release { task }]);
            let answer = || {
                let (copy, awaited) = process.awaited().into_iter().next()?;
                let (grown, reply) = self.replies(awaited).nth(1)?;
                Some(told(grown, Told::Answer { copy, reply }))
            };
            let effect = || effects(&process).into_iter().next();
            let step = release.or_else(effect).or_else(answer).unwrap_or_else(|| vec![Told::Tick]);
            // A rule that breaks on the way breaks in the steps of the search, too.
            let Ok(next) = take(&process, &step) else { return true };
            process = next;
        }
        false
    }

    /// Asserts that no state breaks a rule, and that the scene has not shrunk.
    fn holds(&self, least: usize) {
        let began = Instant::now();
        let ExploredAlone { states, steps, found } = self.explored(None);
        println!("{states} states, {steps} steps, {:?}: {self:?}", began.elapsed());
        assert!(found.is_none(), "{self:?}: {found:?}");
        assert!(states >= least, "{states} states instead of {least} and more: {self:?} has shrunk");
    }
}

/// Returns the number of faults in an answer.
fn cost(process: &Process, awaited: AwaitedAnswer, reply: Option<HeardReply>) -> u8 {
    let is_fault = match (awaited, reply) {
        (_, None | Some(HeardReply::Lost)) => true,
        (AwaitedAnswer::Acquire { mode, .. }, Some(HeardReply::Granted(_))) => process.excludes(mode),
        (AwaitedAnswer::Recheck { .. }, Some(HeardReply::Contended)) => true,
        _ => false,
    };
    u8::from(is_fault)
}

/// Returns the steps that carry out an effect.
fn effects(process: &Process) -> Vec<ToldAlone> {
    let polls = process.woken().map(|task| vec![Told::Poll { task }]);
    let schedules = process.unscheduled().map(|effect| vec![Told::Schedule { effect }]);
    let drives = process.is_due().then(|| vec![Told::Drive]);
    polls.chain(schedules).chain(drives).collect()
}

/// The highest token grows before the process learns of it.
fn told(grown: i8, told: Told) -> ToldAlone {
    if grown == 0 { vec![told] } else { vec![Told::Grown(grown), told] }
}

fn way(ways: &[(usize, ToldAlone)], mut at: usize) -> Vec<ToldAlone> {
    let mut way = Vec::new();
    while at != 0 {
        way.push(ways[at].1.clone());
        at = ways[at].0;
    }
    way.reverse();
    way
}

/// Answer to a release.
fn answer_to_release(process: &Process) -> Option<Told> {
    let awaited = process.awaited().into_iter().find(|(_, awaited)| matches!(awaited, AwaitedAnswer::Leave))?;
    Some(Told::Answer { copy: awaited.0, reply: Some(HeardReply::Left { held: true }) })
}

/// Takes a step, and judges the process after it. The server answers releases at once.
fn take(process: &Process, step: &ToldAlone) -> Result<Process, BrokenAlone> {
    let mut process = process.clone();
    let mut todo = step.clone();
    todo.reverse();
    while let Some(told) = todo.pop().or_else(|| answer_to_release(&process)) {
        let (next, outputs) = process.step(told, SLOTS);
        if let Some(broken) = outputs.broken {
            return Err(BrokenAlone::Within(broken));
        }
        process = next;
    }
    let valid = process.valid();
    let has_writer = valid.iter().any(|(mode, _)| *mode == Mode::Write);
    if has_writer && valid.len() > 1 { Err(BrokenAlone::Exclusion) } else { Ok(process) }
}

/// Scene with waiters only, whose grants last for the whole lease.
const WAITERS: AloneScene = AloneScene {
    modes: &[],
    has_tries: false,
    has_queue: true,
    remaining: &[LEASE],
    has_others: false,
    has_late_answers: false,
    faults: 0,
    ticks: 0,
};

/// Scene of tasks that also try, with all answers.
const ALL_ANSWERS: AloneScene =
    AloneScene { has_tries: true, remaining: &[1, LEASE], has_others: true, has_late_answers: true, ..WAITERS };

/// Orders in which readers and writers come.
const FOUR: [&[Mode]; 4] = [
    &[Read, Write, Read, Write],
    &[Write, Read, Read, Write],
    &[Write, Write, Read, Read],
    &[Write, Read, Write, Write],
];

#[test]
fn four_tasks_alone_hold_against_every_answer() {
    for modes in FOUR {
        AloneScene { modes, ..WAITERS }.holds(1_800);
        AloneScene { modes, has_queue: false, ..WAITERS }.holds(1_100);
    }
    AloneScene { modes: &[Read, Write], ticks: 4, ..WAITERS }.holds(2_900);
    AloneScene { modes: &[Write, Write], ticks: 4, faults: 1, ..WAITERS }.holds(17_400);
    AloneScene { modes: &[Read, Write], ..ALL_ANSWERS }.holds(1_090);
    AloneScene { modes: FOUR[0], ticks: 1, ..WAITERS }.holds(28_200);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn four_tasks_alone_hold_with_ticks_faults_and_short_grants() {
    for modes in FOUR {
        AloneScene { modes, ticks: 2, ..WAITERS }.holds(19_400);
        AloneScene { modes, faults: 1, ..WAITERS }.holds(60_400);
        AloneScene { modes, ..ALL_ANSWERS }.holds(35_300);
    }
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn fewer_tasks_alone_hold_for_longer() {
    for modes in [&[Read, Write][..], &[Write, Write], &[Write, Read]] {
        AloneScene { modes, faults: 1, ticks: 2, ..ALL_ANSWERS }.holds(120_000);
    }
    AloneScene { modes: &[Read, Write, Read], faults: 1, ticks: 2, ..WAITERS }.holds(1_290_000);
}

#[test]
fn each_blunder_with_effects_is_found() {
    let planted: [(_, &[Mode], _); 2] = [
        (Blunder::WakesOne, &[Read, Read, Read], Broken::NotWoken),
        (Blunder::SchedulesWhatItRead, &[Read, Write], Broken::LateTimer),
    ];
    for (blunder, modes, broken) in planted {
        let scene = AloneScene { modes, faults: 1, ticks: 1, ..WAITERS };
        let found = scene.explored(Some(blunder)).found.unwrap_or_else(|| panic!("{blunder:?} is not found"));
        println!("{blunder:?}: {found:?}");
        assert_eq!(found.0, BrokenAlone::Within(broken), "{found:?}");
    }
}
