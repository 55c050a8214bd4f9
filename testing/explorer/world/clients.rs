//! What clients do, and what they make of the answers.

use super::super::server::{Grant, Id, LIMIT, Reply, Request, Side, What};
use super::super::watch::Invariant;
use super::caching::count_from_the_highest;
use super::{
    Body, Deed, Fate, LEAVING, Message, Pass, Rules, STRAY, Slip, Stage, State, SubscriptionState, ticks_left,
};

impl State {
    pub(super) fn act(&mut self, rules: &Rules<'_>, id: Id, deed: Deed, fate: Fate, draw: u8) -> Result<(), Invariant> {
        let call = Some(0);
        let what = match deed {
            Deed::Acquire { side, waits } => {
                *self.pass(id) = Pass { side, waits, ..Pass::default() };
                self.set(id, Stage::Asks { call, queued: false, due: false });
                What::Acquire { mode: side, waits }
            }
            Deed::AskAgain => {
                let Pass { side, waits, stage, .. } = *self.pass(id);
                let queued = matches!(stage, Stage::Asks { queued: true, .. });
                self.set(id, Stage::Asks { call, queued, due: false });
                What::Acquire { mode: side, waits }
            }
            Deed::Renew => {
                match self.stage(id) {
                    Stage::Holds { ticks, .. } => self.set(id, Stage::Holds { ticks, call }),
                    Stage::Idle { ticks, .. } => self.set(id, Stage::Idle { ticks, call }),
                    _ => {}
                }
                What::Renew
            }
            Deed::Leave => {
                self.begin_leave(rules, id);
                if rules.slips(Slip::LeavesUntold) {
                    self.set(id, Stage::Over);
                    return Ok(());
                }
                self.set(id, Stage::Leaves { call, told: false });
                if rules.slips(Slip::ConfirmsAtOnce) {
                    self.send(rules, id, What::Leave, fate, draw)?;
                    self.set(id, Stage::Over);
                    return Ok(());
                }
                What::Leave
            }
            Deed::Convert => {
                self.budget.conversions -= 1;
                let Pass { side, stage, .. } = *self.pass(id);
                let Stage::Holds { ticks, .. } = stage else { unreachable!("only a hold converts") };
                let to = if side == Side::Read { Side::Write } else { Side::Read };
                self.set(id, Stage::Converts { ticks, call, refused: false });
                self.pass(id).covered = self.pass(id).stray == 0;
                *self.pass(id + 1) = Pass { side: to, stage: Stage::Arrives, ..Pass::default() };
                return self.send(rules, id + 1, What::Convert { to }, fate, draw);
            }
            Deed::ConvertAgain => {
                if let Stage::Converts { ticks, .. } = self.stage(id) {
                    self.set(id, Stage::Converts { ticks, call, refused: false });
                    self.pass(id).covered = self.pass(id).stray == 0;
                }
                let to = self.pass(id + 1).side;
                return self.send(rules, id + 1, What::Convert { to }, fate, draw);
            }
        };
        self.send(rules, id, what, fate, draw)
    }

    /// Nobody waits for an answer of it any more, and a copy may be on its way.
    fn begin_leave(&mut self, rules: &Rules<'_>, id: Id) {
        if let Stage::Asks { call: Some(age), .. } = self.stage(id) {
            let pass = self.pass(id);
            pass.stray = pass.stray.max(STRAY.saturating_sub(age));
        }
        if rules.slips(Slip::LeavesOnce) {
            self.pass(id).stray = 0;
        }
        if rules.slips(Slip::ConfirmsTooSoon) {
            self.pass(id).stray = self.pass(id).stray.saturating_sub(1);
        }
        self.orphan(id);
    }

    /// Answers to what was sent so far are not waited for.
    pub(super) fn orphan(&mut self, id: Id) {
        self.bag.retain(|message| !matches!(message.body, Body::Answer { id: to, .. } if to == id));
        for message in self.bag.as_mut_slice() {
            if let Body::Request { request, live } = &mut message.body
                && request.id == id
            {
                *live = false;
            }
        }
    }

