//! What the engine tells `tracing` of: one function for each event.

use crate::error::{Error, LossReason};
use crate::key::Key;
use crate::lease::FencingToken;
use crate::lock::hold::Hold;
use crate::reentry::Reentry;
use crate::scheme::{Failure, Mode};

/// The server has granted a lock, by its answer.
pub(super) fn granted(key: &Key, mode: Mode, token: FencingToken) {
    tracing::debug!(lock = key.name(), %mode, token = token.as_u64(), "granted");
}

/// The same by a notification.
pub(super) fn granted_by_notice(key: &Key, mode: Mode, token: FencingToken) {
    tracing::debug!(lock = key.name(), %mode, token = token.as_u64(), "granted by notice");
}

/// An acquisition waits in the server's queue from now on.
pub(super) fn queued(key: &Key, mode: Mode) {
    tracing::debug!(lock = key.name(), %mode, "queued");
}

/// Nobody answered an attempt to acquire a lock.
pub(super) fn attempt_unanswered(key: &Key, failure: &Failure) {
    tracing::debug!(lock = key.name(), ?failure, "an attempt was not answered");
}

/// A guard passed its hold on within this process.
pub(super) fn handed_over(hold: &Hold, token: FencingToken) {
    tracing::debug!(lock = hold.key().name(), token = token.as_u64(), "handed over");
}

/// The server has answered the first renewal of a hold that it had granted by a notification.
pub(super) fn claimed(hold: &Hold) {
    tracing::debug!(lock = hold.key().name(), mode = %hold.mode(), token = hold.token().as_u64(), "claimed");
}

/// Nobody answered a renewal.
pub(super) fn renewal_unanswered(hold: &Hold, failure: &Failure) {
    tracing::debug!(lock = hold.key().name(), ?failure, "a renewal was not answered");
}

/// A hold is over before it was released.
pub(super) fn lost(hold: &Hold, reason: LossReason) {
    tracing::warn!(
        lock = hold.key().name(), mode = %hold.mode(), token = hold.token().as_u64(), %reason, "lost a hold"
    );
}

/// The server will not carry a release out, however often it is asked.
pub(super) fn release_refused(key: &Key, message: &str) {
    tracing::debug!(lock = key.name(), message, "the server refuses a release");
}

/// The server has surely forgotten what it was not told of.
pub(super) fn release_given_up(key: &Key, failure: &Failure) {
    tracing::debug!(lock = key.name(), ?failure, "gave up telling the server of a release");
}

/// A hold was converted into this one.
pub(super) fn converted(hold: &Hold) {
    tracing::debug!(lock = hold.key().name(), mode = %hold.mode(), token = hold.token().as_u64(), "converted");
}

/// The server broke a conversion off half way.
pub(super) fn conversion_broke_off(hold: &Hold, error: &Error) {
    tracing::warn!(lock = hold.key().name(), %error, "a conversion broke off half way");
}

/// An acquisition waits for a guard of its own owner. With the opt-in, that guard came while it was in the queue already.
pub(super) fn waits_for_itself(key: &Key, reentry: Reentry) {
    let lock = key.name();
    if reentry == Reentry::Off {
        tracing::warn!(
            lock,
            "this task waits for a lock that it holds itself; nested acquisitions must opt in with `.reentrant()`"
        );
    } else {
        tracing::warn!(
            lock,
            "this owner waits for a lock that it holds itself: it asked twice at the same time, and an acquisition nests only \
             in a guard that is there when it is first polled; await one before the other"
        );
    }
}
