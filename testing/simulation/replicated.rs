//! Level at which a replica must acknowledge grants. A failover loses no hold at this level.

use super::*;

/// Promises that the level adds or could break. The runs without the level check the others.
const JUDGED: [&str; 2] = ["1 exclusion", "1 validity"];

fn broken(seed: u64, mutant: Option<Mutant>) -> (super::History, Vec<Violation>) {
    let history = run(seed, REPLICATED, mutant);
    let mut violations = checkers::check(&history);
    violations.retain(|violation| JUDGED.contains(&violation.promise));
    (history, violations)
}

#[test]
fn no_failover_makes_two_holders() {
    for seed in seeds_or(seeds_of_build(200)) {
        let (history, violations) = broken(seed, None);
        assert_unbroken((seed, REPLICATED), &history, &violations);
    }
}

#[test]
fn what_counts_too_early_is_noticed() {
    for mutant in mutants::REPLICATED {
        let noticed = (0..200).find(|seed| !broken(*seed, Some(mutant)).1.is_empty());
        assert!(noticed.is_some(), "{mutant:?} is not noticed");
    }
}
