//! Promise 6 within a process: writers one after the other in the order in which they came, readers together; a writer that
//! waits stops readers from joining; a hold is shared and passed on only as far as the options say.

use std::collections::BTreeMap;

use super::Findings;
use super::facts::{AttemptFacts, Facts, GuardFacts, MS, RequestFacts};
use super::starts::answered_when_it_starts;
use crate::store::Mode;
use crate::testing::simulation::history::{Id, Micros, Op, Reply, What};

/// A hold is passed on for so long, and whoever is handed it takes it in the next moment.
const TURN_SPAN: Micros = 5 * MS;

/// Whether it takes its place among the waiters of its process.
fn queues(attempt: &AttemptFacts) -> bool {
    !attempt.wish.once && attempt.wish.within.is_none()
}

fn waits_at(attempt: &AttemptFacts, index: usize) -> bool {
    attempt.index < index && attempt.ended.is_none_or(|(_, ended)| ended > index)
}

/// Whether its limit is over: it asks for nothing more, and takes its place back.
fn gives_up(attempt: &AttemptFacts, now: Micros) -> bool {
    attempt.wish.wait_ms.is_some_and(|wait_ms| attempt.asked + wait_ms * MS <= now)
}

pub(super) fn local_order(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 local order");
    for (at, now, what) in facts.each() {
        let What::Granted { attempt: number, .. } = what else {
            continue;
        };
        let served = &facts.attempts[number];
        if served.wish.mode != Mode::Write || !queues(served) {
            continue;
        }
        for (other_number, other) in &facts.attempts {
            let same = other.process == served.process && other.wish.lock == served.wish.lock;
            let before = other.wish.mode == Mode::Write && other.index < served.index;
            // What was handed to it was over when it looked: it begins again.
            let stood_still = facts.asleep(other, other.asked, now) > 0;
            let waits = queues(other) && waits_at(other, at) && !stood_still && !gives_up(other, now);
            if same && before && waits && !offer_was_lost(facts, other, at) {
                findings.add(at, format!("attempt {number} is served before attempt {other_number}, which came first"));
            }
        }
    }
    findings
}

/// Whether a hold was lost while it waited for more of it: a renewal that nobody needs but who was offered that hold was never
/// answered, or not before the hold was over by the local clock and given up, or by a server that does not know it; or somebody of
/// its process has ended the hold by force meanwhile. Somebody else has the right to ask by then, and the first grant is for whoever
/// asks.
fn offer_was_lost(facts: &Facts<'_>, attempt: &AttemptFacts, served: usize) -> bool {
    let its_own = |request: &&RequestFacts| request.process == attempt.process && request.lock == attempt.wish.lock;
    let since = |request: &&RequestFacts| attempt.index < request.index && request.index < served;
    let requests = || facts.requests.values().filter(its_own);
    let forced = |id: &Id, sent: Micros| {
        requests().find_map(|request| match &request.answered {
            Some((at, Reply::Forced(ended))) if *at > sent && ended.contains(id) => Some(*at),
            _ => None,
        })
    };
    let given_up = |id: &Id, renewal: &RequestFacts| {
        let is_leave = |request: &&RequestFacts| matches!(&request.op, Op::Leave { id: left } if left == id);
        let left = requests().filter(is_leave).map(|request| request.sent).find(|left| *left > renewal.sent)?;
        let about: Vec<_> = facts.about(*id).collect();
        let was_over = left >= facts.vouched(*id, &about, left);
        (was_over && !renewal.is_answered(left)).then_some(left)
    };
    requests().filter(since).any(|request| {
        let Op::Renew { id, .. } = &request.op else { return false };
        let is_needed =
            facts.guards.values().any(|guard| guard.id == *id && guard.over.is_none_or(|over| over > request.sent));
        let ended = match &request.answered {
            Some((at, Reply::Lost { .. })) => Some(*at),
            Some(_) => None,
            None => request.failed.filter(|_| request.is_unanswered()),
        };
        let ended = ended.or_else(|| forced(id, request.sent)).or_else(|| given_up(id, request));
        !is_needed && ended.is_some_and(|ended| !was_served(facts, attempt, ended, served))
    })
}

/// Whether another one that takes its place among the writers of that process was granted the lock after that moment, and before
/// that event.
fn was_served(facts: &Facts<'_>, waiter: &AttemptFacts, after: Micros, before: usize) -> bool {
    facts.guards.values().any(|guard| {
        let attempt = &facts.attempts[&guard.attempt];
        let same = attempt.process == waiter.process && attempt.wish.lock == waiter.wish.lock;
        let writes = attempt.wish.mode == Mode::Write && queues(attempt);
        same && writes && after < guard.granted && guard.index < before
    })
}

