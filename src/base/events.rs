//! Log events for operators, sent with `tracing`. `docs/LOGS.md` lists these events, and a test compares the list with
//! the code.
//!
//! The levels `info` and `warn` report each change of state once. Events of single locks have the level `debug`.
//! Outcomes of single attempts have the level `trace`, and their number per second is limited. Texts that this crate
//! does not choose, such as lock names and server errors, are always quoted. So a line break in such a text starts no
//! new line in the log.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::field::Empty;
use tracing::{Instrument, Level, Span};

use crate::base::attempt::Failure;
use crate::base::duration_text::{DurationText as Time, millis};
use crate::base::error::{Cause, Error, LossReason, Refusal, Result};
use crate::base::health::{FindingKind, NodeFinding};
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::reentry::Reentry;
use crate::base::topology::AddressSource;

/// Target of events about the health of servers.
const NODE: &str = "redis_rwlock::node";
/// Target of events about the servers that own hash slots.
const TOPOLOGY: &str = "redis_rwlock::topology";
/// Target of events about holds and waits.
const LOCK: &str = "redis_rwlock::lock";
/// Target of events about single requests.
const ATTEMPT: &str = "redis_rwlock::attempt";
/// Target of events about the manager itself.
const MANAGER: &str = "redis_rwlock::manager";

/// Shortest wait for a lock that is reported at the level `info`.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(1);
/// Largest number of log lines in one second for each frequent kind of event.
const MAX_LINES: u32 = 10;

// Servers.

/// Reports that a node does not answer any more.
pub(crate) fn node_unreachable(node: &str, address_source: &AddressSource, cause: Cause<'_>, silent: Duration) {
    let error = cause.map_or_else(|| "no answer".to_owned(), ToString::to_string);
    let address_source = announced_source(address_source);
    tracing::warn!(target: NODE, node, address_source, silent_ms = millis(silent), error, "{node} does not answer");
}

/// Returns the text that names the source of an address. `None` if the user named the address.
fn announced_source(source: &AddressSource) -> Option<String> {
    (*source != AddressSource::User).then(|| source.to_string())
}

/// Reports that a node answers but refuses connections.
pub(crate) fn node_refuses(node: &str, address_source: &AddressSource, refusal: Refusal, words: &str) {
    let address_source = announced_source(address_source);
    tracing::warn!(target: NODE, node, address_source, error = words, "{node} refuses connections: {refusal}");
}

/// Reports that a node answers again. Before, it did not answer or refused connections.
pub(crate) fn node_back(node: &str, away: Duration) {
    tracing::info!(target: NODE, node, unreachable_ms = millis(away), "{node} answers again, after {}", Time(away));
}

/// Reports that a server answers but has a defect.
pub(crate) fn node_found(node: &str, finding: &NodeFinding) {
    tracing::warn!(target: NODE, node, finding = finding.kind().word(), "{node} answers, but {finding}");
}

/// Reports that a defect of a server is repaired.
pub(crate) fn node_mended(node: &str, kind: FindingKind) {
    tracing::info!(target: NODE, node, finding = kind.word(), "{node} has recovered: its {} is in order again", kind.word());
}

/// Reports that a node refused the fast form of a script, and gets the portable form.
pub(crate) fn form_refused(node: &str, words: &str) {
    tracing::info!(target: NODE, node, error = words, "{node} gets portable scripts, since it refuses the fast form: {words:?}");
}

/// Reports that a node refuses the notifications of scripts.
pub(crate) fn publishing_refused(node: &str) {
    tracing::warn!(
        target: NODE, node,
        "{node} refuses notifications of scripts: waiters learn up to a second late that the lock is theirs; \
         grant +spublish and the channels of locks, and see `redis-rwlock doctor`"
    );
}

/// Reports that a connection for notifications broke. The transport opens another one.
pub(crate) fn link_lost(node: &str, reason: &dyn fmt::Display) {
    tracing::debug!(target: NODE, node, error = reason.to_string(), "lost the connection for notifications");
}

