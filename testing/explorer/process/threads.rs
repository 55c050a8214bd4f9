//! Effects that the threads of a process have yet to carry out, and its queue of deadlines.
//!
//! An event changes the state at once. A thread carries out the effects later. Until then, events of other threads may
//! change the state, and their effects may be carried out before. Two effects of a process with threads come so: the
//! place of a hold in the queue, and the poll of a task that was woken. Other processes carry out all effects at once,
//! and look at each hold in each tick.

use std::cell::RefCell;

use super::*;

/// Effects that are not carried out yet, and the queue of deadlines.
#[derive(Clone, Hash, Debug, Default)]
pub struct PendingEffects {
    /// Holds in the queue, with their places. A hold for which nothing is due any more has a place before all others.
    places: Vec<(u64, Moment)>,
    /// Holds that a thread is about to put into the queue. A wrong thread has read the moment already.
    unscheduled: Vec<(u64, Option<Moment>)>,
}

/// Place of a hold for which nothing is due any more.
const RETIRED: Moment = Moment::from_nanos(0);

thread_local! {
    /// Places of the process that takes a step. The state asks for them through its handles, which have only numbers.
    static PLACES: RefCell<Option<Vec<(u64, Moment)>>> = const { RefCell::new(None) };
}

/// Returns true if the queue has this hold at `at` or before, or if the process has no queue.
pub fn is_looked_at_by(hold: u64, at: Moment) -> bool {
    PLACES.with_borrow(|places| {
        places.as_ref().is_none_or(|places| places.iter().any(|(of, place)| *of == hold && *place <= at))
    })
}

impl PendingEffects {
    fn place(&self, hold: u64) -> Moment {
        self.places.iter().find(|(of, _)| *of == hold).map_or(Moment::NEVER, |(_, at)| *at)
    }

    fn is_unscheduled(&self, hold: u64) -> bool {
        self.unscheduled.iter().any(|(of, _)| *of == hold)
    }
}

impl Process {
    /// Returns a process whose effects are steps of their own.
    pub fn with_threads(blunder: Option<Blunder>) -> Self {
        Self { pending: Some(PendingEffects::default()), ..Self::new(false, blunder) }
    }

    /// Returns the tasks that were woken and are not polled yet.
    pub fn woken(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| *stage == Stage::Waits(true)).filter(|_| self.pending.is_some())
    }

    /// Returns the holds that a thread is about to put into the queue, each at its place in the list of these holds.
    pub fn unscheduled(&self) -> impl Iterator<Item = u8> {
        let holds = self.pending.as_ref().map_or(0, |pending| pending.unscheduled.len());
        0..u8::try_from(holds).expect("few")
    }

    /// Returns true if the background has to look at a hold now.
    pub fn is_due(&self) -> bool {
        let is_due = |(_, at): &(u64, Moment)| *at != RETIRED && *at <= self.now;
        self.pending.as_ref().is_some_and(|pending| pending.places.iter().any(is_due))
    }

    /// Returns the copies whose answers are awaited, with what each has asked for.
    pub fn awaited(&self) -> Vec<(u8, AwaitedAnswer)> {
        let mut state = self.state.clone();
        let mut awaited = |copy: &FlyingCopy| match copy.purpose {
            Purpose::Acquire { mode, waits, .. } => AwaitedAnswer::Acquire { mode, waits },
            Purpose::Recheck { slot } => {
                let (hold, _) = self.holds.iter().find(|(_, of)| *of == slot).expect("it is not forgotten");
                let token = i64::try_from(state.record(*hold).token().as_u64()).expect("small");
                AwaitedAnswer::Recheck { first: i8::try_from(token - self.top).unwrap_or(i8::MIN) }
            }
            Purpose::Renew { .. } => AwaitedAnswer::Renew,
            Purpose::Leave { .. } => AwaitedAnswer::Leave,
            Purpose::Convert { .. } => unreachable!("these scenes convert nothing"),
        };
        self.copies.iter().map(|copy| (copy.number, awaited(copy))).collect()
    }

    /// Returns true if the process has a hold that excludes this side, and has not begun to release it.
    pub fn excludes(&self, mode: Mode) -> bool {
        let mut state = self.state.clone();
        self.holds.iter().any(|(hold, _)| {
            let record = state.record(*hold);
            record.is_live() && (mode == Mode::Write || record.mode() == Mode::Write)
        })
    }

    pub fn note_places(&self) {
        PLACES.set(self.pending.as_ref().map(|pending| pending.places.clone()));
    }
}

