//! Starts real Redis and Valkey servers for tests, causes faults in them, and leaves nothing behind.
//!
//! ```no_run
//! use cluster_testenv::{Cluster, Node, Server};
//!
//! # fn main() -> Result<(), cluster_testenv::Error> {
//! let node = Node::start(Server::Redis70)?;
//! node.command(&["SET", "name", "value"])?.into_result()?;
//! node.kill();
//! node.restart()?;
//!
//! let cluster = Cluster::start(Server::Valkey91)?;
//! cluster.primary_of_slot(cluster.keyslot("name")).pause();
//! # Ok(())
//! # }
//! ```
//!
//! Threads may share an environment ([`Node`], [`Masters`], [`Cluster`], [`Sentinels`]), and most methods take `&self`.
//! The drop of an environment stops its servers. If the process ends without the drop (a `static`, `exit`, `kill -9`),
//! the guardian of the environment stops the servers. The guardian is a small shell process.
//!
//! A [`Proxy`] in front of a server simulates a bad network, down to the reply of one chosen request. A
//! [`RoutingProxy`] in front of a cluster has one address for all of its nodes.
//!
//! The servers come from `cluster-testenv/install`, or from the environment variables that [`Server`] names. A missing
//! server is an error, so no test is skipped silently. The crate needs Linux.
#![allow(unreachable_pub)] // most modules are private to the crate

mod abilities;
mod client;
mod clock;
mod cluster;
mod error;
mod failover;
mod faults;
mod formation;
mod guardian;
mod masters;
mod migration;
mod node;
mod port;
mod process;
mod proxy;
mod replication;
mod reply;
mod routing_proxy;
mod sentinel;
mod server;
mod tls;
mod topology;
mod wait;

pub use client::Client;
pub use clock::NodeClock;
pub use cluster::{Cluster, ClusterBuilder};
pub use error::Error;
pub use faults::RefusedClients;
pub use masters::Masters;
pub use migration::SlotMigration;
pub use node::{Node, NodeBuilder};
pub use proxy::{Fault, HeldReply, HeldRequest, Matcher, Proxy, Request};
pub use reply::Reply;
pub use routing_proxy::RoutingProxy;
pub use sentinel::{Sentinels, SentinelsBuilder};
pub use server::Server;
pub use tls::{Certificates, TlsClients};
pub use wait::wait_for;

/// Result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
