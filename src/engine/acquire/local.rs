//! An acquisition waits in its process, for the right to send requests or for a share that another task hands over.

use std::time::Duration;

use super::{Acquisition, Patience, grace};
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::lease::Moment;
use crate::engine::Held;
use crate::lock::hold::Accepted;
use crate::lock::side::SideOutage;
use crate::lock::wait::Wake;
use crate::store::{Failure, Mode};

/// Time after which the log names a waiter whose own task holds the lock.
const SELF_WAIT_WARNING: Duration = Duration::from_secs(3);

impl Acquisition<'_> {
    /// Waits in this process until it may send requests, or until it gets a share. Ends early if the server does not answer
    /// the leader.
    pub(super) async fn signalled(&mut self, patience: Patience) -> Result<Option<Held>> {
        let mut next_look = self.next_look(self.outage().as_ref(), self.engine.clock.now());
        loop {
            let Some(entry) = &mut self.entry else {
                return Ok(None);
            };
            tokio::select! {
                biased;
                call = entry.signalled() => {
                    // An outage that the leader has seen continues for this waiter, so its time limit does not start again.
                    let outage = entry.awaited_first_answer().outage();
                    let now = self.engine.clock.now();
                    self.tries.since = outage.map_or(now, |outage| outage.since.max(self.tries.since));
                    if self.mode == Mode::Write && matches!(call, Wake::Handed(..)) {
                        self.note_kept_out(now);
                    }
                    return Ok(match call {
                        Wake::Ask => None,
                        Wake::Handed(hold, share_id) => {
                            let held = Held::new(self.engine, hold, share_id);
                            Box::pin(self.accept(held, patience)).await?
                        }
                        Wake::Failed(failure) => {
                            Box::pin(self.tries.on_failure(self.engine, &self.key, failure)).await?;
                            None
                        }
                    });
                }
                () = self.engine.clock.timer(next_look) => {}
            }
            let (outage, now) = (self.outage(), self.engine.clock.now());
            self.check_heard(outage.as_ref(), now)?;
            self.warn_of_self(now);
            next_look = self.next_look(outage.as_ref(), now);
        }
    }

    /// Returns when this waiter has to look for an outage. There may be many waiters, so each looks as seldom as it can: if
    /// the server answers now, an outage cannot last too long before then.
    fn next_look(&self, outage: Option<&SideOutage>, now: Moment) -> Moment {
        let patience = self.engine.options().unreachable_after;
        let silence = match outage {
            Some(outage) => outage.since.after(patience),
            None => now.after(patience.saturating_sub(grace(self.engine)).max(patience / 2)),
        };
        let warning = self.began.after(SELF_WAIT_WARNING);
        if now < warning { silence.min(warning) } else { silence }
    }

    /// Returns the outage that the leader sees, from the moment at which this waiter began to count.
    fn outage(&self) -> Option<SideOutage> {
        let outage = self.entry.as_ref().and_then(|entry| entry.awaited_first_answer().outage())?;
        Some(SideOutage { since: outage.since.max(self.tries.since), ..outage })
    }

    /// Logs once that the waiter's own task holds the lock, because such a waiter would wait for ever.
    pub(super) fn warn_of_self(&mut self, now: Moment) {
        let due = !self.warned && now.since(self.began) >= SELF_WAIT_WARNING;
        if due && self.entry.as_ref().is_some_and(|entry| entry.waits_for_itself(now)) {
            self.warned = true;
            events::waits_for_itself(self.key.name(), self.reentry);
        }
    }

    /// Fails if the server has not answered the leader for `unreachable_after`.
    fn check_heard(&self, outage: Option<&SideOutage>, now: Moment) -> Result<()> {
        match outage.map(|outage| (now.since(outage.since), &outage.source)) {
            Some((waited, source)) if waited >= self.engine.options().unreachable_after => {
                Err(Error::unreachable(self.key.shared_name(), waited, source.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Takes a share that another task has handed over, or that the server has granted. If too little of the lease is left, it
    /// waits for the answer to a renewal first. If the hold ends before, the acquisition waits again, and a try sends a
    /// request. If the future is dropped, the share is released.
    pub(super) async fn accept(&mut self, held: Held, patience: Patience) -> Result<Option<Held>> {
        let clock = self.engine.clock;
        let (since, mut underway, mut was_late) = (clock.now(), None, false);
        loop {
            let now = clock.now();
            let Some(entry) = &self.entry else { return Ok(Some(held)) };
            match entry.accept(held.hold(), held.share_id(), self.wants.from(now), since, now) {
                Accepted::Taken(token) => {
                    if was_late {
                        self.on_first_answer(now);
                    }
                    self.entry = None;
                    return Ok(Some(held.with_token(token)));
                }
                Accepted::Over => {
                    match patience {
                        Patience::Wait => self.wait_again(),
                        Patience::AskOnce => {
                            // Its own share must not refuse the try.
                            drop(held);
                            self.try_again();
                        }
                    }
                    return Ok(None);
                }
                Accepted::Short { until, is_late } => {
                    // The limit waits for this answer, as for the answer to an acquisition.
                    underway = underway.or_else(|| self.begin_underway());
                    if is_late {
                        was_late = true;
                        self.renewal_is_late()?;
                    }
                    tokio::select! {
                        biased;
                        () = entry.renewal_answered(held.hold()) => {}
                        () = clock.timer(until) => {}
                    }
                }
            }
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

    /// Lets a try whose share came to nothing ask the server at once, unless a task of this process is before it.
    fn try_again(&mut self) {
        let (engine, now) = (self.engine, self.engine.clock.now());
        self.entry = engine.table.try_enter(&self.key, self.mode, self.wants, grace(engine), now);
    }

    /// Records that the renewal for which it waits has no answer. Fails after `unreachable_after`.
    pub(super) fn renewal_is_late(&self) -> Result<()> {
        if let Some(entry) = &self.entry {
            entry.on_outage(Some(SideOutage { since: self.tries.since, source: None }));
        }
        // The cause is known to the background, which sends the renewal.
        let silence = Failure::NotDone { source: self.outage().and_then(|outage| outage.source) };
        self.tries.verdict(self.engine, &self.key, silence).map_or(Ok(()), Err)
    }
}