/// Reports that a file with a password or certificates is unusable, or that the provider of credentials fails. The last
/// valid version stays in use.
pub(crate) fn secret_kept(error: &str) {
    tracing::warn!(target: NODE, error, "a secret cannot be read again, so its last valid version stays in use");
}

/// Reports that the provider of credentials has returned another user or another secret.
pub(crate) fn credentials_changed(user: &str) {
    tracing::debug!(target: NODE, user, "the provider has returned new credentials");
}

/// Reports that a server refuses new credentials on an open connection. The connection keeps its old rights.
pub(crate) fn credentials_refused(node: &str, words: &str) {
    tracing::warn!(
        target: NODE, node, error = words,
        "{node} refuses new credentials on an open connection, which keeps its old rights"
    );
}

/// Reports that a node refuses subscriptions. The waiters of its locks then receive no notifications, and ask the
/// server once a second.
pub(crate) fn may_not_subscribe(node: &str, words: &str) {
    tracing::warn!(
        target: NODE, node, error = words,
        "{node} refuses subscriptions: waiters get no notifications and ask once a second"
    );
}

/// Reports a refused subscription. Unlike [`may_not_subscribe`], this event is sent for each refused subscription.
pub(crate) fn subscription_refused(node: &str, words: &str) {
    tracing::debug!(target: NODE, node, error = words, "{node} refused a subscription");
}

/// Reports that the primary of some hash slots has changed. `None` for `slots` means all slots.
pub(crate) fn primary_changed(
    slots: Option<&str>,
    node: Option<&str>,
    address_source: &AddressSource,
    was: Option<&str>,
) {
    let address_source = announced_source(address_source);
    let of = slots.map(|slots| format!(" of slots {slots}")).unwrap_or_default();
    match (node, was) {
        (Some(node), Some(was)) => {
            tracing::info!(
                target: TOPOLOGY, node, address_source, was, slots,
                "the primary{of} is now {node}, and was {was}"
            );
        }
        (Some(node), None) => {
            tracing::info!(target: TOPOLOGY, node, address_source, slots, "the primary{of} is now {node}");
        }
        (None, was) => tracing::warn!(target: TOPOLOGY, was, slots, "there is no primary{of}"),
    }
}

/// Reports the first known primary of some hash slots. `None` for `slots` means all slots.
pub(crate) fn primary_found(slots: Option<&str>, node: &str, address_source: &AddressSource) {
    let address_source = announced_source(address_source);
    let of = slots.map(|slots| format!(" of slots {slots}")).unwrap_or_default();
    tracing::debug!(target: TOPOLOGY, node, address_source, slots, "the primary{of} is {node}");
}

// Waits.

/// Returns true if a subscriber of `tracing` wants the events about long waits. Only then does a manager ask the server
/// who holds the lock, because only these events name the holder.
pub(crate) fn long_waits_are_told() -> bool {
    tracing::event_enabled!(target: LOCK, Level::INFO)
}

/// Long wait, as the log reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited<'a> {
    pub(crate) lock: &'a str,
    pub(crate) mode: Mode,
    pub(crate) waited: Duration,
    /// Holder of the lock at the moment when the wait became a long wait, if it is known.
    pub(crate) holder: Option<&'a str>,
    /// Number of long waits before this one that the log has left out.
    pub(crate) left_out: Option<u64>,
}

impl fmt::Display for Waited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for the {} lock {:?}", Time(self.waited), self.mode, self.lock)?;
        self.holder.map_or(Ok(()), |holder| write!(f, ", held by {holder:?}"))
    }
}

/// Reports a long wait that ended with a grant.
pub(crate) fn log_wait(wait: &Waited<'_>) {
    let Waited { lock, mode, waited, holder, left_out } = *wait;
    let waited_ms = millis(waited);
    tracing::info!(target: LOCK, lock, %mode, waited_ms, holder, left_out, "waited {wait}");
}

