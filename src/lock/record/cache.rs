//! Cached holds. A process may keep a hold after its last guard has left. The hold stays cached until a guard of the
//! process uses it, a waiter recalls it, or its time in the cache is over.
//!
//! A cached hold has no guard. It has one share without an owner, so the rules for renewals and ends of shares apply to
//! it as to any hold. `docs/CACHED_HOLDS.md` describes cached holds.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{CLOSED, HoldRecord, Next, Phase};
use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::{Recall, Reception, SubscriptionId};
use crate::base::reentry::OwnerId;
use crate::lock::effects::Event;
use crate::lock::shares::{Share, ShareId};

/// Parts of a server's answer that concern the cache state of a hold.
#[derive(Clone, Debug)]
pub(crate) struct CacheAnswer {
    /// Subscription to recalls that was confirmed when the request was sent, if the request offered to cache the hold.
    pub(crate) offered_on: Option<SubscriptionId>,
    pub(crate) sent: Moment,
    pub(crate) node: NodeId,
    pub(crate) is_waited_for: bool,
}

/// Result of caching a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheOutcome {
    /// A guard used the hold again.
    Reused,
    /// Another process recalled the hold before a guard used it again.
    Recalled,
    /// No guard used the hold, and no process recalled it.
    Unused,
}

/// Tokens that a renewal brought for later writers.
#[derive(Clone, Copy, Hash, Debug)]
struct TokenBlock {
    next: FencingToken,
    left: u64,
    /// Token of the writer inside, or of the last writer if no writer is inside.
    last: FencingToken,
}

/// Slot of the share without an owner. The stored number is the slot plus one, so it is never zero. An `Option` of this
/// type then needs no more memory.
#[derive(Clone, Copy, Hash, Debug)]
struct SharePlace(NonZeroU32);

impl SharePlace {
    fn of(slot: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(slot as u32))
    }

    fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Cache state of a hold.
#[derive(Clone, Hash, Debug)]
pub(crate) struct CacheState {
    /// Time for which the hold may stay cached after a use. The last acquisition that used the hold has set this time.
    cache_for: Duration,
    /// Number of the subscription by which this process receives every recall of the hold.
    live: Option<u64>,
    /// Time at which this process learned that the hold excludes a waiter. An answer that reports no waiter clears this
    /// field, if its request was sent later.
    recalled_at: Option<Moment>,
    /// Slot of the share without an owner. Present while the hold is cached.
    idle: Option<SharePlace>,
    /// True if the hold had another guard after its first one.
    is_reused: bool,
    /// Tokens of the last renewal that brought any. Boxed to save memory, because read holds have no block and a
    /// process may cache many holds.
    block: Option<Box<TokenBlock>>,
}

impl CacheState {
    pub(crate) fn new(cache_for: Duration) -> Self {
        Self { cache_for, live: None, recalled_at: None, idle: None, is_reused: false, block: None }
    }

    /// Applies an answer about the hold. `first` is the first token of the hold.
    pub(super) fn on_answer(&mut self, answer: CacheAnswer, first: FencingToken, event: &Event<'_>) {
        let CacheAnswer { offered_on, sent, node, is_waited_for } = answer;
        if offered_on.is_some_and(|subscription| subscription.node != node) {
            // Another node serves the lock now, for example after a migration of the slot. Recalls come from that node,
            // so this subscription would miss them.
            self.live = None;
        }
        if is_waited_for {
            self.recalled_at = Some(event.now);
            return;
        }
        let last_recall = event.heard.last_recall_of(first);
        self.recalled_at = self.recalled_at.into_iter().chain(last_recall).max().filter(|at| *at >= sent);
        if let Some(SubscriptionId { epoch, .. }) = offered_on.filter(|subscription| subscription.node == node)
            && event.heard.is_confirmed(epoch)
        {
            self.live = Some(epoch);
        }
    }

    /// Returns the present token of the hold, if a renewal brought tokens.
    pub(super) fn last_token(&self) -> Option<FencingToken> {
        self.block.as_ref().map(|block| block.last)
    }

    /// Returns true if guards may enter without a request to the server.
    fn is_open(&self, heard: &Reception, now: Moment) -> bool {
        self.recalled_at.is_none() && self.live.is_some_and(|epoch| heard.is_live(epoch, now))
    }
}

impl HoldRecord {
    /// Returns true if the hold is cached and no guard is inside.
    pub(in crate::lock) fn is_cached(&self) -> bool {
        self.cache.as_ref().is_some_and(|keep| keep.idle.is_some())
    }

