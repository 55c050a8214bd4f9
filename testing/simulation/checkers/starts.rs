//! Promise 3 for guards that start: a guard gets what it asked for.

use super::*;

/// Checks the validity with which a guard starts. It has at least half of its lease if that is a second or more, else a
/// third of what the margins leave. A waiter that is granted the lock by a notification starts at once, with as much of
/// its claim. No guard has more than the answer with which it starts leaves, to a request for all that it wants.
pub fn fresh(facts: &Facts<'_>, findings: &mut Findings) {
    let mut first: BTreeMap<Id, Guard> = BTreeMap::new();
    for (number, guard) in &facts.guards {
        let began = *first.entry(guard.id).or_insert(*number);
        let converted_or_nested = guard.wish.within.is_some() || guard.wish.converts.is_some();
        if converted_or_nested || facts.asleep_with(guard, facts.attempts[&guard.attempt].asked, guard.granted) > 0 {
            continue;
        }
        let lease = guard.wish.lease_ms.min(guard.wish.max_hold_ms);
        let wants = if began == *number { lease.min(claim_ms(facts, guard)) } else { lease } * MS;
        let least = if wants >= SECOND { wants / 2 } else { facts.process(guard.process).usable(wants) / 3 };
        let granted_all = || answered_when_it_starts(facts, guard).is_some_and(|asked_ms| asked_ms + 1 >= lease);
        let right = guard.began_with + 2 * MS >= least || granted_all();
        findings.add_unless(
            right,
            guard.index,
            format_args!("guard {number} wants {wants} us and begins with {} us", guard.began_with),
        );
    }
}

/// Returns the lease that was requested for a hold, if a guard of it starts with the answer.
pub fn answered_when_it_starts(facts: &Facts<'_>, guard: &GuardFacts) -> Option<u64> {
    let asked = facts.about(guard.id).filter_map(|request| match (request.op, &request.answered) {
        (
            Op::Acquire { lease_ms, .. } | Op::Renew { lease_ms, .. },
            Some((at, Reply::Granted { .. } | Reply::Renewed { .. })),
        ) if (*at..=at + MS).contains(&guard.granted) => Some(lease_ms),
        _ => None,
    });
    asked.max()
}

/// Returns the claim of the last request that the server has had for the hold of a guard. The next waiter of the process
/// continues a request with its own lease.
fn claim_ms(facts: &Facts<'_>, guard: &GuardFacts) -> u64 {
    let asked = facts.about(guard.id).filter_map(|request| match request.op {
        Op::Acquire { lease_ms, waiter_ttl_ms: Some(waiter_ttl_ms), .. } => {
            let (applied, _) = request.applied.filter(|(at, _)| *at <= guard.granted)?;
            Some((applied, waiter_ttl_ms.min(lease_ms)))
        }
        _ => None,
    });
    asked.max().map_or(u64::MAX, |(_, claim_ms)| claim_ms)
}

/// Checks that a nested guard has an end of its own.
pub fn nested(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, now, what) in facts.each() {
        let What::Sample { guard, valid: true, .. } = what else { continue };
        let held = &facts.guards[guard];
        let ends = held.granted + held.wish.max_hold_ms * MS;
        findings.add_unless(
            held.wish.within.is_none() || now <= ends,
            at,
            format_args!("guard {guard} is valid after its longest time"),
        );
    }
}
