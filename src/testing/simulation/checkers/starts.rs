//! Promise 3, of guards that enter a hold which is there already: what they wanted is what they get.

use std::collections::BTreeMap;

use super::Findings;
use super::facts::{Facts, GuardFacts, MS};
use crate::testing::simulation::history::{Guard, Id, Op, What};

/// A guard that enters with another one's hold has at least a third of its lease, or of the claim with which that began.
pub(super) fn fresh(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("3 fresh guards");
    let mut first: BTreeMap<Id, Guard> = BTreeMap::new();
    for (number, guard) in &facts.guards {
        let began = *first.entry(guard.id).or_insert(*number);
        let own = guard.wish.within.is_some() || guard.wish.converts.is_some() || began == *number;
        if own || facts.asleep_with(guard, facts.attempts[&guard.attempt].asked, guard.granted) > 0 {
            continue;
        }
        let wants = guard.wish.lease_ms.min(guard.wish.max_hold_ms).min(claim_ms(facts, guard)) * MS;
        let least = facts.process(guard.process).usable(wants) / 3;
        findings.add_unless(guard.began_with + 2 * MS >= least, guard.index, || {
            format!("guard {number} wants {wants} us and begins with {} us", guard.began_with)
        });
    }
    findings
}

/// With how much its hold was asked for.
fn claim_ms(facts: &Facts<'_>, guard: &GuardFacts) -> u64 {
    let asked = facts.about(guard.id).filter_map(|request| match request.op {
        Op::Acquire { lease_ms, patience_ms: Some(patience_ms), .. } => Some(patience_ms.min(lease_ms)),
        _ => None,
    });
    asked.max().unwrap_or(u64::MAX)
}

/// A nested guard has an end of its own.
pub(super) fn nested(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("3 nested guards");
    for (at, now, what) in facts.each() {
        let What::Sample { guard, valid: true, .. } = what else { continue };
        let held = &facts.guards[guard];
        let ends = held.granted + held.wish.max_hold_ms * MS;
        findings.add_unless(held.wish.within.is_none() || now <= ends, at, || {
            format!("guard {guard} is valid after its longest time")
        });
    }
    findings
}
