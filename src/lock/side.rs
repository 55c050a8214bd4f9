//! One side of a lock within this process: who waits for it, and who asks the server.
//!
//! One at a time *asks*. What it has under way on the server is kept here, not in its future: if that is dropped, or stands
//! still, the next waiter goes on with it and keeps the place in the server's queue.

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
use crate::lock::effects::Signals;
use crate::lock::local_waits::LocalWait;
use crate::lock::shares::ShareRequest;

/// Names a waiter of its cell, later ones by higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WaiterId(pub(super) u64);

#[cfg(all(test, feature = "_testing"))]
impl WaiterId {
    pub(crate) const fn of(number: u64) -> Self {
        Self(number)
    }
}

/// What an acquisition has under way on the server.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Pending {
    pub(crate) id: AcquisitionId,
    pub(crate) copies: InDoubt,
    /// An answered copy has left a hold or a waiter, or may have.
    pub(crate) is_recorded: bool,
    /// `close` waits for it, because something of it may be on the server or on its way there.
    pub(crate) is_counted: bool,
    /// Left by a leader for the next one.
    pub(crate) backoff: Option<Backoff>,
}

impl Pending {
    pub(crate) fn new(id: AcquisitionId) -> Self {
        Self { id, copies: InDoubt::default(), is_recorded: false, is_counted: false, backoff: None }
    }

    /// Notes the outcome of a copy, and what it has left on the server.
    pub(crate) fn note_attempt(&mut self, attempt: &Attempt<Acquired>) {
        match attempt {
            // Nothing was looked at: an earlier copy may have left a hold, or a place in the queue.
            Ok(Answered { value: Acquired::Late, .. }) => self.copies.on_late(),
            _ => self.copies.resolve(attempt),
        }
        match attempt {
            Ok(answer) => match answer.value {
                Acquired::Granted(_) | Acquired::Queued { .. } => self.is_recorded = true,
                Acquired::Contended { .. } | Acquired::Cached { .. } => self.is_recorded = false,
                Acquired::Late => {}
            },
            // An error names no request: it may have been another one's.
            Err(Failure::Broken { .. } | Failure::Refused { .. } | Failure::Unreplicated { .. }) => {
                self.is_recorded = true;
            }
            Err(Failure::Unknown { .. } | Failure::NotDone { .. }) => {}
        }
    }

    /// The server has nothing of it, and nothing of it is on its way.
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
    /// Left by an leader, for the next one.
    pub(super) pending: Option<Pending>,
    /// Present while the server does not answer the leader.
    pub(super) outage: Option<SideOutage>,
    /// Present from the first refusal on.
    pub(super) refusal: Option<LastRefusal>,
    /// Until when those who keep the lock, and may not be inside, have time to give it up.
    recall_until: Option<Moment>,
    /// Whoever asks has had an answer, or none in time.
    is_answered: bool,
    /// Waiters wait for that.
    is_first_answer_awaited: bool,
}

/// Who comes next on a side.
#[derive(Clone, Copy, Debug)]
pub(super) enum First {
    Nobody,
    /// It waits here, for this.
    Waits(ShareRequest),
    /// It came before all that wait, and has its place at the server.
    Leader,
}

/// Start of a wait. It is only told, and makes no difference for what happens next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitStart(pub(super) Moment);

impl Hash for WaitStart {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Waiter {
    pub(super) wants: ShareRequest,
    pub(super) since: WaitStart,
    /// For so long it may not be seen when it asks.
    pub(super) poll_within: Duration,
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Leader {
    pub(super) waiter_id: WaiterId,
    owner: OwnerId,
    since: WaitStart,
    /// If it is not seen by then, its future is not polled.
    pub(super) poll_deadline: Moment,
    pub(super) pending: Option<Pending>,
    /// Last waiter that was here when its newest attempt was sent.
    pub(super) newest: WaiterId,
}

impl Side {
    pub(super) fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.leader.is_none()
    }

    /// How many wait here, and ask.
    pub(super) fn len(&self) -> usize {
        self.waiters.len() + usize::from(self.leader.is_some())
    }

    /// Returns the acquisitions that wait here, and the one that asks.
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

    /// Who comes next, of those who wait and whoever asks.
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

