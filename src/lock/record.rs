//! State of one hold in its cell: its deadline, its end, and the guards that share it.
//!
//! States: held -> (unconfirmed <-> held) -> lost or released. An end is final: nothing that arrives later, a renewal's
//! answer included, brings a hold back. The local clock alone can end it, so a guard knows without a network.
//!
//! Redis sees the hold, users see guards: each has a share with a lease and an end of its own. The hold is renewed for
//! the longest lease that its guards still want. Readers join while a recent answer of the server says that no writer
//! waits. A writer hands the hold off to the next one of its process, with the next token that the grant reserved.

mod cache;
mod conversion;
mod promise;
mod renewal;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::attempt::AcquisitionId;
use crate::base::backoff::Backoff;
use crate::base::error::LossReason;
use crate::base::events::Loss;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::mode::Mode;
use crate::base::reentry::OwnerId;
use crate::lock::effects::{Rules, Signals};
use crate::lock::end::{End, Ended, HoldState};
use crate::lock::shares::{Share, ShareId, ShareRequest, Shares};
use crate::lock::side::First;

pub(crate) use cache::{CacheAnswer, CacheOutcome, CacheState, CachedCount, CachedPermit};
use conversion::ConversionInDoubt;
pub(crate) use conversion::{LeftOpen, OpenConversion};
use promise::Promise;
pub(crate) use renewal::RenewalConfirmed;

/// Join window of a hold that no further reader may join, since a writer waits.
const CLOSED: Moment = Moment::from_nanos(0);

/// Grant in one answer of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// Send time of the request that the server answered.
    pub(crate) sent: Moment,
    pub(crate) remaining: Duration,
    /// Lease that was requested.
    pub(crate) asked: Duration,
    /// Time of the server when it answered. Zero for a notification, and where several servers answered.
    pub(crate) server: ServerTime,
}

/// Next event of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing is due before this moment.
    At(Moment),
    /// The hold was lost.
    Lost(LossReason),
    /// The hold was released.
    Released,
    /// The hold was cached, and is to be released.
    GivenUp,
}

/// Result of the removal of a guard's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShareRemoved {
    /// Other guards still share it.
    Shared,
    /// The next writer of this process has it.
    HandedOver(ShareId),
    /// Removal of the last guard: the hold stays cached for the next.
    Kept,
    /// Removal of the last guard: the server must be notified.
    Last,
    /// Removal of the last guard, whose own time was over before.
    LastLate(LossReason),
    /// The hold was over before.
    Lost(LossReason),
}

/// Result of a waiter's attempt to take the share that it has.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// The waiter has the share, with this token.
    Taken(FencingToken),
    /// No token is left: the waiter has to ask for more.
    Tokenless,
    /// Too little of the lease is left to start with. The waiter looks again when `answer` is notified, and at `until`.
    Short {
        answer: Arc<Notify>,
        until: Moment,
        /// True if a renewal went unanswered.
        is_late: bool,
    },
    /// The hold or the share is over.
    Over,
}

/// Constant facts of a hold.
#[derive(Clone, Debug)]
pub(crate) struct GrantIdentity {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    /// First of its tokens, and their number.
    pub(crate) token: FencingToken,
    pub(crate) tokens: u64,
}

/// Grant that is to become a hold.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) granting: GrantIdentity,
    pub(crate) grant: Grant,
    /// Share of its first guard.
    pub(crate) share: Share,
    /// Copies of the request that it answers, with those in doubt.
    pub(crate) in_doubt_requests: InDoubt,
    /// End of the join window for further readers; `None` if a writer waits.
    pub(crate) share_until: Option<Moment>,
    /// True if the grant came by a notification: until the next answer the server keeps it only for the claim.
    pub(crate) is_claim: bool,
    /// Cache state, with the answer's statement about it, if the hold may be cached.
    pub(crate) cache: Option<(Box<CacheState>, Option<CacheAnswer>)>,
}

impl NewHold {
    /// Returns true if its first guard has enough to start with: of the lease, or of the claim with which it begins at
    /// once.
    pub(crate) fn has_enough(&self, now: Moment, max_clock_skew: Duration) -> bool {
        let Grant { sent, remaining, asked, .. } = self.grant;
        lease::valid_until(sent, remaining, max_clock_skew).since(now) >= lease::start(asked, max_clock_skew)
    }

