//! Promise 5: a dropped future, a dead process or an aborted task leaves nothing longer than one lease. A leaked guard
//! leaves nothing longer than `max_hold`.

use super::*;

/// Longest time that a request may be on its way.
const TRANSIT: Micros = 5_100 * MS;
/// Longest time in which a waiter takes a share that was offered to it. A reader that asks to join may wait as long for
/// a refusal.
const OFFER: Micros = 3_100 * MS;
/// Time after the end of all faults within which a hold without an owner is gone.
const SOON: Micros = 3 * SECOND;

pub fn none(facts: &Facts<'_>, findings: &mut Findings) {
    let guards = facts.guards_by_id();
    let mut last_asked: BTreeMap<Id, Micros> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Sent { process, lock, op, .. } => {
                let crashed = facts.process(*process).crashed;
                findings.add_unless(
                    crashed.is_none_or(|crashed| now <= crashed),
                    at,
                    format_args!("{process} sends {op:?} after its death"),
                );
                if let Op::Acquire { id, .. } | Op::Renew { id, .. } = op {
                    let until = guards.get(id).and_then(|guards| over(guards));
                    let with_cache = |until| {
                        let until = facts.cached_until(*id, *lock, until);
                        until + facts.process(id.process).paused_within(until, now)
                    };
                    let until = until.map(with_cache);
                    findings.add_unless(
                        until.is_none_or(|until| now <= until + OFFER),
                        at,
                        format_args!("{op:?} though its guard is gone"),
                    );
                }
                if let Op::Acquire { id, .. } | Op::Conversion { id, .. } = op {
                    last_asked.insert(*id, now);
                }
            }
            What::Applied { before, deposed: false, .. } => {
                for held in &before.held {
                    let asked = last_asked.get(&held.id).copied().unwrap_or_default();
                    let guards = guards.get(&held.id).map(Vec::as_slice).unwrap_or_default();
                    // Without a guard, the hold may stay cached for a while.
                    let cached = facts.process(held.id.process).cache_for;
                    let ends = |guard: &&GuardFacts| {
                        let longest = guard.wish.max_hold_ms * MS;
                        guard.root_granted + longest + longest / 100 + TRANSIT + cached
                    };
                    // Or the hold lasts for one lease of an attempt that gave up.
                    if let Some(ends) =
                        guards.iter().map(ends).max().map(|ends| ends.max(asked_without_guard(facts, guards)))
                    {
                        findings.add_unless(now <= ends, at, format_args!("{held:?} lasts longer than it may"));
                    }
                    if let Some(crashed) = facts.process(held.id.process).crashed {
                        let until = lease_of_the_dead(facts, held.id, crashed);
                        findings.add_unless(now <= until, at, format_args!("{held:?} outlives its dead process"));
                    }
                    let wanted = is_wanted(facts, guards, held.id, asked, now);
                    findings.add_unless(wanted, at, format_args!("nobody has {held:?}, and it is not given back"));
                }
            }
            _ => {}
        }
    }
    renewed_without_guard(facts, findings);
}

/// Returns until when a hold may last that was requested before it had a guard, or by a reader that never had one.
fn asked_without_guard(facts: &Facts<'_>, guards: &[&GuardFacts]) -> Micros {
    let Some(first) = guards.iter().min_by_key(|guard| guard.index) else {
        return 0;
    };
    let in_vain = |request: &RequestFacts| {
        let attempt = request.attempt.map(|attempt| &facts.attempts[&attempt]);
        attempt.is_some_and(|attempt| attempt.guard.is_none_or(|guard| facts.guards[&guard].id != first.id))
    };
    // A reader that joins with a longer lease waits for the answer to a renewal. It may die before that answer.
    let joins_in_vain = |at: Micros| {
        let wish = &first.wish;
        facts.attempts.values().any(|attempt| {
            let is_beside = attempt.scope() == (first.id.process, wish.lock);
            let waits = attempt.is_under_way(at, at);
            is_beside && attempt.wish.mode == wish.mode && attempt.guard.is_none() && waits
        })
    };
    let lasts = |request: &RequestFacts| match request.op {
        Op::Acquire { lease_ms, .. } if request.index < first.index || in_vain(request) => {
            request.sent + lease_ms * MS * 101 / 100 + TRANSIT
        }
        Op::Renew { lease_ms, .. } if joins_in_vain(request.sent) => request.sent + lease_ms * MS * 101 / 100 + TRANSIT,
        _ => 0,
    };
    facts.about(first.id).map(lasts).max().unwrap_or_default()
}

