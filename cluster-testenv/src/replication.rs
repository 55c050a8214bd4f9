//! Compares the replicas' data with the writes of their primary.
//!
//! The comparison uses offsets, because `WAIT` covers only the writes of its own connection. On a connection without
//! writes, `WAIT` returns at once.

use crate::{Node, Reply, Result};

/// Returns a fault of the replication, if there is one. Each replica must follow the primary, and must have all writes
/// of the primary up to now.
pub fn complaint(primary: &Node, replicas: &[&Node]) -> Result<Option<String>> {
    // The primary's offset is read first, because the replicas need not have later writes.
    let written = Role::of(primary)?;
    let Role::Primary { offset, followers } = written else {
        return Ok(Some(format!("{} is no primary", primary.addr())));
    };
    if followers < replicas.len() {
        return Ok(Some(format!("{followers} of {} replicas follow {}", replicas.len(), primary.addr())));
    }
    for replica in replicas {
        let found = Role::of(replica)?;
        if !matches!(found, Role::Replica { offset: reached } if reached >= offset) {
            return Ok(Some(format!("replica {} is at {found:?}, its primary at {offset}", replica.addr())));
        }
    }
    Ok(None)
}

impl Node {
    /// Returns true if the node itself says that it is a primary.
    pub(crate) fn is_primary(&self) -> Result<bool> {
        Ok(matches!(Role::of(self)?, Role::Primary { .. }))
    }
}

/// Answer to ROLE.
#[derive(Debug)]
enum Role {
    /// Primary with its offset, and the number of replicas that have copied all data and follow.
    Primary { offset: i64, followers: usize },
    /// Replica that has carried out all writes up to this offset.
    Replica { offset: i64 },
    /// Replica without a link, or replica that still copies the data.
    Unlinked,
}

impl Role {
    fn of(node: &Node) -> Result<Self> {
        let reply = node.ask(&["ROLE"])?;
        Self::parse(&reply).ok_or_else(|| reply.unexpected())
    }

    fn parse(reply: &Reply) -> Option<Self> {
        let parts = reply.array()?;
        match &*parts.first()?.text()? {
            "master" => Some(Self::Primary { offset: parts.get(1)?.int()?, followers: parts.get(2)?.array()?.len() }),
            "slave" if parts.get(3)?.text()? == "connected" => Some(Self::Replica { offset: parts.get(4)?.int()? }),
            "slave" => Some(Self::Unlinked),
            _ => None,
        }
    }
}
