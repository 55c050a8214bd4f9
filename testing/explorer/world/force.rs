//! An operator looks at the lock and ends what it has seen, whatever happens in between.

use super::super::server::{Id, OPERATOR, Outcome, Reply, Request, What};
use super::super::watch::Invariant;
use super::{Act, Body, Rules, Slip, State};

/// What an operator has seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct Seen {
    /// The holders, a bit each.
    ids: u16,
    /// The last token, counted from the highest by now.
    pub(super) token: i8,
}

impl Seen {
    pub(super) fn rename(&mut self, name: impl Fn(Id) -> Id) {
        let before = std::mem::take(&mut self.ids);
        self.ids = (0..OPERATOR).filter(|id| before & (1 << id) != 0).fold(0, |ids, id| ids | 1 << name(id));
    }
}

impl State {
    pub(super) fn operators_act(&self, acts: &mut Vec<Act>) {
        match self.seen {
            Some(_) => acts.push(Act::Force),
            None if self.budget.forces > 0 && self.shelf.holders().next().is_some() => acts.push(Act::Look),
            None => {}
        }
    }

    pub(super) fn look(&mut self) {
        self.budget.forces -= 1;
        self.seen = Some(Seen { ids: self.shelf.holders().fold(0, |ids, id| ids | 1 << id), token: 0 });
    }

    pub(super) fn force(&mut self, rules: &Rules<'_>) -> Result<(), Invariant> {
        let Some(Seen { ids, token }) = self.seen.take() else { return Ok(()) };
        let what = What::Force { seen: ids, back: token.unsigned_abs() };
        let reply = self.carry_out(rules, Request { id: OPERATOR, what, ..Request::default() }, 0)?;
        if let Reply::Forced { ended } = reply {
            for (id, pass) in self.passes.iter_mut().enumerate() {
                pass.forced |= ended & (1 << id) != 0;
            }
        }
        Ok(())
    }

    /// What was granted before it was queued again is over.
    pub(super) fn drops_older_grants(&mut self, rules: &Rules<'_>, id: Id) {
        if rules.scene.budget.forces > 0 && !rules.slips(Slip::TakesGrantFromBefore) {
            self.bag.retain(|message| !matches!(message.body, Body::Notice { id: of, grant: Some(_), .. } if of == id));
        }
    }

    /// Whoever is granted has a hold that nobody has ended.
    pub(super) fn begins_anew(&mut self, request: Request, outcome: &Outcome) {
        let told = outcome.news.iter().filter(|(_, grant)| grant.is_some()).map(|(id, _)| *id);
        let asked = matches!(outcome.reply, Reply::Granted(_)).then_some(request.id);
        for id in told.chain(asked) {
            self.pass(id).forced = false;
        }
    }
}
