//! Checks how a process reacts to an answer that a hold is over.

use super::*;

/// Checks that no guard is valid after an answer to its process that the server does not know the hold. The same is
/// true for an answer that another hold began under its id.
pub fn answered(facts: &Facts<'_>, findings: &mut Findings) {
    let mut lost: BTreeMap<Id, Micros> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Answered { request, reply } => {
                let request = &facts.requests[request];
                if let Some(id) = told_of_loss(facts, request, reply, now) {
                    lost.entry(id).or_insert(now);
                }
            }
            What::Sample { guard, valid: true, .. } => {
                let id = facts.guards[guard].id;
                // A guard sees an answer of this moment only in the next one.
                let told = lost.get(&id).filter(|told| **told + MS < now);
                findings.add_unless(
                    told.is_none(),
                    at,
                    format_args!(
                        "guard {guard} is valid, and an answer at {told:?} us reported its loss to its process"
                    ),
                );
            }
            _ => {}
        }
    }
}

/// Returns the acquisition that this answer ends, if its process had it by then.
fn told_of_loss(facts: &Facts<'_>, request: &RequestFacts, reply: &Reply, now: Micros) -> Option<Id> {
    match (request.op, reply) {
        // During a conversion the old hold may just have been converted. The answer to the conversion decides.
        (Op::Renew { id, .. }, Reply::Lost { forced }) => {
            let by_force = facts.guards_of(id).any(|guard| guard.token <= *forced);
            (by_force || !facts.is_being_converted(id, now)).then_some(id)
        }
        (Op::Conversion { old, .. }, Reply::Lost { .. }) => Some(old),
        (Op::Acquire { id, .. }, Reply::Granted { token, tokens, .. }) => {
            let other = |guard: &GuardFacts| guard.granted < now && !(*token..token + tokens).contains(&guard.token);
            facts.guards_of(id).any(other).then_some(id)
        }
        // The request asked for more readers of a hold that the process had.
        (Op::Acquire { id, .. }, Reply::Contended { .. } | Reply::Queued { .. }) => {
            facts.guards_of(id).any(|guard| guard.granted < now).then_some(id)
        }
        _ => None,
    }
}

/// Checks that a guard reports its renewals as confirmed only if the last one was answered.
pub fn unconfirmed(facts: &Facts<'_>, findings: &mut Findings) {
    let mut failed: BTreeMap<Id, Micros> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Unanswered { request } | What::NotDone { request } => {
                let request = &facts.requests[request];
                // Another request, sent later for more tokens, may have been answered before.
                let is_last = |id| !facts.about(id).any(|later| later.index > request.index && later.is_answered(now));
                if let Op::Renew { id, .. } = request.op
                    && is_last(id)
                {
                    failed.entry(id).or_insert(now);
                }
            }
            What::Answered { request, .. } => {
                let op = facts.requests[request].op;
                let converted = if let Op::Conversion { old, .. } = op { Some(old) } else { None };
                for id in id_of(op).into_iter().chain(converted) {
                    failed.remove(&id);
                }
            }
            What::Sample { guard, valid: true, confirmed: true, .. } => {
                let held = &facts.guards[guard];
                // The process does not renew a hold during its conversion.
                let converting = |attempt: &AttemptFacts| {
                    let open = attempt.ended.is_none_or(|(_, ended)| ended > at);
                    attempt.wish.converts == Some(*guard) && attempt.asked <= now && open
                };
                let failed_at = failed.get(&held.id).filter(|failed| **failed + MS < now);
                let failed_at = failed_at.filter(|_| !facts.attempts.values().any(converting));
                findings.add_unless(
                    failed_at.is_none(),
                    at,
                    format_args!("guard {guard} is held as ever, and nobody answers since {failed_at:?} us"),
                );
            }
            _ => {}
        }
    }
}

