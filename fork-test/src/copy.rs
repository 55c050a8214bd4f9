//! A copy of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Time limit of a copy, in seconds. A copy that hangs ends then, and counts as failed.
const MAX_SECS: u32 = 60;

/// Process that was made by `fork`, and runs some code of its own.
#[must_use]
pub(crate) struct Copy(libc::pid_t);

impl Copy {
    /// Copies this process. The copy does its work and ends; a panic in it is a failure.
    #[allow(unsafe_code)]
    pub(crate) fn of_this(work: impl FnOnce()) -> Self {
        // SAFETY: the copy has one thread and a copied heap, which the C library keeps usable. It takes no lock of
        // another thread that this program has: none of its threads prints, and that a manager waits for none is what
        // is tested.
        match unsafe { libc::fork() } {
            -1 => panic!("fork failed: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: sets a timer of the copy, which ends it.
                unsafe { libc::alarm(MAX_SECS) };
                let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok();
                // SAFETY: ends the copy without what `main` has left to do.
                unsafe { libc::_exit(i32::from(!is_done)) }
            }
            id => Self(id),
        }
    }

    /// Waits until the copy has ended, and panics if it failed or hung.
    #[allow(unsafe_code)]
    pub(crate) fn ends_well(self) {
        let mut status = 0;
        // SAFETY: the status is ours to write, and the process is our child, which no other code waits for.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0, "{}", std::io::Error::last_os_error());
        assert!(!libc::WIFSIGNALED(status), "the copy hung or crashed: signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the copy has failed");
    }
}
