//! Holds that stay when nobody is inside: the mark that says so, and who is called.

use std::time::Duration;

use super::{Record, Step};
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::{AcquireRequest, AcquisitionId, Converted, IfTaken, Mode, Renewed};

/// Those who wait call no more often.
pub(in crate::store::memory) const CALL_MS: u64 = 500;

/// Set by who may keep its hold. A later phase has another token, so nobody has to take it away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::store::memory) struct Mark {
    pub(in crate::store::memory) token: u64,
    /// When a waiter called last.
    pub(in crate::store::memory) called_ms: Option<u64>,
}

/// Somebody waits for a lock that may be kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CallBack {
    pub(crate) token: FencingToken,
    /// Of a try.
    pub(crate) id: Option<AcquisitionId>,
}

impl Record {
    pub(super) fn is_marked(&self) -> bool {
        self.mark.is_some_and(|mark| mark.token == self.token)
    }

    /// Somebody may keep its hold. Where it is told that somebody waits, a mark that is there stays, and when it was called for.
    pub(super) fn set_mark(&mut self, is_waited_for: bool) {
        if !is_waited_for || !self.is_marked() {
            self.mark = Some(Mark { token: self.token, called_ms: None });
        }
    }

    /// Whether somebody waits whom the hold keeps out that is recorded: behind readers a writer, behind a writer anybody.
    pub(super) fn is_waited_for(&mut self, step: &mut Step) -> bool {
        let readers_wait = !(self.turn_readers.is_empty() && self.waiting_readers.is_empty());
        self.writer_waits(step) || self.writer.is_some() && readers_wait && self.heard_ms > step.now_ms
    }

    /// The same as a renewal tells it, which looks at nobody: somebody of the recorded may be dead who is taken for alive.
    fn is_perhaps_waited_for(&self, now_ms: u64) -> bool {
        let somebody_waits = match self.writer {
            Some(_) => self.somebody_waits(),
            None => !self.waiting_writers.is_empty(),
        };
        somebody_waits && self.heard_ms > now_ms
    }

    /// Somebody is recorded who waits, live or dead.
    pub(crate) fn somebody_waits(&self) -> bool {
        let queues = [&self.turn_readers, &self.waiting_readers];
        !self.waiting_writers.is_empty() || queues.into_iter().any(|queue| !queue.is_empty())
    }

    /// What is remembered of a queue goes with the last who waits.
    pub(super) fn forget_heard(&mut self) {
        if !self.somebody_waits() {
            self.heard_ms = 0;
        }
    }

    /// Whether what keeps this one out may be kept: a reader that only a waiting writer is before is not called for.
    pub(super) fn is_kept_from(&self, now_ms: u64, mode: Mode) -> bool {
        self.is_marked() && (mode == Mode::Write || self.live_writer(now_ms).is_some())
    }

    /// Who waits calls. A try is always heard, and names itself.
    pub(super) fn call_for(&mut self, now_ms: u64, request: &AcquireRequest) {
        let id = matches!(request.if_taken, IfTaken::Try { .. }).then(|| request.id.clone());
        let Some(mark) = self.mark.as_mut() else { return };
        if id.is_none() {
            let passed_ms = mark.called_ms.map(|called_ms| now_ms.checked_sub(called_ms));
            if passed_ms.is_some_and(|passed_ms| passed_ms.is_some_and(|passed_ms| passed_ms < CALL_MS)) {
                return;
            }
            mark.called_ms = Some(now_ms);
        }
        self.call_back = Some(CallBack { token: self.last_token(), id });
    }

    /// An upgrade is refused; whoever may keep what is in its way is called, as by a try.
    pub(super) fn refuse_upgrade(&mut self, id: &AcquisitionId) -> Converted {
        if !self.is_marked() {
            return Converted::Refused;
        }
        self.call_back = Some(CallBack { token: self.last_token(), id: Some(id.clone()) });
        Converted::Kept
    }

    /// Whoever may keep a hold that is ended by force is told so.
    pub(super) fn call_forced(&mut self) {
        self.call_back = self.is_marked().then(|| CallBack { token: self.last_token(), id: None });
    }

    fn last_token(&self) -> FencingToken {
        FencingToken::from_wire(self.token).expect("server time is below 2^53")
    }

    /// A renewal by a process that may keep the hold. A writer gets so many more tokens, which come from the past like those of a
    /// grant: at least one. The last one is the record's, as ever.
    pub(crate) fn renew_kept(
        &mut self,
        now: ServerTime,
        id: &AcquisitionId,
        lease: Duration,
        max_tokens: u64,
    ) -> Renewed {
        let Renewed::Renewed { remaining, .. } = self.renew(now, id, lease) else {
            return Renewed::Lost { forced: self.forced() };
        };
        let is_waited_for = self.is_perhaps_waited_for(now.as_micros() / 1000);
        let was_marked = self.is_marked();
        let tokens = (max_tokens > 0).then(|| self.bring_tokens(now.as_micros(), max_tokens)).flatten();
        if let Some(mark) = self.mark.as_mut().filter(|_| was_marked) {
            mark.token = self.token;
        }
        self.set_mark(is_waited_for);
        Renewed::Renewed { remaining, is_waited_for, tokens }
    }

    /// The next tokens of the writer, if there is one, in the place of those that it had.
    fn bring_tokens(&mut self, now_us: u64, max_tokens: u64) -> Option<(FencingToken, u64)> {
        self.writer.as_ref()?;
        let first = self.take_tokens(now_us, max_tokens);
        self.writer.as_mut()?.token = first;
        Some((FencingToken::from_wire(first)?, self.token - first + 1))
    }

    /// Who is to hear that somebody waits, since the last time.
    pub(crate) fn take_call_back(&mut self) -> Option<CallBack> {
        self.call_back.take()
    }
}
