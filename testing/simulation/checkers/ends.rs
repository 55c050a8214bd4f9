//! Promise 3: a hold ends only by release, lease, `max_hold`, `close` or force. Renewal never re-creates and never
//! shortens. No owner cuts or stretches the lease of another.

use super::*;

/// Margins of the longest lease: 1 % and 2 ms.
const LONGEST_MARGINS: Micros = 102 * MS;

/// Checks the ends of holds on the server.
#[allow(clippy::single_match)] // as in the other checkers
pub fn of_holds(facts: &Facts<'_>, findings: &mut Findings) {
    let mut last: BTreeMap<(u32, Lock), Vec<Held>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        match what {
            What::Applied { primary, lock, op, reply, server_us, before, after, notifications, .. } => {
                let now_ms = server_us / 1000;
                if let Some(last) = last.get(&(*primary, *lock)) {
                    let live: Vec<_> = last.iter().filter(|held| held.deadline_ms > now_ms).copied().collect();
                    // After a step back of the clock, holds are live again that the server has seen expire.
                    let remain = live.iter().all(|held| before.held.contains(held));
                    findings.add_unless(remain, at, format_args!("{live:?} became {before:?} between two requests"));
                }
                of_request(findings, (at, facts.small_batches), (*op, reply), now_ms, (before, after), notifications);
                last.insert((*primary, *lock), after.held.clone());
            }
            _ => {}
        }
    }
}

fn of_request(
    findings: &mut Findings,
    (at, small_batches): (usize, bool),
    (op, reply): (Op, &Reply),
    now_ms: u64,
    (before, after): (&Seen, &Seen),
    notifications: &[SentGrant],
) {
    let own = id_of(op);
    let old = if let Op::Conversion { old, .. } = op { Some(old) } else { None };
    let find = |held: &[Held]| held.iter().find(|held| Some(held.id) == own).copied();
    let (was, is) = (find(&before.held), find(&after.held));
    let (waited, waits) = (find(&before.queue).is_some(), find(&after.queue).is_some());
    let others = || before.held.iter().filter(|held| Some(held.id) != own);
    let all_others_remain = others().all(|held| after.held.contains(held));
    let others_remain = match (op, reply) {
        (Op::Force { .. }, _) => true,
        (Op::Conversion { .. }, Reply::Granted { .. }) => {
            others().filter(|held| Some(held.id) != old).all(|held| after.held.contains(held))
        }
        _ => all_others_remain,
    };
    findings.add_unless(others_remain, at, format_args!("others had {before:?} and have {after:?}"));
    let told =
        |held: &Held| notifications.iter().any(|sent| sent.id == held.id && sent.deadline_ms <= held.deadline_ms);
    let known = |held: &Held| before.held.iter().any(|before| before.id == held.id) || told(held);
    let all_known = after.held.iter().all(|held| Some(held.id) == own || known(held));
    findings.add_unless(all_known, at, format_args!("{before:?} became {after:?} without a notification"));
    let was_told = notifications.iter().any(|notification| Some(notification.id) == own);
    let right = match (op, reply) {
        (Op::Renew { .. }, Reply::Lost { .. }) => was.is_none() && is.is_none(),
        (Op::Leave { .. }, Reply::None { .. }) => was.is_none() && is.is_none() && !waited && !waits,
        (Op::Renew { lease_ms, .. }, Reply::Renewed { .. }) | (Op::Acquire { lease_ms, .. }, Reply::Granted { .. }) => {
            let renews = op.is_renewal();
            let least = was.map_or(0, |was| was.deadline_ms);
            // This request lets the waiter in, with the lease that it had asked for before.
            let claim = notifications
                .iter()
                .find(|notification| Some(notification.id) == own)
                .map_or(0, |notification| notification.deadline_ms);
            let right = least.max(claim).max(now_ms + lease_ms);
            (was.is_some() || !renews) && is.is_some_and(|is| is.deadline_ms == right) && left(reply) == right - now_ms
        }
        (Op::Conversion { old, lease_ms, .. }, Reply::Granted { .. }) => {
            let right = was.map_or(0, |was| was.deadline_ms).max(now_ms + lease_ms);
            // The old id may wait in the queue of a replica, and this request lets it in.
            let had = before.held.iter().chain(&before.queue).any(|held| held.id == old);
            let has = after.held.iter().any(|held| held.id == old);
            is.is_some_and(|is| is.deadline_ms == right)
                && left(reply) == right - now_ms
                && (was.is_some() || (had && !has))
        }
        (Op::Conversion { .. }, Reply::Refused | Reply::Lost { .. }) => is.is_none() || was_told,
        (Op::Acquire { .. }, Reply::Queued { .. }) => is.is_none() && waits,
        (Op::Acquire { .. }, Reply::Contended { .. }) => is.is_none() || is.map(|is| is.mode) != mode_of(op),
        (Op::Acquire { .. } | Op::Conversion { .. }, Reply::Late) | (Op::Inspect | Op::Time, _) => after == before,
        (Op::Leave { .. }, Reply::Held) => was.is_some() && is.is_none(),
        (Op::Leave { .. }, Reply::Waited) => was.is_none() && waited && !waits && is.is_none(),
        (Op::Force { .. }, Reply::Forced(ended)) if ended.is_empty() => all_others_remain,
        // In a crowd, holds are over before their records are removed.
        (Op::Force { .. }, Reply::Forced(_)) if small_batches => after.held.iter().all(told),
        (Op::Force { .. }, Reply::Forced(ended)) => {
            after.held.iter().all(told)
                && ended.len() == before.held.len()
                && before.held.iter().all(|held| ended.contains(&held.id))
        }
        _ => false,
    };
    findings.add_unless(right, at, format_args!("{op:?} is answered {reply:?}: {before:?} became {after:?}"));
}

