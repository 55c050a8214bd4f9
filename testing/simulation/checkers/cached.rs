//! Checks cached holds. The process learns of waiters, gives a recalled hold up in time, and no guard enters after
//! that. `docs/CACHED_HOLDS.md` has the times.

use super::*;

/// Time from a recall to the server's record that the hold is over, if nothing goes wrong.
const HOP: Micros = 100 * MS;
/// Time within which a waiter repeats its request and recalls.
const HEARTBEAT: Micros = 1_010 * MS;
/// Shortest time between two recalls of all waiters of one lock.
const PACE_MS: u64 = 500;
/// Time within which a renewal comes: three eighths of the longest lease.
const RENEWAL: Micros = 10 * SECOND * 3 / 8;

/// Returns true if the hold keeps the waiter out.
fn keeps_out(held: &Held, waiting: &Held) -> bool {
    held.mode == Mode::Write || waiting.mode == Mode::Write
}

/// Recallable flag of a lock: it counts while this is the last token. Also the time of the last recall.
#[derive(Clone, Copy, Default)]
struct KnownFlag {
    token: u64,
    recalled_ms: Option<u64>,
}

/// Checks that a waiter recalls a cached hold that keeps it out. All waiters together recall at most twice a second. An
/// attempt that only tries always recalls.
pub fn recalls(facts: &Facts<'_>, findings: &mut Findings) {
    // `None`: the flag that a replica has when it takes over is not known.
    let mut flags: BTreeMap<(u32, Lock), Option<KnownFlag>> = BTreeMap::new();
    for (at, _, what) in facts.each() {
        let What::Applied { primary, lock, op, reply, server_us, before, after, recalled, deposed: false, .. } = what
        else {
            continue;
        };
        let now_ms = server_us / 1000;
        let flag = flags.entry((*primary, *lock)).or_insert_with(|| (*primary == 0).then(KnownFlag::default));
        let since = flag.and_then(|flag| now_ms.checked_sub(flag.recalled_ms?));
        let is_early = since.is_some_and(|since| since < PACE_MS);
        let is_recallable = |seen: &Seen| flag.is_some_and(|flag| flag.token == seen.token);
        match (op, reply) {
            (Op::Acquire { id, tries, mode, .. }, Reply::Queued { .. }) if is_recallable(after) => {
                let inside = after.held.iter().any(|held| *mode == Mode::Write || held.mode == Mode::Write);
                let named = recalled.is_some_and(|recalled| recalled.tries == tries.then_some(*id));
                let right = if *tries || !is_early { named || !inside } else { recalled.is_none() };
                findings.add_unless(
                    right,
                    at,
                    format_args!("{op:?} is refused and recalls {recalled:?}, {since:?} ms later"),
                );
            }
            (Op::Acquire { .. }, _) => {
                findings.add_unless(
                    recalled.is_none() || flag.is_none(),
                    at,
                    format_args!("{op:?} is answered {reply:?} and recalls {recalled:?}"),
                );
            }
            (Op::Force { .. }, Reply::Forced(ended)) if is_recallable(before) => {
                let right = ended.is_empty() || recalled.is_some_and(|recalled| recalled.tries.is_none());
                findings.add_unless(right, at, format_args!("{ended:?} end by force, and no holder is recalled"));
            }
            _ => {}
        }
        if let (Some(flag), Some(Recalled { tries: None, .. }), Op::Acquire { .. }) = (flag.as_mut(), recalled, op) {
            flag.recalled_ms = Some(now_ms);
        }
        set_flag(flag, *op, reply, (before, after));
    }
}

/// Sets the recallable flag when a holder may cache its hold. The flag counts for holds with the same token, and
/// follows new tokens.
fn set_flag(flag: &mut Option<KnownFlag>, op: Op, reply: &Reply, (before, after): (&Seen, &Seen)) {
    let Some(is_waited_for) = reply.is_waited_for().filter(|_| op.caches()) else { return };
    if flag.is_none() && is_waited_for {
        // The time of the last recall is not known either.
        return;
    }
    let renews = op.is_renewal();
    let was_recallable = flag.filter(|flag| flag.token == if renews { before.token } else { after.token });
    let recalled_ms = was_recallable.filter(|_| is_waited_for).and_then(|flag| flag.recalled_ms);
    *flag = Some(KnownFlag { token: after.token, recalled_ms });
}

/// Checks that a force ends the writer that was seen, whatever tokens it has by now.
pub fn forced(facts: &Facts<'_>, findings: &mut Findings) {
    for (at, _, what) in facts.each() {
        let What::Applied { op: Op::Force { writer: Some(writer), .. }, after, .. } = what else { continue };
        let is_there = after.held.iter().any(|held| held.id == *writer);
        findings.add_unless(!is_there, at, format_args!("{writer:?} was seen, and stays"));
    }
}

/// Checks the tokens that renewals bring. They are the last that the server has given. Each writer's token is above
/// those of all earlier guards, whatever hold of whatever process they had.
pub fn tokens(facts: &Facts<'_>, findings: &mut Findings) {
    let mut highest: BTreeMap<Lock, u64> = BTreeMap::new();
    let mut began: BTreeMap<u64, Micros> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        for given in Given::by(what) {
            began.entry(given.token).or_insert(now);
        }
        match what {
            What::Applied { reply: Reply::Renewed { tokens: Some((first, count)), .. }, after, .. } => {
                let last = first + count - 1;
                findings.add_unless(after.token == last, at, format_args!("{last} is given, and {after:?} known"));
            }
            What::Granted { guard, id, token, .. } => {
                let held = &facts.guards[guard];
                let highest = highest.entry(held.wish.lock).or_default();
                let own_token = held.mode == Mode::Write && held.wish.within.is_none();
                let rises = if own_token { *token > *highest } else { *token >= *highest };
                // A process goes on with a hold that the server lost, or that an operator ended, until it learns of
                // that.
                let began = began.range(..=*token).next_back().map(|(_, began)| *began).unwrap_or_default();
                let is_lost = facts.losses.iter().any(|loss| began <= *loss && *loss <= now);
                let passed = facts.deposed.get(&held.wish.lock).is_some_and(|deposed| *highest <= *deposed);
                let excused = held.wish.within.is_some() || is_lost || passed || facts.excused(*id, now);
                findings.add_unless(
                    rises || excused,
                    at,
                    format_args!("guard {guard} has token {token} after {highest}"),
                );
                *highest = (*highest).max(*token);
            }
            _ => {}
        }
    }
}

