//! Outstanding acquisitions: the holds that each master may have, and the requests that each master may still execute.
//!
//! A majority decides, and the other masters answer later or never. An acquisition that failed or was released is over.
//! If a master may still have it, or grants it later, the [background](ReleaseBackground) of the manager releases it at
//! this master. A release that a majority has answered may lack an answer at other masters. The background repeats it
//! there as well.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::Margins;
use super::leftovers::{Leftover, Leftovers};
use super::master::Master;
use crate::base::attempt::{AcquisitionId, Answered, Attempt, Failure, Granted};
use crate::base::clock::Clock;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{self, FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::process::Process;
use crate::store::{MasterRelease, MasterScheme, PendingAtMaster, ReleaseBackground, ReleaseReply};

/// Smallest number of records that is worth a search for expired records.
const MIN_SWEEP: usize = 256;
/// Largest number of releases that wait for one master. Beyond this number the background drops the oldest, because its
/// lease ends soonest.
pub(super) const MAX_PENDING_RELEASES: usize = 8192;

#[derive(Debug)]
pub(super) struct Outstanding {
    masters: Vec<Arc<Master>>,
    clock: Clock,
    margins: Margins,
    pub(super) leftovers: Arc<Leftovers>,
    background: OnceLock<Weak<dyn ReleaseBackground>>,
    process: Process,
    table: Mutex<OutstandingTable>,
}

#[derive(Debug, Default)]
struct OutstandingTable {
    by_id: HashMap<AcquisitionId, OutstandingAcquisition>,
    sweep_at: usize,
}

#[derive(Debug)]
struct OutstandingAcquisition {
    key: Arc<Key>,
    mode: Mode,
    per_master: Vec<PerMaster>,
    /// Token of the hold, once a majority has granted it.
    token: Option<FencingToken>,
    /// True if an operator has ended the hold by force at a master.
    is_forced: bool,
    /// True from the begin of the release.
    is_released: bool,
    /// True if no caller will ask for the result of the release again.
    is_release_answered: bool,
    /// Time for which a master keeps a hold that it grants now.
    held_for: Duration,
    /// Moment from which no master has the hold, unless a later request asks for it.
    until: Moment,
    /// Indexes of the masters at which the present change makes a release necessary.
    needs_release: Vec<usize>,
}

/// State of an acquisition at one master.
#[derive(Clone, Debug, Default)]
struct PerMaster {
    in_doubt_requests: InDoubt,
    may_hold: bool,
    /// Moment of the last answer that granted the hold.
    held_at: Option<Moment>,
    /// Token of the hold at this master, as the last readable answer told it.
    token: Option<FencingToken>,
    releases_in_flight: u32,
    /// True if the master granted the hold while a release was in flight. The release may have come before the grant.
    is_granted_late: bool,
    /// True if a release has ended a hold whose request, the only one, has no answer yet.
    is_ended: bool,
    /// Answer of the master to the release: true if the hold was live until then.
    release_answer: Option<bool>,
    /// True if a release was sent without an answer.
    is_release_in_doubt: bool,
    /// True if the background repeats the release.
    has_pending_release: bool,
    /// Counts until the master has nothing of this failed acquisition, and no copy of its request can arrive.
    leftover: Option<Arc<Leftover>>,
}

/// State of a release at one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReleaseState {
    /// The master has nothing to release.
    Nothing,
    /// The master has answered an earlier release.
    Released { was_held: bool },
    /// The release must be sent.
    MayHold,
}

impl OutstandingAcquisition {
    fn is_over(&self) -> bool {
        let is_awaited =
            self.per_master.iter().any(|at| at.releases_in_flight > 0 || at.in_doubt_requests.in_flight() > 0);
        self.is_released && self.is_release_answered && !is_awaited
    }
}

impl PerMaster {
    fn release_state(&self) -> ReleaseState {
        match self.release_answer {
            Some(was_held) => ReleaseState::Released { was_held },
            None if self.may_hold || !self.in_doubt_requests.is_none() => ReleaseState::MayHold,
            None => ReleaseState::Nothing,
        }
    }

