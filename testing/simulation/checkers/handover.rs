//! Checks that a waiter learns of its grant by a notification, and not with its next heartbeat.

use super::*;

/// Time from the arrival of a notification to the guard.
const AT_ONCE: Micros = 2 * MS;
/// Time in the queue after which a process has subscribed, however slow that was.
const SUBSCRIBED: Micros = 2_600 * MS;

/// Checks that a notification makes a guard in the same moment, unless less than half of the claim is left by then.
pub fn at_once(facts: &Facts<'_>, findings: &mut Findings) {
    let mut handed: BTreeMap<Id, u64> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Applied { server_us, notifications, .. } => {
                handed.extend(notifications.iter().map(|notification| (notification.id, *server_us)))
            }
            What::Notified { process, lock, id, clock_sample: Some((sent, remaining_us)) } => {
                let ends = sent + facts.process(*process).usable(*remaining_us);
                let waits = waits_for(facts, *id, at).filter(|request| granted_since(facts, request, handed.get(id)));
                let Some(request) = waits.filter(|request| now + half_of_claim(request).max(AT_ONCE) < ends) else {
                    continue;
                };
                let taken = served_by(facts, *id, request, now + AT_ONCE);
                findings.add_unless(
                    taken,
                    at,
                    format_args!("{id:?} got a notification that it has {lock}, and does not take it"),
                );
            }
            _ => {}
        }
    }
}

fn half_of_claim(request: &RequestFacts) -> Micros {
    match request.op {
        Op::Acquire { lease_ms, waiter_ttl_ms, .. } => waiter_ttl_ms.map_or(lease_ms, |ms| ms.min(lease_ms)) * MS / 2,
        _ => 0,
    }
}

/// Returns the last request of a waiter, if it was answered "queued" and its attempt still listens.
fn waits_for<'f>(facts: &'f Facts<'_>, id: Id, at: usize) -> Option<&'f RequestFacts> {
    let now = facts.events[at].at;
    let asks = |request: &&RequestFacts| request.index < at && !request.op.is_renewal();
    let last = facts.about(id).filter(asks).last()?;
    let queued = matches!(last.answered, Some((answered_at, Reply::Queued { .. })) if answered_at < now);
    let attempt = &facts.attempts[&last.attempt?];
    let listens = attempt.ended.is_none_or(|(_, ended)| ended > at);
    // The waiter may ask for the server's time before it repeats its request. It may also repeat it at this moment, as
    // may a waiter whose task becomes the requester now.
    let newer = |request: &RequestFacts| request.index > last.index && (request.index < at || request.sent == now);
    let asked = facts.about(id).filter(|request| request.op.is_acquisition());
    let of_attempt = facts.requests.values().filter(|request| request.attempt == last.attempt);
    let alone = !asked.chain(of_attempt).any(newer);
    (queued && listens && alone && last.op.is_acquisition()).then_some(last)
}

/// Returns true if the grant came after the last answer to the waiter, by the server's clock too.
fn granted_since(facts: &Facts<'_>, request: &RequestFacts, granted_us: Option<&u64>) -> bool {
    let answered = facts.each().skip(request.index).find_map(|(_, now, what)| match what {
        What::Applied { op, server_us, .. } if *op == request.op && Some(now) == request.applied.map(|(at, _)| at) => {
            Some(*server_us)
        }
        _ => None,
    });
    granted_us.is_some_and(|granted| answered.is_some_and(|answered| *granted >= answered))
}

/// Returns true if the attempt behind a request has ended by then, or its process did not run. Another attempt of the process
/// may have the grant, because the first waiter gets it, whichever task has sent the request.
fn served_by(facts: &Facts<'_>, id: Id, request: &RequestFacts, by: Micros) -> bool {
    let attempt = &facts.attempts[&request.attempt.expect("an acquisition is somebody's")];
    let paused = facts.asleep(attempt, by - AT_ONCE, by) > 0;
    let is_taken = facts.guards.values().any(|guard| guard.id == id && guard.granted <= by);
    paused || is_taken || attempt.ended.is_some_and(|(ended, _)| ended <= by)
}

/// Checks that a process with a long-waiting attempt has subscribed.
pub fn subscribed(facts: &Facts<'_>, findings: &mut Findings) {
    // Start of the time that each process waits in the queue of a connected server.
    let mut since: BTreeMap<(Process, Lock), (Id, Micros)> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Answered { request, reply: Reply::Queued { .. } } => {
                let request = &facts.requests[request];
                let Op::Acquire { id, .. } = request.op else { continue };
                let entry = since.entry((request.process, request.lock)).or_insert((id, now));
                if entry.0 != id {
                    *entry = (id, now);
                }
            }
            What::Down { .. } | What::Up { .. } | What::Frozen { .. } | What::Rerouted { .. } => since.clear(),
            What::Paused { process, .. } => since.retain(|(whose, _), _| whose != process),
            What::Granted { id, .. } => since.retain(|_, (waiting, _)| waiting != id),
            What::NotificationLost { process, lock, unsubscribed: true } => {
                let long = since.get(&(*process, *lock)).filter(|(_, since)| since + SUBSCRIBED < now);
                findings.add_unless(
                    long.is_none(),
                    at,
                    format_args!("{long:?} waits for more than {} s and has not subscribed", SUBSCRIBED / SECOND),
                );
            }
            _ => {}
        }
    }
}
