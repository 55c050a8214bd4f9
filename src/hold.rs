//! One hold as this process sees it: until when it is valid, how it ended, which guards share it.
//!
//! States: held -> (unconfirmed <-> held) -> lost or released. An end is final: nothing that arrives later, a renewal's
//! answer included, brings a hold back. The local clock alone can end it, so a guard knows without a network.
//!
//! Redis sees the hold, users see guards: each has a share with a lease and an end of its own. The hold is renewed for the
//! longest of what its guards still want. Readers join while the server has said lately that no writer waits; a writer
//! passes the hold to the next one of its process, with the next of the tokens that the grant reserved.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::LossReason;
use crate::key::Key;
use crate::lease::{self, FencingToken, Moment};
use crate::reentry::OwnerId;
use crate::scheme::{Acquisition, Mode};

/// How long a waiter that was handed the lock has to take it: its future may not be polled any more.
const OFFER: Duration = Duration::from_secs(3);

/// A hold that no further reader may join: a writer waits.
const CLOSED: Moment = Moment::from_nanos(0);

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
    /// The first of its tokens, and how many it has.
    pub(crate) token: FencingToken,
    pub(crate) turns: u64,
}

/// What one guard wants of a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) owner: OwnerId,
    /// How long the server shall keep the hold without hearing from us.
    pub(crate) lease: Duration,
    /// Over at this moment whatever happens.
    pub(crate) ends: Moment,
}

impl Share {
    /// As a waiter has it until it takes it.
    fn offered(self, now: Moment) -> Self {
        Self { ends: self.ends.min(now.after(OFFER)), ..self }
    }
}

/// A guard's share in a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    slot: usize,
    pub(crate) token: FencingToken,
}

/// What one answer of the server gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// When the copy of the request was sent that the server answered.
    pub(crate) sent: Moment,
    pub(crate) remaining: Duration,
    /// The lease that was asked for.
    pub(crate) asked: Duration,
}

/// How far a hold is shared within the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// Further readers may join for so long after the server was asked.
    pub(crate) window: Duration,
    /// A hold is passed on to so many writers, and not after this time.
    pub(crate) turns: u64,
    pub(crate) turn_span: Duration,
}

pub(crate) struct Hold {
    terms: Terms,
    clock: Clock,
    clock_margin: Duration,
    state: Mutex<State>,
    changed: Notify,
    /// Where the renewal's agenda keeps this hold; both are used under the agenda's lock only.
    pub(crate) agenda_moment: AtomicU64,
    pub(crate) agenda_slot: AtomicU64,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    deadline: Moment,
    /// How far the longest lease that was asked for reaches. A share that ends before needs no renewal.
    asked_until: Moment,
    /// The lease that was asked for last, and the longest that a copy may bring along.
    asked: Duration,
    longest: Duration,
    renewal: Renewal,
    /// When the server's hold is over even if every request that was sent has arrived, unless it is a stray one.
    server_until: Moment,
    /// A copy of the acquisition may still arrive until then.
    stray_until: Option<Moment>,
    /// Repeats by which readers want to join that are on their way, and until when one may arrive.
    rechecks: u32,
    recheck_until: Moment,
    /// Likewise those that went unanswered.
    recheck_stray_until: Option<Moment>,
    shares: Slab<Shared>,
    /// Readers may join until then.
    share_until: Moment,
    /// When it was granted, and how many writers have had it since.
    began: Moment,
    turn: u64,
    /// It was granted by a notice, and the server has not answered it since.
    unclaimed: bool,
}

#[derive(Debug)]
struct Shared {
    share: Share,
    /// Present once somebody watches.
    end: Option<Arc<End>>,
}

