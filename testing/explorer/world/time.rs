//! Time goes on, and what makes no difference any more is forgotten.

use super::super::server::{Id, Request, Side, What};
use super::super::small::List;
use super::{Body, ClientRecall, FORGET, LEAVING, MESSAGES, PASSES, RESPONSE_TIMEOUT, Rules, Slip, Stage, State};

impl State {
    pub(in super::super) fn tick(&mut self, rules: &Rules<'_>) {
        self.budget.lapses -= u8::try_from(self.due(rules).min(self.budget.lapses.into())).expect("small");
        for at in self.prompt().collect::<List<usize, MESSAGES>>().iter() {
            self.budget.delays -= 1;
            self.bag.as_mut_slice()[*at].late = true;
        }
        self.shelf.tick();
        self.watch.tick();
        for message in self.bag.as_mut_slice() {
            match &mut message.body {
                Body::Request { request, .. } => request.limit = (request.limit - 1).max(FORGET),
                Body::Notice { grant, .. } => *grant = grant.map(|ticks| ticks.saturating_sub(1)),
                Body::Answer { .. } | Body::Call { .. } | Body::Used { .. } => {}
            }
        }
        self.find_broken_subscriptions(rules);
        for id in 0..PASSES {
            self.age(rules, Id::try_from(id).expect("small"));
        }
    }

    fn age(&mut self, rules: &Rules<'_>, id: Id) {
        let pass = self.pass(id);
        pass.stray = pass.stray.saturating_sub(1);
        pass.copies = pass.copies.saturating_sub(1);
        let older = |call: ClientRecall| call.map(|age| age + 1);
        let call = match self.stage(id) {
            Stage::Asks { call, queued, .. } => {
                self.set(id, Stage::Asks { call: older(call), queued, due: true });
                call
            }
            Stage::Idle { ticks: 1, .. } if !rules.slips(Slip::EntersWhatIsOver) => {
                self.orphan(id);
                self.set(id, LEAVING);
                None
            }
            Stage::Idle { ticks, call } => {
                self.set(id, Stage::Idle { ticks: (ticks - 1).max(1), call: older(call) });
                call
            }
            Stage::Holds { ticks: 1, .. } if !rules.slips(Slip::OutlivesItsLease) => {
                self.orphan(id);
                self.set(id, LEAVING);
                None
            }
            Stage::Holds { ticks, call } => {
                self.set(id, Stage::Holds { ticks: (ticks - 1).max(1), call: older(call) });
                call
            }
            Stage::Converts { ticks, call, refused } => {
                self.set(id, Stage::Converts { ticks: ticks.saturating_sub(1), call: older(call), refused });
                call
            }
            Stage::Leaves { call, told } => {
                self.set(id, Stage::Leaves { call: older(call), told });
                call
            }
            Stage::Unused | Stage::Arrives | Stage::Over => None,
        };
        if older(call).is_some_and(|age| age >= RESPONSE_TIMEOUT) {
            self.give_up(id);
        }
    }

    /// Forgets what makes no difference any more.
    pub(super) fn tidy(&mut self, rules: &Rules<'_>) {
        for pass in &mut self.passes {
            match &mut pass.stage {
                Stage::Asks { call: Some(_), due, .. } => *due = false,
                Stage::Holds { .. } | Stage::Idle { .. } => pass.recorded = false,
                Stage::Leaves { .. } => (pass.recorded, pass.side, pass.waits) = (false, Side::Read, false),
                _ => {}
            }
        }
        self.forget_cached(rules);
        let Self { passes, shelf, bag, .. } = self;
        let all = *bag;
        let asked = |id| {
            all.iter().any(|message| matches!(message.body, Body::Request { request: Request { id: of, what: What::Acquire { .. } | What::Convert { .. }, .. }, .. } if of == id))
        };
        bag.retain(|message| match message.body {
            Body::Notice { id, .. } | Body::Used { id } => matches!(passes[usize::from(id)].stage, Stage::Asks { .. }),
            Body::Answer { .. } | Body::Call { .. } => true,
            // It would find nothing, now or later.
            Body::Request { request: Request { id, what: What::Leave | What::Renew, .. }, .. } => {
                passes[usize::from(id)].stage != Stage::Over || shelf.knows(id) || asked(id)
            }
            Body::Request { request, .. } => request.limit > FORGET,
        });
        for message in bag.as_mut_slice() {
            if let Body::Request { request, .. } = &mut message.body
                && matches!(request.what, What::Leave | What::Renew)
            {
                request.limit = 0;
            }
        }
        bag.as_mut_slice().sort_unstable();
    }
}
