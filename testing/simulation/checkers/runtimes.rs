//! Promise 11: holds are renewed, releases sent and waiters served as long as the process runs, whatever its runtimes
//! do.
//!
//! The other checkers excuse a future for the faults of its own runtime, and for nothing else. This one checks the
//! effect of one runtime on another.

use super::facts::RUNTIME_NOTICED as ASKED;
use super::retries::expired_rightly;
use super::*;

/// Time within which an offered share is taken from a future that is not polled.
const OFFER: Micros = 3_100 * MS;
/// Time within which a release is sent once a hold has no guard.
const TOLD: Micros = 100 * MS;
/// Number of releases under way from which on further ones wait for an answer, however few each batch carries.
const MOST_RELEASES: usize = 2;

/// Checks that no hold is lost because a runtime stands still or has ended: its renewals go on.
pub fn holds(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, now, what) in facts.each() {
        let (What::LossSeen { guard, reason: LossReason::Expired }
        | What::Released { guard, how: Released::Lost(LossReason::Expired) }) = what
        else {
            continue;
        };
        let held = &facts.guards[guard];
        let process = facts.process(held.process);
        let lately = now.saturating_sub(held.wish.lease_ms * MS + SECOND);
        if process.was_a_runtime_stopped(lately, now) {
            expired_rightly(facts, findings, at, now, held);
        }
    }
}

/// Checks that the server receives the release of a hold at once when its last guard is gone, in whatever way. It comes
/// a little later if the runtime of that guard had an inline release and stopped.
pub fn releases(facts: &Facts<'_>, findings: &mut Findings) {
    for (id, guards) in facts.guards_by_id() {
        let Some(last) = guards.iter().max_by_key(|guard| guard.over) else { continue };
        let process = facts.process(last.process);
        let leaked = guards.iter().any(|guard| guard.over.is_none() || guard.letting == Some(Letting::Leak));
        let ended = process.crashed.is_some() || process.closing.is_some();
        // A conversion ends the old hold by its own request, and a lost hold is released as part of the loss.
        let converted = facts.conversions_of(id).next().is_some();
        // A hold that an operator ended while it had no guard is over by itself.
        let lost = guards.iter().any(|guard| guard.lost.is_some()) || facts.forced_at(id, facts.over).is_some();
        let Some(over) = last.over.filter(|_| !leaked && !ended && !converted && !lost) else { continue };
        // A share was handed to the next waiter of the process. Its hold is known to be over when that waiter has not
        // taken it.
        let cached_until = facts.cached_until(id, last.wish.lock, over);
        let is_asked_for =
            cached_until > over && facts.is_wanted_here(id.process, last.wish.lock, over, cached_until + TOLD);
        let handed = if is_asked_for || waits_for(facts, last, over) { OFFER } else { 0 };
        let inline =
            if process.was_a_runtime_stopped(over, cached_until + handed) { process.response_timeout / 2 } else { 0 };
        let by = process.runs_until(over, cached_until + handed + inline + TOLD);
        let by = by.max(room_for_releases(facts, id.process, cached_until) + TOLD);
        let told = facts.about(id).any(|request| request.op.is_leave() && request.sent <= by);
        // The hold ends by itself in the meantime.
        let expires = facts.vouched(id, by) <= by;
        findings.add_unless(
            told || expires,
            last.index,
            format_args!("{id:?} is over at {over} us, and the server is not told by {by} us"),
        );
    }
}

/// Returns when a process may send its next releases if the limit of releases under way is reached.
fn room_for_releases(facts: &Facts<'_>, process: Process, now: Micros) -> Micros {
    let told = facts.requests.values().filter(|request| request.process == process);
    let told = told.filter(|request| request.op.is_leave() && request.sent <= now);
    let mut open: Vec<_> = told.filter_map(RequestFacts::ended).filter(|end| *end > now).collect();
    open.sort_unstable();
    if open.len() < MOST_RELEASES { 0 } else { open[open.len() - MOST_RELEASES] }
}

/// Returns true if an attempt of the process waited for a hold when its guard ended.
fn waits_for(facts: &Facts<'_>, held: &GuardFacts, over: Micros) -> bool {
    facts.attempts.values().any(|attempt| attempt.scope() == held.scope() && attempt.is_under_way(over, over))
}

/// Checks that a process asks the server for each waiter on a runtime that goes on, or has the lock itself.
pub fn waiters(facts: &Facts<'_>, findings: &mut Findings) {
    let asked = asked(facts);
    for (number, attempt) in &facts.attempts {
        let waits = !attempt.wish.once && attempt.wish.within.is_none();
        let process = facts.process(attempt.process);
        let ended = attempt.ended.map_or(facts.over, |(ended, _)| ended);
        if !waits || process.stopped.is_empty() {
            continue;
        }
        let side = (attempt.process, attempt.wish.lock, attempt.wish.mode);
        let mut from = attempt.asked;
        let asks = asked.get(&side).into_iter().flatten().copied().filter(|at| *at > attempt.asked && *at < ended);
        for at in asks.chain([ended]) {
            let most = ASKED + facts.asleep(attempt, from, at);
            let span = (from, at);
            findings.add_unless(
                at - from <= most || has_it(facts, attempt, span),
                attempt.index,
                format_args!("attempt {number} waits, and nobody asks for it from {from} us to {at} us"),
            );
            from = at;
        }
    }
}

/// Returns the times at which each process has asked for each side of each lock.
fn asked(facts: &Facts<'_>) -> HashMap<(Process, Lock, Mode), Vec<Micros>> {
    let mut asked: HashMap<_, Vec<_>> = HashMap::new();
    for request in facts.requests.values() {
        if let (Op::Acquire { .. } | Op::Time, Some(attempt)) = (request.op, request.attempt) {
            let mode = facts.attempts[&attempt].wish.mode;
            asked.entry((request.process, request.lock, mode)).or_default().push(request.sent);
        }
    }
    asked
}

/// Returns true if its process had the lock in that span, except for the time that a hand-off takes.
fn has_it(facts: &Facts<'_>, attempt: &AttemptFacts, (from, to): (Micros, Micros)) -> bool {
    let mut held: Vec<_> = facts
        .guards
        .values()
        .filter(|guard| guard.scope() == attempt.scope())
        .map(|guard| (guard.granted, guard.over.and(guard.gone()).unwrap_or(Micros::MAX)))
        .collect();
    held.sort_unstable();
    let mut free = from;
    for (granted, over) in held {
        if granted > free.saturating_add(ASKED) {
            break;
        }
        free = free.max(over);
    }
    free.saturating_add(ASKED) >= to
}
