//! Failovers of a cluster that a test orders.

use std::time::{Duration, Instant};

use crate::{Cluster, Error, Node, Reply, Result, topology::Topology, wait_for};

/// Wait before the order is repeated. A server gives up a manual failover after 5 s if the replica did not catch up on
/// a busy machine.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(6);
const BOUND: Duration = Duration::from_secs(30);
/// Limit for the time until all nodes know a change. A node contacts a random other node every second, and contacts
/// each node within half a node timeout.
const NEWS_BOUND: Duration = Duration::from_secs(30);
const FORCE: &[&str] = &["FORCE"];
const TAKEOVER: &[&str] = &["TAKEOVER"];
/// Number of node timeouts, each counted as at least a second, for which Redis remembers the votes of an election.
const VOTES_LAST: u32 = 4;

impl Cluster {
    /// Promotes a replica of `primary` in agreement with it, and returns the new primary when it has its slots.
    ///
    /// The primary stops answering, waits until the replica has all data, and gives its role to the replica.
    ///
    /// The failover needs votes, as [`Cluster::failover_force`] does. A primary does not vote for a node that it does
    /// not know as a replica yet. After another failover, some seconds may pass until all primaries know the roles.
    /// This method waits for that.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when no replica runs, [`Error::Refused`] when the primary is not reached,
    /// [`Error::NotInTime`] when the replica gave up.
    pub fn failover(&self, primary: &Node) -> Result<&Node> {
        self.fail_over(primary, &[])
    }

    /// Promotes a replica of `primary` without its agreement, by a vote of the other primaries.
    ///
    /// Works at once for a primary that is dead or paused. Returns the new primary when it has its slots.
    ///
    /// A replica that got votes within the last four node timeouts takes over without a vote, as in
    /// [`Cluster::takeover`]. Redis 7.0 would count the old votes again. The replica would then claim the role of the
    /// primary with an epoch that no other node accepts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when no replica runs, [`Error::NotInTime`] when it did not get a majority.
    pub fn failover_force(&self, primary: &Node) -> Result<&Node> {
        self.fail_over(primary, FORCE)
    }

    /// Promotes a replica of `primary` without any vote, so it needs no majority. Returns the new primary when it has
    /// its slots.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when no replica runs.
    pub fn takeover(&self, primary: &Node) -> Result<&Node> {
        self.fail_over(primary, TAKEOVER)
    }

    fn fail_over(&self, primary: &Node, how: &[&str]) -> Result<&Node> {
        let replica = self.replicas_of(primary).into_iter().find(|node| node.is_running());
        let replica = replica.ok_or_else(|| Error::Unsupported(format!("no replica of {} runs", primary.addr())))?;
        let how = if how == FORCE && !replica.votes_left()?.is_zero() { TAKEOVER } else { how };
        self.take_over(replica, primary, how)?;
        Ok(replica)
    }

    /// Performs [`Cluster::failover`] with a named successor.
    pub(crate) fn failover_to(&self, replica: &Node, primary: &Node) -> Result<()> {
        self.take_over(replica, primary, &[])
    }

    fn take_over(&self, replica: &Node, primary: &Node, how: &[&str]) -> Result<()> {
        if how != TAKEOVER {
            std::thread::sleep(replica.votes_left()?);
            self.wait_until_voters_know(replica, primary)?;
        }
        let what = format!("{} becoming the primary instead of {}", replica.addr(), primary.addr());
        let mut ordered: Option<Instant> = None;
        let is_primary = || replica.is_primary().is_ok_and(|is_primary| is_primary);
        wait_for(what, BOUND, || {
            if is_primary() {
                return Some(Ok(()));
            }
            if ordered.is_some_and(|at| at.elapsed() < GIVEN_UP_AFTER) {
                return None;
            }
            ordered = Some(Instant::now());
            replica.stands_for_election();
            let order = replica.command(&[&["CLUSTER", "FAILOVER"], how].concat());
            // A server that has become the primary meanwhile refuses the order.
            order.and_then(Reply::into_result).err().filter(|_| !is_primary()).map(Err)
        })?
    }

    /// Waits until every voter knows the replica. After a refused vote, a replica does not ask again before the manual
    /// failover ends.
    fn wait_until_voters_know(&self, replica: &Node, primary: &Node) -> Result<()> {
        let what = format!("all primaries knowing {} as a replica of {}", replica.addr(), primary.addr());
        let (replica, primary) = (replica.listed_port(), primary.listed_port());
        wait_for(what, NEWS_BOUND, || Topology::ask(self.nodes()).voters_know(replica, primary).then_some(()))
    }
}

impl Node {
    /// Remaining time for which the node remembers the votes of an election that was ordered here.
    fn votes_left(&self) -> Result<Duration> {
        let Some(age) = self.age_of_election() else {
            return Ok(Duration::ZERO);
        };
        let node_timeout = self.node_timeout()?.max(Duration::from_secs(1));
        Ok((node_timeout * VOTES_LAST).saturating_sub(age))
    }

    fn node_timeout(&self) -> Result<Duration> {
        let reply = self.ask(&["CONFIG", "GET", "cluster-node-timeout"])?;
        let millis = reply.array().and_then(<[Reply]>::last).and_then(Reply::text).and_then(|text| text.parse().ok());
        millis.map(Duration::from_millis).ok_or_else(|| reply.unexpected())
    }
}
