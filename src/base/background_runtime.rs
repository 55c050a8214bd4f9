//! Background runtime: a thread of this process, independent of the runtimes of its callers.
//!
//! The runtime of a caller may end, be blocked by a computation, or not be driven. If renewals ran there, holds would
//! be lost with it, including holds of other runtimes. So all managers with servers in this process share one
//! background runtime: a thread with its own runtime. The first task starts this thread. A copy of the process by
//! `fork` has no such thread, and starts its own.
//!
//! The only code of users that runs there is subscribers of `tracing`, and wakers. If such code blocks, it stops all
//! background work. If it panics, it ends only the call that ran it
//! ([`catch_panic`](crate::base::panics::catch_panic)).
//!
//! The in-memory manager uses the time of its callers' runtimes, which tests pause. There, each runtime that uses the
//! manager has a driver task. All drivers share one deadline queue. The first driver that wakes up does the due work.

use std::thread;

use once_cell::race::OnceBox;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::base::clock::Clock;
use crate::base::events;
use crate::base::process::{self, Process};

/// Runtime for tasks that belong to no caller.
#[derive(Clone, Debug)]
pub(crate) enum BackgroundRuntime {
    /// Thread of this process.
    Process,
    /// Each runtime that uses the manager.
    Callers,
    /// Given runtime, as tests need it. The tasks end with it.
    On(Handle),
}

impl BackgroundRuntime {
    /// Returns the background runtime of a manager that uses this clock.
    pub(crate) fn for_clock(clock: Clock) -> Self {
        match clock {
            Clock::System => Self::Process,
            Clock::Runtime(_) => Self::Callers,
        }
    }

    /// Returns a runtime if there is one. `Process` uses the runtime of its caller if the thread cannot be started.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        match self {
            Self::Process => process().or_else(|| Handle::try_current().ok()),
            Self::Callers => Handle::try_current().ok(),
            Self::On(runtime) => Some(runtime.clone()),
        }
    }

    /// Spawns a task. Without a runtime the task is dropped, as a runtime that has ended would drop it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            drop(process::spawn_on(&runtime, task));
        }
    }
}

/// Background thread of one process. A copy of the process finds the value of its original, and appends a value of its
/// own. It must not use the copied value: the handle belongs to a runtime of the other process, and the mutex may be
/// locked. The cell is set by one atomic exchange, so a copy never finds it half set.
struct ProcessRuntime {
    process: Process,
    runtime: Mutex<Option<Handle>>,
    next: OnceBox<Self>,
}

impl ProcessRuntime {
    fn current() -> &'static Self {
        static FIRST: OnceBox<ProcessRuntime> = OnceBox::new();
        let mut runtime = FIRST.get_or_init(Self::new);
        while !runtime.process.is_current() {
            runtime = runtime.next.get_or_init(Self::new);
        }
        runtime
    }

    fn new() -> Box<Self> {
        Box::new(Self { process: Process::current(), runtime: Mutex::new(None), next: OnceBox::new() })
    }
}

/// Returns the runtime of this process's thread. The first call starts the thread. `None` if no thread could be
/// started.
fn process() -> Option<Handle> {
    let mut started = ProcessRuntime::current().runtime.lock();
    if started.is_none() {
        match start(thread::Builder::new()) {
            Ok(runtime) => *started = Some(runtime),
            // A later call tries again. Until then, background work runs on the runtime of its caller, and ends with
            // that runtime.
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

/// Runtime that is to move to its thread. If the thread cannot be started, the runtime is dropped by the caller,
/// perhaps within a task. A drop that waits for the runtime's end would panic there, so this drop does not wait.
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
    fn process_has_one_background_runtime_that_goes_on_without_any_other() {
        let runs_on = || {
            let (tell, told) = oneshot::channel();
            BackgroundRuntime::Process.spawn(async move {
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
        // Larger than the address space.
        let error = start(thread::Builder::new().stack_size(1 << 60)).expect_err("no room for such a stack");
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }
}