/// Returns when the hold of a dead process is over. That is one lease after its last message has arrived, the longest
/// lease that it requested under that id.
fn lease_of_the_dead(facts: &Facts<'_>, id: Id, crashed: Micros) -> Micros {
    let process = facts.process(id.process);
    let lasts = |request: &RequestFacts| {
        let (transit, lease_ms) = match request.op {
            // A grant to a waiter lasts for its `waiter_ttl_ms`, which begins with its last request.
            Op::Acquire { lease_ms, waiter_ttl_ms, .. } => {
                (process.max_delay(), lease_ms.max(waiter_ttl_ms.unwrap_or_default() * 2))
            }
            Op::Conversion { lease_ms, .. } => (process.max_delay(), lease_ms),
            Op::Renew { lease_ms, .. } => (TRANSIT, lease_ms),
            _ => return 0,
        };
        let lease = lease_ms * MS;
        request.sent + transit + lease + lease / 100
    };
    // Server clocks differ, and may step back by as much.
    facts.about(id).map(lasts).max().unwrap_or(crashed) + process.max_clock_skew
}

/// Returns when the last guard of a hold was released, dropped or lost. `None` while there is one.
fn over(guards: &[&GuardFacts]) -> Option<Micros> {
    guards.iter().map(|guard| guard.gone()).collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max())
}

/// Returns true if a process may still use a hold, or may not have been able to release it yet.
fn is_wanted(facts: &Facts<'_>, guards: &[&GuardFacts], id: Id, asked: Micros, now: Micros) -> bool {
    let process = facts.process(id.process);
    // `lease_of_the_dead` judges the hold of a dead process. A message from before the end of faults may still arrive.
    if process.crashed.is_some() || now < facts.healed + 2 * TRANSIT || process.paused_within(now - SOON, now) > 0 {
        return true;
    }
    let has = guards.iter().any(|guard| guard.letting == Some(Letting::Leak));
    let gone = over(guards).filter(|_| !guards.is_empty());
    let gone = gone.zip(guards.first()).map(|(gone, guard)| facts.cached_until(id, guard.wish.lock, gone));
    match gone {
        Some(gone) => now <= gone + OFFER + SOON,
        // A hold that was granted to a waiter goes to others when its claim is over.
        None => has || !guards.is_empty() || now <= asked + 2 * SOON + SECOND,
    }
}

/// Checks that a renewed hold has had a guard, or has a waiter that takes it when the renewal is answered, or is cached since
/// that waiter left.
fn renewed_without_guard(facts: &Facts<'_>, findings: &mut Findings) {
    for request in facts.requests.values() {
        if let (Op::Renew { .. }, Some(id)) = (request.op, id_of(request.op)) {
            let has = facts.guards_of(id).any(|guard| guard.granted <= request.sent);
            let waits = facts.attempts.values().any(|attempt| {
                let same = attempt.scope() == request.scope();
                same && attempt.index < request.index && attempt.ended.is_none_or(|(_, ended)| ended > request.index)
            });
            let ends = facts.about(id).filter_map(|earlier| facts.attempts[&earlier.attempt?].ended);
            let left = ends.map(|(at, _)| at).filter(|at| *at <= request.sent).max();
            let is_cached = left.is_some_and(|left| request.sent < facts.cached_until(id, request.lock, left));
            findings.add_unless(
                has || waits || is_cached,
                request.index,
                format_args!("{id:?} is renewed and nobody ever had it"),
            );
        }
    }
}
