//! Side of a lock within this process: its waiters, its request to the server, and the *requester*, which is the task that
//! sends the copies of this request.
//!
//! The request belongs to the side and to no waiter. The first waiter is served first, whichever copy is granted. The task of
//! the first waiter is the requester. If it ends, or is not polled in time, the next waiter is asked to go on, and keeps the
//! place in the server's queue. A waiter whose task is not polled in time gives up its place, and waits again when its task
//! is polled.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Answered, Attempt, Failure, Granted};
use crate::base::denied::NamedHolder;
use crate::base::error::Source;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{Moment, ServerTime};
use crate::base::mode::Mode;
use crate::lock::effects::Event;
use crate::lock::local_waits::LocalWait;
use crate::lock::shares::ShareRequest;
use crate::lock::waiters::Waiters;

/// Number of a waiter in its cell. Later waiters have higher numbers. Requesters have such numbers, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WaiterId(pub(super) u64);

#[cfg(all(test, feature = "_testing"))]
impl WaiterId {
    pub(crate) const fn of(number: u64) -> Self {
        Self(number)
    }
}

/// Request of an acquisition, from its first copy on.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Pending {
    pub(crate) id: AcquisitionId,
    pub(crate) copies: InDoubt,
    /// True if an answered copy has left a hold or a waiter on the server, or may have.
    pub(crate) is_recorded: bool,
    /// True if `close` waits for the request, because a copy is in doubt, or has left a record on the server.
    pub(crate) is_counted: bool,
}

impl Pending {
    pub(crate) fn new(id: AcquisitionId) -> Self {
        Self { id, copies: InDoubt::default(), is_recorded: false, is_counted: false }
    }

    /// Notes the outcome of a copy, and whether it has left a record on the server.
    pub(crate) fn note_attempt(&mut self, attempt: &Attempt<Acquired>) {
        match attempt {
            // The server has not looked at the request. An earlier copy may have left a hold or a waiter.
            Ok(Answered { value: Acquired::Late, .. }) => self.copies.on_late(),
            _ => self.copies.resolve(attempt),
        }
        match attempt {
            Ok(answer) => match answer.value {
                Acquired::Granted(_) | Acquired::Queued { .. } => self.is_recorded = true,
                Acquired::Contended { .. } | Acquired::Cached { .. } => self.is_recorded = false,
                Acquired::Late => {}
            },
            // An error names no request, so it may be the answer to another one.
            Err(Failure::Broken { .. } | Failure::Refused { .. } | Failure::Unreplicated { .. }) => {
                self.is_recorded = true;
            }
            Err(Failure::Unknown { .. } | Failure::NotDone { .. }) => {}
        }
    }

    /// Returns true if the server has no record of the request, and no copy is in doubt.
    pub(crate) fn is_unknown_to_server(&self) -> bool {
        self.copies.is_none() && !self.is_recorded
    }
}

/// Next step of a requester after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    Take(Granted),
    /// Waits in the server's queue for a notification, and asks again as a heartbeat.
    AwaitTurn {
        retry_in: Duration,
    },
    /// Asks again after a pause, because the server has no queue for the request.
    Pause {
        retry_in: Duration,
    },
    /// Asks again soon, because the server has not looked at the request.
    AskSoon,
}

impl NextStep {
    /// Returns the step after this answer.
    pub(crate) fn after(acquired: &Acquired) -> Self {
        match acquired {
            Acquired::Granted(granted) => Self::Take(*granted),
            Acquired::Contended { retry_in, .. } | Acquired::Cached { retry_in, .. } => {
                Self::Pause { retry_in: *retry_in }
            }
            Acquired::Queued { retry_in, .. } => Self::AwaitTurn { retry_in: *retry_in },
            Acquired::Late => Self::AskSoon,
        }
    }
}

/// Time in which the server has not answered for one side of a lock.
#[derive(Clone, Debug)]
pub(crate) struct SideOutage {
    pub(crate) since: Moment,
    /// Node and cause of the newest failure, for the errors of the waiters.
    pub(crate) source: Option<Source>,
    /// True after the second failure. The last answer before the first one may be old for another reason than silence,
    /// such as a machine that was suspended.
    pub(crate) is_repeated: bool,
}

