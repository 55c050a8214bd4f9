//! Where holds stay when their last guard has left: what all others rely on is as without, whatever becomes of calls and subscriptions.

use super::checkers::{self, Violation};
use super::mutants::{self, Mutant};
use super::profile::Profile;
use super::{report, run};

/// What is not judged by the rules that hold without: holds outlive their guards and are renewed, writers have more turns than the
/// budget says where nobody waits, readers join beyond the share window, and what is given back is told later.
const OTHERWISE: [&str; 6] = ["11 releases", "5 ghosts", "5 leftovers", "6 budget", "6 sharing", "9 tidiness"];

fn broken(seed: u64, mutant: Option<Mutant>) -> (super::History, Vec<Violation>) {
    let history = run(seed, Profile::kept(seed), mutant);
    let mut violations = checkers::check(&history);
    violations.retain(|violation| !OTHERWISE.contains(&violation.promise));
    (history, violations)
}

#[test]
fn promises_are_kept_where_holds_stay() {
    let many = std::env::var("SEEDS").ok().and_then(|many| many.parse().ok()).unwrap_or(150);
    for seed in 0..many {
        let (history, violations) = broken(seed, None);
        if let Some(report) = report((seed, Profile::kept(seed)), &history, &violations) {
            panic!("{report}");
        }
    }
}

#[test]
fn wrong_tokens_and_validity_are_noticed_where_holds_stay() {
    for mutant in mutants::KEPT {
        let noticed = (0..200).find(|seed| !broken(*seed, Some(mutant)).1.is_empty());
        assert!(noticed.is_some(), "{mutant:?} is not noticed");
    }
}

#[test]
#[ignore = "replays one seed: SEED=123 cargo test --lib simulation::kept::replay -- --nocapture --ignored"]
fn replay() {
    let seed = std::env::var("SEED").expect("SEED says which one").parse().expect("a number");
    let (history, violations) = broken(seed, None);
    if std::env::var("WHOLE").is_ok() {
        println!("{}", history.text());
    }
    if let Some(report) = report((seed, Profile::kept(seed)), &history, &violations) {
        panic!("{report}");
    }
}
