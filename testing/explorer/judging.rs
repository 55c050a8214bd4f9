//! Invariants of every state, and progress from each.

use super::*;

/// Ticks for which a share waits for the task that it was handed to.
const UNCLAIMED_FOR: u8 = 6;

impl Explorer<'_> {
    pub fn judge(&self, world: &World) -> Judged {
        if world.watch.has_disorder {
            return Err(Invariant::Tokens);
        }
        if world.watch.was_wiped {
            return Ok(());
        }
        self.judge_exclusion(world)?;
        let copied = world.faults.copies < self.scene.faults.copies;
        let is_left = |id| {
            let (process, slot) = self.scene.owner(id);
            let at = usize::from(process);
            !world.dead[at] && !self.processes.accounts_for(world.processes[at], slot)
        };
        if !copied && world.shelf.live().any(is_left) { Err(Invariant::Leftovers) } else { Ok(()) }
    }

    fn judge_exclusion(&self, world: &World) -> Judged {
        let (mut readers, mut writers) = (0, 0);
        for process in world.alive(self.scene) {
            for (mode, slot) in self.of(world, process).valid() {
                if world.forced & (1 << self.scene.id(process, slot)) != 0 {
                    continue;
                }
                match mode {
                    Mode::Read => readers += 1,
                    Mode::Write => writers += 1,
                }
            }
        }
        if writers > 1 || writers == 1 && readers > 0 { Err(Invariant::Exclusion) } else { Ok(()) }
    }

    fn patient(&self, world: &World) -> Vec<(u8, WaiterId)> {
        let waiters = |process| self.of(world, process).patient().map(move |waiter| (process, waiter));
        world.alive(self.scene).flat_map(waiters).collect()
    }

    /// Returns the number of ticks within which some waiter enters, after all guards have left. With bounded operations,
    /// a waiter asks more than once. A task that is asleep may have the place in the queue, or a share that no other task of
    /// its process gets before its time is over.
    fn progress_ticks(&self) -> u8 {
        let bounded = if self.scene.records.is_some() { 2 * PATIENCE } else { 0 };
        let asleep = if self.scene.faults.sleeps > 0 { STALLED_AFTER + UNCLAIMED_FOR } else { 0 };
        LEASE + PATIENCE + 2 + bounded + asleep
    }

    /// Judges a world in which nothing is under way: when all guards leave, some waiter enters, or a try learns that a
    /// guard is inside. If a recall was lost, or may have been, that takes a tick and a heartbeat. If no client may
    /// send a recall, it takes a renewal.
    fn judge_standing_aside(&mut self, world: &World) -> Judged {
        let dead = world.dead.contains(&true);
        if self.scene.caching == Caching::Nothing || world.watch.was_wiped || dead || !self.is_quiet(world) {
            return Ok(());
        }
        let given = self.scene.faults;
        let is_lost = world.faults.losses < given.losses || world.lines.contains(&RecallLine::Broken);
        if !is_lost && !self.scene.is_mute && self.hands_on_ended_hold(world) {
            return Err(Invariant::StandsAside);
        }
        let waited = self.queued(world);
        if world.shelf.holders().next().is_none() || waited.is_empty() {
            return Ok(());
        }
        // The recall of a try has no effect on a grant that is still on its way: the try asks once more.
        let patient = self.patient(world);
        let is_late = waited.iter().any(|waiter| !patient.contains(waiter)) && world.faults.delays < given.delays;
        let takes_a_tick = is_lost || is_late || self.scene.is_mute;
        let is_right =
            |explorer: &mut Self, later: &mut World| explorer.is_stood_aside_for(later, &waited, takes_a_tick);
        self.judge_later(world, Invariant::StandsAside, is_right)
    }

    /// Judges what follows from a world without further faults.
    fn judge_later(
        &mut self,
        world: &World,
        invariant: Invariant,
        is_right: impl FnOnce(&mut Self, &mut World) -> Result<bool, Invariant>,
    ) -> Judged {
        let mut later = World { faults: Faults::default(), view: None, ..*world };
        (self.sent, self.fault, self.draw) = (0, None, 0);
        // An invariant that breaks on the way also breaks in the steps of the search, which report it.
        match is_right(self, &mut later) {
            Ok(false) => Err(invariant),
            Ok(true) | Err(_) => Ok(()),
        }
    }

    fn is_stood_aside_for(
        &mut self,
        world: &mut World,
        waited: &[(u8, WaiterId)],
        takes_a_tick: bool,
    ) -> Result<bool, Invariant> {
        if takes_a_tick {
            self.pass_tick(world)?;
        }
        self.leave_all(world)?;
        self.hear_all(world)?;
        let asks = |(process, waiter): &(u8, WaiterId)| self.of(world, *process).still_waits(*waiter);
        Ok(!waited.iter().all(asks))
    }

    fn is_quiet(&self, world: &World) -> bool {
        let is_known = |id| {
            let (process, slot) = self.scene.owner(id);
            self.processes.accounts_for(world.processes[usize::from(process)], slot)
        };
        let are_quiet = world.alive(self.scene).all(|process| self.of(world, process).is_quiet());
        are_quiet && world.mail.is_empty() && world.shelf.live().all(is_known)
    }

    /// Returns the waiters that the server has in its queue.
    fn queued(&self, world: &World) -> Vec<(u8, WaiterId)> {
        let mut queued = Vec::new();
        for process in world.alive(self.scene) {
            let waiters = self.of(world, process).queued().into_iter();
            let is_live = |slot| world.shelf.live().any(|live| live == self.scene.id(process, slot));
            queued.extend(waiters.filter(|(_, slot)| is_live(*slot)).map(|(waiter, _)| (process, waiter)));
        }
        queued
    }

    /// Returns true if a process would hand on a hold that an operator has ended, and of which it has got the recall.
    fn hands_on_ended_hold(&self, world: &World) -> bool {
        world.alive(self.scene).any(|process| {
            let is_ended = |slot| {
                let id = self.scene.id(process, slot);
                world.forced & (1 << id) != 0 && !world.shelf.holders().any(|live| live == id)
            };
            world.forced != 0 && self.of(world, process).open_holds().into_iter().any(is_ended)
        })
    }

    /// Judges a world in which nothing is under way but late messages: when all guards leave, some waiter enters by
    /// time and heartbeats alone.
    pub fn judge_progress(&mut self, world: &World) -> Judged {
        self.judge_standing_aside(world)?;
        let waited = self.patient(world);
        if world.watch.was_wiped || waited.is_empty() || !self.prompt(world).is_empty() {
            return Ok(());
        }
        self.judge_later(world, Invariant::Progress, |explorer, later| explorer.has_progress(later, &waited))
    }

    fn has_progress(&mut self, world: &mut World, waited: &[(u8, WaiterId)]) -> Result<bool, Invariant> {
        for _ in 0..self.progress_ticks() {
            self.leave_all(world)?;
            self.hear_all(world)?;
            let now = self.patient(world);
            if waited.iter().any(|waiter| !now.contains(waiter)) {
                return Ok(true);
            }
            self.pass_tick(world)?;
        }
        Ok(false)
    }

    /// Ends all guards and conversions.
    fn leave_all(&mut self, world: &mut World) -> Judged {
        for process in world.alive(self.scene) {
            loop {
                let state = self.of(world, process);
                let release = state.holding().next().map(|task| Told::Release { task });
                let end = release.or_else(|| state.converting().next().map(|task| Told::Cancel { task }));
                let Some(told) = end else { break };
                self.tell(world, process, told)?;
            }
        }
        Ok(())
    }

    fn pass_tick(&mut self, world: &mut World) -> Judged {
        self.tick(world, 0, 0)?;
        self.tidy(world);
        self.hear_all(world)
    }

    fn hear_all(&mut self, world: &mut World) -> Judged {
        loop {
            let Some(at) = self.prompt(world).first().copied() else { return Ok(()) };
            let mail = world.mail.remove(at);
            self.deliver(world, mail)?;
        }
    }
}
