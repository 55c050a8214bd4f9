//! Which batches a free replicated connection takes.

use tokio::sync::oneshot;

use super::{Admission, Answers, CallAnswer, Load, Precedence, ReplicatedCalls, ReplicatedJob, ReplicatedState};
use crate::net::fault::Fault;

/// Batch of a caller, which waits for the answers as long as the second value exists.
fn batch(precedence: Precedence) -> (ReplicatedJob, oneshot::Receiver<Result<Vec<CallAnswer>, Fault>>) {
    let (answers, answer): (Answers, _) = oneshot::channel();
    let calls = ReplicatedCalls { calls: Vec::new(), load: Load::Digest, admission: Admission::Owner, precedence };
    (ReplicatedJob { calls, answers }, answer)
}

#[test]
fn connection_that_becomes_free_during_a_step_takes_none_of_its_batches() {
    let mut state = ReplicatedState::default();
    let (earlier, _earlier) = batch(Precedence::InTurn);
    state.in_turn.push_back(earlier);
    let (first, _first) = batch(Precedence::InTurn);
    assert!(state.put(first), "the first batch makes a start due");
    assert_eq!(state.next().len(), 1, "only the batch that was queued before");
    assert!(state.next().is_empty(), "the step goes on");
    let (second, _second) = batch(Precedence::Ahead);
    assert!(!state.put(second), "one start is enough");

    state.queue_step();
    let taken: Vec<_> = state.next().iter().map(|job| job.calls.precedence).collect();
    assert_eq!(taken, [Precedence::Ahead, Precedence::InTurn], "both, in one pipeline");
    let (next, _next) = batch(Precedence::InTurn);
    assert!(state.put(next), "the next step is another one");
}
