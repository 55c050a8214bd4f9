//! Second model, for holds that may be cached.

use super::*;

impl Watch {
    /// Returns true if the hold that keeps the waiter out may be cached. A waiting writer recalls for itself and for
    /// the readers behind it.
    fn is_cached_against(&self, side: Side) -> bool {
        self.marked.is_some() && (side == Side::Write || self.writer.is_some())
    }

    /// Returns true if a try is in the queue: where it recalls, or if it was there before.
    pub fn takes_a_place(&self, id: Id, side: Side) -> bool {
        self.is_cached_against(side) || self.queue.iter().any(|place| place.until.id == id)
    }

    /// Judges the recall, and records whether the lock has the recallable flag from now on.
    pub fn judge_call(&mut self, request: Request, outcome: &Outcome) -> Judged {
        let token = self.top.map_or(0, |(top, _)| top);
        let by_all = ServerRecall { token, tries: None };
        let by_one = ServerRecall { tries: Some(request.id), ..by_all };
        let recall = match (request.what, outcome.reply) {
            (What::Acquire { mode, waits: false }, Reply::Queued { .. }) if self.is_cached_against(mode) => {
                Some(by_one)
            }
            (What::Acquire { mode, waits: true }, Reply::Queued { .. }) if self.is_cached_against(mode) => {
                let has_recalled = self.marked.replace(true);
                (has_recalled == Some(false)).then_some(by_all)
            }
            (What::Convert { .. }, Reply::Refused { .. }) if self.marked.is_some() => Some(by_one),
            // `judge_force` has judged this before a waiter entered.
            (What::Force { .. }, _) => outcome.call,
            _ => None,
        };
        hold(outcome.call == recall, Invariant::Call)?;
        let told = match outcome.reply {
            Reply::Granted(grant) => Some(grant.is_waited_for),
            Reply::Renewed { is_waited_for, .. } => Some(is_waited_for),
            _ => None,
        };
        if let Some(is_waited_for) = told.filter(|_| request.keeps.is_some()) {
            self.marked = Some(self.marked.filter(|_| is_waited_for).unwrap_or(false));
        }
        Ok(())
    }

    /// Judges a force. A force ends the hold that the inspection showed, even if the hold has got newer tokens since.
    /// It recalls a hold that may be cached.
    pub fn judge_force(&mut self, seen: u16, back: u8, outcome: &Outcome) -> Judged {
        let is_there = self.writer.is_some_and(|writer| seen & (1 << writer.until.id) != 0);
        let is_carried_out = is_there || back == 0;
        let writer = self.writer.map(|writer| writer.until).filter(|until| until.ticks > 0);
        let live = writer.iter().chain(self.readers.iter()).fold(0, |live, until| live | 1 << until.id);
        let ended = if is_carried_out { live } else { 0 };
        hold(outcome.reply == Reply::Forced { ended }, Invariant::Forced)?;
        let token = self.top.map_or(0, |(top, _)| top);
        let recall = (is_carried_out && self.marked.is_some()).then_some(ServerRecall { token, tries: None });
        hold(outcome.call == recall, Invariant::Call)?;
        if is_carried_out {
            if self.writer.is_some() {
                self.on_writer_end();
            }
            self.readers = List::default();
        }
        Ok(())
    }

    /// Judges the tokens of a renewal, and its report of waiters. New tokens are above all others and not ahead of the
    /// clock. They come if they were requested.
    pub fn judge_what_a_renewal_tells(&mut self, request: Request, outcome: &Outcome) -> Judged {
        let Reply::Renewed { is_waited_for, tokens, .. } = outcome.reply else { return Ok(()) };
        let waits = match self.writer {
            Some(_) => !self.queue.is_empty(),
            None => self.first_writer().is_some(),
        };
        let told = request.keeps.is_some();
        let may_be_dead = outcome.anybody_recorded && is_waited_for && told;
        hold(is_waited_for == (waits && told) || may_be_dead, Invariant::WaitedFor)?;
        let (top, side) = self.top.unwrap_or_default();
        let asked = request.keeps.filter(|count| *count > 0 && self.writer.is_some());
        match (asked, tokens, &mut self.writer) {
            (Some(most), Some((first, count)), Some(writer)) => {
                let last = first + i8::try_from(count).unwrap_or(i8::MAX) - 1;
                hold(first > top && (1..=most).contains(&count) && last <= 0, Invariant::Tokens)?;
                writer.back = last - first;
                self.top = Some((last, side));
                Ok(())
            }
            (None, None, _) => Ok(()),
            _ => Err(Invariant::Tokens),
        }
    }

    /// Records the token of a guard, relative to the highest token. A writer's token is above all earlier tokens. A
    /// reader's token is above the tokens of all writers.
    pub fn is_handed(&mut self, token: i8, side: Side) {
        let is_above = self
            .handed
            .is_none_or(|(last, of)| token > last || token == last && (of, side) == (Side::Read, Side::Read));
        self.has_disorder |= !is_above && !self.was_wiped;
        self.handed = Some((token, side));
    }

    /// Moves the token of the last guard when the highest token has changed.
    pub fn move_on(&mut self, moved: impl Fn(&mut i8)) {
        if let Some((token, _)) = &mut self.handed {
            moved(token);
        }
    }
}
