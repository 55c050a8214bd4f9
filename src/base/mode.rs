//! Sides of a lock: readers and writers.

use std::fmt;

/// Side of a lock. [`inspect`](crate::RwLockManager::inspect) shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[allow(clippy::exhaustive_enums)] // there is no third side to a read-write lock
pub enum Mode {
    /// Readers. A reader shares the lock with other readers.
    Read,
    /// Writers. A writer holds the lock alone.
    Write,
}

impl Mode {
    /// Returns true if holds of these two modes exclude each other.
    pub(crate) fn excludes(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
