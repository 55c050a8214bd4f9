//! Promise 5: a dropped future, a dead process or an aborted task leaves nothing longer than one lease, a leaked guard
//! nothing longer than `max_hold`.

use std::collections::BTreeMap;

use super::Findings;
use super::facts::{Facts, GuardFacts, MS, SECOND, id_of};
use crate::simulation::history::{Id, Letting, Micros, Op, What};

/// A request may be on its way this long.
const TRANSIT: Micros = 5_100 * MS;
/// A waiter that was handed the hold takes so long to take it, and one that wants to join as long to be told no.
const OFFER: Micros = 3_100 * MS;
/// After all is well again, a hold that nobody has is gone within this.
const SOON: Micros = 3 * SECOND;

pub(super) fn none(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("5 leftovers");
    let guards = facts.guards_by_id();
    let mut last_asked: BTreeMap<Id, Micros> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Sent { process, op, .. } => {
                let crashed = facts.process(*process).crashed;
                findings.add_unless(crashed.is_none_or(|crashed| now <= crashed), at, || {
                    format!("{process} sends {op:?} after its death")
                });
                if let Op::Acquire { id, .. } | Op::Renew { id, .. } = op {
                    let until = guards.get(id).and_then(|guards| over(guards));
                    findings.add_unless(until.is_none_or(|until| now <= until + OFFER), at, || {
                        format!("{op:?} though its guard is gone")
                    });
                }
                if let Op::Acquire { id, .. } | Op::Turn { id, .. } = op {
                    last_asked.insert(*id, now);
                }
            }
            What::Applied { before, .. } => {
                for held in &before.held {
                    let asked = last_asked.get(&held.id).copied().unwrap_or_default();
                    let guards = guards.get(&held.id).map(Vec::as_slice).unwrap_or_default();
                    let ends = |guard: &&GuardFacts| {
                        let longest = guard.wish.max_hold_ms * MS;
                        guard.root_granted + longest + longest / 100 + TRANSIT
                    };
                    let dead = facts.process(held.id.process).crashed;
                    // Its lease, the longest, ends what a dead process had.
                    let lease = dead.map(|_| asked + 11 * SECOND);
                    if let Some(ends) = guards.iter().map(ends).max().max(lease.filter(|_| !guards.is_empty())) {
                        findings.add_unless(now <= ends, at, || format!("{held:?} lasts longer than it may"));
                    }
                    let wanted = is_wanted(facts, guards, held.id, asked, now);
                    findings.add_unless(wanted, at, || format!("nobody has {held:?}, and it is not given back"));
                }
            }
            _ => {}
        }
    }
    renewed_without_guard(facts, &mut findings);
    findings
}

/// When the last guard of a hold was let go or lost. `None` as long as there is one.
fn over(guards: &[&GuardFacts]) -> Option<Micros> {
    let ends = guards.iter().map(|guard| match (guard.over, guard.lost) {
        (Some(over), Some(lost)) => Some(over.min(lost)),
        (over, lost) => over.or(lost),
    });
    ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max())
}

/// Whether somebody may still have a hold, or may not yet have been able to give it back.
fn is_wanted(facts: &Facts<'_>, guards: &[&GuardFacts], id: Id, asked: Micros, now: Micros) -> bool {
    let process = facts.process(id.process);
    // Its lease ends what a dead process had. A message from before the healing may still arrive.
    if process.crashed.is_some() || now < facts.healed + 2 * TRANSIT || process.paused_within(now - SOON, now) > 0 {
        return true;
    }
    let has = guards.iter().any(|guard| guard.letting == Some(Letting::Leak));
    let gone = over(guards).filter(|_| !guards.is_empty());
    match gone {
        Some(gone) => now <= gone + OFFER + SOON,
        // Granted while it waited, it is for others to have when its claim is over.
        None => has || !guards.is_empty() || now <= asked + 2 * SOON + SECOND,
    }
}

fn renewed_without_guard(facts: &Facts<'_>, findings: &mut Findings) {
    for request in facts.requests.values() {
        if let (Op::Renew { .. }, Some(id)) = (request.op, id_of(request.op)) {
            let has = facts.guards.values().any(|guard| guard.id == id && guard.granted <= request.sent);
            findings.add_unless(has, request.index, || format!("{id:?} is renewed and nobody ever had it"));
        }
    }
}