/// The end of one share, for those who watch it.
#[derive(Debug, Default)]
pub(crate) struct End {
    ended: OnceLock<Ended>,
    changed: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Renewal {
    Due(Moment),
    Underway,
    /// The server's deadline reaches the end of all shares.
    Needless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Held,
    Unconfirmed,
    /// Given up for a hold of the other side; the answer has yet to come.
    Turning,
    Released,
    Lost(LossReason),
}

impl Phase {
    fn is_live(self) -> bool {
        matches!(self, Self::Held | Self::Unconfirmed | Self::Turning)
    }
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

/// What a guard finds when it lets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parting {
    /// Other guards still share it.
    Shared,
    /// The next writer of this process has it.
    Passed(Ticket),
    /// It was the last guard: the server is to be told.
    Last,
    /// The same, but this guard's own time was over before.
    LastLate(LossReason),
    /// It was over before.
    Lost(LossReason),
}

impl State {
    /// Whether nothing is left to renew for this share.
    fn is_covered(&self, share: &Share) -> bool {
        share.ends <= self.asked_until
    }

    fn needs_renewal(&self) -> bool {
        self.shares.iter().any(|(_, shared)| !self.is_covered(&shared.share))
    }

    fn is_renewal_due(&self, by: Moment) -> bool {
        matches!(self.phase, Phase::Held | Phase::Unconfirmed) && matches!(self.renewal, Renewal::Due(at) if at <= by)
    }

    /// Until when a copy of the acquisition may arrive.
    fn stray_until(&self) -> Option<Moment> {
        let underway = (self.rechecks > 0).then_some(self.recheck_until);
        self.stray_until.max(self.recheck_stray_until).max(underway)
    }

    /// A guard may want more than the server was asked for.
    fn renew_if_needed(&mut self, now: Moment) {
        if self.renewal == Renewal::Needless && self.needs_renewal() {
            self.renewal = Renewal::Due(now);
        }
    }

    /// The lease to ask for at `now`: the longest that a guard still wants.
    fn lease_at(&self, now: Moment) -> Duration {
        let wants = |shared: &Shared| shared.share.lease.min(shared.share.ends.since(now));
        self.shares.iter().map(|(_, shared)| wants(shared)).max().unwrap_or_default()
    }

    /// When the last guard's time is over, though it may be forgotten.
    fn last_end(&self) -> Moment {
        self.shares.iter().map(|(_, shared)| shared.share.ends).max().unwrap_or(Moment::NEVER)
    }

    /// Whether a guard that comes now gets what it wants until the next renewal: a third of its lease, and that one is
    /// under way or due, or not needed.
    fn suits(&self, share: &Share, now: Moment) -> bool {
        self.lasts(share, share.lease, now)
    }

    /// The same for a writer, which goes on with what the one before it had: that may be a claim still.
    fn suits_next(&self, share: &Share, now: Moment) -> bool {
        self.lasts(share, share.lease.min(self.asked), now)
    }

    fn lasts(&self, share: &Share, lease: Duration, now: Moment) -> bool {
        self.phase == Phase::Held
            && self.deadline.since(now) >= lease.min(share.ends.since(now)) / 3
            && (self.renewal != Renewal::Needless || self.is_covered(share))
    }

