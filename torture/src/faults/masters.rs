//! Faults of independent masters.

use std::thread::sleep;

use cluster_testenv::Node;
use fastrand::Rng;

use super::network::millis;
use super::{Fault, Mixes, Scene, left, right};
use crate::tasks::LOCKS;
use crate::{LEASE, Result};

const ALL: &[Fault] = &[
    left("kill-one", Mixes::No, |scene, rng| kill(scene, rng, 1), "one of five is killed and comes back with its data"),
    left(
        "kill-two",
        Mixes::No,
        |scene, rng| kill(scene, rng, 2),
        "two of five are killed and come back with their data",
    ),
    left("late-empty", Mixes::No, late_empty, "two of five are killed and come back without their data, a lease later"),
    left("empty", Mixes::No, empty, "two of five are killed and come back without their data at once"),
    left(
        "all-empty",
        Mixes::No,
        all_empty,
        "all five are killed and come back without their data at once: nobody is granted anything for a lease",
    ),
    left("pause-one", Mixes::No, |scene, rng| pause(scene, rng, 1), "one of five stands still (SIGSTOP) for up to 4 s"),
    left("pause-two", Mixes::No, |scene, rng| pause(scene, rng, 2), "two of five stand still for up to 4 s"),
    left(
        "pause-three",
        Mixes::No,
        |scene, rng| pause(scene, rng, 3),
        "three of five stand still: nobody is granted anything",
    ),
    left("hole-two", Mixes::No, hole_two, "what goes to two of five or comes from them vanishes for 2 s"),
    right("flush", flush, "FLUSHALL at three of five"),
    right("delete", delete, "the keys of the locks are deleted at three of five"),
];

pub(super) fn all() -> Vec<Fault> {
    ALL.to_vec()
}

fn some<'a>(scene: &Scene<'a>, rng: &mut Rng, count: usize) -> Vec<&'a Node> {
    let mut nodes: Vec<_> = scene.field.nodes().iter().collect();
    rng.shuffle(&mut nodes);
    nodes.truncate(count);
    nodes
}

fn kill(scene: &Scene<'_>, rng: &mut Rng, count: usize) -> Result<()> {
    let nodes = some(scene, rng, count);
    nodes.iter().for_each(|node| node.kill());
    sleep(millis(rng, 500, 3000));
    Ok(nodes.into_iter().try_for_each(Node::restart)?)
}

fn late_empty(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let nodes = some(scene, rng, 2);
    nodes.iter().for_each(|node| node.kill());
    sleep(LEASE);
    Ok(nodes.into_iter().try_for_each(Node::restart_empty)?)
}

fn empty(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    some(scene, rng, 2).into_iter().try_for_each(Node::restart_empty)?;
    // The master votes again when all holds that it may have forgotten have expired.
    sleep(LEASE);
    Ok(())
}

fn all_empty(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    some(scene, rng, 5).into_iter().try_for_each(Node::restart_empty)?;
    sleep(LEASE + LEASE / 2);
    Ok(())
}

fn pause(scene: &Scene<'_>, rng: &mut Rng, count: usize) -> Result<()> {
    let nodes = some(scene, rng, count);
    nodes.iter().for_each(|node| node.pause());
    sleep(millis(rng, 500, 4000));
    nodes.iter().for_each(|node| node.resume());
    Ok(())
}

fn hole_two(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let nodes = some(scene, rng, 2);
    nodes.iter().for_each(|node| node.proxy().black_hole());
    sleep(millis(rng, 1000, 3000));
    nodes.iter().for_each(|node| node.proxy().heal());
    Ok(())
}

fn flush(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    some(scene, rng, 3).into_iter().try_for_each(Node::flush_all)?;
    sleep(LEASE / 2);
    Ok(())
}

fn delete(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let nodes = some(scene, rng, 3);
    for lock in 0..LOCKS {
        scene.field.delete(lock, &nodes)?;
    }
    sleep(LEASE / 2);
    Ok(())
}
