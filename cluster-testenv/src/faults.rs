//! What an operator, or a bad day, does to a server by commands.

use std::time::Duration;

use crate::{Client, Cluster, Error, Node, Reply, Result};

/// Faults by command. They need a server that runs and takes connections; those that concern connections spare the one
/// that gives the order.
impl Node {
    /// Forgets all scripts.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn script_flush(&self) -> Result<()> {
        self.order(&["SCRIPT", "FLUSH"])
    }

    /// Deletes all keys. A replica refuses.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn flush_all(&self) -> Result<()> {
        self.order(&["FLUSHALL"])
    }

    /// Closes the connections of all clients, and says how many these were. Subscribers and the links of replicas stay.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn kill_clients(&self) -> Result<usize> {
        self.kill_connections("normal")
    }

    /// Closes the connections of all subscribers, and says how many these were.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn kill_subscribers(&self) -> Result<usize> {
        self.kill_connections("pubsub")
    }

    /// Answers nobody for so long, not even [`Node::command`]. On a replica this makes replication lag. Nothing ends it
    /// earlier.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn pause_clients(&self, how_long: Duration) -> Result<()> {
        self.order(&["CLIENT", "PAUSE", &how_long.as_millis().to_string(), "ALL"])
    }

    /// Answers no command that writes, and no script, for so long or until [`Node::unpause_writes`].
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn pause_writes(&self, how_long: Duration) -> Result<()> {
        self.order(&["CLIENT", "PAUSE", &how_long.as_millis().to_string(), "WRITE"])
    }

    /// Ends [`Node::pause_writes`].
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn unpause_writes(&self) -> Result<()> {
        self.order(&["CLIENT", "UNPAUSE"])
    }

    /// Refuses commands that need memory (`OOM`) while it uses more than `limit_bytes`; evicts nothing. A limit of 1
    /// refuses them all, 0 is no limit.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn set_memory_limit(&self, limit_bytes: u64) -> Result<()> {
        self.order(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])?;
        self.order(&["CONFIG", "SET", "maxmemory", &limit_bytes.to_string()])
    }

    /// Makes or changes a user, with rules such as `on`, `>password`, `~prefix:*`, `+get`. The user `default` is the one that
    /// this library uses.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn acl_set_user(&self, name: &str, rules: &[&str]) -> Result<()> {
        self.order(&[&["ACL", "SETUSER", name], rules].concat())
    }

    /// Refuses new connections (`max number of clients reached`) as long as what comes back is kept. Those that are there go
    /// on. [`Node::command`] and [`Node::client`] are refused as well.
    ///
    /// # Errors
    ///
    /// As [`Client::command`], or [`Error::Refused`].
    pub fn refuse_clients(&self) -> Result<RefusedClients> {
        let mut client = self.client()?;
        let answer = client.command(&["CONFIG", "GET", "maxclients"])?.into_result()?;
        let limit = answer.array().and_then(|pair| pair.get(1)).and_then(Reply::text);
        let limit = limit.ok_or_else(|| Error::Unexpected(format!("{answer:?}")))?.into_owned();
        // The connection in `client` is the one.
        client.command(&["CONFIG", "SET", "maxclients", "1"])?.into_result()?;
        Ok(RefusedClients { client, limit })
    }

    fn kill_connections(&self, kind: &str) -> Result<usize> {
        let reply = self.command(&["CLIENT", "KILL", "TYPE", kind])?.into_result()?;
        let count = reply.int().and_then(|count| count.try_into().ok());
        count.ok_or_else(|| Error::Unexpected(format!("{reply:?}")))
    }

    fn order(&self, args: &[&str]) -> Result<()> {
        self.command(args)?.into_result().map(drop)
    }
}

/// A server takes no new connections while this is there. See [`Node::refuse_clients`].
#[derive(Debug)]
#[must_use = "dropping it lets clients in again"]
pub struct RefusedClients {
    client: Client,
    limit: String,
}

impl Drop for RefusedClients {
    fn drop(&mut self) {
        // Fails when the server has ended meanwhile; a new one has the old limit.
        drop(self.client.command(&["CONFIG", "SET", "maxclients", &self.limit]));
    }
}

/// Faults of all nodes that run.
impl Cluster {
    /// All nodes forget all scripts.
    ///
    /// # Errors
    ///
    /// As [`Node::script_flush`].
    pub fn script_flush(&self) -> Result<()> {
        self.running().try_for_each(Node::script_flush)
    }

    /// All primaries, and so their replicas, delete all keys.
    ///
    /// # Errors
    ///
    /// As [`Node::flush_all`].
    pub fn flush_all(&self) -> Result<()> {
        self.primaries().into_iter().filter(|node| node.is_running()).try_for_each(Node::flush_all)
    }

    /// All nodes close the connections of their clients. Returns how many these were.
    ///
    /// # Errors
    ///
    /// As [`Node::kill_clients`].
    pub fn kill_clients(&self) -> Result<usize> {
        self.running().map(Node::kill_clients).sum()
    }

    /// All nodes close the connections of their subscribers. Returns how many these were.
    ///
    /// # Errors
    ///
    /// As [`Node::kill_subscribers`].
    pub fn kill_subscribers(&self) -> Result<usize> {
        self.running().map(Node::kill_subscribers).sum()
    }

    /// Makes or changes a user on all nodes, which do not tell each other.
    ///
    /// # Errors
    ///
    /// As [`Node::acl_set_user`].
    pub fn acl_set_user(&self, name: &str, rules: &[&str]) -> Result<()> {
        self.running().try_for_each(|node| node.acl_set_user(name, rules))
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes().iter().filter(|node| node.is_running())
    }
}
