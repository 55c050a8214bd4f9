//! Whether replicas have what their primary has written.
//!
//! By offsets: `WAIT` speaks of what its own connection has written, and one that has written nothing is answered at once.

use crate::{Error, Node, Reply, Result};

/// What is wrong with the way from a primary to its replicas, if anything is: whether each of them follows it and has all
/// that it has written by now.
pub(crate) fn complaint(primary: &Node, replicas: &[&Node]) -> Result<Option<String>> {
    // Before those of the replicas: nobody need have what is written meanwhile.
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

/// What a server answers to ROLE.
#[derive(Debug)]
enum Role {
    /// So many replicas have copied all and follow.
    Primary { offset: i64, followers: usize },
    /// Has carried out all up to there.
    Replica { offset: i64 },
    /// Has no link, or is copying.
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
