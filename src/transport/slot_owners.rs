//! Who owns which slot: one node all of them, or one of several each.

use std::sync::Arc;

use tokio::sync::watch;

use crate::transport::fleet::{Doubt, Fleet};
use crate::transport::node::Node;
use crate::transport::slots::SlotMap;

/// Who owns what.
#[derive(Clone)]
pub(super) enum SlotOwners {
    /// One node owns everything.
    Single {
        node: Arc<Node>,
    },
    Many(Arc<Fleet>),
}

/// What is known without asking anybody.
impl SlotOwners {
    pub(super) fn known_owner(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::Single { node } => Some(Arc::clone(node)),
            Self::Many(fleet) => fleet.node(&fleet.owner_address(slot)?).ok(),
        }
    }

    /// Whether no other node is known to own the slot.
    pub(super) fn leaves(&self, slot: u16, to: &Node) -> bool {
        match self {
            Self::Single { .. } => true,
            Self::Many(fleet) => fleet.leaves(slot, to),
        }
    }

    pub(super) fn suspects(&self, node: &Node) -> bool {
        match self {
            Self::Single { .. } => false,
            Self::Many(fleet) => fleet.suspects(node),
        }
    }

    /// Whether one node owns everything, for good.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Single { .. })
    }

    /// A node was silent.
    pub(super) fn suspect(&self, node: &Node) {
        if let Self::Many(fleet) = self {
            fleet.suspect(node, Doubt::Silent);
        }
    }

    /// A node says that another owns the slot.
    pub(super) fn moved(&self, slot: u16, address: &str, by: &Node) {
        if let Self::Many(fleet) = self {
            // An address that is none is asked for again, and the caller with it.
            drop(fleet.moved(slot, address, by.address()));
        }
    }

    /// Somebody may own other slots than is known: asks, in the background.
    pub(super) fn look(&self) {
        if let Self::Many(fleet) = self {
            fleet.look_in_background();
        }
    }

    /// The same, for as long as it takes until all have heard of what one has done.
    pub(super) fn look_for_news(&self) {
        if let Self::Many(fleet) = self {
            fleet.look_for_news();
        }
    }

    /// The same, though nothing speaks for it.
    pub(super) fn look_from_time_to_time(&self) {
        if let Self::Many(fleet) = self {
            fleet.look_from_time_to_time();
        }
    }

    /// Tells when owners may have changed; `None` where they never do.
    pub(super) fn changes(&self) -> Option<watch::Receiver<SlotMap>> {
        match self {
            Self::Single { .. } => None,
            Self::Many(fleet) => Some(fleet.changes()),
        }
    }
}
