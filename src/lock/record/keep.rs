//! A hold that may stay when its last guard has left: *idle* until the next one comes, somebody elsewhere calls for it, or nobody
//! has used it for long.
//!
//! An idle hold has one share, which is nobody's: it is renewed, and ends, as any hold does. The rules are those of
//! `docs/IDLE.md`; the numbers behind them are its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{CLOSED, HoldRecord, Next, Phase, Renewal, renewal_interval};
use crate::attempt::NodeId;
use crate::calls::{LiveSubscription, Recall, Recalls};
use crate::lease::{FencingToken, Moment};
use crate::lock::effects::Signals;
use crate::lock::shares::{Share, ShareId};
use crate::meter::Metrics;
use crate::mode::Mode;
use crate::reentry::OwnerId;

/// What an answer says to those who keep the hold.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    /// The request said that the hold may stay, and this was the subscription then.
    pub(crate) said: Option<LiveSubscription>,
    pub(crate) sent: Moment,
    pub(crate) node: NodeId,
    pub(crate) is_waited_for: bool,
}

/// What came of letting a hold stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stay {
    /// It was used again.
    OfUse,
    /// Somebody called for it before it was.
    ForNothing,
    /// Neither.
    Unused,
}

/// How many holds of a manager may stay.
#[derive(Debug, Default)]
pub(crate) struct KeptCount {
    holds: AtomicUsize,
    meter: Metrics,
}

impl KeptCount {
    pub(crate) fn get(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }
}

/// A hold that is counted among those that may stay, as long as this is there.
#[derive(Debug)]
pub(crate) struct Kept(Arc<KeptCount>);

impl Kept {
    pub(crate) fn among(count: &Arc<KeptCount>) -> Self {
        count.holds.fetch_add(1, Ordering::Relaxed);
        count.meter.cached();
        Self(Arc::clone(count))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
        self.0.meter.cached_no_more();
    }
}

/// Tokens that a renewal has brought, for the writers to come.
#[derive(Clone, Copy, Debug)]
struct Block {
    next: FencingToken,
    left: u64,
    /// The one before: that of the writer inside, or of the last that was.
    last: FencingToken,
}

/// A place among the shares of a hold. One more than its number is kept, so that a place that is missing takes no room.
#[derive(Clone, Copy, Debug)]
struct Place(NonZeroU32);

impl Place {
    fn of(slot: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(slot as u32))
    }

    fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What lets a hold stay.
#[derive(Debug)]
pub(crate) struct Keep {
    calls: Arc<Recalls>,
    /// For so long after the last use, as that one has said.
    cache_for: Duration,
    /// Every call for it would be heard.
    relied: Option<LiveSubscription>,
    /// When it was learnt that somebody waits. Whoever asks later, and is told that nobody does, ends it.
    called_at: Option<Moment>,
    /// The place of the share that is nobody's, while no guard is inside. Few holds have as many guards as this can count.
    idle: Option<Place>,
    /// It was used by somebody else than who asked for it.
    is_used_again: bool,
    /// Its one share is that of somebody who has no guard yet: it was idle, and is to be turned into one of the other side.
    is_turned: bool,
    /// Its one share is that of a writer who has no token yet.
    lacks_token: bool,
    /// Boxed, since readers have none: there may be many idle holds.
    block: Option<Box<Block>>,
    _kept: Kept,
}

impl Keep {
    pub(crate) fn new(calls: Arc<Recalls>, cache_for: Duration, kept: Kept) -> Self {
        Self {
            _kept: kept,
            calls,
            cache_for,
            relied: None,
            called_at: None,
            idle: None,
            is_used_again: false,
            is_turned: false,
            lacks_token: false,
            block: None,
        }
    }

