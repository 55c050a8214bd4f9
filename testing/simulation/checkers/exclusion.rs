//! Promise 1: two conflicting holds never overlap while each is inside its local validity.

use std::collections::BTreeMap;

use super::Findings;
use super::facts::{Facts, GuardFacts, MS, Trust};
use crate::store::Mode;
use crate::testing::simulation::history::{Guard, Micros, Reply, What};

/// Whether two guards may not both be valid at that moment.
fn conflict(facts: &Facts<'_>, a: Guard, b: Guard, now: Micros) -> bool {
    let (a, b) = (&facts.guards[&a], &facts.guards[&b]);
    a.wish.lock == b.wish.lock
        && a.root != b.root
        && (writes(a, now) || writes(b, now))
        && !facts.excused(a.id, now)
        && !facts.excused(b.id, now)
}

/// A guard that is to become a reader counts as one until the answer is known.
fn writes(guard: &GuardFacts, now: Micros) -> bool {
    guard.mode == Mode::Write && !guard.is_converting(now)
}

/// Validity begins with a grant and has one end, so two overlap only if the older is valid when the younger is granted.
/// The unfenced resource sees the same in what users do.
pub(super) fn overlaps(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("1 exclusion");
    let mut newest = None;
    let mut inside: BTreeMap<Guard, bool> = BTreeMap::new();
    let mut met: Vec<(Guard, Guard, usize, Micros)> = Vec::new();
    for (at, now, what) in facts.each() {
        match *what {
            What::Granted { guard, .. } => newest = Some(guard),
            What::Sample { guard, valid: true, remaining_us: None, .. } => {
                if let Some(newest) = newest.filter(|newest| *newest != guard)
                    && conflict(facts, guard, newest, now)
                {
                    findings.add(at, format!("guard {guard} is still valid when guard {newest} is granted"));
                }
            }
            What::Inside { guard, valid } => {
                if valid {
                    met.extend(inside.keys().map(|other| (*other, guard, at, now)));
                }
                inside.insert(guard, valid);
            }
            What::Outside { guard, valid } => {
                inside.remove(&guard);
                // It was valid all the time: whoever came meanwhile should not have.
                for (_, other, entered, when) in met.iter().filter(|(first, ..)| valid && *first == guard) {
                    if conflict(facts, guard, *other, *when) {
                        findings.add(*entered, format!("guards {guard} and {other} are both inside"));
                    }
                }
                met.retain(|(first, ..)| *first != guard);
            }
            _ => {}
        }
        if let What::Applied { after, lock, .. } = what {
            let writer = after.held.iter().any(|held| held.mode == Mode::Write);
            findings
                .add_unless(!writer || after.held.len() == 1, at, || format!("the server lets {after:?} in at {lock}"));
        }
    }
    findings
}

/// As long as a guard says that it is valid, the server keeps its hold, and longer: the local end comes first.
pub(super) fn covered(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("1 validity");
    let mut trusts: BTreeMap<_, Trust> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Answered {
                request,
                reply: Reply::Granted { remaining_ms, .. } | Reply::Renewed { remaining_ms, .. },
            } => {
                let request = &facts.requests[request];
                let id = super::facts::id_of(request.op).expect("a grant has an id");
                let until = facts.covered_until(request, *remaining_ms);
                trusts.entry(id).or_default().is_answered(now, request, *remaining_ms, until);
            }
            What::Noticed { process, id, anchor: Some((sent, remaining_us)), .. } => {
                let until = sent + facts.process(*process).usable(*remaining_us);
                trusts.entry(*id).or_default().is_noticed(until);
            }
            What::Sample { guard, valid: true, remaining_us, server_ms, .. } => {
                let (number, guard) = (guard, &facts.guards[guard]);
                let until = trusts.get(&guard.id).map_or(0, Trust::until);
                findings.add_unless(now <= until, at, || format!("guard {number} is valid beyond {until} us"));
                if facts.excused(guard.id, now) {
                    continue;
                }
                // While it is converted, its hold may be another one already.
                if guard.is_converting(now) {
                    continue;
                }
                match server_ms {
                    None => findings.add(at, format!("guard {number} is valid and the server knows nothing of it")),
                    Some(server_ms) => {
                        // Its clock may run faster by a hundredth.
                        let truly_us = server_ms * MS * 100 / 101;
                        findings.add_unless(remaining_us.is_none_or(|left| left <= truly_us), at, || {
                            format!("guard {number} counts on {remaining_us:?} us, the server on {server_ms} ms")
                        });
                    }
                }
            }
            _ => {}
        }
    }
    findings
}
