//! Protection against panics in code of users that our threads run: subscribers of `tracing`, and wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may call a subscriber or a waker. Returns `None` if the code panics, after the panic hook has
/// reported the panic.
pub(crate) fn catch_panic<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}
