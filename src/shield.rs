//! Code of users runs in our threads: subscribers of `tracing`, and wakers. One that panics ends nothing but what it was called for.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does what may run a subscriber or a waker. `None` if that panics, of which the panic hook has told.
pub(crate) fn shielded<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}
