//! Side of a lock within this process: its waiters, and their *leader*.
//!
//! Only the leader sends requests to the server. The side keeps the leader's request. So if the leader's future is dropped, or
//! is not polled, the next waiter continues the request and keeps the place in the server's queue.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Answered, Attempt, Failure, Granted};
use crate::base::backoff::Backoff;
use crate::base::denied::NamedHolder;
use crate::base::error::Source;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{Moment, ServerTime};
use crate::base::mode::Mode;
use crate::base::reentry::OwnerId;
use crate::lock::effects::Event;
use crate::lock::local_waits::LocalWait;
use crate::lock::shares::ShareRequest;

/// Number of a waiter in its cell. Later waiters have higher numbers.
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
    /// Backoff that the leader before has left.
    pub(crate) backoff: Option<Backoff>,
}

impl Pending {
    pub(crate) fn new(id: AcquisitionId) -> Self {
        Self { id, copies: InDoubt::default(), is_recorded: false, is_counted: false, backoff: None }
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

/// Next step of a task that has asked the server, after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    Take(Granted),
    /// Ends a try: the one answer was no.
    EndRefused,
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
    /// Returns the step after this answer. `recalls_are_over` tells whether the holders that a try has recalled have
    /// had their time to reply.
    pub(crate) fn after(acquired: &Acquired, waits: bool, recalls_are_over: impl FnOnce() -> bool) -> Self {
        match acquired {
            Acquired::Granted(granted) => Self::Take(*granted),
            // A try waits for nothing but the replies to its recalls.
            Acquired::Contended { .. } | Acquired::Queued { is_cached: false, .. } if !waits => Self::EndRefused,
            Acquired::Cached { .. } if !waits && recalls_are_over() => Self::EndRefused,
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
    /// Node and cause of the newest failure, for the errors of those that wait behind the leader.
    pub(crate) source: Option<Source>,
}

/// The cause makes no difference for what happens next.
impl Hash for SideOutage {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { since, source: _ } = self;
        since.hash(state);
    }
}

impl SideOutage {
    /// Begins with the earlier one, and has the newer cause.
    fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) => Self { since: earlier.since, source: self.source.or(earlier.source) },
            None => self,
        }
    }
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
    waiters: BTreeMap<WaiterId, Waiter>,
    leader: Option<Leader>,
    /// Request that a leader has left for the next one.
    pub(super) pending: Option<Pending>,
    /// Present while the server does not answer the leader.
    pub(super) outage: Option<SideOutage>,
    /// Present from the first refusal on.
    pub(super) refusal: Option<LastRefusal>,
    /// End of the time that recalled processes have to release their cached holds.
    pub(super) recall_until: Option<Moment>,
    /// True if the leader has had an answer, or none in time.
    is_answered: bool,
    /// True if waiters wait for the first answer to the leader.
    is_first_answer_awaited: bool,
}

/// First acquisition of a side.
#[derive(Clone, Copy, Debug)]
pub(super) enum First {
    Nobody,
    /// A waiter, with the share that it wants.
    Waits(ShareRequest),
    /// The leader, which came before all waiters and has a place at the server.
    Leader,
}

/// Start of a wait. Only reports use it, so it makes no difference for what happens next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitStart(pub(super) Moment);

impl Hash for WaitStart {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Waiter {
    pub(super) wants: ShareRequest,
    pub(super) since: WaitStart,
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Leader {
    pub(super) waiter_id: WaiterId,
    owner: OwnerId,
    since: WaitStart,
    /// A leader that has not been polled by then is stalled.
    pub(super) poll_deadline: Moment,
    pub(super) pending: Option<Pending>,
    /// Last waiter that was here when the leader sent its newest attempt.
    pub(super) newest: WaiterId,
}

impl Side {
    pub(super) fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.leader.is_none()
    }

    /// Returns the number of waiters, the leader included.
    pub(super) fn len(&self) -> usize {
        self.waiters.len() + usize::from(self.leader.is_some())
    }

