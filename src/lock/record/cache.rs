//! A hold that may stay when its last guard has left: *idle* until the next one comes, somebody elsewhere calls for it, or nobody
//! has used it for long.
//!
//! An idle hold has one share, which is nobody's: it is renewed, and ends, as any hold does. The rules are those of
//! `docs/IDLE.md`; the numbers behind them are its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{CLOSED, HoldRecord, Next, Phase, RenewalState, renewal_interval};
use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};
use crate::base::metrics::Metrics;
use crate::base::mode::Mode;
use crate::base::recalls::{LiveSubscription, Recall, Recalls};
use crate::base::reentry::OwnerId;
use crate::lock::effects::Signals;
use crate::lock::shares::{Share, ShareId};

/// What an answer says to those who keep the hold.
#[derive(Clone, Debug)]
pub(crate) struct CacheAnswer {
    /// The request said that the hold may stay, and this was the subscription then.
    pub(crate) offered_on: Option<LiveSubscription>,
    pub(crate) sent: Moment,
    pub(crate) node: NodeId,
    pub(crate) is_waited_for: bool,
}

/// What came of letting a hold stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheOutcome {
    /// It was used again.
    Reused,
    /// Somebody called for it before it was.
    Recalled,
    /// Neither.
    Unused,
}

/// How many holds of a manager may stay.
#[derive(Debug, Default)]
pub(crate) struct CachedCount {
    holds: AtomicUsize,
    meter: Metrics,
}

impl CachedCount {
    pub(crate) fn get(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }
}

/// A hold that is counted among those that may stay, as long as this is there.
#[derive(Debug)]
pub(crate) struct CachedPermit(Arc<CachedCount>);

impl CachedPermit {
    pub(crate) fn among(count: &Arc<CachedCount>) -> Self {
        count.holds.fetch_add(1, Ordering::Relaxed);
        count.meter.cached();
        Self(Arc::clone(count))
    }
}

impl Drop for CachedPermit {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
        self.0.meter.cached_no_more();
    }
}

/// Tokens that a renewal has brought, for the writers to come.
#[derive(Clone, Copy, Debug)]
struct TokenBlock {
    next: FencingToken,
    left: u64,
    /// The one before: that of the writer inside, or of the last that was.
    last: FencingToken,
}

/// A place among the shares of a hold. One more than its number is kept, so that a place that is missing takes no room.
#[derive(Clone, Copy, Debug)]
struct SharePlace(NonZeroU32);

impl SharePlace {
    fn of(slot: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(slot as u32))
    }

    fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What lets a hold stay.
#[derive(Debug)]
pub(crate) struct CacheState {
    recalls: Arc<Recalls>,
    /// For so long after the last use, as that one has said.
    cache_for: Duration,
    /// Every call for it would be heard.
    live: Option<LiveSubscription>,
    /// When it was learnt that somebody waits. Whoever asks later, and is told that nobody does, ends it.
    recalled_at: Option<Moment>,
    /// The place of the share that is nobody's, while no guard is inside. Few holds have as many guards as this can count.
    idle: Option<SharePlace>,
    /// It was used by somebody else than who asked for it.
    is_reused: bool,
    /// Its one share is that of somebody who has no guard yet: it was idle, and is to be turned into one of the other side.
    is_converting: bool,
    /// Its one share is that of a writer who has no token yet.
    lacks_token: bool,
    /// Boxed, since readers have none: there may be many idle holds.
    block: Option<Box<TokenBlock>>,
    _permit: CachedPermit,
}

impl CacheState {
    pub(crate) fn new(calls: Arc<Recalls>, cache_for: Duration, kept: CachedPermit) -> Self {
        Self {
            _permit: kept,
            recalls: calls,
            cache_for,
            live: None,
            recalled_at: None,
            idle: None,
            is_reused: false,
            is_converting: false,
            lacks_token: false,
            block: None,
        }
    }

