//! One hold as this process sees it: until when it is valid, how it ended, how many guards share it.
//!
//! States: held -> (unconfirmed <-> held) -> lost or released. An end is final: nothing that arrives later, a renewal's
//! answer included, brings a hold back. The local clock alone can end it, so a guard knows without a network.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::LossReason;
use crate::key::Key;
use crate::lease::{self, FencingToken, Moment};
use crate::reentry::OwnerId;
use crate::scheme::{Acquisition, Mode};

/// How much a hold can be trusted, by the local clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldState {
    /// The last renewal was answered in time.
    Held,
    /// A renewal went unanswered and is being repeated; the local deadline still stands.
    Unconfirmed,
    /// It is over, and others may be inside.
    Lost(LossReason),
}

/// How a hold ended, as [`HoldWatch::ended`](crate::HoldWatch::ended) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// Its guard released it, or was dropped.
    Released,
    /// It ended before it was released.
    Lost(LossReason),
}

/// What stays the same about a hold.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) key: Arc<Key>,
    pub(crate) id: Acquisition,
    pub(crate) mode: Mode,
    pub(crate) owner: OwnerId,
    pub(crate) lease: Duration,
    /// Over at this moment whatever happens.
    pub(crate) ends: Moment,
}

/// What one answer of the server gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// When the copy of the request was sent that the server answered.
    pub(crate) sent: Moment,
    pub(crate) remaining: Duration,
}

pub(crate) struct Hold {
    terms: Terms,
    token: FencingToken,
    clock: Clock,
    clock_margin: Duration,
    state: Mutex<State>,
    changed: Notify,
    /// Where the renewal's agenda keeps this hold; both are used under the agenda's lock only.
    pub(crate) agenda_moment: AtomicU64,
    pub(crate) agenda_slot: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    deadline: Moment,
    /// The server's deadline reaches the end of the longest time: there is nothing left to renew.
    capped: bool,
    renew_at: Moment,
    /// When the server's hold is over even if every request that was sent has arrived.
    server_until: Moment,
    /// A copy of the acquisition may still arrive until then.
    stray_until: Option<Moment>,
    guards: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Held,
    Unconfirmed,
    Released,
    Lost(LossReason),
}

/// What comes next for a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing before this moment.
    At(Moment),
    /// It was lost.
    Lost(LossReason),
    /// It was released.
    Released,
}

