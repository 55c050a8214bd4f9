//! What the cell knows of one hold: until when it is valid, how it ended, which guards share it.
//!
//! States: held -> (unconfirmed <-> held) -> lost or released. An end is final: nothing that arrives later, a renewal's
//! answer included, brings a hold back. The local clock alone can end it, so a guard knows without a network.
//!
//! Redis sees the hold, users see guards: each has a share with a lease and an end of its own. The hold is renewed for the
//! longest of what its guards still want. Readers join while the server has said lately that no writer waits; a writer
//! passes the hold to the next one of its process, with the next of the tokens that the grant reserved.

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
pub(crate) use renewal::Confirmed;

/// A hold that no further reader may join: a writer waits.
const CLOSED: Moment = Moment::from_nanos(0);

/// What one answer of the server gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// When the copy of the request was sent that the server answered.
    pub(crate) sent: Moment,
    pub(crate) remaining: Duration,
    /// The lease that was asked for.
    pub(crate) asked: Duration,
    /// Time of the server when it answered. Zero where no single server did, or for a notification.
    pub(crate) server: ServerTime,
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
    /// It was idle, and is to be released.
    GivenUp,
}

/// What a guard finds when it lets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShareRemoved {
    /// Other guards still share it.
    Shared,
    /// The next writer of this process has it.
    HandedOver(ShareId),
    /// It was the last guard, and the hold stays for the next.
    Kept,
    /// It was the last guard: the server is to be told.
    Last,
    /// The same, but this guard's own time was over before.
    LastLate(LossReason),
    /// It was over before.
    Lost(LossReason),
}

/// What a waiter finds that takes what it has.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It is its own, with this token.
    Taken(FencingToken),
    /// There is no token left for it: whoever has it is to ask for more.
    Tokenless,
    /// There is too little left to start with. It looks again when this is notified, and at that moment.
    Short {
        answer: Arc<Notify>,
        until: Moment,
        /// A renewal went unanswered.
        is_late: bool,
    },
    /// It is over.
    Over,
}

/// What stays the same about a hold.
#[derive(Clone, Debug)]
pub(crate) struct GrantIdentity {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    /// The first of its tokens, and how many it has.
    pub(crate) token: FencingToken,
    pub(crate) tokens: u64,
}

/// A grant that is to become a hold.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) granting: GrantIdentity,
    pub(crate) grant: Grant,
    /// What its first guard wants.
    pub(crate) share: Share,
    /// Copies of the request that got it.
    pub(crate) in_doubt_requests: InDoubt,
    /// Further readers may join until then; none at all, if a writer waits.
    pub(crate) share_until: Option<Moment>,
    /// It came by a notification: until the next answer the server grants it no more than the claim.
    pub(crate) is_claim: bool,
    /// It may stay when its last guard has left, and what was said of that.
    pub(crate) cache: Option<(Box<CacheState>, Option<CacheAnswer>)>,
}

impl NewHold {
    /// Whether its first guard has enough to start with: of the lease, or of the claim with which it begins at once.
    pub(crate) fn has_enough(&self, now: Moment, max_clock_skew: Duration) -> bool {
        let Grant { sent, remaining, asked, .. } = self.grant;
        lease::valid_until(sent, remaining, max_clock_skew).since(now) >= lease::start(asked, max_clock_skew)
    }

    /// When the copy was sent that it answers; a notification answers none.
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
    /// It is to be given up for a hold of the other side; the answer has yet to come. It is renewed meanwhile, and nobody joins.
    is_converting: bool,
    /// The server did not know it while it may have been converted.
    is_missed: bool,
    /// By the server's last answer; `deadline()` is what counts.
    granted_until: Moment,
    /// What the server has granted, by its own clock.
    promise: Promise,
    /// While a request to convert it may have been carried out, or may yet be.
    in_doubt: Option<Box<ConversionInDoubt>>,
    /// How far the longest lease that was asked for reaches. A share that ends before needs no renewal.
    asked_until: Moment,
    /// The lease that was asked for last.
    asked: Duration,
    renewal: RenewalState,
    /// When that was sent which was answered last.
    answered: Moment,
    /// Of those who have too little to start with.
    awaited: Option<Box<Awaited>>,
    backoff: Backoff,
    /// When the server's hold is over even if every request that was sent has arrived, unless it is a stray one.
    server_until: Moment,
    /// Those of the acquisition, its repeats by which readers want to join among them, with the longest lease that they and renewals
    /// ask for.
    copies: InDoubt,
    shares: Shares,
    /// Readers may join until then.
    share_until: Moment,
    /// When it was granted, and how many writers have had it since.
    began: Moment,
    handoffs: u64,
    /// It was granted by a notification, and the server has not answered it since.
    is_claim: bool,
    /// What lets it stay when its last guard has left.
    cache: Option<Box<CacheState>>,
}

