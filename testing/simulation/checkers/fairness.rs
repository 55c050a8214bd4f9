//! Promise 6 within a process. Writers follow each other in the order of their arrival, and readers enter together. A
//! waiting writer stops readers from joining. A hold is shared and handed off only as far as the options allow.

use super::starts::answered_when_it_starts;
use super::*;

/// Time for which a hold is handed off. The next writer takes it in the next moment.
const HANDOFF_SPAN: Micros = 5 * MS;

/// Returns true if the attempt joins the queue of its process.
fn queues(attempt: &AttemptFacts) -> bool {
    !attempt.wish.once && attempt.wish.within.is_none()
}

fn waits_at(attempt: &AttemptFacts, index: usize) -> bool {
    attempt.index < index && attempt.ended.is_none_or(|(_, ended)| ended > index)
}

/// Returns true if the limit of the attempt is over. Then it asks for nothing more and leaves the queue.
fn gives_up(attempt: &AttemptFacts, now: Micros) -> bool {
    attempt.wish.wait_ms.is_some_and(|wait_ms| attempt.asked + wait_ms * MS <= now)
}

pub fn local_order(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, now, what) in facts.each() {
        let What::Granted { attempt: number, .. } = what else {
            continue;
        };
        let served = &facts.attempts[number];
        if served.wish.mode != Mode::Write || !queues(served) {
            continue;
        }
        for (other_number, other) in &facts.attempts {
            let same = other.scope() == served.scope();
            let before = other.wish.mode == Mode::Write && other.index < served.index;
            // Its offered share was over when it was polled, so it begins again.
            let stood_still = facts.asleep(other, other.asked, now) > 0;
            let waits = queues(other) && waits_at(other, at) && !stood_still && !gives_up(other, now);
            if same && before && waits && !offer_was_lost(facts, other, at) {
                findings.add(at, format!("attempt {number} is served before attempt {other_number}, which came first"));
            }
        }
    }
}

/// Returns true if the waiter lost a hold that was offered to it while it waited for a longer lease.
///
/// * The renewal for this waiter was never answered, or only after the local end of the hold. The hold was then given
///   up, or unknown to the server.
/// * Or an operator of its process ended the hold by force.
///
/// Another waiter is the first one by then, and the next grant goes to the first waiter.
fn offer_was_lost(facts: &Facts<'_>, attempt: &AttemptFacts, served: usize) -> bool {
    let its_own = |request: &&RequestFacts| request.scope() == attempt.scope();
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
        let was_over = left >= facts.vouched(*id, left);
        (was_over && !renewal.is_answered(left)).then_some(left)
    };
    requests().filter(since).any(|request| {
        let Op::Renew { id, .. } = &request.op else { return false };
        let is_needed = facts.guards_of(*id).any(|guard| guard.over.is_none_or(|over| over > request.sent));
        let ended = match &request.answered {
            Some((at, Reply::Lost { .. })) => Some(*at),
            Some(_) => None,
            None => request.failed.filter(|_| request.is_unanswered()),
        };
        let ended = ended.or_else(|| forced(id, request.sent)).or_else(|| given_up(id, request));
        !is_needed && ended.is_some_and(|ended| !was_served(facts, attempt, ended, served))
    })
}

/// Returns true if another queued writer of the process was granted the lock after the moment and before the event.
fn was_served(facts: &Facts<'_>, waiter: &AttemptFacts, after: Micros, before: usize) -> bool {
    facts.guards.values().any(|guard| {
        let attempt = &facts.attempts[&guard.attempt];
        let same = attempt.scope() == waiter.scope();
        let writes = attempt.wish.mode == Mode::Write && queues(attempt);
        same && writes && after < guard.granted && guard.index < before
    })
}

/// Checks that a reader joins no earlier hold while an older writer of its process waits.
pub fn local_phases(facts: &Facts<'_>, findings: &mut Findings) {
    for guard in facts.guards.values().filter(|guard| joins(facts, guard)) {
        let reader = &facts.attempts[&guard.attempt];
        for (number, writer) in &facts.attempts {
            let same = writer.scope() == reader.scope();
            let waits = writer.wish.mode == Mode::Write && queues(writer) && waits_at(writer, guard.index);
            // The writer may never be polled again.
            let stood_still = facts.asleep(writer, writer.asked, guard.granted) > 0;
            if same && waits && writer.index < reader.index && !stood_still && !gives_up(writer, guard.granted) {
                findings.add(guard.index, format!("attempt {} joins though writer {number} waits", guard.attempt));
            }
        }
    }
}

