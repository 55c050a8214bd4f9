//! Faults of the workers.

use super::*;

pub(super) const ALL: &[Fault] = &[
    mixing("kill-worker", kill, "a worker process is killed (kill -9); another one comes a lease later"),
    mixing(
        "stop-worker",
        stop,
        "a worker process is stopped for longer than its lease, and goes on. What it then writes without a fence may undo others'",
    ),
];

fn kill(scene: &mut Scene<'_>) -> Result<()> {
    scene.crew.kill(scene.rng.usize(..scene.crew.len()))?;
    done_after(LEASE)
}

fn stop(scene: &mut Scene<'_>) -> Result<()> {
    let how_long = LEASE + scene.millis(200, 1000);
    scene.crew.stop_for(scene.rng.usize(..scene.crew.len()), how_long)?;
    // The first moments of the resumed worker belong to the fault.
    done_after(Duration::from_millis(500))
}
