//! Promise 3: a hold ends only by release, lease, `max_hold`, `close` or force. Renewal never re-creates and never
//! shortens; nobody's lease is cut or stretched by another's.

use std::collections::BTreeMap;

use super::Findings;
use super::facts::{Facts, MS, id_of};
use crate::error::LossReason;
use crate::simulation::history::{End, Guard, Held, Lock, Micros, News, Op, Released, Reply, Seen, What};

/// 1 % and 2 ms of the longest lease.
const LONGEST_MARGINS: Micros = 102 * MS;

/// On the server.
pub(super) fn of_holds(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("3 ends of holds");
    let mut last: BTreeMap<Lock, Vec<Held>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        match what {
            What::Applied { lock, op, reply, server_us, before, after, news, .. } => {
                let now_ms = server_us / 1000;
                if let Some(last) = last.get(lock) {
                    let live: Vec<_> = last.iter().filter(|held| held.deadline_ms > now_ms).copied().collect();
                    // A clock that went back finds holds live again that it has seen expire.
                    let kept = live.iter().all(|held| before.held.contains(held));
                    findings.add_unless(kept, at, || format!("{live:?} became {before:?} between two requests"));
                }
                of_request(&mut findings, at, (*op, reply), now_ms, (before, after), news);
                last.insert(*lock, after.held.clone());
            }
            What::Emptied | What::Stale { .. } => last.clear(),
            _ => {}
        }
    }
    findings
}

fn of_request(
    findings: &mut Findings,
    at: usize,
    (op, reply): (Op, &Reply),
    now_ms: u64,
    (before, after): (&Seen, &Seen),
    news: &[News],
) {
    let own = id_of(op);
    let old = if let Op::Turn { old, .. } = op { Some(old) } else { None };
    let find = |held: &[Held]| held.iter().find(|held| Some(held.id) == own).copied();
    let (was, is) = (find(&before.held), find(&after.held));
    let (waited, waits) = (find(&before.queue).is_some(), find(&after.queue).is_some());
    let others = || before.held.iter().filter(|held| Some(held.id) != own);
    let all_others_kept = others().all(|held| after.held.contains(held));
    let others_kept = match (op, reply) {
        (Op::Force { .. }, _) => true,
        (Op::Turn { .. }, Reply::Granted { .. }) => {
            others().filter(|held| Some(held.id) != old).all(|held| after.held.contains(held))
        }
        _ => all_others_kept,
    };
    findings.add_unless(others_kept, at, || format!("others had {before:?} and have {after:?}"));
    let told = |held: &Held| news.iter().any(|news| news.id == held.id && news.deadline_ms <= held.deadline_ms);
    let known = |held: &Held| before.held.iter().any(|before| before.id == held.id) || told(held);
    let all_known = after.held.iter().all(|held| Some(held.id) == own || known(held));
    findings.add_unless(all_known, at, || format!("{before:?} became {after:?} and nobody is told"));
    let was_told = news.iter().any(|news| Some(news.id) == own);
    let right = match (op, reply) {
        (Op::Renew { .. }, Reply::Lost) => was.is_none() && is.is_none(),
        (Op::Leave { .. }, Reply::None) => was.is_none() && is.is_none() && !waited && !waits,
        (Op::Renew { lease_ms, .. }, Reply::Renewed { .. }) | (Op::Acquire { lease_ms, .. }, Reply::Granted { .. }) => {
            let renews = matches!(op, Op::Renew { .. });
            let least = was.map_or(0, |was| was.deadline_ms);
            // Let in by this very request, with what it had asked for before.
            let claim = news.iter().find(|news| Some(news.id) == own).map_or(0, |news| news.deadline_ms);
            let most = least.max(claim).max(now_ms + lease_ms);
            (was.is_some() || !renews) && is.is_some_and(|is| (least..=most).contains(&is.deadline_ms))
        }
        (Op::Turn { old, .. }, Reply::Granted { .. }) => {
            let had = before.held.iter().any(|held| held.id == old);
            let has = after.held.iter().any(|held| held.id == old);
            is.is_some() && (was.is_some() || (had && !has))
        }
        (Op::Turn { .. }, Reply::Refused | Reply::Lost) => is.is_none() || was_told,
        (Op::Acquire { .. }, Reply::Queued { .. }) => is.is_none() && waits,
        (Op::Acquire { .. }, Reply::Contended { .. }) => is.is_none() || is.map(|is| is.mode) != mode_of(op),
        (Op::Acquire { .. } | Op::Turn { .. }, Reply::Late) | (Op::Inspect | Op::Time, _) => after == before,
        (Op::Leave { .. }, Reply::Held) => was.is_some() && is.is_none(),
        (Op::Leave { .. }, Reply::Waited) => was.is_none() && waited && !waits && is.is_none(),
        (Op::Force { .. }, Reply::Forced(ended)) if ended.is_empty() => all_others_kept,
        (Op::Force { .. }, Reply::Forced(ended)) => {
            after.held.iter().all(told)
                && ended.len() == before.held.len()
                && before.held.iter().all(|held| ended.contains(&held.id))
        }
        _ => false,
    };
    findings.add_unless(right, at, || format!("{op:?} is answered {reply:?}: {before:?} became {after:?}"));
}

