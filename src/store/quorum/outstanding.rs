//! What the masters may have of each acquisition: holds, and copies of requests that may yet be carried out.
//!
//! A majority decides, and the others answer later or never. What they may have by then is known here until it was given
//! back: an id that came to nothing or was released is *left*, and whatever a master grants under it after that is given back
//! as well, by id, as often as it takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::leftovers::{Leftover, Leftovers};
use super::master::{Master, PendingRelease};
use crate::base::attempt::{AcquisitionId, Attempt, Failure};
use crate::base::clock::Clock;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{self, FencingToken, Moment};
use crate::base::mode::Mode;
use crate::store::{Absence, MasterScheme, ReleaseReply};

/// Fewer are not worth a look for those that nobody has told us the end of.
const MIN_SWEEP: usize = 256;

#[derive(Debug)]
pub(super) struct Outstanding {
    masters: Vec<Arc<Master>>,
    clock: Clock,
    max_clock_skew: Duration,
    max_delay: Duration,
    leftovers: Arc<Leftovers>,
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
    /// A majority has granted it.
    token: Option<FencingToken>,
    /// Up to which token an operator has ended what a master had, if this was among it.
    forced: Option<FencingToken>,
    /// It is to be given back, or was.
    is_released: bool,
    /// Nobody will ask what came of giving it back.
    is_release_answered: bool,
    /// How long a master keeps a hold that it grants now.
    held_for: Duration,
    /// By then no master has it, unless it was asked for again.
    until: Moment,
}

/// What one master may have.
#[derive(Clone, Debug, Default)]
struct PerMaster {
    in_doubt_requests: InDoubt,
    may_hold: bool,
    /// When its last answer came that said so.
    held_at: Option<Moment>,
    /// So many releases are on their way.
    releases_in_flight: u32,
    /// It has granted it while a release was on its way, which may have come before that.
    is_granted_late: bool,
    /// A release has ended what the only copy had brought that is on its way still.
    is_ended: bool,
    /// What it answered to the release: whether it had been ours to the end.
    release_answer: Option<bool>,
    /// It was told of the release and did not answer.
    is_release_in_doubt: bool,
    /// It is told again and again until it does.
    has_pending_release: bool,
    /// Counts until the master has nothing of this failed acquisition, and no copy of its request can arrive.
    leftover: Option<Leftover>,
}

/// What a release finds at one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReleaseState {
    /// It has nothing to give back.
    Nothing,
    /// It has answered before.
    Released { was_held: bool },
    /// It is to be told.
    MayHold,
}

impl OutstandingAcquisition {
    fn pending_release(
        &self,
        id: &AcquisitionId,
        master: usize,
        arrives_until: Option<Moment>,
        now: Moment,
    ) -> PendingRelease {
        let leftover = self.per_master[master].leftover.clone();
        let until = arrives_until.unwrap_or(now).max(now).after(self.held_for).max(self.until);
        PendingRelease { key: Arc::clone(&self.key), id: id.clone(), arrives_until, until, _leftover: leftover }
    }

    fn is_over(&self) -> bool {
        let is_awaited =
            self.per_master.iter().any(|at| at.releases_in_flight > 0 || at.in_doubt_requests.in_flight() > 0);
        self.is_released && self.is_release_answered && !is_awaited
    }
}

