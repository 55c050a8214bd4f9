//! Promises of a quorum: what happens to a minority of the masters does not show, and what a force has ended stays so.

use super::*;

/// Checks that the token of each guard is above the tokens of all conflicting guards before it.
pub fn tokens(facts: &Facts<'_>, findings: &mut Findings) {
    let mut highest: BTreeMap<Lock, (u64, u64)> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        let What::Granted { guard, id, token, .. } = what else { continue };
        let held = &facts.guards[guard];
        if held.wish.within.is_some() {
            continue;
        }
        let (of_writers, of_all) = highest.entry(held.wish.lock).or_default();
        let before = if held.mode == Mode::Write { *of_all } else { *of_writers };
        *of_all = (*of_all).max(*token);
        if held.mode == Mode::Write {
            *of_writers = (*of_writers).max(*token);
        }
        findings.add_unless(
            *token > before || facts.excused(*id, now),
            at,
            format_args!("guard {guard} has token {token} after {before}"),
        );
    }
}

/// Holds that each master has, by the requests that it has carried out.
#[derive(Default)]
struct Masters {
    /// Holds of a lock with the time of the last request, here and by the clock of the master.
    held: BTreeMap<(Place, Lock), (Micros, u64, Vec<Held>)>,
    forced: BTreeSet<(Place, Id)>,
    /// Grants to a first request that came after a force of the same hold. The next renewal finds them.
    late: BTreeSet<(Place, Id)>,
}

impl Masters {
    fn note(&mut self, now: Micros, what: &What) {
        match what {
            What::Applied { place, lock, op, reply, server_us, after, .. } => {
                if let (Op::Acquire { id, floor: Some(Floor::New(_)), .. }, Reply::Granted { .. }) = (op, reply)
                    && self.forced.contains(&(*place, *id))
                {
                    self.late.insert((*place, *id));
                }
                self.held.insert((*place, *lock), (now, *server_us, after.held.clone()));
            }
            What::ForceAsked { place, ids } => self.forced.extend(ids.iter().map(|id| (*place, *id))),
            What::Emptied { place } => self.held.retain(|(of, _), _| of != place),
            _ => {}
        }
    }

    fn has(&self, place: Place, id: Id, now: Micros) -> bool {
        self.held.iter().filter(|((of, _), _)| *of == place).any(|(_, (at, server_us, held))| {
            let now_ms = (server_us + now - at) / 1000;
            held.iter().any(|held| held.id == id && held.deadline_ms > now_ms)
        })
    }
}

/// Checks that no majority has a hold after the servers have reported its end to an operator.
pub fn forced(facts: &Facts<'_>, findings: &mut Findings) {
    let Some(QuorumFacts { masters, .. }) = facts.quorum else { return };
    let mut states = Masters::default();
    let mut over: BTreeSet<Id> = BTreeSet::new();
    for (at, now, what) in facts.each() {
        states.note(now, what);
        match what {
            What::ForceDone { ids } => over.extend(ids),
            What::Applied { .. } => {}
            _ => continue,
        }
        over.retain(|id| {
            let has = |place: &Place| states.has(*place, *id, now) && !states.late.contains(&(*place, *id));
            let is_back = (0..masters).filter(has).count() > masters / 2;
            findings.add_unless(!is_back, at, format_args!("{id:?} is there again after a force"));
            !is_back
        });
    }
}

/// Checks that users notice no fault of a minority. Before a release has reached all masters, the next hold may have
/// only a bare majority with faulty masters in it. Such a hold may be lost with one of them, until its renewal has
/// brought it to the other masters. The loss is reported within two leases, or by a release that began before.
pub fn unnoticed(facts: &Facts<'_>, findings: &mut Findings) {
    let Some(QuorumFacts { faultless, lease, .. }) = facts.quorum.as_ref().filter(|of| !of.faultless.is_empty()) else {
        return;
    };
    let mut states = Masters::default();
    let mut first: BTreeMap<Id, Micros> = BTreeMap::new();
    let mut was_bare: BTreeMap<Guard, bool> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        states.note(now, what);
        let is_bare = |guard: Guard| {
            let id = facts.guards[&guard].id;
            let is_new = first.get(&id).is_none_or(|first| now - first < 2 * lease);
            is_new && !faultless.iter().all(|place| states.has(*place, id, now))
        };
        let (is_right, how) = match what {
            What::Granted { id, .. } => {
                first.entry(*id).or_insert(now);
                continue;
            }
            What::LetGo { guard, .. } => {
                was_bare.insert(*guard, is_bare(*guard));
                continue;
            }
            What::Failed { attempt, end } => {
                let is_usual = matches!(end, End::Busy | End::TimedOut | End::Cut);
                let converts = facts.attempts[attempt].wish.converts.is_some();
                (is_usual || converts, format!("attempt {attempt} fails: {end:?}"))
            }
            What::LossSeen { guard, reason } => (is_bare(*guard), format!("guard {guard} is lost: {reason:?}")),
            What::Released { how: Released::Lost(LossReason::Closed), .. } => continue,
            What::Released { guard, how: Released::Lost(reason) } => {
                (was_bare[guard], format!("guard {guard} is released and lost: {reason:?}"))
            }
            What::Released { guard, how: Released::Unreachable } => {
                (was_bare[guard], format!("the release of guard {guard} has no answer"))
            }
            _ => continue,
        };
        findings.add_unless(is_right, at, format_args!("{how}, while a majority has no fault"));
    }
}
