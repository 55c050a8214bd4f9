//! Where background work lives: a thread of this process's own, whatever the runtimes of its callers do.
//!
//! A runtime may end, be blocked by a computation, or not be driven, and holds of others would be lost with it if their
//! renewals ran there. So managers with servers have one home: a thread with a runtime of its own, started when there is
//! first something to do. It serves all managers of the process.
//!
//! Of the user's code only subscribers of `tracing` and wakers run there. One that blocks holds everything up; one that panics
//! ends nothing but what it was called for ([`shielded`](crate::shield::shielded)).
//!
//! Time in memory is the callers' runtimes', which tests pause. There each runtime that uses the manager has a driver, all of
//! them drive the same agenda, and whoever is awake first does what is due.

use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};

use crate::clock::Clock;
use crate::events;

/// Where tasks run that belong to no caller.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// The thread of this process.
    Process,
    /// Each runtime that uses the manager.
    Callers,
    /// This runtime: what a test lets end with it, ends.
    On(Handle),
}

impl Home {
    /// Where the work of a manager belongs that takes its time from this clock.
    pub(crate) fn for_clock(clock: Clock) -> Self {
        match clock {
            Clock::System => Self::Process,
            Clock::Runtime(_) => Self::Callers,
        }
    }

    /// The runtime, if there is one to be had: that of the process, or of the caller.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        match self {
            Self::Process => process().or_else(|| Handle::try_current().ok()),
            Self::Callers => Handle::try_current().ok(),
            Self::On(runtime) => Some(runtime.clone()),
        }
    }

    /// Without a runtime the task is dropped, as it is by one that has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            drop(runtime.spawn(task));
        }
    }
}

/// The runtime of this process's thread, which is started by the first who asks. `None` if no thread can be had.
fn process() -> Option<Handle> {
    static STARTED: Mutex<Option<Handle>> = Mutex::new(None);
    let mut started = STARTED.lock();
    if started.is_none() {
        match start() {
            Ok(runtime) => *started = Some(runtime),
            // The next one tries again; meanwhile background work shares its caller's fate.
            Err(error) => events::no_thread(&error),
        }
    }
    started.clone()
}

fn start() -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let serve = move || runtime.block_on(std::future::pending::<()>());
    drop(thread::Builder::new().name("redis-rwlock".to_owned()).spawn(serve)?);
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn process_has_one_home_that_goes_on_without_any_runtime() {
        let runs_on = || {
            let (tell, told) = oneshot::channel();
            Home::Process.spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                drop(tell.send((Handle::current().id(), thread::current().name().map(str::to_owned))));
            });
            told.blocking_recv().expect("the task runs to its end")
        };
        let (first, name) = runs_on();
        assert_eq!(name.as_deref(), Some("redis-rwlock"));
        assert_eq!(runs_on().0, first);
    }
}
