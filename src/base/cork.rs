//! Requests that one task sends in one step, for one write of each connection.
//!
//! A connection normally writes a request at once. If a task sends several requests in one poll, this would take
//! several writes. The word is that of the socket option `TCP_CORK`.

use std::cell::{Cell, RefCell};

type Action = Box<dyn FnOnce()>;

thread_local! {
    static IS_CORKED: Cell<bool> = const { Cell::new(false) };
    /// Actions that run after the present step.
    static AFTER_STEP: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
}

/// Ends the step, also if it panics.
struct Uncorks(bool);

impl Drop for Uncorks {
    fn drop(&mut self) {
        IS_CORKED.set(self.0);
        if !self.0 {
            AFTER_STEP.take().into_iter().for_each(|action| action());
        }
    }
}

/// Runs a step, such as the poll of several futures. Connections of this thread write the requests of the step after it.
pub(crate) fn cork<T>(step: impl FnOnce() -> T) -> T {
    let _uncorks = Uncorks(IS_CORKED.replace(true));
    step()
}

/// Returns true during a step that [`cork`] runs on this thread.
#[inline]
pub(crate) fn is_corked() -> bool {
    IS_CORKED.get()
}

/// Runs the action after the step that [`cork`] runs on this thread, or at once if there is none.
pub(crate) fn after_step(action: impl FnOnce() + 'static) {
    if is_corked() {
        AFTER_STEP.with_borrow_mut(|actions| actions.push(Box::new(action)));
    } else {
        action();
    }
}
