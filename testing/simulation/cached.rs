//! Runs with cached holds. All other promises hold as in runs without them, even if recalls and subscriptions fail. A
//! process gives up a recalled hold in time.

use super::*;

/// Returns the profile of one process alone with its cached holds, while the server is away for a while and is
/// replaced.
pub fn alone(_: u64) -> Profile {
    Profile::caching_in(Scene::UsedAlone)
}

#[test]
fn promises_hold_with_cached_holds() {
    assert_promises_hold(seeds_or(seeds_of_build(160)), Profile::caching);
}

#[test]
fn promises_hold_where_one_process_is_alone() {
    assert_promises_hold(0..5, alone);
}
