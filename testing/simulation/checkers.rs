//! Checkers of the promises. Each promise has a number in the contract. The checkers know the history and the
//! assumptions, and nothing of the engine.

mod answers;
mod cached;
mod conversions;
mod denial;
mod ends;
mod exclusion;
mod facts;
mod fairness;
mod ghosts;
mod handover;
mod idempotence;
mod leftovers;
mod load;
mod losses;
mod queue;
mod quorum;
mod release;
mod retries;
mod runtimes;
mod starts;
mod tidiness;
mod tokens;

use std::fmt;

use super::history::History;
use facts::Facts;

/// Broken promise, with the index of the event that broke it.
#[derive(Clone, PartialEq, Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub at: usize,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] at event {}: {}", self.promise, self.at, self.text)
    }
}

/// Collects the violations that one checker finds.
struct Findings {
    promise: &'static str,
    found: Vec<Violation>,
}

impl Findings {
    fn of(promise: &'static str) -> Self {
        Self { promise, found: Vec::new() }
    }

    fn add(&mut self, at: usize, text: impl Into<String>) {
        self.found.push(Violation { promise: self.promise, at, text: text.into() });
    }

    fn add_unless(&mut self, holds: bool, at: usize, text: impl fmt::Display) {
        if !holds {
            self.add(at, text.to_string());
        }
    }
}

type Checker = fn(&Facts<'_>) -> Findings;

/// Checkers of what users see, whatever the servers are.
const OF_USERS: [Checker; 4] = [exclusion::overlaps, starts::nested, tidiness::ttl_and_end, tidiness::everybody_served];

/// Checkers of the only server, and of what its answers let users expect.
const OF_ONE_SERVER: [Checker; 47] = [
    exclusion::covered,
    tokens::grow,
    ends::of_holds,
    ends::of_guards,
    losses::answered,
    losses::own_newer_grant,
    losses::forced,
    losses::unconfirmed,
    conversions::lost,
    conversions::refused,
    conversions::reasons,
    conversions::in_doubt,
    starts::fresh,
    release::by_the_servers_answer,
    release::by_the_servers_answer_in_doubt,
    release::by_the_local_deadline,
    idempotence::copies,
    leftovers::none,
    ghosts::none,
    fairness::local_order,
    fairness::local_phases,
    fairness::sharing,
    fairness::budget,
    fairness::leases,
    queue::order,
    queue::bypasses,
    queue::claims,
    answers::waited_for,
    answers::looks,
    handover::at_once,
    handover::subscribed,
    retries::heartbeat,
    retries::unreachable,
    retries::renewals,
    denial::answered,
    denial::by_holders,
    runtimes::holds,
    runtimes::releases,
    runtimes::waiters,
    load::asks,
    load::failures,
    load::losses,
    cached::recalls,
    cached::forced,
    cached::tokens,
    cached::in_time,
    cached::given_up,
];

/// Checkers of a quorum.
const OF_QUORUM: [Checker; 3] = [quorum::tokens, quorum::forced, quorum::unnoticed];

/// Returns all violations, in the order of the history.
pub fn check(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let others: &[Checker] = if facts.quorum.is_some() { &OF_QUORUM } else { &OF_ONE_SERVER };
    let mut found: Vec<_> = OF_USERS.iter().chain(others).flat_map(|checker| checker(&facts).found).collect();
    found.sort_by_key(|violation| violation.at);
    found
}
