//! Faults of a wrong process. The driver distorts what it tells the state, or what it does with the state's decisions.

/// Faults of a wrong process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Blunder {
    /// Counts the validity from the answer, not from the request.
    CountsFromAnswer,
    /// Takes a notified grant that is over.
    TakesGrantsThatAreOver,
    /// Takes a hold for valid after its lease, because no answer has ended it.
    OutlivesItsLease,
    /// Takes an abandoned copy for one that cannot arrive.
    ForgetsAbandoned,
    /// Gives an acquisition back once, although a copy of it may still arrive.
    LeavesOnce,
    /// Takes an answer that a request came too late for one that says that the acquisition is unknown.
    LateForgetsRecord,
    /// Gives nothing back for the last waiter that leaves.
    KeepsRequest,
    /// Gives nothing back when the last guard leaves.
    LeavesUntold,
    /// Takes a release for answered when it is sent.
    ConfirmsAtOnce,
    /// Takes a release that has found a hold for the last one, although a copy may still arrive.
    ConfirmsWhatItFound,
    /// Takes a release for the last one because no copy can arrive when its answer comes, although one may have arrived
    /// after the release.
    ConfirmsWhenAnswered,
    /// Takes copies for over a tick too early.
    ConfirmsTooSoon,
    /// Asks again under a new id.
    AsksAnew,
    /// Waits for a notification, and sends no heartbeats.
    NeverAsksAgain,
    /// Believes the refusal of a conversion while an earlier copy may still be carried out.
    BelievesRefusalBeforeStrays,
    /// Keeps the guard of a hold that was converted.
    KeepsConverted,
    /// Takes a notified grant from before the acquisition was queued again.
    TakesGrantFromBefore,
    /// Replaces no requester whose future is not polled any more.
    NeverLooksForStalled,
    /// Takes no notice of recalls.
    StaysWhenRecalled,
    /// Offers to cache a hold, and believes that it may, while no subscription is confirmed.
    ReliesUnconfirmed,
    /// Takes the subscription that is confirmed at the answer for the one at the request.
    ReliesOnWhatItAskedBefore,
    /// Takes a subscription after a break for the one before.
    ReliesAcrossBreak,
    /// Keeps its cached hold when its subscription has broken.
    KeepsUnheard,
    /// Forgets a recall that came before the grant.
    ForgetsEarlyRecall,
    /// Forgets a recall because of an answer to a request from before the recall.
    BelievesOlderAnswer,
    /// Takes no notice of an answer that reports a waiter.
    IgnoresWhatARenewalTells,
    /// Gives a recalled hold back while a guard is inside.
    GivesUpUnderGuard,
    /// Hands out a cached hold whose lease is over.
    EntersWhatIsOver,
    /// Gives the same token to two writers.
    ReusesToken,
    /// Answers a try that a guard is inside, while none is.
    AnswersInUseWhenIdle,
    /// Leaves a try that was answered in the queue.
    TryStays,
    /// Gives back only the old hold of a conversion that is dropped.
    ForgetsNewHold,
    /// Wakes only the first of the tasks that an event wakes.
    WakesOne,
    /// Puts a hold into the queue of deadlines at the moment that was right when the event was applied.
    SchedulesWhatItRead,
}
