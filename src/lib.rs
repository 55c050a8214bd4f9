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
//! | [`RedisManager`] | one node, Sentinel, a cluster | services; the recommended manager |
//! | [`QuorumManager`] | 3 or 5 independent masters | locks that survive a server that loses its data; waiters have no order |
//! | [`TwoKeyManager`] | one node, Sentinel | a simpler layout of the data on the server, with two keys for each lock |
//! | [`RedissonManager`] | one node, Sentinel, a cluster | locks that services in Java share, through Redisson |
//! | [`MemoryManager`] | this process | tests |
//!
//! All of them implement [`RwLockManager`], so code can take an `Arc<dyn RwLockManager>`. The module [`blocking`] has the
//! same managers for threads without a tokio runtime.
//!
//! # Cargo features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tls` | yes | `rediss://` URLs |
//! | `serde` | no | `Config` from files or environment variables; `Serialize` for lock views and health reports |
//! | `metrics` | no | metrics of locks and requests, through the crate `metrics` |
//! | `streaming-credentials` | no | `Topology::streaming_credentials`, for providers of the crate `redis` |
//!
//! The package `redis-rwlock-cli` contains `redis-rwlock`, a command-line program for Unix.
//!
//! # Guides
//!
//! The package contains these documents:
//!
//! * [`docs/GUARANTEES.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/GUARANTEES.md): guarantees at each
//!   level of durability
//! * [`docs/RELIABILITY.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/RELIABILITY.md): faults and their
//!   consequences
//! * [`docs/FENCING.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/FENCING.md): how a resource checks tokens
//! * [`docs/SERVERS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/SERVERS.md): servers and managed services
//!   where the crate works, and what to set there
//! * [`docs/OPERATIONS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/OPERATIONS.md): servers, access
//!   rights, all options, a runbook
//! * [`docs/CACHED_HOLDS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/CACHED_HOLDS.md): holds that a
//!   process keeps without a guard, to save requests
//! * [`docs/LOGS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/LOGS.md): log events and tracing spans
//! * [`docs/METRICS.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/METRICS.md): metrics, alert rules and a dashboard
//! * [`docs/CLI.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/CLI.md): the program `redis-rwlock`
//! * [`docs/RECIPES.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/RECIPES.md): single flight, leader, once
//!   a night, several names, OpenTelemetry, tests of a service, and what to type in place of `flock`
//! * [`docs/MIGRATION.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/MIGRATION.md): migration from
//!   Redisson, Redlock and others
//! * [`docs/PERFORMANCE.md`](https://docs.rs/crate/redis-rwlock/latest/source/docs/PERFORMANCE.md): measurements,
//!   compared with other locks
//! * [`examples`](https://docs.rs/crate/redis-rwlock/latest/source/examples/README.md): example programs
//!
//! The most used items are [`RwLockManager::read`] and [`write`](RwLockManager::write), [`Acquire`] (options of one
//! acquisition, and [`run`](Acquire::run)), [`ReadGuard`] and [`WriteGuard`], [`Builder`] (all options), [`Topology`]
//! and [`Error`].
//!
//! # What is promised, and what is not
//!
//! A *hold* is the right that the server grants to this process. The server keeps a hold for the time of a *lease*, and
//! the manager renews the hold before its lease is over. The process relies on a hold for a shorter time than the
//! lease. This shorter time is the *local validity* of the hold. Two conflicting holds never overlap while each of them
//! is within its local validity. [`ReadGuard::lost`] resolves at the end of the local validity, before the server can
//! grant the lock to another process.
//!
//! A process may be paused for longer than its lease and then continue as if it still held the lock. No lock with
//! leases can prevent that. So each hold has a [`FencingToken`], a number. Each later holder has a greater token, and
//! only readers that hold the lock at the same time may share one. The resource that the lock protects must check the
//! token.
//!
//! A failover can lose a grant that the old primary has acknowledged. Then two holders may overlap, and the resource
//! can tell them apart only by their tokens. With [`Durability::Replicated`], a grant counts only after replicas have
//! received it. With [`QuorumManager`], a grant counts only after a majority of independent masters has made it.
//!
//! # Policy
//!
//! An acquisition waits without a limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one.
//!
//! Between processes, [`RedisManager`] and [`MemoryManager`] are phase-fair. A waiting writer keeps new readers out.
//! When that writer releases the lock, all waiting readers acquire it together. Writers acquire the lock in the order
//! in which they began to wait.
//!
//! Within a process, readers share one hold. A writer can hand its hold off to the next writer of the process. The time
//! and the number of such hand-offs in a series are limited.
//!
//! With [`TwoKeyManager`], the server notifies the next waiters after a release, and these waiters ask again. If a
//! request of another process arrives first, that process gets the lock. With [`QuorumManager`], acquisitions succeed
//! in no fixed order.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../docs/RECIPES.md")]
struct Recipes;

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
pub use base::credentials::Credentials;
pub use base::deadlock::{Cycle, CycleWait};
pub use base::denied::{Denied, DenyingHolder};
pub use base::durability::{Durability, Replicas};
pub use base::duration_text::{DurationText, InvalidDuration};
pub use base::error::{Error, LossReason, Refusal, Result, Source};
pub use base::health::{Health, NodeFinding, NodeHealth, NodeRole, Stats};
pub use base::lease::{FencingToken, InvalidToken};
pub use base::mode::Mode;
pub use base::options::TimestampClients;
pub use base::reentry::{OwnerId, Reentry};
pub use base::ticket::Ticket;
pub use base::topology::{AddressSource, Tls, Topology};
pub use face::acquire::{Acquire, Acquiring};
pub use face::blocking;
#[cfg(feature = "serde")]
pub use face::config::{Config, VariableOwner};
pub use face::group::{
    AcquireAll, AcquiringAll, GroupDenied, GroupGuard, GroupLock, GroupLoss, NamedLock, read, write,
};
pub use face::guard::{DowngradeError, Guard, HoldWatch, ReadGuard, TryUpgradeError, WriteGuard};
pub use face::manager::{
    Build, Builder, MemoryManager, QuorumManager, RedisManager, RedissonManager, RwLockManager, TwoKeyManager,
};
pub use face::ticket::DetachError;
pub use lock::end::{Ended, HoldState};
pub use store::view::{HolderView, LockView, WaiterView};