    /// An answer about the hold whose first token is `first`.
    pub(super) fn on_answer(&mut self, word: CacheAnswer, first: FencingToken, now: Moment) {
        let CacheAnswer { offered_on: said, sent, node, is_waited_for } = word;
        if said.as_ref().is_some_and(|standing| standing.node() != node) {
            // That is where who waits calls, as in a migration.
            self.live = None;
        }
        if is_waited_for {
            self.recalled_at = Some(now);
            return;
        }
        let heard = self.recalls.last_recall_of(first);
        self.recalled_at = self.recalled_at.into_iter().chain(heard).max().filter(|at| *at >= sent);
        if let Some(standing) = said
            && standing.node() == node
            && self.recalls.is_still(&standing)
        {
            self.live = Some(standing);
        }
    }

    /// The token that guards have now, if it is one that a renewal brought.
    pub(super) fn last_token(&self) -> Option<FencingToken> {
        self.block.as_ref().map(|block| block.last)
    }

    /// Whether guards may come without asking.
    fn is_open(&self, now: Moment) -> bool {
        self.recalled_at.is_none() && self.live.as_ref().is_some_and(|standing| standing.is_live(now))
    }
}

impl HoldRecord {
    /// Whether no guard is inside, and the hold is there all the same.
    pub(in crate::lock) fn is_cached(&self) -> bool {
        self.cache.as_ref().is_some_and(|keep| keep.idle.is_some())
    }

    /// Whether guards may come without asking, whatever the share window says.
    pub(super) fn is_open_to_all(&self, now: Moment) -> bool {
        self.cache.as_ref().is_some_and(|keep| keep.is_open(now))
    }

    /// The subscription that stands now, for a request that says that the hold may stay.
    pub(in crate::lock) fn live_subscription(&self) -> Option<LiveSubscription> {
        self.cache.as_ref()?.recalls.subscription()
    }

    /// Takes the place of the share that is nobody's, if the hold is idle.
    #[inline]
    pub(super) fn take_cached_place(&mut self, share: Share) -> Option<usize> {
        let keep = self.cache.as_mut()?;
        keep.is_reused = true;
        let slot = keep.idle.take()?.slot();
        self.shares.replace(slot, share);
        Some(slot)
    }

    /// For how long it may stay after a use from now on.
    pub(super) fn set_cache_for(&mut self, cache_for: Duration) {
        if let Some(keep) = &mut self.cache {
            keep.cache_for = cache_for;
        }
    }

    /// An answer about it.
    pub(in crate::lock) fn on_cache_answer(&mut self, word: CacheAnswer, now: Moment) {
        let first = self.token;
        let Some(keep) = &mut self.cache else { return };
        keep.on_answer(word, first, now);
        // What was said before lets nobody in any more.
        if keep.recalled_at.is_some() && self.mode == Mode::Read {
            self.share_until = CLOSED;
        }
    }

    /// Whether it was learnt after that moment that somebody waits.
    pub(super) fn was_recalled_since(&self, moment: Moment) -> bool {
        self.cache.as_ref().and_then(|keep| keep.recalled_at).is_some_and(|at| at >= moment)
    }

    // Tokens.

    /// The next one for a writer, if there is one left.
    pub(super) fn next_token(&self) -> Option<FencingToken> {
        if let Some(block) = self.cache.as_ref().and_then(|keep| keep.block.as_ref()) {
            return (block.left > 0).then_some(block.next);
        }
        (self.handoffs + 1 < self.tokens).then(|| self.token.plus(self.handoffs + 1))
    }

    /// Hands it out. `false` if there is none left.
    pub(super) fn take_token(&mut self) -> bool {
        let Some(next) = self.next_token() else {
            return false;
        };
        self.handoffs += 1;
        if let Some(block) = self.cache.as_mut().and_then(|keep| keep.block.as_mut()) {
            **block = TokenBlock { next: next.plus(1), left: block.left.saturating_sub(1), last: next };
        }
        true
    }

    /// How many more tokens to ask for: a block before the one that is there is used up.
    pub(in crate::lock) fn missing_tokens(&self) -> u64 {
        const MAX: u64 = crate::base::lease::MAX_TOKENS;
        let Some(keep) = &self.cache else {
            return 0;
        };
        let of_grant = || self.tokens.saturating_sub(self.handoffs + 1);
        let left = keep.block.as_ref().map_or_else(of_grant, |block| block.left);
        if self.mode == Mode::Write && left <= MAX / 2 { MAX } else { 0 }
    }

