//! Watchers of the end of a share.
//!
//! A watched share has an [`End`]. The cell records this end as soon as an event ends the share. Such an event is a
//! release, an answer of the server, or a check of the clock by the background. A watcher also sets a timer for the
//! deadline of the share, so it depends on no other task. The timer is late only after a suspension of the machine. In
//! that case the check of the background finds the end.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::base::lease::{FencingToken, Moment};
use crate::lock::end::{End, Ended, HoldState};
use crate::lock::hold::Hold;
use crate::lock::shares::{Share, ShareId};

/// Watcher of one share of a hold. It may live longer than the guard.
#[derive(Clone)]
pub(crate) struct Watch {
    hold: Arc<Hold>,
    share: Share,
    pub(crate) token: FencingToken,
    end: Arc<End>,
}

impl Watch {
    /// Begins to watch a share. The watcher may live longer than the guard.
    pub(crate) fn of(hold: &Arc<Hold>, share_id: ShareId) -> Self {
        let (share, end) = hold.watch(share_id);
        Self { hold: Arc::clone(hold), share, token: share_id.token, end }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Returns the state of the share. A released share is still reported as held.
    pub(crate) fn state(&self) -> HoldState {
        match self.end.get() {
            Some(Ended::Lost(reason)) => HoldState::Lost(reason),
            Some(Ended::Released) => HoldState::Held,
            None => self.hold.state_of_share(&self.share),
        }
    }

    fn ended_now(&self) -> Option<Ended> {
        match (self.end.get(), self.state()) {
            (Some(ended), _) => Some(ended),
            (None, HoldState::Lost(reason)) => Some(Ended::Lost(reason)),
            (None, HoldState::Held | HoldState::Unconfirmed) => None,
        }
    }

    /// Returns the moment at which the share may be over by the clock. The watcher must look by itself at this moment,
    /// because no signal wakes it for that.
    fn looks_at(&self) -> Moment {
        self.hold.deadline().min(self.share.ends)
    }

    /// Waits until the share is over by the local clock, by a release, or by an answer of the server. Needs no server
    /// and no other task, but a tokio runtime for its timer. In a process that `fork` has copied, it returns at the next
    /// poll.
    pub(crate) async fn ended(&self) -> Ended {
        self.until(|| self.ended_now()).await
    }

    /// Waits until an answer of the server has granted the whole lease of the share. Returns an error if the share is
    /// over before. Needs a tokio runtime for its timer.
    pub(crate) async fn confirmed(&self) -> Result<(), Ended> {
        self.until(|| self.ended_now().map(Err).or_else(|| self.is_confirmed().then_some(Ok(())))).await
    }

    /// Returns true if the share has its whole lease. If not, makes a renewal due now, also after an answer that granted
    /// less.
    fn is_confirmed(&self) -> bool {
        let is_confirmed = self.hold.is_confirmed(&self.share);
        if !is_confirmed {
            self.hold.confirm_now(&self.share);
        }
        is_confirmed
    }

    /// Returns the first result of `look`, which runs at each change of the share and at its local deadline. In a
    /// process that `fork` has copied, `look` runs at each poll.
    async fn until<T>(&self, look: impl Fn() -> Option<T> + Send + Sync) -> T {
        let mut found = pin!(self.until_changed(&look));
        poll_fn(|cx| match self.hold.is_copied().then(&look).flatten() {
            Some(found) => Poll::Ready(found),
            None => found.as_mut().poll(cx),
        })
        .await
    }

    async fn until_changed<T>(&self, look: impl Fn() -> Option<T> + Send + Sync) -> T {
        loop {
            let changed = self.end.changed.notified();
            tokio::pin!(changed);
            // The watcher registers before `look` runs, so that it misses no change after `look`.
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.hold.clock().timer(self.looks_at()) => {}
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}
