//! Moves a slot from one primary to another, step by step or at once.

use std::time::Duration;

use crate::{Cluster, Error, Node, Reply, Result, wait_for};

/// Limit for a migration, far longer than a slot of a test needs.
const BOUND: Duration = Duration::from_secs(30);
const MOVE_TIMEOUT_MS: &str = "5000";
const MIGRATE_SLOTS: &str = "cluster|migrateslots";
const KEYS_AT_ONCE: &str = "100";

impl Cluster {
    /// Moves a slot from its owner to `to`, by the steps of [`SlotMigration`].
    ///
    /// # Errors
    ///
    /// The errors of the methods of [`SlotMigration`].
    ///
    /// # Panics
    ///
    /// When no running node knows the owner.
    pub fn migrate_slot(&self, slot: u16, to: &Node) -> Result<()> {
        SlotMigration::begin(self, slot, to)?.finish()
    }

    /// Returns true if every primary has the command of [`Cluster::migrate_slot_atomically`].
    ///
    /// # Errors
    ///
    /// The errors of [`Node::has_command`].
    pub fn can_migrate_atomically(&self) -> Result<bool> {
        let all: Result<Vec<bool>> = self.primaries().into_iter().map(|node| node.has_command(MIGRATE_SLOTS)).collect();
        Ok(all?.into_iter().all(|can| can))
    }

    /// Moves a slot from its owner to `to` by CLUSTER MIGRATESLOTS. [`Cluster::can_migrate_atomically`] tells whether the
    /// servers have this command.
    ///
    /// Clients see the slot at one of the two nodes, and never ASK or TRYAGAIN. Returns when the old owner reports the
    /// end of the migration.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the owner does not have the command, [`Error::NotInTime`] with the state of the
    /// migration when it fails.
    ///
    /// # Panics
    ///
    /// When no running node knows the owner.
    pub fn migrate_slot_atomically(&self, slot: u16, to: &Node) -> Result<()> {
        let from = self.begin_atomic_migration(slot, to)?;
        let (range, to) = (slot.to_string(), to.cluster_id()?);
        let mut state = String::new();
        let done = wait_for("", BOUND, || {
            state = newest_migration(from, &format!("{range}-{range}"))?;
            // The source learns of the end from the target, which first announces itself to all nodes.
            let is_done = state == "success" && self.primary_of_slot(slot).cluster_id().is_ok_and(|id| id == to);
            (is_done || ["failed", "cancelled", "canceled"].contains(&state.as_str())).then_some(is_done)
        });
        if done.is_ok_and(|is_done| is_done) {
            return Ok(());
        }
        Err(Error::NotInTime { what: format!("the migration of slot {slot} (state {state:?})"), bound: BOUND })
    }

    /// Begins what [`Cluster::migrate_slot_atomically`] does, and returns the owner of the slot without waiting for the
    /// end.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the owner does not have the command, [`Error::Refused`] if it migrates the slot already.
    ///
    /// # Panics
    ///
    /// When no running node knows the owner.
    pub fn begin_atomic_migration(&self, slot: u16, to: &Node) -> Result<&Node> {
        let from = self.primary_of_slot(slot);
        if !from.has_command(MIGRATE_SLOTS)? {
            return Err(Error::Unsupported(format!("{} cannot migrate slots atomically", from.server())));
        }
        let (range, to) = (slot.to_string(), to.cluster_id()?);
        from.ask(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &range, &range, "NODE", &to])?;
        Ok(from)
    }
}

/// Returns the state of the newest migration of these slots, from the list of the old owner.
fn newest_migration(from: &Node, ranges: &str) -> Option<String> {
    let jobs = from.command(&["CLUSTER", "GETSLOTMIGRATIONS"]).ok()?;
    let is_ours = |job: &&Reply| job.field("slot_ranges").is_some_and(|found| found == ranges);
    jobs.array()?.iter().find(is_ours)?.field("state").map(Into::into)
}

