//! An acquisition waits in its process, for a share of a hold that the server grants or that another task hands over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{Patience, arm};
use crate::base::denied::Denied;
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::options::Terms;
use crate::base::reentry::{OwnerId, Reentry};
use crate::engine::waiters::WaiterPermit;
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::shares::ShareRequest;
use crate::lock::side::{OutageStage, SideOutage, WaiterId};
use crate::lock::wait::FirstGrant;
use crate::lock::wait::{Handed, RequesterEntry, WaitEntry, Wake};
use crate::store::{Failure, Mode};

/// Time after which the log names a waiter whose own task holds the lock, at the earliest.
const SELF_WAIT_WARNING: Duration = Duration::from_secs(3);

/// Acquisition as its process sees it. Its drop gives up its entry in the cell.
pub(super) struct LocalWaiter {
    /// Handle of the engine, which counts the acquisition among those that are in progress.
    pub(super) engine: WaiterPermit,
    /// Key of the lock's cell, which all waiters share.
    pub(super) key: Arc<Key>,
    pub(super) mode: Mode,
    pub(super) wants: ShareRequest,
    pub(super) reentry: Reentry,
    pub(super) patience: Patience,
    pub(super) limit: Option<Moment>,
    /// Present until it has a share.
    pub(super) entry: Option<WaitEntry>,
    pub(super) began: Moment,
    /// Moment at which it entered the cell last.
    pub(super) entered: Moment,
    /// True after the log line about an acquisition that waits for its own hold.
    warned: bool,
    /// Start of the time without an answer.
    pub(super) silent_since: Moment,
}

/// Outcome of [`enter`].
pub(super) enum Entered {
    Held(Held),
    Denied(Box<Denied>),
    Waits(LocalWaiter),
}

/// Reason for which a waiter is woken.
pub(super) enum LocalSignal {
    /// The task of the waiter is the requester of its side from now on.
    Requests(RequesterEntry),
    /// The server has granted a request that the task of this waiter has sent.
    Granted(Held),
    Handed(Box<HandedHold>),
    /// The server has refused this try.
    Denied,
    /// A request that was also for this waiter has failed.
    Failed(Failure),
    /// The waiter has given up its place, because its task was not polled in time.
    PlaceLost,
}

/// Share that the waiter has to take.
pub(super) struct HandedHold {
    pub(super) held: Held,
    /// Present if the server has granted the hold to this waiter.
    pub(super) grant: Option<FirstGrant>,
}

/// Memory of a waiter between two looks. It looks whether an outage lasts, and whether its own task holds the lock.
pub(super) struct Looks {
    /// Stage of the outage that the waiter knows of.
    known: Option<OutageStage>,
    /// End of the wait, if that outage lasts until then.
    ends_at: Moment,
    /// Timer of the next look.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Looks {
    pub(super) fn new() -> Self {
        Self { known: None, ends_at: Moment::NEVER, timer: None }
    }
}

/// Takes a share that needs no request, or adds an entry to the cell.
pub(super) fn enter(
    engine: &Arc<Engine>,
    key: &Arc<Key>,
    mode: Mode,
    terms: &Terms,
    patience: Patience,
) -> Result<Entered> {
    engine.check_open(key)?;
    in_runtime()?;
    if terms.at_least.is_some() {
        arm::check(engine)?;
    }
    engine.keep_running();
    let began = engine.now();
    let wants = ShareRequest {
        owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
        lease: terms.lease,
        max_hold: terms.max_hold,
        cache_for: terms.cache_for,
    };
    if terms.reentry.owner().is_some()
        && let Some(held) = join_own(engine, key, wants, mode, began)?
    {
        return if terms.at_least.is_some() { Err(arm::nested_error()) } else { Ok(Entered::Held(held)) };
    }
    if mode == Mode::Read
        && let Some((hold, share_id)) = engine.table.join(key.hashed_name(), wants, began)
    {
        return Ok(Entered::Held(Held::new(engine, hold, share_id)));
    }
    let permit = WaiterPermit::admit(engine, key)?;
    let entry = match patience {
        Patience::Wait => engine.table.enter(key, mode, wants, began),
        Patience::AskOnce => match engine.table.try_enter(key, mode, wants, began) {
            Some(entry) => entry,
            None => return Ok(Entered::Denied(engine.denial_here(key, mode, began))),
        },
    };
    Ok(Entered::Waits(LocalWaiter {
        engine: permit,
        key: Arc::clone(entry.key()),
        mode,
        wants,
        reentry: terms.reentry,
        patience,
        limit: terms.wait_timeout.map(|limit| began.after(limit)),
        entry: Some(entry),
        began,
        entered: began,
        warned: false,
        silent_since: began,
    }))
}

/// Nests in a hold of the same owner, if it has one.
fn join_own(engine: &Arc<Engine>, key: &Key, wants: ShareRequest, mode: Mode, now: Moment) -> Result<Option<Held>> {
    let Some(hold) = engine.table.held_by(key, wants.owner, now) else {
        return Ok(None);
    };
    if hold.mode() == Mode::Read && mode == Mode::Write {
        return Err(Error::UpgradeConflict { lock: key.shared_name() });
    }
    // It may want the hold for longer than the others do.
    let share_id = hold.join_own(wants.from(now), now);
    Ok(share_id.map(|share_id| Held::new(engine, hold, share_id)))
}

impl LocalWaiter {
    /// Returns true if its task is the requester of its side, and has not begun.
    pub(super) fn is_requester(&self) -> bool {
        self.entry.as_ref().is_some_and(WaitEntry::is_requester)
    }

