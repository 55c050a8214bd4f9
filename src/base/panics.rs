//! Protection against panics in user code that the threads of this crate run: subscribers of `tracing`, and wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may call a subscriber or a waker. Returns `None` if the code panics. The panic hook reports the panic
/// as usual.
pub(crate) fn catch_panic<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}
