//! Who keeps a hold stands aside for who waits.

use super::super::watch::Invariant;
use super::caching::SubscriptionState;
use super::{Budget, Deed, Fate, Id, PASSES, Pass, Rules, Stage, State};

impl State {
    /// Nothing is under way: when all guards leave, somebody who waits is in. If a call was lost, or a subscription is that
    /// nobody misses yet, after a tick and a heartbeat; where nobody may call, after a renewal.
    pub(super) fn judge_what_stays(&self, rules: &Rules<'_>) -> Result<(), Invariant> {
        let waits = |id: &Id| {
            let queued = matches!(self.stage(*id), Stage::Asks { call: None, queued: true, .. });
            queued && self.shelf.live().any(|live| live == *id)
        };
        let ids = || (0..PASSES).map(|at| Id::try_from(at).expect("small"));
        if !rules.caches() || self.watch.was_wiped || !self.is_quiet() {
            return Ok(());
        }
        self.judge_what_is_over(rules)?;
        // Whoever waits for nobody asks again.
        if self.shelf.holders().next().is_none() || !ids().any(|id| waits(&id)) {
            return Ok(());
        }
        let given = rules.scene.budget;
        // A try's call changes nothing for a grant that is still on its way: it asks once more.
        let is_tried = ids().any(|id| waits(&id) && !self.passes[usize::from(id)].waits);
        let lost = self.budget.losses < given.losses
            || self.lines.contains(&SubscriptionState::Broken)
            || is_tried && self.budget.delays < given.delays;
        let mut later = *self;
        later.budget = Budget::default();
        // What breaks on the way breaks in the steps of the search, too, and is told from there.
        if later.all_leave(rules, lost).is_err() {
            return Ok(());
        }
        // Who waits is in, who only tries is in or knows that somebody is inside.
        let is_answered = |id: Id| waits(&id) && !matches!(later.stage(id), Stage::Asks { .. });
        if ids().any(is_answered) { Ok(()) } else { Err(Invariant::StandsAside) }
    }

    /// Whose hold an operator has ended was called, and hands it on no more.
    fn judge_what_is_over(&self, rules: &Rules<'_>) -> Result<(), Invariant> {
        let may_be_lost =
            self.budget.losses < rules.scene.budget.losses || self.lines.contains(&SubscriptionState::Broken);
        let hands_on = |id: Id| {
            let pass = &self.passes[usize::from(id)];
            let is_held = matches!(pass.stage, Stage::Holds { .. } | Stage::Idle { .. });
            let is_over = pass.forced && !self.shelf.holders().any(|live| live == id);
            is_held && is_over && pass.keep.is_cached(rules)
        };
        let mut ids = (0..PASSES).map(|at| Id::try_from(at).expect("small"));
        let stays = !may_be_lost && !rules.scene.is_mute && ids.any(hands_on);
        if stays { Err(Invariant::StandsAside) } else { Ok(()) }
    }

    /// Nothing is on its way, or may be, nobody is dead, and nothing is held that nobody knows of.
    fn is_quiet(&self) -> bool {
        let is_answered = |stage| {
            !matches!(
                stage,
                Stage::Asks { call: Some(_), .. }
                    | Stage::Holds { call: Some(_), .. }
                    | Stage::Idle { call: Some(_), .. }
                    | Stage::Converts { call: Some(_), .. }
                    | Stage::Leaves { call: Some(_), .. }
            )
        };
        let is_quiet = |pass: &Pass| is_answered(pass.stage) && pass.stray == 0 && pass.copies == 0;
        let all_known = self.shelf.live().all(|id| self.stage(id) != Stage::Over);
        all_known && self.bag.is_empty() && !self.dead.contains(&true) && self.passes.iter().all(is_quiet)
    }

    fn all_leave(&mut self, rules: &Rules<'_>, lost: bool) -> Result<(), Invariant> {
        if lost || rules.scene.is_mute {
            self.tick_by(rules)?;
        }
        for id in (0..PASSES).map(|at| Id::try_from(at).expect("small")) {
            let renews = rules.scene.is_mute && matches!(self.stage(id), Stage::Holds { .. } | Stage::Idle { .. });
            if renews {
                self.act(rules, id, Deed::Renew, Fate::Answered, 0)?;
            }
            if matches!(self.stage(id), Stage::Converts { .. }) {
                self.drop_without_a_word(id);
            }
            let pass = self.pass(id);
            if matches!(pass.stage, Stage::Holds { .. }) && pass.keep.is_of_use(rules, pass.side) {
                self.cache(id);
            }
            let leaves = match self.stage(id) {
                Stage::Holds { .. } => true,
                Stage::Idle { .. } => !self.pass(id).keep.is_cached(rules),
                Stage::Leaves { call: None, told, .. } => !told,
                _ => false,
            };
            if leaves {
                self.act(rules, id, Deed::Leave, Fate::Answered, 0)?;
            }
        }
        self.hear_all(rules)
    }
}