/// Checks that no guard enters after the local end of the last answer.
pub fn in_time(facts: &Facts<'_>, findings: &mut Findings) {
    for (number, guard) in facts.guards.iter().filter(|(_, guard)| guard.wish.converts.is_none()) {
        if facts.process(guard.process).cache_for == 0 {
            continue;
        }
        let until = facts.vouched(guard.id, guard.granted);
        findings.add_unless(
            guard.granted <= until,
            guard.index,
            format_args!("guard {number} enters, and its hold is over at {until} us"),
        );
    }
}

/// Waiter, and the cached hold that keeps it out.
struct Wait {
    from: Micros,
    lock: Lock,
    held: Held,
}

/// Checks that a process gives up a cached hold when there is a waiter. It does so within one message, or within a
/// heartbeat if a recall is lost. The next renewal is the last time.
pub fn given_up(facts: &Facts<'_>, findings: &mut Findings) {
    let mut waits: BTreeMap<(Id, Id), Wait> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        let What::Applied { lock, before, after, server_us, .. } = what else { continue };
        for ((held, waiting), wait) in waits.iter().filter(|(_, wait)| wait.lock == *lock) {
            let still = before.held.iter().any(|other| other.id == *held);
            let waits = before.queue.iter().any(|other| other.id == *waiting);
            let by = if still && waits { due(facts, wait, now) } else { None };
            // A try that has learned of a guard inside recalls no holder, although it stays in the queue until its
            // release arrives.
            let has_left = |by: &Micros| leaves(facts, *waiting).any(|left| left <= *by);
            let by = by.filter(|by| !has_left(by));
            findings.add_unless(
                by.is_none_or(|by| now <= by),
                at,
                format_args!("{waiting:?} waits for {:?} since {} us, and nobody uses that", wait.held, wait.from),
            );
        }
        waits.retain(|(held, waiting), wait| {
            let is_there = after.held.iter().any(|other| other.id == *held);
            wait.lock != *lock || is_there && after.queue.iter().any(|other| other.id == *waiting)
        });
        let live = |held: &&Held| held.deadline_ms > server_us / 1000;
        for held in after.held.iter().filter(live) {
            for waiting in
                after.queue.iter().filter(|waiting| keeps_out(held, waiting) && waiting.id.process != held.id.process)
            {
                let wait = Wait { from: now, lock: *lock, held: *held };
                waits.entry((held.id, waiting.id)).or_insert(wait);
            }
        }
    }
}

/// Returns the times at which an acquisition sent its releases.
fn leaves(facts: &Facts<'_>, id: Id) -> impl Iterator<Item = Micros> {
    facts.about(id).filter(|request| request.op.is_leave()).map(|request| request.sent)
}

/// Returns the time by which an unused hold has to be given up. `None` if that is undefined: a guard uses it, or its
/// process does not have it.
fn due(facts: &Facts<'_>, wait: &Wait, now: Micros) -> Option<Micros> {
    let (id, lock) = (wait.held.id, wait.lock);
    let process = facts.process(id.process);
    let listening = facts.listening(id.process, lock)?;
    let over = facts.guards_of(id).map(|guard| guard.over).max()??;
    let from = wait.from.max(over);
    let is_used = facts.guards_of(id).any(|guard| guard.over.is_none_or(|over| over > from));
    let is_told = leaves(facts, id).any(|left| left <= now);
    // The hold was converted. If that primary is lost, the old record may be back, and no process has it.
    let is_converted = facts.requests.values().any(|request| {
        let is_granted = matches!(request.answered, Some((at, Reply::Granted { .. })) if at <= now);
        is_granted && matches!(request.op, Op::Conversion { old, .. } if old == id)
    });
    let is_away = process.crashed.is_some_and(|crashed| crashed <= now) || process.paused_within(from, now) > 0;
    let is_wanted = facts.is_wanted_here(id.process, lock, from.saturating_sub(SECOND), now);
    let is_elsewhere = is_told || is_converted || is_away;
    if is_used || is_elsewhere || is_wanted || from >= now || facts.is_troubled(from.saturating_sub(RENEWAL), now) {
        return None;
    }
    let missed = Micros::try_from(listening.missed(from.saturating_sub(HEARTBEAT), now)).expect("few");
    let is_subscribed = listening.was_live(from.saturating_sub(HEARTBEAT), now);
    // A waiter that repeats its request just after a lost recall sends no recall. The process learns of this waiter one
    // heartbeat later.
    let by_recall = from + missed * (HEARTBEAT + PACE_MS * MS) + HOP;
    let by_renewal = from + RENEWAL + process.response_timeout + HOP;
    let has_failed =
        facts.about(id).any(|request| request.failed.is_some_and(|failed| failed >= from.saturating_sub(RENEWAL)));
    match (is_subscribed, has_failed) {
        (true, _) => Some(by_recall),
        (false, false) => Some(by_renewal),
        (false, true) => None,
    }
}
