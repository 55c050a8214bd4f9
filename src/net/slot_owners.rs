//! Owners of slots: one node owns all slots, or each of several nodes owns some.

use std::sync::Arc;

use tokio::sync::watch;

use crate::net::fleet::{Fleet, SuspectReason};
use crate::net::node::Node;
use crate::net::slots::SlotMap;

/// Owners of all slots.
#[derive(Clone)]
pub(super) enum SlotOwners {
    /// Node that owns all slots.
    Single {
        node: Arc<Node>,
    },
    Many(Arc<Fleet>),
}

/// No function of this block waits for a request.
impl SlotOwners {
    pub(super) fn known_owner(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::Single { node } => Some(Arc::clone(node)),
            Self::Many(fleet) => fleet.node(&fleet.owner_address(slot)?).ok(),
        }
    }

    /// Returns true if no other node is known to own the slot.
    pub(super) fn leaves(&self, slot: u16, to: &Node) -> bool {
        match self {
            Self::Single { .. } => true,
            Self::Many(fleet) => fleet.may_own(slot, to),
        }
    }

    pub(super) fn suspects(&self, node: &Node) -> bool {
        match self {
            Self::Single { .. } => false,
            Self::Many(fleet) => fleet.suspects(node),
        }
    }

    /// Returns true if one node permanently owns all slots.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Single { .. })
    }

    /// Marks a node that did not answer as suspect.
    pub(super) fn suspect(&self, node: &Node) {
        if let Self::Many(fleet) = self {
            fleet.suspect(node, SuspectReason::Silent);
        }
    }

    /// Notes that the node `by` named another node as the owner of the slot.
    pub(super) fn on_moved(&self, slot: u16, address: &str, by: &Node) {
        if let Self::Many(fleet) = self {
            // An invalid address only causes another request for the slot map.
            drop(fleet.on_moved(slot, address, by.address()));
        }
    }

    /// Refreshes the slot map in the background, after a sign that owners have changed.
    pub(super) fn look(&self) {
        if let Self::Many(fleet) = self {
            fleet.look_in_background();
        }
    }

    /// Refreshes the slot map for a while after a change, until all members know of the change.
    pub(super) fn refresh_after_change(&self) {
        if let Self::Many(fleet) = self {
            fleet.refresh_after_change();
        }
    }

    /// Asks Sentinels for the primary in the background, without a sign of a change. Does nothing in a cluster.
    pub(super) fn look_from_time_to_time(&self) {
        if let Self::Many(fleet) = self {
            fleet.refresh_from_time_to_time();
        }
    }

    /// Yields the slot map when owners may have changed. `None` if one node permanently owns all slots.
    pub(super) fn changes(&self) -> Option<watch::Receiver<SlotMap>> {
        match self {
            Self::Single { .. } => None,
            Self::Many(fleet) => Some(fleet.changes()),
        }
    }
}