    /// Those who are not kept are called by whoever asks.
    pub(super) fn retain_waiters(&mut self, mut keeps: impl FnMut(WaiterId, &Waiter) -> bool) {
        self.waiters.retain(|waiter_id, waiter| keeps(*waiter_id, waiter));
    }

    /// Removes the waiters up to `newest`, and returns them.
    pub(super) fn take_waiters_up_to(&mut self, newest: WaiterId) -> BTreeMap<WaiterId, Waiter> {
        let later = self.waiters.split_off(&WaiterId(newest.0 + 1));
        std::mem::replace(&mut self.waiters, later)
    }

    /// Gives a waiter, or a newcomer, the right to ask the server. It has waited here since then.
    pub(super) fn lead(&mut self, waiter_id: WaiterId, (owner, since): (OwnerId, WaitStart), poll_deadline: Moment) {
        let pending = self.pending.take();
        self.leader = Some(Leader { waiter_id, owner, since, poll_deadline, pending, newest: waiter_id });
        self.is_answered = false;
    }

    /// The one that asks, if this waiter does.
    pub(super) fn leader(&mut self, waiter_id: WaiterId) -> Option<&mut Leader> {
        self.leader.as_mut().filter(|leader| leader.waiter_id == waiter_id)
    }

    pub(super) fn take_leader(&mut self, waiter_id: WaiterId) -> Option<Leader> {
        self.leader.take_if(|leader| leader.waiter_id == waiter_id)
    }

    /// When the one that asks is overdue. Only of interest to those who wait behind it.
    pub(super) fn stalled_at(&self) -> Option<Moment> {
        self.leader.as_ref().filter(|_| self.has_waiters()).map(|leader| leader.poll_deadline)
    }

    pub(super) fn take_stalled(&mut self, now: Moment) -> Option<Leader> {
        if self.stalled_at().is_some_and(|at| at <= now) { self.leader.take() } else { None }
    }

    /// Calls the first waiter to ask, if nobody does.
    pub(super) fn promote_next(&mut self, now: Moment, signals: &mut Signals) -> Option<WaiterId> {
        if self.leader.is_some() {
            return None;
        }
        let Some((first, waiter)) = self.waiters.pop_first() else {
            // Nobody asks, so nothing is known of the server.
            self.outage = None;
            return None;
        };
        self.lead(first, (waiter.wants.owner, waiter.since), now.after(waiter.poll_within));
        signals.wake(first);
        Some(first)
    }

    /// The server does not answer, or does again. `is_word` if that is from whoever asks.
    pub(super) fn on_outage(&mut self, mode: Mode, outage: Option<SideOutage>, is_word: bool, signals: &mut Signals) {
        let earlier = self.outage.take();
        self.outage = outage.map(|outage| outage.after(earlier));
        if is_word {
            self.is_answered = true;
            self.wake_at_first_answer(mode, signals);
        }
    }

    /// Those who keep the lock and may not be inside have been called, and have this time. To be said before the answer is
    /// heard by those who wait.
    pub(super) fn note_recall(&mut self, until: Moment) {
        self.recall_until = self.recall_until.max(Some(until));
    }

    pub(super) fn recall_until(&self) -> Option<Moment> {
        self.recall_until
    }

    pub(super) fn wake_at_first_answer(&mut self, mode: Mode, signals: &mut Signals) {
        if std::mem::take(&mut self.is_first_answer_awaited) {
            signals.first_answer(mode);
        }
    }

    /// Whether whoever asks may yet bring the first word from the server since it asks. `waiter_id` itself knows. If so, an
    /// effect tells of it.
    pub(super) fn awaits_first_answer(&mut self, waiter_id: WaiterId) -> bool {
        let other_asks = self.leader.as_ref().is_some_and(|leader| leader.waiter_id != waiter_id);
        let awaits = other_asks && !self.is_answered;
        self.is_first_answer_awaited |= awaits;
        awaits
    }

    /// Returns true if a request of this side is under way, or left for the next leader.
    pub(super) fn has_request(&self) -> bool {
        self.pending.is_some() || self.leader.as_ref().is_some_and(|leader| leader.pending.is_some())
    }
}