/// Returns the remaining lease that an answer reports.
fn left(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { remaining_ms, .. } | Reply::Renewed { remaining_ms, .. } => *remaining_ms,
        _ => 0,
    }
}

fn mode_of(op: Op) -> Option<crate::store::Mode> {
    match op {
        Op::Acquire { mode, .. } | Op::Conversion { mode, .. } => Some(mode),
        _ => None,
    }
}

/// Checks the ends of guards in the hands of users.
pub fn of_guards(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, now, what) in facts.each() {
        match what {
            What::LossSeen { guard, reason } | What::Released { guard, how: Released::Lost(reason) } => {
                let right = is_right(facts, *guard, *reason, now, matches!(what, What::Released { .. }));
                findings.add_unless(right, at, format_args!("nothing makes guard {guard} end as {reason:?}"));
            }
            What::Sample { guard, valid: true, .. } => {
                let held = &facts.guards[guard];
                let closing = facts.process(held.process).closing;
                findings.add_unless(
                    closing.is_none_or(|closing| now <= closing),
                    at,
                    format_args!("guard {guard} is valid though its manager is closed"),
                );
                let ends = held.root_granted + held.wish.max_hold_ms * MS;
                findings.add_unless(now <= ends, at, format_args!("guard {guard} is valid beyond its longest time"));
            }
            _ => {}
        }
    }
}

/// Returns true if an event explains this loss reason of a guard.
pub fn is_right(facts: &Facts<'_>, guard: Guard, reason: LossReason, now: Micros, releasing: bool) -> bool {
    let held = &facts.guards[&guard];
    let id = held.id;
    let process = facts.process(held.process);
    match reason {
        // A release that is not answered in time finds nothing, and cannot know why. An answer of the same moment comes
        // too late.
        LossReason::Gone => {
            let over = held.over.map_or(now, |over| over - 1);
            facts.loss_since(id, now)
                || (releasing && now >= facts.vouched(id, over))
                || converted_without_answer(facts, guard)
                // A replaced primary has granted another hold to the process.
                || facts.overtakers(held, now).any(|other| facts.loss_since(other.id, now))
                || (facts.forced_at(id, now).is_some()
                    && (began_anew(facts, held, now) || facts.is_overtaken(held, now)))
        }
        // `losses::forced` judges this by the answers.
        LossReason::Forced => true,
        LossReason::Closed => process.closing.is_some_and(|closing| closing <= now),
        // The simulation never forks a process.
        LossReason::Forked => false,
        // The end of the hold may come first, by the margins of the longest lease.
        LossReason::MaxHold => {
            now + MS + LONGEST_MARGINS + process.max_clock_skew >= held.root_asked + held.wish.max_hold_ms * MS
        }
        // `retries::renewals` judges this by the renewals and their times.
        LossReason::Expired => true,
    }
}

/// Returns true if a repeat was answered with another grant or with none. Then the earlier hold was over, and the
/// answer does not say why.
pub fn began_anew(facts: &Facts<'_>, held: &GuardFacts, now: Micros) -> bool {
    facts.about(held.id).any(|request| {
        let (Op::Acquire { .. }, Some((at, reply))) = (request.op, &request.answered) else { return false };
        let tells = match reply {
            Reply::Granted { token, tokens, .. } => !(*token..token + tokens).contains(&held.token),
            Reply::Contended { .. } | Reply::Queued { .. } => *at > held.granted,
            _ => false,
        };
        tells && *at <= now
    })
}

/// Returns true if the guard was to be converted and the outcome is unknown.
fn converted_without_answer(facts: &Facts<'_>, guard: Guard) -> bool {
    let asked = |attempt| facts.conversions_of(facts.guards[&guard].id).any(|request| request.attempt == Some(attempt));
    let mut conversions = facts.attempts.iter().filter(|(_, attempt)| attempt.wish.converts == Some(guard));
    conversions.any(|(number, attempt)| match attempt.end {
        // A copy converted the hold, and its answer never arrived.
        Some(End::Lost(LossReason::Gone) | End::Unreachable) => {
            asked(*number) && facts.was_converted(&facts.guards[&guard])
        }
        end => end == Some(End::Cut),
    })
}