/// Reports a long wait that ended at the caller's `wait_timeout`.
pub(crate) fn waited_in_vain(wait: &Waited<'_>) {
    let Waited { lock, mode, waited, holder, left_out } = *wait;
    let waited_ms = millis(waited);
    tracing::info!(target: LOCK, lock, %mode, waited_ms, holder, left_out, "wait_timeout exceeded: waited {wait}");
}

/// Reports that an acquisition of several locks waits for `lock`, although its owner holds `held`, which comes later in
/// the order of keys. Such waits can be part of a deadlock.
pub(crate) fn waits_out_of_order(lock: &str, held: &str) {
    tracing::warn!(
        target: LOCK, lock, held,
        "this acquisition of several locks waits for a lock that comes before one that its owner holds already, so it may \
         deadlock with others; acquire all of these locks in one call of `all`"
    );
}

/// Reports that an acquisition waits for a guard of its own owner, so it may wait for ever. With reentry, this happens
/// only if the owner acquired the guard after the first poll of the acquisition.
pub(crate) fn waits_for_itself(lock: &str, reentry: Reentry) {
    if reentry == Reentry::Off {
        tracing::warn!(
            target: LOCK, lock,
            "this task waits for a lock that it holds itself; nested acquisitions must opt in with `.reentrant()`"
        );
    } else {
        tracing::warn!(
            target: LOCK, lock,
            "this owner waits for a lock that it holds itself: two acquisitions were in progress at the same time, and an \
             acquisition nests only in a guard that exists at its first poll; await one acquisition before the other"
        );
    }
}

/// Reports that an acquisition begins to wait in the server's queue.
pub(crate) fn log_queued(lock: &str, mode: Mode) {
    tracing::debug!(target: LOCK, lock, %mode, "queued");
}

// Holds.

/// Reports the hand-off of a hold within this process.
pub(crate) fn handed_off(lock: &str, token: FencingToken) {
    tracing::debug!(target: LOCK, lock, token = token.as_u64(), "handed off");
}

/// Reports how a hold came or passed on: it was `granted`, `granted by notification`, `converted`, `detached` to a
/// ticket, or `adopted` from one.
pub(crate) fn log_passage(lock: &str, mode: Mode, token: FencingToken, how: &'static str) {
    tracing::debug!(target: LOCK, lock, %mode, token = token.as_u64(), "{how}");
}

/// Hold that ended before its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loss {
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) reason: LossReason,
    pub(crate) held: Duration,
}

/// Returns the name of a reason, as log fields and metric labels show it.
pub(crate) fn word_for(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Gone => "gone",
        LossReason::MaxHold => "max_hold",
        LossReason::Forced => "forced",
        LossReason::Closed => "closed",
        LossReason::Forked => "forked",
    }
}

/// Reports a hold that ended before its release. If the manager was closed, this is no warning, because the loss was
/// expected.
pub(crate) fn log_loss(lock: &str, loss: &Loss) {
    let Loss { mode, token, reason, held } = *loss;
    let (token, held_ms, word) = (token.as_u64(), millis(held), word_for(reason));
    if reason == LossReason::Closed {
        tracing::info!(
            target: LOCK, lock, %mode, token, held_ms, reason = word,
            "gave the {mode} hold of lock {lock:?} back after {}: {reason}", Time(held)
        );
    } else {
        tracing::warn!(
            target: LOCK, lock, %mode, token, held_ms, reason = word,
            "lost the {mode} hold of lock {lock:?} after {}: {reason}", Time(held)
        );
    }
}

/// Reports the loss of a cached hold that no guard used. Such a loss interrupts no work.
pub(crate) fn cached_lost(lock: &str, loss: &Loss) {
    let Loss { mode, token, reason, held } = *loss;
    let (token, held_ms, word) = (token.as_u64(), millis(held), word_for(reason));
    tracing::debug!(
        target: LOCK, lock, %mode, token, held_ms, reason = word,
        "lost the cached {mode} hold of lock {lock:?} after {}: {reason}", Time(held)
    );
}

/// Reports that a waiter in another process wants a lock whose hold this process caches.
pub(crate) fn log_recall(lock: &str, token: FencingToken, is_used: bool) {
    tracing::trace!(target: LOCK, lock, token = token.as_u64(), is_used, "a waiter recalls lock {lock:?}");
}

