//! Faults that an operator causes by commands.

use std::time::Duration;

use crate::{Client, Cluster, Node, Reply, Result};

/// Faults by command. The server must run and accept connections. A fault of connections does not affect the connection
/// that orders the fault.
impl Node {
    /// Makes the server forget all scripts.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn script_flush(&self) -> Result<()> {
        self.order(&["SCRIPT", "FLUSH"])
    }

    /// Deletes all keys. A replica refuses.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn flush_all(&self) -> Result<()> {
        self.order(&["FLUSHALL"])
    }

    /// Closes the connections of all clients, and returns their number. Subscribers and the links of replicas stay.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn kill_clients(&self) -> Result<usize> {
        self.kill_connections("normal")
    }

    /// Closes the connections of all subscribers, and returns their number.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn kill_subscribers(&self) -> Result<usize> {
        self.kill_connections("pubsub")
    }

    /// Makes the server answer no client for the given time, not even [`Node::command`]. On a replica this makes
    /// replication lag. No call ends the pause earlier.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn pause_clients(&self, how_long: Duration) -> Result<()> {
        self.order(&["CLIENT", "PAUSE", &how_long.as_millis().to_string(), "ALL"])
    }

    /// Makes the server answer no command that writes, and no script, for the given time or until
    /// [`Node::unpause_writes`].
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn pause_writes(&self, how_long: Duration) -> Result<()> {
        self.order(&["CLIENT", "PAUSE", &how_long.as_millis().to_string(), "WRITE"])
    }

    /// Ends [`Node::pause_writes`].
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn unpause_writes(&self) -> Result<()> {
        self.order(&["CLIENT", "UNPAUSE"])
    }

    /// Makes the server refuse commands that need memory (`OOM`) while it uses more than `limit_bytes`. The server
    /// evicts nothing. A limit of 1 refuses all such commands, and 0 is no limit.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn set_memory_limit(&self, limit_bytes: u64) -> Result<()> {
        self.order(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])?;
        self.order(&["CONFIG", "SET", "maxmemory", &limit_bytes.to_string()])
    }

    /// Creates or changes a user, with rules such as `on`, `>password`, `~prefix:*`, `+get`. This library connects as
    /// the user `default`.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn acl_set_user(&self, name: &str, rules: &[&str]) -> Result<()> {
        self.order(&[&["ACL", "SETUSER", name], rules].concat())
    }

    /// Refuses new connections (`max number of clients reached`) while the returned value lives. Existing connections
    /// go on. The server refuses [`Node::command`] and [`Node::client`] as well.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`], or [`Error::Refused`](crate::Error::Refused).
    pub fn refuse_clients(&self) -> Result<RefusedClients> {
        let mut client = self.client()?;
        let answer = client.command(&["CONFIG", "GET", "maxclients"])?.into_result()?;
        let limit = answer.array().and_then(|pair| pair.get(1)).and_then(Reply::text);
        let limit = limit.ok_or_else(|| answer.unexpected())?.into_owned();
        // The connection in `client` uses up this limit of one.
        client.command(&["CONFIG", "SET", "maxclients", "1"])?.into_result()?;
        Ok(RefusedClients { client, limit })
    }

    fn kill_connections(&self, kind: &str) -> Result<usize> {
        let reply = self.ask(&["CLIENT", "KILL", "TYPE", kind])?;
        let count = reply.int().and_then(|count| count.try_into().ok());
        count.ok_or_else(|| reply.unexpected())
    }

    fn order(&self, args: &[&str]) -> Result<()> {
        self.ask(args).map(drop)
    }
}

/// Refusal of new connections by a server. It ends when this value is dropped. See [`Node::refuse_clients`].
#[derive(Debug)]
#[must_use = "dropping it lets clients in again"]
pub struct RefusedClients {
    client: Client,
    limit: String,
}

impl Drop for RefusedClients {
    fn drop(&mut self) {
        // This fails if the server has ended meanwhile. A restarted server has the old limit.
        drop(self.client.command(&["CONFIG", "SET", "maxclients", &self.limit]));
    }
}

/// Faults of all running nodes.
impl Cluster {
    /// Makes all nodes forget all scripts.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::script_flush`].
    pub fn script_flush(&self) -> Result<()> {
        self.running().try_for_each(Node::script_flush)
    }

    /// Deletes all keys of all primaries, and so of their replicas.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::flush_all`].
    pub fn flush_all(&self) -> Result<()> {
        self.primaries().into_iter().filter(|node| node.is_running()).try_for_each(Node::flush_all)
    }

    /// Closes the connections of subscribers on all nodes, and returns their number.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::kill_subscribers`].
    pub fn kill_subscribers(&self) -> Result<usize> {
        self.running().map(Node::kill_subscribers).sum()
    }

    /// Creates or changes a user on all nodes, because nodes do not share users.
    ///
    /// # Errors
    ///
    /// The errors of [`Node::acl_set_user`].
    pub fn acl_set_user(&self, name: &str, rules: &[&str]) -> Result<()> {
        self.running().try_for_each(|node| node.acl_set_user(name, rules))
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes().iter().filter(|node| node.is_running())
    }
}
