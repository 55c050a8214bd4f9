//! Runs with several masters, of which a quorum decides. The masters know nothing of each other. They die, stand still
//! and come back with their data or without, and processes are cut off from some of them.

mod scenes;

use super::*;

#[test]
fn promises_hold_at_a_quorum() {
    assert_promises_hold(seeds_or(seeds_of_build(240)), Profile::quorum);
}

#[test]
fn promises_hold_at_a_quorum_of_which_processes_are_cut_off() {
    assert_promises_hold(seeds_or(seeds_of_build(240)), |_| CUT_OFF);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn everything_happens_at_a_quorum() {
    let expected = [
        "Granted",
        "Failed Busy",
        "Failed TimedOut",
        "Failed Cut",
        "Failed Unreachable",
        "Failed Conflict",
        "Failed Lost(Expired)",
        "LossSeen Expired",
        "LossSeen Forced",
        "Converted to write",
        "Converted to read",
        "Released Ours",
        "Released Unreachable",
        "Down",
        "Emptied",
        "Frozen",
        "SlowServer",
        "Cut",
        "ForceDone",
        "RequestLost",
        "ReplyLost",
    ];
    assert_all_happen(48, Profile::quorum, expected);
}

#[test]
fn same_seed_same_run_at_a_quorum() {
    for seed in 0..4 {
        assert_same(seed, Profile::quorum(seed));
    }
}
