//! What may happen next in a state.

use super::super::server::{Id, LEASE, Request, Side, What};
use super::{Act, Body, Budget, ClientRecall, Deed, FATES, Fate, Message, Pass, Rules, Stage, State};

impl State {
    /// All that may happen.
    pub(in super::super) fn acts(&self, rules: &Rules<'_>, acts: &mut Vec<Act>) {
        acts.clear();
        for client in 0..rules.scene.clients {
            if !self.dead[client] {
                self.deeds(rules, client, acts);
                let began = self.passes[client * rules.scene.each].stage != Stage::Unused;
                let through = self.is_through(rules, client);
                if self.budget.deaths > 0 && began && !through {
                    acts.push(Act::Die { client: u8::try_from(client).expect("small") });
                }
            }
        }
        self.add_subscription_acts(rules, acts);
        self.operators_act(acts);
        for (at, message) in self.bag.iter().enumerate() {
            let at = u8::try_from(at).expect("small");
            if self.is_heard(message) {
                for draw in 0..self.draws(&message.body) {
                    acts.push(Act::Deliver { at, draw });
                }
                if self.budget.losses > 0 && !message.late && !matches!(message.body, Body::Request { .. }) {
                    acts.push(Act::Lose { at });
                }
                if self.budget.copies > 0 && !message.late && matches!(message.body, Body::Call { .. }) {
                    acts.push(Act::HearTwice { at });
                }
            }
        }
        if self.may_tick(rules) {
            acts.push(Act::Tick);
        }
        if self.budget.wipes > 0 && !self.watch.was_wiped {
            acts.push(Act::Wipe);
        }
    }

    pub(super) fn is_through(&self, rules: &Rules<'_>, client: usize) -> bool {
        let own = client * rules.scene.each..(client + 1) * rules.scene.each;
        self.passes[own].iter().all(|pass| pass.stage == Stage::Over)
    }

    /// On how many chances the outcome of a delivery hangs.
    fn draws(&self, body: &Body) -> u8 {
        match body {
            Body::Request { request: Request { what: What::Acquire { mode: Side::Read, .. }, .. }, .. } => {
                self.chances()
            }
            _ => 1,
        }
    }

    fn chances(&self) -> u8 {
        u8::try_from(self.shelf.readers().max(1)).expect("small")
    }

    /// Whoever it is for takes it.
    pub(super) fn is_heard(&self, message: &Message) -> bool {
        match message.body {
            Body::Request { .. } | Body::Answer { .. } | Body::Call { .. } => true,
            Body::Notice { id, .. } | Body::Used { id } => {
                matches!(self.stage(id), Stage::Asks { call: None, queued: true, .. })
            }
        }
    }

    /// Whether nothing is under way or due that takes less than a tick, but for what may be late from now on.
    fn may_tick(&self, rules: &Rules<'_>) -> bool {
        self.prompt().count() <= usize::from(self.budget.delays) && self.due(rules) <= usize::from(self.budget.lapses)
    }

    /// How many acquisitions have something to do without delay.
    pub(super) fn due(&self, rules: &Rules<'_>) -> usize {
        self.passes.iter().filter(|pass| pass.is_due(rules)).count()
    }

    pub(super) fn prompt(&self) -> impl Iterator<Item = usize> {
        let prompt = |message: &Message| {
            !message.late && !matches!(message.body, Body::Request { .. }) && self.is_heard(message)
        };
        self.bag.iter().enumerate().filter(move |(_, message)| prompt(message)).map(|(at, _)| at)
    }

    fn deeds(&self, rules: &Rules<'_>, client: usize, acts: &mut Vec<Act>) {
        let first = client * rules.scene.each;
        let mut may_begin = true;
        for at in first..first + rules.scene.each {
            let id = Id::try_from(at).expect("small");
            match self.passes[at].stage {
                Stage::Unused if may_begin => {
                    for side in [Side::Read, Side::Write] {
                        self.fated(id, Deed::Acquire { side, waits: true }, acts);
                        if rules.scene.has_tries {
                            self.fated(id, Deed::Acquire { side, waits: false }, acts);
                        }
                    }
                }
                Stage::Unused | Stage::Over | Stage::Arrives => {}
                Stage::Asks { call, .. } => {
                    if self.passes[at].is_due(rules) {
                        self.fated(id, Deed::AskAgain, acts);
                    }
                    self.leaves(id, call, acts);
                }
                Stage::Holds { ticks, call } => {
                    if call.is_none() && (ticks < LEASE || self.is_waiting_for_reply(rules, id)) {
                        self.fated(id, Deed::Renew, acts);
                    }
                    if call.is_none()
                        && self.budget.conversions > 0
                        && at + 1 < first + rules.scene.each
                        && self.passes[at + 1].stage == Stage::Unused
                    {
                        self.fated(id, Deed::Convert, acts);
                    }
                    if self.passes[at].keep.is_of_use(rules, self.passes[at].side) {
                        acts.push(Act::Rest { id });
                    } else {
                        self.fated(id, Deed::Leave, acts);
                    }
                    Self::gives_up(id, call, acts);
                }
                Stage::Idle { ticks, call } => self.idle_deeds(rules, id, ticks, call, acts),
                Stage::Converts { call, .. } => {
                    if self.passes[at].is_due(rules) {
                        self.fated(id, Deed::ConvertAgain, acts);
                    }
                    acts.push(Act::Drop { id });
                    Self::gives_up(id, call, acts);
                }
                Stage::Leaves { call, .. } => {
                    if self.passes[at].is_due(rules) {
                        self.fated(id, Deed::Leave, acts);
                    }
                    Self::gives_up(id, call, acts);
                }
            }
            may_begin &= matches!(self.passes[at].stage, Stage::Leaves { .. } | Stage::Over);
        }
    }

    /// A waiter goes away.
    fn leaves(&self, id: Id, call: ClientRecall, acts: &mut Vec<Act>) {
        let Pass { stray, recorded, .. } = self.passes[usize::from(id)];
        if call.is_none() && stray == 0 && !recorded {
            acts.push(Act::Drop { id });
        } else {
            self.fated(id, Deed::Leave, acts);
        }
        Self::gives_up(id, call, acts);
    }

    pub(super) fn gives_up(id: Id, call: ClientRecall, acts: &mut Vec<Act>) {
        if call.is_some() {
            acts.push(Act::GiveUp { id });
        }
    }

    pub(super) fn fated(&self, id: Id, deed: Deed, acts: &mut Vec<Act>) {
        let Budget { losses, copies, delays, .. } = self.budget;
        for fate in FATES {
            let may = match fate {
                Fate::Answered => true,
                Fate::Lost | Fate::AnswerLost => losses > 0,
                Fate::Late | Fate::AnswerLate => delays > 0,
                Fate::TooLate => delays > 0 && !matches!(deed, Deed::Leave | Deed::Renew),
                Fate::Twice => copies > 0,
            };
            let reads = match deed {
                Deed::Acquire { side, .. } => side == Side::Read,
                Deed::AskAgain => self.passes[usize::from(id)].side == Side::Read,
                _ => false,
            };
            let drawn = reads && !matches!(fate, Fate::Lost | Fate::Late | Fate::TooLate);
            for draw in 0..if may { if drawn { self.chances() } else { 1 } } else { 0 } {
                acts.push(Act::Do { id, deed, fate, draw });
            }
        }
    }
}
