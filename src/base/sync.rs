//! Mutexes and atomic variables that the threads of a manager share.
//!
//! They are those of `parking_lot` and of the standard library. In the tests of the repository, each has a wrapper. Each
//! access through a wrapper is a point at which the scheduler of a test may let another thread run.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/threads/scheduler.rs"]
pub(crate) mod scheduler;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/threads/sync.rs"]
mod wrappers;

#[cfg(not(all(test, feature = "_testing")))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(all(test, feature = "_testing")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
#[cfg(all(test, feature = "_testing"))]
pub(crate) use wrappers::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard};
