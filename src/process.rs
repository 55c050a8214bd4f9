//! The process that a manager belongs to.
//!
//! `fork` copies a manager with all that it knows: its id, its holds and their tokens, its connections. Two processes would then be
//! one holder. So a manager belongs to the process that built it. In a copy of that process it refuses every call and reports every
//! guard as lost, its tasks stand still, and the copied sockets are neither read, written nor closed.
//!
//! Noticed is what the C library's `fork` does. A process that is made past it (a raw `clone` system call), and a virtual machine that
//! is restored from a snapshot, are not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// Identity of a process. Its copy by `fork` is another process, though all that it has in memory is the same.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Process id, for messages only: the system uses ids again, so to compare them would not do.
    id: u32,
    /// Number of forks that led here, as it was then. Asked with a load and a comparison; `getpid` would be a system call.
    forks: forkguard::Guard,
}

impl Process {
    /// Names the process that runs this code.
    pub(crate) fn current() -> Self {
        Self { id: std::process::id(), forks: forkguard::new() }
    }

    /// Returns whether this code runs in this process, and not in a copy of it.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // The clone is compared: asking the original would make it one of this process.
        !self.forks.clone().detected_fork()
    }

    /// Fails in a copy of this process. `lock` is the name of the lock that is asked for; empty for none.
    #[inline]
    pub(crate) fn check(&self, lock: &str) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(self.forked(lock)) }
    }

    #[cold]
    pub(crate) fn forked(&self, lock: &str) -> Error {
        Error::Forked { lock: Arc::from(lock), process: self.id }
    }

    /// Goes on with a caller's future in this process only. In a copy it fails at the next poll, before anything is done.
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

/// Spawns a task of this process on the runtime of its caller.
#[track_caller]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(Bound::new(task))
}

/// Spawns a task of this process on a runtime.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(Bound::new(task))
}

/// A task that runs in the process that spawned it. A runtime that was copied, and is driven in the copy, finds it pending for ever.
/// Dropped there, it is forgotten: dropping a socket takes it out of the poll of the process that uses it, a mutex may have been
/// copied locked, and what a task takes back when it ends is the other process's.
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