/// Request whose answer a process awaits.
#[derive(Clone, Copy, Debug)]
pub enum AwaitedAnswer {
    Acquire {
        mode: Mode,
        waits: bool,
    },
    /// The hold has this token, counted from the highest one.
    Recheck {
        first: i8,
    },
    Renew,
    Leave,
}

impl Driver<'_> {
    pub fn has_threads(&self) -> bool {
        self.process.pending.is_some()
    }

    /// Notes that a thread is about to put this hold into the queue.
    pub fn schedule_later(&mut self, hold: u64) {
        let reads_early = self.has(Blunder::SchedulesWhatItRead);
        let read = reads_early.then(|| self.due(hold)).flatten();
        let Some(pending) = &mut self.process.pending else { return };
        let effect = (hold, read);
        if !pending.unscheduled.contains(&effect) {
            pending.unscheduled.push(effect);
        }
    }

    /// Returns the moment of the next deadline of a hold, if there is one.
    fn due(&mut self, hold: u64) -> Option<Moment> {
        match self.record(hold).due() {
            Next::At(at) => Some(at),
            // The background looks at it at once.
            Next::Lost(_) => Some(self.now()),
            Next::Released | Next::GivenUp => None,
        }
    }

    fn put(&mut self, hold: u64, at: Option<Moment>) {
        if let Some(pending) = &mut self.process.pending {
            pending.places.retain(|(of, _)| *of != hold);
            pending.places.extend(at.map(|at| (hold, at)));
            pending.places.sort_unstable();
        }
        self.process.note_places();
    }

    /// A thread puts a hold into the queue, as `Deadlines::schedule` does.
    pub fn schedule(&mut self, effect: u8) {
        let Some(pending) = &mut self.process.pending else { return };
        let (hold, read) = pending.unscheduled.remove(effect.into());
        if pending.place(hold) != RETIRED {
            let at = read.or_else(|| self.due(hold));
            self.put(hold, at);
        }
    }

    /// Nothing is due for a hold any more.
    pub fn retire(&mut self, hold: u64) {
        if self.has_threads() {
            self.put(hold, Some(RETIRED));
        }
    }

    pub fn forget_places(&mut self, hold: u64) {
        if let Some(pending) = &mut self.process.pending {
            pending.unscheduled.retain(|(of, _)| *of != hold);
        }
        self.put(hold, None);
    }

    /// The background takes the holds that are due out of the queue, and looks at them.
    pub fn drive(&mut self) {
        let now = self.now();
        let Some(pending) = &self.process.pending else { return };
        let due: Vec<_> = pending.places.iter().filter(|(_, at)| *at != RETIRED && *at <= now).copied().collect();
        for (hold, _) in &due {
            self.put(*hold, None);
        }
        due.into_iter().for_each(|(hold, _)| self.look_at(hold));
    }

    /// Checks that no wake-up and no deadline is lost.
    pub fn check_effects(&mut self) {
        let Some(pending) = self.process.pending.clone() else { return };
        let mut state = self.process.state.clone();
        for task in self.process.tasks.iter().filter(|task| task.stage == Stage::Waits(false)) {
            if state.take_signal(task.mode, task.waiter_id).is_some() {
                self.out.broken = Some(Broken::NotWoken);
            }
        }
        let holds: Vec<_> = self.process.state.handles().map(|hold| hold.number()).collect();
        for hold in holds {
            let is_late = self.due(hold).is_some_and(|due| pending.place(hold) > due);
            if is_late && !pending.is_unscheduled(hold) {
                self.out.broken = Some(Broken::LateTimer);
            }
        }
    }
}