    /// Notes the result of a request. `has` tells whether the master has the hold now, if that is known. Returns true
    /// if the master needs a release, in case the acquisition is over. A release in flight most likely comes after a
    /// request that was sent before it, and the answer to the release shows that.
    fn on_request_result(&mut self, has: Option<bool>) -> bool {
        // The master may have executed an unanswered request a second time, after the release.
        if std::mem::take(&mut self.is_ended) && has.is_some() {
            return false;
        }
        let had = self.may_hold;
        self.may_hold = has.unwrap_or(had);
        if self.releases_in_flight > 0 && has == Some(true) && !had {
            self.is_granted_late = true;
            return false;
        }
        has == Some(true) || has.is_none() && self.in_doubt_requests.arrives_until().is_some()
    }

    /// Returns true if an operator has ended the hold at this master, where `forced` is the highest token that an operator
    /// has ended there. Tokens of different masters are not compared, because the clocks of masters differ: a master
    /// whose clock is ahead may have ended a higher token of an earlier hold.
    fn was_forced(&self, forced: Option<FencingToken>) -> bool {
        self.token.is_some_and(|token| Some(token) <= forced)
    }

    /// Ends the count of a release. A release that began without a record was not counted.
    fn end_release(&mut self) {
        self.releases_in_flight = self.releases_in_flight.saturating_sub(1);
    }
}

impl Outstanding {
    pub(super) fn new(masters: Vec<Arc<Master>>, clock: Clock, margins: Margins) -> Arc<Self> {
        Arc::new(Self {
            masters,
            clock,
            margins,
            leftovers: Arc::default(),
            background: OnceLock::new(),
            process: Process::current(),
            table: Mutex::default(),
        })
    }

    pub(super) fn set_background(&self, background: Weak<dyn ReleaseBackground>) {
        drop(self.background.set(background));
    }

    /// Returns the background. A copy of the process by `fork` has none.
    fn background(&self) -> Option<Arc<dyn ReleaseBackground>> {
        self.background.get().filter(|_| self.process.is_current())?.upgrade()
    }

    fn begin_operation(&self) -> MasterOperation {
        let background = self.background();
        background.iter().for_each(|background| background.begin_at_master());
        MasterOperation(background)
    }

    pub(super) fn master(&self, place: usize) -> &dyn MasterScheme {
        &*self.masters[place].scheme
    }

    /// Changes a record, if there is one. Then removes the record if it is over, and hands the releases that the change
    /// has made necessary to the background.
    fn change<T>(
        &self,
        id: &AcquisitionId,
        change: impl FnOnce(&mut OutstandingAcquisition, Moment) -> T,
    ) -> Option<T> {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let acquisition = table.by_id.get_mut(id)?;
        let changed = change(acquisition, now);
        let needed = std::mem::take(&mut acquisition.needs_release);
        let releases: Vec<_> = needed.into_iter().map(|master| self.release_at(master, id, acquisition, now)).collect();
        for at in &mut acquisition.per_master {
            // A pending release has a count of its own.
            at.leftover = at.leftover.take().filter(|_| !at.in_doubt_requests.is_none());
        }
        if acquisition.is_over() {
            table.by_id.remove(id);
        }
        drop(table);
        if !releases.is_empty()
            && let Some(background) = self.background()
        {
            releases.into_iter().for_each(|release| background.release_at_master(release));
        }
        Some(changed)
    }

    fn release_at(
        &self,
        master: usize,
        id: &AcquisitionId,
        acquisition: &OutstandingAcquisition,
        now: Moment,
    ) -> MasterRelease {
        let (at, master) = (&acquisition.per_master[master], &self.masters[master]);
        let arrives_until = at.in_doubt_requests.arrives_until();
        MasterRelease {
            route: master.route.clone(),
            key: Arc::clone(&acquisition.key),
            id: id.clone(),
            server_until: arrives_until.unwrap_or(now).max(now).after(acquisition.held_for).max(acquisition.until),
            arrives_until,
            pending: Box::new(self.count_release(master, at.leftover.clone())),
        }
    }

    pub(super) fn count_release(&self, master: &Master, leftover: Option<Arc<Leftover>>) -> PendingRelease {
        let at_master = Arc::clone(&master.pending_releases);
        PendingRelease { at_master, _leftover: leftover, _operation: self.begin_operation() }
    }

