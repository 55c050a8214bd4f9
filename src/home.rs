//! Where background work lives: a thread of this process's own, whatever the runtimes of its callers do.
//!
//! A runtime may end, be blocked by a computation, or not be driven, and holds of others would be lost with it if their
//! renewals ran there. So managers with servers have one home: a thread with a runtime of its own, started when there is
//! first something to do. It serves all managers of the process. A copy of the process has no such thread, and starts its own.
//!
//! Of the user's code only subscribers of `tracing` and wakers run there. One that blocks holds everything up; one that panics
//! ends nothing but what it was called for ([`shielded`](crate::shield::shielded)).
//!
//! Time in memory is the callers' runtimes', which tests pause. There each runtime that uses the manager has a driver, all of
//! them drive the same agenda, and whoever is awake first does what is due.

use std::thread;

use once_cell::race::OnceBox;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::clock::Clock;
use crate::events;
use crate::process::{self, Process};

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
            drop(process::spawn_on(&runtime, task));
        }
    }
}

/// The thread of one process. A copied process finds that of the process it was copied from, and starts its own behind it: a handle
/// of the other one's runtime is of no use there, and its mutex may have been copied locked. A cell that is set by one atomic
/// exchange is never found half set.
struct ProcessHome {
    process: Process,
    runtime: Mutex<Option<Handle>>,
    next: OnceBox<Self>,
}

impl ProcessHome {
    fn current() -> &'static Self {
        static FIRST: OnceBox<ProcessHome> = OnceBox::new();
        let mut home = FIRST.get_or_init(Self::new);
        while !home.process.is_current() {
            home = home.next.get_or_init(Self::new);
        }
        home
    }

    fn new() -> Box<Self> {
        Box::new(Self { process: Process::current(), runtime: Mutex::new(None), next: OnceBox::new() })
    }
}

/// The runtime of this process's thread, which is started by the first who asks. `None` if no thread can be had.
fn process() -> Option<Handle> {
    let mut started = ProcessHome::current().runtime.lock();
    if started.is_none() {
        match start(thread::Builder::new()) {
            Ok(runtime) => *started = Some(runtime),
            // The next one tries again; meanwhile background work shares its caller's fate.
            Err(error) => events::no_thread(&error),
        }
    }
    started.clone()
}

fn start(thread: thread::Builder) -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let runtime = DetachedRuntime::new(runtime);
    drop(thread.name("redis-rwlock".to_owned()).spawn(move || runtime.block_on(std::future::pending::<()>()))?);
    Ok(handle)
}

/// Runtime on its way to its thread. Without a thread it is dropped where it was made, which may be a task: there a runtime that
/// waits for its own end panics, so this one does not wait.
pub(crate) struct DetachedRuntime(Option<Runtime>);

impl DetachedRuntime {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self(Some(runtime))
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("taken when it is dropped"),
        }
    }
}

impl Drop for DetachedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
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

    #[tokio::test]
    async fn without_a_thread_there_is_an_error_and_no_panic() {
        // More than there are addresses for.
        let error = start(thread::Builder::new().stack_size(1 << 60)).expect_err("no room for such a stack");
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }
}
