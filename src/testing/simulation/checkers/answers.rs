//! What an answer says of the lock is what the lock is: whether a writer waits after it, and what a look shows.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::facts::{Facts, id_of};
use crate::scheme::Mode;
use crate::testing::simulation::history::{Id, Lock, Op, Reply, Seen, Shown, What};

fn queued(seen: &Seen, mode: Mode) -> Vec<Id> {
    seen.queue.iter().filter(|held| held.mode == mode).map(|held| held.id).collect()
}

fn leaves(op: Op, id: Id) -> bool {
    matches!(op, Op::Leave { id: left } if left == id)
}

/// Those of `queue` whom a hold of this mode keeps out: a reader's the writers, a writer's everybody.
fn kept_out(queue: &BTreeMap<Id, Mode>, holds: Mode) -> Vec<Id> {
    queue.iter().filter(|(_, waits)| holds == Mode::Write || **waits == Mode::Write).map(|(id, _)| *id).collect()
}

fn by_id(seen: &Seen) -> BTreeMap<Id, Mode> {
    seen.queue.iter().map(|held| (held.id, held.mode)).collect()
}

/// Readers share a hold without a word to the server as long as they were told that no writer waits.
pub(super) fn waited_for(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 waited for");
    // Waiters that were seen in the queue, and neither let in nor taken back since.
    let mut recorded: BTreeMap<(u32, Lock), BTreeMap<Id, Mode>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        let What::Applied { op, reply, primary, lock, before, after, news, .. } = what else {
            continue;
        };
        let waiting = by_id(after);
        let recorded = recorded.entry((*primary, *lock)).or_default();
        recorded.extend(by_id(before).into_iter().chain(by_id(after)));
        recorded.retain(|id, _| !after.held.iter().any(|held| held.id == *id) && !leaves(*op, *id));
        // One request touches few records: it may not reach a dead writer, and then it must not let readers pass. For a writer nobody
        // looks at readers.
        let unsure = |holds| match holds {
            Mode::Read => facts.crowded && !kept_out(recorded, Mode::Read).is_empty(),
            Mode::Write => after.anybody_recorded,
        };
        let right = |told: bool, waits: bool, holds| told == waits || (told && unsure(holds));
        if let Reply::Granted { is_waited_for, .. } = reply
            && let Op::Acquire { mode, .. } | Op::Conversion { mode, .. } = op
        {
            let waits = kept_out(&waiting, *mode);
            findings.add_unless(right(*is_waited_for, !waits.is_empty(), *mode), at, || {
                format!("{op:?} is answered {reply:?}, and {waits:?} wait")
            });
        }
        // Whoever comes with this request comes after them.
        let before = by_id(before);
        for news in news {
            let mode = before.get(&news.id).copied().unwrap_or(Mode::Read);
            let waits = kept_out(&waiting, mode);
            let others = waits.iter().any(|id| Some(*id) != id_of(*op) || before.contains_key(id));
            findings
                .add_unless(right(news.is_waited_for, others, mode), at, || format!("{news:?}, and {waits:?} wait"));
        }
    }
    findings
}

/// A look shows what there is.
pub(super) fn looks(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("inspect");
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
            // They have no order among themselves.
            && readers == queued(before, Mode::Read).into_iter().collect();
        // What is shown of a crowd is a part of it.
        let part = *token == before.token
            && listed.iter().all(|held| holders.contains(held))
            && waiters.iter().all(|(id, _)| before.queue.iter().any(|held| held.id == *id));
        findings.add_unless(same || (facts.crowded && part), at, || format!("{shown:?} is shown of {before:?}"));
    }
    findings
}
