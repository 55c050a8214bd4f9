//! Promises 7 and 8: cost of a lost notification or a silent server, and the time for which a process endures it.

use super::*;

/// Delay that timers and a full deadline queue may add to a pause.
const GRAIN: Micros = 5 * MS;
/// Longest pause before a failed attempt is repeated, however many have failed.
const RETRY: Micros = 250 * MS;
/// Pause after the first failure. Each further pause is twice as long.
const FIRST_RETRY: Micros = 20 * MS;

/// Longest time for which a try waits for the recall replies of holders.
const RECALL_TIMEOUT: Micros = 50 * MS;

/// Promise 7: a waiter asks again within `min(1 s, time to the next deadline)` of an answer or of a failed try.
pub fn heartbeat(facts: &Facts<'_>, findings: &mut Findings) {
    for requests in facts.by_id().values() {
        let acquires = requests.iter().filter(|request| request.op.is_acquisition());
        // Once the acquisition has a guard, other readers ask whether they may join.
        let acquires: Vec<_> = acquires.take_while(|request| !facts.is_had(request)).collect();
        for pair in acquires.windows(2) {
            let [earlier, later] = pair else { continue };
            let (from, most) = match (&earlier.answered, earlier.failed) {
                (Some((at, Reply::Contended { retry_in_ms } | Reply::Queued { retry_in_ms })), _) => {
                    // The server's clock may run 1 % slower.
                    let most = SECOND.min(retry_in_ms * MS * 101 / 100 + MS);
                    // A try waits for the recall replies and asks once more.
                    let is_try = matches!(earlier.op, Op::Acquire { tries: true, .. });
                    (*at, if is_try { most.max(RECALL_TIMEOUT) } else { most })
                }
                (Some((at, _)), _) => (*at, RETRY),
                (None, Some(at)) => (at, RETRY),
                (None, None) => continue,
            };
            let waited = later.sent.saturating_sub(from);
            let process = facts.process(later.process);
            // The last requester, or the next one, may not be polled. Then it takes a while until the task of another waiter
            // is the requester.
            let waiting = facts.attempts.values().filter(|attempt| could_ask(facts, earlier, attempt));
            let waiting = waiting.filter(|attempt| attempt.ended.is_none_or(|(ended, _)| from <= ended));
            let asleep = waiting.map(|attempt| facts.asleep(attempt, from, later.sent)).max().unwrap_or_default();
            let asleep = asleep.max(process.paused_within(from, later.sent));
            let others = clock_readings(facts, later, from) + joins(facts, later, from);
            let excuse = asleep + process.handing_on(from, later.sent) + others;
            findings.add_unless(
                waited <= most + GRAIN + excuse,
                later.index,
                format_args!("asked again after {waited} us, {most} us would have been in time"),
            );
        }
    }
}

/// Returns true if a waiter may go on with the request of another one of its process.
fn could_ask(facts: &Facts<'_>, request: &RequestFacts, waiter: &AttemptFacts) -> bool {
    let mode = request.attempt.map(|attempt| facts.attempts[&attempt].wish.mode);
    waiter.scope() == request.scope() && Some(waiter.wish.mode) == mode
}

/// Returns the time that a process spent on asking the server for its time.
fn clock_readings(facts: &Facts<'_>, before: &RequestFacts, from: Micros) -> Micros {
    let readings = facts.requests.values().filter(|request| {
        request.op == Op::Time
            && request.process == before.process
            && request.lock == before.lock
            && from <= request.sent
            && request.sent <= before.sent
    });
    readings.map(|reading| cost(reading, before)).sum()
}

/// Returns the time that a reader spent on asking whether it may join a hold of its process. A reader that takes over
/// the place of another at the server asks that first.
fn joins(facts: &Facts<'_>, before: &RequestFacts, from: Micros) -> Micros {
    let own = facts.requests.values().filter(|request| {
        let same = request.lock == before.lock && request.attempt.is_some() && request.attempt == before.attempt;
        let between = from <= request.sent && request.sent <= before.sent;
        // Last, because it goes through all guards.
        same && between && request.op.is_acquisition() && facts.is_had(request)
    });
    own.map(|request| cost(request, before)).sum()
}

/// Returns how long an earlier request delayed the next one of its sender. An attempt that fails costs a response
/// timeout.
fn cost(request: &RequestFacts, before: &RequestFacts) -> Micros {
    match (&request.answered, request.failed) {
        (Some((at, _)), _) => at - request.sent,
        (None, Some(at)) => at - request.sent + RETRY,
        // The future of the attempt was dropped.
        (None, None) => before.sent - request.sent,
    }
}