    /// A renewal has brought tokens. Those below one that was handed out are not used: the answers to two renewals may cross.
    pub(in crate::lock) fn add_tokens(&mut self, first: FencingToken, count: u64) {
        let last = self.current_token();
        if let Some(keep) = self.cache.as_mut().filter(|_| first > last) {
            keep.block = Some(Box::new(TokenBlock { next: first, left: count, last }));
        }
    }

    // Comes and goes.

    /// Whether somebody of this process may go on with it.
    fn may_be_taken(&self, now: Moment) -> bool {
        self.is_cached() && self.is_open() && self.is_open_to_all(now) && now < self.deadline()
    }

    /// A writer of this process takes an idle hold, with the next token; if there is none left, it is to ask for more.
    pub(in crate::lock) fn take_cached(&mut self, share: Share, cache_for: Duration, now: Moment) -> Option<ShareId> {
        if self.mode != Mode::Write || !self.may_be_taken(now) {
            return None;
        }
        self.set_cache_for(cache_for);
        Some(self.admit_writer(share))
    }

    /// The same for one that needs nothing more than is left of it.
    pub(in crate::lock) fn take_cached_at_once(
        &mut self,
        share: Share,
        cache_for: Duration,
        now: Moment,
    ) -> Option<ShareId> {
        let has_enough = self.next_token().is_some() && self.lasts(&share, share.lease, now);
        has_enough.then(|| self.take_cached(share, cache_for, now)).flatten()
    }

    /// The next writer has it, with the next token or, for the time being, none.
    pub(super) fn admit_writer(&mut self, share: Share) -> ShareId {
        let has_token = self.take_token();
        if let Some(keep) = &mut self.cache {
            keep.lacks_token = !has_token;
        }
        self.admit(share)
    }

    /// Whether whoever is inside has no token yet: then nobody is beside it, be it the same owner.
    pub(super) fn lacks_token(&self) -> bool {
        self.cache.as_ref().is_some_and(|keep| keep.lacks_token)
    }

    /// Whether the writer inside has its token. If it had none until now, the next one is its own, unless somebody waits elsewhere.
    pub(super) fn ensure_token(&mut self, now: Moment) -> bool {
        if !self.lacks_token() {
            return true;
        }
        let has_token = self.is_open_to_all(now) && self.take_token();
        if let Some(keep) = &mut self.cache {
            keep.lacks_token = !has_token;
        }
        has_token
    }

    /// Whether this process goes on with an idle hold of the other side by having it turned.
    pub(in crate::lock) fn may_convert_cached(&self, mode: Mode, now: Moment) -> bool {
        self.mode != mode && self.in_doubt.is_none() && self.may_be_taken(now)
    }

    /// Somebody who has no guard yet takes an idle hold, to have it turned into one of the other side. Nobody else enters.
    pub(in crate::lock) fn take_to_convert(&mut self, share: Share, cache_for: Duration) -> ShareId {
        self.set_cache_for(cache_for);
        let share_id = self.admit(share);
        self.is_converting = true;
        if let Some(keep) = &mut self.cache {
            keep.is_converting = true;
        }
        share_id
    }

    /// What the hold needs that takes its place: who hears of calls, and for how long it may stay.
    pub(in crate::lock) fn cache_terms(&self) -> Option<(Arc<Recalls>, Duration)> {
        let keep = self.cache.as_ref().filter(|keep| !keep.cache_for.is_zero())?;
        Some((Arc::clone(&keep.recalls), keep.cache_for))
    }

    /// Stays when its last guard has left, if it may.
    pub(super) fn cache(&mut self, lease: Duration, now: Moment) -> bool {
        let Some(share) = self.unowned_share(lease, now) else {
            return false;
        };
        let slot = self.shares.add(share);
        self.set_cached(slot, now);
        true
    }

