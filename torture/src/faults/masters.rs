//! Faults of independent masters.

use super::*;

pub(super) const ALL: &[Fault] = &[
    left("kill-one", |scene| kill(scene, 1), "one of five is killed and comes back with its data"),
    left("kill-two", |scene| kill(scene, 2), "two of five are killed and come back with their data"),
    left("late-empty", late_empty, "two of five are killed and come back without their data, a lease later"),
    left("empty", empty, "two of five are killed and come back without their data at once"),
    left(
        "all-empty",
        all_empty,
        "all five are killed and come back without their data at once: nobody is granted anything for a lease",
    ),
    left("pause-one", |scene| pause(scene, 1), "one of five stands still (SIGSTOP) for up to 4 s"),
    left("pause-two", |scene| pause(scene, 2), "two of five stand still for up to 4 s"),
    left("pause-three", |scene| pause(scene, 3), "three of five stand still: nobody is granted anything"),
    left("hole-two", hole_two, "what goes to two of five or comes from them vanishes for 2 s"),
    right("flush", flush, "FLUSHALL at three of five"),
    right("delete", delete, "the keys of the locks are deleted at three of five"),
];

fn some<'a>(scene: &mut Scene<'a>, count: usize) -> Vec<&'a Node> {
    let mut nodes: Vec<_> = scene.field.nodes().iter().collect();
    scene.rng.shuffle(&mut nodes);
    nodes.truncate(count);
    nodes
}

fn kill(scene: &mut Scene<'_>, count: usize) -> Result<()> {
    let nodes = some(scene, count);
    nodes.iter().for_each(|node| node.kill());
    scene.sleep(500, 3000);
    Ok(nodes.into_iter().try_for_each(Node::restart)?)
}

fn late_empty(scene: &mut Scene<'_>) -> Result<()> {
    let nodes = some(scene, 2);
    nodes.iter().for_each(|node| node.kill());
    sleep(LEASE);
    Ok(nodes.into_iter().try_for_each(Node::restart_empty)?)
}

fn empty(scene: &mut Scene<'_>) -> Result<()> {
    some(scene, 2).into_iter().try_for_each(Node::restart_empty)?;
    // The master votes again when all holds that it may have forgotten have expired.
    done_after(LEASE)
}

fn all_empty(scene: &mut Scene<'_>) -> Result<()> {
    some(scene, 5).into_iter().try_for_each(Node::restart_empty)?;
    done_after(LEASE + LEASE / 2)
}

fn pause(scene: &mut Scene<'_>, count: usize) -> Result<()> {
    let nodes = some(scene, count);
    nodes.iter().for_each(|node| node.pause());
    scene.sleep(500, 4000);
    nodes.iter().for_each(|node| node.resume());
    Ok(())
}

fn hole_two(scene: &mut Scene<'_>) -> Result<()> {
    let nodes = some(scene, 2);
    nodes.iter().for_each(|node| node.proxy().black_hole());
    scene.sleep(1000, 3000);
    nodes.iter().for_each(|node| node.proxy().heal());
    Ok(())
}

fn flush(scene: &mut Scene<'_>) -> Result<()> {
    some(scene, 3).into_iter().try_for_each(Node::flush_all)?;
    done_after(LEASE / 2)
}

fn delete(scene: &mut Scene<'_>) -> Result<()> {
    let nodes = some(scene, 3);
    for lock in 0..LOCKS {
        scene.field.delete(lock, &nodes)?;
    }
    done_after(LEASE / 2)
}