/// The answer to a renewal, for waiters whose shares are offers until then.
#[derive(Debug, Default)]
struct Awaited {
    /// The longest lease that one of them wants.
    lease: Duration,
    answers: Vec<Arc<Notify>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RenewalState {
    Due(Moment),
    /// It is due, and waits for others of its route.
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
    /// A hold with its first guard.
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

    /// Takes over what the server granted at some moment before now. The deadline does not move back, unless the server has lost
    /// what it had granted before.
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

    /// Whether the server has lost what it had granted: as after a failover, where the new primary does not know the last renewal.
    ///
    /// Then only this answer counts, from when it was asked for. That less is left than this process counts on, as of now, shows it
    /// where no time of the server comes along. As of the request it would show nothing: the server may have read its clock later,
    /// and a guard would be told of an end that is none.
    fn shows_loss(&self, grant: &Grant, now: Moment) -> bool {
        let is_too_little = self.granted_until > now.after(grant.remaining) && self.answered <= grant.sent;
        is_too_little || self.promise.is_unknown_to(Promise::of(grant))
    }

    // What it is.

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// The token that its guards have now.
    pub(super) fn current_token(&self) -> FencingToken {
        self.cache.as_ref().and_then(|keep| keep.last_token()).unwrap_or_else(|| self.token.plus(self.handoffs))
    }

    pub(super) fn began(&self) -> Moment {
        self.began
    }

    pub(super) fn guards(&self) -> usize {
        self.shares.len() - usize::from(self.is_cached())
    }

    /// Whether this process may go on with it.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.phase == Phase::Unconfirmed
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase.is_live()
    }

    /// The local deadline. While it is not known whether it was converted, that of whichever would end first.
    pub(super) fn deadline(&self) -> Moment {
        self.in_doubt.as_ref().map_or(self.granted_until, |new| self.granted_until.min(new.until))
    }

    /// What of the remaining time counts: no more than a copy has asked for.
    ///
    /// A server whose clock has gone back says more, since it never brings a deadline forward. When its clock is right again others
    /// are let in as if nothing had been, and a holder that is cut off would go on for as long as the clock was wrong. The longest lease
    /// counts, and not that of the request: a short renewal is answered with what is left of a longer lease. What a notification grants
    /// is bounded by its waiter, and counts from an answer of before.
    fn trusted(&self, grant: &Grant) -> Duration {
        let most = self.copies.longest_lease().max(grant.asked);
        if self.is_claim { grant.remaining } else { grant.remaining.min(most) }
    }

    /// When the server's hold is over, whatever arrives.
    pub(super) fn server_until(&self, now: Moment, rules: &Rules) -> Moment {
        let covers = lease::surely_over(self.copies.longest_lease(), rules.max_clock_skew);
        self.arrives_until(now, rules).map_or(self.server_until, |until| self.server_until.max(until.after(covers)))
    }

    /// Until when a copy of the acquisition may arrive.
    pub(super) fn arrives_until(&self, now: Moment, rules: &Rules) -> Option<Moment> {
        self.copies.until(now.after(rules.max_delay))
    }

    /// Whether nothing is left to renew for a share that ends then.
    fn covers(&self, ends: Moment) -> bool {
        ends <= self.asked_until
    }

    /// Whether the longest time of a share that ends then, and not doubt, had the deadline come.
    fn was_to_end(&self, ends: Moment) -> bool {
        self.covers(ends) && self.deadline() == self.granted_until
    }

    fn needs_renewal(&self) -> bool {
        self.shares.last_end().is_some_and(|ends| !self.covers(ends))
    }

    /// When the last guard's time is over, though it may be forgotten.
    pub(super) fn last_end(&self) -> Moment {
        self.shares.last_end().unwrap_or(Moment::NEVER)
    }

    /// How a share stands.
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

    // How it ends.

    /// Looks at the clock: a hold whose deadline is reached is lost from here on.
    pub(super) fn look(&mut self, now: Moment, signals: &mut Signals) {
        if self.phase.is_live() && now >= self.deadline() {
            self.next_end(LossReason::Expired, now, signals);
        }
    }

