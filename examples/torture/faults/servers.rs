//! Faults by command, at one server or all.

use std::thread::sleep;
use std::time::Duration;

use cluster_testenv::Node;
use fastrand::Rng;

use super::network::any;
use super::{Fault, Mixes, Scene, left};
use crate::Result;

pub(super) const ALL: &[Fault] = &[
    left("script-flush", Mixes::Yes, script_flush, "all servers forget all scripts, ten times"),
    left("out-of-memory", Mixes::Yes, out_of_memory, "a server has no memory for 1 s"),
    left("acl", Mixes::Yes, acl, "a server lets nobody run scripts for 1 s"),
];

const WHILE: Duration = Duration::from_secs(1);

fn script_flush(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    for _ in 0..10 {
        scene.field.nodes().iter().filter(|node| node.is_running()).try_for_each(Node::script_flush)?;
        sleep(WHILE / 10);
    }
    Ok(())
}

fn out_of_memory(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let node = any(scene, rng);
    node.set_memory_limit(1)?;
    sleep(WHILE);
    Ok(node.set_memory_limit(0)?)
}

fn acl(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let node = any(scene, rng);
    node.acl_set_user("default", &["-eval", "-evalsha"])?;
    sleep(WHILE);
    Ok(node.acl_set_user("default", &["+eval", "+evalsha"])?)
}
