//! Locks and floors under one face.

mod bare;
mod deadpool;
mod distkit;
mod ours;
mod published;
mod rlock;
mod rslock;

use std::time::Duration;

use futures_util::future::BoxFuture;

/// So long that nobody's lease ends in a turn.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// One client: what a process has that uses this lock.
pub(crate) trait Peer: Send + Sync {
    /// Waits for the lock.
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>>;
}

/// A lock that is held.
pub(crate) trait Held: Send {
    /// Gives it back, and returns when the server has it.
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Which lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ours,
    OursTwoKeys,
    OursInMemory,
    Rlock,
    Rslock,
    Distkit,
    Published,
    /// Our scripts, with a connection of a pool for each command.
    Deadpool,
    /// Our scripts and nothing around.
    Floor1,
    /// What a lock's script cannot do without, twice.
    FloorLockShaped,
    /// Two scripts that do nothing.
    Floor0,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::Ours,
        Self::OursTwoKeys,
        Self::OursInMemory,
        Self::Rlock,
        Self::Rslock,
        Self::Distkit,
        Self::Published,
        Self::Deadpool,
        Self::Floor1,
        Self::FloorLockShaped,
        Self::Floor0,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "redis-rwlock, hash",
            Self::OursTwoKeys => "redis-rwlock, two keys",
            Self::OursInMemory => "redis-rwlock, memory",
            Self::Rlock => "rlock 0.2.0",
            Self::Rslock => "rslock 0.10.0",
            Self::Distkit => "distkit 0.7.1",
            Self::Published => "published hash scheme, asked every 10 ms",
            Self::Deadpool => "floor: our scripts, deadpool per command",
            Self::Floor1 => "floor: our scripts, bare",
            Self::FloorLockShaped => "floor: lock-shaped scripts, bare",
            Self::Floor0 => "floor: no-op scripts, bare",
        }
    }

    pub(crate) fn has(self, mode: Mode) -> bool {
        self != Self::Rslock || mode == Mode::Write
    }

    /// Whether it keeps anybody out.
    pub(crate) fn is_lock(self) -> bool {
        !matches!(self, Self::Deadpool | Self::Floor1 | Self::FloorLockShaped | Self::Floor0)
    }

    /// Whether clients in different processes see one another.
    pub(crate) fn is_distributed(self) -> bool {
        self.is_lock() && self != Self::OursInMemory
    }

    pub(crate) async fn connect(self, url: &str) -> Box<dyn Peer> {
        match self {
            Self::Ours => ours::hash(url).await,
            Self::OursTwoKeys => ours::two_keys(url).await,
            Self::OursInMemory => ours::memory(),
            Self::Rlock => rlock::connect(url).await,
            Self::Rslock => rslock::connect(url),
            Self::Distkit => distkit::connect(url).await,
            Self::Published => published::connect(url).await,
            Self::Deadpool => deadpool::connect(url).await,
            Self::Floor1 => bare::connect(url, bare::Pair::Ours).await,
            Self::FloorLockShaped => bare::connect(url, bare::Pair::LockShaped).await,
            Self::Floor0 => bare::connect(url, bare::Pair::NoOp).await,
        }
    }
}