/// A reader does not join a hold that was there when it came, if a writer of its process waited before it.
pub(super) fn local_phases(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 local phases");
    for guard in facts.guards.values().filter(|guard| joins(facts, guard)) {
        let reader = &facts.attempts[&guard.attempt];
        for (number, writer) in &facts.attempts {
            let same = writer.process == reader.process && writer.wish.lock == reader.wish.lock;
            let waits = writer.wish.mode == Mode::Write && queues(writer) && waits_at(writer, guard.index);
            // Nobody knows whether it is polled again.
            let stood_still = facts.asleep(writer, writer.asked, guard.granted) > 0;
            if same && waits && writer.index < reader.index && !stood_still && !gives_up(writer, guard.granted) {
                findings.add(guard.index, format!("attempt {} joins though writer {number} waits", guard.attempt));
            }
        }
    }
    findings
}

/// Whether it got a share of a hold that was there when it asked.
fn joins(facts: &Facts<'_>, guard: &GuardFacts) -> bool {
    let reads = guard.mode == Mode::Read && guard.wish.within.is_none() && guard.wish.converts.is_none();
    let asked = facts.attempts[&guard.attempt].index;
    reads && facts.guards.values().any(|other| other.id == guard.id && other.index < asked)
}

/// A reader joins without a word to the server only as long as the last word is not older than the share window, and said
/// that no writer waits.
pub(super) fn sharing(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 sharing");
    let by_id = facts.by_id();
    for guard in facts.guards.values().filter(|guard| joins(facts, guard)) {
        let asked = facts.attempts[&guard.attempt].asked;
        let words = by_id[&guard.id].iter().filter_map(|request| match (&request.op, &request.answered) {
            (Op::Acquire { .. } | Op::Conversion { .. }, Some((at, Reply::Granted { is_waited_for, .. })))
                if *at <= guard.granted =>
            {
                Some((*at, request.sent, *is_waited_for))
            }
            _ => None,
        });
        let last = words.max();
        let window = facts.process(guard.process).join_window;
        let called = facts.called_at(guard.id, guard.wish.lock, guard.granted);
        let right = last.is_some_and(|(at, sent, is_waited_for)| {
            // It waited when the server was asked, or the server said so lately, and nobody has called since.
            asked <= at || (!is_waited_for && guard.granted < sent + window && called <= sent)
        });
        let stays = || facts.is_door_open(guard.id, guard.wish.lock, guard.granted);
        findings.add_unless(right || stays(), guard.index, || {
            format!("attempt {} joins, and the last word was {last:?}", guard.attempt)
        });
    }
    findings
}

/// Writers pass a hold on so many times and for so long at most.
pub(super) fn budget(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("6 budget");
    let mut began: BTreeMap<Id, (Micros, u64)> = BTreeMap::new();
    let mut guards: Vec<_> = facts.guards.values().collect();
    guards.sort_by_key(|guard| guard.index);
    for guard in guards.into_iter().filter(|guard| guard.mode == Mode::Write && guard.wish.within.is_none()) {
        let (began, turns) = began.entry(guard.id).or_insert((guard.granted, 0));
        *turns += 1;
        let process = facts.process(guard.process);
        // A hold that may stay is passed on as long as nobody waits elsewhere.
        let handed_over = handed_over(facts, guard);
        let is_open = |at| facts.is_door_open(guard.id, guard.wish.lock, at);
        if *turns > 1 && (is_open(guard.granted) || is_open(handed_over)) {
            continue;
        }
        findings
            .add_unless(*turns <= process.max_handoffs, guard.index, || format!("{:?} has {turns} turns", guard.id));
        let most = *began + TURN_SPAN + facts.asleep_with(guard, *began, guard.granted);
        // It was its own when the one before let go, and it waited for the answer to a renewal.
        let has_waited = answered_when_it_starts(facts, guard).is_some();
        let passed_on = if has_waited { handed_over } else { guard.granted };
        findings.add_unless(passed_on <= most, guard.index, || format!("{:?} is passed on too late", guard.id));
    }
    findings
}

/// When the last one let go that had the same hold before.
fn handed_over(facts: &Facts<'_>, guard: &GuardFacts) -> Micros {
    let before = facts.guards.values().filter(|other| other.id == guard.id && other.index < guard.index);
    before.filter_map(|other| other.over).filter(|over| *over <= guard.granted).max().unwrap_or(guard.granted)
}

/// The server is asked to keep a hold for as long as the guard wants that wants the most.
pub(super) fn leases(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("3 leases of guards");
    let guards = facts.guards_by_id();
    for request in facts.requests.values() {
        let Op::Renew { id, lease_ms, .. } = request.op else { continue };
        let live = |guard: &&&GuardFacts| {
            let gone = [guard.over, guard.lost].into_iter().flatten().min();
            guard.index < request.index && gone.is_none_or(|gone| gone > request.sent)
        };
        for guard in guards.get(&id).into_iter().flatten().filter(live) {
            let ends = guard.root_asked + guard.wish.max_hold_ms * MS;
            let wants = (guard.wish.lease_ms * MS).min(ends.saturating_sub(request.sent));
            findings.add_unless(lease_ms * MS + MS >= wants, request.index, || {
                format!("{id:?} is renewed for {lease_ms} ms, and a guard wants {wants} us")
            });
        }
    }
    findings
}
