//! State of one hold in its cell: its deadline, its end, and the guards that share it.
//!
//! The states are: held -> (unconfirmed <-> held) -> lost or released. An end is final: no later event brings a hold
//! back, not even the answer to a renewal. The passing of the deadline by the local clock is enough to end a hold. So a
//! guard learns of the end without a network.
//!
//! The server knows only the hold, and users of the crate have guards. Each guard has a share of the hold, with a lease
//! and an end of its own. Renewals request the longest lease that one of the guards still needs. A further reader may
//! join the hold if a recent answer of the server says that no writer waits. When the guard of a writer ends, the next
//! waiting writer of the process may take over the hold. That writer gets the next of the tokens that the server
//! reserved with the grant.

mod at_least;
mod cache;
mod conversion;
mod promise;
mod renewal;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::AcquisitionId;
use crate::base::backoff::{Backoff, Jitter};
use crate::base::error::LossReason;
use crate::base::events::Loss;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::mode::Mode;
use crate::base::recalls::Reception;
use crate::base::reentry::OwnerId;
use crate::lock::effects::{Event, Rules};
use crate::lock::end::{End, Ended, HoldState};
use crate::lock::shares::{Share, ShareId, ShareRequest, Shares};
use crate::lock::side::{First, WaiterId};

pub(crate) use at_least::AtLeast;
use at_least::RestState;
pub(crate) use cache::{CacheAnswer, CacheOutcome, CacheState};
use conversion::ConversionInDoubt;
pub(crate) use conversion::{LeftOpen, OpenConversion};
use promise::Promise;
pub(crate) use renewal::RenewalConfirmed;

/// Value of `share_until` with which no further reader may join the hold.
const CLOSED: Moment = Moment::START;

/// Time that one answer of the server grants to a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// Send time of the request that the server answered.
    pub(crate) sent: Moment,
    pub(crate) remaining: Duration,
    /// Lease that was requested. If a notification brought the grant, this is the claim instead: the shorter time for
    /// which the server grants the lock to a waiter.
    pub(crate) asked: Duration,
    /// Server time of the answer. Zero if a notification brought the grant, or if several servers answered.
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
    /// The hold was cached and is to be released.
    GivenUp,
}

/// Result of the removal of a guard's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShareRemoved {
    /// Other guards still share the hold.
    Shared,
    /// The next writer of this process has the hold.
    HandedOver(ShareId),
    /// The last guard is removed, and the hold stays cached for the next guard.
    Kept,
    /// The last guard is removed, and the server must get a release.
    Last,
    /// The last guard is removed. Its share was over before the removal.
    LastLate(LossReason),
    /// The hold or the share was over before the removal.
    Lost(LossReason),
}

/// Result of a waiter's attempt to take its share.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// The waiter has the share, with this token.
    Taken(FencingToken),
    /// Too little of the lease is left for a new guard. The waiter tries again when it is woken, and at the latest at
    /// `until`.
    Short {
        until: Moment,
        /// True if the hold is unconfirmed, for example because a renewal was not answered.
        is_late: bool,
    },
    /// The hold or the share is over.
    Over,
}

/// Identity of a hold, which never changes.
#[derive(Clone, Debug)]
pub(crate) struct GrantIdentity {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    /// First token of the hold, and the number of its tokens.
    pub(crate) token: FencingToken,
    pub(crate) tokens: u64,
}

/// Grant that is to become a hold.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) granting: GrantIdentity,
    pub(crate) grant: Grant,
    /// Share of the first guard.
    pub(crate) share: Share,
    /// All copies of the granted request, also those that may still reach the server.
    pub(crate) in_doubt_requests: InDoubt,
    /// Moment until which further readers may join the hold, or `None` if a writer waits.
    pub(crate) share_until: Option<Moment>,
    /// True if a notification brought the grant. The server then keeps the hold only for the claim, unless a renewal
    /// extends the hold.
    pub(crate) is_claim: bool,
    /// Cache state, and the parts of the server's answer that concern caching. `None` if the hold may not be cached.
    pub(crate) cache: Option<(Box<CacheState>, Option<CacheAnswer>)>,
    /// Spreads the renewals of holds that were granted together.
    pub(crate) jitter: Jitter,
}