    /// An answer about the hold whose first token is `first`.
    pub(super) fn hears(&mut self, word: Word, first: FencingToken, now: Moment) {
        let Word { said, sent, node, is_waited_for } = word;
        if said.as_ref().is_some_and(|standing| standing.node() != node) {
            // That is where who waits calls, as in a migration.
            self.relied = None;
        }
        if is_waited_for {
            self.called_at = Some(now);
            return;
        }
        let heard = self.calls.last_recall_of(first);
        self.called_at = self.called_at.into_iter().chain(heard).max().filter(|at| *at >= sent);
        if let Some(standing) = said
            && standing.node() == node
            && self.calls.is_still(&standing)
        {
            self.relied = Some(standing);
        }
    }

    /// The token that guards have now, if it is one that a renewal brought.
    pub(super) fn last_token(&self) -> Option<FencingToken> {
        self.block.as_ref().map(|block| block.last)
    }

    /// Whether guards may come without asking.
    fn is_open(&self, now: Moment) -> bool {
        self.called_at.is_none() && self.relied.as_ref().is_some_and(|standing| standing.is_live(now))
    }
}

impl HoldRecord {
    /// Whether no guard is inside, and the hold is there all the same.
    pub(in crate::lock) fn is_idle(&self) -> bool {
        self.keep.as_ref().is_some_and(|keep| keep.idle.is_some())
    }

    /// Whether guards may come without asking, whatever the share window says.
    pub(super) fn is_kept_open(&self, now: Moment) -> bool {
        self.keep.as_ref().is_some_and(|keep| keep.is_open(now))
    }

    /// The subscription that stands now, for a request that says that the hold may stay.
    pub(in crate::lock) fn keeps_by(&self) -> Option<LiveSubscription> {
        self.keep.as_ref()?.calls.subscription()
    }

    /// Takes the place of the share that is nobody's, if the hold is idle.
    #[inline]
    pub(super) fn take_idle_place(&mut self, share: Share) -> Option<usize> {
        let keep = self.keep.as_mut()?;
        keep.is_used_again = true;
        let slot = keep.idle.take()?.slot();
        self.shares.replace(slot, share);
        Some(slot)
    }

    /// For how long it may stay after a use from now on.
    pub(super) fn stays_for(&mut self, cache_for: Duration) {
        if let Some(keep) = &mut self.keep {
            keep.cache_for = cache_for;
        }
    }

    /// An answer about it.
    pub(in crate::lock) fn hears(&mut self, word: Word, now: Moment) {
        let first = self.token;
        let Some(keep) = &mut self.keep else { return };
        keep.hears(word, first, now);
        // What was said before lets nobody in any more.
        if keep.called_at.is_some() && self.mode == Mode::Read {
            self.share_until = CLOSED;
        }
    }

    /// Whether it was learnt after that moment that somebody waits.
    pub(super) fn was_called_since(&self, moment: Moment) -> bool {
        self.keep.as_ref().and_then(|keep| keep.called_at).is_some_and(|at| at >= moment)
    }

    // Tokens.

    /// The next one for a writer, if there is one left.
    pub(super) fn next_token(&self) -> Option<FencingToken> {
        if let Some(block) = self.keep.as_ref().and_then(|keep| keep.block.as_ref()) {
            return (block.left > 0).then_some(block.next);
        }
        (self.hand_overs + 1 < self.tokens).then(|| self.token.plus(self.hand_overs + 1))
    }

    /// Hands it out. `false` if there is none left.
    pub(super) fn take_token(&mut self) -> bool {
        let Some(next) = self.next_token() else {
            return false;
        };
        self.hand_overs += 1;
        if let Some(block) = self.keep.as_mut().and_then(|keep| keep.block.as_mut()) {
            **block = Block { next: next.plus(1), left: block.left.saturating_sub(1), last: next };
        }
        true
    }

    /// How many more tokens to ask for: a block before the one that is there is used up.
    pub(in crate::lock) fn wants_tokens(&self) -> u64 {
        const MOST: u64 = crate::scheme::MAX_TOKENS;
        let Some(keep) = &self.keep else {
            return 0;
        };
        let of_grant = || self.tokens.saturating_sub(self.hand_overs + 1);
        let left = keep.block.as_ref().map_or_else(of_grant, |block| block.left);
        if self.mode == Mode::Write && left <= MOST / 2 { MOST } else { 0 }
    }

