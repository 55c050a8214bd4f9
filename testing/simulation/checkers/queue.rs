//! Promise 6 between processes, and the part of promise 5 that the queue keeps.
//!
//! * A waiting writer stops new readers.
//! * When a writer leaves, all waiting readers enter together.
//! * Writers are first come, first served, and no waiter is forgotten.
//! * A waiter that is granted the lock, dead or alive, has no more than its claim.

use super::*;

struct Step<'h> {
    at: usize,
    op: Op,
    reply: &'h Reply,
    before: &'h Seen,
    after: &'h Seen,
    notifications: &'h [SentGrant],
}

fn steps<'h>(facts: &Facts<'h>) -> impl Iterator<Item = Step<'h>> {
    facts.each().filter_map(|(at, _, what)| match what {
        What::Applied { op, reply, before, after, notifications, .. } => {
            Some(Step { at, op: *op, reply, before, after, notifications })
        }
        _ => None,
    })
}

fn of(mode: Mode, all: &[Held]) -> Vec<Id> {
    all.iter().filter(|held| held.mode == mode).map(|held| held.id).collect()
}

impl Step<'_> {
    fn changes_nothing(&self) -> bool {
        // A late force changes nothing.
        let late = matches!(self.op, Op::Force { seen, .. } if self.before.token > seen);
        late || matches!(self.op, Op::Inspect | Op::Time | Op::Renew { .. }) || *self.reply == Reply::Late
    }

    /// Returns true if the operation removes this id.
    fn leaves(&self, id: Id) -> bool {
        match self.op {
            Op::Leave { id: left } => left == id,
            Op::Conversion { old, .. } => old == id,
            _ => false,
        }
    }
}

pub fn order(facts: &Facts<'_>, findings: &mut Findings) {
    for step in steps(facts) {
        for mode in [Mode::Read, Mode::Write] {
            let (was, is) = (of(mode, &step.before.queue), of(mode, &step.after.queue));
            let remaining = was.iter().filter(|id| is.contains(id));
            let came = is.iter().filter(|id| !was.contains(id));
            let right: Vec<_> = remaining.chain(came).copied().collect();
            // Readers enter together, so they have no order among themselves.
            findings.add_unless(mode == Mode::Read || right == is, step.at, format_args!("{was:?} became {is:?}"));
            for gone in was.iter().filter(|id| !is.contains(id)) {
                let told = step.notifications.iter().any(|notification| notification.id == *gone)
                    || id_of(step.op) == Some(*gone);
                findings.add_unless(told, step.at, format_args!("{gone:?} is forgotten"));
            }
        }
        // A crowd enters in parts. `bypasses` judges the waiters that are passed meanwhile.
        if !step.changes_nothing() && !facts.small_batches {
            served(findings, &step);
        }
    }
}

fn served(findings: &mut Findings, step: &Step<'_>) {
    let Step { at, before, after, notifications, .. } = step;
    let first = of(Mode::Write, &before.queue).into_iter().find(|id| !step.leaves(*id));
    for told in *notifications {
        let writes = of(Mode::Write, &after.held).contains(&told.id);
        findings.add_unless(
            !writes || first == Some(told.id),
            *at,
            format_args!("{:?} is let in, {first:?} came first", told.id),
        );
    }
    let (writers, readers) = (of(Mode::Write, &after.queue), of(Mode::Read, &after.queue));
    // A waiter that arrives with this request comes after them.
    let left_out: Vec<_> = readers.iter().filter(|id| of(Mode::Read, &before.queue).contains(id)).collect();
    let entered = notifications.iter().any(|notification| of(Mode::Read, &after.held).contains(&notification.id));
    findings.add_unless(
        !entered || left_out.is_empty(),
        *at,
        format_args!("{left_out:?} do not enter with the others"),
    );
    let writer_inside = !of(Mode::Write, &after.held).is_empty();
    findings.add_unless(
        writer_inside || !writers.is_empty() || readers.is_empty(),
        *at,
        format_args!("{readers:?} wait for nobody"),
    );
    findings.add_unless(!after.held.is_empty() || writers.is_empty(), *at, format_args!("{writers:?} wait for nobody"));
}

