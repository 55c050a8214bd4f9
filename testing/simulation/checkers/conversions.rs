//! Checks conversions. A hold that is lost during its conversion is lost for a reason, and the answers and their times
//! show each reason.

use super::ends::is_right;
use super::retries::expired_rightly;
use super::*;

/// Delay that a timer may add.
const GRAIN: Micros = 5 * MS;

/// Conversion that ended with the loss of its hold.
struct LostConversion<'f> {
    old: &'f GuardFacts,
    reason: LossReason,
    /// Time and event at which the conversion ended.
    ended: Micros,
    index: usize,
    /// Requests that the conversion sent.
    asked: Vec<&'f RequestFacts>,
}

fn lost_conversions<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = (Attempt, Guard, LostConversion<'f>)> {
    facts.attempts.iter().filter_map(|(number, attempt)| {
        let (Some(guard), Some(End::Lost(reason)), Some((ended, index))) =
            (attempt.wish.converts, attempt.end, attempt.ended)
        else {
            return None;
        };
        let old = &facts.guards[&guard];
        let asked = facts.conversions_of(old.id).filter(|request| request.attempt == Some(*number)).collect();
        Some((*number, guard, LostConversion { old, reason, ended, index, asked }))
    })
}

impl LostConversion<'_> {
    /// Returns true if the server has answered that it does not know the hold.
    fn was_told(&self, facts: &Facts<'_>) -> bool {
        self.asked.iter().any(|request| matches!(request.answered, Some((_, Reply::Lost { .. }))))
            || self.was_told_by_renewal(facts)
    }

    /// Returns true if an answer about the old hold, or a newer grant to its process, shows that the hold is over.
    fn is_gone_by_answer(&self, facts: &Facts<'_>) -> bool {
        self.was_told_by_renewal(facts) || facts.is_overtaken(self.old, self.ended)
    }

    /// Returns true if the server answered a renewal of the old hold, by the end of the conversion, that it does not
    /// know it.
    fn was_told_by_renewal(&self, facts: &Facts<'_>) -> bool {
        facts.about(self.old.id).any(|request| match request.answered {
            Some((at, Reply::Lost { .. })) => request.op.is_renewal() && at <= self.ended,
            _ => false,
        })
    }

    /// Returns true if the server has answered that an operator ended the holds. It may never have known this one.
    fn was_told_of_force(&self, facts: &Facts<'_>) -> bool {
        let renewals = facts.about(self.old.id).filter(|request| request.op.is_renewal());
        self.asked.iter().copied().chain(renewals).any(|request| match request.answered {
            Some((at, Reply::Lost { forced })) => at <= self.ended && forced >= self.old.token,
            _ => false,
        })
    }

    /// Returns true if the new hold was over when its process received the answer.
    fn came_too_late(&self, facts: &Facts<'_>) -> bool {
        let process = facts.process(self.old.process);
        self.asked.iter().any(|request| match request.answered {
            Some((_, Reply::Granted { remaining_ms, .. })) => {
                request.sent + process.usable(remaining_ms * MS) <= self.ended + GRAIN
            }
            _ => false,
        })
    }

    /// Returns true if the old hold was over by the local clock. The server may have found that, too.
    fn is_over(&self, facts: &Facts<'_>) -> bool {
        let in_doubt_until = facts.in_doubt_until(self.old, self.ended - 1);
        facts.vouched(self.old.id, self.ended).min(in_doubt_until) <= self.ended
    }
}

