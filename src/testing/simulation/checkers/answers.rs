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

/// Readers share a hold without a word to the server as long as they were told that no writer waits.
pub(super) fn waited_for(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 writers waiting");
    // Writers that were seen in the queue, and neither let in nor taken back since.
    let mut recorded: BTreeMap<(u32, Lock), BTreeSet<Id>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        let What::Applied { op, reply, primary, lock, before, after, news, .. } = what else {
            continue;
        };
        let writers = queued(after, Mode::Write);
        let recorded = recorded.entry((*primary, *lock)).or_default();
        recorded.extend(queued(before, Mode::Write).into_iter().chain(writers.iter().copied()));
        recorded.retain(|id| !after.held.iter().any(|held| held.id == *id) && !leaves(*op, *id));
        // One request touches few records: it may not reach a dead writer, and then it must not let readers pass.
        let unreached = facts.crowded && !recorded.is_empty();
        if let Reply::Granted { is_waited_for, .. } = reply {
            findings.add_unless(*is_waited_for != writers.is_empty() || (*is_waited_for && unreached), at, || {
                format!("{op:?} is answered {reply:?}, and {writers:?} wait")
            });
        }
        // Whoever comes with this request comes after them.
        let before = queued(before, Mode::Write);
        let others = writers.iter().any(|id| Some(*id) != id_of(*op) || before.contains(id));
        for news in news {
            let right = news.is_waited_for == others || (news.is_waited_for && unreached);
            findings.add_unless(right, at, || format!("{news:?}, and {writers:?} wait"));
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
