//! Promise 2: tokens strictly increase from phase to phase, across loss of the key too. Readers of a phase share one.

use super::*;

/// Compares the token of a grant with that of its phase, or with the highest so far.
fn judge_grant(grant: &Given, expected: Option<u64>, highest: u64, at: usize, findings: &mut Findings) {
    match expected {
        Some(expected) => findings.add_unless(
            grant.token == expected,
            at,
            format_args!("{:?} has token {} in the phase of {expected}", grant.id, grant.token),
        ),
        None => findings.add_unless(
            grant.token > highest,
            at,
            format_args!("a phase begins with token {} after {highest}", grant.token),
        ),
    }
}

pub fn grow(facts: &Facts<'_>, findings: &mut Findings) {
    let mut highest: BTreeMap<Lock, u64> = BTreeMap::new();
    let mut given: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
    let mut given_by_deposed: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
    // Blocks that a hold has had before the last, and blocks that a renewal at a deposed primary has brought.
    let mut earlier: BTreeMap<Id, Vec<(u64, u64)>> = BTreeMap::new();
    let mut began: BTreeMap<u64, Micros> = BTreeMap::new();
    let mut passed: BTreeMap<Id, u64> = BTreeMap::new();
    for (at, now, what) in facts.each() {
        match what {
            What::Applied { deposed, lock, op, before, after, reply, .. } => {
                let highest = highest.entry(*lock).or_default();
                if let (Op::Renew { id, .. }, Reply::Renewed { tokens: Some(block), .. }) = (op, reply) {
                    // A block of a deposed primary is independent of the blocks of its successor.
                    let before = if *deposed { Some(*block) } else { given.insert(*id, *block) };
                    earlier.entry(*id).or_default().extend(before);
                    brings(block, *deposed, highest, at, findings);
                }
                let grants = Given::by(what);
                if *deposed {
                    given_by_deposed.extend(grants.iter().map(|grant| (grant.id, (grant.token, grant.tokens))));
                    continue;
                }
                let mut phase = phase_of((before, after), *op, &given);
                for grant in &grants {
                    judge_grant(grant, expected(grant, before, &given, phase), *highest, at, findings);
                    if grant.mode == Mode::Read {
                        phase = Some(grant.token);
                    }
                    *highest = (*highest).max(grant.token + grant.tokens - 1);
                    // After the loss of its key, a repeat of a hold gets a new token. Readers of its process may have
                    // joined before the answer.
                    earlier.entry(grant.id).or_default().extend(given.insert(grant.id, (grant.token, grant.tokens)));
                    began.entry(grant.token).or_insert(now);
                }
            }
            What::Granted { guard, id, token, .. } => {
                let held = &facts.guards[guard];
                let blocks = [given.get(id), given_by_deposed.get(id)];
                let within = |(first, tokens): &(u64, u64)| (*first..first + tokens).contains(token);
                let is_earlier = earlier.get(id).is_some_and(|blocks| blocks.iter().any(within));
                findings.add_unless(
                    is_earlier || blocks.into_iter().flatten().any(within),
                    at,
                    format_args!("guard {guard} has token {token}, the servers gave {blocks:?}"),
                );
                let is_turn = held.mode == Mode::Write && held.wish.within.is_none();
                let last = if is_turn { passed.insert(*id, *token) } else { None };
                let rises = last.is_none_or(|last| last < *token);
                findings.add_unless(rises, at, format_args!("guard {guard}'s turn has token {token} after {last:?}"));
                let outer = held.wish.within.map(|outer| facts.guards[&outer].token);
                let is_outer = outer.is_none_or(|outer| outer == *token);
                findings.add_unless(is_outer, at, format_args!("{token} is nested in {outer:?}"));
            }
            What::Fenced { guard, valid: true, token, accepted: false } => {
                findings.add_unless(
                    may_be_rejected(facts, *guard, *token, &began, now),
                    at,
                    format_args!("the resource rejects token {token} of guard {guard}, which is valid"),
                );
            }
            _ => {}
        }
    }
}

/// Returns true if the resource may reject a token. `began` has the time of the first grant of each token.
fn may_be_rejected(facts: &Facts<'_>, guard: Guard, token: u64, began: &BTreeMap<u64, Micros>, now: Micros) -> bool {
    let guard = &facts.guards[&guard];
    let began = began.range(..=token).next_back().map(|(_, began)| *began).unwrap_or_default();
    // A replica that is behind may restore a read phase that others have overtaken, and readers may join it.
    let overtaken = facts.losses.iter().any(|loss| began <= *loss && *loss <= now);
    // A process that does not know the new primary goes on, with the later token.
    let passed = facts.deposed.get(&guard.wish.lock).is_some_and(|deposed| token <= *deposed);
    overtaken || passed || facts.excused(guard.id, now)
}

/// Checks a block of tokens from a renewal: it is above all before, unless a deposed primary grants it.
fn brings((first, count): &(u64, u64), deposed: bool, highest: &mut u64, at: usize, findings: &mut Findings) {
    if deposed {
        return;
    }
    findings.add_unless(*first > *highest, at, format_args!("a renewal brings token {first} after {highest}"));
    *highest = first + count - 1;
}

/// Returns the token that a grant must have. `None` means that the token must only be higher than all earlier tokens.
fn expected(grant: &Given, before: &Seen, given: &BTreeMap<Id, (u64, u64)>, phase: Option<u64>) -> Option<u64> {
    let is_there = before.held.iter().any(|held| held.id == grant.id);
    match given.get(&grant.id).filter(|_| is_there) {
        Some((token, _)) => Some(*token),
        None if grant.mode == Mode::Read => phase,
        None => None,
    }
}

/// Returns the token of the read phase that is there and goes on.
fn phase_of((before, after): (&Seen, &Seen), op: Op, given: &BTreeMap<Id, (u64, u64)>) -> Option<u64> {
    let ends = match op {
        Op::Force { seen, .. } if before.token <= seen => return None,
        Op::Leave { id } => Some(id),
        Op::Conversion { old, .. } => Some(old).filter(|old| after.held.iter().all(|held| held.id != *old)),
        _ => None,
    };
    let mut readers = before.held.iter().filter(|held| held.mode == Mode::Read && Some(held.id) != ends);
    readers.find_map(|held| given.get(&held.id)).map(|(token, _)| *token)
}