fn mode_of(op: Op) -> Option<crate::scheme::Mode> {
    match op {
        Op::Acquire { mode, .. } | Op::Turn { mode, .. } => Some(mode),
        _ => None,
    }
}

/// In users' hands.
pub(super) fn of_guards(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::of("3 ends of guards");
    let by_id = facts.by_id();
    for (at, now, what) in facts.each() {
        match what {
            What::LossSeen { guard, reason } | What::Released { guard, how: Released::Lost(reason) } => {
                let held = &facts.guards[guard];
                let (id, lock) = (held.id, held.wish.lock);
                let process = facts.process(held.process);
                let releasing = matches!(what, What::Released { .. });
                let right = match reason {
                    // A release that is not answered in time finds nothing, and cannot tell why. What is answered in the
                    // same moment is heard too late.
                    LossReason::Gone => {
                        facts.excused(id, lock, now)
                            || (releasing
                                && now >= facts.vouched(id, &by_id[&id], held.over.map_or(now, |over| over - 1)))
                            || turned_without_answer(facts, *guard)
                    }
                    // That of a hold that was given back unheard, too, if it came before.
                    LossReason::Forced => facts.operators.iter().any(|(forced, when)| *forced == lock && *when <= now),
                    LossReason::Closed => process.closing.is_some_and(|closing| closing <= now),
                    // The hold's own end may come first, by the margins of the longest lease.
                    LossReason::MaxHold => {
                        now + MS + LONGEST_MARGINS + process.clock_margin
                            >= held.root_asked + held.wish.max_hold_ms * MS
                    }
                    // Judged by what was renewed when.
                    LossReason::Expired => true,
                };
                findings.add_unless(right, at, || format!("nothing makes guard {guard} end as {reason:?}"));
            }
            What::Sample { guard, valid: true, .. } => {
                let held = &facts.guards[guard];
                let closing = facts.process(held.process).closing;
                findings.add_unless(closing.is_none_or(|closing| now <= closing), at, || {
                    format!("guard {guard} is valid though its manager is closed")
                });
                let ends = held.root_granted + held.wish.max_hold_ms * MS;
                findings.add_unless(now <= ends, at, || format!("guard {guard} is valid beyond its longest time"));
            }
            _ => {}
        }
    }
    findings
}

/// Whether it was to be turned and it is not known what came of that.
fn turned_without_answer(facts: &Facts<'_>, guard: Guard) -> bool {
    let mut turns = facts.attempts.values().filter(|attempt| attempt.wish.turns == Some(guard));
    turns.any(|attempt| matches!(attempt.end, Some(End::Lost | End::Cut)))
}
