//! Promise 4: acquire, renew, release and cancel are idempotent. A request that is sent twice or arrives late changes
//! nothing more, and neither does a repeat after a lost reply.

use super::*;

/// Returns a hold that ended with this guard, and when all copies of its acquisition are over.
fn release_of(facts: &Facts<'_>, guard: Guard, now: Micros) -> Option<(Id, Micros)> {
    let held = &facts.guards[&guard];
    let id = held.id;
    let alone = facts.guards_of(id).count() == 1;
    // A server knows nothing of the releases that another server received.
    let told = facts.about(id).filter(|request| request.op.is_leave() && request.sent <= now);
    let by = told.filter_map(|request| request.applied).last().map(|(_, primary)| primary);
    let is_over = alone && by == Some(facts.lineage(now));
    is_over.then(|| (id, now + facts.process(held.process).max_delay() + 20 * MS))
}

pub fn copies(facts: &Facts<'_>, findings: &mut Findings) {
    let mut known: BTreeSet<Id> = BTreeSet::new();
    let mut released: BTreeMap<Id, Micros> = BTreeMap::new();
    let mut tokens: BTreeMap<Id, u64> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Sent { op: Op::Acquire { id, .. } | Op::Conversion { id, .. }, .. } => {
                known.insert(*id);
            }
            What::Applied { request, deposed, op, reply, server_us, before, after, .. } => {
                for held in after.held.iter().chain(&after.queue) {
                    findings.add_unless(known.contains(&held.id), at, format_args!("nobody asked for {held:?}"));
                    let known = before.held.iter().chain(&before.queue).any(|before| before.id == held.id);
                    let asked = matches!(op, Op::Acquire { id, .. } | Op::Conversion { id, .. } if *id == held.id);
                    findings.add_unless(known || asked, at, format_args!("{held:?} comes with {op:?}"));
                }
                // Two primaries may both have granted it. Then the end of one grant does not end the other.
                for given in Given::by(what) {
                    let token = tokens.entry(given.id).or_insert(given.token);
                    *token = given.token.min(*token);
                }
                if let (Op::Force { seen, .. }, Reply::Forced(ended)) = (op, reply) {
                    let newer = ended.iter().any(|id| tokens.get(id).is_some_and(|token| token > seen));
                    findings.add_unless(
                        !newer,
                        at,
                        format_args!("a force that saw {seen} ends what came later: {ended:?}"),
                    );
                }
                if let Op::Acquire { not_after_ms, .. } | Op::Conversion { not_after_ms, .. } = op {
                    let late = server_us / 1000 > *not_after_ms;
                    findings.add_unless(
                        !late || *reply == Reply::Late,
                        at,
                        format_args!("carried out after its limit: {reply:?}"),
                    );
                    let sent = &facts.requests[request];
                    let until = sent.sent + facts.process(sent.process).max_delay();
                    findings.add_unless(
                        now <= until || *reply == Reply::Late,
                        at,
                        format_args!("carried out though its sender counts on {until} us: {reply:?}"),
                    );
                }
                for held in after.held.iter().filter(|_| !deposed) {
                    let back = released.get(&held.id).is_some_and(|until| *until < now);
                    findings.add_unless(!back, at, format_args!("{held:?} is back after its release"));
                }
            }
            What::Released { guard, how: Released::Ours } => released.extend(release_of(facts, *guard, now)),
            What::Unanswered { request } | What::NotDone { request } => {
                // The process repeats the release until the server answers.
                if let Op::Leave { id } = facts.requests[request].op {
                    released.remove(&id);
                }
            }
            What::Stale { .. } | What::Promoted { .. } => released.clear(),
            _ => {}
        }
    }
}