    /// Send time of the request that it answers; a notification answers none.
    pub(super) fn answers(&self) -> Option<Moment> {
        (!self.is_claim).then_some(self.grant.sent)
    }
}

#[derive(Debug)]
pub(super) struct HoldRecord {
    mode: Mode,
    token: FencingToken,
    tokens: u64,
    phase: Phase,
    /// True while a conversion of this hold is unanswered. The hold is renewed meanwhile, and no guard joins.
    is_converting: bool,
    /// True if the server did not know the hold while it may have been converted.
    is_missed: bool,
    /// Local deadline by the server's last answer; `deadline()` is the one that counts.
    granted_until: Moment,
    /// Deadline that the server has granted, by its own clock.
    promise: Promise,
    /// Present while a request to convert it may have been carried out, or may yet be.
    in_doubt: Option<Box<ConversionInDoubt>>,
    /// End of the longest lease that was requested. A share that ends before needs no renewal.
    asked_until: Moment,
    /// Lease of the last request.
    asked: Duration,
    renewal: RenewalState,
    /// Send time of the newest answered request.
    answered: Moment,
    /// Waiters with too little to start with.
    awaited: Option<Box<Awaited>>,
    backoff: Backoff,
    /// End of the server's hold if every request that was sent has arrived, except in-doubt ones.
    server_until: Moment,
    /// Copies of the acquisition, and of its repeats by which readers ask to join. Also the longest lease that they and
    /// renewals ask for.
    copies: InDoubt,
    shares: Shares,
    /// End of the join window for readers.
    share_until: Moment,
    /// Time of the grant, and the number of writers that have had it since.
    began: Moment,
    handoffs: u64,
    /// True if it was granted by a notification and the server has not answered for it since.
    is_claim: bool,
    /// Cache state: present if the hold may be cached when its last guard has left.
    cache: Option<Box<CacheState>>,
}

/// Waiters for the answer to a renewal: until then they have unclaimed shares.
#[derive(Debug, Default)]
struct Awaited {
    /// Longest lease that one of them wants.
    lease: Duration,
    answers: Vec<Arc<Notify>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RenewalState {
    Due(Moment),
    /// The renewal is due, and waits for others of its route.
    InLine,
    Underway,
    /// The server's deadline reaches the end of all shares.
    Needless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Held,
    Unconfirmed,
    Released,
    Lost(LossReason),
}

impl Phase {
    fn is_live(self) -> bool {
        matches!(self, Self::Held | Self::Unconfirmed)
    }
}

impl HoldRecord {
    /// Creates a hold with its first guard.
    pub(super) fn new(granted: NewHold, now: Moment, rules: &Rules) -> (Self, ShareId) {
        let NewHold { granting, grant, share, in_doubt_requests: mut copies, share_until, is_claim, cache: keep } =
            granted;
        copies.ask_for(grant.asked);
        let mut shares = Shares::new();
        let share_id = ShareId { slot: shares.add(share), token: granting.token };
        let mut record = Self {
            mode: granting.mode,
            token: granting.token,
            tokens: granting.tokens,
            phase: Phase::Held,
            is_converting: false,
            is_missed: false,
            granted_until: grant.sent,
            promise: Promise::default(),
            in_doubt: None,
            asked_until: grant.sent,
            asked: grant.asked,
            renewal: RenewalState::Needless,
            answered: grant.sent,
            awaited: None,
            backoff: Backoff::new(),
            server_until: grant.sent,
            copies,
            shares,
            share_until: share_until.unwrap_or(CLOSED),
            began: now,
            handoffs: 0,
            is_claim,
            cache: None,
        };
        if let Some((keep, word)) = keep {
            record.cache = Some(keep);
            word.into_iter().for_each(|word| record.on_cache_answer(word, now));
        }
        record.apply(grant, now, rules);
        (record, share_id)
    }

    /// Takes over a grant from some moment before now. The deadline does not move back, unless the server has lost an
    /// earlier grant.
    fn apply(&mut self, grant: Grant, now: Moment, rules: &Rules) {
        let Grant { sent, remaining, asked, .. } = grant;
        let (promise, shows_loss) = (Promise::of(&grant), self.shows_loss(&grant, now));
        self.promise = if shows_loss { promise } else { self.promise.and(promise) };
        if shows_loss {
            self.granted_until = sent;
            self.asked_until = sent;
        }
        let trusted = self.trusted(&grant);
        self.granted_until = self.granted_until.max(lease::valid_until(sent, trusted, rules.max_clock_skew));
        self.asked_until = self.asked_until.max(sent.after(asked));
        self.asked = asked;
        self.answered = self.answered.max(sent);
        let covers = lease::surely_over(remaining, rules.max_clock_skew);
        self.server_until = self.server_until.max(sent.after(covers));
        self.renewal = if self.needs_renewal() || self.is_cached() {
            RenewalState::Due(sent.after(renewal_interval(remaining.min(asked))))
        } else {
            RenewalState::Needless
        };
    }

