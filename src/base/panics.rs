//! Protection against panics in code of users that runs in our threads: subscribers of `tracing`, and wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may call a subscriber or a waker. `None` if it panics; the panic hook has reported the panic then.
pub(crate) fn catch_panic<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}