    /// Returns the token of a hold that a majority has granted.
    pub(super) fn token_of(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.table.lock().by_id.get(id)?.token
    }

    /// Returns the token of a hold that an operator has ended by force.
    pub(super) fn forced_token(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.table.lock().by_id.get(id).filter(|acquisition| acquisition.is_forced)?.token
    }

    /// Returns true if a master may still execute a copy of a request.
    pub(super) fn may_arrive(&self, id: &AcquisitionId, master: usize) -> bool {
        let now = self.clock.now();
        let table = self.table.lock();
        let requests = table.by_id.get(id).map(|acquisition| acquisition.per_master[master].in_doubt_requests);
        requests.is_some_and(|requests| requests.may_arrive(now))
    }

    /// Begins or extends the record of an acquisition. The caller then asks the masters for this lease.
    pub(super) fn begin(&self, id: &AcquisitionId, mode: Mode, key: &Arc<Key>, lease: Duration) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        if table.by_id.len() >= table.sweep_at {
            table.by_id.retain(|_, acquisition| acquisition.until > now);
            table.sweep_at = (table.by_id.len() * 2).max(MIN_SWEEP);
        }
        let acquisition = table.by_id.entry(id.clone()).or_insert_with(|| OutstandingAcquisition {
            key: Arc::clone(key),
            mode,
            per_master: vec![PerMaster::default(); self.masters.len()],
            token: None,
            is_forced: false,
            is_released: false,
            is_release_answered: false,
            held_for: Duration::ZERO,
            until: now,
            needs_release: Vec::new(),
        });
        self.ask_for(acquisition, lease, now);
    }

    /// Extends the record of a hold whose masters are asked for this lease.
    pub(super) fn extend(&self, id: &AcquisitionId, lease: Duration) {
        self.change(id, |acquisition, now| self.ask_for(acquisition, lease, now));
    }

    fn ask_for(&self, acquisition: &mut OutstandingAcquisition, lease: Duration, now: Moment) {
        let covers = lease::surely_over(lease, self.margins.max_clock_skew);
        acquisition.held_for = acquisition.held_for.max(covers);
        acquisition.until = acquisition.until.max(now.after(self.margins.max_delay).after(covers));
    }

    fn in_flight(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> MasterInFlight {
        let (outstanding, operation) = (Arc::clone(self), self.begin_operation());
        MasterInFlight { outstanding, _operation: operation, id: id.clone(), master, is_answered: false }
    }

    /// Counts a request to a master as in flight.
    pub(super) fn begin_request(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> RequestInFlight {
        self.repeat_request(id, master).unwrap_or_else(|| RequestInFlight(self.in_flight(id, master)))
    }

    /// Counts one more request as in flight. Returns `None` if the acquisition has no record any more, because nothing
    /// would release what the request brings.
    pub(super) fn repeat_request(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> Option<RequestInFlight> {
        self.change(id, |acquisition, _| acquisition.per_master[master].in_doubt_requests.begin())?;
        Some(RequestInFlight(self.in_flight(id, master)))
    }

    /// Counts a request as in flight that brings a hold to a master which lacks it. Until the moment `until`, a
    /// majority keeps the hold. Returns the mode of the hold, and the token that the majority has. Returns `None` if
    /// the hold is over, or if an earlier request may still bring it.
    pub(super) fn begin_heal(
        self: &Arc<Self>,
        id: &AcquisitionId,
        master: usize,
        lease: Duration,
        until: Moment,
    ) -> Option<(RequestInFlight, Mode, FencingToken)> {
        let begin = |acquisition: &mut OutstandingAcquisition, now: Moment| {
            let is_over = acquisition.is_released || acquisition.is_forced || until <= now;
            let (token, requests) = (acquisition.token?, &mut acquisition.per_master[master].in_doubt_requests);
            if is_over || requests.may_arrive(now) {
                return None;
            }
            requests.begin();
            self.ask_for(acquisition, lease, now);
            Some((acquisition.mode, token))
        };
        let (mode, token) = self.change(id, begin)??;
        Some((RequestInFlight(self.in_flight(id, master)), mode, token))
    }

    /// Notes that a master lacks the hold, and the highest token that an operator has ended there.
    pub(super) fn note_lacking(&self, id: &AcquisitionId, master: usize, forced: Option<FencingToken>) {
        self.change(id, |acquisition, _| acquisition.is_forced |= acquisition.per_master[master].was_forced(forced));
    }

    /// Notes that a majority has granted the hold.
    pub(super) fn note_granted(&self, id: &AcquisitionId, token: FencingToken) {
        self.change(id, |acquisition, _| acquisition.token = Some(token));
    }

    /// Notes that a conversion, sent at `sent`, has replaced the hold at a master. If the answer is late, the hold may
    /// have come back since.
    pub(super) fn note_converted(&self, id: &AcquisitionId, master: usize, sent: Moment) {
        self.change(id, |acquisition, _| {
            let at = &mut acquisition.per_master[master];
            at.may_hold &= at.held_at.is_some_and(|held_at| sent < held_at);
        });
    }

    /// Releases a failed acquisition at each master that may have it, or that grants it later.
    pub(super) fn give_back(&self, id: &AcquisitionId) {
        self.change(id, |acquisition, _| {
            (acquisition.is_released, acquisition.is_release_answered) = (true, true);
            acquisition.token = None;
            for (master, at) in acquisition.per_master.iter_mut().enumerate() {
                if at.may_hold || !at.in_doubt_requests.is_none() {
                    at.leftover = Some(self.leftovers.add(&acquisition.key, master));
                }
                if at.may_hold || at.in_doubt_requests.arrives_until().is_some() {
                    acquisition.needs_release.push(master);
                }
            }
        });
    }

    /// Begins a release. Returns its state at each master, or `None` if the acquisition has no record.
    pub(super) fn begin_release(&self, id: &AcquisitionId) -> Option<Vec<ReleaseState>> {
        self.change(id, |acquisition, _| {
            acquisition.is_released = true;
            acquisition.per_master.iter().map(PerMaster::release_state).collect()
        })
    }

    /// Notes that no caller will ask for the result of the release again.
    pub(super) fn note_released(&self, id: &AcquisitionId) {
        self.change(id, |acquisition, _| acquisition.is_release_answered = true);
    }
}

/// Count of an operation at one master, for the background. The drop of this value ends the count.
#[derive(Debug)]
struct MasterOperation(Option<Arc<dyn ReleaseBackground>>);

impl Drop for MasterOperation {
    fn drop(&mut self) {
        self.0.iter().for_each(|background| background.end_at_master());
    }
}

/// Counts of a release that the background repeats.
#[derive(Debug)]
pub(super) struct PendingRelease {
    at_master: Arc<()>,
    _leftover: Option<Arc<Leftover>>,
    _operation: MasterOperation,
}

impl PendingAtMaster for PendingRelease {
    fn is_beyond_limit(&self) -> bool {
        // The master itself has one more reference.
        Arc::strong_count(&self.at_master) > MAX_PENDING_RELEASES + 1
    }
}

/// Request or release in flight to one master.
struct MasterInFlight {
    outstanding: Arc<Outstanding>,
    _operation: MasterOperation,
    id: AcquisitionId,
    master: usize,
    is_answered: bool,
}

/// Hold at a master, as an answer shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtMaster {
    /// The master has the hold, with this token if it could be read.
    Held(Option<FencingToken>),
    Missing,
}

impl AtMaster {
    pub(super) fn of_grant(granted: &Granted) -> Self {
        Self::Held(Some(granted.token))
    }
}

/// Request in flight to one master. If it is dropped without an answer, the master may execute the request until the
/// time limit of the request.
pub(super) struct RequestInFlight(MasterInFlight);

impl RequestInFlight {
    /// Notes the result of the request. `at_master` reads an answer that shows whether the master has the hold now.
    pub(super) fn resolve<T>(mut self, attempt: &Attempt<T>, at_master: impl FnOnce(&T) -> Option<AtMaster>) {
        let shown = match attempt {
            Ok(answer) => at_master(&answer.value),
            Err(Failure::Broken { .. } | Failure::Unreplicated { .. }) => Some(AtMaster::Held(None)),
            Err(Failure::Unknown { .. } | Failure::NotDone { .. } | Failure::Refused { .. }) => None,
        };
        self.note(shown, |requests| requests.resolve(attempt));
    }

    fn note(&mut self, shown: Option<AtMaster>, note: impl FnOnce(&mut InDoubt)) {
        let MasterInFlight { outstanding, id, master, is_answered, .. } = &mut self.0;
        *is_answered = true;
        outstanding.change(id, |acquisition, now| {
            let at = &mut acquisition.per_master[*master];
            if let Some(AtMaster::Held(token)) = shown {
                (at.held_at, at.token) = (Some(now), token.or(at.token));
            }
            note(&mut at.in_doubt_requests);
            let has = shown.map(|shown| matches!(shown, AtMaster::Held(_)));
            if at.on_request_result(has) && acquisition.is_released {
                acquisition.needs_release.push(*master);
            }
        });
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        if !self.0.is_answered {
            let until = self.0.outstanding.clock.now().after(self.0.outstanding.margins.max_delay);
            self.note(None, |requests| requests.abandon(until));
        }
    }
}

/// Release in flight to one master. If it is dropped without an answer, the background repeats it.
pub(super) struct ReleaseInFlight(MasterInFlight);

impl ReleaseInFlight {
    pub(super) fn new(outstanding: &Arc<Outstanding>, id: &AcquisitionId, master: usize) -> Self {
        outstanding.change(id, |acquisition, _| acquisition.per_master[master].releases_in_flight += 1);
        Self(outstanding.in_flight(id, master))
    }

    /// Notes the result of the release. Returns true if the hold was live until the release, and `None` if the result
    /// does not show that.
    pub(super) fn on_answer(mut self, attempt: &Attempt<ReleaseReply>) -> Option<bool> {
        match attempt {
            Ok(answer) => Some(self.on_reply(answer)),
            Err(failure) => {
                self.on_no_reply(Some(failure));
                None
            }
        }
    }

    fn on_reply(&mut self, answer: &Answered<ReleaseReply>) -> bool {
        let MasterInFlight { outstanding, id, master, is_answered, .. } = &mut self.0;
        *is_answered = true;
        let was_held = outstanding.change(id, |acquisition, _| {
            let (token, at) = (acquisition.token, &mut acquisition.per_master[*master]);
            at.end_release();
            let was_held = match answer.value {
                ReleaseReply::Held => true,
                ReleaseReply::Queued => false,
                // An earlier release without an answer may have ended the hold.
                ReleaseReply::None(absence) => {
                    at.is_release_in_doubt && token.is_some_and(|token| absence.has_known(token, token))
                }
            };
            if let ReleaseReply::None(absence) = answer.value {
                acquisition.is_forced |= at.was_forced(absence.forced);
            }
            at.is_ended = answer.value == ReleaseReply::Held && !at.may_hold && at.in_doubt_requests.in_flight() == 1;
            let is_overtaken = std::mem::take(&mut at.is_granted_late) && answer.value != ReleaseReply::Held;
            (at.release_answer, at.may_hold) = (Some(was_held), false);
            if is_overtaken || at.in_doubt_requests.arrives_until() > Some(answer.sent) {
                acquisition.needs_release.push(*master);
            }
            was_held
        });
        was_held.unwrap_or(answer.value == ReleaseReply::Held)
    }

    /// Notes that the master has not answered. Without a failure, the master may have executed the release.
    fn on_no_reply(&mut self, failure: Option<&Failure>) {
        let MasterInFlight { outstanding, id, master, is_answered, .. } = &mut self.0;
        *is_answered = true;
        outstanding.change(id, |acquisition, _| {
            let at = &mut acquisition.per_master[*master];
            at.end_release();
            at.is_release_in_doubt |= !matches!(failure, Some(Failure::NotDone { .. }));
            // A pending release may reach the master before a later grant.
            let (is_pending, is_late) =
                (std::mem::replace(&mut at.has_pending_release, true), std::mem::take(&mut at.is_granted_late));
            if !is_pending || is_late {
                acquisition.needs_release.push(*master);
            }
        });
    }
}

impl Drop for ReleaseInFlight {
    fn drop(&mut self) {
        if !self.0.is_answered {
            self.on_no_reply(None);
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/outstanding/tests.rs"]
mod tests;