impl Outstanding {
    pub(super) fn new(
        masters: Vec<Arc<Master>>,
        clock: Clock,
        max_clock_skew: Duration,
        max_delay: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { masters, clock, max_clock_skew, max_delay, leftovers: Arc::default(), table: Mutex::default() })
    }

    /// The token of a hold that a majority has granted.
    pub(super) fn token_of(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.table.lock().by_id.get(id)?.token
    }

    /// Masters are asked for it from now on, or asked to keep it for longer.
    pub(super) fn begin(&self, id: &AcquisitionId, mode: Mode, key: &Arc<Key>, lease: Duration) {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
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
            forced: None,
            is_released: false,
            is_release_answered: false,
            held_for: covers,
            until: now,
        });
        acquisition.extend(covers, now.after(self.max_delay));
    }

    /// The same for a hold that is there.
    pub(super) fn extend(&self, id: &AcquisitionId, lease: Duration) {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
        if let Some(acquisition) = self.table.lock().by_id.get_mut(id) {
            acquisition.extend(covers, now.after(self.max_delay));
        }
    }

    /// A copy is on its way to a master from now on.
    pub(super) fn begin_request(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> RequestInFlight {
        self.count_request(id, master);
        RequestInFlight { outstanding: Arc::clone(self), id: id.clone(), master, is_resolved: false }
    }

    /// The same for one more. `None` if all was given back meanwhile, of which nothing is known any more: what it would bring
    /// would be given back by nobody.
    pub(super) fn repeat_request(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> Option<RequestInFlight> {
        let copy = || RequestInFlight { outstanding: Arc::clone(self), id: id.clone(), master, is_resolved: false };
        self.count_request(id, master).then(copy)
    }

    /// Whether anything is known of it.
    fn count_request(&self, id: &AcquisitionId, master: usize) -> bool {
        let mut table = self.table.lock();
        let acquisition = table.by_id.get_mut(id);
        acquisition.is_some_and(|acquisition| {
            acquisition.per_master[master].in_doubt_requests.begin();
            true
        })
    }

    /// A copy is on its way, from now on, to a master that does not have what a majority keeps until then. What is to be had, and
    /// the token that the majority has. `None` if that is over, released or ended by force, or an earlier copy may yet bring it.
    pub(super) fn begin_heal(
        self: &Arc<Self>,
        id: &AcquisitionId,
        master: usize,
        lease: Duration,
        until: Moment,
    ) -> Option<(RequestInFlight, Mode, FencingToken)> {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
        let mut table = self.table.lock();
        let acquisition = table.by_id.get_mut(id).filter(|acquisition| acquisition.is_wanted() && until > now)?;
        let (mode, token, copies) =
            (acquisition.mode, acquisition.token?, &mut acquisition.per_master[master].in_doubt_requests);
        if copies.in_flight() > 0 || copies.arrives_until().is_some_and(|until| until > now) {
            return None;
        }
        copies.begin();
        acquisition.extend(covers, now.after(self.max_delay));
        drop(table);
        Some((
            RequestInFlight { outstanding: Arc::clone(self), id: id.clone(), master, is_resolved: false },
            mode,
            token,
        ))
    }

    /// A master does not have it, and tells up to which token it was told to end what it had. What was ended by force at any
    /// master is over.
    pub(super) fn note_lacking(&self, id: &AcquisitionId, forced: Option<FencingToken>) {
        if let Some(acquisition) = self.table.lock().by_id.get_mut(id)
            && acquisition.token.is_some_and(|token| Some(token) <= forced)
        {
            acquisition.forced = acquisition.forced.max(forced);
        }
    }

    /// Up to which token an operator has ended what there was, if this was among it.
    pub(super) fn forced_token(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.table.lock().by_id.get(id)?.forced
    }

    /// Returns true if a master may have, or may still grant, an earlier failed acquisition of the lock.
    pub(super) fn has_leftover(&self, key: &Key, master: usize) -> bool {
        self.leftovers.contains(key, master)
    }

    pub(super) fn master(&self, place: usize) -> &dyn MasterScheme {
        &*self.masters[place].scheme
    }

    /// A majority has granted it.
    pub(super) fn note_granted(&self, id: &AcquisitionId, token: FencingToken) {
        if let Some(acquisition) = self.table.lock().by_id.get_mut(id) {
            acquisition.token = Some(token);
        }
    }

    /// It came to nothing: whoever has granted it is told, and whoever grants it yet will be.
    pub(super) fn give_back(&self, id: &AcquisitionId) {
        let now = self.clock.now();
        let mut owed = Vec::new();
        let mut table = self.table.lock();
        let Some(acquisition) = table.by_id.get_mut(id) else {
            return;
        };
        (acquisition.is_released, acquisition.is_release_answered) = (true, true);
        acquisition.token = None;
        for master in 0..acquisition.per_master.len() {
            let at = &mut acquisition.per_master[master];
            let (arrives_until, may_hold) = (at.in_doubt_requests.arrives_until(), at.may_hold);
            if may_hold || !at.in_doubt_requests.is_none() {
                at.leftover = Some(self.leftovers.add(&acquisition.key, master));
            }
            if may_hold || arrives_until.is_some() {
                owed.push((master, acquisition.pending_release(id, master, arrives_until, now)));
            }
            acquisition.per_master[master].end_leftover();
        }
        Self::tidy(&mut table, id);
        drop(table);
        owed.into_iter().for_each(|(master, release)| self.masters[master].add_pending_release(release));
    }

    fn tidy(table: &mut OutstandingTable, id: &AcquisitionId) {
        if table.by_id.get(id).is_some_and(OutstandingAcquisition::is_over) {
            table.by_id.remove(id);
        }
    }

    /// Something has become of a copy. `has` says whether the master has a hold by it, if that is known.
    fn resolve(&self, id: &AcquisitionId, master: usize, has: Option<bool>, settles: impl FnOnce(&mut InDoubt)) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let Some(acquisition) = table.by_id.get_mut(id) else {
            return;
        };
        let at = &mut acquisition.per_master[master];
        at.held_at = if has == Some(true) { Some(now) } else { at.held_at };
        settles(&mut at.in_doubt_requests);
        let arrives_until = at.in_doubt_requests.arrives_until();
        let owes = at.on_request_result(has) && acquisition.is_released;
        let release = owes.then(|| acquisition.pending_release(id, master, arrives_until, now));
        acquisition.per_master[master].end_leftover();
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(release) = release {
            self.masters[master].add_pending_release(release);
        }
    }

    /// A conversion that was sent then has taken the hold away from a master, and put another in its place. It may have come back
    /// since, if the answer is late.
    pub(super) fn note_converted(&self, id: &AcquisitionId, master: usize, sent: Moment) {
        if let Some(acquisition) = self.table.lock().by_id.get_mut(id) {
            let at = &mut acquisition.per_master[master];
            at.may_hold &= at.held_at.is_some_and(|held_at| sent < held_at);
        }
    }

    /// It is released: what is to be done at each master. `None` if nothing is known of it.
    pub(super) fn begin_release(&self, id: &AcquisitionId) -> Option<Vec<ReleaseState>> {
        let mut table = self.table.lock();
        let acquisition = table.by_id.get_mut(id)?;
        acquisition.is_released = true;
        let standing = |at: &PerMaster| match at.release_answer {
            Some(was_held) => ReleaseState::Released { was_held },
            None if at.may_hold || !at.in_doubt_requests.is_none() => ReleaseState::MayHold,
            None => ReleaseState::Nothing,
        };
        Some(acquisition.per_master.iter().map(standing).collect())
    }

    /// A master has said what it had of it: whether that was ours to the end.
    fn on_released(&self, id: &AcquisitionId, master: usize, sent: Moment, reply: &ReleaseReply) -> bool {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let Some(acquisition) = table.by_id.get_mut(id) else {
            return *reply == ReleaseReply::Held;
        };
        let (token, at) = (acquisition.token, &mut acquisition.per_master[master]);
        at.end_release();
        let was_held = match reply {
            ReleaseReply::Held => true,
            ReleaseReply::Queued => false,
            // An earlier copy that was not answered may have done it.
            ReleaseReply::None(absence) => {
                at.is_release_in_doubt && token.is_some_and(|token| has_known(absence, token))
            }
        };
        at.is_ended = *reply == ReleaseReply::Held && !at.may_hold && at.in_doubt_requests.in_flight() == 1;
        let overtaken = std::mem::take(&mut at.is_granted_late) && *reply != ReleaseReply::Held;
        (at.release_answer, at.may_hold) = (Some(was_held), false);
        let arrives_until = at.in_doubt_requests.arrives_until().filter(|until| *until > sent);
        let release =
            (overtaken || arrives_until.is_some()).then(|| acquisition.pending_release(id, master, arrives_until, now));
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(release) = release {
            self.masters[master].add_pending_release(release);
        }
        was_held
    }

    /// A master has not answered to the release: it is told until it does.
    fn on_release_unanswered(&self, id: &AcquisitionId, master: usize, was_sent: ReleaseSent) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let Some(acquisition) = table.by_id.get_mut(id) else {
            return;
        };
        let at = &mut acquisition.per_master[master];
        at.end_release();
        at.is_release_in_doubt |= was_sent == ReleaseSent::Perhaps;
        let (is_owed, arrives_until) =
            (std::mem::replace(&mut at.has_pending_release, true), at.in_doubt_requests.arrives_until());
        let is_late = std::mem::take(&mut at.is_granted_late);
        let release = (!is_owed || is_late).then(|| acquisition.pending_release(id, master, arrives_until, now));
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(release) = release {
            self.masters[master].add_pending_release(release);
        }
    }

    /// What came of giving it back is known, as far as anybody wants to know.
    pub(super) fn note_released(&self, id: &AcquisitionId) {
        let mut table = self.table.lock();
        if let Some(acquisition) = table.by_id.get_mut(id) {
            acquisition.is_release_answered = true;
        }
        Self::tidy(&mut table, id);
    }
}