/// Reports that the server executed only a part of a conversion.
pub(crate) fn conversion_broke_off(lock: &str, error: &Error) {
    tracing::warn!(target: LOCK, lock, error = error.to_string(), "a conversion of lock {lock:?} broke off half way");
}

/// Reports that an operator ended the holds of a lock by force.
pub(crate) fn log_force(lock: &str, holders: &[&str]) {
    tracing::warn!(target: LOCK, lock, ?holders, "released lock {lock:?} by force");
}

// Single requests.

/// Rate limit for log lines. Admits [`MAX_LINES`] lines in each second, and counts the lines that it leaves out.
#[derive(Debug, Default)]
pub(crate) struct Limiter(Mutex<LineCount>);

#[derive(Debug, Default)]
struct LineCount {
    second: u64,
    told: u32,
    left_out: u64,
}

impl Limiter {
    /// Decides about one log line. Returns `None` if the line must be left out. Otherwise returns the number of lines
    /// that were left out since the last admitted line, if there are any.
    pub(crate) fn admits(&self, now: Moment) -> Option<Option<u64>> {
        let second = now.as_nanos() / 1_000_000_000;
        let mut lines = self.0.lock();
        if lines.second != second {
            (lines.second, lines.told) = (second, 0);
        }
        if lines.told == MAX_LINES {
            lines.left_out += 1;
            return None;
        }
        lines.told += 1;
        let left_out = std::mem::take(&mut lines.left_out);
        Some((left_out > 0).then_some(left_out))
    }
}

/// Text that describes the failure of an attempt, and names the node if it is known.
struct FailureText<'a>(&'a Failure);

impl fmt::Display for FailureText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Failure::Unknown { source: Some(source), .. } | Failure::NotDone { source: Some(source) } => source.fmt(f),
            Failure::Unknown { .. } | Failure::NotDone { .. } => f.write_str("no answer"),
            Failure::Refused { node, message, .. } | Failure::Broken { node, message, .. } => match node {
                Some(node) => write!(f, "{node}: {message}"),
                None => f.write_str(message),
            },
            Failure::Unreplicated { asked, acknowledged, .. } => {
                write!(f, "{acknowledged} of {asked} replicas acknowledged the request")
            }
        }
    }
}

/// Reports that no server answered a request of this kind, such as a renewal.
pub(crate) fn unanswered_request(lock: &str, request: &str, failure: &Failure, limiter: &Limiter, now: Moment) {
    if tracing::event_enabled!(target: ATTEMPT, Level::TRACE)
        && let Some(left_out) = limiter.admits(now)
    {
        let error = FailureText(failure).to_string();
        tracing::trace!(target: ATTEMPT, lock, error, left_out, "{request} was not answered");
    }
}

/// Reports that a claim was answered. A claim is the first renewal of a hold that the server granted by a notification.
pub(crate) fn log_claim(lock: &str, mode: Mode, token: FencingToken) {
    tracing::trace!(target: ATTEMPT, lock, %mode, token = token.as_u64(), "claimed");
}

/// Reports that the server refuses a release, and that a retry does not help.
pub(crate) fn release_refused(lock: &str, words: &str) {
    tracing::debug!(target: LOCK, lock, error = words, "the server refuses a release");
}

/// Reports that the manager gives up a release without an answer. The lease is over on the server, so nothing is left
/// to release.
pub(crate) fn release_given_up(lock: &str, failure: &Failure) {
    tracing::debug!(target: LOCK, lock, error = FailureText(failure).to_string(), "gave up a release: the lease is over on the server");
}

// The manager.

/// Reports the first connection of a manager.
pub(crate) fn log_connection(node: &str, servers: &str, version: &str, durability: &str) {
    tracing::info!(
        target: MANAGER, node, servers, version, durability,
        "connected to {node}, {version}, durability {durability}"
    );
}