/// Checks the reason of each lost conversion. `Gone` needs the server's answer, `Expired` needs a lease that ended
/// although the process tried everything, and so on.
pub fn lost(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, guard, conversion) in lost_conversions(facts) {
        let LostConversion { old, ended, index, .. } = conversion;
        let process = facts.process(old.process);
        let margins = old.wish.lease_ms * MS - process.usable(old.wish.lease_ms * MS);
        let is_capped = ended + margins + GRAIN >= old.root_asked + old.wish.max_hold_ms * MS;
        let is_closed = process.closing.is_some_and(|closing| closing <= ended);
        let is_forced = facts.forced_at(old.id, ended).is_some();
        let right = match conversion.reason {
            // The hold was lost before the conversion sent a request.
            reason if conversion.asked.is_empty() => is_right(facts, guard, reason, ended, false),
            LossReason::Expired if is_capped || conversion.came_too_late(facts) => true,
            LossReason::Expired => {
                // The last answer may come when the hold is over.
                expired_rightly(facts, findings, index, ended - 1, old);
                true
            }
            LossReason::MaxHold => is_capped,
            // The hold was released or over during the conversion.
            LossReason::Gone => {
                facts.loss_since(old.id, ended)
                    || is_forced
                    || is_closed
                    || is_capped
                    || conversion.is_over(facts)
                    || (facts.was_converted(old) && conversion.is_gone_by_answer(facts))
            }
            LossReason::Forced => is_forced || conversion.was_told_of_force(facts),
            LossReason::Closed => is_closed,
            // The simulation never forks a process.
            LossReason::Forked => false,
        };
        findings.add_unless(
            right,
            index,
            format_args!("attempt {number} to convert guard {guard} ends as {:?} for no reason", conversion.reason),
        );
    }
}

/// Checks that a refusal comes from the server, or from a guard or waiter of the same process.
pub fn refused(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, attempt) in &facts.attempts {
        let (Some(guard), Some(End::Conflict), Some((ended, index))) =
            (attempt.wish.converts, attempt.end, attempt.ended)
        else {
            continue;
        };
        let old = &facts.guards[&guard];
        let asked: Vec<_> = facts.conversions_of(old.id).filter(|request| request.attempt == Some(*number)).collect();
        let by_server = asked.iter().any(|request| matches!(request.answered, Some((_, Reply::Refused))));
        let others = facts.attempts.iter().any(|(other, of)| {
            let same = of.scope() == attempt.scope();
            let gone = match of.guard.map(|guard| &facts.guards[&guard]) {
                Some(guard) => guard.over,
                None => of.ended.map(|(at, _)| at),
            };
            other != number && same && of.asked <= ended && gone.is_none_or(|gone| gone >= attempt.asked)
        });
        let right = if asked.is_empty() { others } else { by_server };
        findings.add_unless(
            right,
            index,
            format_args!(
                "attempt {number} to convert guard {guard} ended because of others, and no answer named others"
            ),
        );
    }
}

/// Checks that errors claim no more than the answers said. An unknown outcome of a conversion is no answer of the
/// server. The guard reports the same reason as the error.
pub fn reasons(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, guard, conversion) in lost_conversions(facts) {
        let told = conversion.asked.is_empty() || conversion.was_told(facts) || conversion.is_gone_by_answer(facts);
        findings.add_unless(
            conversion.reason != LossReason::Gone || told,
            conversion.index,
            format_args!(
                "attempt {number} says that the server does not know guard {guard}, and the server has not said so"
            ),
        );
        let released = facts.each().skip(conversion.index).find_map(|(_, _, what)| match what {
            What::Released { guard: of, how: Released::Lost(reason) } if *of == guard => Some(*reason),
            _ => None,
        });
        findings.add_unless(
            released.is_none_or(|reason| reason == conversion.reason),
            conversion.index,
            format_args!(
                "attempt {number} says that guard {guard} ended as {:?}, and that as {released:?}",
                conversion.reason
            ),
        );
    }
}

/// Checks guards whose conversion was not answered. Such a guard reports the doubt until the server's answer resolves
/// it. A guard that writes is over.
pub fn in_doubt(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, attempt) in facts.attempts.iter().filter(|(_, attempt)| attempt.wish.converts.is_some()) {
        let (Some(End::Unreachable), Some((ended, index))) = (attempt.end, attempt.ended) else { continue };
        let retry_for = facts.process(attempt.process).unreachable_after;
        findings.add_unless(
            ended >= attempt.asked + retry_for,
            index,
            format_args!("attempt {number} to convert a guard gives up before its patience is over"),
        );
    }
    for (at, now, what) in facts.each() {
        let What::Sample { guard, valid: true, confirmed, .. } = *what else { continue };
        let held = &facts.guards[&guard];
        if facts.open_since(held, now).is_none_or(|since| now <= since) {
            continue;
        }
        findings.add_unless(
            !confirmed && held.mode == Mode::Read,
            at,
            format_args!("guard {guard} stands as ever, and nobody knows whether its hold was converted"),
        );
    }
}