/// The cause makes no difference for what happens next.
impl Hash for SideOutage {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { since, source: _, is_repeated } = self;
        (since, is_repeated).hash(state);
    }
}

impl SideOutage {
    /// Creates the value for the first failure.
    pub(crate) fn new(since: Moment, source: Option<Source>) -> Self {
        Self { since, source, is_repeated: false }
    }

    /// Returns what a waiter has to learn of the outage.
    pub(crate) fn stage(&self) -> OutageStage {
        OutageStage { since: self.since, is_repeated: self.is_repeated }
    }

    /// Begins with the earlier one, or later if the node has answered other requests since, and has the newer cause.
    fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) => {
                Self { since: earlier.since.max(self.since), source: self.source.or(earlier.source), is_repeated: true }
            }
            None => self,
        }
    }
}

/// Begin of an outage, and whether it was confirmed by a second failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutageStage {
    pub(crate) since: Moment,
    pub(crate) is_repeated: bool,
}

/// Last refusal of the server for one side of a lock.
#[derive(Clone, Debug)]
pub(crate) struct LastRefusal {
    pub(crate) at: Moment,
    pub(crate) server: ServerTime,
    /// Holder that the refusal names.
    pub(crate) holder: Option<Arc<NamedHolder>>,
    /// True if the lock is recallable, so that perhaps no guard uses the hold.
    pub(crate) is_cached: bool,
}

/// A refusal is only told. It makes no difference for what happens next.
impl Hash for LastRefusal {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Side {
    waiters: Waiters,
    /// Waiters without a grant, which have not looked yet. The first one that leaves a side without waiters withdraws the
    /// request.
    pub(super) ended: BTreeMap<WaiterId, NoGrant>,
    requester: Option<SideRequester>,
    /// Request of the side, from its first copy on.
    pub(super) pending: Option<Pending>,
    /// Present while the server does not answer the requester.
    pub(super) outage: Option<SideOutage>,
    /// Present from the first refusal on.
    pub(super) refusal: Option<LastRefusal>,
    /// End of the time that recalled processes have to release their cached holds.
    pub(super) recall_until: Option<Moment>,
    /// Moment until which the server may have a hold or a place of an earlier request of the side, which the background
    /// withdraws.
    pub(super) earlier_until: Option<Moment>,
    /// True if the server has answered the waiters of the side since the last grant, or has not answered in time.
    is_answered: bool,
    /// True if waiters wait for the answer to a copy that is under way.
    is_answer_awaited: bool,
}

/// Reason why a waiter ends without a grant.
#[derive(Clone, Debug)]
pub(super) enum NoGrant {
    /// The server has refused a try.
    Denied,
    /// A request for this waiter has failed.
    Failed(Failure),
}

/// The cause of a failure makes no difference for what happens next.
impl Hash for NoGrant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        matches!(self, Self::Denied).hash(state);
    }
}

impl NoGrant {
    /// Returns true if a further copy would have the same result, so that it ends all waiters and not only the tries.
    fn is_final(&self) -> bool {
        match self {
            Self::Denied | Self::Failed(Failure::Unknown { .. } | Failure::NotDone { .. }) => false,
            Self::Failed(Failure::Refused { .. } | Failure::Broken { .. } | Failure::Unreplicated { .. }) => true,
        }
    }
}

/// First acquisition of a side.
#[derive(Clone, Copy, Debug)]
pub(super) enum First {
    Nobody,
    /// A waiter, with the share that it wants.
    Waits(ShareRequest),
    /// The side has a request at the server, which came before.
    Asks,
}

/// Start of a wait. Only reports use it, so it makes no difference for what happens next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitStart(Moment);

impl Hash for WaitStart {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Waiter {
    pub(super) wants: ShareRequest,
    pub(super) patience: Patience,
    pub(super) since: WaitStart,
}

impl Waiter {
    pub(super) fn new(wants: ShareRequest, patience: Patience, now: Moment) -> Self {
        Self { wants, patience, since: WaitStart(now) }
    }
}

/// Treatment of a lock that others hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Patience {
    Wait,
    /// The first answer ends it.
    AskOnce,
}

