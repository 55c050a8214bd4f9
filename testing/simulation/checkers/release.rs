//! Promise 4: `release` returns `Ok` only when the hold is known to have lasted to its end. If the release ends the
//! hold, the server's answer shows this. If other guards go on with the hold, the local deadline shows it.

use super::*;

/// Checks releases that end the hold.
pub fn by_the_servers_answer(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, guard, told) in released(facts).into_iter().filter(|(_, _, told)| !in_doubt(told)) {
        let Some(last) = told.last() else { continue };
        // An acquisition in the queue of a replica that was behind has no hold there.
        let waited = matches!(last.answered, Some((_, Reply::Waited)));
        let promise = if waited { "4 release of a waiter" } else { "4 release" };
        findings.of(promise).add_unless(
            answered_held(&told),
            at,
            format_args!("the release of guard {guard} is fine, and was answered {:?}", last.answered),
        );
    }
}

/// Checks releases that end the hold where an answer was lost. The server has found the hold all the same, if not with
/// the copy that it answered.
pub fn by_the_servers_answer_in_doubt(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, guard, told) in released(facts).into_iter().filter(|(_, _, told)| in_doubt(told)) {
        let id = facts.guards[&guard].id;
        let ids = ids(facts, guard);
        let found = facts.events[told[0].index..at].iter().any(|event| {
            matches!(&event.what, What::Applied { op: Op::Leave { id }, reply: Reply::Held, .. } if ids.contains(id))
        });
        // A promotion that loses the grant is beyond the durability level. The new primary may have granted tokens on
        // both sides of it.
        findings.add_unless(
            found || facts.loss_since(id, facts.events[at].at),
            at,
            format_args!("the release of guard {guard} is fine, and none of {} tries has found its hold", told.len()),
        );
    }
}

fn answered_held(told: &[&RequestFacts]) -> bool {
    told.iter().any(|request| matches!(request.answered, Some((_, Reply::Held))))
}

/// Returns the id of the hold, and the ids that it may have been converted into.
fn ids(facts: &Facts<'_>, guard: Guard) -> BTreeSet<Id> {
    let id = facts.guards[&guard].id;
    facts.conversions_of(id).filter_map(|request| id_of(request.op)).chain([id]).collect()
}

/// Returns true if a copy went unanswered.
fn in_doubt(told: &[&RequestFacts]) -> bool {
    told.iter().any(|request| request.answered.is_none())
}

/// Checks releases after which other guards of the process go on with the hold.
pub fn by_the_local_deadline(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, number, told) in released(facts) {
        let guard = &facts.guards[&number];
        if !told.is_empty() {
            continue;
        }
        let now = facts.events[at].at;
        let until = facts.vouched(guard.id, now);
        findings.add_unless(
            now <= until,
            at,
            format_args!(
                "the release of guard {number} is fine at once, and its hold could be trusted until {until} us"
            ),
        );
    }
}

/// Returns the releases that returned `Ok`: the event, the guard, and the releases sent to the server meanwhile.
fn released<'f>(facts: &'f Facts<'_>) -> Vec<(usize, Guard, Vec<&'f RequestFacts>)> {
    let mut began: BTreeMap<Guard, usize> = BTreeMap::new();
    let mut released = Vec::new();
    for (at, _, what) in facts.each() {
        match what {
            What::LetGo { guard, .. } => {
                began.insert(*guard, at);
            }
            What::Released { guard, how: Released::Ours } => {
                let span = began[guard]..at;
                let tells = |request: &&RequestFacts| request.op.is_leave() && span.contains(&request.index);
                let told = ids(facts, *guard).into_iter().flat_map(|id| facts.about(id));
                released.push((at, *guard, told.filter(tells).collect()));
            }
            _ => {}
        }
    }
    released
}