    /// Returns true if the server has lost an earlier grant: as after a failover, if the new primary does not know the
    /// last renewal.
    ///
    /// Then only this answer counts, from its send time. Without a server time the sign is a remaining time, as of now,
    /// below the one that this process counts on. As of the request it would prove nothing: the server may have read
    /// its clock later, and a guard would report a false end.
    fn shows_loss(&self, grant: &Grant, now: Moment) -> bool {
        let is_too_little = self.granted_until > now.after(grant.remaining) && self.answered <= grant.sent;
        is_too_little || self.promise.is_unknown_to(Promise::of(grant))
    }

    // Properties.

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// Token that its guards have now.
    pub(super) fn current_token(&self) -> FencingToken {
        self.cache.as_ref().and_then(|keep| keep.last_token()).unwrap_or_else(|| self.token.plus(self.handoffs))
    }

    pub(super) fn began(&self) -> Moment {
        self.began
    }

    pub(super) fn guards(&self) -> usize {
        self.shares.len() - usize::from(self.is_cached())
    }

    /// Returns true if a renewal went unanswered, or it is in doubt whether the hold was converted.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.phase == Phase::Unconfirmed
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase.is_live()
    }

    /// Local deadline. While a conversion is in doubt, that of the hold that would end first.
    pub(super) fn deadline(&self) -> Moment {
        self.in_doubt.as_ref().map_or(self.granted_until, |new| self.granted_until.min(new.until))
    }

    /// Remaining time that counts: at most the longest lease that a request has asked for.
    ///
    /// A server whose clock has gone back reports more, since it never moves a deadline to an earlier time. When its
    /// clock is right again it admits others at the old deadline. A holder that is cut off would go on for as long as
    /// the clock was wrong. The longest lease counts, and not that of the request: the answer to a short renewal
    /// reports the rest of a longer lease. The grant of a notification is bounded by its waiter, and counts from an
    /// earlier answer.
    fn trusted(&self, grant: &Grant) -> Duration {
        let most = self.copies.longest_lease().max(grant.asked);
        if self.is_claim { grant.remaining } else { grant.remaining.min(most) }
    }

    /// End of the server's hold, whatever arrives.
    pub(super) fn server_until(&self, now: Moment, rules: &Rules) -> Moment {
        let covers = lease::surely_over(self.copies.longest_lease(), rules.max_clock_skew);
        self.arrives_until(now, rules).map_or(self.server_until, |until| self.server_until.max(until.after(covers)))
    }

    /// Latest moment at which a copy of the acquisition may arrive.
    pub(super) fn arrives_until(&self, now: Moment, rules: &Rules) -> Option<Moment> {
        self.copies.until(now.after(rules.max_delay))
    }

    /// Returns true if a share that ends at `ends` needs no renewal.
    fn covers(&self, ends: Moment) -> bool {
        ends <= self.asked_until
    }

    /// Returns true if the deadline follows from the end of this share, and not from a conversion in doubt.
    fn was_to_end(&self, ends: Moment) -> bool {
        self.covers(ends) && self.deadline() == self.granted_until
    }

    fn needs_renewal(&self) -> bool {
        self.shares.last_end().is_some_and(|ends| !self.covers(ends))
    }

    /// End of the last guard's time, though the guard may be forgotten.
    pub(super) fn last_end(&self) -> Moment {
        self.shares.last_end().unwrap_or(Moment::NEVER)
    }

    /// Returns the state of a share.
    pub(super) fn state_of(&self, share: &Share, now: Moment) -> HoldState {
        match self.phase {
            Phase::Lost(LossReason::Expired) if self.was_to_end(share.ends) => HoldState::Lost(LossReason::MaxHold),
            Phase::Lost(reason) => HoldState::Lost(reason),
            _ if now >= share.ends => HoldState::Lost(LossReason::MaxHold),
            Phase::Unconfirmed => HoldState::Unconfirmed,
            Phase::Held | Phase::Released => HoldState::Held,
        }
    }