    pub(super) fn waiter_id(&self) -> WaiterId {
        self.entry.as_ref().map_or_else(|| unreachable!("present until it has a share"), WaitEntry::waiter_id)
    }

    /// Is ready when it gets a share, or a reason to end. Ends early if the server does not answer the requester for too long. An
    /// outage wakes the waiter when it begins, so that many waiters do not have to look for one.
    pub(super) fn poll_signal(&mut self, looks: &mut Looks, cx: &mut Context<'_>) -> Poll<Result<LocalSignal>> {
        loop {
            let entry = self.entry.as_ref().expect("present until it has a share");
            match entry.poll_wake(looks.known, cx) {
                Poll::Ready(Some(wake)) => return Poll::Ready(Ok(self.signal_of(entry, wake))),
                Poll::Ready(None) => {}
                Poll::Pending => ready!(self.poll_timer(looks, cx)),
            }
            let (outage, now) = (self.outage(), self.engine.now());
            looks.ends_at = self.end_of(outage.as_ref(), looks.known, looks.ends_at, now);
            looks.known = outage.as_ref().map(SideOutage::stage);
            looks.timer = None;
            if looks.ends_at <= now {
                return Poll::Ready(Err(self.unreachable(outage, now)));
            }
            self.warn_of_self(now);
        }
    }

    fn signal_of(&self, entry: &WaitEntry, wake: Wake) -> LocalSignal {
        match wake {
            Wake::Requests(requester_id) => LocalSignal::Requests(entry.requester(requester_id)),
            Wake::Handed(Handed { hold, share_id, grant }) => {
                let held = Held::new(&self.engine, hold, share_id);
                LocalSignal::Handed(Box::new(HandedHold { held, grant }))
            }
            Wake::Denied => LocalSignal::Denied,
            Wake::Failed(failure) => LocalSignal::Failed(failure),
            Wake::PlaceLost => LocalSignal::PlaceLost,
        }
    }

    /// Is ready at the next look. A waiter without one needs no memory for a timer.
    fn poll_timer(&self, looks: &mut Looks, cx: &mut Context<'_>) -> Poll<()> {
        if looks.timer.is_none() {
            let now = self.engine.now();
            let at = looks.ends_at.min(self.next_warning(now));
            if at == Moment::NEVER {
                return Poll::Pending;
            }
            looks.timer = Some(Box::pin(self.engine.clock.sleep(at)));
        }
        looks.timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }

    /// Returns the longest time without an answer. A caller that wants one answer waits through an outage for at most twice the
    /// response timeout.
    pub(super) fn bears(&self) -> Duration {
        let options = self.engine.options();
        match self.patience {
            Patience::Wait => options.unreachable_after,
            Patience::AskOnce => options.unreachable_after.min(options.response_timeout * 2),
        }
    }

    /// Returns when the wait ends if the outage lasts until then. After the first failure a waiter waits for one more copy.
    fn end_of(&self, outage: Option<&SideOutage>, known: Option<OutageStage>, ends_at: Moment, now: Moment) -> Moment {
        let Some(outage) = outage else { return Moment::NEVER };
        if known == Some(outage.stage()) {
            return ends_at;
        }
        let ends_at = outage.since.max(self.silent_since).after(self.bears());
        let response_timeout = self.engine.options().response_timeout;
        if outage.is_repeated { ends_at } else { ends_at.max(now.after(response_timeout)) }
    }

    /// Returns when this waiter looks next whether it waits for its own hold: after 3, 6, 12 seconds, and so on.
    fn next_warning(&self, now: Moment) -> Moment {
        if self.warned {
            return Moment::NEVER;
        }
        let (waited, mut span) = (now.since(self.began), SELF_WAIT_WARNING);
        while span <= waited {
            span *= 2;
        }
        self.began.after(span)
    }

    /// Returns the outage that the requester sees.
    pub(super) fn outage(&self) -> Option<SideOutage> {
        self.entry.as_ref()?.side().outage()
    }

    fn unreachable(&self, outage: Option<SideOutage>, now: Moment) -> Error {
        let since = outage.as_ref().map_or(now, |outage| outage.since.max(self.silent_since));
        Error::unreachable(self.key.shared_name(), now.since(since), outage.and_then(|outage| outage.source))
    }

    /// Logs once that the waiter's own task holds the lock, because such a waiter would wait for ever.
    pub(super) fn warn_of_self(&mut self, now: Moment) {
        let due = !self.warned && now.since(self.began) >= SELF_WAIT_WARNING;
        if due && self.entry.as_ref().is_some_and(|entry| entry.waits_for(self.wants.owner, now)) {
            self.warned = true;
            events::waits_for_itself(self.key.name(), self.reentry);
        }
    }

    /// Waits again, at its old place among the waiters of this process, after the hand-over came to nothing.
    pub(super) fn wait_again(&mut self) {
        let (table, now) = (&self.engine.table, self.engine.now());
        let Some(entry) = &mut self.entry else {
            return;
        };
        if !entry.waits_again(self.wants, now) {
            *entry = table.enter(&self.key, self.mode, self.wants, now);
        }
    }

    /// Waits for the lock again, behind the other waiters of this process. A try asks the server at once, unless a task of
    /// this process is before it.
    pub(super) fn enter_again(&mut self) {
        let (table, now) = (&self.engine.table, self.engine.now());
        self.entered = now;
        self.entry = match self.patience {
            Patience::Wait => Some(table.enter(&self.key, self.mode, self.wants, now)),
            Patience::AskOnce => table.try_enter(&self.key, self.mode, self.wants, now),
        };
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        self.abandon();
    }
}
