//! Distributed read-write lock on Redis or Valkey.
//!
//! ```
//! use redis_rwlock::{MemoryManager, RwLockManager};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> redis_rwlock::Result<()> {
//! let manager = MemoryManager::new(); // or RedisManager::connect("redis://…").await?
//!
//! let guard = manager.write("cfg").await?;
//! // … write, and hand guard.fencing_token() to the resource …
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which manager
//!
//! | manager | on | for |
//! |---|---|---|
//! | [`RedisManager`] | one node, Sentinel, a cluster | services: the recommended manager |
//! | [`QuorumManager`] | 3 or 5 independent masters | a server may be lost with all its data; there is no queue |
//! | [`TwoKeyManager`] | one node, Sentinel | a simpler layout, two keys for each lock |
//! | [`MemoryManager`] | this process | tests |
//!
//! Each of them implements [`RwLockManager`], so code can take an `Arc<dyn RwLockManager>`. Module [`blocking`] has
//! them for threads without a runtime.
//!
//! # Cargo features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tls` | yes | `rediss://` URLs |
//! | `serde` | no | `Config` from files and the environment; views that serialize |
//! | `metrics` | no | metrics, reported to the facade of the crate `metrics` |
//!
//! The package `redis-rwlock-cli` has the program `redis-rwlock` for the command line of Unix.
//!
//! # Guides
//!
//! In the package:
//!
//! * [`docs/GUARANTEES.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/GUARANTEES.md): promises, level by level
//! * [`docs/RELIABILITY.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/RELIABILITY.md): each fault and its consequences
//! * [`docs/FENCING.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/FENCING.md): how a resource checks tokens
//! * [`docs/OPERATIONS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/OPERATIONS.md): servers, rights, all options, a runbook
//! * [`docs/CACHED_HOLDS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/CACHED_HOLDS.md): cached holds
//! * [`docs/LOGS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/LOGS.md): events and spans
//! * [`docs/METRICS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/METRICS.md): metrics, alert rules and a dashboard
//! * [`docs/CLI.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/CLI.md): the program
//! * [`docs/MIGRATION.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/MIGRATION.md): from Redisson, Redlock and others
//! * [`docs/PERFORMANCE.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/PERFORMANCE.md): compared with other locks
//! * [`examples`](https://docs.rs/crate/redis-rwlock/latest/source/examples/README.md): programs that run
//!
//! Most used: [`RwLockManager::read`] and [`write`](RwLockManager::write), [`Acquire`] (options of one acquisition, and
//! [`run`](Acquire::run)), [`ReadGuard`] and [`WriteGuard`], [`Builder`] (all options), [`Topology`], [`Error`].
//!
//! # What is promised, and what is not
//!
//! Two conflicting holds never overlap while each is inside its local validity, and every grant has a [`FencingToken`]
//! that grows. No lease lock excludes a holder that was paused past its lease: the resource must check the token.
//! [`ReadGuard::lost`] resolves by the local clock, before the server can let another holder in.
//!
//! If a primary acknowledges a write and loses it in a failover, the hold is lost with it. Then two holders may
//! overlap, and only the tokens distinguish them. With [`Durability::Replicated`] a grant counts only if replicas have
//! it, and with [`QuorumManager`] only if a majority of independent masters has it.
//!
//! # Policy
//!
//! Waiting has no limit unless [`Acquire::wait_timeout`] sets one. Between processes [`RedisManager`] and
//! [`MemoryManager`] are phase-fair: a waiting writer stops new readers, and when it leaves, all waiting readers enter
//! together. Writers are served first come, first served. A process counts as one: its readers share one hold, and its
//! writers hand theirs off, for a bounded time. With [`TwoKeyManager`] a release notifies the next waiters; another
//! process that asks before them enters first.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod base;
mod engine;
mod face;
mod lock;
mod net;
mod store;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/testing.rs"]
mod testing;

pub use base::attempt::BoxFuture;
pub use base::durability::Durability;
#[cfg(feature = "serde")]
pub use base::duration_text::{DurationText, InvalidDuration};
pub use base::error::{Error, LossReason, Refusal, Result, Source};
pub use base::health::{Health, NodeFinding, NodeHealth, NodeRole, Stats};
pub use base::lease::{FencingToken, InvalidToken};
pub use base::mode::Mode;
pub use base::options::TimestampClients;
pub use base::reentry::{OwnerId, Reentry};
pub use base::topology::{AddressSource, Tls, Topology};
pub use face::acquire::{Acquire, Acquiring};
pub use face::blocking;
#[cfg(feature = "serde")]
pub use face::config::{Config, VariableOwner};
pub use face::guard::{DowngradeError, Guard, HoldWatch, ReadGuard, TryUpgradeError, WriteGuard};
pub use face::manager::{Build, Builder, MemoryManager, QuorumManager, RedisManager, RwLockManager, TwoKeyManager};
pub use lock::end::{Ended, HoldState};
pub use store::view::{HolderView, LockView, WaiterView};
