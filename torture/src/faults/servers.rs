//! Faults by a command to one server or to all servers.

use std::thread::sleep;
use std::time::Duration;

use cluster_testenv::{Node, wait_for};
use fastrand::Rng;

use super::network::any;
use super::{Fault, Mixes, Scene, left};
use crate::Result;
use crate::field::Field;

pub(super) const ALL: &[Fault] = &[
    left("script-flush", Mixes::Yes, script_flush, "all servers forget all scripts, ten times"),
    left("out-of-memory", Mixes::Yes, out_of_memory, "a server has no memory for 1 s"),
    left("acl", Mixes::Yes, acl, "a server lets nobody run scripts for 1 s"),
];

const WHILE: Duration = Duration::from_secs(1);
/// Limit for an order. It is longer than the restart of a server that another fault has killed.
const OBEYING: Duration = Duration::from_secs(15);

/// Gives an order to a server, and waits if the server is down.
fn order(node: &Node, what: impl Fn(&Node) -> cluster_testenv::Result<()>) -> Result<()> {
    let mut answer = String::new();
    let obeyed = wait_for("", OBEYING, || what(node).map_err(|error| answer = error.to_string()).ok());
    obeyed.map_err(|_| format!("{} does not obey: {answer}", node.addr()).into())
}

/// Gives an order as [`order`] does, but skips a killed server. Such a server has forgotten the earlier order, so it
/// needs no new order.
fn order_if_there(node: &Node, what: impl Fn(&Node) -> cluster_testenv::Result<()>) -> Result<()> {
    order(node, |node| if node.is_running() { what(node) } else { Ok(()) })
}

fn script_flush(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    for _ in 0..10 {
        scene.field.nodes().iter().try_for_each(|node| order_if_there(node, Node::script_flush))?;
        sleep(WHILE / 10);
    }
    Ok(())
}

fn out_of_memory(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let node = any(scene, rng);
    order(node, |node| node.set_memory_limit(1))?;
    sleep(WHILE);
    order_if_there(node, |node| node.set_memory_limit(0))
}

fn acl(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let node = any(scene, rng);
    order(node, |node| node.acl_set_user("default", &["-eval", "-evalsha"]))?;
    sleep(WHILE);
    order_if_there(node, Field::let_scripts_run)
}