    /// How a share stands in a hold that stands like this.
    fn state_of(&self, share: &Share, now: Moment) -> HoldState {
        match self.phase {
            Phase::Lost(LossReason::Expired) if self.is_covered(share) => HoldState::Lost(LossReason::MaxHold),
            Phase::Lost(reason) => HoldState::Lost(reason),
            _ if now >= share.ends => HoldState::Lost(LossReason::MaxHold),
            Phase::Unconfirmed => HoldState::Unconfirmed,
            Phase::Held | Phase::Turning | Phase::Released => HoldState::Held,
        }
    }
}

impl Hold {
    /// A hold with its first guard.
    pub(crate) fn new(
        terms: Terms,
        share: Share,
        grant: Grant,
        stray_until: Option<Moment>,
        clock: Clock,
        clock_margin: Duration,
    ) -> (Self, Ticket) {
        let mut shares = Slab::with_capacity(1);
        let slot = shares.insert(Shared { share, end: None });
        let ticket = Ticket { slot, token: terms.token };
        let hold = Self {
            terms,
            clock,
            clock_margin,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline: grant.sent,
                asked_until: grant.sent,
                asked: grant.asked,
                longest: share.lease,
                renewal: Renewal::Needless,
                server_until: grant.sent,
                stray_until,
                rechecks: 0,
                recheck_until: grant.sent,
                recheck_stray_until: None,
                shares,
                share_until: grant.sent,
                began: clock.now(),
                turn: 0,
                unclaimed: false,
            }),
            changed: Notify::new(),
            agenda_moment: AtomicU64::new(0),
            agenda_slot: AtomicU64::new(0),
        };
        hold.apply(&mut hold.state.lock(), grant);
        (hold, ticket)
    }

    /// Takes over what the server granted: the deadline moves, never back.
    fn apply(&self, state: &mut State, grant: Grant) {
        let Grant { sent, remaining, asked } = grant;
        state.deadline = state.deadline.max(lease::valid_until(sent, remaining, self.clock_margin));
        state.asked_until = state.asked_until.max(sent.after(asked));
        state.asked = asked;
        let covers = lease::surely_over(remaining, self.clock_margin);
        state.server_until = state.server_until.max(sent.after(covers));
        state.renewal = if state.needs_renewal() {
            Renewal::Due(sent.after(renewal_interval(remaining.min(asked))))
        } else {
            Renewal::Needless
        };
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

    /// The first of its tokens.
    pub(crate) fn token(&self) -> FencingToken {
        self.terms.token
    }

    /// Looks at the clock: a hold whose deadline is reached is lost from here on.
    fn look(&self, state: &mut State, now: Moment) {
        if state.phase.is_live() && now >= state.deadline {
            self.end(state, LossReason::Expired);
        }
    }

    fn end(&self, state: &mut State, reason: LossReason) {
        state.phase = Phase::Lost(reason);
        self.changed.notify_waiters();
    }

    // What guards ask.

    pub(crate) fn state_of(&self, ticket: Ticket) -> HoldState {
        let now = self.clock.now();
        let mut state = self.state.lock();
        self.look(&mut state, now);
        state.state_of(&state.shares[ticket.slot].share, now)
    }

    /// How long the hold may be trusted without hearing from the server.
    pub(crate) fn remaining(&self, ticket: Ticket) -> Duration {
        let now = self.clock.now();
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let share = state.shares[ticket.slot].share;
        match state.state_of(&share, now) {
            HoldState::Lost(_) => Duration::ZERO,
            HoldState::Held | HoldState::Unconfirmed => state.deadline.min(share.ends).since(now),
        }
    }

    /// Returns when the share is over by the local clock or by the server's word: no server and no other task is needed.
    pub(crate) async fn lost(&self, ticket: Ticket) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so a change between the two is not missed.
            changed.as_mut().enable();
            if let HoldState::Lost(reason) = self.state_of(ticket) {
                return reason;
            }
            let until = self.deadline_of(ticket);
            tokio::select! {
                biased;
                () = changed => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    fn deadline_of(&self, ticket: Ticket) -> Moment {
        let state = self.state.lock();
        state.deadline.min(state.shares[ticket.slot].share.ends)
    }

    /// For a watch that outlives its guard.
    pub(crate) fn watch(self: &Arc<Self>, ticket: Ticket) -> Watch {
        let mut state = self.state.lock();
        let shared = &mut state.shares[ticket.slot];
        let share = shared.share;
        let end = Arc::clone(shared.end.get_or_insert_default());
        Watch { hold: Arc::clone(self), share, token: ticket.token, end }
    }

    // Guards come and go.

    /// A reader joins, if the server has said lately that no writer waits.
    pub(crate) fn join(&self, share: Share, now: Moment) -> Option<Ticket> {
        let mut state = self.state.lock();
        let may = self.terms.mode == Mode::Read && now < state.share_until && state.suits(&share, now);
        may.then(|| self.admit(&mut state, share))
    }

    /// A reader joins that waited when this was granted, and so enters with it.
    pub(crate) fn join_phase(&self, share: Share, now: Moment) -> Option<Ticket> {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let may = state.phase == Phase::Held && (state.renewal != Renewal::Needless || state.is_covered(&share));
        may.then(|| self.admit(&mut state, share.offered(now)))
    }

    /// One more guard of an owner that has one. It shares its terms.
    pub(crate) fn join_own(&self, owner: OwnerId, now: Moment) -> Option<Ticket> {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        if !matches!(state.phase, Phase::Held | Phase::Unconfirmed) {
            return None;
        }
        let share = state.shares.iter().map(|(_, shared)| shared.share).find(|share| share.owner == owner)?;
        (now < share.ends).then(|| self.admit(&mut state, share))
    }

    fn admit(&self, state: &mut State, share: Share) -> Ticket {
        let slot = state.shares.insert(Shared { share, end: None });
        Ticket { slot, token: self.terms.token.plus(state.turn) }
    }

    /// Whether this owner has a guard of it.
    pub(crate) fn is_held_by(&self, owner: OwnerId, now: Moment) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let live = matches!(state.phase, Phase::Held | Phase::Unconfirmed);
        live && state.shares.iter().any(|(_, shared)| shared.share.owner == owner && now < shared.share.ends)
    }

    /// One guard is gone. The last one ends the hold, unless it is a writer's and `next` is to have it.
    pub(crate) fn part(&self, ticket: Ticket, now: Moment, next: Option<Share>, sharing: Sharing) -> Parting {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let shared = state.shares.remove(ticket.slot);
        let standing = state.state_of(&shared.share, now);
        if let Some(end) = shared.end {
            end.set(match standing {
                HoldState::Lost(reason) => Ended::Lost(reason),
                HoldState::Held | HoldState::Unconfirmed => Ended::Released,
            });
        }
        let lost = match standing {
            HoldState::Lost(reason) => Some(reason),
            HoldState::Held | HoldState::Unconfirmed => None,
        };
        if !state.shares.is_empty() || !state.phase.is_live() {
            return lost.map_or(Parting::Shared, Parting::Lost);
        }
        if let (None, Some(next)) = (lost, next)
            && let Some(ticket) = self.pass(&mut state, next, now, sharing)
        {
            return Parting::Passed(ticket);
        }
        state.phase = Phase::Released;
        lost.map_or(Parting::Last, Parting::LastLate)
    }

    /// The next writer of this process has the hold, with a token of its own.
    fn pass(&self, state: &mut State, next: Share, now: Moment, sharing: Sharing) -> Option<Ticket> {
        let turn = state.turn + 1;
        let has_turns = turn < self.terms.turns.min(sharing.turns) && now.since(state.began) < sharing.turn_span;
        if self.terms.mode != Mode::Write || !has_turns || !state.suits_next(&next, now) {
            return None;
        }
        state.turn = turn;
        Some(self.admit(state, next.offered(now)))
    }

    /// A waiter takes what it was handed; `false` if that is over.
    pub(crate) fn accept(&self, ticket: Ticket, share: Share, now: Moment) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let standing = state.state_of(&state.shares[ticket.slot].share, now);
        let live = !matches!(standing, HoldState::Lost(_));
        if live {
            state.shares[ticket.slot].share = share;
            // What was renewed meanwhile was renewed for the offer.
            state.renew_if_needed(now);
        }
        live
    }

    // What the renewal asks.

    /// When something is due for this hold: a renewal, or its local deadline.
    pub(crate) fn next(&self, now: Moment) -> Next {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        match state.phase {
            Phase::Held | Phase::Unconfirmed if state.last_end() <= now => {
                self.end(&mut state, LossReason::MaxHold);
                Next::Lost(LossReason::MaxHold)
            }
            Phase::Held | Phase::Unconfirmed => Next::At(match state.renewal {
                Renewal::Due(at) => at.min(state.deadline).min(state.last_end()),
                Renewal::Underway | Renewal::Needless => state.deadline.min(state.last_end()),
            }),
            // Not renewed.
            Phase::Turning => Next::At(state.deadline),
            Phase::Released => Next::Released,
            Phase::Lost(LossReason::Expired) if !state.needs_renewal() => Next::Lost(LossReason::MaxHold),
            Phase::Lost(reason) => Next::Lost(reason),
        }
    }

    /// Whether a renewal is due by `by`.
    pub(crate) fn is_renewal_due(&self, by: Moment) -> bool {
        self.state.lock().is_renewal_due(by)
    }

    /// The lease to ask for, if a renewal is due by `by`. Then it counts as sent, and no other is due until it is answered.
    /// Without a guard that wants more, the hold is over instead.
    pub(crate) fn begin_renewal(&self, now: Moment, by: Moment) -> Option<Duration> {
        let mut state = self.state.lock();
        if !state.is_renewal_due(by) {
            return None;
        }
        let lease = state.lease_at(now);
        if lease.is_zero() {
            self.end(&mut state, LossReason::MaxHold);
            return None;
        }
        state.renewal = Renewal::Underway;
        self.begin_request(&mut state, now, lease);
        Some(lease)
    }

    fn begin_request(&self, state: &mut State, now: Moment, lease: Duration) {
        let covers = lease::surely_over(lease, self.clock_margin);
        state.server_until = state.server_until.max(now.after(covers));
        state.longest = state.longest.max(lease);
    }

    /// Granted by a notice, it has yet to be claimed: until the next answer the server grants it no more than the claim.
    pub(crate) fn to_be_claimed(&self) {
        self.state.lock().unclaimed = true;
    }

    /// A renewal was answered. Comes too late if the local deadline was reached meanwhile.
    pub(crate) fn renewed(&self, grant: Grant, now: Moment) {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        if !matches!(state.phase, Phase::Held | Phase::Unconfirmed) {
            return;
        }
        state.phase = Phase::Held;
        self.apply(&mut state, grant);
        let claims = std::mem::take(&mut state.unclaimed);
        drop(state);
        if claims {
            tracing::debug!(lock = self.key().name(), mode = %self.mode(), token = self.token().as_u64(), "claimed");
        }
    }

    /// A renewal was not answered; it is tried again at `retry_at`.
    pub(crate) fn unanswered(&self, retry_at: Moment) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.phase = Phase::Unconfirmed;
        }
        state.renewal = Renewal::Due(retry_at);
    }

    /// Ends the hold as lost; `false` if it has ended before.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let mut state = self.state.lock();
        let live = state.phase.is_live();
        if live {
            self.end(&mut state, reason);
        }
        live
    }

    // What whoever asks the server for more readers does.

    /// A reader joins for the time being, to ask the server whether it may; with the lease to ask for.
    pub(crate) fn begin_recheck(&self, share: Share, now: Moment) -> Option<(Ticket, Duration)> {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let open = state.phase == Phase::Held && state.share_until != CLOSED && !state.shares.is_empty();
        if self.terms.mode != Mode::Read || !open {
            return None;
        }
        let ticket = self.admit(&mut state, share);
        let lease = state.lease_at(now);
        self.begin_request(&mut state, now, lease);
        Some((ticket, lease))
    }

    /// A repeat of the acquisition is on its way, and may arrive until then.
    pub(crate) fn recheck_begins(&self, until: Moment) {
        let mut state = self.state.lock();
        state.rechecks += 1;
        state.recheck_until = state.recheck_until.max(until);
    }

    /// It was answered, or may still arrive until then. Earlier ones that went unanswered may, all the same.
    pub(crate) fn recheck_ends(&self, stray_until: Option<Moment>) {
        let mut state = self.state.lock();
        state.rechecks -= 1;
        state.recheck_stray_until = state.recheck_stray_until.max(stray_until);
    }

    /// The server knows the hold and has extended it. `false` if it is over here all the same.
    pub(crate) fn rechecked(&self, grant: Grant, sharing: Option<Moment>, now: Moment) -> bool {
        self.renewed(grant, now);
        let mut state = self.state.lock();
        state.share_until = sharing.unwrap_or(CLOSED);
        state.phase == Phase::Held
    }

    /// Further readers may join until then; none at all, if a writer waits.
    pub(crate) fn share_until(&self, until: Option<Moment>) {
        self.state.lock().share_until = until.unwrap_or(CLOSED);
    }

    /// The server did not know it: the next renewal, which is due now, tells why.
    pub(crate) fn doubt(&self, now: Moment) {
        let mut state = self.state.lock();
        state.share_until = CLOSED;
        if state.phase == Phase::Held && !matches!(state.renewal, Renewal::Underway) {
            state.renewal = Renewal::Due(now);
        }
    }

    // What a turn to the other side does.

    /// Closes the hold for all but this guard; `false` if it has others, or is not what it was.
    pub(crate) fn begin_turn(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state, now);
        let alone = matches!(state.phase, Phase::Held | Phase::Unconfirmed) && state.shares.len() == 1;
        if alone {
            state.phase = Phase::Turning;
        }
        alone
    }

    /// The server has not turned it.
    pub(crate) fn stays(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Turning {
            state.phase = Phase::Held;
            // The answer to one that was under way has found nobody.
            if state.renewal == Renewal::Underway {
                state.renewal = Renewal::Needless;
            }
            state.renew_if_needed(self.clock.now());
        }
    }

    /// The server has turned it: there is nothing to give back.
    pub(crate) fn turned(&self, ticket: Ticket) -> Share {
        let mut state = self.state.lock();
        state.phase = Phase::Released;
        let shared = state.shares.remove(ticket.slot);
        if let Some(end) = shared.end {
            end.set(Ended::Released);
        }
        shared.share
    }

    pub(crate) fn share(&self, ticket: Ticket) -> Share {
        self.state.lock().shares[ticket.slot].share
    }

    /// Whether this process may go on with it.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().phase.is_live()
    }

    /// The moment of the local deadline.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline
    }

    /// When the server's hold is over, whatever arrives.
    pub(crate) fn server_until(&self) -> Moment {
        let state = self.state.lock();
        let covers = lease::surely_over(state.longest, self.clock_margin);
        state.stray_until().map_or(state.server_until, |until| state.server_until.max(until.after(covers)))
    }

    pub(crate) fn stray_until(&self) -> Option<Moment> {
        self.state.lock().stray_until()
    }
}

