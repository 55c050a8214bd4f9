//! Conversion of a hold into one of the other side, and the time in which its result is unknown.

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

/// Doubt whether the hold was converted; it was not before a known moment.
#[derive(Debug)]
pub(super) struct ConversionInDoubt {
    /// Lease that was requested for the new hold.
    pub(super) lease: Duration,
    /// Earliest end of the new hold, if there is one.
    pub(super) until: Moment,
    /// Present when no task asks any more.
    pub(super) open: Option<OpenConversion>,
}

/// Conversion that no task asks for any more, while its result is unknown. The new hold is released with the old one,
/// or when the old one is known to be there still. It is not released before: until then the old guard may count on it.
#[derive(Debug)]
pub(crate) struct OpenConversion {
    /// Id of the new hold.
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// Latest moment at which a copy of the request may be carried out.
    pub(crate) arrives_until: Moment,
}

/// Fate of a guard whose conversion was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeftOpen {
    /// The guard goes on: the server has one of the two holds, and either excludes writers.
    InDoubt,
    /// The guard counted on being the only one, and others may read by now.
    NotAlone,
    /// The hold was lost before.
    Lost,
}

/// Conversion.
impl HoldRecord {
    /// Closes the hold for all but its one guard. Returns false if it has others, or is not what it was.
    pub(in crate::lock) fn begin_conversion(&mut self, now: Moment, signals: &mut Signals) -> bool {
        self.look(now, signals);
        let alone = self.phase.is_live() && !self.is_converting && self.shares.len() == 1;
        self.is_converting |= alone;
        alone
    }

    /// Takes the rest of an earlier conversion, for a task that continues it or releases it.
    pub(in crate::lock) fn take_open_conversion(&mut self) -> Option<OpenConversion> {
        self.in_doubt.as_mut()?.open.take()
    }

    /// Notes that a request to convert it is sent now. When the server has carried it out, it keeps only the new hold,
    /// for `lease`.
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
            // The request continues an earlier conversion.
            Some(new) if lease < new.lease => (new.lease, new.until) = (lease, new.until.min(until)),
            Some(_) => {}
        }
        self.renew_in_doubt(now);
        // The deadline may have become earlier.
        for (_, end) in self.shares.watched() {
            signals.changed(Arc::clone(end));
        }
    }

    /// Notes that the server knew the old hold when it answered a request from `sent`: it had not been converted
    /// before.
    pub(in crate::lock) fn stood_at(&mut self, sent: Moment, rules: &Rules) {
        if let Some(new) = &mut self.in_doubt {
            new.until = new.until.max(lease::valid_until(sent, new.lease, rules.max_clock_skew));
        }
    }

    /// Notes that no request to convert it was carried out, and none that was sent can be.
    pub(in crate::lock) fn conversion_was_not_done(&mut self) {
        // A hold that is over ended in doubt, and that stays so.
        if self.phase.is_live() {
            self.in_doubt = None;
        }
    }

    /// Applies a refusal: the hold is what it was, confirmed or not.
    pub(in crate::lock) fn conversion_refused(&mut self, now: Moment) {
        self.is_converting = false;
        self.conversion_was_not_done();
        self.renew_if_needed(now);
        if std::mem::take(&mut self.is_missed) {
            // A renewal did not find the hold, and no conversion explains that.
            self.renewal = RenewalState::Due(now);
        }
    }

    /// Leaves a conversion without an answer open, since no task asks any more. A reader's guard goes on until the
    /// answer to a renewal decides whether its hold is still there. A writer's cannot: if its hold was converted,
    /// readers are let in.
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
            // Ends the hold now: if it was converted, readers are inside.
            new.until = now;
            self.look(now, signals);
            return LeftOpen::NotAlone;
        }
        new.open = Some(open);
        self.phase = Phase::Unconfirmed;
        self.renew_in_doubt(now);
        LeftOpen::InDoubt
    }

    /// Settles an open conversion by an answer that knew the hold, to a request from `sent`. Returns the conversion if
    /// it was not carried out and cannot be any more.
    pub(super) fn resolve_open_conversion(&mut self, sent: Moment) -> Option<OpenConversion> {
        let open = self.in_doubt.as_ref()?.open.as_ref()?;
        if sent >= open.arrives_until {
            return self.in_doubt.take()?.open;
        }
        self.phase = Phase::Unconfirmed;
        None
    }

    /// Applies a conversion that the server has carried out: nothing is left to release.
    pub(in crate::lock) fn converted(&mut self, share_id: ShareId, signals: &mut Signals) {
        self.phase = Phase::Released;
        let (_, end) = self.shares.remove(share_id.slot);
        if let Some(end) = end {
            signals.ended(end, Ended::Released);
        }
    }
}