    /// Returns true if guards may enter without a request to the server, even after the join window of the last answer.
    pub(super) fn is_open_to_all(&self, heard: &Reception, now: Moment) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_open(heard, now))
    }

    /// Returns true if the hold may be cached, so that its requests offer this to the server.
    pub(in crate::lock) fn can_be_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// Replaces the share without an owner by `share`, and returns its slot, if the hold is cached.
    #[inline]
    pub(super) fn take_cached_place(&mut self, share: Share) -> Option<usize> {
        let keep = self.cache.as_mut()?;
        keep.is_reused = true;
        let slot = keep.idle.take()?.slot();
        self.shares.replace(slot, share);
        Some(slot)
    }

    /// Sets the time for which the hold may stay cached after a use.
    pub(in crate::lock) fn set_cache_for(&mut self, cache_for: Duration) {
        if let Some(keep) = &mut self.cache {
            keep.cache_for = cache_for;
        }
    }

    /// Applies an answer about the hold to its cache state.
    pub(in crate::lock) fn on_cache_answer(&mut self, answer: CacheAnswer, event: &Event<'_>) {
        let first = self.token;
        let Some(keep) = &mut self.cache else { return };
        keep.on_answer(answer, first, event);
        // A waiter is known, so no reader may join because of an earlier answer that reported no waiter.
        if keep.recalled_at.is_some() && self.mode == Mode::Read {
            self.share_until = CLOSED;
        }
    }

    /// Returns true if this process learned of a waiter at this moment or later.
    pub(super) fn was_recalled_since(&self, moment: Moment) -> bool {
        self.cache.as_ref().and_then(|keep| keep.recalled_at).is_some_and(|at| at >= moment)
    }

    // Tokens.

    /// Returns the next token for a writer, if one is left.
    pub(super) fn next_token(&self) -> Option<FencingToken> {
        if let Some(block) = self.cache.as_ref().and_then(|keep| keep.block.as_ref()) {
            return (block.left > 0).then_some(block.next);
        }
        (self.handoffs + 1 < self.tokens).then(|| self.token.plus(self.handoffs + 1))
    }

    /// Makes the next token the current one. Returns false if none is left.
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

    /// Returns the number of tokens that the next renewal requests. If at most half of a block is left, the number is a
    /// full block, so that new tokens arrive in time. Otherwise it is 0.
    pub(in crate::lock) fn missing_tokens(&self) -> u64 {
        const MAX: u64 = crate::base::lease::MAX_TOKENS;
        let Some(keep) = &self.cache else {
            return 0;
        };
        let of_grant = || self.tokens.saturating_sub(self.handoffs + 1);
        let left = keep.block.as_ref().map_or_else(of_grant, |block| block.left);
        if self.mode == Mode::Write && left <= MAX / 2 { MAX } else { 0 }
    }

    /// Adds the tokens of a renewal. Ignores tokens that are not above the present one, because the answers to two
    /// renewals may arrive in the wrong order.
    pub(in crate::lock) fn add_tokens(&mut self, first: FencingToken, count: u64) {
        let last = self.current_token();
        if let Some(keep) = self.cache.as_mut().filter(|_| first > last) {
            keep.block = Some(Box::new(TokenBlock { next: first, left: count, last }));
        }
    }

    // Use and caching.

    /// Returns true if a task of this process may take the cached hold.
    fn may_be_taken(&self, heard: &Reception, now: Moment) -> bool {
        self.is_cached() && self.is_open() && self.is_open_to_all(heard, now) && now < self.deadline()
    }

    /// Lets a writer of this process take a cached hold, with the next token.
    pub(in crate::lock) fn take_cached(
        &mut self,
        share: Share,
        cache_for: Duration,
        heard: &Reception,
        now: Moment,
    ) -> Option<ShareId> {
        if self.mode != Mode::Write || !self.may_be_taken(heard, now) || !self.take_token() {
            return None;
        }
        self.set_cache_for(cache_for);
        Some(self.admit(share))
    }

    /// Lets a writer take a cached hold, if the hold has enough time.
    pub(in crate::lock) fn take_cached_at_once(
        &mut self,
        share: Share,
        cache_for: Duration,
        heard: &Reception,
        now: Moment,
    ) -> Option<ShareId> {
        self.lasts(&share, share.lease, now).then(|| self.take_cached(share, cache_for, heard, now)).flatten()
    }

    /// Returns the time for which the hold that replaces this hold after a conversion may stay cached.
    pub(in crate::lock) fn cache_for(&self) -> Option<Duration> {
        self.cache.as_ref().map(|cache| cache.cache_for).filter(|cache_for| !cache_for.is_zero())
    }

    /// Caches the hold after its last guard has left. Returns false if the hold may not be cached.
    pub(super) fn cache(&mut self, lease: Duration, event: &Event<'_>) -> bool {
        let Some(share) = self.unowned_share(lease, event.heard, event.now) else {
            return false;
        };
        let slot = self.shares.add(share);
        self.set_cached(slot, event.now);
        true
    }

    /// Caches the hold: the share without an owner replaces the share of the last guard. Returns false and changes
    /// nothing if the removal of the guard has other effects too.
    #[inline]
    pub(in crate::lock) fn cache_at_once(&mut self, share_id: ShareId, heard: &Reception, now: Moment) -> bool {
        let is_last = self.shares.len() == 1 && !self.shares.is_watched(share_id.slot);
        if !is_last || now >= self.deadline() {
            return false;
        }
        let share = self.shares.get(share_id.slot);
        let Some(idle) = self.unowned_share(share.lease, heard, now).filter(|_| now < share.ends) else {
            return false;
        };
        self.shares.replace(share_id.slot, idle);
        self.set_cached(share_id.slot, now);
        true
    }

    /// Returns a share without an owner, if the hold may be cached now. A write hold whose tokens are used up is of no
    /// use to the next writer, so the process releases it.
    #[inline]
    fn unowned_share(&self, lease: Duration, heard: &Reception, now: Moment) -> Option<Share> {
        let keep = self.cache.as_ref().filter(|keep| !keep.cache_for.is_zero() && keep.is_open(heard, now))?;
        let has_token = self.mode == Mode::Read || self.next_token().is_some();
        let may = has_token && self.is_open() && self.in_doubt.is_none() && !self.is_to_rest();
        may.then(|| Share { owner: OwnerId::NOBODY, lease, ends: now.after(keep.cache_for) })
    }

    fn set_cached(&mut self, slot: usize, now: Moment) {
        if let Some(keep) = &mut self.cache {
            keep.idle = Some(SharePlace::of(slot));
        }
        self.plan_renewal(now);
    }

    /// Returns true if a cached hold is to be released. There are three reasons: a known waiter, no live subscription,
    /// or the end of the time in the cache.
    pub(super) fn has_to_give_up(&self, now: Moment) -> bool {
        self.cached_until().is_some_and(|until| until <= now)
    }

    /// Returns the moment at which a cached hold is to be released, if no guard comes before.
    pub(in crate::lock) fn cached_until(&self) -> Option<Moment> {
        let keep = self.cache.as_ref()?;
        let ends = self.shares.get(keep.idle?.slot()).ends;
        let is_called = keep.recalled_at.is_some() || keep.live.is_none();
        Some(if is_called { Moment::START } else { ends })
    }

    /// Removes the share without an owner from a hold that is over. Returns true if no guard had the hold.
    pub(super) fn end_cached(&mut self) -> bool {
        let idle = self.cache.as_mut().and_then(|keep| keep.idle.take());
        if let Some(place) = idle {
            self.shares.remove(place.slot());
        }
        idle.is_some()
    }

    /// Releases a cached hold, as the end of its last guard would.
    pub(in crate::lock) fn give_up(&mut self, event: &mut Event<'_>) -> Next {
        self.end_cached();
        self.tell_awaiting(event);
        self.phase = Phase::Released;
        Next::GivenUp
    }

    /// Returns the result of caching the hold, or `None` if the hold may not be cached.
    pub(in crate::lock) fn cache_outcome(&self) -> Option<CacheOutcome> {
        let keep = self.cache.as_ref()?;
        Some(match (keep.is_reused, keep.recalled_at) {
            (true, _) => CacheOutcome::Reused,
            (false, Some(_)) => CacheOutcome::Recalled,
            (false, None) => CacheOutcome::Unused,
        })
    }

    // Recalls.

    /// Applies a recall of another process. Returns true if a guard is inside and a try sent the recall. The caller
    /// then has to send the try a recall reply.
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

    /// Notes that this hold excludes a waiter, in this process or in another process.
    pub(in crate::lock) fn note_wanted(&mut self, now: Moment) {
        if let Some(keep) = &mut self.cache {
            keep.recalled_at = Some(now);
            if self.mode == Mode::Read {
                self.share_until = CLOSED;
            }
        }
    }

    /// Notes that the subscription is broken. This process may have missed recalls.
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
        // Each hold that may be cached has a `CacheState`, and there may be many such holds.
        assert!(size_of::<CacheState>() <= 64, "{} bytes", size_of::<CacheState>());
    }
}
