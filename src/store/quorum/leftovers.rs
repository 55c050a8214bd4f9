//! Failed acquisitions of this manager that a master may still have, or that it may still grant.
//!
//! A quorum releases a failed acquisition and does not wait for the answers. Until a master has carried out this
//! release, the master refuses the next acquisition of this manager because of the failed one. Such a refusal does not
//! show that another process holds the lock. So the refusal counts as no answer, and the next attempt asks the master
//! again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::key::Key;

/// Number of failed acquisitions that each master may have of each lock. The key is the hash of the lock's name, with
/// the index of the master. If two names have the same hash, the only consequence is a needless attempt.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    counts: Mutex<HashMap<(u64, usize), u32>>,
}

/// Failed acquisition that one master may have. It counts until this value is dropped.
#[derive(Debug)]
pub(super) struct Leftover {
    leftovers: Arc<Leftovers>,
    place: (u64, usize),
}

impl Leftovers {
    pub(super) fn add(self: &Arc<Self>, key: &Key, master: usize) -> Arc<Leftover> {
        let place = (key.hashed_name().0, master);
        *self.counts.lock().entry(place).or_default() += 1;
        Arc::new(Leftover { leftovers: Arc::clone(self), place })
    }

    /// Returns true if a master may have, or may still grant, an earlier failed acquisition of the lock.
    pub(super) fn contains(&self, key: &Key, master: usize) -> bool {
        self.counts.lock().contains_key(&(key.hashed_name().0, master))
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let mut counts = self.leftovers.counts.lock();
        if let Some(count) = counts.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.place);
            }
        }
    }
}
