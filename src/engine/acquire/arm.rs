//! An acquisition with `at_least` arms its hold before the guard is handed out: one renewal tells the server until when
//! the lock stays taken.
//!
//! The renewal comes after the grant, wherever the hold came from. So neither a copy of the acquisition nor a waiter that
//! has given up can leave the lock taken for that long. An acquisition that ends without a guard gives the hold back by a
//! release that leaves no rest.

use std::sync::Arc;
use std::time::Duration;

use super::accept::unrenewed;
use super::{Acquisition, Taken};
use crate::base::error::{Error, Result};
use crate::engine::{Engine, Held};
use crate::lock::hold::{Accepted, AtLeast};
use crate::store::Ability;

/// State of an acquisition whose lock is to stay taken for a time at least.
#[derive(Debug)]
pub(super) struct Arming {
    span: Duration,
    /// Note of the hold. It is set before the guard is handed out, since an acquisition that fails with its note must
    /// leave no rest.
    note: Option<Arc<str>>,
    /// True if the hold that is being armed has the note.
    is_noted: bool,
}

impl Arming {
    pub(super) fn new(span: Duration, note: Option<Arc<str>>) -> Self {
        Self { span, note, is_noted: false }
    }

    /// Sets the note that the hold does not have yet, if there is one. Returns true if it had to wait.
    async fn set_note(&mut self, held: &Held) -> Result<bool> {
        match &self.note {
            Some(note) if !self.is_noted => held.set_note(note).await?,
            _ => return Ok(false),
        }
        self.is_noted = true;
        Ok(true)
    }
}

/// Refuses `at_least` at managers that cannot keep a lock taken without a holder.
pub(super) fn check(engine: &Engine) -> Result<()> {
    match engine.scheme.lacks(Ability::Rests) {
        Some(reason) => Err(Error::InvalidOption { option: "at_least", reason: reason.to_owned() }),
        None => Ok(()),
    }
}

/// Refuses `at_least` for an acquisition that nests in a hold of its owner.
pub(super) fn nested_error() -> Error {
    Error::InvalidOption {
        option: "at_least",
        reason:
            "the owner of this acquisition has the lock already, and the server knows only that outer hold: set it \
                 at the outer acquisition"
                .to_owned(),
    }
}

impl Acquisition {
    /// Arms the hold. A limit waits for the answer to a renewal that is under way.
    pub(super) async fn arm_within(&mut self, held: Held) -> Result<Taken> {
        let (engine, limit) = (Arc::clone(&self.engine), self.limit);
        tokio::select! {
            biased;
            armed = self.arm(held) => Ok(armed?.map_or(Taken::Nothing, Taken::Guard)),
            given_up = unrenewed(&engine, limit) => Ok(Taken::GivesUp(Box::new(given_up))),
        }
    }

    /// Arms the hold if its lock is to stay taken for a time at least, and marks the guard as handed out. The caller
    /// must return the share without a further wait. Returns `None` if the hold ended before: then the acquisition
    /// waits as others do, and a try asks the server again. If the future is dropped, the share is released.
    async fn arm(&mut self, held: Held) -> Result<Option<Held>> {
        let Some(arming) = &mut self.arming else {
            return Ok(Some(held));
        };
        let at_least = AtLeast { span: arming.span };
        let (hold, share_id) = (Arc::clone(held.hold()), held.share_id());
        arming.is_noted = false;
        self.share = Some(held);
        let (since, waiter_id) = (self.engine.now(), hold.new_waiter());
        loop {
            let now = self.engine.now();
            match hold.arm(waiter_id, (share_id, at_least), since, now) {
                Accepted::Taken(token) => {
                    // Before the mark, since a hold that `close` has ended must leave no rest.
                    self.engine.check_open(&self.key)?;
                    if let (Some(arming), Some(held)) = (&mut self.arming, &self.share)
                        && Box::pin(arming.set_note(held)).await?
                    {
                        continue;
                    }
                    let held = self.share.take();
                    if hold.hand_out(now) {
                        self.waiter.on_answer(now);
                        return Ok(held.map(|held| held.with_token(token)));
                    }
                    drop(held);
                    self.waiter.enter_again();
                    return Ok(None);
                }
                Accepted::Over => {
                    let held = self.share.take();
                    // The background gives the hold back, and has perhaps no answer yet.
                    self.earlier_until = self.earlier_until.max(Some(hold.until(now).server_until));
                    drop(held);
                    self.waiter.enter_again();
                    return Ok(None);
                }
                Accepted::Short { until, is_late } => {
                    if is_late {
                        self.waiter.renewal_is_late()?;
                    }
                    tokio::select! {
                        biased;
                        true = self.engine.renew_from_here(&hold) => {}
                        () = hold.renewal_answered(waiter_id, until) => {}
                    }
                }
            }
        }
    }
}