impl NewHold {
    /// Returns the moment until which enough of the requested lease is left for the first guard. If a notification brought
    /// the grant, the claim takes the place of the lease. A claim is short, so a large `max_clock_skew` may leave less of
    /// it than the time until its first renewal. The guard then waits for that renewal.
    pub(crate) fn enough_until(&self, max_clock_skew: Duration) -> Moment {
        let Grant { sent, remaining, asked, .. } = self.grant;
        let until = lease::valid_until(sent, remaining, max_clock_skew);
        let outlasts_renewal = !self.is_claim || until >= sent.after(remaining.min(asked) / 2);
        if outlasts_renewal { until.before(lease::start(asked, max_clock_skew)) } else { Moment::START }
    }

    /// Returns the send time of the request that the server granted, or `None` if a notification brought the grant.
    pub(super) fn answers(&self) -> Option<Moment> {
        (!self.is_claim).then_some(self.grant.sent)
    }
}

#[derive(Clone, Hash, Debug)]
pub(super) struct HoldRecord {
    mode: Mode,
    token: FencingToken,
    tokens: u64,
    phase: Phase,
    /// True while a request to convert this hold to the other side is not answered. Meanwhile renewals go on, and no
    /// guard joins.
    is_converting: bool,
    /// True if a renewal did not find the hold on the server while a conversion was under way.
    is_missed: bool,
    /// Local deadline that follows from the answers of the server. Other code calls `deadline()`, because a conversion
    /// in doubt may end the hold earlier.
    granted_until: Moment,
    /// Deadline that the server has granted, by the server's clock.
    promise: Promise,
    /// Present while the server may have carried out a request to convert the hold, or may still carry it out.
    in_doubt: Option<Box<ConversionInDoubt>>,
    /// End of the longest requested lease. A share that ends before needs no renewal.
    asked_until: Moment,
    /// Lease of the last answered request.
    asked: Duration,
    renewal: RenewalState,
    /// Send time of the newest answered request.
    answered: Moment,
    /// Waiters that wait for the answer to a renewal, because too little of the lease is left for their shares.
    awaited: Option<Box<AwaitedRenewal>>,
    backoff: Backoff,
    jitter: Jitter,
    /// Latest moment at which the hold can end on the server because of the requests that were sent. The function
    /// `server_until()` also counts copies of requests that may still arrive.
    server_until: Moment,
    /// Copies of the acquisition request. A reader repeats this request to ask the server whether it may join. The
    /// field also has the longest lease that the copies and the renewals have requested.
    copies: InDoubt,
    shares: Shares,
    /// Moment until which readers may join the hold.
    share_until: Moment,
    /// Time of the grant, and the number of hand-offs since then.
    began: Moment,
    handoffs: u64,
    /// True if a notification brought the grant and no answer of the server has confirmed the hold since.
    is_claim: bool,
    /// Cache state. Present if the hold may be cached when its last guard has left.
    cache: Option<Box<CacheState>>,
    /// Present if the hold is to rest after its use.
    rest: Option<Box<RestState>>,
}

/// Waiters that wait for the answer to a renewal. Until the answer, their shares are unclaimed: such a share is over
/// soon if its waiter does not take it.
#[derive(Clone, Hash, Debug, Default)]
struct AwaitedRenewal {
    /// Longest lease that one of these waiters wants.
    lease: Duration,
    waiters: BTreeSet<WaiterId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RenewalState {
    Due(Moment),
    /// The renewal is due and waits in the queue of the route that serves the lock.
    InLine,
    Underway,
    /// No renewal is needed, because the requested leases last to the ends of all shares.
    Needless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Held,
    Unconfirmed,
    Released,
    Lost(LossReason),
}

impl Hash for Phase {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(match self {
            Self::Held => 0,
            Self::Unconfirmed => 1,
            Self::Released => 2,
            Self::Lost(reason) => 3 + *reason as u8,
        });
    }
}

impl Phase {
    fn is_live(self) -> bool {
        matches!(self, Self::Held | Self::Unconfirmed)
    }
}