/// Task that sends the copies of a side's request.
#[derive(Clone, Debug)]
pub(super) struct SideRequester {
    pub(super) requester_id: WaiterId,
    /// Waiter whose task it is.
    pub(super) carrier: WaiterId,
    /// False until this task knows that it is the requester.
    has_begun: bool,
    /// A requester that has not been polled by then is woken. If it is not polled then either, it is stalled.
    pub(super) poll_deadline: Moment,
    /// True if it was woken, and has not been polled since.
    pub(super) was_woken: bool,
    /// Last waiter that was here when it sent its newest copy.
    pub(super) newest: WaiterId,
    /// True if it asks without a pause, because a try has come.
    pub(super) asks_at_once: bool,
}

/// The number of a requester makes no difference for what happens next.
impl Hash for SideRequester {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { requester_id: _, carrier, has_begun, poll_deadline, was_woken, newest, asks_at_once } = self;
        (carrier, has_begun, poll_deadline, was_woken, newest, asks_at_once).hash(state);
    }
}

/// Answer for which a waiter at its limit waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaits {
    Nothing,
    /// The first answer to the side.
    FirstAnswer,
    /// The answer to a copy that is under way.
    Answer,
}

/// Event for which a requester looks between two copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequesterSignal {
    /// No waiter is left, or another task is the requester.
    Stop,
    AskAtOnce,
}

