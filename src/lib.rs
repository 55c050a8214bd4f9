//! A distributed read-write lock on Redis or Valkey.
//!
//! ```
//! use redis_rwlock::{MemoryManager, RwLockManager};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> redis_rwlock::Result<()> {
//! let manager = MemoryManager::new(); // or ClusterManager::connect("redis://…").await?
//!
//! let guard = manager.write("cfg").await?;
//! // … write, and hand guard.fencing_token() to the resource …
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised, and what is not
//!
//! Two conflicting holds never overlap while each is inside its local validity, and every grant carries a
//! [`FencingToken`] that grows. No lease lock excludes a holder that was paused past its lease: the resource must check
//! the token. [`ReadGuard::lost`] fires by the local clock, before the server can let anybody else in.
//!
//! A write that a primary acknowledged and lost in a failover takes the hold with it: two holders may then overlap, and
//! only the tokens tell them apart.
//!
//! # Policy
//!
//! Waiting has no limit unless [`Acquire::wait_timeout`] sets one. Between processes [`ClusterManager`] and
//! [`MemoryManager`] are phase-fair: a waiting writer stops new readers, when it leaves all waiting readers enter together,
//! and writers are served first come, first served. A process counts as one: its readers share one hold, its writers hand
//! theirs on, for a bounded time. With [`SingleNodeManager`] whoever asks first after a release is next.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod acquire;
pub mod blocking;
mod clock;
mod departure;
mod engine;
mod error;
mod guard;
mod hold;
mod key;
mod lease;
mod manager;
mod options;
mod pursuit;
mod quest;
mod recent;
mod reentry;
mod renewal;
mod scheme;
#[cfg(test)]
mod simulation;
mod table;
mod topology;
mod transport;
mod turn;
mod view;

pub use acquire::{Acquire, Acquiring};
pub use error::{Error, LossReason, Refusal, Result, Source};
pub use guard::{DowngradeError, Guard, HoldWatch, ReadGuard, TryUpgradeError, WriteGuard};
pub use hold::{Ended, HoldState};
pub use lease::{FencingToken, InvalidToken};
pub use manager::{Build, Builder, ClusterManager, MemoryManager, RwLockManager, SingleNodeManager};
pub use options::PublishedLimits;
pub use reentry::{OwnerId, Reentry};
pub use scheme::{BoxFuture, Mode};
pub use topology::{Tls, Topology};
pub use view::{HolderView, LockView, WaiterView};