impl HoldRecord {
    /// Creates a hold with its first guard.
    pub(super) fn new(granted: NewHold, event: &Event<'_>) -> (Self, ShareId) {
        let NewHold { granting, grant, share, share_until, is_claim, jitter, .. } = granted;
        let (mut copies, cache) = (granted.in_doubt_requests, granted.cache);
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
            jitter,
            server_until: grant.sent,
            copies,
            shares,
            share_until: share_until.unwrap_or(CLOSED),
            began: event.now,
            handoffs: 0,
            is_claim,
            cache: None,
            rest: None,
        };
        if let Some((cache, cache_answer)) = cache {
            record.cache = Some(cache);
            cache_answer.into_iter().for_each(|cache_answer| record.on_cache_answer(cache_answer, event));
        }
        record.apply(grant, event);
        (record, share_id)
    }

    /// Applies the grant in an answer of the server. The deadline moves back only if the answer shows that the server
    /// has lost an earlier grant.
    fn apply(&mut self, grant: Grant, event: &Event<'_>) {
        let Grant { sent, remaining, asked, .. } = grant;
        let (promise, shows_loss) = (Promise::of(&grant), self.shows_loss(&grant, event.now));
        self.promise = if shows_loss { promise } else { self.promise.and(promise) };
        if shows_loss {
            self.granted_until = sent;
            self.asked_until = sent;
        }
        let trusted = self.trusted_time(&grant);
        self.granted_until = self.granted_until.max(lease::valid_until(sent, trusted, event.max_clock_skew));
        self.asked_until = self.asked_until.max(sent.after(asked));
        self.asked = asked;
        self.answered = self.answered.max(sent);
        let covers = lease::surely_over(remaining, event.max_clock_skew);
        self.server_until = self.server_until.max(sent.after(covers));
        self.renewal = if self.needs_renewal() || self.is_cached() {
            RenewalState::Due(sent.after(self.renewal_interval(remaining.min(asked))))
        } else {
            RenewalState::Needless
        };
    }

    /// Returns true if the answer shows that the server has lost an earlier grant. For example, the new primary after a
    /// failover may not know the last renewal.
    ///
    /// In that case only this answer counts. There are two signs of such a loss. The first sign is that the deadline by
    /// the server's clock has become earlier. The second sign is for answers without a server time: the remaining time,
    /// counted from now, ends before the local deadline. It is not counted from the send time, because the server may
    /// have read its clock later than that. A guard would then report a loss that did not happen.
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

    /// Returns the token that the guards have now.
    pub(super) fn current_token(&self) -> FencingToken {
        self.cache.as_ref().and_then(|keep| keep.last_token()).unwrap_or_else(|| self.token.plus(self.handoffs))
    }

    /// Returns the owners of the guards.
    pub(super) fn owners(&self) -> Vec<OwnerId> {
        self.shares.owners()
    }

    pub(super) fn began(&self) -> Moment {
        self.began
    }

    pub(super) fn guards(&self) -> usize {
        self.shares.len() - usize::from(self.is_cached())
    }

    /// Returns true if a renewal was not answered, or if a conversion of the hold is in doubt.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.phase == Phase::Unconfirmed
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase.is_live()
    }

    /// Returns the local deadline. While a conversion is in doubt, the server has either the old hold or the new one.
    /// The earlier of their two deadlines then counts.
    pub(super) fn deadline(&self) -> Moment {
        self.in_doubt.as_ref().map_or(self.granted_until, |new| self.granted_until.min(new.until))
    }

    /// Returns the remaining time of a grant, limited to the longest lease that was requested.
    ///
    /// A server whose clock was set back reports too long a time, because it does not change the stored deadline of the
    /// hold. When the clock is right again, the server admits other holders at that deadline. Without the limit, a
    /// holder that has lost its connection by then would still rely on its hold.
    ///
    /// The limit is not the lease of the answered request. The answer to a renewal with a short lease may report the
    /// rest of a longer lease. The grant of a notification needs no limit here. Its waiter has limited the time
    /// already, and the time counts from an earlier answer.
    fn trusted_time(&self, grant: &Grant) -> Duration {
        let most = match &self.rest {
            // The server keeps the hold for longer than its lease. After a failover that lost this, it does not.
            Some(rest) if rest.until().is_some() => grant.asked,
            _ => self.copies.longest_lease().max(grant.asked),
        };
        if self.is_claim { grant.remaining } else { grant.remaining.min(most) }
    }

    /// Returns the latest end of the hold on the server, with the copies of requests that may still arrive.
    pub(super) fn server_until(&self, now: Moment, rules: &Rules) -> Moment {
        let covers = lease::surely_over(self.copies.longest_lease(), rules.max_clock_skew);
        self.arrives_until(now, rules).map_or(self.server_until, |until| self.server_until.max(until.after(covers)))
    }

    /// Returns the latest moment at which a copy of the acquisition request may reach the server.
    pub(super) fn arrives_until(&self, now: Moment, rules: &Rules) -> Option<Moment> {
        self.copies.until(now.after(rules.max_delay))
    }

    /// Returns true if a share that ends at `ends` needs no renewal.
    fn covers(&self, ends: Moment) -> bool {
        ends <= self.asked_until
    }

    /// Returns true if the hold ends only because this share ends. The requested leases then last to the end of the
    /// share, and no conversion in doubt has made the deadline earlier.
    fn was_to_end(&self, ends: Moment) -> bool {
        self.covers(ends) && self.deadline() == self.granted_until
    }

    fn needs_renewal(&self) -> bool {
        self.shares.last_end().is_some_and(|ends| !self.covers(ends))
    }

    /// Returns the time at which the last share ends. The share of a leaked guard counts too.
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

    /// Ends the hold as lost if its deadline has passed.
    pub(super) fn look(&mut self, event: &mut Event<'_>) {
        if self.phase.is_live() && event.now >= self.deadline() {
            self.next_end(LossReason::Expired, event);
        }
    }

    fn next_end(&mut self, reason: LossReason, event: &mut Event<'_>) {
        self.phase = Phase::Lost(reason);
        // `end_cached` comes first, because a cached hold has a report of its own, and its share has no watcher.
        let was_idle = self.end_cached();
        let (mode, token, held) = (self.mode, self.current_token(), event.now.since(self.began));
        if was_idle {
            event.cached_lost(Loss { mode, token, reason, held });
        } else if let Next::Lost(reason) = self.due() {
            event.add_loss(Loss { mode, token, reason, held });
        }
        self.tell_awaiting(event);
        for (share, end) in self.shares.watched_shares() {
            if let HoldState::Lost(reason) = self.state_of(share, event.now) {
                event.add_end(Arc::clone(end), Ended::Lost(reason));
            }
        }
    }

    /// Ends the hold as lost. Returns false if it ended before.
    pub(super) fn lose(&mut self, reason: LossReason, event: &mut Event<'_>) -> bool {
        let live = self.phase.is_live();
        if live {
            self.next_end(reason, event);
        }
        live
    }

    /// Returns the share and its end, for a watcher. The watcher may live longer than the guard.
    pub(super) fn watch(&mut self, share_id: ShareId) -> (Share, Arc<End>) {
        (self.shares.get(share_id.slot), self.shares.watch(share_id.slot))
    }

    // Guards.

    /// Returns true if another guard may share the hold.
    fn is_open(&self) -> bool {
        self.phase == Phase::Held && !self.is_converting
    }

    /// Returns true if a new guard has enough time until the next renewal. The guard needs half of `lease`, or half of
    /// the time until its end if that is shorter. The next renewal must be planned or under way, unless this guard
    /// needs none.
    #[inline]
    fn lasts(&self, share: &Share, lease: Duration, now: Moment) -> bool {
        let wanted_until = now.after(lease).min(share.ends);
        self.is_open()
            && self.deadline() >= now.halfway_to(wanted_until)
            && (self.renewal != RenewalState::Needless || self.covers(share.ends))
    }

    /// Returns true if a guard that uses the grant of another guard has enough time until the next renewal. The grant
    /// may be a short claim, so the guard needs no more than the lease of the last answered request.
    fn suits_next(&self, share: &Share, now: Moment) -> bool {
        self.lasts(share, share.lease.min(self.asked), now)
    }

    #[inline]
    fn admit(&mut self, share: Share) -> ShareId {
        let slot = self.take_cached_place(share).unwrap_or_else(|| self.shares.add(share));
        ShareId { slot, token: self.current_token() }
    }

    /// Lets a reader join the hold. A recent answer must say that no writer waits, or a live subscription must have
    /// reported no waiter.
    #[inline]
    pub(super) fn join(&mut self, wants: ShareRequest, heard: &Reception, now: Moment) -> Option<ShareId> {
        let share = wants.from(now);
        // If the hold is over by the clock, the reader does not join. A later event ends the hold and wakes the
        // watchers.
        let may = self.mode == Mode::Read
            && (now < self.share_until || self.is_open_to_all(heard, now))
            && now < self.deadline()
            && self.lasts(&share, share.lease, now);
        may.then(|| {
            self.set_cache_for(wants.cache_for);
            self.admit(share)
        })
    }

    /// Lets a reader join that was waiting in this process when the hold was granted. The reader enters together with
    /// the first one.
    pub(super) fn join_phase(&mut self, share: Share, event: &mut Event<'_>) -> Option<ShareId> {
        self.look(event);
        let may = self.suits_next(&share, event.now);
        may.then(|| self.admit(share.as_unclaimed(event.now)))
    }

    /// Adds a guard for an owner that has a guard of this hold already. The new guard has a lease and an end of its
    /// own.
    pub(super) fn join_own(&mut self, share: Share, event: &mut Event<'_>) -> Option<ShareId> {
        let own = self.is_held_by(share.owner, event);
        own.then(|| {
            let share_id = self.admit(share);
            self.renew_if_needed(event.now);
            share_id
        })
    }

    /// Returns true if this owner has a guard of the hold.
    pub(super) fn is_held_by(&mut self, owner: OwnerId, event: &mut Event<'_>) -> bool {
        self.look(event);
        self.phase.is_live() && !self.is_converting && self.shares.has_owner(owner, event.now)
    }

    /// Removes a guard from a hold that has several guards. Returns false and changes nothing if the guard is the last
    /// one or has a watcher.
    #[inline]
    pub(super) fn leave_others(&mut self, share_id: ShareId) -> bool {
        let may = self.shares.len() > 1 && !self.shares.is_watched(share_id.slot);
        if may {
            self.shares.remove(share_id.slot);
        }
        may
    }

    /// Removes a guard. After the last guard the hold ends, unless the next waiting writer of this process takes the
    /// hold, or the hold stays cached.
    pub(super) fn remove_share(&mut self, share_id: ShareId, next: First, event: &mut Event<'_>) -> ShareRemoved {
        self.look(event);
        let (share, end) = self.shares.remove(share_id.slot);
        let lost = match self.state_of(&share, event.now) {
            HoldState::Lost(reason) => Some(reason),
            HoldState::Held | HoldState::Unconfirmed => None,
        };
        if let Some(end) = end {
            event.add_end(end, lost.map_or(Ended::Released, Ended::Lost));
        }
        if !self.shares.is_empty() || !self.phase.is_live() {
            return lost.map_or(ShareRemoved::Shared, ShareRemoved::Lost);
        }
        match next {
            First::Waits(wants) if lost.is_none() => {
                if let Some(share_id) = self.hand_off(wants.from(event.now), event) {
                    return ShareRemoved::HandedOver(share_id);
                }
            }
            First::Nobody if lost.is_none() && self.cache(share.lease, event) => return ShareRemoved::Kept,
            // The hold ends. A waiting writer that cannot take the hold needs a request. A request of the writers that
            // the server has already came first, so no writer may get the hold.
            _ => {}
        }
        self.phase = Phase::Released;
        lost.map_or(ShareRemoved::Last, ShareRemoved::LastLate)
    }

    /// Hands the hold off to the next writer of this process. Each writer has a token of its own.
    fn hand_off(&mut self, next: Share, event: &Event<'_>) -> Option<ShareId> {
        let now = event.now;
        let is_within_budget = self.handoffs + 1 < event.max_handoffs && now.since(self.began) < event.handoff_span;
        let may_go_on = is_within_budget || self.is_open_to_all(event.heard, now);
        if self.mode != Mode::Write
            || self.is_to_rest()
            || !may_go_on
            || !self.suits_next(&next, now)
            || !self.take_token()
        {
            return None;
        }
        Some(self.admit(next.as_unclaimed(now)))
    }

    /// Lets a waiter take its share. If the hold has too little time left, the waiter waits for the answer to a renewal
    /// that is sent at `since` or later. `since` is the time of the waiter's first attempt. After that answer the
    /// waiter takes the share, however much time is left.
    pub(super) fn accept(
        &mut self,
        waiter_id: WaiterId,
        (share_id, share): (ShareId, Share),
        since: Moment,
        event: &mut Event<'_>,
    ) -> Accepted {
        let now = event.now;
        self.look(event);
        if let HoldState::Lost(_) = self.state_of(&self.shares.get(share_id.slot), now) {
            return Accepted::Over;
        }
        let wants = share.lease_at(now);
        let was_renewed = self.answered >= since && self.asked >= wants;
        if self.deadline().since(now) < lease::start(wants, event.max_clock_skew) && !was_renewed {
            return self.await_renewal(waiter_id, (share_id, share), since, now);
        }
        self.take(share_id, share, now)
    }

    /// Lets a waiter take its share of a hold whose grant has enough time for it.
    pub(super) fn accept_granted(&mut self, (share_id, share): (ShareId, Share), event: &mut Event<'_>) -> Accepted {
        self.look(event);
        match self.state_of(&self.shares.get(share_id.slot), event.now) {
            HoldState::Lost(_) => Accepted::Over,
            HoldState::Held | HoldState::Unconfirmed => self.take(share_id, share, event.now),
        }
    }

    fn take(&mut self, share_id: ShareId, share: Share, now: Moment) -> Accepted {
        self.shares.replace(share_id.slot, share);
        // A renewal since the hand-off may have covered only the unclaimed share, which ends earlier.
        if self.renewal == RenewalState::Needless && self.needs_renewal() {
            self.plan_renewal(now);
        }
        Accepted::Taken(if self.mode == Mode::Write { self.current_token() } else { share_id.token })
    }

    /// Makes a share that no waiter has taken the share of this waiter.
    pub(super) fn hand_to(&mut self, share_id: ShareId, wants: ShareRequest, event: &mut Event<'_>) {
        self.look(event);
        if matches!(self.state_of(&self.shares.get(share_id.slot), event.now), HoldState::Lost(_)) {
            return;
        }
        self.set_cache_for(wants.cache_for);
        self.shares.replace(share_id.slot, wants.from(event.now));
        if self.needs_renewal() {
            self.plan_renewal(event.now);
        }
        self.note_unclaimed(share_id, event.now);
    }

    /// Lets a share end early unless its waiter takes it.
    pub(super) fn note_unclaimed(&mut self, share_id: ShareId, now: Moment) {
        let share = self.shares.get(share_id.slot);
        self.shares.replace(share_id.slot, share.as_unclaimed(now));
    }

    /// Lets a waiter take its share after the answer to a renewal that is sent at `since` or later.
    pub(super) fn accept_renewed(
        &mut self,
        waiter_id: WaiterId,
        (share_id, share): (ShareId, Share),
        since: Moment,
        event: &mut Event<'_>,
    ) -> Accepted {
        self.look(event);
        let is_over = matches!(self.state_of(&self.shares.get(share_id.slot), event.now), HoldState::Lost(_));
        let was_renewed = self.answered >= since && self.asked >= share.lease_at(event.now);
        if is_over || was_renewed {
            return self.accept(waiter_id, (share_id, share), since, event);
        }
        self.await_renewal(waiter_id, (share_id, share), since, event.now)
    }

    /// Plans a renewal at the usual time after the last answer, if none is planned.
    fn plan_renewal(&mut self, now: Moment) {
        if self.renewal == RenewalState::Needless {
            self.renewal = RenewalState::Due(self.answered.after(self.renewal_interval(self.asked)).max(now));
        }
    }

    /// Tells all watchers of the hold that its state or its end may have changed.
    fn tell_watchers(&self, event: &mut Event<'_>) {
        self.shares.watched_shares().for_each(|(_, end)| event.add_change(Arc::clone(end)));
    }

    /// Returns the time until the next renewal: a third of the lease, with a jitter of up to an eighth of that third.
    /// The jitter spreads the renewals of holds that were granted together. The rest of the lease leaves time for two
    /// more tries.
    fn renewal_interval(&self, lease: Duration) -> Duration {
        (lease / 3).mul_f64(0.875 + self.jitter.fraction() / 4.0)
    }
}

impl std::fmt::Display for HoldRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} with {} guards", self.phase, self.shares.len())
    }
}
