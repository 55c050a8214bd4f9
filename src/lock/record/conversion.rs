//! Conversion of a read hold into a write hold or back, and the time in which the result of the conversion is unknown.

use std::time::Duration;

use super::{HoldRecord, Phase, RenewalState};
use crate::base::attempt::AcquisitionId;
use crate::base::error::LossReason;
use crate::base::lease::{self, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::{Event, Rules};
use crate::lock::end::Ended;
use crate::lock::shares::ShareId;

/// Data of a conversion in doubt. The server may have carried out the request, or may still carry it out.
#[derive(Clone, Hash, Debug)]
pub(super) struct ConversionInDoubt {
    /// Lease that was requested for the new hold.
    pub(super) lease: Duration,
    /// Earliest local deadline that the new hold can have.
    pub(super) until: Moment,
    /// Conversion that no task repeats any more. `None` while a task still repeats the request.
    pub(super) open: Option<OpenConversion>,
}

/// Conversion whose result is unknown and that no task repeats any more. The process releases the new hold together
/// with the old hold, or after an answer shows that the server still has the old hold. An earlier release could end the
/// only hold that the guard has.
#[derive(Clone, Hash, Debug)]
pub(crate) struct OpenConversion {
    /// Id of the new hold.
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// Latest moment at which a copy of the request may be carried out.
    pub(crate) arrives_until: Moment,
}

/// State of a guard after a conversion that the server did not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeftOpen {
    /// The guard keeps its hold. The server has the old read hold or the new write hold, and each of them excludes
    /// other writers.
    InDoubt,
    /// The hold is lost, because it was a write hold and other readers may have entered by now.
    NotAlone,
    /// The hold was lost already.
    Lost,
}

/// Conversions.
impl HoldRecord {
    /// Begins a conversion, during which no further guard may share the hold. Returns false if the hold has several
    /// guards, is over, or is being converted already.
    pub(in crate::lock) fn begin_conversion(&mut self, event: &mut Event<'_>) -> bool {
        self.look(event);
        let alone = self.phase.is_live() && !self.is_converting && self.shares.len() == 1;
        self.is_converting |= alone;
        alone
    }

    /// Returns true if an earlier task left a conversion open.
    pub(in crate::lock) fn has_open_conversion(&self) -> bool {
        self.in_doubt.as_ref().is_some_and(|new| new.open.is_some())
    }

    /// Takes the conversion that an earlier task left open. The caller continues the conversion or releases its new
    /// hold.
    pub(in crate::lock) fn take_open_conversion(&mut self) -> Option<OpenConversion> {
        self.in_doubt.as_mut()?.open.take()
    }

    /// Notes that a request to convert the hold is sent now. Once the server has carried out the request, it has only
    /// the new hold, for `lease`.
    pub(in crate::lock) fn send_conversion(&mut self, lease: Duration, event: &mut Event<'_>) {
        let until = lease::valid_until(event.now, lease, event.max_clock_skew);
        match &mut self.in_doubt {
            None => self.in_doubt = Some(Box::new(ConversionInDoubt { lease, until, open: None })),
            // The request repeats an earlier conversion.
            Some(new) if lease < new.lease => (new.lease, new.until) = (lease, new.until.min(until)),
            Some(_) => {}
        }
        self.renew_in_doubt(event.now);
        // The deadline may be earlier now.
        self.tell_watchers(event);
    }

    /// Notes that the server had the old hold when it answered a request that was sent at `sent`. So the server has not
    /// converted the hold before `sent`.
    pub(in crate::lock) fn stood_at(&mut self, sent: Moment, rules: &Rules) {
        if let Some(new) = &mut self.in_doubt {
            new.until = new.until.max(lease::valid_until(sent, new.lease, rules.max_clock_skew));
        }
    }

    /// Notes that the server has carried out no request to convert the hold, and cannot carry out one any more.
    pub(in crate::lock) fn cancel_conversion(&mut self) {
        // After the end of the hold these data stay, because the reported reason for the end depends on them.
        if self.phase.is_live() {
            self.in_doubt = None;
        }
    }

    /// Applies a refusal of the conversion. The hold is as it was before the conversion.
    pub(in crate::lock) fn refuse_conversion(&mut self, now: Moment) {
        self.is_converting = false;
        self.cancel_conversion();
        self.renew_if_needed(now);
        if std::mem::take(&mut self.is_missed) {
            // During the conversion, a renewal did not find the hold. The refused conversion does not explain this, so
            // another renewal has to show the reason.
            self.renewal = RenewalState::Due(now);
        }
    }

    /// Ends the hold now, because the server may have converted it into a hold that is of no use any more.
    pub(in crate::lock) fn end_with_conversion(&mut self, event: &mut Event<'_>) {
        if let Some(new) = &mut self.in_doubt {
            new.until = event.now;
        }
        self.look(event);
    }

    /// Leaves a conversion open that the server did not answer and that no task repeats any more. A reader keeps its
    /// guard, and the answer to a renewal decides whether its hold still exists. A writer loses its guard, because
    /// other readers may have entered if the server has converted the hold.
    pub(in crate::lock) fn leave_conversion_open(&mut self, open: OpenConversion, event: &mut Event<'_>) -> LeftOpen {
        self.is_converting = false;
        self.look(event);
        if self.is_missed {
            self.lose(LossReason::Gone, event);
        }
        let Some(new) = self.in_doubt.as_mut().filter(|_| self.phase.is_live()) else {
            return LeftOpen::Lost;
        };
        if self.mode == Mode::Write {
            // Other readers may be inside if the server has converted the hold.
            self.end_with_conversion(event);
            return LeftOpen::NotAlone;
        }
        new.open = Some(open);
        self.phase = Phase::Unconfirmed;
        self.renew_in_doubt(event.now);
        LeftOpen::InDoubt
    }

    /// Resolves an open conversion after an answer that shows that the server has the old hold. The answered request
    /// was sent at `sent`. Returns the conversion if the server has not carried it out and cannot carry it out any
    /// more.
    pub(super) fn resolve_open_conversion(&mut self, sent: Moment) -> Option<OpenConversion> {
        let open = self.in_doubt.as_ref()?.open.as_ref()?;
        if sent >= open.arrives_until {
            return self.in_doubt.take()?.open;
        }
        self.phase = Phase::Unconfirmed;
        None
    }

    /// Applies a conversion that the server has carried out. The old hold needs no release.
    pub(in crate::lock) fn on_converted(&mut self, share_id: ShareId, event: &mut Event<'_>) {
        self.phase = Phase::Released;
        let (_, end) = self.shares.remove(share_id.slot);
        if let Some(end) = end {
            event.add_end(end, Ended::Released);
        }
    }
}
