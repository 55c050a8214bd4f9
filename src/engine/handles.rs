//! Handles of an engine. Managers, acquisitions and guards keep the engine alive through a handle.
//!
//! Each acquisition and each guard changes the reference counter of its handle. If there were only one counter, threads
//! that use different locks would slow each other. So an engine has several handles, each with its own counter. The
//! hash of a lock's name selects the handle.

use std::sync::Arc;

use crate::base::options::Options;
use crate::engine::Engine;
use crate::lock::table::{self, SHARDS};
use crate::store::Scheme;

/// All handles of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Handles(Arc<[Arc<Engine>; SHARDS]>);

impl Handles {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, options: Options) -> Self {
        let engine = Engine::new(scheme, options);
        Self(Arc::new(std::array::from_fn(|_| Arc::new(engine.handle()))))
    }

    /// Returns the handle for the lock whose name has this hash.
    pub(crate) fn of(&self, hash: u64) -> &Arc<Engine> {
        &self.0[table::shard_of(hash)]
    }

    /// Returns a handle for work that concerns no single lock.
    pub(crate) fn any(&self) -> &Arc<Engine> {
        &self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::key::{self, Key};
    use crate::base::options::{Overrides, Terms};
    use crate::engine::Held;
    use crate::engine::acquire::{Patience, acquire};
    use crate::store::Mode;
    use crate::store::memory::{MemoryScheme, Store};

    async fn read(handles: &Handles, name: &str) -> Held {
        let engine = handles.of(key::hash_of(name));
        let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
        let key: Arc<Key> = engine.key(name).expect("valid");
        acquire(engine, key, Mode::Read, terms, Patience::Wait).await.expect("answered").expect("granted")
    }

    #[tokio::test]
    async fn users_of_different_locks_count_at_different_places() {
        let handles = Handles::new(Arc::new(MemoryScheme::new(Arc::new(Store::new()))), Options::default());
        let count = |name: &str| Arc::strong_count(handles.of(key::hash_of(name)));
        let other = (0..).map(|n| format!("lock-{n}"));
        let mut other =
            other.filter(|name| table::shard_of(key::hash_of(name)) != table::shard_of(key::hash_of("cfg")));
        let other = other.next().expect("there are many");
        let guards = [read(&handles, "cfg").await, read(&handles, "cfg").await];
        assert_eq!((count("cfg"), count(&other)), (3, 1));
        drop(guards);
        assert_eq!((count("cfg"), count(&other)), (1, 1));
    }

    #[tokio::test]
    async fn engine_goes_with_its_last_guard() {
        let handles = Handles::new(Arc::new(MemoryScheme::new(Arc::new(Store::new()))), Options::default());
        let core = Arc::downgrade(&handles.any().core);
        let guard = read(&handles, "cfg").await;
        drop(handles);
        assert!(core.strong_count() > 0, "the guard's hold is renewed");
        drop(guard);
        assert_eq!(core.strong_count(), 0);
    }
}
