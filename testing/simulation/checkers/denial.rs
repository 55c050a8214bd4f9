//! Checks denials. Contention is never an error, and silence is never a denial. An attempt is denied only if the server
//! reported other holders, or if its own process has them.

use super::*;

/// Time for which a server's answer counts for all waiters of a side, which is until the next heartbeat.
const ANSWER_COUNTS_FOR: Micros = 1_010 * MS;

/// Checks that the server has answered each denial, as far as other waiters matter.
pub fn answered(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, attempt, ended, index) in denied(facts) {
        let wanted = facts.attempts.iter().any(|(other, of)| {
            other != number && of.scope() == attempt.scope() && of.is_under_way(attempt.asked, ended)
        });
        // An attempt that asks once relies on the last answer to its own request.
        let own = facts
            .requests
            .values()
            .filter(|request| request.attempt == Some(*number) && request.op.is_acquisition() && attempt.wish.once);
        let last = own.filter_map(|request| request.answered.as_ref()).max_by_key(|(at, _)| *at);
        // For a reader that wants to join, the answer that a writer waits is a denial.
        let denies = last.is_none_or(|(_, reply)| {
            let writers = matches!(reply, Reply::Granted { is_waited_for: true, .. });
            writers || matches!(reply, Reply::Contended { .. } | Reply::Queued { .. })
        });
        findings.add_unless(
            denies && (wanted || is_told(facts, (*number, attempt), ended)),
            index,
            format_args!("nobody told attempt {number} that others are inside"),
        );
    }
}

/// Checks that a denial names a holder. A mere waiter is no reason, except for an attempt that does not wait. There a
/// waiter of the other side counts for a moment.
pub fn by_holders(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, attempt, ended, index) in denied(facts) {
        // An attempt that asks once never enters before the waiters of its process, whatever the server answers.
        let first = facts.attempts.iter().any(|(other, of)| {
            let there = of.scope() == attempt.scope() && of.is_under_way(attempt.asked, ended);
            let conflict = of.wish.mode == Mode::Write || attempt.wish.mode == Mode::Write;
            other != number && there && conflict && attempt.wish.once
        });
        findings.add_unless(
            first || is_told(facts, (*number, attempt), ended),
            index,
            format_args!("attempt {number} was refused because of others, and no holder is known"),
        );
    }
}

/// Lists the attempts that were denied, with the time and the event.
fn denied<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = (&'f Attempt, &'f AttemptFacts, Micros, usize)> {
    facts.attempts.iter().filter_map(|(number, attempt)| match (attempt.end, attempt.ended) {
        (Some(End::Busy | End::TimedOut), Some((ended, index))) => Some((number, attempt, ended, index)),
        _ => None,
    })
}

fn is_told(facts: &Facts<'_>, (number, attempt): (Attempt, &AttemptFacts), ended: Micros) -> bool {
    told_by_server(facts, attempt, ended)
        || held_here(facts, attempt, ended)
        || given_back(facts, attempt, ended)
        || granted_late(facts, (number, attempt))
}

/// Returns true if the answer that granted the lock came after the limit of the attempt. If too little of the lease is
/// left then, the attempt ends with its limit.
fn granted_late(facts: &Facts<'_>, (number, attempt): (Attempt, &AttemptFacts)) -> bool {
    let limit = attempt.wish.wait_ms.map(|ms| attempt.asked + ms * MS);
    let granted_at = |request: &RequestFacts| match &request.answered {
        Some((at, Reply::Granted { .. })) if request.attempt == Some(number) => Some(*at),
        _ => None,
    };
    limit.is_some_and(|limit| facts.requests.values().filter_map(granted_at).any(|at| at > limit))
}

/// Returns true while the process releases a hold of the lock. The hold may belong to a future that was dropped.
fn given_back(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    facts.requests.values().any(|request| {
        let of_this = request.scope() == attempt.scope();
        let known = request.ended().unwrap_or(Micros::MAX);
        of_this && request.op.is_leave() && request.sent <= ended && attempt.asked <= known
    })
}

/// Returns true if the server told the process of other holders, in this attempt or in another one that still waits.
fn told_by_server(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    let process = facts.process(attempt.process);
    let since = attempt.asked.saturating_sub(ANSWER_COUNTS_FOR);
    let lately = process.handing_on(since, ended)
        + ANSWER_COUNTS_FOR
        + process.response_timeout
        + facts.asleep(attempt, attempt.asked.saturating_sub(ANSWER_COUNTS_FOR), ended);
    facts.requests.values().any(|request| {
        let of_this = request.scope() == attempt.scope();
        let denied_at = match (request.op, &request.answered) {
            (Op::Acquire { .. }, Some((at, Reply::Contended { .. } | Reply::Queued { .. }))) => *at,
            // The answer to a reader who wants to join.
            (Op::Acquire { .. }, Some((at, Reply::Granted { is_waited_for: true, .. })))
                if attempt.wish.mode == Mode::Read =>
            {
                *at
            }
            _ => return false,
        };
        of_this && attempt.asked <= denied_at + lately && denied_at <= ended
    })
}

/// Returns true if the same process holds the lock meanwhile, or could not release it yet.
fn held_here(facts: &Facts<'_>, attempt: &AttemptFacts, ended: Micros) -> bool {
    facts.guards.values().any(|guard| {
        let of_this = guard.scope() == attempt.scope();
        of_this && guard.granted <= ended && attempt.asked <= gone(facts, guard)
    })
}

/// Returns the time from which a hold blocks no other attempt. The server has received its release by then, or could
/// not receive it.
fn gone(facts: &Facts<'_>, guard: &GuardFacts) -> Micros {
    let Some(over) = guard.gone() else {
        return Micros::MAX;
    };
    let process = facts.process(guard.process);
    // A process that died while paused counts as paused for ever.
    let bound = over + 2 * process.response_timeout + SECOND;
    let last = bound.saturating_add(facts.asleep_with(guard, over, Micros::MAX));
    // A converted hold has another id.
    let told = facts.about(guard.id).filter(|request| request.op.is_leave() && request.sent >= over);
    let answered_at = told.filter_map(RequestFacts::ended).min();
    answered_at.unwrap_or(last)
}