fn has_known(absence: &Absence, token: FencingToken) -> bool {
    absence.has_known(token, token)
}

impl PerMaster {
    /// Ends the count of a failed acquisition, unless a copy of its request can still arrive. A pending release counts
    /// for itself.
    fn end_leftover(&mut self) {
        if self.in_doubt_requests.is_none() {
            self.leftover = None;
        }
    }

    /// Whoever began when nothing was known of it has not been counted.
    fn end_release(&mut self) {
        self.releases_in_flight = self.releases_in_flight.saturating_sub(1);
    }

    /// What a copy has brought, if that is known; whether it is to be given back if nobody wants it any more. A release that is
    /// on its way most likely comes behind a copy that was sent before it: its answer tells.
    fn on_request_result(&mut self, has: Option<bool>) -> bool {
        // Without an answer it may have been carried out once more.
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
}

impl OutstandingAcquisition {
    fn is_wanted(&self) -> bool {
        !self.is_released && self.forced.is_none()
    }

    fn extend(&mut self, covers: Duration, from: Moment) {
        self.held_for = self.held_for.max(covers);
        self.until = self.until.max(from.after(covers));
    }
}

/// A copy of a request on its way to one master. Dropped before it was answered, it may arrive at any time until its limit.
#[derive(Debug)]
pub(super) struct RequestInFlight {
    outstanding: Arc<Outstanding>,
    id: AcquisitionId,
    master: usize,
    is_resolved: bool,
}

impl RequestInFlight {
    /// What became of it; `has` says of an answer whether the master has a hold now, if it says that.
    pub(super) fn resolve<T>(mut self, attempt: &Attempt<T>, has: impl FnOnce(&T) -> Option<bool>) {
        self.is_resolved = true;
        let has = match attempt {
            Ok(answer) => has(&answer.value),
            Err(Failure::Broken { .. } | Failure::Unreplicated { .. }) => Some(true),
            Err(Failure::Unknown { .. } | Failure::NotDone { .. } | Failure::Refused { .. }) => None,
        };
        self.outstanding.resolve(&self.id, self.master, has, |copies| copies.resolve(attempt));
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        if !self.is_resolved {
            let until = self.outstanding.clock.now().after(self.outstanding.max_delay);
            self.outstanding.resolve(&self.id, self.master, None, |copies| copies.abandon(until));
        }
    }
}

/// Whether a release may have reached its master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReleaseSent {
    No,
    Perhaps,
}