/// Promise 8: waiting ends with `Unreachable` when the server was silent for `unreachable_after`, and not before.
pub fn unreachable(facts: &Facts<'_>, findings: &mut Findings) {
    let mut own: BTreeMap<Attempt, Vec<&RequestFacts>> = BTreeMap::new();
    // Each side has its own request. A waiter for a hold of its own process does not learn of silence to the other side.
    let mut of_side: HashMap<(Process, Lock, Mode), Vec<&RequestFacts>> = HashMap::new();
    let mode_of = |attempt: Attempt| facts.attempts[&attempt].wish.mode;
    for request in facts.requests.values() {
        if let (Op::Acquire { .. } | Op::Time, Some(attempt)) = (request.op, request.attempt) {
            own.entry(attempt).or_default().push(request);
            of_side.entry((request.process, request.lock, mode_of(attempt))).or_default().push(request);
        }
    }
    for (number, attempt) in &facts.attempts {
        let own = own.get(number).map(Vec::as_slice).unwrap_or_default();
        too_early(facts, findings, *number, attempt, own);
        // The requester asks for all waiters of its side.
        let asked = of_side
            .get(&(attempt.process, attempt.wish.lock, attempt.wish.mode))
            .map(Vec::as_slice)
            .unwrap_or_default();
        too_late(facts, findings, *number, attempt, if attempt.wish.once { own } else { asked });
    }
}

fn too_early(
    facts: &Facts<'_>,
    findings: &mut Findings,
    number: Attempt,
    attempt: &AttemptFacts,
    own: &[&RequestFacts],
) {
    let (Some(End::Unreachable), Some((at, index))) = (attempt.end, attempt.ended) else {
        return;
    };
    // A limit of the attempt itself may end the wait at any moment of silence.
    let limited = attempt.wish.wait_ms.is_some_and(|wait_ms| attempt.asked + wait_ms * MS <= at);
    // A grant may be over when it arrives. Then it counts as silence.
    let last_answer = own.iter().filter_map(|request| match &request.answered {
        Some((at, Reply::Contended { .. } | Reply::Queued { .. } | Reply::Late)) => Some(*at),
        _ => None,
    });
    let last_answer = last_answer.max().unwrap_or(attempt.asked);
    let outage_us = at - last_answer;
    let process = facts.process(attempt.process);
    let enough = outage_us >= process.unreachable_after
        // An attempt that wants one answer gives up after two response timeouts.
        || attempt.wish.once && at - attempt.asked >= 2 * process.response_timeout;
    findings.add_unless(
        enough || limited,
        index,
        format_args!("attempt {number} gives up though the server was silent for {outage_us} us only"),
    );
}

fn too_late(
    facts: &Facts<'_>,
    findings: &mut Findings,
    number: Attempt,
    attempt: &AttemptFacts,
    asked: &[&RequestFacts],
) {
    let process = facts.process(attempt.process);
    let (ended, index) = attempt.ended.unwrap_or((facts.over, usize::MAX));
    let index = index.min(facts.events.len() - 1);
    let most = process.unreachable_after + process.response_timeout + SECOND + 100 * MS;
    for outage in outages(asked, process.response_timeout) {
        let from = outage.from.max(attempt.asked);
        let until = outage.last.min(ended);
        let waited = until.saturating_sub(from);
        findings.add_unless(
            waited <= most + facts.asleep(attempt, from, until),
            index,
            format_args!("attempt {number} bears a silent server for {waited} us: {outage:?}"),
        );
    }
}

/// Span in which requests were not answered, from the first to the last.
#[derive(Debug)]
struct ServerOutage {
    from: Micros,
    last: Micros,
}

fn outages(requests: &[&RequestFacts], response_timeout: Micros) -> Vec<ServerOutage> {
    // After a longer gap another attempt asks.
    let gap = response_timeout + 300 * MS;
    let mut outages: Vec<ServerOutage> = Vec::new();
    let mut is_out = false;
    for request in requests {
        match &request.answered {
            // The server's time alone is no answer to the attempt.
            Some((_, Reply::Time)) => {}
            Some(_) => is_out = false,
            // The future was dropped, so an answer would not have been noticed.
            None if request.failed.is_none() => {}
            None if is_out && outages.last().is_some_and(|outage| request.sent < outage.last + gap) => {
                outages.last_mut().expect("one is silent").last = request.sent;
            }
            None => {
                outages.push(ServerOutage { from: request.sent, last: request.sent });
                is_out = true;
            }
        }
    }
    outages
}

/// Promise 8: renewal is repeated until the local deadline. A guard is lost neither before that nor before one renewal
/// could be repeated.
pub fn renewals(facts: &Facts<'_>, findings: &mut Findings) {
    for requests in facts.by_id().values() {
        repeated(facts, findings, requests);
    }
    for (at, now, what) in facts.each() {
        if let What::LossSeen { guard, reason: LossReason::Expired } = what {
            let held = &facts.guards[guard];
            let until = expired_rightly(facts, findings, at, now, held);
            let busy = 35 * MS; // a user does not look in the middle of its work
            // A task that waits for the answer to a conversion does not look either.
            let until = converted_until(facts, *guard, until).unwrap_or(until);
            let noticed = until + busy + facts.asleep_with(held, until, now);
            findings.add_unless(now <= noticed, at, format_args!("the end at {until} us is noticed late"));
        }
    }
}

