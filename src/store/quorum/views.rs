//! Views and forces of operators over several masters. This module merges answers and has no I/O.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use super::votes::majority;
use crate::base::attempt::Answered;
use crate::base::lease::ServerTime;
use crate::store::{Forced, Holder, View};

/// Merges the views of the masters into one view. A hold that less than a majority has recorded does not count.
pub(super) fn merge(masters: usize, answers: Vec<(usize, Answered<View>)>) -> (ServerTime, View) {
    let server = answers.iter().map(|(_, answer)| answer.server).max().unwrap_or_default();
    let mut view = View { tokens: vec![None; masters], ..View::default() };
    let mut rows: BTreeMap<String, Vec<Holder>> = BTreeMap::new();
    for (place, answer) in answers {
        let seen = answer.value;
        view.tokens[place] = seen.token;
        view.token = view.token.max(seen.token);
        view.more_holders = view.more_holders.max(seen.more_holders);
        // The clocks of the masters differ. All times in the merged view follow the clock that is ahead.
        let behind_ms = (server.as_micros() - answer.server.as_micros()) / 1000;
        for holder in seen.holders {
            let since_ms = holder.since_ms + behind_ms;
            rows.entry(holder.id.clone()).or_default().push(Holder { since_ms, ..holder });
        }
    }
    view.holders = rows.into_values().filter_map(|rows| held_by_majority(majority(masters), rows)).collect();
    (server, view)
}

/// Returns the hold, if a majority has it. It begins with its first record and ends when less than a majority keeps it.
fn held_by_majority(needed: usize, rows: Vec<Holder>) -> Option<Holder> {
    let mut remaining: Vec<Duration> = rows.iter().map(|row| row.remaining).collect();
    remaining.sort_unstable();
    let remaining = remaining[remaining.len().checked_sub(needed)?];
    let first = rows.into_iter().min_by_key(|row| row.since_ms)?;
    Some(Holder { remaining, ..first })
}

/// Merges the answers to a force. An ended hold counts only if it was in the view, unless the view was incomplete.
pub(super) fn merge_forced(seen: &View, answers: Vec<Forced>) -> Forced {
    let shown: BTreeSet<&str> = seen.holders.iter().map(|holder| &*holder.id).collect();
    let more = answers.iter().any(|forced| forced.has_more);
    let ended: BTreeSet<String> = answers.into_iter().flat_map(|forced| forced.ids).collect();
    let ids = ended.into_iter().filter(|id| seen.more_holders > 0 || shown.contains(id.as_str())).collect();
    Forced { ids, has_more: more }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/views/tests.rs"]
mod tests;
