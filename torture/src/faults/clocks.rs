//! Faults of the servers' clocks.
//!
//! A run cannot step the clock of a worker, so it stops the worker instead.

use std::thread::sleep;

use fastrand::Rng;

use super::network::{any, millis};
use super::{Fault, Mixes, Scene, left, right};
use crate::{LEASE, Result};

pub(super) const ALL: &[Fault] = &[
    left(
        "clock-steps",
        Mixes::Yes,
        steps,
        "a server's clock is stepped forward and back by less than `max_clock_skew`, six times",
    ),
    right("clock-ahead", ahead, "the clocks of all servers are stepped forward by a lease, and stay there"),
];

/// Steps in milliseconds within `max_clock_skew`, which is 100 ms.
const WITHIN_MARGIN: (u64, u64) = (20, 80);

fn steps(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    for _ in 0..6 {
        let clock = any(scene, rng).clock();
        let step = millis(rng, WITHIN_MARGIN.0, WITHIN_MARGIN.1);
        clock.step_forward(step);
        sleep(millis(rng, 50, 500));
        clock.step_back(step);
        sleep(millis(rng, 0, 200));
    }
    Ok(())
}

/// Steps all clocks ahead, and not back again, so that tokens also grow by the clock.
fn ahead(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    scene.field.nodes().iter().for_each(|node| node.clock().step_forward(LEASE));
    sleep(LEASE / 2);
    Ok(())
}
