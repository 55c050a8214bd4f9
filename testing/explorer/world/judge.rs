//! What holds in every state, and that whoever waits is served from each.

use super::super::server::{Id, LEASE, PATIENCE, Side};
use super::super::watch::Invariant;
use super::{Budget, Deed, Fate, PASSES, Pass, Rules, Stage, State};

impl State {
    /// Whether all is as it must be.
    pub(in super::super) fn judge(&self, rules: &Rules<'_>) -> Result<(), Invariant> {
        if !self.watch.was_wiped {
            self.judge_exclusion()?;
            self.judge_leftovers(rules)?;
        }
        if self.watch.has_disorder { Err(Invariant::Tokens) } else { Ok(()) }
    }

    fn judge_exclusion(&self) -> Result<(), Invariant> {
        let valid = |side| {
            let counts = move |pass: &&Pass| match pass.stage {
                _ if pass.forced => false,
                Stage::Holds { .. } => pass.side == side,
                // It may come back as what it was, and nobody has written in between.
                Stage::Converts { ticks, .. } => ticks > 0 && side == Side::Read,
                _ => false,
            };
            self.passes.iter().filter(counts).count()
        };
        let writers = valid(Side::Write);
        if writers > 1 || writers == 1 && valid(Side::Read) > 0 { Err(Invariant::Exclusion) } else { Ok(()) }
    }

    /// Whoever is through has left nothing, unless the network has made a copy that nobody knows of.
    fn judge_leftovers(&self, rules: &Rules<'_>) -> Result<(), Invariant> {
        let copied = self.budget.copies < rules.scene.budget.copies;
        let over = |id: Id| self.stage(id) == Stage::Over && !self.dead[rules.client(id)];
        if !copied && self.shelf.live().any(over) {
            return Err(Invariant::Leftovers);
        }
        let all_over = (0..rules.scene.clients).all(|client| self.is_through(rules, client));
        if all_over && self.bag.is_empty() {
            let mut later = *self;
            for _ in 0..LEASE.max(PATIENCE) {
                later.shelf.tick();
            }
            if later.shelf.live().next().is_some() {
                return Err(Invariant::Leftovers);
            }
        }
        Ok(())
    }

    /// From a moment when nothing is under way but what is late: the holders do nothing, the waiters ask again once a tick.
    pub(in super::super) fn judge_progress(&self, rules: &Rules<'_>) -> Result<(), Invariant> {
        self.judge_what_stays(rules)?;
        let waits = |pass: &Pass| pass.waits && matches!(pass.stage, Stage::Asks { call: None, .. });
        if self.watch.was_wiped || !self.passes.iter().any(waits) || self.prompt().next().is_some() {
            return Ok(());
        }
        let mut later = *self;
        later.budget = Budget::default();
        for _ in 0..rules.scene.progress_ticks() {
            // What breaks on the way breaks in the steps of the search, too, and is told from there.
            if later.tick_by(rules).is_err() {
                return Ok(());
            }
            let entered = |at: usize| waits(&self.passes[at]) && matches!(later.passes[at].stage, Stage::Holds { .. });
            if (0..PASSES).any(entered) {
                return Ok(());
            }
        }
        Err(Invariant::Progress)
    }

    /// A tick, heartbeats, and what is heard of them.
    pub(super) fn tick_by(&mut self, rules: &Rules<'_>) -> Result<(), Invariant> {
        self.tick(rules);
        self.tidy(rules);
        for id in (0..PASSES).map(|at| Id::try_from(at).expect("small")) {
            let asks = matches!(self.stage(id), Stage::Asks { .. }) && self.passes[usize::from(id)].is_due(rules);
            if asks {
                self.act(rules, id, Deed::AskAgain, Fate::Answered, 0)?;
            }
            self.hear_all(rules)?;
        }
        Ok(())
    }

    pub(super) fn hear_all(&mut self, rules: &Rules<'_>) -> Result<(), Invariant> {
        loop {
            let next = self.prompt().next();
            let Some(at) = next else { return Ok(()) };
            let message = self.bag.remove(at);
            self.deliver(rules, message, 0)?;
        }
    }
}
