//! Views of locks, and forces of operators, over several masters. This module merges the answers of the masters and
//! does no I/O.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use super::votes::majority;
use crate::base::attempt::Answered;
use crate::base::lease::ServerTime;
use crate::store::{Forced, Holder, View};

/// Merges the views of the masters into one view. A hold counts only if a majority of the masters has recorded it.
pub(super) fn merge(masters: usize, answers: Vec<(usize, Answered<View>)>) -> (ServerTime, View) {
    let server = answers.iter().map(|(_, answer)| answer.server).max().unwrap_or_default();
    let mut view = View { tokens: vec![None; masters], ..View::default() };
    let mut rows: BTreeMap<String, Vec<Holder>> = BTreeMap::new();
    for (place, answer) in answers {
        let seen = answer.value;
        view.tokens[place] = seen.token;
        view.token = view.token.max(seen.token);
        view.more_holders = view.more_holders.max(seen.more_holders);
        // The clocks of the masters differ. All times in the merged view follow the clock that is furthest ahead.
        let behind_ms = (server.as_micros() - answer.server.as_micros()) / 1000;
        for holder in seen.holders {
            let since_ms = holder.since_ms + behind_ms;
            rows.entry(holder.id.clone()).or_default().push(Holder { since_ms, ..holder });
        }
    }
    view.holders = rows.into_values().filter_map(|rows| held_by_majority(majority(masters), rows)).collect();
    (server, view)
}

/// Returns the hold, if a majority has it. The hold begins with its earliest record, and it ends when no majority keeps
/// it any more.
fn held_by_majority(needed: usize, rows: Vec<Holder>) -> Option<Holder> {
    let mut remaining: Vec<Duration> = rows.iter().map(|row| row.remaining).collect();
    remaining.sort_unstable();
    let remaining = remaining[remaining.len().checked_sub(needed)?];
    let first = rows.into_iter().min_by_key(|row| row.since_ms)?;
    Some(Holder { remaining, ..first })
}

/// Merges the answers to a force. An ended hold counts only if it was in the view. If the view was incomplete, each
/// ended hold counts.
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