    fn send(&mut self, rules: &Rules<'_>, id: Id, what: What, fate: Fate, draw: u8) -> Result<(), Invariant> {
        self.pass(id).covered = self.pass(id).stray == 0;
        let keeps = self.offer_caching(rules, id, what);
        let request = Request { id, what, limit: LIMIT, keeps };
        let under_way = |body| Message { body, late: true };
        match fate {
            Fate::Answered => {
                let reply = self.carry_out(rules, request, draw)?;
                self.on_reply(rules, id, reply);
            }
            Fate::Lost => self.budget.losses -= 1,
            Fate::Late => {
                self.budget.delays -= 1;
                self.bag.push(under_way(Body::Request { request, live: true }));
            }
            Fate::Twice => {
                self.budget.copies -= 1;
                self.bag.push(under_way(Body::Request { request, live: false }));
                let reply = self.carry_out(rules, request, draw)?;
                self.on_reply(rules, id, reply);
            }
            Fate::AnswerLost => {
                self.budget.losses -= 1;
                self.carry_out(rules, request, draw)?;
            }
            Fate::TooLate => {
                self.budget.delays -= 1;
                let reply = self.carry_out(rules, Request { limit: -1, ..request }, draw)?;
                self.on_reply(rules, id, reply);
            }
            Fate::AnswerLate => {
                self.budget.delays -= 1;
                let reply = self.carry_out(rules, request, draw)?;
                self.bag.push(under_way(Body::Answer { id, reply }));
            }
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, rules: &Rules<'_>, request: Request, draw: u8) -> Result<Reply, Invariant> {
        let mut outcome = rules.server.carry_out(&mut self.shelf, request, draw);
        let moved = self.watch.judge(request, draw, &outcome, rules.scene.is_limited())?;
        if rules.caches() {
            self.shift_tokens(moved);
            count_from_the_highest(&mut outcome, moved);
            self.send_recalls(rules, &outcome);
        }
        self.begins_anew(request, &outcome);
        for (id, grant) in outcome.news {
            // Whoever asks is told by the answer.
            if id != request.id {
                let tokens = grant.filter(|_| rules.caches()).map(Grant::block).unwrap_or_default();
                let grant = grant.map(|grant| grant.remaining);
                self.bag.push(Message { body: Body::Notice { id, grant, tokens }, late: false });
            }
        }
        Ok(outcome.reply)
    }

    pub(super) fn deliver(&mut self, rules: &Rules<'_>, message: Message, draw: u8) -> Result<(), Invariant> {
        match message.body {
            Body::Request { request, live } => {
                let reply = self.carry_out(rules, request, draw)?;
                if live {
                    self.on_reply(rules, request.id, reply);
                }
            }
            Body::Answer { id, reply } => self.on_reply(rules, id, reply),
            Body::Call { client, token, tries } => self.on_recall(rules, client, token, tries)?,
            Body::Used { id } => self.on_in_use(rules, id),
            Body::Notice { id, grant, tokens } => {
                let Pass { waits, stage: Stage::Asks { .. }, .. } = *self.pass(id) else {
                    return Ok(());
                };
                if !waits && !rules.caches() {
                    return Ok(());
                }
                let least = u8::from(rules.slips(Slip::TakesGrantsThatAreOver));
                let believed = grant.map(|ticks| ticks.max(least)).filter(|ticks| *ticks > 0);
                self.set(
                    id,
                    match believed {
                        Some(ticks) => Stage::Holds { ticks, call: None },
                        None => Stage::Asks { call: None, queued: true, due: true },
                    },
                );
                if believed.is_some() && rules.caches() {
                    self.on_let_in(id, tokens);
                }
            }
        }
        Ok(())
    }

    fn on_reply(&mut self, rules: &Rules<'_>, id: Id, reply: Reply) {
        let covered = std::mem::take(&mut self.pass(id).covered);
        match (self.stage(id), reply) {
            (Stage::Asks { call: Some(age), queued, .. }, reply) => {
                let recorded = &mut self.pass(id).recorded;
                *recorded = match reply {
                    Reply::Granted(_) | Reply::Queued => true,
                    Reply::Late if !rules.slips(Slip::LateForgetsRecord) => *recorded,
                    _ => *recorded && !covered,
                };
                self.on_acquire_answer(rules, id, reply, age, queued);
            }
            (Stage::Holds { ticks, call: Some(age) }, Reply::Renewed { remaining, is_waited_for, tokens }) => {
                let ticks = ticks.max(ticks_left(remaining, age));
                self.set(id, Stage::Holds { ticks, call: None });
                self.on_renewed(rules, id, is_waited_for, tokens);
            }
            (Stage::Idle { ticks, call: Some(age) }, Reply::Renewed { remaining, is_waited_for, tokens }) => {
                let ticks = ticks.max(ticks_left(remaining, age));
                self.set(id, Stage::Idle { ticks, call: None });
                self.on_renewed(rules, id, is_waited_for, tokens);
            }
            (Stage::Holds { call: Some(_), .. } | Stage::Idle { call: Some(_), .. }, _) => {
                self.orphan(id);
                self.set(id, LEAVING);
            }
            (Stage::Arrives, reply) => self.on_converted(rules, id - 1, reply),
            (Stage::Leaves { call: Some(_), .. }, reply) => {
                let is_over = covered
                    || rules.slips(Slip::ConfirmsWhenAnswered) && self.pass(id).stray == 0
                    || rules.slips(Slip::ConfirmsWhatItFound) && reply == Reply::Left { held: true };
                self.set(id, if is_over { Stage::Over } else { Stage::Leaves { call: None, told: true } });
            }
            _ => {}
        }
    }

    fn on_acquire_answer(&mut self, rules: &Rules<'_>, id: Id, reply: Reply, age: u8, queued: bool) {
        match reply {
            Reply::Granted(grant) => {
                let age = if rules.slips(Slip::CountsFromTheAnswer) { 0 } else { age };
                let ticks = ticks_left(grant.remaining, age);
                // The answer was too long on its way: it is given back.
                self.set(id, if ticks > 0 { Stage::Holds { ticks, call: None } } else { LEAVING });
                if ticks > 0 {
                    self.on_cached_grant(rules, id, grant);
                }
            }
            Reply::Queued => {
                self.drops_older_grants(rules, id);
                self.set(id, Stage::Asks { call: None, queued: true, due: false });
            }
            Reply::Late => self.set(id, Stage::Asks { call: None, queued, due: true }),
            // The server does not know it; copies may yet arrive.
            _ => {
                let Pass { recorded, stray, .. } = *self.pass(id);
                self.set(id, if recorded || stray > 0 { LEAVING } else { Stage::Over });
            }
        }
    }

    fn on_converted(&mut self, rules: &Rules<'_>, old: Id, reply: Reply) {
        let Stage::Converts { ticks, call: Some(age), .. } = self.stage(old) else {
            return;
        };
        let stray = self.pass(old + 1).stray;
        let covered = std::mem::take(&mut self.pass(old).covered);
        match reply {
            Reply::Granted(grant) => {
                let left = ticks_left(grant.remaining, age);
                if left == 0 {
                    return self.drop_conversion(old);
                }
                self.set(old + 1, Stage::Holds { ticks: left, call: None });
                self.on_cached_grant(rules, old + 1, grant);
                if rules.slips(Slip::KeepsWhatItConverted) {
                    return self.set(old, Stage::Holds { ticks, call: None });
                }
                self.orphan(old);
                self.set(old, if covered { Stage::Over } else { LEAVING });
            }
            // An earlier copy may yet find the others gone.
            Reply::Refused if stray > 0 && !rules.slips(Slip::BelievesRefusalBeforeStrays) => {
                self.pass(old).copies = stray;
                self.set(old, Stage::Converts { ticks, call: None, refused: true });
            }
            Reply::Refused => {
                self.set(old + 1, Stage::Over);
                self.set(old, if ticks > 0 { Stage::Holds { ticks, call: None } } else { LEAVING });
            }
            Reply::Late => self.set(old, Stage::Converts { ticks, call: None, refused: false }),
            _ => self.drop_conversion(old),
        }
    }

    /// Which of the two the server has is not known: both are given back.
    fn drop_conversion(&mut self, old: Id) {
        if let Stage::Converts { call: Some(age), .. } = self.stage(old) {
            let new = self.pass(old + 1);
            new.stray = new.stray.max(STRAY.saturating_sub(age));
        }
        for id in [old, old + 1] {
            self.orphan(id);
            self.set(id, LEAVING);
        }
    }

    pub(super) fn drop_without_a_word(&mut self, id: Id) {
        if matches!(self.stage(id), Stage::Converts { .. }) {
            self.drop_conversion(id);
        } else {
            self.set(id, Stage::Over);
        }
    }

    pub(super) fn give_up(&mut self, id: Id) {
        let stage = self.stage(id);
        let target = if matches!(stage, Stage::Converts { .. }) { id + 1 } else { id };
        self.orphan(target);
        self.pass(target).covered = false;
        self.pass(id).covered = false;
        let strays = |pass: &mut Pass, age| pass.stray = pass.stray.max(STRAY.saturating_sub(age));
        match stage {
            Stage::Asks { call: Some(age), queued, .. } => {
                strays(self.pass(id), age);
                self.pass(id).recorded = true;
                self.set(id, Stage::Asks { call: None, queued, due: true });
            }
            Stage::Holds { ticks, .. } => self.set(id, Stage::Holds { ticks, call: None }),
            Stage::Idle { ticks, .. } => self.set(id, Stage::Idle { ticks, call: None }),
            Stage::Converts { ticks, call: Some(age), .. } => {
                strays(self.pass(id + 1), age);
                self.set(id, Stage::Converts { ticks, call: None, refused: false });
                if ticks == 0 {
                    self.drop_conversion(id);
                }
            }
            Stage::Leaves { told, .. } => self.set(id, Stage::Leaves { call: None, told }),
            _ => {}
        }
    }

    pub(super) fn die(&mut self, rules: &Rules<'_>, client: usize) {
        self.budget.deaths -= 1;
        self.dead[client] = true;
        self.lines[client] = SubscriptionState::default();
        for at in client * rules.scene.each..(client + 1) * rules.scene.each {
            let id = Id::try_from(at).expect("small");
            self.orphan(id);
            self.set(id, Stage::Over);
        }
    }
}
