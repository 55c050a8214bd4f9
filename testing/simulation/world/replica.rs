//! Replica of the only server. It acknowledges writes, and takes over although it is behind.

use super::*;

/// Interval at which the primary is copied to the replica.
const REPLICATION: Duration = Duration::from_millis(100);

impl World {
    /// Copies the primary to the replica from time to time.
    pub async fn replicate(self: Arc<Self>) {
        // After the healing no replica takes over.
        while !self.state.lock().healed {
            self.copy_to_replica();
            let pause = if self.profile.wait_ms > 0 { self.lag() } else { REPLICATION };
            sleep(pause).await;
        }
    }

    /// Returns the time until the replica has a write. Mostly it is in time for a request that waits for it.
    fn lag(&self) -> Duration {
        let ms = self.draw(|rng| match rng.u32(0..200) {
            0 => rng.u64(1_000..5_000),
            1..10 => rng.u64(50..700),
            _ => rng.u64(1..20),
        });
        Duration::from_millis(ms)
    }

    /// Returns true if an answer counts. Where a replica has to acknowledge a hold, it must do so within `wait_ms`.
    pub async fn counts(&self, answer: &Answer, deposed: bool) -> bool {
        if self.profile.wait_ms == 0 || !answer.gives_hold() || self.mutant == Some(Mutant::WaitsBeforeTheGrant) {
            return true;
        }
        if self.mutant == Some(Mutant::RenewalsUnacknowledged) && matches!(answer, Answer::Renewed(_)) {
            return true;
        }
        let applied = self.now();
        let lineage = self.state.lock().servers[ONLY].lineage;
        while self.now() <= applied + self.profile.wait_ms * 1000 {
            // A replaced primary has no replica any more, even after the healing.
            if !deposed && (self.has_healed(lineage) || self.acknowledges(applied, lineage)) {
                return true;
            }
            sleep_ms(1).await;
        }
        false
    }

    /// Returns true if replicas of this line of primaries lag behind no more.
    fn has_healed(&self, lineage: u32) -> bool {
        let state = self.state.lock();
        state.healed && state.servers[ONLY].lineage == lineage
    }

    /// Returns true if a replica has the write. A replaced primary has no replica any more.
    fn acknowledges(&self, written: Micros, lineage: u32) -> bool {
        let server = &mut self.state.lock().servers[ONLY];
        let newest = server.replica.last().map_or(0, |(at, _)| *at);
        let has_it = server.lineage == lineage && newest > written;
        if has_it {
            server.acknowledged = newest;
        }
        has_it
    }

    fn copy_to_replica(&self) {
        let copy = (self.now(), self.store().image());
        let replica = &mut self.state.lock().servers[ONLY].replica;
        replica.push(copy);
        if replica.len() > 20 {
            replica.remove(0);
        }
    }

    /// Replaces the data by that of a replica that is behind.
    pub fn falls_back(&self) {
        let Some(behind_ms) = self.replica_takes_over() else {
            return;
        };
        self.state.lock().servers[ONLY].lineage += 1;
        self.record(What::Stale { behind_ms });
    }

    /// Replaces the data by an image of the replica. Returns how far that is behind, in milliseconds.
    fn replica_takes_over(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let many = state.servers[ONLY].replica.len();
        // The replica is not behind the writes that it has acknowledged.
        let acknowledged = state.servers[ONLY].acknowledged;
        let first = state.servers[ONLY].replica.partition_point(|(at, _)| *at < acknowledged);
        let pick = first + state.rng.usize(0..(many - first).max(1));
        let (at, image) = state.servers[ONLY].replica.get(pick).cloned()?;
        state.servers[ONLY].replica.clear();
        drop(state);
        self.store().replace(image);
        Some((self.now() - at) / 1000)
    }

    /// Promotes a replica in place of a frozen primary. No process knows of it yet.
    pub fn promotes(&self) {
        let store = Arc::new(Store::with(self.store().image()));
        let mut state = self.state.lock();
        let server = &mut state.servers[ONLY];
        server.frozen = false;
        let (node, number, lineage) = (server.node, server.number, server.lineage);
        server.node += 1;
        server.number += 1;
        state.behind = state.links.keys().copied().collect();
        state.old = Some(OldPrimary { store, node, number, lineage, frozen: true });
        drop(state);
        let behind_ms = self.replica_takes_over().unwrap_or_default();
        self.state.lock().servers[ONLY].lineage += 1;
        self.record(What::Promoted { behind_ms });
        self.thawed.notify_waiters();
    }

    /// Connects a process to the new primary, and subscribes it there.
    pub fn reroutes(self: &Arc<Self>, process: Process) {
        let mut state = self.state.lock();
        if !state.behind.remove(&process) {
            return;
        }
        state.confirmed.retain(|(whose, _)| *whose != process);
        if let Some(link) = state.links.get(&process) {
            *link.clock_sample.lock() = None;
        }
        let channels: BTreeSet<_> =
            state.subscribers.values().filter(|to| to.process == process).map(|to| to.lock).collect();
        drop(state);
        self.record(What::Rerouted { process });
        for lock in channels {
            self.confirm(process, lock);
        }
    }

    /// Wakes the old primary. It answers the requests in its sockets, and the processes that still ask it.
    pub fn wakes(&self) {
        if let Some(old) = &mut self.state.lock().old {
            old.frozen = false;
        }
        self.record(What::Woken);
        self.thawed.notify_waiters();
    }

    pub fn demotes(&self) {
        self.state.lock().old = None;
        self.record(What::Demoted);
        self.thawed.notify_waiters();
    }

    /// Returns the processes that do not know the new primary.
    pub fn behind(&self) -> Vec<Process> {
        self.state.lock().behind.iter().copied().collect()
    }
}