/// A release on its way to one master. Dropped before it was answered, the master is told again.
#[derive(Debug)]
pub(super) struct ReleaseInFlight {
    outstanding: Arc<Outstanding>,
    id: AcquisitionId,
    master: usize,
    is_answered: bool,
}

impl ReleaseInFlight {
    pub(super) fn new(traces: &Arc<Outstanding>, id: &AcquisitionId, master: usize) -> Self {
        if let Some(acquisition) = traces.table.lock().by_id.get_mut(id) {
            acquisition.per_master[master].releases_in_flight += 1;
        }
        Self { outstanding: Arc::clone(traces), id: id.clone(), master, is_answered: false }
    }

    /// Whether the hold was ours to the end, if the master says.
    pub(super) fn on_answer(mut self, attempt: &Attempt<ReleaseReply>) -> Option<bool> {
        self.is_answered = true;
        match attempt {
            Ok(answer) => Some(self.outstanding.on_released(&self.id, self.master, answer.sent, &answer.value)),
            Err(failure) => {
                let not_sent = matches!(failure, Failure::NotDone { .. });
                self.outstanding.on_release_unanswered(
                    &self.id,
                    self.master,
                    if not_sent { ReleaseSent::No } else { ReleaseSent::Perhaps },
                );
                None
            }
        }
    }
}

impl ReleaseInFlight {
    /// It is no use to ask this master now.
    pub(super) fn cancel(mut self) {
        self.is_answered = true;
        self.outstanding.on_release_unanswered(&self.id, self.master, ReleaseSent::No);
    }
}

impl Drop for ReleaseInFlight {
    fn drop(&mut self) {
        if !self.is_answered {
            self.outstanding.on_release_unanswered(&self.id, self.master, ReleaseSent::Perhaps);
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/outstanding/tests.rs"]
mod tests;
