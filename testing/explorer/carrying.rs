//! Requests, answers and notifications between the processes and the server.

use super::*;

/// Late messages that can do nothing any more are forgotten.
const FORGET: i8 = -2;
/// Tokens that are farther back than this are alike.
const FAR: i8 = -8;

/// Returns true if the request may begin a hold. Each such request has a limit.
fn may_begin_hold(what: What) -> bool {
    matches!(what, What::Acquire { .. } | What::Recheck | What::Convert { .. })
}

/// Counts the tokens in an outcome from the highest token, as all that is remembered is.
fn count_from_the_highest(outcome: &mut Outcome, Moved { top, .. }: Moved) {
    match &mut outcome.reply {
        Reply::Granted(grant) => grant.first -= top,
        Reply::Renewed { tokens: Some((first, _)), .. } => *first -= top,
        _ => {}
    }
    outcome.call.iter_mut().for_each(|recall| recall.token -= top);
    for (_, grant) in &mut outcome.news {
        grant.iter_mut().for_each(|grant| grant.first -= top);
    }
}

impl Explorer<'_> {
    pub fn fates(faults: Faults) -> impl Iterator<Item = Fate> {
        FATES.into_iter().filter(move |fate| match fate {
            Fate::Lost | Fate::AnswerLost => faults.losses > 0,
            Fate::Late | Fate::AnswerLate | Fate::TooLate => faults.delays > 0,
            Fate::Twice => faults.copies > 0,
        })
    }

    /// Takes a step of a process, and carries out the requests that it sends.
    pub fn tell(&mut self, world: &mut World, process: u8, told: Told) -> Judged {
        let free = self.free(world, process);
        let at = usize::from(process);
        let (next, outputs) = self.processes.step(world.processes[at], told, free);
        world.processes[at] = next;
        match outputs.broken {
            Some(Broken::InUseWhenIdle) => return Err(Invariant::Used),
            Some(_) => return Err(Invariant::Process),
            None => {}
        }
        if let (true, Told::Recall { tries: Some(id), .. }) = (outputs.is_in_use, told) {
            let (process, slot) = self.scene.owner(id);
            Self::post(world, process, Letter::InUse { slot });
        }
        for copy in &outputs.closed {
            Self::orphan(world, process, *copy);
        }
        for (mode, token, slot) in &outputs.entered {
            // The holder of a hold that an operator has ended does not know it yet.
            if world.forced & (1 << self.scene.id(process, *slot)) == 0 {
                world.watch.is_handed(*token, side(*mode));
            }
        }
        for sent in &outputs.sent {
            self.send(world, process, *sent)?;
        }
        Ok(())
    }

    /// Notes that no task waits for the answer to a copy any more.
    fn orphan(world: &mut World, process: u8, number: u8) {
        world.mail.retain(|mail| {
            mail.process != process || !matches!(mail.letter, Letter::Answer { copy, .. } if copy == number)
        });
        for mail in world.mail.as_mut_slice().iter_mut().filter(|mail| mail.process == process) {
            if let Letter::Request { copy, .. } = &mut mail.letter
                && *copy == Some(number)
            {
                *copy = None;
            }
        }
    }

    /// Returns the slots that neither the server nor a message knows.
    fn free(&self, world: &World, process: u8) -> u16 {
        let of_mail = |Mail { process, letter, .. }: &Mail| match *letter {
            Letter::Request { slot, what: What::Convert { from, .. }, .. } => {
                1 << self.scene.id(*process, slot) | 1 << from
            }
            Letter::Request { slot, .. }
            | Letter::Answer { slot, .. }
            | Letter::Notice { slot, .. }
            | Letter::InUse { slot } => 1 << self.scene.id(*process, slot),
            Letter::Recall { tries, .. } => tries.map_or(0, |id| 1 << id),
        };
        let in_mail = world.mail.iter().fold(0_u16, |ids, mail| ids | of_mail(mail));
        let seen = world.view.map_or(0, |view| view.ids);
        let ids = in_mail | seen | world.forced | world.shelf.known();
        let slots = u8::try_from(self.scene.slots()).expect("few");
        !(ids >> (process * slots)) & ((1 << slots) - 1)
    }

    fn asked(&self, process: u8, asked: Asked) -> What {
        match asked {
            Asked::Acquire { mode, waits } => What::Acquire { mode: side(mode), waits },
            Asked::Convert { from, to } => What::Convert { from: self.scene.id(process, from), to: side(to) },
            Asked::Recheck => What::Recheck,
            Asked::Renew => What::Renew,
            Asked::Leave => What::Leave,
        }
    }

    fn send(&mut self, world: &mut World, process: u8, SentCopy { copy, slot, asked, keeps }: SentCopy) -> Judged {
        let what = self.asked(process, asked);
        // A message of the same step may have used the fault up, and some requests have no limit.
        let fate = self.fault.filter(|(at, _)| *at == self.sent).map(|(_, fate)| fate);
        let fate = fate.filter(|fate| Self::fates(world.faults).any(|may| may == *fate));
        let has_limit = may_begin_hold(what);
        let fate = fate.filter(|fate| *fate != Fate::TooLate || has_limit);
        self.sent += 1;
        let late = |letter| Mail { process, letter, late: true };
        let request = Request { id: self.scene.id(process, slot), what, limit: LIMIT, keeps };
        let letter = |copy| Letter::Request { slot, copy, what, limit: LIMIT, keeps };
        let answered = |explorer: &mut Self, world: &mut World, limit| {
            let reply = explorer.carry_out(world, Request { limit, ..request })?;
            explorer.hear(world, process, (copy, slot), reply)
        };
        match fate {
            None => answered(self, world, LIMIT),
            Some(Fate::Lost) => {
                world.faults.losses -= 1;
                Ok(())
            }
            Some(Fate::Late) => {
                world.faults.delays -= 1;
                world.mail.push(late(letter(Some(copy))));
                Ok(())
            }
            Some(Fate::Twice) => {
                world.faults.copies -= 1;
                world.mail.push(late(letter(None)));
                answered(self, world, LIMIT)
            }
            Some(Fate::AnswerLost) => {
                world.faults.losses -= 1;
                self.carry_out(world, request).map(drop)
            }
            Some(Fate::AnswerLate) => {
                world.faults.delays -= 1;
                let reply = self.carry_out(world, request)?;
                world.mail.push(late(Letter::Answer { copy, slot, reply }));
                Ok(())
            }
            Some(Fate::TooLate) => {
                world.faults.delays -= 1;
                answered(self, world, -1)
            }
        }
    }

    /// Passes the answer to a copy to its process.
    fn hear(&mut self, world: &mut World, process: u8, (copy, slot): (u8, Slot), reply: Reply) -> Judged {
        if matches!(reply, Reply::Queued { .. }) && !self.processes.takes_older_grants() {
            // The engine knows by the server's time that a grant is older than the answer.
            world.mail.retain(|mail| {
                let is_outdated =
                    matches!(mail.letter, Letter::Notice { slot: of, is_outdated: true, .. } if of == slot);
                mail.process != process || !is_outdated
            });
        }
        self.tell(world, process, Told::Answer { copy, reply: Some(reply) })
    }

    fn carry_out(&mut self, world: &mut World, request: Request) -> Result<Reply, Invariant> {
        let is_read = matches!(request.what, What::Acquire { mode: Side::Read, .. } | What::Recheck);
        let chances = if is_read { u8::try_from(world.shelf.readers().max(1)).expect("few") } else { 1 };
        self.chances = self.chances.max(chances);
        let draw = self.draw.min(chances - 1);
        let mut outcome = self.server.carry_out(&mut world.shelf, request, draw);
        let moved = world.watch.judge(request, draw, &outcome, self.scene.records.is_some())?;
        self.grow(world, moved.grown)?;
        count_from_the_highest(&mut outcome, moved);
        self.send_recalls(world, &outcome);
        // No operator has ended a hold that is granted now.
        let told = outcome.news.iter().filter(|(_, grant)| grant.is_some()).map(|(id, _)| *id);
        let granted = matches!(outcome.reply, Reply::Granted(_)).then_some(request.id);
        told.chain(granted).for_each(|id| world.forced &= !(1 << id));
        if matches!(outcome.reply, Reply::Queued { .. }) {
            self.outdate_grants(world, request.id);
        }
        for (id, grant) in outcome.news {
            // The answer tells the sender of the request.
            if id != request.id {
                let (process, slot) = self.scene.owner(id);
                world.mail.push(Mail {
                    process,
                    letter: Letter::Notice { slot, grant, is_outdated: false },
                    late: false,
                });
            }
        }
        Ok(outcome.reply)
    }

    /// Marks the grants that an acquisition has not received yet as outdated, because it is in the queue again.
    fn outdate_grants(&self, world: &mut World, id: Id) {
        let (process, slot) = self.scene.owner(id);
        for mail in world.mail.as_mut_slice().iter_mut().filter(|mail| mail.process == process) {
            if let Letter::Notice { slot: of, grant: Some(_), is_outdated } = &mut mail.letter {
                *is_outdated |= *of == slot;
            }
        }
    }

    /// Adds a message, unless the same message is on its way already.
    fn post(world: &mut World, process: u8, letter: Letter) {
        let mail = Mail { process, letter, late: false };
        if !world.mail.as_slice().contains(&mail) {
            world.mail.push(mail);
        }
    }

    /// Sends a recall to each process that is subscribed and has a hold to give up.
    fn send_recalls(&self, world: &mut World, outcome: &Outcome) {
        let Some(ServerRecall { token, tries }) = outcome.call.filter(|_| !self.scene.is_mute) else { return };
        for process in world.alive(self.scene) {
            let is_subscribed = world.lines[usize::from(process)] == RecallLine::Stands;
            if is_subscribed && self.of(world, process).hears_recalls() {
                Self::post(world, process, Letter::Recall { token, tries });
            }
        }
    }

    /// Changes the subscription of a process. The messages of a broken one are lost.
    pub fn turn(&mut self, world: &mut World, process: u8, to: RecallLine) -> Judged {
        world.lines[usize::from(process)] = to;
        let told = match to {
            RecallLine::Stands => Told::Subscribed,
            RecallLine::Broken => {
                world.faults.breaks -= 1;
                world.mail.retain(|mail| mail.process != process || !matches!(mail.letter, Letter::Recall { .. }));
                Told::SubscriptionBroken
            }
            RecallLine::Down => Told::SubscriptionLost,
        };
        self.tell(world, process, told)
    }

    /// An operator ends the holds that it has seen.
    pub fn force(&mut self, world: &mut World) -> Judged {
        let Some(OperatorView { ids, token }) = world.view.take() else { return Ok(()) };
        let what = What::Force { seen: ids, back: token.unsigned_abs() };
        let reply = self.carry_out(world, Request { id: OPERATOR, what, ..Request::default() })?;
        if let Reply::Forced { ended } = reply {
            world.forced |= ended;
        }
        Ok(())
    }

    /// Applies the growth of the highest token. All other tokens are then farther below it.
    fn grow(&mut self, world: &mut World, grown: i8) -> Judged {
        if grown == 0 {
            return Ok(());
        }
        let moved = |token: &mut i8| *token = token.saturating_sub(grown).max(FAR);
        for mail in world.mail.as_mut_slice() {
            match &mut mail.letter {
                Letter::Notice { grant: Some(grant), .. } => moved(&mut grant.first),
                Letter::Answer { reply: Reply::Granted(grant), .. } => moved(&mut grant.first),
                Letter::Answer { reply: Reply::Renewed { tokens: Some((first, _)), .. }, .. } => moved(first),
                Letter::Recall { token, .. } => moved(token),
                _ => {}
            }
        }
        world.view.iter_mut().for_each(|view| moved(&mut view.token));
        world.watch.move_on(moved);
        for process in world.alive(self.scene) {
            self.tell(world, process, Told::Grown(grown))?;
        }
        Ok(())
    }

    pub fn deliver(&mut self, world: &mut World, Mail { process, letter, .. }: Mail) -> Judged {
        match letter {
            Letter::Request { slot, copy, what, limit, keeps } => {
                let reply = self.carry_out(world, Request { id: self.scene.id(process, slot), what, limit, keeps })?;
                match copy {
                    Some(copy) => self.hear(world, process, (copy, slot), reply),
                    None => Ok(()),
                }
            }
            Letter::Answer { copy, slot, reply } => self.hear(world, process, (copy, slot), reply),
            Letter::Notice { slot, grant, .. } => self.tell(world, process, Told::Notice { slot, grant }),
            Letter::Recall { token, tries } => self.tell(world, process, Told::Recall { token, tries }),
            Letter::InUse { slot } => self.tell(world, process, Told::InUse { slot }),
        }
    }

    pub fn tick(&mut self, world: &mut World, order: u8, lapses: u8) -> Judged {
        for at in self.prompt(world) {
            world.faults.delays = world.faults.delays.saturating_sub(1);
            world.mail.as_mut_slice()[at].late = true;
        }
        world.faults.lapses -= u8::try_from(lapses.count_ones()).expect("few");
        world.shelf.tick();
        world.watch.tick();
        for mail in world.mail.as_mut_slice() {
            match &mut mail.letter {
                Letter::Request { limit, .. } => *limit = (*limit - 1).max(FORGET),
                Letter::Notice { grant: Some(grant), .. } => grant.remaining = grant.remaining.saturating_sub(1),
                _ => {}
            }
        }
        let processes = u8::try_from(self.scene.processes).expect("few");
        let in_order = (0..processes).map(|nth| (nth + order) % processes);
        for process in in_order.filter(|process| !world.dead[usize::from(*process)]).collect::<Vec<_>>() {
            let lapses = lapses & (1 << process) != 0;
            // A process notices within a tick that its subscription is broken, unless it is not scheduled.
            if !lapses && world.lines[usize::from(process)] == RecallLine::Broken {
                self.turn(world, process, RecallLine::Down)?;
            }
            self.tell(world, process, if lapses { Told::Lapse } else { Told::Tick })?;
        }
        Ok(())
    }

    /// Removes messages and marks that make no difference any more.
    pub fn tidy(&self, world: &mut World) {
        let all = *world;
        let number = |mail: &Mail| all.processes[usize::from(mail.process)];
        world.mail.retain(|mail| match mail.letter {
            Letter::Request { what: What::Leave | What::Renew, copy: None, slot, .. } => {
                let id = self.scene.id(mail.process, slot);
                let begins = |other: &Mail| match other.letter {
                    Letter::Request { slot: of, what, .. } => {
                        other.process == mail.process && of == slot && may_begin_hold(what)
                    }
                    _ => false,
                };
                all.shelf.knows(id) || all.mail.iter().any(begins)
            }
            Letter::Request { copy: None, limit, .. } => limit > FORGET,
            Letter::Request { .. } | Letter::Answer { .. } => true,
            Letter::Recall { .. } => self.processes.get(number(mail)).hears_recalls(),
            Letter::Notice { slot, .. } | Letter::InUse { slot } => {
                !all.dead[usize::from(mail.process)] && self.processes.may_be_notified(number(mail), slot)
            }
        });
        // The holder knows by now, or is dead.
        let knows = |id: u8| {
            let (process, slot) = self.scene.owner(id);
            let at = usize::from(process);
            all.dead[at] || !self.processes.accounts_for(all.processes[at], slot)
        };
        world.forced = (0..OPERATOR)
            .filter(|id| world.forced & (1 << id) != 0 && !knows(*id))
            .fold(0, |forced, id| forced | 1 << id);
        world.mail.as_mut_slice().sort_unstable();
    }
}