/// Reports another number of replicas that must acknowledge the grants of a primary.
pub(crate) fn required_replicas_changed(node: &str, was: u64, replicas: u64) {
    tracing::info!(target: NODE, node, was, replicas, "grants of {node} need {replicas} replicas, before {was}");
}

/// Reports that the thread of the background runtime could not be started.
pub(crate) fn no_thread(error: &std::io::Error) {
    let error = error.to_string();
    tracing::warn!(target: MANAGER, error, "no thread for background work: it runs on the runtimes that use the manager");
}

/// Reports an environment variable that begins with the prefix of the configuration but names no option.
#[cfg(feature = "serde")]
pub(crate) fn unknown_variable(name: &str) {
    tracing::warn!(target: MANAGER, name, "ignored the variable {name:?}: it is no option");
}

// Spans.

/// Returns true if a subscriber of `tracing` wants spans.
#[inline]
pub(crate) fn spans_are_wanted() -> bool {
    tracing::span_enabled!(target: LOCK, Level::DEBUG)
}

/// Runs an acquisition. If a subscriber wants spans, the acquisition runs in a span that records its outcome.
pub(crate) async fn within<T>(
    lock: &str,
    mode: Mode,
    acquiring: impl Future<Output = Result<T>>,
    is_granted: impl FnOnce(&T) -> bool,
) -> Result<T> {
    if !spans_are_wanted() {
        return acquiring.await;
    }
    let span = tracing::debug_span!(target: LOCK, "rwlock.acquire", lock, %mode, outcome = Empty);
    let outcome = acquiring.instrument(span.clone()).await;
    span.record("outcome", word_for_outcome(&outcome, is_granted));
    outcome
}

/// Returns the name of an acquisition's outcome, as log fields and metric labels show it: granted, denied, or the kind
/// of failure.
pub(crate) fn word_for_outcome<T>(outcome: &Result<T>, is_granted: impl FnOnce(&T) -> bool) -> &'static str {
    match outcome {
        Ok(answer) if is_granted(answer) => "granted",
        Ok(_) => "denied",
        Err(error) => word_for_error(error),
    }
}

fn word_for_error(error: &Error) -> &'static str {
    match error {
        Error::WaitTimeout { .. } => "timeout",
        Error::Lost { .. } => "lost",
        Error::UpgradeConflict { .. } => "conflict",
        Error::Unreachable { .. } => "unreachable",
        Error::NoQuorum { .. } => "no_quorum",
        Error::NotEnoughReplicas { .. } => "not_enough_replicas",
        Error::TooManyWaiters { .. } => "too_many_waiters",
        Error::Refused { .. } => "refused",
        Error::InvalidName { .. } | Error::InvalidOption { .. } => "invalid",
        Error::Closed { .. } => "closed",
        Error::Forked { .. } => "forked",
    }
}

/// Tracing span of a hold, from its first guard to its release or loss. The span is boxed to keep a hold small, because
/// few holds have a span.
#[derive(Debug, Default)]
pub(crate) struct HoldSpan(OnceLock<Box<Mutex<Option<Span>>>>);

impl HoldSpan {
    /// Begins the span, if a subscriber wants spans. Its parent is the current span of the task that receives the
    /// guard.
    pub(crate) fn begin(&self, lock: &str, mode: Mode, token: FencingToken) {
        if spans_are_wanted() {
            let token = token.as_u64();
            self.0.get_or_init(|| {
                let span = tracing::debug_span!(target: LOCK, "rwlock.hold", lock, %mode, token, ended = Empty);
                Box::new(Mutex::new(Some(span)))
            });
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    pub(crate) fn end(&self, how: &'static str) {
        if let Some(span) = self.0.get().and_then(|span| span.lock().take()) {
            span.record("ended", how);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_kind_are_so_many_in_a_second() {
        let limiter = Limiter::default();
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let told = (0..25).filter(|ms| limiter.admits(at(*ms)).is_some()).count();
        assert_eq!(told, 10);
        assert_eq!(limiter.admits(at(1000)), Some(Some(15)), "those between are told of");
        assert_eq!(limiter.admits(at(1001)), Some(None));
    }
}