/// Returns true if the guard got a share of a hold that was there when it asked.
fn joins(facts: &Facts<'_>, guard: &GuardFacts) -> bool {
    let reads = guard.mode == Mode::Read && guard.wish.within.is_none() && guard.wish.converts.is_none();
    let asked = facts.attempts[&guard.attempt].index;
    reads && facts.guards_of(guard.id).any(|other| other.index < asked)
}

/// Checks that a reader joins without a request only within the `join_window` of the last answer. That answer must say
/// that no writer waits.
pub fn sharing(facts: &Facts<'_>, findings: &mut Findings) {
    let by_id = facts.by_id();
    for guard in facts.guards.values().filter(|guard| joins(facts, guard)) {
        let asked = facts.attempts[&guard.attempt].asked;
        let answers = by_id[&guard.id].iter().filter_map(|request| match (&request.op, &request.answered) {
            (Op::Acquire { .. } | Op::Conversion { .. }, Some((at, Reply::Granted { is_waited_for, .. })))
                if *at <= guard.granted =>
            {
                Some((*at, request.sent, *is_waited_for))
            }
            _ => None,
        });
        let last = answers.max();
        let window = facts.process(guard.process).join_window;
        let recalled_at = facts.recalled_at(guard.id, guard.wish.lock, guard.granted);
        let right = last.is_some_and(|(at, sent, is_waited_for)| {
            // The reader waited when the server was asked. Or the server answered lately, and no recall has come since.
            asked <= at || (!is_waited_for && guard.granted < sent + window && recalled_at <= sent)
        });
        let may_join_cached = || facts.is_door_open(guard.id, guard.wish.lock, guard.granted);
        findings.add_unless(
            right || may_join_cached(),
            guard.index,
            format_args!("attempt {} joins, and the last answer was {last:?}", guard.attempt),
        );
    }
}

/// Checks the limits of hand-offs between writers: number and time.
pub fn budget(facts: &Facts<'_>, findings: &mut Findings) {
    let mut began: BTreeMap<Id, (Micros, u64)> = BTreeMap::new();
    let mut guards: Vec<_> = facts.guards.values().collect();
    guards.sort_by_key(|guard| guard.index);
    for guard in guards.into_iter().filter(|guard| guard.mode == Mode::Write && guard.wish.within.is_none()) {
        let (began, writers) = began.entry(guard.id).or_insert((guard.granted, 0));
        *writers += 1;
        let process = facts.process(guard.process);
        // A hold that may be cached is handed off as long as no other process waits.
        let handed_over = handed_over(facts, guard);
        let is_open = |at| facts.is_door_open(guard.id, guard.wish.lock, at);
        if *writers > 1 && (is_open(guard.granted) || is_open(handed_over)) {
            continue;
        }
        findings.add_unless(
            *writers <= process.max_handoffs,
            guard.index,
            format_args!("{:?} serves {writers} writers", guard.id),
        );
        let most = *began + HANDOFF_SPAN + facts.asleep_with(guard, *began, guard.granted);
        // The writer owned the hold when the one before let go, and then waited for the answer to a renewal.
        let has_waited = answered_when_it_starts(facts, guard).is_some();
        let passed_on = if has_waited { handed_over } else { guard.granted };
        findings.add_unless(passed_on <= most, guard.index, format_args!("{:?} is passed on too late", guard.id));
    }
}

/// Returns the time at which the last guard before let go of the same hold.
fn handed_over(facts: &Facts<'_>, guard: &GuardFacts) -> Micros {
    let before = facts.guards_of(guard.id).filter(|other| other.index < guard.index);
    before.filter_map(|other| other.over).filter(|over| *over <= guard.granted).max().unwrap_or(guard.granted)
}

/// Checks that each renewal asks for the longest lease that a guard of the hold wants.
pub fn leases(facts: &Facts<'_>, findings: &mut Findings) {
    let guards = facts.guards_by_id();
    for request in facts.requests.values() {
        let Op::Renew { id, lease_ms, .. } = request.op else { continue };
        let live =
            |guard: &&&GuardFacts| guard.index < request.index && guard.gone().is_none_or(|gone| gone > request.sent);
        for guard in guards.get(&id).into_iter().flatten().filter(live) {
            let ends = guard.root_asked + guard.wish.max_hold_ms * MS;
            let wants = (guard.wish.lease_ms * MS).min(ends.saturating_sub(request.sent));
            findings.add_unless(
                lease_ms * MS + MS >= wants,
                request.index,
                format_args!("{id:?} is renewed for {lease_ms} ms, and a guard wants {wants} us"),
            );
        }
    }
}