/// Checks which grants pass a waiter. No new reader passes a waiting writer, and one writer at most passes a waiting
/// reader.
pub fn bypasses(facts: &Facts<'_>, findings: &mut Findings) {
    let mut passed: BTreeMap<Id, usize> = BTreeMap::new();
    let mut lock_of: BTreeMap<Id, Lock> = BTreeMap::new();
    // Readers that waited when the last writer left, or that waited behind no writer. The flag is true if a writer was
    // there at the last look.
    let mut phases: BTreeMap<Lock, (BTreeSet<Id>, bool)> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        if let What::Applied { lock, before, after, deposed: false, .. } = what {
            let writes = |seen: &Seen| !of(Mode::Write, &seen.held).is_empty();
            let (batch, written) = phases.entry(*lock).or_default();
            let left = (*written || writes(before)) && !(writes(before) && before.held == after.held);
            // Or the waiting writer has died. Then nothing keeps readers out, and they enter with the next request.
            let died = !writes(before) && of(Mode::Write, &before.queue).is_empty();
            if left || died {
                batch.extend(of(Mode::Read, &before.queue));
            }
            *written = writes(after);
        }
        match what {
            What::Emptied { .. } | What::Stale { .. } | What::Promoted { .. } => passed.clear(),
            What::Applied { lock, op, before, after, notifications, deposed: false, .. } => {
                let ends = |id: Id| {
                    matches!(op, Op::Leave { id: left } if *left == id)
                        || matches!(op, Op::Conversion { old, .. } if *old == id)
                };
                // A reader that left the queue meanwhile begins anew.
                let waiting = of(Mode::Read, &before.queue);
                passed.retain(|id, _| lock_of.get(id) != Some(lock) || waiting.contains(id));
                let goes_on = before.held.iter().any(|held| held.mode == Mode::Read && !ends(held.id));
                let new =
                    Given::by(what).into_iter().filter(|given| before.held.iter().all(|held| held.id != given.id));
                for given in new {
                    let conversions = matches!(op, Op::Conversion { id, .. } if *id == given.id);
                    // A writer that arrives with this request is no earlier one, and a writer that leaves by it is not
                    // passed.
                    let mut writers = of(Mode::Write, &after.queue);
                    writers.retain(|id| of(Mode::Write, &before.queue).contains(id));
                    if given.mode == Mode::Read && !writers.is_empty() && !conversions {
                        let waited = notifications.iter().any(|notification| notification.id == given.id);
                        // A reader of a crowd may enter in its phase though others of the crowd are inside already.
                        let is_in_batch =
                            facts.small_batches && phases.get(lock).is_some_and(|(batch, _)| batch.contains(&given.id));
                        findings.add_unless(
                            waited && (!goes_on || is_in_batch),
                            at,
                            format_args!("{:?} passes the writers {writers:?}", given.id),
                        );
                    }
                    if given.mode == Mode::Write && !conversions {
                        let waiting = of(Mode::Read, &before.queue)
                            .into_iter()
                            .filter(|id| lock_of.get(id) == Some(lock) && !ends(*id));
                        for reader in waiting {
                            let passed = passed.entry(reader).or_default();
                            *passed += 1;
                            findings.add_unless(*passed <= 1, at, format_args!("{passed} writers pass {reader:?}"));
                        }
                    }
                }
                for id in of(Mode::Read, &after.queue) {
                    lock_of.insert(id, *lock);
                }
            }
            _ => {}
        }
    }
}

/// Checks that a waiter stays for its `waiter_ttl_ms`, and has as long to claim its grant.
pub fn claims(facts: &Facts<'_>, findings: &mut Findings) {
    let mut claim: BTreeMap<Id, u64> = BTreeMap::new();
    let mut longest: BTreeMap<Id, u64> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        if let What::Stale { .. } | What::Promoted { .. } = what {
            // The server remembers the earlier requests.
            claim.clone_from(&longest);
        }
        let What::Applied { op, reply, server_us, before, after, notifications, deposed: false, .. } = what else {
            continue;
        };
        let now_ms = server_us / 1000;
        for told in notifications {
            let most = claim.get(&told.id).map(|claim| now_ms + claim);
            findings.add_unless(
                most.is_some_and(|most| told.deadline_ms <= most),
                at,
                format_args!("{told:?} has until {most:?} to claim it"),
            );
        }
        let Op::Acquire { id, lease_ms, waiter_ttl_ms: Some(waiter_ttl_ms), .. } = op else {
            continue;
        };
        if *reply != Reply::Late {
            let asked = *waiter_ttl_ms.min(lease_ms);
            claim.insert(*id, asked);
            let longest = longest.entry(*id).or_default();
            *longest = asked.max(*longest);
        }
        let until = |seen: &Seen| seen.queue.iter().find(|held| held.id == *id).map(|held| held.deadline_ms);
        let most = until(before).unwrap_or_default().max(now_ms + waiter_ttl_ms);
        findings.add_unless(until(after).is_none_or(|until| until <= most), at, format_args!("{id:?} waits too long"));
    }
}
