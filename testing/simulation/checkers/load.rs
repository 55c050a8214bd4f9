//! Promise 10: a process asks a server that answers no more than needed, and does not flood one that is silent.

use super::*;

/// Requests for one acquisition in a second: the heartbeat, deadlines that pass, and late answers.
const MAX_ASKS: usize = 16;
/// Attempts that may fail in a second, with growing pauses between them.
const MAX_FAILURES: usize = 12;

pub fn asks(facts: &Facts<'_>, findings: &mut Findings) {
    let notifications = notifications(facts);
    for (id, requests) in facts.by_id() {
        let asked = |request: &&&RequestFacts| request.op.is_acquisition() && request.answered.is_some();
        // Once the acquisition has a guard, other readers ask whether they may join, each for itself.
        let asked: Vec<_> =
            requests.iter().filter(asked).take_while(|request| !facts.is_had(request)).copied().collect();
        let told = |from, to| {
            notifications.get(&id.process).map_or(0, |at| at.iter().filter(|at| (from..=to).contains(*at)).count())
        };
        too_many(findings, id, &asked, |from, to| MAX_ASKS + told(from, to));
    }
}

/// Checks that no hold is lost while the server works and is reachable. A full workload alone is no reason.
pub fn losses(facts: &Facts<'_>, findings: &mut Findings) {
    let mut hindered: Vec<Micros> = Vec::new();
    // A hold may last longer than its last guard asked for, and the server may have been gone for longer than that.
    let mut is_away = false;
    let mut hindered_requests: BTreeSet<Request> = BTreeSet::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Down { .. }
            | What::Up { .. }
            | What::Frozen { .. }
            | What::Promoted { .. }
            | What::Woken
            | What::Demoted => {
                is_away = matches!(what, What::Down { .. } | What::Frozen { .. });
                hindered.push(now);
            }
            What::RequestLost { request, .. } | What::ReplyLost { request, .. } | What::Slow { request } => {
                hindered_requests.insert(*request);
            }
            What::LossSeen { guard, reason: LossReason::Expired } => {
                let held = &facts.guards[guard];
                let longest = now.saturating_sub(held.wish.lease_ms * MS + SECOND);
                let process = facts.process(held.process);
                let tries = facts
                    .by_number(held.id)
                    .filter(|(_, request)| request.op.is_renewal() && request.sent >= longest && request.sent <= now);
                let (mut many, mut reached) = (0, true);
                for (number, request) in tries {
                    many += 1;
                    reached &= request.answered.is_none() && !hindered_requests.contains(&number);
                }
                let excused =
                    is_away || hindered.iter().any(|at| *at >= longest) || process.paused_within(longest, now) > 0;
                // A guard that joined a hold with little time left had no renewal due yet.
                let is_new = many == 0 && held.granted + held.wish.lease_ms * MS / 2 > now;
                findings.add_unless(
                    excused || is_new || !reached,
                    at,
                    format_args!("guard {guard} is lost, and {many} renewals had only to wait for others"),
                );
            }
            _ => {}
        }
    }
}

pub fn failures(facts: &Facts<'_>, findings: &mut Findings) {
    for (id, requests) in facts.by_id() {
        let failed = |request: &&&RequestFacts| request.op.is_acquisition() && request.failed.is_some();
        let failed: Vec<_> = requests.iter().filter(failed).copied().collect();
        // A requester asks once more at its limit, and the next one asks at once.
        let requesters: BTreeSet<_> = requests.iter().filter_map(|request| request.attempt).collect();
        let ends: Vec<_> =
            requesters.iter().filter_map(|requester| facts.attempts[requester].ended).map(|(at, _)| at).collect();
        let ended = |from, to| ends.iter().filter(|at| (from..=to).contains(*at)).count();
        too_many(findings, id, &failed, |from, to| MAX_FAILURES + ended(from, to));
    }
}

/// Returns the times of notifications, which make a process ask again.
fn notifications(facts: &Facts<'_>) -> BTreeMap<u32, Vec<Micros>> {
    let mut notifications: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (_, now, what) in facts.each() {
        if let What::Notified { process, .. } = what {
            notifications.entry(*process).or_default().push(now);
        }
    }
    notifications
}

fn too_many(findings: &mut Findings, id: Id, requests: &[&RequestFacts], most: impl Fn(Micros, Micros) -> usize) {
    for (index, last) in requests.iter().enumerate() {
        let from = last.sent.saturating_sub(SECOND);
        let many = requests[..=index].iter().rev().take_while(|request| request.sent > from).count();
        if many > most(from, last.sent) {
            return findings.add(last.index, format!("{id:?} is asked for {many} times in a second"));
        }
    }
}
