//! Promise 5, and the purpose of a second `leave`. An acquisition that no task drives any more is gone as soon as its
//! last copy may have arrived, and not only with its lease.

use super::*;

/// Pauses and travel times between an end and its release.
const SLACK: Micros = 250 * MS;

pub fn none(facts: &Facts<'_>, findings: &mut Findings) {
    let by_id = facts.by_id();
    let mut reported: BTreeMap<Id, ()> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        let What::Applied { before, deposed: false, .. } = what else {
            continue;
        };
        for held in before.held.iter().chain(&before.queue) {
            let requests = by_id.get(&held.id).map(Vec::as_slice).unwrap_or_default();
            if reported.contains_key(&held.id) || !is_ghost(facts, held.id, held.mode, requests, now) {
                continue;
            }
            reported.insert(held.id, ());
            findings.add(at, format!("nobody drives {held:?}, and it is still there"));
        }
    }
}

fn is_ghost(facts: &Facts<'_>, id: Id, mode: Mode, requests: &[&RequestFacts], now: Micros) -> bool {
    let process = facts.process(id.process);
    let Some(driven) = driven_until(facts, id, mode, requests, now) else {
        return false;
    };
    let asked = requests.iter().filter(|request| matches!(request.op, Op::Acquire { .. } | Op::Conversion { .. }));
    let in_doubt = asked.filter(|request| request.sent <= now).map(|request| request.sent + process.max_delay()).max();
    let lock = requests.first().map_or(0, |request| request.lock);
    let due = facts.cached_until(id, lock, driven).max(in_doubt.unwrap_or_default());
    let unheard = |request: &&RequestFacts| {
        let failed = request.failed.or(request.answered.is_none().then_some(now));
        request.op.is_leave() && failed.is_some_and(|failed| failed + SLACK + process.response_timeout >= due)
    };
    let excused = process.crashed.is_some_and(|crashed| crashed <= now)
        || process.paused_within(driven, now) > 0
        // A replica that was behind still records the hold, which was released at the server before.
        || was_given_back_before(facts, id, now)
        || requests.iter().any(|request| unheard(request) && request.sent <= now);
    !excused && now > due + process.response_timeout + SLACK
}

/// Returns true if the hold was released at a server that was replaced since.
fn was_given_back_before(facts: &Facts<'_>, id: Id, now: Micros) -> bool {
    let lineage = facts.lineage(now);
    let left = facts.about(id).filter(|request| request.op.is_leave());
    left.chain(facts.conversions_of(id))
        .filter_map(|request| request.applied)
        .any(|(at, primary)| at <= now && primary < lineage)
}

/// Returns when the last driver of an acquisition ended; `None` while there is one.
fn driven_until(facts: &Facts<'_>, id: Id, mode: Mode, requests: &[&RequestFacts], now: Micros) -> Option<Micros> {
    let mut until = 0;
    for guard in facts.guards_of(id).filter(|guard| guard.granted <= now) {
        // The hold of a leaked guard ends with the last lease that was requested, for it and for its fellow guards.
        let gone = guard.over.and(guard.gone())?;
        until = until.max(gone);
    }
    // An attempt that converts the hold drives it, too.
    let sent = requests.iter().copied().chain(facts.conversions_of(id)).filter(|request| request.sent <= now);
    let drivers = sent.filter_map(|request| request.attempt);
    for driver in drivers {
        until = until.max(end_of(facts, driver)?);
    }
    let lock = requests.first()?.lock;
    // The next waiter in its process goes on with it.
    for attempt in facts.attempts.values() {
        let next =
            attempt.scope() == (id.process, lock) && attempt.wish.mode == mode && attempt.wish.converts.is_none();
        let ended = attempt.ended.map(|(at, _)| at);
        if !next || ended.is_some_and(|ended| ended <= until) {
            continue;
        }
        // The hold may have been cached until then.
        if attempt.asked <= until.max(facts.cached_until(id, lock, until)) + MS {
            until = ended?;
        }
    }
    (until <= now).then_some(until)
}

/// Returns the end of an attempt; `None` while it is under way.
fn end_of(facts: &Facts<'_>, attempt: Attempt) -> Option<Micros> {
    facts.attempts[&attempt].ended.map(|(at, _)| at)
}
