//! Several independent servers.

use crate::{Node, Result, Server};

/// Independent servers, as a quorum needs them.
#[derive(Debug)]
pub struct Masters {
    nodes: Vec<Node>,
}

impl Masters {
    /// Starts `count` servers at the same time and waits until all answer.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`](crate::Error::NotInstalled), or the reason why one of the servers did not start.
    pub fn start(server: Server, count: usize) -> Result<Self> {
        Ok(Self { nodes: Node::builder(server).start_many(count)? })
    }

    /// Servers, always in the same order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// URLs of [`Masters::nodes`].
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }
}
