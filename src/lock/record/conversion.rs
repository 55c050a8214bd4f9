//! What happens to a hold while it is converted into one of the other side, and while it is open whether it was.

use std::sync::Arc;
use std::time::Duration;

use super::{HoldRecord, Phase, RenewalState};
use crate::base::attempt::AcquisitionId;
use crate::base::error::LossReason;
use crate::base::lease::{self, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::{Rules, Signals};
use crate::lock::end::Ended;
use crate::lock::shares::ShareId;

/// It may have been converted, but not before a certain moment.
#[derive(Debug)]
pub(super) struct ConversionInDoubt {
    /// What was asked for the new hold.
    pub(super) lease: Duration,
    /// How long that lasts at least.
    pub(super) until: Moment,
    /// Nobody asks any more.
    pub(super) open: Option<OpenConversion>,
}

/// A conversion that nobody asks for any more, while it is not known whether it was carried out. The new hold is given back
/// with the old one, or when that is known to stand, and not before: until then the old guard may count on it.
#[derive(Debug)]
pub(crate) struct OpenConversion {
    /// The new hold.
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// A copy of the request may be carried out until then.
    pub(crate) arrives_until: Moment,
}

/// What becomes of a guard whose conversion was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeftOpen {
    /// It goes on: whichever of the two the server has is ours, and lets nobody write.
    InDoubt,
    /// It counted on being the only one, and others may read by now.
    NotAlone,
    /// It was lost before.
    Lost,
}

/// Conversion.
impl HoldRecord {
    /// Closes the hold for all but its one guard; `false` if it has others, or is not what it was.
    pub(in crate::lock) fn begin_conversion(&mut self, now: Moment, signals: &mut Signals) -> bool {
        self.look(now, signals);
        let alone = self.phase.is_live() && !self.is_converting && self.shares.len() == 1;
        self.is_converting |= alone;
        alone
    }

    /// What is left of an earlier conversion, for whoever goes on with it or gives it back.
    pub(in crate::lock) fn take_open_conversion(&mut self) -> Option<OpenConversion> {
        self.in_doubt.as_mut()?.open.take()
    }

    /// A request to convert it is sent now: from its being carried out on the server keeps only the new hold, for `lease`.
    pub(in crate::lock) fn conversion_begins(
        &mut self,
        now: Moment,
        lease: Duration,
        rules: &Rules,
        signals: &mut Signals,
    ) {
        let until = lease::valid_until(now, lease, rules.max_clock_skew);
        match &mut self.in_doubt {
            None => self.in_doubt = Some(Box::new(ConversionInDoubt { lease, until, open: None })),
            // It goes on with an earlier one.
            Some(new) if lease < new.lease => (new.lease, new.until) = (lease, new.until.min(until)),
            Some(_) => {}
        }
        self.renew_in_doubt(now);
        // The deadline may have come nearer.
        for (_, end) in self.shares.watched() {
            signals.changed(Arc::clone(end));
        }
    }

    /// The server knew the old hold when it answered what was sent then: it had not been converted before.
    pub(in crate::lock) fn stood_at(&mut self, sent: Moment, rules: &Rules) {
        if let Some(new) = &mut self.in_doubt {
            new.until = new.until.max(lease::valid_until(sent, new.lease, rules.max_clock_skew));
        }
    }

    /// No request to convert it was carried out so far, nor can one be that was sent.
    pub(in crate::lock) fn conversion_was_not_done(&mut self) {
        // One that is over ended as it did, in doubt.
        if self.phase.is_live() {
            self.in_doubt = None;
        }
    }

    /// The server has not converted it: it is what it was, confirmed or not.
    pub(in crate::lock) fn conversion_refused(&mut self, now: Moment) {
        self.is_converting = false;
        self.conversion_was_not_done();
        self.renew_if_needed(now);
        if std::mem::take(&mut self.is_missed) {
            // Then it was no conversion that the server had in its place.
            self.renewal = RenewalState::Due(now);
        }
    }

    /// Nobody has answered, and nobody asks any more. A reader's guard goes on until the answer to a renewal tells whether its
    /// hold stands. A writer's cannot: if its hold was converted, readers are let in.
    pub(in crate::lock) fn conversion_left_open(
        &mut self,
        open: OpenConversion,
        now: Moment,
        signals: &mut Signals,
    ) -> LeftOpen {
        self.is_converting = false;
        self.look(now, signals);
        if self.is_missed {
            self.lose(LossReason::Gone, now, signals);
        }
        let Some(new) = self.in_doubt.as_mut().filter(|_| self.phase.is_live()) else {
            return LeftOpen::Lost;
        };
        if self.mode == Mode::Write {
            new.until = now;
            self.look(now, signals);
            return LeftOpen::NotAlone;
        }
        new.open = Some(open);
        self.phase = Phase::Unconfirmed;
        self.renew_in_doubt(now);
        LeftOpen::InDoubt
    }

    /// The server knew the hold when it answered what was sent then. Answers the conversion that was open until now: it was not
    /// carried out, and cannot be any more.
    pub(super) fn resolve_open_conversion(&mut self, sent: Moment) -> Option<OpenConversion> {
        let open = self.in_doubt.as_ref()?.open.as_ref()?;
        if sent >= open.arrives_until {
            return self.in_doubt.take()?.open;
        }
        self.phase = Phase::Unconfirmed;
        None
    }

    /// The server has converted it: there is nothing to give back.
    pub(in crate::lock) fn converted(&mut self, share_id: ShareId, signals: &mut Signals) {
        self.phase = Phase::Released;
        let (_, end) = self.shares.remove(share_id.slot);
        if let Some(end) = end {
            signals.ended(end, Ended::Released);
        }
    }
}
