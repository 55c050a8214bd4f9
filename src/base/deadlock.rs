//! Possible deadlocks, as [`deadlocks`](crate::RwLockManager::deadlocks) returns them.

use std::fmt;
use std::time::Duration;

use crate::base::duration_text::DurationText;
use crate::base::mode::Mode;

/// Possible deadlock: a cycle of waits. Each wait is for a holder that waits itself, in the next wait of the cycle.
///
/// It is only *possible*, because a process may have several tasks: the task that holds a lock need not be the one that
/// waits. [`deadlocks`](crate::RwLockManager::deadlocks) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cycle {
    /// Waits of the cycle, in order. The last one is for the holder that waits in the first one.
    pub waits: Vec<CycleWait>,
}

/// Wait in a [`Cycle`], which [`deadlocks`](crate::RwLockManager::deadlocks) returns.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CycleWait {
    /// Name of the lock.
    pub lock: String,
    /// Label of the waiter's manager.
    pub waiter: String,
    /// Side of the lock for which the waiter waits.
    pub mode: Mode,
    /// Time since the waiter entered the queue.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::waiting"))]
    pub waiting: Duration,
    /// Label of the manager that is in the waiter's way.
    pub holder: String,
    /// Side of the lock that this manager has, or for which it waits.
    pub holder_mode: Mode,
    /// Time since the grant of the holder, or since it entered the queue.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::age"))]
    pub age: Duration,
    /// True if the manager in the way holds the lock. False if it waits for the lock, and comes before this waiter.
    pub is_held: bool,
    /// True if waiter and holder are tasks of the process that looked. Servers do not know of such a wait.
    pub is_local: bool,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("possible deadlock: ")?;
        for (n, wait) in self.waits.iter().enumerate() {
            let separator = if n == 0 { "" } else { "; " };
            write!(f, "{separator}{wait}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CycleWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, waiter, mode, waiting, holder, holder_mode, age, is_held, is_local } = self;
        write!(f, "{waiter:?} waits to {mode} {lock:?} for {}, ", DurationText(*waiting))?;
        f.write_str(if *is_held { "held by " } else { "behind the waiter " })?;
        if *is_local {
            f.write_str("a task of the same process")?;
        } else {
            write!(f, "{holder:?}")?;
        }
        write!(f, " ({holder_mode}, for {})", DurationText(*age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycle_is_told_in_words_without_characters_that_act_unseen() {
        let wait = |waiter: &str, holder: &str| CycleWait {
            lock: "cfg\u{1b}".to_owned(),
            waiter: waiter.to_owned(),
            mode: Mode::Write,
            waiting: Duration::from_millis(1500),
            holder: holder.to_owned(),
            holder_mode: Mode::Read,
            age: Duration::from_secs(2),
            is_held: true,
            is_local: false,
        };
        let behind = CycleWait { is_held: false, is_local: true, ..wait("b", "a\u{202e}") };
        assert_eq!(
            Cycle { waits: vec![wait("a\u{202e}", "b"), behind] }.to_string(),
            "possible deadlock: \"a\\u{202e}\" waits to write \"cfg\\u{1b}\" for 1.5s, held by \"b\" (read, for 2s); \
             \"b\" waits to write \"cfg\\u{1b}\" for 1.5s, behind the waiter a task of the same process (read, for 2s)"
        );
    }
}
