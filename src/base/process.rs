//! Identity of the process that built a manager, and protection against copies of the process.
//!
//! `fork` copies a manager with all its state: its id, its holds, their tokens, and its connections. Two processes
//! would then act as one holder. So only the process that built a manager may use it. In a copy of that process, the
//! manager refuses every call and reports every guard as lost. The manager's tasks do not run in the copy. The copy
//! neither reads, writes nor closes the copied sockets.
//!
//! This module detects the `fork` of the C library. It does not detect a raw `clone` system call, or a virtual machine
//! that is restored from a snapshot.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::base::error::{Error, Result};

/// Identity of a process. A copy by `fork` is another process, although it has the same memory.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Process id, for messages only. The system reuses ids, so a comparison of ids would prove nothing.
    id: u32,
    /// Number of `fork` calls between the first process and this one. To compare this number costs a load and a
    /// comparison, while `getpid` would be a system call.
    forks: forkguard::Guard,
}

impl Process {
    /// Returns the process that runs this code.
    pub(crate) fn current() -> Self {
        Self { id: std::process::id(), forks: forkguard::new() }
    }

    /// Returns true if the calling code runs in this process and not in a copy of it.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // `detected_fork` updates its guard and would report a fork only once, so each check uses a clone.
        !self.forks.clone().detected_fork()
    }

    /// Returns an error in a copy of this process. `lock` is the name of the lock for the error. The name is empty if
    /// the call concerns no lock.
    #[inline]
    pub(crate) fn check(&self, lock: &str) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(self.forked_error(lock)) }
    }

    #[cold]
    fn forked_error(&self, lock: &str) -> Error {
        Error::Forked { lock: Arc::from(lock), process: self.id }
    }

    /// Runs a future in this process only. In a copy of the process, each poll returns an error and does not run the
    /// future.
    pub(crate) fn here<'a, T>(
        &'a self,
        lock: &'a str,
        mut future: Pin<&'a mut (impl Future<Output = Result<T>> + ?Sized)>,
    ) -> impl Future<Output = Result<T>> {
        std::future::poll_fn(move |cx| match self.check(lock) {
            Ok(()) => future.as_mut().poll(cx),
            Err(forked) => Poll::Ready(Err(forked)),
        })
    }
}

/// Spawns a task of this process on the runtime of the calling code.
#[track_caller]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(Bound::new(task))
}

/// Spawns a task of this process on the given runtime.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(Bound::new(task))
}

/// Task that runs only in the process that spawned it. A copy of the process may run its copy of the runtime. The task
/// is then pending for ever.
///
/// If a copy of the process drops the task, the task's future is not dropped but leaked. There are three reasons. A
/// dropped socket would be removed from the epoll instance that the copy shares with the original process. A mutex may
/// have been locked at the moment of the copy. The drop may release holds, and these belong to the original process.
struct Bound<F> {
    process: Process,
    task: Option<Pin<Box<F>>>,
}

impl<F> Bound<F> {
    fn new(task: F) -> Self {
        Self { process: Process::current(), task: Some(Box::pin(task)) }
    }
}

impl<F: Future> Future for Bound<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_here = self.process.is_current();
        match &mut self.task {
            Some(task) if is_here => task.as_mut().poll(cx),
            Some(_) | None => Poll::Pending,
        }
    }
}

impl<F> Drop for Bound<F> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.task.take());
        }
    }
}
