//! An acquisition waits in its process, for the right to send requests or for a share that another task hands over.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{HEARTBEAT, Patience, arm};
use crate::base::denied::Denied;
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::options::Terms;
use crate::base::reentry::{OwnerId, Reentry};
use crate::engine::tries::Tries;
use crate::engine::waiters::WaiterPermit;
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::shares::ShareRequest;
use crate::lock::side::SideOutage;
use crate::lock::wait::{Notifications, WaitEntry, Wake};
use crate::store::{Failure, Mode};

/// Time after which the log names a waiter whose own task holds the lock, at the earliest.
const SELF_WAIT_WARNING: Duration = Duration::from_secs(3);

/// Acquisition as its process sees it. Its drop gives up its entry in the cell, with the request that the cell keeps for the
/// entry.
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
    /// True after the log line about an acquisition that waits for its own hold.
    warned: bool,
    /// Requests without an answer, since the last answer or since the acquisition began.
    pub(super) tries: Tries,
}

/// Outcome of [`enter`].
pub(super) enum Entered {
    Held(Held),
    Denied(Box<Denied>),
    Waits(LocalWaiter),
}

/// Reason for which a waiter is woken.
pub(super) enum LocalSignal {
    /// The waiter may send requests.
    Ask,
    Handed(Held),
    /// An attempt that was also for this waiter has failed.
    Failed(Failure),
}

/// Memory of a waiter between two looks. It looks whether an outage lasts, and whether its own task holds the lock.
pub(super) struct Looks {
    /// Start of the outage that the waiter knows of.
    known: Option<Moment>,
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
        warned: false,
        tries: tries(engine, patience, began),
    }))
}

/// Returns the tries of an acquisition that begins now. A caller that wants one answer waits through an outage for at most
/// twice the response timeout.
fn tries(engine: &Engine, patience: Patience, began: Moment) -> Tries {
    let options = engine.options();
    let bears = match patience {
        Patience::Wait => options.unreachable_after,
        Patience::AskOnce => options.unreachable_after.min(options.response_timeout * 2),
    };
    Tries::new(began, bears)
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
    /// Returns the lease that it asks the server for.
    pub(super) fn lease(&self) -> Duration {
        self.wants.lease.min(self.wants.max_hold)
    }

    /// Returns the time between two requests of a waiter. A waiter gets at most its lease, so with a short lease it has to learn
    /// of the grant sooner.
    pub(super) fn heartbeat(&self) -> Duration {
        HEARTBEAT.min(self.lease() / 3)
    }

    /// Returns true if it may send requests, as far as it has heard.
    pub(super) fn is_leader(&self) -> bool {
        self.entry.as_ref().is_none_or(WaitEntry::is_leader)
    }

    /// Waits until it may send requests, or until it gets a share.
    pub(super) async fn signalled(&mut self) -> Result<LocalSignal> {
        let mut looks = Looks::new();
        poll_fn(|cx| self.poll_signal(&mut looks, cx)).await
    }

    /// Is ready when it may send requests, or when it gets a share. Ends early if the server does not answer the leader for too
    /// long. An outage wakes the waiter when it begins, so that many waiters do not have to look for one.
    pub(super) fn poll_signal(&mut self, looks: &mut Looks, cx: &mut Context<'_>) -> Poll<Result<LocalSignal>> {
        loop {
            let Some(entry) = &mut self.entry else {
                return Poll::Ready(Ok(LocalSignal::Ask));
            };
            match entry.poll_wake(looks.known, cx) {
                Poll::Ready(Some(wake)) => return Poll::Ready(Ok(self.signal_of(wake))),
                Poll::Ready(None) => {}
                Poll::Pending => ready!(self.poll_timer(looks, cx)),
            }
            let (outage, now) = (self.outage(), self.engine.now());
            looks.ends_at = self.end_of(outage.as_ref(), looks.known, looks.ends_at, now);
            looks.known = outage.as_ref().map(|outage| outage.since);
            looks.timer = None;
            if looks.ends_at <= now {
                return Poll::Ready(Err(self.unreachable(outage, now)));
            }
            self.warn_of_self(now);
        }
    }

    fn signal_of(&self, wake: Wake) -> LocalSignal {
        match wake {
            Wake::Ask => LocalSignal::Ask,
            Wake::Handed(hold, share_id) => LocalSignal::Handed(Held::new(&self.engine, hold, share_id)),
            Wake::Failed(failure) => LocalSignal::Failed(failure),
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

    /// Returns when the wait ends if the outage lasts until then. A waiter that hears of an outage only now waits for one more
    /// attempt of the leader: the last answer may be old for another reason, such as a machine that was suspended.
    fn end_of(&self, outage: Option<&SideOutage>, known: Option<Moment>, ends_at: Moment, now: Moment) -> Moment {
        let options = self.engine.options();
        match outage {
            None => Moment::NEVER,
            Some(outage) if known == Some(outage.since) => ends_at,
            Some(outage) => {
                let silent_since = outage.since.max(self.tries.since);
                silent_since.after(options.unreachable_after).max(now.after(options.response_timeout))
            }
        }
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

    /// Returns the outage that the leader sees.
    pub(super) fn outage(&self) -> Option<SideOutage> {
        self.entry.as_ref()?.side().outage()
    }

    fn unreachable(&self, outage: Option<SideOutage>, now: Moment) -> Error {
        let since = outage.as_ref().map_or(now, |outage| outage.since.max(self.tries.since));
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

    /// Releases the cached holds of this process that exclude this acquisition. On a runtime with a connection, the
    /// releases are sent before the request that follows, so the server carries them out first.
    pub(super) fn release_cached(&self) {
        let Some(entry) = &self.entry else { return };
        let _unsettled = self.engine.releases.begin_unsettled();
        for hold in entry.end_cached() {
            self.engine.note_cache_outcome(&hold);
            self.engine.release_from_here(&hold);
        }
    }

    /// Waits again, at its old place among the waiters of this process, after the hand-over or the right to ask came to
    /// nothing.
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
        self.entry = match self.patience {
            Patience::Wait => Some(table.enter(&self.key, self.mode, self.wants, now)),
            Patience::AskOnce => table.try_enter(&self.key, self.mode, self.wants, now),
        };
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        self.abandon(Notifications::Unwanted);
    }
}
