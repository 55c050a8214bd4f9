//! Checks that an answer describes the lock as it is: whether a writer waits afterwards, and what an inspection shows.

use super::*;

fn queued(seen: &Seen, mode: Mode) -> Vec<Id> {
    seen.queue.iter().filter(|held| held.mode == mode).map(|held| held.id).collect()
}

fn leaves(op: Op, id: Id) -> bool {
    matches!(op, Op::Leave { id: left } if left == id)
}

/// Checks `is_waited_for`. Readers share a hold without a request while the last answer said that no writer waits. A
/// writer keeps its hold while there is no waiter.
pub fn waited_for(facts: &Facts<'_>, findings: &mut Findings) {
    // Waiters that were seen in the queue and have neither entered nor left since.
    let mut recorded: BTreeMap<(u32, Lock), BTreeMap<Id, Mode>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        let What::Applied { op, reply, primary, lock, before, after, notifications, .. } = what else {
            continue;
        };
        let recorded = recorded.entry((*primary, *lock)).or_default();
        recorded.extend(before.queue.iter().chain(&after.queue).map(|waiting| (waiting.id, waiting.mode)));
        recorded.retain(|id, _| !after.held.iter().any(|held| held.id == *id) && !leaves(*op, *id));
        let mode_of = |id: Id| after.held.iter().find(|held| held.id == id).map_or(Mode::Read, |held| held.mode);
        // Returns true if a hold of this mode keeps the waiter out.
        let concerns = |held: Mode, waiting: Mode| held == Mode::Write || waiting == Mode::Write;
        // One request touches few records, so it may not reach a dead writer. Then it must not let readers pass. Behind
        // a writer, dead readers count too: the server does not look for them, and the only cost is that the hold is
        // not cached.
        let unreached = |mode| match mode {
            Mode::Read => facts.small_batches && recorded.values().any(|waiting| *waiting == Mode::Write),
            Mode::Write => true,
        };
        let waiting = |mode| after.queue.iter().filter(move |waiting| concerns(mode, waiting.mode));
        if let (Reply::Granted { is_waited_for, .. }, Some(id)) = (reply, id_of(*op)) {
            let (mode, waits) = (mode_of(id), waiting(mode_of(id)).count() > 0);
            findings.add_unless(
                *is_waited_for == waits || (*is_waited_for && unreached(mode)),
                at,
                format_args!("{op:?} is answered {reply:?}, and {:?} wait", after.queue),
            );
        }
        // A renewal does not examine the waiters, so those that it reports may be dead by then.
        if let (Op::Renew { caches: true, .. }, Reply::Renewed { is_waited_for: false, .. }, Some(id)) =
            (op, reply, id_of(*op))
        {
            let waits = waiting(mode_of(id)).count() > 0;
            findings.add_unless(!waits, at, format_args!("{op:?} is answered {reply:?}, and {:?} wait", after.queue));
        }
        for notification in notifications {
            let mode = mode_of(notification.id);
            // A waiter that arrives with this request comes after them.
            let is_before = |id: Id| Some(id) != id_of(*op) || before.queue.iter().any(|other| other.id == id);
            let others = waiting(mode).any(|waiting| is_before(waiting.id));
            let right = notification.is_waited_for == others || (notification.is_waited_for && unreached(mode));
            findings.add_unless(right, at, format_args!("{notification:?}, and {:?} wait", after.queue));
        }
    }
}

/// Checks that an inspection shows the state of the lock.
pub fn looks(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, _, what) in facts.each() {
        let What::Applied { reply: Reply::View(shown), server_us, before, .. } = what else {
            continue;
        };
        let left = |deadline_ms: u64| deadline_ms - server_us / 1000;
        let holders: Vec<_> = before.held.iter().map(|held| (held.id, held.mode, left(held.deadline_ms))).collect();
        let Shown { token, holders: listed, waiters } = shown;
        let writers: Vec<_> = waiters.iter().filter(|(_, of)| *of == Mode::Write).map(|(id, _)| *id).collect();
        let readers: BTreeSet<_> = waiters.iter().filter(|(_, of)| *of == Mode::Read).map(|(id, _)| *id).collect();
        let same = *token == before.token
            && *listed == holders
            && writers == queued(before, Mode::Write)
            // Waiting readers have no order among themselves.
            && readers == queued(before, Mode::Read).into_iter().collect();
        // Of a crowd, an inspection shows only a part.
        let part = *token == before.token
            && listed.iter().all(|held| holders.contains(held))
            && waiters.iter().all(|(id, _)| before.queue.iter().any(|held| held.id == *id));
        findings.add_unless(
            same || (facts.small_batches && part),
            at,
            format_args!("{shown:?} is shown of {before:?}"),
        );
    }
}