/// Returns when the outcome of a conversion was known that was under way at that moment.
fn converted_until(facts: &Facts<'_>, guard: Guard, now: Micros) -> Option<Micros> {
    let asks = facts.attempts.values().filter(|attempt| attempt.wish.converts == Some(guard) && attempt.asked <= now);
    asks.filter_map(|attempt| attempt.ended).map(|(ended, _)| ended).filter(|ended| *ended >= now).max()
}

/// Checks that a failed renewal is repeated soon, and later after more failures. Another answer may confirm the hold
/// meanwhile: then the renewal is due as after that answer.
fn repeated(facts: &Facts<'_>, findings: &mut Findings, requests: &[&RequestFacts]) {
    let mut renewals: Vec<_> = requests.iter().filter(|request| request.op.is_renewal()).collect();
    // A renewal may fail when a later one was answered already.
    renewals.sort_by_key(|request| request.ended().unwrap_or(Micros::MAX));
    let mut pause = FIRST_RETRY;
    for pair in renewals.windows(2) {
        let [earlier, later] = pair else { continue };
        let Some(failed) = earlier.failed else {
            // An unknown hold may have been converted. That answer is neither a failure nor a confirmation.
            if !matches!(earlier.answered, Some((_, Reply::Lost { .. }))) {
                pause = FIRST_RETRY;
            }
            continue;
        };
        let confirmed = requests.iter().filter_map(|request| match &request.answered {
            Some((at, Reply::Granted { remaining_ms, .. })) if (failed..=later.sent).contains(at) => {
                Some(request.sent + first_due(remaining_ms * MS))
            }
            _ => None,
        });
        let confirmed = confirmed.max();
        let due = confirmed.unwrap_or_default().max(failed + pause);
        let excuse = facts.process(later.process).paused_within(failed, later.sent);
        findings.add_unless(
            later.sent <= due + GRAIN + excuse,
            later.index,
            format_args!("a renewal that failed at {failed} us was to be repeated by {due} us"),
        );
        pause = if confirmed.is_some() { FIRST_RETRY } else { RETRY.min(2 * pause) };
    }
}

/// Returns when the first renewal of a lease is due: after a third, and at most an eighth of that later.
fn first_due(lease: Micros) -> Micros {
    lease * 9 / 24 + 10 * MS
}

/// Checks that a guard had to end by the local clock, though its process did what it could. Returns until when the
/// guard was valid.
pub fn expired_rightly(
    facts: &Facts<'_>,
    findings: &mut Findings,
    at: usize,
    now: Micros,
    held: &GuardFacts,
) -> Micros {
    let process = facts.process(held.process);
    let vouched = facts.vouched(held.id, now);
    let until = vouched.min(facts.in_doubt_until(held, now));
    // A writer may have company if the outcome of its downgrade is unknown. No renewal extends that time.
    let left_open = held.mode == Mode::Write && facts.open_since(held, now).is_some_and(|since| since <= vouched);
    let confirmed = facts.about(held.id).filter_map(|request| match &request.answered {
        Some((when, Reply::Granted { remaining_ms, .. } | Reply::Renewed { remaining_ms, .. })) if *when < until => {
            Some((request.sent, *remaining_ms))
        }
        _ => None,
    });
    // Only a notification has confirmed it so far: its claim counts.
    let (confirmed, left_ms) = confirmed.max().unwrap_or_default();
    // A notification and an answer of the same moment count from different clock samples.
    findings.add_unless(now + GRAIN >= until, at, format_args!("lost before its local deadline at {until} us"));
    let lease = (held.wish.lease_ms * MS).min(held.wish.max_hold_ms * MS).min(left_ms * MS);
    let paused = process.paused_within(confirmed, now) > 0;
    let time_for_two = first_due(lease) + process.response_timeout + RETRY < process.usable(lease);
    let capped = held.wish.max_hold_ms <= held.wish.lease_ms * 2;
    let tries = facts.about(held.id).filter(|request| request.op.is_renewal() && request.sent > confirmed);
    findings.add_unless(
        paused || capped || left_open || !time_for_two || tries.count() >= 2,
        at,
        format_args!("lost without a second try to renew since {confirmed} us"),
    );
    // A claim is to be renewed, too.
    let lived = until.saturating_sub(held.granted) >= SECOND;
    let never = !facts.about(held.id).any(|request| request.op.is_renewal());
    findings.add_unless(!never || !lived || paused || capped, at, "lost, and nobody has tried to renew it");
    until
}
