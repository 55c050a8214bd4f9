//! Contention is never an error, and silence is never a denial: whoever is told that others hold the lock was told so by
//! the server, or has them in its own process.

use super::Findings;
use super::facts::{Facts, SECOND};
use crate::simulation::history::{End, Op, Reply};

pub(super) fn answered(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("denial");
    for (number, attempt) in &facts.attempts {
        let (Some(End::Busy | End::TimedOut), Some((ended, index))) = (attempt.end, attempt.ended) else {
            continue;
        };
        let (process, lock) = (attempt.process, attempt.wish.lock);
        let denied = facts.requests.values().any(|request| {
            let by_server = matches!(
                (request.op, &request.answered),
                (Op::Acquire { .. }, Some((at, Reply::Contended { .. } | Reply::Queued { .. }))) if attempt.asked <= *at && *at <= ended
            );
            by_server && request.process == process && request.lock == lock
        });
        // A hold is in the way until the server has heard of its release.
        let local = facts.attempts.iter().any(|(other, facts_of)| {
            let gone = match facts_of.guard.map(|guard| &facts.guards[&guard]) {
                Some(guard) => guard.over.map(|over| over + 12 * SECOND),
                None => facts_of.ended.map(|(at, _)| at),
            };
            let there = facts_of.asked <= ended && gone.is_none_or(|gone| attempt.asked <= gone);
            other != number && facts_of.process == process && facts_of.wish.lock == lock && there
        });
        findings.add_unless(denied || local, index, || format!("nobody told attempt {number} that others are inside"));
    }
    findings
}
