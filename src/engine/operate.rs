//! Operations for operators: view the holders of a lock, end its holds by force, list the locks, and report the health.

use std::collections::HashSet;
use std::pin::pin;

use crate::base::attempt::AcquisitionId;
use crate::base::error::Result;
use crate::base::health::{Health, Stats, Traffic};
use crate::base::key::Key;
use crate::engine::{Engine, in_runtime};
use crate::lock::table::Counts;
use crate::store::view::{Guards, HolderView, LockView, Seen};
use crate::store::{Answered, Forced, QuorumScheme, View};

impl Engine {
    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockView> {
        let answer = self.look(key).await?;
        Ok(LockView::new(key.name(), answer.into(), self.options.timestamp_clients, |id| self.guards_of(key, id)))
    }

    pub(super) async fn look(&self, key: &Key) -> Result<Answered<View>> {
        self.answered(key, || self.scheme.inspect(key)).await
    }

    /// Returns the names of all locks of this manager that the servers know.
    pub(crate) async fn names(&self) -> Result<Vec<String>> {
        let listing = self.options.listing();
        let names = self.of_manager(|| self.scheme.names(&listing)).await?;
        Ok(names.into_iter().collect())
    }

    pub(crate) async fn health(&self) -> Result<Health> {
        let asked = pin!(async {
            in_runtime()?;
            Ok(self.scheme.health().await)
        });
        let nodes = self.process.here("", asked).await?;
        let needed = self.scheme.quorum().map(QuorumScheme::needed_servers);
        Ok(Health::new(nodes, needed, self.options.max_clock_skew))
    }

    pub(crate) fn stats(&self) -> Stats {
        if self.is_copied() {
            return Stats::default();
        }
        let Counts { holds, guards, idle, late, waiters } = self.table.counts();
        let Traffic { in_flight, reconnects, map_refreshes } = self.scheme.traffic();
        Stats { holds, guards, cached_holds: idle, waiters, renewals_late: late, in_flight, reconnects, map_refreshes }
    }

    /// Returns the guards of this manager that share a hold. Returns `None` for the hold of another manager.
    pub(super) fn guards_of(&self, key: &Key, id: &str) -> Option<Guards> {
        let id = AcquisitionId::before_rest(id).unwrap_or(id);
        let rest = id.strip_prefix(&*self.manager_id)?;
        rest.starts_with('.').then(|| {
            let holds = self.table.holds(key);
            let hold = holds.iter().find(|hold| hold.id().as_str() == id);
            hold.map_or(Guards::default(), |hold| Guards { many: hold.usage().0, is_idle: hold.is_cached() })
        })
    }

    /// Ends by force every hold that the server has now, see [`force_shown`](Engine::force_shown).
    pub(crate) async fn force(&self, key: &Key) -> Result<Vec<HolderView>> {
        let look = self.look(key).await?.into();
        self.force_shown(key, &look).await
    }

    /// Ends by force every hold that the view `look` shows, and returns the ended holds. The request names the holds of
    /// the view. So a copy of the request that is repeated or late ends no newer hold.
    pub(crate) async fn force_shown(&self, key: &Key, look: &Seen) -> Result<Vec<HolderView>> {
        let limits = self.options.timestamp_clients;
        // This must come before the force, because the guards of a hold are not known any more after its end.
        let seen = HolderView::all(look, limits, |id| self.guards_of(key, id));
        let (mut ended, mut in_doubt) = (HashSet::new(), false);
        loop {
            // Each request ends a limited number of holds, so the loop repeats it until none is left. The arguments
            // stay the same, so no newer hold ends.
            let mut attempts = 0;
            let forced = self.answered(key, || {
                attempts += 1;
                self.scheme.force(key, &look.view)
            });
            let Forced { ids, has_more: more } = forced.await?.value;
            in_doubt |= attempts > 1;
            ended.extend(ids);
            if !more {
                break;
            }
        }
        let unseen = self.lose_forced(key, &look.view, &ended);
        // A force that came too late has ended no hold. Clients of the timestamp scheme have no id, so only this flag
        // tells whether their holds have ended.
        let was_late = ended.is_empty() && !in_doubt && !look.view.holders.is_empty();
        let is_over = |id: Option<&str>| id.map_or(!was_late, |id| in_doubt || ended.contains(id));
        let seen = seen.into_iter().filter(|(id, _)| is_over(*id)).map(|(_, holder)| holder);
        Ok(seen.chain(unseen).collect())
    }

    /// Marks the holds of this manager that the force has ended as lost. So guards and local waiters learn of the loss
    /// before the next renewal. All holds of the view are over, even those that an earlier copy of the request has
    /// ended.
    ///
    /// Returns the holders that were ended but that the view did not show. Either the view was full, or these holders
    /// joined the phase of the shown holders later. So all of them are readers.
    fn lose_forced(&self, key: &Key, seen: &View, ended: &HashSet<String>) -> Vec<HolderView> {
        let seen: HashSet<&str> = seen.holders.iter().map(|holder| &*holder.id).collect();
        let unseen = ended.iter().filter(|id| !seen.contains(id.as_str()));
        let unseen = unseen.map(|id| HolderView::unseen_reader(id, self.guards_of(key, id))).collect();
        for hold in self.table.holds(key) {
            if seen.contains(hold.id().as_str()) || ended.contains(hold.id().as_str()) {
                self.renewals.end_by_force(&hold, self.now());
            }
        }
        unseen
    }
}
