//! Owners of slots. Either one node owns all slots, or each of several nodes owns some of them.

use std::sync::Arc;

use tokio::sync::watch;

use crate::net::fleet::Fleet;
use crate::net::node::Node;
use crate::net::slots::SlotMap;

/// All known owners of slots.
#[derive(Clone)]
pub(super) enum SlotOwners {
    /// Node that permanently owns all slots.
    Single(Arc<Node>),
    Many(Arc<Fleet>),
}

/// Functions that return at once: none of them waits for an answer of a server.
impl SlotOwners {
    pub(super) fn single(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Single(node) => Some(node),
            Self::Many(_) => None,
        }
    }

    pub(super) fn fleet(&self) -> Option<&Arc<Fleet>> {
        match self {
            Self::Single(_) => None,
            Self::Many(fleet) => Some(fleet),
        }
    }

    pub(super) fn known_owner(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::Single(node) => Some(Arc::clone(node)),
            Self::Many(fleet) => fleet.node(&fleet.owner_address(slot)?).ok(),
        }
    }

    /// Returns true if `to` may be the owner of the slot, because no other node is known to own it.
    pub(super) fn leaves(&self, slot: u16, to: &Node) -> bool {
        self.fleet().is_none_or(|fleet| fleet.may_own(slot, to))
    }

    pub(super) fn suspects(&self, node: &Node) -> bool {
        self.fleet().is_some_and(|fleet| fleet.suspects(node))
    }

    /// Returns true if all slots have one owner, though it may change. Plain channels of this owner then reach all
    /// subscribers.
    pub(super) fn has_one_primary(&self) -> bool {
        self.fleet().is_none_or(|fleet| fleet.sentinels.is_some())
    }

    /// Yields the slot map when owners may have changed. Returns `None` if one node permanently owns all slots.
    pub(super) fn changes(&self) -> Option<watch::Receiver<SlotMap>> {
        self.fleet().map(|fleet| fleet.map.subscribe())
    }
}
