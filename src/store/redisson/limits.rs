//! Options of a manager whose locks clients of Redisson share: what the format cannot carry, and the longest lease.

use std::time::Duration;

use crate::base::durability::Durability;
use crate::base::error::Result;
use crate::base::options::{Options, check_lease, invalid};
use crate::base::topology::Topology;

/// Default of `lockWatchdogTimeout` in Redisson.
const WATCHDOG: Duration = Duration::from_secs(30);
/// Shortest `lockWatchdogTimeout`, of which the margins leave enough for a hold.
const MIN_WATCHDOG: Duration = Duration::from_secs(1);

/// Returns the longest lease beside clients of Redisson whose `lockWatchdogTimeout` is `watchdog`.
///
/// A reader of Redisson sets the ttl of the lock to that time with each of its renewals, even if another reader has asked
/// for more. So no hold lasts longer than that after its last renewal. The engine renews a hold when a third of its lease
/// and up to an eighth of that third have passed. With this lease, it renews at least as often as Redisson does.
fn longest_lease(watchdog: Duration) -> Duration {
    watchdog / 9 * 8
}

/// Refuses what the format cannot carry, and limits the leases.
pub(crate) fn adapt(topology: &Topology, options: Options) -> Result<Options> {
    let watchdog = options.redisson_watchdog.unwrap_or(WATCHDOG);
    if watchdog < MIN_WATCHDOG {
        invalid("lock_watchdog_timeout", format!("{watchdog:?} is less than the minimum, {MIN_WATCHDOG:?}"))?;
    }
    if topology.is_proxied() {
        invalid("topology", "a proxy passes no messages on, by which clients of Redisson wake each other")?;
    }
    if options.timestamp_keys.is_some() {
        invalid("timestamp_keys", "the keys of Redisson are the names of the locks: name each lock by its key")?;
    }
    if options.durability == Durability::Server {
        let reason = "clients of Redisson count a grant without an answer about the storage, so a lock that they share \
                      never has this level: use `Durability::Primary` or `Replicated`";
        invalid("durability", reason)?;
    }
    options.check_not_cached("clients of Redisson cannot recall a cached hold: set zero")?;
    let longest_lease = longest_lease(watchdog);
    let lease = options.lease.min(longest_lease);
    // A limit that passes here suits every acquisition, whose own lease is checked and then shortened to it at most.
    if check_lease(lease, options.max_clock_skew).is_err() {
        let reason = format!(
            "with {watchdog:?} the longest lease is {longest_lease:?}, of which `max_clock_skew` ({:?}) and the other \
             margins leave less than half: make it longer, here and in Redisson",
            options.max_clock_skew
        );
        invalid("lock_watchdog_timeout", reason)?;
    }
    Ok(Options { redisson_watchdog: Some(watchdog), longest_lease, lease, ..options })
}
