//! Faults of the servers' clocks.
//!
//! A run cannot step the clock of a worker, so it stops the worker instead.

use super::*;

pub(super) const ALL: &[Fault] = &[
    mixing(
        "clock-steps",
        steps,
        "a server's clock is stepped forward and back by less than `max_clock_skew`, six times",
    ),
    right("clock-ahead", ahead, "the clocks of all servers are stepped forward by a lease, and stay there"),
];

/// Steps in milliseconds within `max_clock_skew`, which is 100 ms.
const WITHIN_MARGIN: (u64, u64) = (20, 80);

fn steps(scene: &mut Scene<'_>) -> Result<()> {
    for _ in 0..6 {
        let clock = scene.any().clock();
        let step = scene.millis(WITHIN_MARGIN.0, WITHIN_MARGIN.1);
        clock.step_forward(step);
        scene.sleep(50, 500);
        clock.step_back(step);
        scene.sleep(0, 200);
    }
    Ok(())
}

/// Steps all clocks ahead, and not back again, so that tokens also grow by the clock.
fn ahead(scene: &mut Scene<'_>) -> Result<()> {
    scene.field.nodes().iter().for_each(|node| node.clock().step_forward(LEASE));
    done_after(LEASE / 2)
}
