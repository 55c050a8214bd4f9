//! Promise 9: every key has a ttl, idle entries disappear, and every waiter is served.

use super::*;

/// Longest lease of the simulation, and more than any margin.
const LONGEST: Micros = 10_200 * MS;

pub fn ttl_and_end(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, _, what) in facts.each() {
        match what {
            What::Applied { forget_ms, after, .. } => {
                let covered = after.held.iter().chain(&after.queue).all(|held| held.deadline_ms < *forget_ms);
                findings.add_unless(covered, at, format_args!("the key is forgotten at {forget_ms} under {after:?}"));
            }
            What::NotIdle { process } => findings.add(at, format!("process {process} never comes to rest")),
            What::Left { holds, .. } if !holds.is_empty() => {
                findings.add(at, format!("nobody wants them, and they are not given back: {holds:?}"));
            }
            // Masters keep records of long leases for longer than the run.
            What::Left { records, subscribers, .. } if facts.quorum.is_none() && records + subscribers > 0 => {
                findings.add(at, format!("{records} records and {subscribers} subscribers never go away"));
            }
            _ => {}
        }
    }
}

pub fn everybody_served(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, attempt) in &facts.attempts {
        findings.add_unless(attempt.ended.is_some(), attempt.index, format_args!("attempt {number} never ends"));
    }
    let mut closing = std::collections::BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Closing { process } => {
                closing.insert(process, (at, now));
            }
            What::ClosedNow { process, told } => {
                let Some((_, began)) = closing.remove(process) else { continue };
                if !told && !was_silent(facts, *process, began, now) {
                    findings.of("8 close").add(at, format!("process {process} gets the error that no server answers"));
                }
                let paused = facts.process(*process).paused_within(began, now);
                findings.of("service").add_unless(
                    now - began <= LONGEST + paused,
                    at,
                    format_args!("close takes until {} s after its begin", (now - began) / SECOND),
                );
            }
            _ => {}
        }
    }
    for (process, (at, _)) in closing {
        findings.of("service").add_unless(
            facts.process(*process).crashed.is_some(),
            at,
            format_args!("{process} is never closed"),
        );
    }
}

/// Returns true if a background request of the process was not answered in that span, or if the process was paused in
/// it.
fn was_silent(facts: &Facts<'_>, process: Process, from: Micros, until: Micros) -> bool {
    let of_process = facts.requests.values().filter(|request| request.process == process && request.sent <= until);
    let unheard = of_process.filter(|request| request.attempt.is_none()).any(|request| {
        match (&request.answered, request.failed) {
            (Some((at, _)), _) => *at > until,
            (None, Some(at)) => at >= from,
            (None, None) => request.sent >= from,
        }
    });
    unheard || facts.process(process).paused_within(from, until) > 0
}
