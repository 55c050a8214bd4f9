//! Task of which at most one runs at a time, although many callers want it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::sync::AtomicBool;

/// Right to run a task of one kind.
#[derive(Debug, Default)]
pub(crate) struct SingleTask(Arc<AtomicBool>);

/// Mark of the running task. Its drop marks the task as ended, for example because the runtime has ended.
#[derive(Debug)]
pub(crate) struct Running(Arc<AtomicBool>);

impl SingleTask {
    /// Returns the mark, if no such task runs. The caller must then start the task.
    pub(crate) fn begin(&self) -> Option<Running> {
        // Usually the task runs. So the flag is read first, because a swap would write to a cache line that all threads
        // read.
        (!self.0.load(Ordering::SeqCst) && !self.0.swap(true, Ordering::SeqCst)).then(|| Running(Arc::clone(&self.0)))
    }
}

impl Running {
    /// Ends the task. If `has_more` returns true afterwards, the task has to go on, and this function returns the mark,
    /// unless another task has begun. A caller that adds work before that check may have found the task still running,
    /// so it started none.
    pub(crate) fn end_unless(self, has_more: impl FnOnce() -> bool) -> Option<Self> {
        let flag = Arc::clone(&self.0);
        drop(self);
        (has_more() && !flag.swap(true, Ordering::SeqCst)).then(|| Self(flag))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_runs_until_its_mark_is_dropped() {
        let task = SingleTask::default();
        let running = task.begin().expect("none runs");
        assert!(task.begin().is_none());
        drop(running);
        assert!(task.begin().is_some());
    }

    #[test]
    fn task_goes_on_if_work_was_added_while_it_ended() {
        let task = SingleTask::default();
        let running = task.begin().expect("none runs").end_unless(|| true).expect("it goes on");
        assert!(task.begin().is_none());
        assert!(running.end_unless(|| false).is_none());
        assert!(task.begin().is_some());
    }

    #[test]
    fn task_ends_if_another_one_has_begun_with_the_work() {
        let task = SingleTask::default();
        let mut other = None;
        let ended = task.begin().expect("none runs").end_unless(|| {
            other = task.begin();
            true
        });
        assert!(ended.is_none() && other.is_some());
        assert!(task.begin().is_none());
    }
}