    fn next_end(&mut self, reason: LossReason, now: Moment, signals: &mut Signals) {
        self.phase = Phase::Lost(reason);
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

    /// For somebody who watches a share, also when its guard is gone.
    pub(super) fn watch(&mut self, share_id: ShareId) -> (Share, Arc<End>) {
        (self.shares.get(share_id.slot), self.shares.watch(share_id.slot))
    }

    // Guards come and go.

    /// Whether another guard may share it.
    fn is_open(&self) -> bool {
        self.phase == Phase::Held && !self.is_converting
    }

    /// Whether a guard that comes now gets what it wants until the next renewal: half of `lease`, and that renewal is under way
    /// or due, or not needed.
    #[inline]
    fn lasts(&self, share: &Share, lease: Duration, now: Moment) -> bool {
        let wanted_until = now.after(lease).min(share.ends);
        self.is_open()
            && self.deadline() >= now.halfway_to(wanted_until)
            && (self.renewal != RenewalState::Needless || self.covers(share.ends))
    }

    /// The same for one that goes on with what another one was granted: that may be a claim still.
    fn suits_next(&self, share: &Share, now: Moment) -> bool {
        self.lasts(share, share.lease.min(self.asked), now)
    }

    #[inline]
    fn admit(&mut self, share: Share) -> ShareId {
        let slot = self.take_cached_place(share).unwrap_or_else(|| self.shares.add(share));
        ShareId { slot, token: self.current_token() }
    }

    /// A reader joins, if the server has said lately that no writer waits, or would say so by itself.
    #[inline]
    pub(super) fn join(&mut self, wants: ShareRequest, now: Moment) -> Option<ShareId> {
        let share = wants.from(now);
        // By the clock it may be over. Then somebody else finds that, who tells those who watch.
        let may = self.mode == Mode::Read
            && (now < self.share_until || self.is_open_to_all(now))
            && now < self.deadline()
            && self.lasts(&share, share.lease, now);
        may.then(|| {
            self.set_cache_for(wants.cache_for);
            self.admit(share)
        })
    }

    /// A reader joins that waited when this was granted, and so enters with it.
    pub(super) fn join_phase(&mut self, share: Share, now: Moment, signals: &mut Signals) -> Option<ShareId> {
        self.look(now, signals);
        let may = self.suits_next(&share, now);
        may.then(|| self.admit(share.unclaimed(now)))
    }

    /// One more guard of an owner that has one, with a lease and an end of its own.
    pub(super) fn join_own(&mut self, share: Share, now: Moment, signals: &mut Signals) -> Option<ShareId> {
        let own = self.is_held_by(share.owner, now, signals);
        own.then(|| {
            let share_id = self.admit(share);
            self.renew_if_needed(now);
            share_id
        })
    }

    /// Whether this owner has a guard of it.
    pub(super) fn is_held_by(&mut self, owner: OwnerId, now: Moment, signals: &mut Signals) -> bool {
        self.look(now, signals);
        self.phase.is_live() && !self.is_converting && !self.lacks_token() && self.shares.has_owner(owner, now)
    }

    /// One guard is gone, and others are not; `false` if it is the last one, or somebody watches it.
    #[inline]
    pub(super) fn leave_others(&mut self, share_id: ShareId) -> bool {
        let may = self.shares.len() > 1 && !self.shares.is_watched(share_id.slot);
        if may {
            self.shares.remove(share_id.slot);
        }
        may
    }

    /// One guard is gone. The last one ends the hold, unless it is a writer's and the next writer here, who waits, is to have it.
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
            // Whoever waits here and cannot have it as it is asks the server; whoever asks already is passed by nobody.
            _ => {}
        }
        self.phase = Phase::Released;
        lost.map_or(ShareRemoved::Last, ShareRemoved::LastLate)
    }

    /// The next writer of this process has the hold, with a token of its own.
    fn hand_off(&mut self, next: Share, now: Moment, rules: &Rules) -> Option<ShareId> {
        let is_within_budget = self.handoffs + 1 < rules.max_handoffs && now.since(self.began) < rules.handoff_span;
        let may_go_on = is_within_budget && self.next_token().is_some() || self.is_open_to_all(now);
        if self.mode != Mode::Write || !may_go_on || !self.suits_next(&next, now) {
            return None;
        }
        Some(self.admit_writer(next.unclaimed(now)))
    }

    /// A waiter takes what it was handed or granted. With too little left of it to start with, it waits for the answer to a
    /// renewal that is sent from `since` on, when it looked first, and takes what that leaves.
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
        // What was renewed meanwhile was renewed for the offer.
        if self.renewal == RenewalState::Needless && self.needs_renewal() {
            self.renewal = RenewalState::Due(self.answered.after(renewal_interval(self.asked)).max(now));
        }
        Accepted::Taken(if self.mode == Mode::Write { self.current_token() } else { share_id.token })
    }
}

/// A renewal comes after a third of the lease, with a little jitter, so that holds that were taken
/// together spread over the interval and two tries fit into what is left.
fn renewal_interval(lease: Duration) -> Duration {
    let third = lease / 3;
    third.mul_f64(0.875 + fastrand::f64() / 4.0)
}

impl std::fmt::Display for HoldRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} with {} guards", self.phase, self.shares.len())
    }
}
