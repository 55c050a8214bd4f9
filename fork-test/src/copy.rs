//! Copy of this process, made by `fork`.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Time limit of a copy, in seconds. A copy that hangs is ended after this time, and counts as failed.
const MAX_SECS: u32 = 60;

/// Child process that `fork` has made.
#[must_use]
pub struct Copy(libc::pid_t);

impl Copy {
    /// Copies this process. The copy does `work` and ends. A panic in `work` is a failure.
    #[allow(unsafe_code)]
    pub fn of_this(work: impl FnOnce()) -> Self {
        // SAFETY: the copy has one thread and a copied heap, which the C library keeps usable. The copy must not wait
        // for a lock that another thread held at the fork. No other thread of this program prints. The tests check that
        // a manager waits for no such lock.
        match unsafe { libc::fork() } {
            -1 => panic!("fork failed: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: sets a timer that ends the copy.
                unsafe { libc::alarm(MAX_SECS) };
                let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok();
                // SAFETY: ends the copy without the rest of `main`.
                unsafe { libc::_exit(i32::from(!is_done)) }
            }
            id => Self(id),
        }
    }

    /// Waits until the copy has ended, and panics if it failed or hung.
    #[allow(unsafe_code)]
    pub fn ends_well(self) {
        let mut status = 0;
        // SAFETY: the status is a local variable. The process is a child of this process, and no other code waits for
        // it.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0, "{}", std::io::Error::last_os_error());
        assert!(!libc::WIFSIGNALED(status), "the copy hung or crashed: signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the copy has failed");
    }
}
