//! Looks again at nodes with which something is wrong, used or not, until each is right or no member any more.
//!
//! A process with nothing to do asks nobody, and a primary that was replaced is asked by nobody: without this its gauge would
//! stay as it was for ever. A look costs one connection. While all is well there is no task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::home::Home;
use crate::transport::conditions::Conditions;
use crate::transport::fleet::Fleet;
use crate::transport::node::Node;
use crate::transport::outages::Outages;
use crate::transport::slot_owners::SlotOwners;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// Most nodes that are looked at at a time.
const MAX_NODES: usize = 8;

/// The nodes of one router, and the task that looks at them.
pub(super) struct Recheck {
    nodes: Nodes,
    home: Home,
    outages: Weak<Outages>,
    conditions: Arc<Conditions>,
    is_running: AtomicBool,
}

enum Nodes {
    Single(Weak<Node>),
    Many(Weak<Fleet>),
}

impl Recheck {
    /// Lets the task begin whenever something is wrong with one of these nodes.
    pub(super) fn install(slot_owners: &SlotOwners, home: &Home, outages: &Arc<Outages>, conditions: &Arc<Conditions>) {
        let nodes = match slot_owners {
            SlotOwners::Single { node } => Nodes::Single(Arc::downgrade(node)),
            SlotOwners::Many(fleet) => Nodes::Many(Arc::downgrade(fleet)),
        };
        let recheck = Arc::new(Self {
            nodes,
            home: home.clone(),
            outages: Arc::downgrade(outages),
            conditions: Arc::clone(conditions),
            is_running: AtomicBool::new(false),
        });
        outages.on_trouble(Box::new(move || recheck.begin()));
    }

    fn begin(self: &Arc<Self>) {
        if !self.is_running.swap(true, Ordering::SeqCst) {
            let running = Running { recheck: Arc::clone(self), has_ended: false };
            self.home.spawn(running.run());
        }
    }

    /// The nodes to look at; `None` when their owner is gone.
    fn concerned(&self) -> Option<Vec<Arc<Node>>> {
        let outages = self.outages.upgrade()?;
        let mut addresses = outages.addresses();
        addresses.extend(self.conditions.concerned());
        addresses.sort();
        addresses.dedup();
        fastrand::shuffle(&mut addresses);
        Some(match &self.nodes {
            // The conditions may be those of several nodes that know nothing of each other.
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

/// The task. Its end is marked also when its runtime drops it.
struct Running {
    recheck: Arc<Recheck>,
    has_ended: bool,
}

impl Running {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some(nodes) = self.recheck.concerned() else { return };
            if nodes.is_empty() {
                self.recheck.is_running.store(false, Ordering::SeqCst);
                // Trouble that began meanwhile found the task there.
                let is_idle = self.recheck.concerned().is_none_or(|nodes| nodes.is_empty());
                if is_idle || self.recheck.is_running.swap(true, Ordering::SeqCst) {
                    self.has_ended = true;
                    return;
                }
            }
            join_all(nodes.iter().map(|node| node.look_again())).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.recheck.is_running.store(false, Ordering::SeqCst);
        }
    }
}