    /// The last guard lets go of a hold that stays, which nobody else need know. `false` if there is more to it.
    #[inline]
    pub(in crate::lock) fn cache_at_once(&mut self, share_id: ShareId, now: Moment) -> bool {
        let is_last = self.shares.len() == 1 && !self.shares.is_watched(share_id.slot);
        if !is_last || now >= self.deadline() {
            return false;
        }
        let share = self.shares.get(share_id.slot);
        let Some(idle) = self.unowned_share(share.lease, now).filter(|_| now < share.ends) else {
            return false;
        };
        self.shares.replace(share_id.slot, idle);
        self.set_cached(share_id.slot, now);
        true
    }

    /// The share that is nobody's, if the hold may stay.
    #[inline]
    fn unowned_share(&self, lease: Duration, now: Moment) -> Option<Share> {
        let keep = self.cache.as_ref().filter(|keep| !keep.cache_for.is_zero() && keep.is_open(now))?;
        let may = self.is_open() && self.in_doubt.is_none();
        may.then(|| Share { owner: OwnerId::NOBODY, lease, ends: now.after(keep.cache_for) })
    }

    fn set_cached(&mut self, slot: usize, now: Moment) {
        if let Some(keep) = &mut self.cache {
            keep.idle = Some(SharePlace::of(slot));
        }
        if self.renewal == RenewalState::Needless {
            self.renewal = RenewalState::Due(self.answered.after(renewal_interval(self.asked)).max(now));
        }
    }

    /// Whether it is to be given up: nobody is inside, and somebody waits, or might without being heard, or nobody has used it for
    /// long.
    pub(super) fn has_to_give_up(&self, now: Moment) -> bool {
        self.cached_until().is_some_and(|until| until <= now)
    }

    /// When it is to be given up, if no guard comes before.
    pub(in crate::lock) fn cached_until(&self) -> Option<Moment> {
        let keep = self.cache.as_ref()?;
        let ends = self.shares.get(keep.idle?.slot()).ends;
        let is_called = keep.recalled_at.is_some() || keep.live.is_none();
        Some(if is_called { Moment::from_nanos(0) } else { ends })
    }

    /// It is over, and its share that is nobody's with it. Whether nobody had a guard of it.
    pub(super) fn end_cached(&mut self) -> bool {
        let idle = self.cache.as_mut().and_then(|keep| keep.idle.take());
        if let Some(place) = idle {
            self.shares.remove(place.slot());
        }
        idle.is_some() || self.cache.as_ref().is_some_and(|keep| keep.is_converting || keep.lacks_token)
    }

    /// It is given up, as by its last guard.
    pub(super) fn give_up(&mut self, signals: &mut Signals) -> Next {
        self.end_cached();
        self.tell_awaiting(signals);
        self.phase = Phase::Released;
        Next::GivenUp
    }

    /// What has come of letting it stay. `None` if it was not to.
    pub(in crate::lock) fn cache_outcome(&self) -> Option<CacheOutcome> {
        let keep = self.cache.as_ref()?;
        Some(match (keep.is_reused, keep.recalled_at) {
            (true, _) => CacheOutcome::Reused,
            (false, Some(_)) => CacheOutcome::Recalled,
            (false, None) => CacheOutcome::Unused,
        })
    }

    // What others say.

    /// Somebody waits for it elsewhere. Whether a guard is inside that somebody may want to know of.
    pub(in crate::lock) fn on_recall(&mut self, call: &Recall, now: Moment) -> bool {
        if call.token < self.token || !self.phase.is_live() || self.cache.is_none() {
            return false;
        }
        if call.tries.is_some() && !self.is_cached() {
            return true;
        }
        self.note_wanted(now);
        false
    }

    /// Somebody waits whom it excludes, here or elsewhere.
    pub(in crate::lock) fn note_wanted(&mut self, now: Moment) {
        if let Some(keep) = &mut self.cache {
            keep.recalled_at = Some(now);
            if self.mode == Mode::Read {
                self.share_until = CLOSED;
            }
        }
    }

    /// Calls for it may have been missed: it is not relied on any more.
    pub(in crate::lock) fn on_subscription_lost(&mut self) {
        if let Some(keep) = &mut self.cache {
            keep.live = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_a_hold_stay_is_small() {
        // There is one for each idle hold.
        assert!(size_of::<CacheState>() <= 88, "{} bytes", size_of::<CacheState>());
    }
}