    pub(super) fn share(&self, share_id: ShareId) -> Share {
        self.shares.get(share_id.slot)
    }

    // Ends.

    /// Looks at the clock: a hold whose deadline is reached is lost from here on.
    pub(super) fn look(&mut self, now: Moment, signals: &mut Signals) {
        if self.phase.is_live() && now >= self.deadline() {
            self.next_end(LossReason::Expired, now, signals);
        }
    }

    fn next_end(&mut self, reason: LossReason, now: Moment, signals: &mut Signals) {
        self.phase = Phase::Lost(reason);
        // First: a cached hold without a guard is reported as such, and its share has no watcher.
        let was_idle = self.end_cached();
        let (mode, token, held) = (self.mode, self.current_token(), now.since(self.began));
        if was_idle {
            signals.cached_lost(Loss { mode, token, reason, held });
        } else if let Next::Lost(reason) = self.due() {
            signals.lost(Loss { mode, token, reason, held });
        }
        self.tell_awaiting(signals);
        for (share, end) in self.shares.watched() {
            if let HoldState::Lost(reason) = self.state_of(share, now) {
                signals.ended(Arc::clone(end), Ended::Lost(reason));
            }
        }
    }

    /// Ends the hold as lost; `false` if it has ended before.
    pub(super) fn lose(&mut self, reason: LossReason, now: Moment, signals: &mut Signals) -> bool {
        let live = self.phase.is_live();
        if live {
            self.next_end(reason, now, signals);
        }
        live
    }

    /// Returns the share and its end, for a watcher that may outlive the guard.
    pub(super) fn watch(&mut self, share_id: ShareId) -> (Share, Arc<End>) {
        (self.shares.get(share_id.slot), self.shares.watch(share_id.slot))
    }

    // Guards.

    /// Returns true if another guard may share it.
    fn is_open(&self) -> bool {
        self.phase == Phase::Held && !self.is_converting
    }

    /// Returns true if a new guard gets what it wants until the next renewal. It gets half of `lease`, and that renewal
    /// is under way, due, or needless.
    #[inline]
    fn lasts(&self, share: &Share, lease: Duration, now: Moment) -> bool {
        let wanted_until = now.after(lease).min(share.ends);
        self.is_open()
            && self.deadline() >= now.halfway_to(wanted_until)
            && (self.renewal != RenewalState::Needless || self.covers(share.ends))
    }

    /// Returns true if a guard that takes over the grant of another gets what it wants until the next renewal. The
    /// grant may still be a claim, so the lease that was requested bounds what the guard wants.
    fn suits_next(&self, share: &Share, now: Moment) -> bool {
        self.lasts(share, share.lease.min(self.asked), now)
    }

    #[inline]
    fn admit(&mut self, share: Share) -> ShareId {
        let slot = self.take_cached_place(share).unwrap_or_else(|| self.shares.add(share));
        ShareId { slot, token: self.current_token() }
    }

    /// Lets a reader join, if a recent answer says that no writer waits, or a live subscription would report one.
    #[inline]
    pub(super) fn join(&mut self, wants: ShareRequest, now: Moment) -> Option<ShareId> {
        let share = wants.from(now);
        // The hold may be over by the clock. Then another event finds that and notifies the watchers.
        let may = self.mode == Mode::Read
            && (now < self.share_until || self.is_open_to_all(now))
            && now < self.deadline()
            && self.lasts(&share, share.lease, now);
        may.then(|| {
            self.set_cache_for(wants.cache_for);
            self.admit(share)
        })
    }

    /// Lets a reader join that waited at the time of the grant, and so enters with it.
    pub(super) fn join_phase(&mut self, share: Share, now: Moment, signals: &mut Signals) -> Option<ShareId> {
        self.look(now, signals);
        let may = self.suits_next(&share, now);
        may.then(|| self.admit(share.unclaimed(now)))
    }

    /// Adds a guard for an owner that has one, with a lease and an end of its own.
    pub(super) fn join_own(&mut self, share: Share, now: Moment, signals: &mut Signals) -> Option<ShareId> {
        let own = self.is_held_by(share.owner, now, signals);
        own.then(|| {
            let share_id = self.admit(share);
            self.renew_if_needed(now);
            share_id
        })
    }

