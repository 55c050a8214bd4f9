//! Background runtime: a tokio runtime on a thread of its own, independent of the runtimes of the callers.
//!
//! The runtime of a caller may end, be blocked by a computation, or not be driven. If renewals ran on such a runtime,
//! they would stop with it, and holds of all runtimes would be lost. So all managers of this process that use servers
//! share one background runtime. The first background task starts its thread. `fork` copies no thread, so the copy of a
//! process starts a background runtime of its own.
//!
//! Only three kinds of user code run on this thread: subscribers of `tracing`, wakers, and tasks that a provider of
//! credentials spawns (the provider itself runs on a thread for blocking work). If such code blocks, all
//! background work stops. If such code panics, only the call that ran it ends, because
//! [`catch_panic`](crate::base::panics::catch_panic) catches the panic.
//!
//! The in-memory manager does not use this thread. Its clock is the clock of the callers' runtimes, because tests pause
//! that clock. Each runtime that uses the manager has a driver task, and all driver tasks share one deadline queue. The
//! first driver task that wakes up does the due work.

use std::thread;

use once_cell::race::OnceBox;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::base::clock::Clock;
use crate::base::events;
use crate::base::process::{self, Process};

/// Choice of the runtime that runs background tasks.
#[derive(Clone, Debug)]
pub(crate) enum BackgroundRuntime {
    /// Background thread of this process.
    Process,
    /// Runtime of the code that spawns the task.
    Callers,
    /// A given runtime, as tests need it. The tasks end with this runtime.
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

    /// Returns the runtime for background tasks, if there is one. If the background thread cannot be started, `Process`
    /// returns the runtime of the calling code.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        match self {
            Self::Process => process().or_else(|| Handle::try_current().ok()),
            Self::Callers => Handle::try_current().ok(),
            Self::On(runtime) => Some(runtime.clone()),
        }
    }

    /// Spawns a background task. If there is no runtime, the task is dropped, like a task that is spawned on a runtime
    /// that has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            drop(process::spawn_on(&runtime, task));
        }
    }
}

/// Background runtime of one process, in a list with one entry for each process. After `fork`, the copy of a process
/// finds the entry of its original, and appends an entry of its own. The copy must not use the entry of the original:
/// the runtime behind that handle does not run in the copy, and the mutex may be locked for ever. Each `next` is set by
/// one atomic exchange, so a copy never finds it half set.
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

/// Returns the background runtime of this process. The first call starts its thread. Returns `None` if the thread
/// cannot be started.
fn process() -> Option<Handle> {
    let mut started = ProcessRuntime::current().runtime.lock();
    if started.is_none() {
        match start(thread::Builder::new()) {
            Ok(runtime) => *started = Some(runtime),
            // The next call tries again. Until a thread starts, background tasks run on the runtime of the code that
            // spawns them, and end with that runtime.
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

/// Runtime whose drop does not wait for the end of its tasks. If the background thread cannot be started, the calling
/// code drops the runtime, perhaps within a task. The drop of a tokio runtime waits, and panics within a task.
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
        // This stack is larger than the address space, so the thread cannot start.
        let error = start(thread::Builder::new().stack_size(1 << 60)).expect_err("no room for such a stack");
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }
}