/// Checks that a newer, conflicting grant to the same process ends a hold: the server had lost it.
pub fn own_newer_grant(facts: &Facts<'_>, findings: &mut Findings) {
    let mut newest: Option<Guard> = None;
    for (at, _, what) in facts.each() {
        match *what {
            What::Granted { guard, .. } => newest = Some(guard),
            What::Sample { guard, valid: true, remaining_us: None, .. } => {
                let Some(new) = newest.filter(|newest| *newest != guard) else { continue };
                let (old, new) = (&facts.guards[&guard], &facts.guards[&new]);
                let conflict = old.root != new.root && (old.mode == Mode::Write || new.mode == Mode::Write);
                let same = old.scope() == new.scope();
                let older = facts.granted.get(&old.id) < facts.granted.get(&new.id);
                // A new primary may not know the last tokens. Its grants with an earlier token are lost from the start.
                let is_overtaken = new.token < old.token && new.began_with == 0;
                let is_newer = same && conflict && older && !is_overtaken;
                findings.add_unless(
                    !(is_newer && old.converting.is_empty()),
                    at,
                    format_args!(
                        "guard {guard} is still valid beside {:?}, which its process was granted later",
                        new.id
                    ),
                );
            }
            _ => {}
        }
    }
}

/// Returns true if something that does not say why may have ended the hold before: a newer grant to the same process, or
/// the answer to a reader that has repeated the acquisition of the hold.
fn ended_before(facts: &Facts<'_>, held: &GuardFacts, now: Micros) -> bool {
    facts.is_overtaken(held, now) || super::ends::began_anew(facts, held, now)
}

/// Checks that a guard reports the loss as forced if the answer said so, and only then.
pub fn forced(facts: &Facts<'_>, findings: &mut Findings) {
    let mut marks: BTreeMap<Id, u64> = BTreeMap::new();
    let mut last: BTreeMap<Id, u64> = BTreeMap::new();
    let mut ended: BTreeMap<(u32, Lock), u64> = BTreeMap::new();
    let mut shown: BTreeMap<Process, Vec<Id>> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Applied { op: Op::Force { seen, .. }, primary, lock, before, after, .. } if before.token <= *seen => {
                // A force covers all tokens up to the last one before it. The waiter that it lets in gets a later one.
                ended.insert((*primary, *lock), before.token);
                findings.add_unless(after.forced == before.token, at, format_args!("{after:?} after a force"));
            }
            What::Applied { reply: Reply::None { forced } | Reply::Lost { forced }, primary, lock, after, .. } => {
                let remembers = ended.get(&(*primary, *lock)).is_none_or(|ended| *forced >= *ended);
                findings.add_unless(
                    *forced == after.forced && remembers,
                    at,
                    format_args!("{forced} gets a report of {after:?}"),
                );
            }
            What::Answered { request, reply } => {
                let request = &facts.requests[request];
                let id = match request.op {
                    Op::Renew { id, .. } | Op::Leave { id } | Op::Conversion { old: id, .. } => Some(id),
                    _ => None,
                };
                match reply {
                    Reply::None { forced } | Reply::Lost { forced } => {
                        let id = id.expect("it is about a hold");
                        let mark = marks.entry(id).or_default();
                        *mark = (*mark).max(*forced);
                        last.insert(id, *forced);
                    }
                    Reply::View(view) => {
                        shown.entry(request.process).or_default().extend(view.holders.iter().map(|(id, _, _)| *id));
                    }
                    Reply::Forced(holds) => shown.entry(request.process).or_default().extend(holds),
                    _ => {}
                }
            }
            What::LossSeen { guard, reason } | What::Released { guard, how: Released::Lost(reason) } => {
                let held = &facts.guards[guard];
                let first = facts.guards_of(held.id).map(|other| other.token).min().unwrap_or(held.token);
                let (id, told) = (held.id, last.get(&held.id));
                let by_answer = marks.get(&held.id).is_some_and(|mark| first <= *mark);
                let by_own = || shown.get(&held.process).is_some_and(|shown| shown.contains(&held.id));
                let right = match reason {
                    LossReason::Forced => by_answer || by_own(),
                    LossReason::Gone => told.is_none_or(|mark| held.token > *mark) || ended_before(facts, held, now),
                    _ => true,
                };
                findings.add_unless(
                    right,
                    at,
                    format_args!("guard {guard} of {id:?} ends as {reason:?}, and the answer said {told:?}"),
                );
            }
            _ => {}
        }
    }
}
