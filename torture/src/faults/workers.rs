//! Faults of the workers.

use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;

use super::network::millis;
use super::{Fault, Mixes, Scene, left};
use crate::{LEASE, Result};

pub(super) const ALL: &[Fault] = &[
    left("kill-worker", Mixes::Yes, kill, "a worker process is killed (kill -9); another one comes a lease later"),
    left(
        "stop-worker",
        Mixes::Yes,
        stop,
        "a worker process is stopped for longer than its lease, and goes on. What it then writes without a fence may undo others'",
    ),
];

fn kill(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    scene.crew.kill(rng.usize(..scene.crew.len()))?;
    sleep(LEASE);
    Ok(())
}

fn stop(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let how_long = LEASE + millis(rng, 200, 1000);
    scene.crew.stop_for(rng.usize(..scene.crew.len()), how_long)?;
    // The first moments of the resumed worker belong to the fault.
    sleep(Duration::from_millis(500));
    Ok(())
}
