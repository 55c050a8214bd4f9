//! Holds that rest after their use: the lock stays taken on the server until a time, without a guard.
//!
//! The server keeps no such option. A renewal with the time makes the hold last that long (it *arms* the hold), and a
//! release with the time leaves a rest. The time is fixed when the first such renewal is sent, and all copies and all
//! later renewals carry the same one. So no copy, however late, makes the hold last longer.
//!
//! Until the guard is handed out, the hold is given back by a release without the time, because a caller without a
//! guard must leave no rest. From then on, each release carries the time. From the first renewal with the time on, the
//! hold is neither handed off nor cached: the next user would get a hold that the server keeps for another one.

use std::time::Duration;

use super::{Accepted, HoldRecord};
use crate::base::lease::{self, ClockSample, Moment, ServerTime};
use crate::lock::effects::{Event, Rules};
use crate::lock::end::HoldState;
use crate::lock::shares::{Share, ShareId};
use crate::lock::side::WaiterId;

/// Time for which an acquisition wants the lock to stay taken, counted from its grant.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct AtLeast {
    pub(crate) span: Duration,
}

/// State of a hold that is to rest after its use.
#[derive(Clone, Hash, Debug)]
pub(super) struct RestState {
    at_least: AtLeast,
    /// Share of the acquisition. Until the hold is armed, the hold has this share with an early end, because the
    /// future of the acquisition may not be polled any more.
    share: Share,
    /// Time of the server's clock, in whole milliseconds, until which the hold lasts at least. Present from the first
    /// renewal with this time on.
    until: Option<ServerTime>,
    /// True if the server has answered a renewal with this time.
    is_armed: bool,
    /// True if a release leaves a rest, because the guard was handed out.
    is_handed_out: bool,
}

impl RestState {
    pub(super) fn until(&self) -> Option<ServerTime> {
        self.until
    }
}

impl HoldRecord {
    /// Returns true if the hold is to rest after its use.
    pub(in crate::lock) fn is_to_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Arms the hold for the acquisition with this share, whose first call is at `since`. Until the server has answered
    /// a renewal with the time, the caller waits and tries again.
    pub(in crate::lock) fn arm(
        &mut self,
        waiter_id: WaiterId,
        (share_id, at_least): (ShareId, AtLeast),
        since: Moment,
        event: &mut Event<'_>,
    ) -> Accepted {
        self.look(event);
        let share = self.shares.get(share_id.slot);
        if let HoldState::Lost(_) = self.state_of(&share, event.now) {
            return Accepted::Over;
        }
        let rest = self.rest.get_or_insert_with(|| {
            Box::new(RestState { at_least, share, until: None, is_armed: false, is_handed_out: false })
        });
        let share = rest.share;
        if !rest.is_armed {
            return self.await_renewal(waiter_id, (share_id, share), since, event.now);
        }
        self.shares.replace(share_id.slot, share);
        if self.needs_renewal() {
            self.plan_renewal(event.now);
        }
        Accepted::Taken(self.current_token())
    }

    /// Notes that the guard is handed out now. Returns false and changes nothing if the hold is over, because it is
    /// then given back without a rest.
    pub(in crate::lock) fn hand_out(&mut self, event: &mut Event<'_>) -> bool {
        self.look(event);
        let is_live = self.phase.is_live();
        if let Some(rest) = self.rest.as_mut().filter(|_| is_live) {
            rest.is_handed_out = true;
        }
        is_live
    }

    /// Lets the release of the hold leave no rest.
    pub(in crate::lock) fn forgo_rest(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.is_handed_out = false;
        }
    }

    /// Returns the time until which a release lets the hold rest.
    pub(in crate::lock) fn rest_until(&self) -> Option<ServerTime> {
        self.rest.as_ref().filter(|rest| rest.is_handed_out)?.until
    }

    /// Returns the time that a renewal carries which is sent now. The first one fixes the time. Without a reading of
    /// the server's clock there is none yet, and the answer to this renewal brings one.
    pub(in crate::lock) fn fix_rest(&mut self, now: Moment, rules: &Rules) -> Option<ServerTime> {
        let said = self.promise.server_time();
        let answered = self.answered;
        let rest = self.rest.as_deref_mut()?;
        if rest.until.is_none() {
            let AtLeast { span } = rest.at_least;
            if said == ServerTime::default() {
                return None;
            }
            let sample = ClockSample { sent: answered, server: said };
            // The server's clock shows this or less, so the rest is not too short.
            let latest = sample.server.after(lease::surely_over(sample.age_at(now), rules.max_clock_skew));
            rest.until = Some(latest.after(span).in_whole_millis_up());
            // The request may be carried out that late, so the server may keep the hold that long.
            let covers = lease::surely_over(span, rules.max_clock_skew).saturating_add(rules.max_delay);
            self.server_until = self.server_until.max(now.after(covers));
        }
        rest.until
    }

    /// Notes that the server has answered a renewal with the time.
    pub(in crate::lock) fn note_armed(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.is_armed = true;
        }
    }
}
