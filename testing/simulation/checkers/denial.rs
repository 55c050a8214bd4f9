//! Contention is never an error, and silence is never a denial: whoever is told that others hold the lock was told so by
//! the server, or has them in its own process.

use super::Findings;
use super::facts::{AttemptFacts, Facts, GuardFacts, MS, SECOND};
use crate::store::Mode;
use crate::testing::simulation::history::{Attempt, End, Micros, Op, Reply};

/// So long a word of the server counts for those who wait behind whoever it was for: until the next heartbeat.
const WORD: Micros = 1_010 * MS;

/// As far as those count who only want it.
pub(super) fn answered(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("denial");
    for (number, attempt, ended, index) in denied(facts) {
        let wanted = facts.attempts.iter().any(|(other, of)| {
            let there = of.asked <= ended && of.ended.is_none_or(|(gone, _)| attempt.asked <= gone);
            other != number && of.process == attempt.process && of.wish.lock == attempt.wish.lock && there
        });
        // Whoever asks once believes the last answer to its own question.
        let own = facts.requests.values().filter(|request| {
            request.attempt == Some(*number) && matches!(request.op, Op::Acquire { .. }) && attempt.wish.once
        });
        let word = own.filter_map(|request| request.answered.as_ref()).max_by_key(|(at, _)| *at);
        // A reader that wants to join is told so by the word that a writer waits.
        let denies = word.is_none_or(|(_, reply)| {
            let writers = matches!(reply, Reply::Granted { is_waited_for: true, .. });
            writers || matches!(reply, Reply::Contended { .. } | Reply::Queued { .. })
        });
        findings.add_unless(denies && (wanted || is_told(facts, attempt, ended)), index, || {
            format!("nobody told attempt {number} that others are inside")
        });
    }
    findings
}

/// Whoever only wants the lock too is no reason, except to somebody who does not wait: for a moment, one of another side.
pub(super) fn by_holders(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("denial by nobody");
    for (number, attempt, ended, index) in denied(facts) {
        // Whoever asks once is not let in before those of its process who wait, whatever the server says.
        let first = facts.attempts.iter().any(|(other, of)| {
            let there = of.asked <= ended && of.ended.is_none_or(|(gone, _)| attempt.asked <= gone);
            let conflict = of.wish.mode == Mode::Write || attempt.wish.mode == Mode::Write;
            let same = of.process == attempt.process && of.wish.lock == attempt.wish.lock;
            other != number && same && there && conflict && attempt.wish.once
        });
        findings.add_unless(first || is_told(facts, attempt, ended), index, || {
            format!("attempt {number} is told that others are inside, and nobody is known to be")
        });
    }
    findings
}

/// Those who were told that others are inside: when, and at which event.
fn denied<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = (&'f Attempt, &'f AttemptFacts, Micros, usize)> {
    facts.attempts.iter().filter_map(|(number, attempt)| match (attempt.end, attempt.ended) {
        (Some(End::Busy | End::TimedOut), Some((ended, index))) => Some((number, attempt, ended, index)),
        _ => None,
    })
}

fn is_told(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    told_by_server(facts, attempt, ended) || held_here(facts, attempt, ended) || given_back(facts, attempt, ended)
}

/// Whether the server is being told that a hold is over: it may be one that came to a future which was dropped.
fn given_back(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    facts.requests.values().any(|request| {
        let of_this = request.process == attempt.process && request.lock == attempt.wish.lock;
        let known = request.answered.as_ref().map(|(at, _)| *at).or(request.failed).unwrap_or(Micros::MAX);
        of_this && matches!(request.op, Op::Leave { .. }) && request.sent <= ended && attempt.asked <= known
    })
}

/// Whether the server told its process so, if not in this attempt then to another one that still waits.
fn told_by_server(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    let process = facts.process(attempt.process);
    let since = attempt.asked.saturating_sub(WORD);
    let lately = process.handing_on(since, ended)
        + WORD
        + process.response_timeout
        + facts.asleep(attempt, attempt.asked.saturating_sub(WORD), ended);
    facts.requests.values().any(|request| {
        let of_this = request.process == attempt.process && request.lock == attempt.wish.lock;
        let word = match (request.op, &request.answered) {
            (Op::Acquire { .. }, Some((at, Reply::Contended { .. } | Reply::Queued { .. }))) => *at,
            _ => return false,
        };
        of_this && attempt.asked <= word + lately && word <= ended
    })
}

/// Whether somebody of its process holds it meanwhile, or has not yet been able to give it back.
fn held_here(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    facts.guards.values().any(|guard| {
        let of_this = guard.process == attempt.process && guard.wish.lock == attempt.wish.lock;
        of_this && guard.granted <= ended && attempt.asked <= gone(facts, guard)
    })
}

/// When a hold is in nobody's way any more: once the server was told of its release, or could not be.
fn gone(facts: &Facts<'_>, guard: &GuardFacts) -> Micros {
    let Some(over) = [guard.over, guard.lost].into_iter().flatten().min() else {
        return Micros::MAX;
    };
    let process = facts.process(guard.process);
    // One that died in its sleep is paused for ever.
    let patience = over + 2 * process.response_timeout + SECOND;
    let last = patience.saturating_add(facts.asleep_with(guard, over, Micros::MAX));
    // A hold that is converted has another id.
    let told = facts.about(guard.id).filter(|request| matches!(request.op, Op::Leave { .. }) && request.sent >= over);
    let heard = told.filter_map(|request| request.answered.as_ref().map(|(at, _)| *at).or(request.failed)).min();
    heard.unwrap_or(last)
}
