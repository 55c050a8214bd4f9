//! Regular checks of the nodes that are in trouble. They do not depend on callers. The checks of a node end when the
//! node works again or is no longer a member.
//!
//! They are necessary for the gauge, which otherwise would keep its value for ever in two cases: in a process whose
//! callers make no requests, and after a primary was replaced, because no caller uses it any more. A check costs one
//! connection. While all nodes work, there is no task.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::base::background_runtime::BackgroundRuntime;
use crate::base::single_task::{Running, SingleTask};
use crate::net::conditions::Conditions;
use crate::net::fleet::Fleet;
use crate::net::node::{Node, NodeSetup};
use crate::net::outages::Outages;
use crate::net::slot_owners::SlotOwners;

/// Pause between two checks of the same node.
const PAUSE: Duration = Duration::from_secs(10);
/// Limit for the nodes that are checked at the same time.
const MAX_NODES: usize = 8;

/// Nodes of one router, with the task that checks those in trouble.
pub(super) struct Recheck {
    nodes: Nodes,
    background_runtime: BackgroundRuntime,
    outages: Weak<Outages>,
    conditions: Arc<Conditions>,
    task: SingleTask,
}

enum Nodes {
    Single(Weak<Node>),
    Many(Weak<Fleet>),
}

impl Recheck {
    /// Makes the outages start the task whenever one of these nodes is in trouble.
    pub(super) fn install(slot_owners: &SlotOwners, setup: &NodeSetup) {
        let nodes = match slot_owners {
            SlotOwners::Single(node) => Nodes::Single(Arc::downgrade(node)),
            SlotOwners::Many(fleet) => Nodes::Many(Arc::downgrade(fleet)),
        };
        let recheck = Arc::new(Self {
            nodes,
            background_runtime: setup.background_runtime.clone(),
            outages: Arc::downgrade(&setup.outages),
            conditions: Arc::clone(&setup.conditions),
            task: SingleTask::default(),
        });
        setup.outages.on_trouble(Box::new(move || recheck.begin()));
    }

    fn begin(self: &Arc<Self>) {
        if let Some(running) = self.task.begin() {
            self.background_runtime.spawn(Arc::clone(self).run(running));
        }
    }

    async fn run(self: Arc<Self>, mut running: Running) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some(nodes) = self.nodes_to_check() else { return };
            if nodes.is_empty() {
                let has_nodes = || self.nodes_to_check().is_some_and(|nodes| !nodes.is_empty());
                let Some(goes_on) = running.end_unless(has_nodes) else { return };
                running = goes_on;
            }
            join_all(nodes.iter().map(|node| node.look_again())).await;
        }
    }

    /// Returns the nodes to check. Returns `None` if the router was dropped.
    fn nodes_to_check(&self) -> Option<Vec<Arc<Node>>> {
        let outages = self.outages.upgrade()?;
        let mut addresses = outages.addresses();
        addresses.extend(self.conditions.servers_with_findings());
        addresses.sort();
        addresses.dedup();
        fastrand::shuffle(&mut addresses);
        Some(match &self.nodes {
            // The conditions may include other independent servers, which have routers and checks of their own.
            Nodes::Single(node) => {
                let node = node.upgrade()?;
                addresses.iter().any(|address| **address == *node.address()).then_some(node).into_iter().collect()
            }
            Nodes::Many(fleet) => {
                let fleet = fleet.upgrade()?;
                addresses.iter().take(MAX_NODES).filter_map(|address| fleet.passing_node(address).ok()).collect()
            }
        })
    }
}