    /// A renewal has brought tokens. Those below one that was handed out are not used: the answers to two renewals may cross.
    pub(in crate::lock) fn has_tokens(&mut self, first: FencingToken, count: u64) {
        let last = self.current_token();
        if let Some(keep) = self.keep.as_mut().filter(|_| first > last) {
            keep.block = Some(Box::new(Block { next: first, left: count, last }));
        }
    }

    // Comes and goes.

    /// Whether somebody of this process may go on with it.
    fn may_be_taken(&self, now: Moment) -> bool {
        self.is_idle() && self.is_open() && self.is_kept_open(now) && now < self.deadline()
    }

    /// A writer of this process takes an idle hold, with the next token; if there is none left, it is to ask for more.
    pub(in crate::lock) fn take_idle(&mut self, share: Share, cache_for: Duration, now: Moment) -> Option<ShareId> {
        if self.mode != Mode::Write || !self.may_be_taken(now) {
            return None;
        }
        self.stays_for(cache_for);
        Some(self.admit_writer(share))
    }

    /// The same for one that needs nothing more than is left of it.
    pub(in crate::lock) fn take_idle_at_once(
        &mut self,
        share: Share,
        cache_for: Duration,
        now: Moment,
    ) -> Option<ShareId> {
        let has_enough = self.next_token().is_some() && self.lasts(&share, share.lease, now);
        has_enough.then(|| self.take_idle(share, cache_for, now)).flatten()
    }

    /// The next writer has it, with the next token or, for the time being, none.
    pub(super) fn admit_writer(&mut self, share: Share) -> ShareId {
        let has_token = self.take_token();
        if let Some(keep) = &mut self.keep {
            keep.lacks_token = !has_token;
        }
        self.admit(share)
    }

    /// Whether whoever is inside has no token yet: then nobody is beside it, be it the same owner.
    pub(super) fn lacks_token(&self) -> bool {
        self.keep.as_ref().is_some_and(|keep| keep.lacks_token)
    }

    /// Whether the writer inside has its token. If it had none until now, the next one is its own, unless somebody waits elsewhere.
    pub(super) fn has_token(&mut self, now: Moment) -> bool {
        if !self.lacks_token() {
            return true;
        }
        let has_token = self.is_kept_open(now) && self.take_token();
        if let Some(keep) = &mut self.keep {
            keep.lacks_token = !has_token;
        }
        has_token
    }

    /// Whether this process goes on with an idle hold of the other side by having it turned.
    pub(in crate::lock) fn may_turn(&self, mode: Mode, now: Moment) -> bool {
        self.mode != mode && self.in_doubt.is_none() && self.may_be_taken(now)
    }

    /// Somebody who has no guard yet takes an idle hold, to have it turned into one of the other side. Nobody else enters.
    pub(in crate::lock) fn take_to_turn(&mut self, share: Share, cache_for: Duration) -> ShareId {
        self.stays_for(cache_for);
        let share_id = self.admit(share);
        self.is_converting = true;
        if let Some(keep) = &mut self.keep {
            keep.is_turned = true;
        }
        share_id
    }

    /// What the hold needs that takes its place: who hears of calls, and for how long it may stay.
    pub(in crate::lock) fn terms_of_keep(&self) -> Option<(Arc<Recalls>, Duration)> {
        let keep = self.keep.as_ref().filter(|keep| !keep.cache_for.is_zero())?;
        Some((Arc::clone(&keep.calls), keep.cache_for))
    }

    /// Stays when its last guard has left, if it may.
    pub(super) fn rests(&mut self, lease: Duration, now: Moment) -> bool {
        let Some(share) = self.share_of_nobody(lease, now) else {
            return false;
        };
        let slot = self.shares.add(share);
        self.is_idle_from(slot, now);
        true
    }

