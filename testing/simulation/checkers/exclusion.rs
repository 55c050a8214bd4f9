//! Promise 1: two conflicting holds never overlap while each is inside its local validity.

use super::*;

/// Returns true if the two guards must not both be valid at that moment.
fn conflict(facts: &Facts<'_>, a: Guard, b: Guard, now: Micros) -> bool {
    let (a, b) = (&facts.guards[&a], &facts.guards[&b]);
    a.wish.lock == b.wish.lock
        && a.root != b.root
        && (writes(a, now) || writes(b, now))
        && !facts.excused(a.id, now)
        && !facts.excused(b.id, now)
}

/// Returns true if the guard counts as a writer. During a downgrade it counts as a reader until the answer is known.
fn writes(guard: &GuardFacts, now: Micros) -> bool {
    guard.mode == Mode::Write && !guard.is_converting(now)
}

/// Checks that no two conflicting guards are valid at once. Validity begins with a grant and has one end. So two guards
/// overlap only if the older one is valid when the younger one is granted. The unfenced resource shows the same by what
/// users do.
pub fn overlaps(facts: &Facts<'_>, findings: &mut Findings) {
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
                // The older guard was valid the whole time, so the other guard should not have entered.
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
            findings.add_unless(
                !writer || after.held.len() == 1,
                at,
                format_args!("the server lets {after:?} in at {lock}"),
            );
        }
    }
}

/// Checks that the server keeps a hold for longer than its guard is valid: the local end comes first.
pub fn covered(facts: &Facts<'_>, findings: &mut Findings) {
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
            What::Notified { process, id, clock_sample: Some((sent, remaining_us)), .. } => {
                let until = sent + facts.process(*process).usable(*remaining_us);
                trusts.entry(*id).or_default().on_notification(until);
            }
            What::Sample { guard, valid: true, remaining_us, server_ms, .. } => {
                let (number, guard) = (guard, &facts.guards[guard]);
                let until = trusts.get(&guard.id).map_or(0, Trust::until);
                findings.add_unless(now <= until, at, format_args!("guard {number} is valid beyond {until} us"));
                if facts.excused(guard.id, now) {
                    continue;
                }
                // During its conversion the hold may already have another id.
                if guard.is_converting(now) {
                    continue;
                }
                match server_ms {
                    None => findings.add(at, format!("guard {number} is valid and the server knows nothing of it")),
                    Some(server_ms) => {
                        // The clock of the process may run 1 % faster.
                        let truly_us = server_ms * MS * 100 / 101;
                        findings.add_unless(
                            remaining_us.is_none_or(|left| left <= truly_us),
                            at,
                            format_args!("guard {number} counts on {remaining_us:?} us, the server on {server_ms} ms"),
                        );
                    }
                }
            }
            _ => {}
        }
    }
}
