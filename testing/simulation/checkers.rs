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

use facts::{AttemptFacts, Facts, Given, GuardFacts, MS, QuorumFacts, RequestFacts, SECOND, Trust, id_of};

use super::*;

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

/// Collects the violations that the checkers find.
#[derive(Default)]
struct Findings {
    promise: &'static str,
    found: Vec<Violation>,
}

impl Findings {
    /// Names the promise that the next findings break.
    fn of(&mut self, promise: &'static str) -> &mut Self {
        self.promise = promise;
        self
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

/// Promise, and the function that judges it.
type Checker = (&'static str, fn(&Facts<'_>, &mut Findings));

/// Checkers of what users see, whatever the servers are.
const OF_USERS: [Checker; 4] = [
    ("1 exclusion", exclusion::overlaps),
    ("3 nested guards", starts::nested),
    ("9 tidiness", tidiness::ttl_and_end),
    ("service", tidiness::everybody_served),
];

/// Checkers of the only server, and of what its answers let users expect.
const OF_ONE_SERVER: [Checker; 47] = [
    ("1 validity", exclusion::covered),
    ("2 tokens", tokens::grow),
    ("3 ends of holds", ends::of_holds),
    ("3 ends of guards", ends::of_guards),
    ("3 answered losses", losses::answered),
    ("3 own newer grant", losses::own_newer_grant),
    ("3 forced", losses::forced),
    ("8 unconfirmed", losses::unconfirmed),
    ("3 lost conversions", conversions::lost),
    ("denial of conversions", conversions::refused),
    ("4 reasons of conversions", conversions::reasons),
    ("4 conversions in doubt", conversions::in_doubt),
    ("3 fresh guards", starts::fresh),
    ("4 release", release::by_the_servers_answer),
    ("4 release in doubt", release::by_the_servers_answer_in_doubt),
    ("4 release of a share", release::by_the_local_deadline),
    ("4 idempotence", idempotence::copies),
    ("5 leftovers", leftovers::none),
    ("5 ghosts", ghosts::none),
    ("6 local order", fairness::local_order),
    ("6 local phases", fairness::local_phases),
    ("6 sharing", fairness::sharing),
    ("6 budget", fairness::budget),
    ("3 leases of guards", fairness::leases),
    ("6 queue", queue::order),
    ("6 bypass", queue::bypasses),
    ("5 dead waiters", queue::claims),
    ("6 waited for", answers::waited_for),
    ("inspect", answers::looks),
    ("7 hand-over", handover::at_once),
    ("7 subscription", handover::subscribed),
    ("7 heartbeat", retries::heartbeat),
    ("8 unreachable", retries::unreachable),
    ("8 renewal", retries::renewals),
    ("denial", denial::answered),
    ("denial by nobody", denial::by_holders),
    ("11 holds", runtimes::holds),
    ("11 releases", runtimes::releases),
    ("11 waiters", runtimes::waiters),
    ("10 asks", load::asks),
    ("10 failed asks", load::failures),
    ("10 losses", load::losses),
    ("cached: recalls", cached::recalls),
    ("cached: force", cached::forced),
    ("cached: tokens", cached::tokens),
    ("cached: validity", cached::in_time),
    ("cached: given up", cached::given_up),
];

/// Checkers of a quorum.
const OF_QUORUM: [Checker; 3] =
    [("2 tokens", quorum::tokens), ("3 forced", quorum::forced), ("quorum", quorum::unnoticed)];

/// Returns all violations, in the order of the history.
pub fn check(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let others: &[Checker] = if facts.quorum.is_some() { &OF_QUORUM } else { &OF_ONE_SERVER };
    let mut findings = Findings::default();
    for (promise, judge) in OF_USERS.iter().chain(others) {
        judge(&facts, findings.of(promise));
    }
    findings.found.sort_by_key(|violation| violation.at);
    findings.found
}
