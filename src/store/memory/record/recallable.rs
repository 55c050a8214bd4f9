//! Recallable flag and recalls of cached holds.

use std::time::Duration;

use super::{Record, ServerStep};
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::{AcquireRequest, AcquisitionId, Converted, IfTaken, Mode, Renewed};

/// Shortest time between two recalls of a hold by waiters, in milliseconds.
pub(crate) const RECALL_INTERVAL_MS: u64 = 500;

/// Recallable flag, which a request sets if its process may cache its hold. The flag counts only for its token. The
/// next phase has another token, so no operation has to remove the flag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecallableFlag {
    pub(crate) token: u64,
    /// Time of the last recall by a waiter, in milliseconds.
    pub(crate) recalled_ms: Option<u64>,
}

/// Recall of a hold that may be cached. A waiter wants this hold to be released.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PendingRecall {
    pub(crate) token: FencingToken,
    /// Id of the try, if a try sends the recall.
    pub(crate) id: Option<AcquisitionId>,
}

impl Record {
    pub(super) fn is_recallable(&self) -> bool {
        self.recallable.is_some_and(|recallable| recallable.token == self.token)
    }

    /// Sets the recallable flag for the last token. If a waiter waits and the flag is set already, the flag keeps the
    /// time of its last recall.
    pub(super) fn set_recallable(&mut self, is_waited_for: bool) {
        if !is_waited_for || !self.is_recallable() {
            self.recallable = Some(RecallableFlag { token: self.token, recalled_ms: None });
        }
    }

    /// Returns true if the recorded hold excludes a waiter. A read hold excludes a waiting writer, and a write hold
    /// excludes each waiter.
    pub(super) fn is_waited_for(&mut self, step: &mut ServerStep) -> bool {
        let readers_wait = !(self.batch_readers.is_empty() && self.waiting_readers.is_empty());
        self.has_waiting_writer(step) || self.writer.is_some() && readers_wait && self.waiters_until_ms > step.now_ms
    }

    /// Returns true if the hold may exclude a waiter. A renewal uses this function, which does not check each waiter.
    /// So a dead waiter may count as live.
    fn may_be_waited_for(&self, now_ms: u64) -> bool {
        let somebody_waits = match self.writer {
            Some(_) => self.has_waiters(),
            None => !self.waiting_writers.is_empty(),
        };
        somebody_waits && self.waiters_until_ms > now_ms
    }

    /// Returns true if a waiter is recorded, live or dead.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting().next().is_some()
    }

    /// Resets the latest deadline of the waiters if no waiter is recorded.
    pub(super) fn forget_waiters(&mut self) {
        if !self.has_waiters() {
            self.waiters_until_ms = 0;
        }
    }

    /// Returns true if the hold that excludes this mode may be cached. A reader that is excluded only by a waiting
    /// writer recalls no hold.
    pub(super) fn may_be_cached_for(&self, now_ms: u64, mode: Mode) -> bool {
        self.is_recallable() && (mode == Mode::Write || self.live_writer(now_ms).is_some())
    }

    /// Recalls the hold for a waiter, unless a waiter recalled it a short time ago. A try always recalls the hold, and
    /// the recall has the id of the try.
    pub(super) fn recall(&mut self, now_ms: u64, request: &AcquireRequest) {
        let id = matches!(request.if_taken, IfTaken::Try { .. }).then(|| request.id.clone());
        let Some(recallable) = self.recallable.as_mut() else { return };
        if id.is_none() {
            let passed_ms = recallable.recalled_ms.map(|recalled_ms| now_ms.checked_sub(recalled_ms));
            if passed_ms.is_some_and(|passed_ms| passed_ms.is_some_and(|passed_ms| passed_ms < RECALL_INTERVAL_MS)) {
                return;
            }
            recallable.recalled_ms = Some(now_ms);
        }
        self.pending_recall = Some(PendingRecall { token: self.last_token(), id });
    }

    /// Refuses an upgrade. If other holds may be cached, the refusal recalls them, as a try would.
    pub(super) fn refuse_upgrade(&mut self, id: &AcquisitionId) -> Converted {
        if !self.is_recallable() {
            return Converted::Refused;
        }
        self.pending_recall = Some(PendingRecall { token: self.last_token(), id: Some(id.clone()) });
        Converted::Cached
    }

    /// Recalls a hold that an operator ends by force. By this recall, the process that caches the hold learns that the
    /// hold has ended.
    pub(super) fn recall_forced(&mut self) {
        self.pending_recall = self.is_recallable().then(|| PendingRecall { token: self.last_token(), id: None });
    }

    fn last_token(&self) -> FencingToken {
        FencingToken::from_wire(self.token).expect("server time is below 2^53")
    }

    /// Renews a hold for a process that may cache it. A writer that requests tokens gets up to `max_tokens` new tokens,
    /// at least one. As in a grant, the new tokens are never ahead of the clock, and the last one becomes the token of
    /// the record.
    pub(crate) fn renew_cached(
        &mut self,
        now: ServerTime,
        id: &AcquisitionId,
        lease: Duration,
        max_tokens: u64,
    ) -> Renewed {
        let Renewed::Renewed { remaining, .. } = self.renew_until(now, id, lease, None) else {
            return Renewed::Lost { forced: self.forced_token() };
        };
        let is_waited_for = self.may_be_waited_for(now.as_micros() / 1000);
        let was_recallable = self.is_recallable();
        let tokens = (max_tokens > 0).then(|| self.add_tokens(now.as_micros(), max_tokens)).flatten();
        if let Some(recallable) = self.recallable.as_mut().filter(|_| was_recallable) {
            // New tokens do not begin a new phase. So the flag stays valid for the new token, and keeps the time of its
            // last recall.
            recallable.token = self.token;
        }
        self.set_recallable(is_waited_for);
        Renewed::Renewed { remaining, is_waited_for, tokens }
    }

    /// Replaces the tokens of the writer by new ones. Returns the first new token and their number, or `None` if no
    /// writer holds the lock.
    fn add_tokens(&mut self, now_us: u64, max_tokens: u64) -> Option<(FencingToken, u64)> {
        self.writer.as_ref()?;
        let first = self.take_tokens(now_us, max_tokens);
        self.writer.as_mut()?.token = first;
        Some((FencingToken::from_wire(first)?, self.token - first + 1))
    }

    /// Takes the recall that is to be sent, if there is one.
    pub(crate) fn take_recall(&mut self) -> Option<PendingRecall> {
        self.pending_recall.take()
    }
}
