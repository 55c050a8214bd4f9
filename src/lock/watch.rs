//! Who waits for the end of a share.
//!
//! A share that somebody watches has an [`End`], which the cell makes known as soon as an event shows it: a release, the
//! server's word, or the clock, which the agenda of renewals looks at for all. A timer of its own tells it too, so that it needs
//! nobody: set once for each deadline, since only a machine that slept makes it late, and that the agenda finds out.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::base::lease::{FencingToken, Moment};
use crate::lock::end::{End, Ended, HoldState};
use crate::lock::hold::{Due, Hold};
use crate::lock::shares::{Share, ShareId};

/// Watches one share of a hold, also when its guard is gone.
#[derive(Clone)]
pub(crate) struct Watch {
    hold: Arc<Hold>,
    share: Share,
    pub(crate) token: FencingToken,
    end: Arc<End>,
}

impl Watch {
    /// Outlives the guard whose share it is.
    pub(crate) fn of(hold: &Arc<Hold>, share_id: ShareId) -> (Self, Due) {
        let ((share, end), due) = hold.watch(share_id);
        (Self { hold: Arc::clone(hold), share, token: share_id.token, end }, due)
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// A share that was released stays held.
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

    /// When there is something to see if nobody tells.
    fn looks_at(&self) -> Moment {
        self.hold.deadline().min(self.share.ends)
    }

    /// Returns when the share is over by the local clock or by the server's word: no server and no other task is needed. In a copied
    /// process it returns as soon as it is polled there.
    pub(crate) async fn ended(&self) -> Ended {
        self.until(|| self.ended_now()).await
    }

    /// Sends the claim now, if the server has yet to answer for the hold.
    pub(crate) fn claim_now(&self, now: Moment) -> Due {
        self.hold.claim_now(now)
    }

    /// Returns when the server has answered for the hold since it granted it, or when the share is over before.
    pub(crate) async fn confirmed(&self) -> Result<(), Ended> {
        let is_confirmed = || (!self.hold.is_claim()).then_some(Ok(()));
        self.until(|| self.ended_now().map(Err).or_else(is_confirmed)).await
    }

    /// Returns what `look` finds. It looks at each change of the share, and at its local deadline; in a copied process at each poll.
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
            // Registered before the look, so a change between the two is not missed.
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
