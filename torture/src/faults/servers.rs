//! Faults by a command to one server or to all servers.

use super::*;

pub(super) const ALL: &[Fault] = &[
    mixing("script-flush", script_flush, "all servers forget all scripts, ten times"),
    mixing("out-of-memory", out_of_memory, "a server has no memory for 1 s"),
    mixing("acl", acl, "a server lets nobody run scripts for 1 s"),
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

fn script_flush(scene: &mut Scene<'_>) -> Result<()> {
    for _ in 0..10 {
        scene.field.nodes().iter().try_for_each(|node| order_if_there(node, Node::script_flush))?;
        sleep(WHILE / 10);
    }
    Ok(())
}

fn out_of_memory(scene: &mut Scene<'_>) -> Result<()> {
    let node = scene.any();
    order(node, |node| node.set_memory_limit(1))?;
    sleep(WHILE);
    order_if_there(node, |node| node.set_memory_limit(0))
}

fn acl(scene: &mut Scene<'_>) -> Result<()> {
    let node = scene.any();
    order(node, |node| node.acl_set_user("default", &["-eval", "-evalsha"]))?;
    sleep(WHILE);
    order_if_there(node, Field::let_scripts_run)
}