impl Hold {
    pub(crate) fn new(
        terms: Terms,
        token: FencingToken,
        grant: Grant,
        stray_until: Option<Moment>,
        clock: Clock,
        clock_margin: Duration,
    ) -> Self {
        let hold = Self {
            terms,
            token,
            clock,
            clock_margin,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline: grant.sent,
                capped: false,
                renew_at: Moment::NEVER,
                server_until: grant.sent,
                stray_until,
                guards: 1,
            }),
            changed: Notify::new(),
            agenda_moment: AtomicU64::new(0),
            agenda_slot: AtomicU64::new(0),
        };
        hold.apply(&mut hold.state.lock(), grant);
        hold
    }

    /// Takes over what the server granted: the deadline moves, never back.
    fn apply(&self, state: &mut State, grant: Grant) {
        let valid = lease::valid_until(grant.sent, grant.remaining, self.clock_margin);
        state.deadline = state.deadline.max(valid.min(self.terms.ends));
        state.capped = self.is_capped_at(grant.sent);
        state.renew_at =
            if state.capped { Moment::NEVER } else { grant.sent.after(renewal_interval(self.terms.lease)) };
        let covers = lease::surely_over(grant.remaining, self.clock_margin);
        state.server_until = state.server_until.max(grant.sent.after(covers));
    }

    /// Whether a lease that is asked for at `sent` ends with the longest time rather than with itself.
    fn is_capped_at(&self, sent: Moment) -> bool {
        sent.after(self.terms.lease) >= self.terms.ends
    }

    pub(crate) fn key(&self) -> &Arc<Key> {
        &self.terms.key
    }

    pub(crate) fn id(&self) -> &Acquisition {
        &self.terms.id
    }

    pub(crate) fn mode(&self) -> Mode {
        self.terms.mode
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.terms.owner
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    /// The lease to ask for at `now`: never past the longest time.
    pub(crate) fn lease_at(&self, now: Moment) -> Duration {
        self.terms.lease.min(self.terms.ends.since(now))
    }

    /// Looks at the clock: a hold whose deadline is reached is lost from here on.
    fn look(&self, state: &mut State, now: Moment) {
        if matches!(state.phase, Phase::Held | Phase::Unconfirmed) && now >= state.deadline {
            let reason = if state.capped { LossReason::MaxHold } else { LossReason::Expired };
            state.phase = Phase::Lost(reason);
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn state(&self) -> HoldState {
        let mut state = self.state.lock();
        self.look(&mut state, self.clock.now());
        match state.phase {
            Phase::Held | Phase::Released => HoldState::Held,
            Phase::Unconfirmed => HoldState::Unconfirmed,
            Phase::Lost(reason) => HoldState::Lost(reason),
        }
    }

    /// How long the hold may be trusted without hearing from the server.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        let mut state = self.state.lock();
        self.look(&mut state, now);
        match state.phase {
            Phase::Held | Phase::Unconfirmed => state.deadline.since(now),
            Phase::Released | Phase::Lost(_) => Duration::ZERO,
        }
    }

    pub(crate) fn how_it_ended(&self) -> Option<Ended> {
        let mut state = self.state.lock();
        self.look(&mut state, self.clock.now());
        match state.phase {
            Phase::Held | Phase::Unconfirmed => None,
            Phase::Released => Some(Ended::Released),
            Phase::Lost(reason) => Some(Ended::Lost(reason)),
        }
    }

    /// Returns when the hold is over. Wakes up by the local clock too: no server and no other task is needed.
    pub(crate) async fn ended(&self) -> Ended {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so a change between the two is not missed.
            changed.as_mut().enable();
            if let Some(ended) = self.how_it_ended() {
                return ended;
            }
            let deadline = self.state.lock().deadline;
            tokio::select! {
                () = changed => {}
                () = self.clock.sleep_until(deadline) => {}
            }
        }
    }

    /// When something is due for this hold: a renewal, or its local deadline.
    pub(crate) fn next(&self, now: Moment) -> Next {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        match state.phase {
            Phase::Held | Phase::Unconfirmed => Next::At(state.renew_at.min(state.deadline)),
            Phase::Released => Next::Released,
            Phase::Lost(reason) => Next::Lost(reason),
        }
    }

    /// Whether a renewal is due by `by`. If so it counts as sent, and no other is due until it is answered.
    pub(crate) fn begin_renewal(&self, now: Moment, by: Moment) -> bool {
        let mut state = self.state.lock();
        let due = matches!(state.phase, Phase::Held | Phase::Unconfirmed) && state.renew_at <= by;
        if due {
            state.renew_at = Moment::NEVER;
            let covers = lease::surely_over(self.lease_at(now), self.clock_margin);
            state.server_until = state.server_until.max(now.after(covers));
        }
        due
    }

    /// A renewal was answered. Comes too late if the local deadline was reached meanwhile.
    pub(crate) fn renewed(&self, grant: Grant, now: Moment) {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        if matches!(state.phase, Phase::Held | Phase::Unconfirmed) {
            state.phase = Phase::Held;
            self.apply(&mut state, grant);
        }
    }

    /// A renewal was not answered; it is tried again at `retry_at`.
    pub(crate) fn unanswered(&self, retry_at: Moment) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.phase = Phase::Unconfirmed;
        }
        state.renew_at = retry_at;
    }

    /// Ends the hold as lost; `false` if it has ended before.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let mut state = self.state.lock();
        let live = matches!(state.phase, Phase::Held | Phase::Unconfirmed);
        if live {
            state.phase = Phase::Lost(reason);
            self.changed.notify_waiters();
        }
        live
    }

    /// One more guard shares the hold; `false` if it is over.
    pub(crate) fn join(&self) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state, self.clock.now());
        let live = matches!(state.phase, Phase::Held | Phase::Unconfirmed);
        if live {
            state.guards += 1;
        }
        live
    }

    /// One guard is gone. The last one ends the hold.
    pub(crate) fn part(&self, now: Moment) -> Parting {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        state.guards -= 1;
        match state.phase {
            Phase::Held | Phase::Unconfirmed if state.guards > 0 => Parting::Shared,
            Phase::Held | Phase::Unconfirmed => {
                state.phase = Phase::Released;
                self.changed.notify_waiters();
                Parting::Last
            }
            Phase::Released => Parting::Last,
            Phase::Lost(reason) => Parting::Lost(reason),
        }
    }

    /// The moment of the local deadline.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline
    }

    pub(crate) fn server_until(&self) -> Moment {
        self.state.lock().server_until
    }

    pub(crate) fn stray_until(&self) -> Option<Moment> {
        self.state.lock().stray_until
    }
}

/// What a guard finds when it lets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parting {
    /// Other guards of the same owner still hold it.
    Shared,
    /// It was the last guard: the server is to be told.
    Last,
    /// The hold was over before.
    Lost(LossReason),
}

/// A renewal comes after a third of the lease, with a little jitter, so that holds that were taken
/// together spread over the interval and two tries fit into what is left.
fn renewal_interval(lease: Duration) -> Duration {
    let third = lease / 3;
    third.mul_f64(0.875 + fastrand::f64() / 4.0)
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = *self.state.lock();
        f.debug_struct("Hold")
            .field("lock", &self.terms.key.name())
            .field("id", &self.terms.id.as_str())
            .field("mode", &self.terms.mode)
            .field("token", &self.token)
            .field("phase", &state.phase)
            .finish_non_exhaustive()
    }
}