    /// Returns the leader and the waiters.
    pub(super) fn local_waits(&self, mode: Mode) -> impl Iterator<Item = LocalWait> {
        let leader = self.leader.iter().map(|leader| (leader.waiter_id, leader.owner, leader.since));
        let waiters = self.waiters.iter().map(|(waiter_id, waiter)| (*waiter_id, waiter.wants.owner, waiter.since));
        leader.chain(waiters).map(move |(waiter_id, owner, since)| LocalWait {
            number: waiter_id.0,
            mode,
            owner,
            since: since.0,
        })
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(super) fn has_leader(&self) -> bool {
        self.leader.is_some()
    }

    /// Returns the acquisition that came first, of the leader and the waiters.
    pub(super) fn first(&self) -> First {
        let waiter = self.waiters.first_key_value();
        let leader = self.leader.as_ref().map(|leader| leader.waiter_id);
        match (leader, waiter) {
            (Some(leader), waiter) if waiter.is_none_or(|(waiter_id, _)| leader < *waiter_id) => First::Leader,
            (_, Some((_, waiter))) => First::Waits(waiter.wants),
            (_, None) => First::Nobody,
        }
    }

    pub(super) fn wait(&mut self, waiter_id: WaiterId, waiter: Waiter) {
        self.waiters.insert(waiter_id, waiter);
    }

    pub(super) fn stop_waiting(&mut self, waiter_id: WaiterId) {
        self.waiters.remove(&waiter_id);
    }

    pub(super) fn pop_first(&mut self) -> Option<(WaiterId, Waiter)> {
        self.waiters.pop_first()
    }

    /// Removes the waiters for which `keeps` returns false. The caller wakes them.
    pub(super) fn retain_waiters(&mut self, mut keeps: impl FnMut(WaiterId, &Waiter) -> bool) {
        self.waiters.retain(|waiter_id, waiter| keeps(*waiter_id, waiter));
    }

    /// Removes the waiters up to `newest`, and returns them.
    pub(super) fn take_waiters_up_to(&mut self, newest: WaiterId) -> BTreeMap<WaiterId, Waiter> {
        let later = self.waiters.split_off(&WaiterId(newest.0 + 1));
        std::mem::replace(&mut self.waiters, later)
    }

    /// Makes a waiter, or a new acquisition, the leader.
    pub(super) fn lead(&mut self, waiter_id: WaiterId, (owner, since): (OwnerId, WaitStart), event: &Event<'_>) {
        let (pending, poll_deadline) = (self.pending.take(), event.now.after(event.poll_within));
        self.leader = Some(Leader { waiter_id, owner, since, poll_deadline, pending, newest: waiter_id });
        self.is_answered = false;
    }

    /// Returns the leader, if this waiter is the leader.
    pub(super) fn leader(&mut self, waiter_id: WaiterId) -> Option<&mut Leader> {
        self.leader.as_mut().filter(|leader| leader.waiter_id == waiter_id)
    }

    pub(super) fn take_leader(&mut self, waiter_id: WaiterId) -> Option<Leader> {
        self.leader.take_if(|leader| leader.waiter_id == waiter_id)
    }

    /// Returns the moment from which the leader is stalled. `None` if no waiter is behind it.
    pub(super) fn stalled_at(&self) -> Option<Moment> {
        self.leader.as_ref().filter(|_| self.has_waiters()).map(|leader| leader.poll_deadline)
    }

    pub(super) fn take_stalled(&mut self, now: Moment) -> Option<Leader> {
        if self.stalled_at().is_some_and(|at| at <= now) { self.leader.take() } else { None }
    }

    /// Makes the first waiter the leader, if there is none.
    pub(super) fn promote_next(&mut self, event: &mut Event<'_>) -> Option<WaiterId> {
        if self.leader.is_some() {
            return None;
        }
        let Some((first, waiter)) = self.waiters.pop_first() else {
            // Without a leader nothing is known of the server.
            self.outage = None;
            return None;
        };
        self.lead(first, (waiter.wants.owner, waiter.since), event);
        event.wake(first);
        Some(first)
    }

    /// Records that the server does not answer, or answers again. `is_of_leader` tells whether the leader has seen that.
    pub(super) fn on_outage(&mut self, outage: Option<SideOutage>, is_of_leader: bool, event: &mut Event<'_>) {
        let earlier = self.outage.take();
        if earlier.is_none() && outage.is_some() && self.has_waiters() {
            event.wake_all();
        }
        self.outage = outage.map(|outage| outage.after(earlier));
        if is_of_leader {
            self.is_answered = true;
            self.wake_at_first_answer(event);
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

    pub(super) fn wake_at_first_answer(&mut self, event: &mut Event<'_>) {
        if std::mem::take(&mut self.is_first_answer_awaited) {
            event.wake_all();
        }
    }

    /// Returns true if the leader has had no answer yet, and is not `waiter_id` itself. Then an effect wakes the waiter at the
    /// first answer.
    pub(super) fn awaits_first_answer(&mut self, waiter_id: WaiterId) -> bool {
        let other_asks = self.leader.as_ref().is_some_and(|leader| leader.waiter_id != waiter_id);
        let awaits = other_asks && !self.is_answered;
        self.is_first_answer_awaited |= awaits;
        awaits
    }

    /// Returns true if this waiter waits, and the side has no leader yet. Then an effect wakes the waiter at the first answer.
    pub(super) fn awaits_leader(&mut self, waiter_id: WaiterId) -> bool {
        let awaits = self.leader.is_none() && self.waiters.contains_key(&waiter_id);
        self.is_first_answer_awaited |= awaits;
        awaits
    }

    /// Returns true if a request of this side is under way, or left for the next leader.
    pub(super) fn has_request(&self) -> bool {
        self.pending.is_some() || self.leader.as_ref().is_some_and(|leader| leader.pending.is_some())
    }
}