/// Slot on its way from one primary to another, which a test moves step by step.
///
/// Between the steps, clients get ASK if a key is not at the old owner any more. They get TRYAGAIN if only some keys of
/// a command are still there. After the end they get MOVED. A drop leaves the slot as it is.
#[derive(Debug)]
#[must_use = "the slot stays between two nodes until `finish` or `abandon`"]
pub struct SlotMigration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a Node,
    to: &'a Node,
}

impl<'a> SlotMigration<'a> {
    /// Marks the slot as importing at the new owner, and as migrating at the old owner. No key moves.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when `to` owns the slot or is no primary.
    ///
    /// # Panics
    ///
    /// When no running node knows the owner.
    pub fn begin(cluster: &'a Cluster, slot: u16, to: &'a Node) -> Result<Self> {
        let migration = Self { cluster, slot, from: cluster.primary_of_slot(slot), to };
        let (from_id, to_id) = (migration.from.cluster_id()?, to.cluster_id()?);
        migration.set_slot(to, &["IMPORTING", &from_id])?;
        migration.set_slot(migration.from, &["MIGRATING", &to_id])?;
        Ok(migration)
    }

    /// New owner.
    pub fn to(&self) -> &'a Node {
        self.to
    }

    /// Returns the keys of the slot that are still at the old owner, at most a hundred.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command).
    pub fn keys_left(&self) -> Result<Vec<Vec<u8>>> {
        let ask = ["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), KEYS_AT_ONCE];
        let reply = self.from.ask(&ask)?;
        let keys = reply.array().unwrap_or_default().iter().filter_map(Reply::bytes);
        Ok(keys.map(<[u8]>::to_vec).collect())
    }

    /// Moves one key, and returns true if it was at the old owner.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`].
    pub fn move_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.migrate(&[key.as_ref()])
    }

    /// Moves all remaining keys.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`].
    pub fn move_keys(&self) -> Result<()> {
        loop {
            let keys = self.keys_left()?;
            if keys.is_empty() {
                return Ok(());
            }
            self.migrate(&keys)?;
        }
    }

    /// Moves the remaining keys, and announces the new owner to the new owner, the old owner and the other primaries.
    /// Replicas learn of the new owner by gossip, for which [`Cluster::wait_ok`] waits.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`].
    pub fn finish(self) -> Result<()> {
        self.move_keys()?;
        let to_id = self.to.cluster_id()?;
        let ends = [self.to, self.from];
        let is_other = |node: &&Node| node.is_running() && ends.iter().all(|end| end.port() != node.port());
        let others = self.cluster.primaries().into_iter().filter(is_other);
        ends.into_iter().chain(others).try_for_each(|node| self.set_slot(node, &["NODE", &to_id]))
    }

    /// Leaves the slot at the old owner. Moved keys stay at the other node, where clients do not look for them.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`].
    pub fn abandon(self) -> Result<()> {
        [self.from, self.to].into_iter().try_for_each(|node| self.set_slot(node, &["STABLE"]))
    }

    fn set_slot(&self, node: &Node, state: &[&str]) -> Result<()> {
        let slot = self.slot.to_string();
        node.command(&[&["CLUSTER", "SETSLOT", &slot], state].concat())?.into_result().map(drop)
    }

    fn migrate(&self, keys: &[impl AsRef<[u8]>]) -> Result<bool> {
        let (ip, port) = (self.to.addr().ip().to_string(), self.to.migration_port().to_string());
        let mut command: Vec<&[u8]> = ["MIGRATE", &ip, &port, "", "0", MOVE_TIMEOUT_MS].map(str::as_bytes).to_vec();
        if let Some(password) = self.to.password() {
            command.extend([&b"AUTH"[..], password.as_bytes()]);
        }
        command.push(b"KEYS");
        command.extend(keys.iter().map(AsRef::as_ref));
        let reply = self.from.ask(&command)?;
        Ok(reply.text().is_none_or(|status| status != "NOKEY"))
    }
}