impl Side {
    /// Returns true if nothing of the side is left here.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.ended.is_empty() && self.requester.is_none() && self.pending.is_none()
    }

    /// Returns the number of waiters.
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn local_waits(&self, mode: Mode) -> impl Iterator<Item = LocalWait> {
        self.waiters.iter().map(move |(waiter_id, waiter)| LocalWait {
            number: waiter_id.0,
            mode,
            owner: waiter.wants.owner,
            since: waiter.since.0,
        })
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Returns true if the server has answered since the last grant, or has not answered in time.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns true if this waiter has its place.
    pub(super) fn is_waiting(&self, waiter_id: WaiterId) -> bool {
        self.waiters.has(waiter_id)
    }

    /// Returns the waiter that is served first.
    pub(super) fn first_waiter(&self) -> Option<(WaiterId, &Waiter)> {
        self.waiters.iter().next()
    }

    /// Returns true if one of the waiters is no try.
    pub(super) fn has_patient_waiter(&self) -> bool {
        self.waiters.iter().any(|(_, waiter)| waiter.patience == Patience::Wait)
    }

    /// Returns the acquisition that came first.
    pub(super) fn first(&self) -> First {
        match self.first_waiter() {
            _ if self.requester.is_some() || self.pending.is_some() => First::Asks,
            Some((_, waiter)) => First::Waits(waiter.wants),
            None => First::Nobody,
        }
    }

    pub(super) fn wait(&mut self, waiter_id: WaiterId, waiter: Waiter) {
        self.waiters.insert(waiter_id, waiter);
    }

    pub(super) fn stop_waiting(&mut self, waiter_id: WaiterId) {
        self.waiters.remove(waiter_id);
    }

    /// Removes the waiter that is served first.
    pub(super) fn pop_first(&mut self) -> Option<(WaiterId, Waiter)> {
        let (first, _) = self.first_waiter()?;
        self.waiters.remove(first)
    }

    /// Removes the waiters for which `keeps` returns false. The caller wakes them.
    pub(super) fn retain_waiters(&mut self, keeps: impl FnMut(WaiterId, &Waiter) -> bool) {
        self.waiters.retain(keeps);
    }

    /// Ends the waiters that were here when the requester sent its newest copy. A refusal that another copy may not have ends
    /// only the tries.
    pub(super) fn end_waiters(&mut self, requester_id: WaiterId, why: &NoGrant, event: &mut Event<'_>) {
        let Some(newest) = self.requester_of(requester_id).map(|requester| requester.newest) else {
            return;
        };
        let ends = |waiter: &Waiter| why.is_final() || waiter.patience == Patience::AskOnce;
        let ended = &mut self.ended;
        self.waiters.retain(|waiter_id, waiter| {
            let stays = waiter_id > newest || !ends(waiter);
            if !stays {
                ended.insert(waiter_id, why.clone());
                event.wake(waiter_id);
            }
            stays
        });
        if !self.has_waiters() {
            self.remove_requester(event);
        }
    }

    /// Returns the requester.
    pub(super) fn requester(&self) -> Option<&SideRequester> {
        self.requester.as_ref()
    }

    /// Returns the requester, if it has this number.
    pub(super) fn requester_of(&mut self, requester_id: WaiterId) -> Option<&mut SideRequester> {
        self.requester.as_mut().filter(|requester| requester.requester_id == requester_id)
    }

    /// Makes the task of a waiter the requester.
    fn begin_requests(&mut self, requester_id: WaiterId, carrier: WaiterId, event: &Event<'_>) -> &mut SideRequester {
        let (poll_deadline, newest) = (event.now.after(event.poll_within), WaiterId(0));
        let (has_begun, was_woken, asks_at_once) = (false, false, false);
        self.requester.insert(SideRequester {
            requester_id,
            carrier,
            has_begun,
            poll_deadline,
            was_woken,
            newest,
            asks_at_once,
        })
    }

    /// Makes the task that adds this waiter the requester.
    pub(super) fn begin_here(&mut self, requester_id: WaiterId, carrier: WaiterId, event: &Event<'_>) {
        self.begin_requests(requester_id, carrier, event).has_begun = true;
    }

    /// Makes the task of the first waiter the requester, and wakes it.
    pub(super) fn ask_first_waiter(&mut self, requester_id: WaiterId, event: &mut Event<'_>) {
        let Some((carrier, _)) = self.first_waiter() else { return };
        let poll_deadline = event.now.after(self.woken_is_polled_within(event));
        let requester = self.begin_requests(requester_id, carrier, event);
        (requester.poll_deadline, requester.was_woken) = (poll_deadline, true);
        event.wake(carrier);
    }

    /// Returns the time in which a task that is woken is polled, or is stalled. A try does not wait long.
    fn woken_is_polled_within(&self, event: &Event<'_>) -> Duration {
        let has_try = self.waiters.iter().any(|(_, waiter)| waiter.patience == Patience::AskOnce);
        if has_try { event.try_within } else { event.poll_within / 2 }
    }

    /// Returns the requester that the task of this waiter is to be from now on. Later calls return `None`.
    pub(super) fn take_requester(&mut self, waiter_id: WaiterId) -> Option<WaiterId> {
        let requester = self.requester.as_mut().filter(|requester| requester.carrier == waiter_id)?;
        (!std::mem::replace(&mut requester.has_begun, true)).then_some(requester.requester_id)
    }

    /// Ends a requester whose waiter waits no longer, if other waiters need one. A requester that no waiter needs ends itself,
    /// and withdraws the request.
    pub(super) fn end_without_carrier(&mut self, event: &mut Event<'_>) {
        let carrier = self.requester.as_ref().map(|requester| requester.carrier);
        if self.has_waiters() && carrier.is_some_and(|carrier| !self.is_waiting(carrier)) {
            self.remove_requester(event);
        }
    }

    /// Records that this requester asks now, for all waiters that are here. Returns false if it is not the requester any more.
    pub(super) fn note_asks(&mut self, requester_id: WaiterId) -> bool {
        let newest = self.waiters.last_id().unwrap_or(WaiterId(0));
        let Some(requester) = self.requester_of(requester_id) else { return false };
        (requester.newest, requester.asks_at_once) = (newest, false);
        true
    }

    /// Removes the requester. Its copies under way are in doubt, and it stops when it is polled.
    pub(super) fn remove_requester(&mut self, event: &mut Event<'_>) {
        if let Some(requester) = self.requester.take() {
            let arrives_until = event.now.after(event.max_delay);
            self.pending.iter_mut().for_each(|pending| pending.copies.abandon_all(arrives_until));
            event.wake(requester.requester_id);
            self.wake_at_answer(event);
        }
    }

    /// Removes the requester and its request, because the first waiter has a share.
    pub(super) fn on_seated(&mut self, event: &mut Event<'_>) -> Option<Pending> {
        // It has brought the grant itself, or was woken before.
        self.requester = None;
        (self.outage, self.is_answered) = (None, false);
        self.wake_at_answer(event);
        self.pending.take()
    }

    /// Wakes the requester if no waiter needs it any more.
    pub(super) fn stop_without_waiters(&mut self, event: &mut Event<'_>) {
        if let Some(requester) = self.requester.as_ref().filter(|_| !self.has_waiters()) {
            event.wake(requester.requester_id);
        }
    }

    /// Lets the requester ask without a pause, for a try. If its task is not polled, another one takes its place soon.
    pub(super) fn ask_at_once(&mut self, event: &mut Event<'_>) {
        let soon = event.now.after(self.woken_is_polled_within(event));
        if let Some(requester) = &mut self.requester {
            requester.asks_at_once = true;
            event.wake(requester.requester_id);
            let was_woken = std::mem::replace(&mut requester.was_woken, true);
            requester.poll_deadline = if was_woken { requester.poll_deadline.min(soon) } else { soon };
        }
    }

    /// Wakes the requester if it was not polled in time, and ends it if it was woken before. Its waiter then gives up its
    /// place.
    pub(super) fn end_if_stalled(&mut self, event: &mut Event<'_>) {
        if self.looks_at().is_none_or(|at| at > event.now) {
            return;
        }
        let Some(requester) = self.requester.as_mut() else { return };
        if !std::mem::replace(&mut requester.was_woken, true) {
            requester.poll_deadline = event.now.after(event.poll_within);
            event.wake(requester.requester_id);
            return;
        }
        let carrier = requester.carrier;
        self.waiters.remove(carrier);
        self.remove_requester(event);
    }

    /// Returns the moment at which a look finds out whether the requester is polled. `None` if no waiter depends on it, except
    /// the one whose task it is.
    pub(super) fn looks_at(&self) -> Option<Moment> {
        let requester = self.requester.as_ref()?;
        let depends = |(waiter_id, _)| requester.carrier != waiter_id;
        self.waiters.iter().any(depends).then_some(requester.poll_deadline)
    }

    /// Records that the server does not answer, or answers again. `is_of_requester` tells whether the requester has seen that.
    pub(super) fn on_outage(&mut self, outage: Option<SideOutage>, is_of_requester: bool, event: &mut Event<'_>) {
        let earlier = self.outage.take();
        let known = earlier.as_ref().map(|outage| outage.is_repeated);
        self.outage = outage.map(|outage| outage.after(earlier));
        // A waiter finds a later begin by itself, when its time is over.
        let is_news = self.outage.as_ref().is_some_and(|outage| Some(outage.is_repeated) != known);
        if is_news && self.has_waiters() {
            event.wake_all();
        }
        if is_of_requester {
            self.is_answered = true;
            self.wake_at_answer(event);
        }
    }

    /// Records until when recalled processes may release their cached holds. Comes before the event that tells the waiters of
    /// the first answer.
    pub(super) fn note_recall(&mut self, until: Moment) {
        self.recall_until = self.recall_until.max(Some(until));
    }

    /// Records that a guard uses a hold that the last refusal has taken for one that may only be cached.
    pub(super) fn note_in_use(&mut self) {
        if let Some(refusal) = &mut self.refusal {
            refusal.is_cached = false;
        }
    }

    pub(super) fn wake_at_answer(&mut self, event: &mut Event<'_>) {
        if std::mem::take(&mut self.is_answer_awaited) {
            event.wake_all();
        }
    }

    /// Returns the answer for which a waiter at its limit waits. `will_ask` tells whether the side will send a request.
    /// Then an effect wakes the waiters at the answer.
    pub(super) fn awaits(&mut self, will_ask: bool) -> Awaits {
        let is_asking = self.pending.as_ref().is_some_and(|pending| pending.copies.in_flight() > 0);
        let may_ask = self.requester.is_some() || will_ask && self.has_waiters();
        let awaits = match self.is_answered {
            false if is_asking || may_ask => Awaits::FirstAnswer,
            true if is_asking => Awaits::Answer,
            true | false => Awaits::Nothing,
        };
        self.is_answer_awaited |= awaits != Awaits::Nothing;
        awaits
    }

    /// Forgets what is known of the server, because no waiter is left.
    pub(super) fn forget_answers(&mut self) {
        (self.outage, self.is_answered) = (None, false);
    }
}
