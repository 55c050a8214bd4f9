//! Compares the replicas' data with the writes of their primary.
//!
//! It compares offsets, because `WAIT` covers only the writes of its own connection. On a connection that has written
//! nothing, `WAIT` returns at once.

use crate::{Error, Node, Reply, Result};

/// Returns a fault of the replication, if there is one: each replica must follow the primary and have all its writes up
/// to now.
pub(crate) fn complaint(primary: &Node, replicas: &[&Node]) -> Result<Option<String>> {
    // Read before the offsets of the replicas, because no replica needs to have what is written meanwhile.
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

/// Answer to ROLE.
#[derive(Debug)]
enum Role {
    /// Primary with its offset, and the number of replicas that have copied all data and follow.
    Primary { offset: i64, followers: usize },
    /// Replica that has carried out all writes up to this offset.
    Replica { offset: i64 },
    /// Replica that has no link, or is copying.
    Unlinked,
}

impl Role {
    fn of(node: &Node) -> Result<Self> {
        let reply = node.command(&["ROLE"])?.into_result()?;
        Self::parse(&reply).ok_or_else(|| Error::Unexpected(format!("{reply:?}")))
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
