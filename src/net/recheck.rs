//! Regular checks of the nodes that are in trouble. They do not depend on callers. The checks of a node end when the
//! node works again or is no longer a member.
//!
//! They are necessary for the gauge, which otherwise would keep its value for ever in two cases: in a process whose
//! callers make no requests, and after a primary was replaced, because no caller uses it any more. A check costs one
//! connection. While all nodes work, there is no task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::base::background_runtime::BackgroundRuntime;
use crate::net::conditions::Conditions;
use crate::net::fleet::Fleet;
use crate::net::node::Node;
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
    is_running: AtomicBool,
}

enum Nodes {
    Single(Weak<Node>),
    Many(Weak<Fleet>),
}

impl Recheck {
    /// Makes `outages` start the task whenever one of these nodes is in trouble.
    pub(super) fn install(
        slot_owners: &SlotOwners,
        background_runtime: &BackgroundRuntime,
        outages: &Arc<Outages>,
        conditions: &Arc<Conditions>,
    ) {
        let nodes = match slot_owners {
            SlotOwners::Single { node } => Nodes::Single(Arc::downgrade(node)),
            SlotOwners::Many(fleet) => Nodes::Many(Arc::downgrade(fleet)),
        };
        let recheck = Arc::new(Self {
            nodes,
            background_runtime: background_runtime.clone(),
            outages: Arc::downgrade(outages),
            conditions: Arc::clone(conditions),
            is_running: AtomicBool::new(false),
        });
        outages.on_trouble(Box::new(move || recheck.begin()));
    }

    fn begin(self: &Arc<Self>) {
        if !self.is_running.swap(true, Ordering::SeqCst) {
            let running = RecheckRun { recheck: Arc::clone(self), has_ended: false };
            self.background_runtime.spawn(running.run());
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

/// Guard of the running task. Marks the task as ended when it is dropped, for example because the runtime has ended.
struct RecheckRun {
    recheck: Arc<Recheck>,
    has_ended: bool,
}

impl RecheckRun {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some(nodes) = self.recheck.nodes_to_check() else { return };
            if nodes.is_empty() {
                self.recheck.is_running.store(false, Ordering::SeqCst);
                // A node may have got into trouble since the check. Its trouble started no new task, because this task
                // was still marked as running. So this task checks again.
                let is_idle = self.recheck.nodes_to_check().is_none_or(|nodes| nodes.is_empty());
                if is_idle || self.recheck.is_running.swap(true, Ordering::SeqCst) {
                    self.has_ended = true;
                    return;
                }
            }
            join_all(nodes.iter().map(|node| node.look_again())).await;
        }
    }
}

impl Drop for RecheckRun {
    fn drop(&mut self) {
        if !self.has_ended {
            self.recheck.is_running.store(false, Ordering::SeqCst);
        }
    }
}