    /// The last guard lets go of a hold that stays, which nobody else need know. `false` if there is more to it.
    #[inline]
    pub(in crate::lock) fn rests_at_once(&mut self, share_id: ShareId, now: Moment) -> bool {
        let is_last = self.shares.len() == 1 && !self.shares.is_watched(share_id.slot);
        if !is_last || now >= self.deadline() {
            return false;
        }
        let share = self.shares.get(share_id.slot);
        let Some(idle) = self.share_of_nobody(share.lease, now).filter(|_| now < share.ends) else {
            return false;
        };
        self.shares.replace(share_id.slot, idle);
        self.is_idle_from(share_id.slot, now);
        true
    }

    /// The share that is nobody's, if the hold may stay.
    #[inline]
    fn share_of_nobody(&self, lease: Duration, now: Moment) -> Option<Share> {
        let keep = self.keep.as_ref().filter(|keep| !keep.cache_for.is_zero() && keep.is_open(now))?;
        let may = self.is_open() && self.in_doubt.is_none();
        may.then(|| Share { owner: OwnerId::NOBODY, lease, ends: now.after(keep.cache_for) })
    }

    fn is_idle_from(&mut self, slot: usize, now: Moment) {
        if let Some(keep) = &mut self.keep {
            keep.idle = Some(Place::of(slot));
        }
        if self.renewal == Renewal::Needless {
            self.renewal = Renewal::Due(self.answered.after(renewal_interval(self.asked)).max(now));
        }
    }

    /// Whether it is to be given up: nobody is inside, and somebody waits, or might without being heard, or nobody has used it for
    /// long.
    pub(super) fn gives_up(&self, now: Moment) -> bool {
        self.idle_until().is_some_and(|until| until <= now)
    }

    /// When it is to be given up, if no guard comes before.
    pub(in crate::lock) fn idle_until(&self) -> Option<Moment> {
        let keep = self.keep.as_ref()?;
        let ends = self.shares.get(keep.idle?.slot()).ends;
        let is_called = keep.called_at.is_some() || keep.relied.is_none();
        Some(if is_called { Moment::from_nanos(0) } else { ends })
    }

    /// It is over, and its share that is nobody's with it. Whether nobody had a guard of it.
    pub(super) fn leaves_idle(&mut self) -> bool {
        let idle = self.keep.as_mut().and_then(|keep| keep.idle.take());
        if let Some(place) = idle {
            self.shares.remove(place.slot());
        }
        idle.is_some() || self.keep.as_ref().is_some_and(|keep| keep.is_turned || keep.lacks_token)
    }

    /// It is given up, as by its last guard.
    pub(super) fn give_up(&mut self, signals: &mut Signals) -> Next {
        self.leaves_idle();
        self.tell_awaiting(signals);
        self.phase = Phase::Released;
        Next::GivenUp
    }

    /// What has come of letting it stay. `None` if it was not to.
    pub(in crate::lock) fn stay(&self) -> Option<Stay> {
        let keep = self.keep.as_ref()?;
        Some(match (keep.is_used_again, keep.called_at) {
            (true, _) => Stay::OfUse,
            (false, Some(_)) => Stay::ForNothing,
            (false, None) => Stay::Unused,
        })
    }

    // What others say.

    /// Somebody waits for it elsewhere. Whether a guard is inside that somebody may want to know of.
    pub(in crate::lock) fn called(&mut self, call: &Recall, now: Moment) -> bool {
        if call.token < self.token || !self.phase.is_live() || self.keep.is_none() {
            return false;
        }
        if call.tries.is_some() && !self.is_idle() {
            return true;
        }
        self.is_wanted(now);
        false
    }

    /// Somebody waits whom it excludes, here or elsewhere.
    pub(in crate::lock) fn is_wanted(&mut self, now: Moment) {
        if let Some(keep) = &mut self.keep {
            keep.called_at = Some(now);
            if self.mode == Mode::Read {
                self.share_until = CLOSED;
            }
        }
    }

    /// Calls for it may have been missed: it is not relied on any more.
    pub(in crate::lock) fn is_not_heard_of(&mut self) {
        if let Some(keep) = &mut self.keep {
            keep.relied = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_a_hold_stay_is_small() {
        // There is one for each idle hold.
        assert!(size_of::<Keep>() <= 88, "{} bytes", size_of::<Keep>());
    }
}