/// Watches one share of a hold, also when its guard is gone.
#[derive(Clone)]
pub(crate) struct Watch {
    hold: Arc<Hold>,
    share: Share,
    pub(crate) token: FencingToken,
    end: Arc<End>,
}

impl Watch {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// A share that was released stays held.
    pub(crate) fn state(&self) -> HoldState {
        match self.end.ended.get() {
            Some(Ended::Lost(reason)) => return HoldState::Lost(*reason),
            Some(Ended::Released) => return HoldState::Held,
            None => {}
        }
        let now = self.hold.clock.now();
        let mut state = self.hold.state.lock();
        self.hold.look(&mut state, now);
        state.state_of(&self.share, now)
    }

    fn ended_now(&self) -> Option<Ended> {
        match (self.end.ended.get(), self.state()) {
            (Some(ended), _) => Some(*ended),
            (None, HoldState::Lost(reason)) => Some(Ended::Lost(reason)),
            (None, HoldState::Held | HoldState::Unconfirmed) => None,
        }
    }

    /// Returns when the share is over.
    pub(crate) async fn ended(&self) -> Ended {
        loop {
            let (changed, ended) = (self.hold.changed.notified(), self.end.changed.notified());
            tokio::pin!(changed, ended);
            changed.as_mut().enable();
            ended.as_mut().enable();
            if let Some(ended) = self.ended_now() {
                return ended;
            }
            let until = self.hold.deadline().min(self.share.ends);
            tokio::select! {
                biased;
                () = changed => {}
                () = ended => {}
                () = self.hold.clock.sleep_until(until) => {}
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

impl End {
    fn set(&self, ended: Ended) {
        // Set once: by whoever removes the share.
        if self.ended.set(ended).is_err() {
            debug_assert!(false, "a share ends once");
        }
        self.changed.notify_waiters();
    }
}

/// A renewal comes after a third of the lease, with a little jitter, so that holds that were taken
/// together spread over the interval and two tries fit into what is left.
fn renewal_interval(lease: Duration) -> Duration {
    let third = lease / 3;
    third.mul_f64(0.875 + fastrand::f64() / 4.0)
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Hold")
            .field("lock", &self.terms.key.name())
            .field("id", &self.terms.id.as_str())
            .field("mode", &self.terms.mode)
            .field("token", &self.terms.token.plus(state.turn))
            .field("phase", &state.phase)
            .field("guards", &state.shares.len())
            .finish_non_exhaustive()
    }
}