    /// Returns true if this owner has a guard of it.
    pub(super) fn is_held_by(&mut self, owner: OwnerId, now: Moment, signals: &mut Signals) -> bool {
        self.look(now, signals);
        self.phase.is_live() && !self.is_converting && !self.lacks_token() && self.shares.has_owner(owner, now)
    }

    /// Removes one guard of several. Returns false if it is the last one, or has a watcher.
    #[inline]
    pub(super) fn leave_others(&mut self, share_id: ShareId) -> bool {
        let may = self.shares.len() > 1 && !self.shares.is_watched(share_id.slot);
        if may {
            self.shares.remove(share_id.slot);
        }
        may
    }

    /// Removes one guard. The last one ends the hold, unless the next local writer takes it or it stays cached.
    pub(super) fn remove_share(
        &mut self,
        share_id: ShareId,
        now: Moment,
        next: First,
        rules: &Rules,
        signals: &mut Signals,
    ) -> ShareRemoved {
        self.look(now, signals);
        let (share, end) = self.shares.remove(share_id.slot);
        let lost = match self.state_of(&share, now) {
            HoldState::Lost(reason) => Some(reason),
            HoldState::Held | HoldState::Unconfirmed => None,
        };
        if let Some(end) = end {
            signals.ended(end, lost.map_or(Ended::Released, Ended::Lost));
        }
        if !self.shares.is_empty() || !self.phase.is_live() {
            return lost.map_or(ShareRemoved::Shared, ShareRemoved::Lost);
        }
        match next {
            First::Waits(wants) if lost.is_none() => {
                if let Some(share_id) = self.hand_off(wants.from(now), now, rules) {
                    return ShareRemoved::HandedOver(share_id);
                }
            }
            First::Nobody if lost.is_none() && self.cache(share.lease, now) => return ShareRemoved::Kept,
            // A waiter here that cannot have the hold as it is asks the server. A leader that asks already is not
            // passed by.
            _ => {}
        }
        self.phase = Phase::Released;
        lost.map_or(ShareRemoved::Last, ShareRemoved::LastLate)
    }

    /// Hands the hold off to the next writer of this process, with a token of its own.
    fn hand_off(&mut self, next: Share, now: Moment, rules: &Rules) -> Option<ShareId> {
        let is_within_budget = self.handoffs + 1 < rules.max_handoffs && now.since(self.began) < rules.handoff_span;
        let may_go_on = is_within_budget && self.next_token().is_some() || self.is_open_to_all(now);
        if self.mode != Mode::Write || !may_go_on || !self.suits_next(&next, now) {
            return None;
        }
        Some(self.admit_writer(next.unclaimed(now)))
    }

    /// Lets a waiter take its share, handed or granted. With too little left to start with, it waits for the answer to
    /// a renewal that is sent from `since` on. `since` is the time of its first look. Then it takes what that answer
    /// leaves.
    pub(super) fn accept(
        &mut self,
        share_id: ShareId,
        share: Share,
        since: Moment,
        now: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> Accepted {
        self.look(now, signals);
        if let HoldState::Lost(_) = self.state_of(&self.shares.get(share_id.slot), now) {
            return Accepted::Over;
        }
        let wants = share.lease_at(now);
        let was_renewed = self.answered >= since && self.asked >= wants;
        if self.deadline().since(now) < lease::start(wants, rules.max_clock_skew) && !was_renewed {
            return self.await_renewal(share_id, share, since, now);
        }
        if !self.ensure_token(now) {
            return Accepted::Tokenless;
        }
        self.shares.replace(share_id.slot, share);
        // A renewal in the meantime covered only the unclaimed share.
        if self.renewal == RenewalState::Needless && self.needs_renewal() {
            self.renewal = RenewalState::Due(self.answered.after(renewal_interval(self.asked)).max(now));
        }
        Accepted::Taken(if self.mode == Mode::Write { self.current_token() } else { share_id.token })
    }
}

/// Returns the time until the next renewal: a third of the lease, with a little jitter. The jitter spreads holds that
/// were taken together over the interval. Two tries fit into what is left.
fn renewal_interval(lease: Duration) -> Duration {
    let third = lease / 3;
    third.mul_f64(0.875 + fastrand::f64() / 4.0)
}

impl std::fmt::Display for HoldRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} with {} guards", self.phase, self.shares.len())
    }
}
