//! Conversions of holds. The driver does what `src/engine/convert.rs` does with the decisions of the state.

use super::*;

impl Driver<'_> {
    /// Does what `upgrade` and `downgrade` do.
    pub fn convert(&mut self, number: u8) {
        let Stage::Holds { hold, share_id } = self.task(number).stage else { return };
        let now = self.now();
        let to = match self.record(hold).mode() {
            Mode::Read => Mode::Write,
            Mode::Write => Mode::Read,
        };
        let has_conflict = to == Mode::Write && self.process.state.writer_waits();
        if has_conflict || !self.event_of(hold, |record, event| record.begin_conversion(event)) {
            return;
        }
        // A later copy of the same conversion finds what an earlier one did.
        let earlier = self.record(hold).take_open_conversion();
        let slot = earlier.as_ref().map_or_else(|| self.new_slot(), |open| slot_of(&open.id));
        let copies = earlier.map(|open| InDoubt::of_earlier(open.arrives_until, open.lease)).unwrap_or_default();
        let conversion =
            ExploredConversion { slot, to, copies, recalls_until: None, stage: ConversionStage::Pauses(now) };
        self.task(number).stage = Stage::Converts { hold, share_id, conversion };
        self.send_conversion(number);
    }

    pub fn send_conversion(&mut self, number: u8) {
        let from = self.converted_slot(number);
        let Stage::Converts { hold, conversion, .. } = &mut self.task(number).stage else { return };
        conversion.copies.begin();
        conversion.stage = ConversionStage::Asks;
        let (hold, ExploredConversion { slot, to, .. }) = (*hold, *conversion);
        self.event_of(hold, |record, event| record.send_conversion(HOLD_LEASE, event));
        self.send(slot, Asked::Convert { from, to }, Purpose::Convert { task: number, slot });
    }

    fn converted_slot(&mut self, number: u8) -> Slot {
        match self.task(number).stage {
            Stage::Converts { hold, .. } => self.process.slot_of_hold(hold),
            _ => unreachable!("only a conversion has a hold to convert"),
        }
    }

    /// Applies the answer to a copy of a conversion. If there is none and the conversion `is_unreachable`, it ends.
    pub fn on_convert_answer(&mut self, number: u8, copy: FlyingCopy, reply: Option<HeardReply>, is_unreachable: bool) {
        let sent = copy.sent;
        let Stage::Converts { hold, share_id, mut conversion } = self.task(number).stage else { return };
        match reply {
            Some(HeardReply::Late) => conversion.copies.on_late(),
            Some(_) => conversion.copies.on_answer(sent),
            None => conversion.copies.abandon(sent.after(self.rules.max_delay)),
        }
        if matches!(reply, Some(HeardReply::Refused { .. })) && self.has(Blunder::BelievesRefusalBeforeStrays) {
            conversion.copies = InDoubt::default();
        }
        self.task(number).stage = Stage::Converts { hold, share_id, conversion };
        match reply {
            Some(HeardReply::Granted(grant)) => self.on_converted(number, &copy, grant),
            Some(HeardReply::Refused { is_cached }) => self.on_conversion_refused(number, sent, is_cached),
            Some(HeardReply::Lost) => {
                self.event_of(hold, |record, event| record.lose(LossReason::Gone, event));
                self.drop_conversion(number);
            }
            None | Some(HeardReply::Late) => self.on_no_conversion(number, is_unreachable),
            Some(_) => unreachable!("no answer to a conversion"),
        }
    }

    fn on_conversion_refused(&mut self, number: u8, sent: Moment, is_cached: bool) {
        let (now, then) = (self.now(), self.now().after(TICK));
        let Stage::Converts { hold, conversion, .. } = &mut self.task(number).stage else { return };
        let hold = *hold;
        match conversion.copies.arrives_until() {
            // An earlier copy may yet find the others gone. The old hold would then be gone too.
            Some(until) => {
                conversion.stage = ConversionStage::AwaitsStrays(until);
                self.event_of(hold, |record, event| record.stood_at(sent, event));
            }
            // The holders that it has recalled have some time to give their holds up.
            None if is_cached && now < *conversion.recalls_until.get_or_insert(then) => {
                conversion.stage = ConversionStage::AwaitsHolders(then);
                self.event_of(hold, |record, _| record.cancel_conversion());
            }
            None => {
                self.event_of(hold, |record, _| record.cancel_conversion());
                self.end_conversion(number);
                self.event_of(hold, |record, _| record.refuse_conversion(now));
            }
        }
    }

    /// The last copy of a conversion has no usable answer.
    fn on_no_conversion(&mut self, number: u8, is_unreachable: bool) {
        let now = self.now();
        let Stage::Converts { hold, conversion, .. } = self.task(number).stage else { return };
        let is_in_doubt = !conversion.copies.is_none();
        self.event_of(hold, |record, _| match is_in_doubt {
            // Each answer that knows the old hold shows that it was not converted yet.
            true => record.renew_now(now),
            false => record.cancel_conversion(),
        });
        let is_over = now >= self.record(hold).deadline();
        match (is_unreachable, is_in_doubt) {
            (true, true) => self.leave_open(number),
            (true, false) => {
                self.end_conversion(number);
                self.event_of(hold, |record, _| record.refuse_conversion(now));
            }
            (false, _) if is_over => {
                self.event_of(hold, |record, event| record.lose(LossReason::Expired, event));
                self.drop_conversion(number);
            }
            (false, _) => {
                if let Stage::Converts { conversion, .. } = &mut self.task(number).stage {
                    conversion.stage = ConversionStage::Pauses(now.after(TICK));
                }
            }
        }
    }

    /// Leaves the new hold of a conversion to the old hold, unless the old hold is over.
    fn leave_open(&mut self, number: u8) {
        let now = self.now();
        let Stage::Converts { hold, conversion, .. } = self.task(number).stage else { return };
        let open = open_of(&conversion, now);
        match self.event_of(hold, |record, event| record.leave_conversion_open(open, event)) {
            LeftOpen::InDoubt => self.end_conversion(number),
            LeftOpen::NotAlone | LeftOpen::Lost => self.drop_conversion(number),
        }
    }

    /// Puts the new hold in the place of the old one.
    fn on_converted(&mut self, number: u8, copy: &FlyingCopy, heard: HeardGrant) {
        let sent = copy.sent;
        let Stage::Converts { hold, share_id, conversion } = self.task(number).stage else { return };
        let ExploredConversion { slot, to, copies, .. } = conversion;
        let granted = self.granted(heard);
        let (share, cache) = (self.record(hold).share(share_id), self.cache_answer(copy, granted.is_waited_for));
        let new_hold = self.new_hold((slot, to), &granted, (sent, HOLD_LEASE), Some(cache));
        let new_hold = NewHold { share, in_doubt_requests: copies, ..new_hold };
        let make = |number, _| Arc::new(ExploredHold(number));
        let converted = self.event(|state, event| state.on_converted(make, hold, new_hold, event));
        let Some((new, new_share)) = converted else {
            self.event_of(hold, |record, event| {
                record.end_with_conversion(event);
                record.lose(LossReason::Expired, event);
            });
            return self.drop_conversion(number);
        };
        self.note_new_hold(new.number(), slot);
        if self.has(Blunder::KeepsConverted) {
            let stage = Stage::Holds { hold, share_id };
            let task = ExploredTask { stage, ..self.task(number).clone() };
            self.process.tasks.push(task);
        } else {
            self.event(|state, event| state.note_share_converted(hold, share_id, event));
            self.give_back_converted(hold, sent);
        }
        self.task(number).mode = to;
        self.enter_hold(number, to, (new.number(), new_share), new_share.token);
    }

    /// Gives a converted hold back if a copy of its acquisition may arrive after the conversion.
    fn give_back_converted(&mut self, hold: u64, sent: Moment) {
        let now = self.now();
        let arrives_until = self.process.state.record(hold).arrives_until(now, self.rules);
        if arrives_until.is_some_and(|until| until > sent) {
            self.depart(self.process.slot_of_hold(hold), arrives_until, None);
        }
    }

    /// The result of a conversion is known, or left to the old hold. The guard is as it was.
    fn end_conversion(&mut self, number: u8) {
        if let Stage::Converts { hold, share_id, .. } = self.task(number).stage {
            self.task(number).stage = Stage::Holds { hold, share_id };
        }
    }

    /// Ends a hold as lost, because it is unknown whether it was converted, and releases both holds. The guard stays.
    pub fn drop_conversion(&mut self, number: u8) {
        let now = self.now();
        let Stage::Converts { hold, mut conversion, .. } = self.task(number).stage else { return };
        self.event_of(hold, |record, event| record.lose(LossReason::Gone, event));
        conversion.copies.abandon_all(now.after(self.rules.max_delay));
        self.close(|copy| matches!(copy.purpose, Purpose::Convert { task, .. } if task == number));
        self.end_conversion(number);
        self.give_back(hold, Some(hold));
        if !self.has(Blunder::ForgetsNewHold) {
            self.depart_conversion(&open_of(&conversion, now));
        }
    }

    /// Gives the new hold of a conversion back.
    pub fn depart_conversion(&mut self, open: &OpenConversion) {
        self.depart(slot_of(&open.id), Some(open.arrives_until), None);
    }
}

fn open_of(conversion: &ExploredConversion, now: Moment) -> OpenConversion {
    let arrives_until = conversion.copies.arrives_until().unwrap_or(now);
    OpenConversion { id: id_of(conversion.slot), lease: HOLD_LEASE, arrives_until }
}
