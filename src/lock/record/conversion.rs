//! What happens to a hold while it is converted into one of the other side.

use std::sync::Arc;
use std::time::Duration;

use super::{HoldRecord, InDoubt, Phase, Renewal};
use crate::lease::{self, Moment};
use crate::lock::effects::{Rules, Signals};
use crate::lock::end::Ended;
use crate::lock::shares::ShareId;

/// Conversion.
impl HoldRecord {
    /// Closes the hold for all but its one guard; `false` if it has others, or is not what it was.
    pub(in crate::lock) fn begin_conversion(&mut self, now: Moment, signals: &mut Signals) -> bool {
        self.look(now, signals);
        let alone = self.phase.is_live() && !self.is_converting && self.shares.len() == 1;
        self.is_converting |= alone;
        alone
    }

    /// A request to convert it is sent now: from its being carried out on the server keeps only the new hold, for `lease`.
    pub(in crate::lock) fn conversion_begins(
        &mut self,
        now: Moment,
        lease: Duration,
        rules: &Rules,
        signals: &mut Signals,
    ) {
        let until = lease::valid_until(now, lease, rules.clock_margin);
        self.in_doubt.get_or_insert(InDoubt { lease, until });
        self.renew_in_doubt(now);
        // The deadline may have come nearer.
        for (_, end) in self.shares.watched() {
            signals.changed(Arc::clone(end));
        }
    }

    /// The server knew the old hold when it answered what was sent then: it had not been converted before.
    pub(in crate::lock) fn stood_at(&mut self, sent: Moment, rules: &Rules) {
        if let Some(new) = &mut self.in_doubt {
            new.until = new.until.max(lease::valid_until(sent, new.lease, rules.clock_margin));
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
            self.renewal = Renewal::Due(now);
        }
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
