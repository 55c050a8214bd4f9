//! Sources of server addresses, and the mapping from announced addresses to reachable addresses.

use std::fmt;
use std::sync::Arc;

type Mapping = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// Mapping that the user gave to [`Topology::remap`](crate::Topology::remap). Two values are equal if they are clones
/// of one value.
#[derive(Clone)]
pub(crate) struct Remap(Arc<Mapping>);

impl Remap {
    pub(crate) fn new(mapping: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        Self(Arc::new(mapping))
    }

    pub(crate) fn of(&self, host: &str, port: u16) -> (String, u16) {
        (self.0)(host, port)
    }
}

impl PartialEq for Remap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Remap {}

/// Source of a server's address, in [`NodeHealth`](crate::NodeHealth). Errors contain the [`Display`](fmt::Display)
/// text of the source.
///
/// # Examples
///
/// ```
/// use redis_rwlock::{AddressSource, MemoryManager, RwLockManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// for node in manager.health().await?.nodes {
///     if !node.is_reachable && node.address_source != AddressSource::User {
///         eprintln!("{} cannot be reached: it was {}", node.address, node.address_source);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AddressSource {
    /// The user named the address.
    #[default]
    User,
    /// A member of the cluster announced the address.
    #[non_exhaustive]
    Cluster {
        /// Address of the cluster member that announced the address.
        at: String,
        /// Address that the member announced, if [`remap`](crate::Topology::remap) changed this address.
        announced: Option<String>,
    },
    /// A Sentinel announced the address.
    #[non_exhaustive]
    Sentinel {
        /// Address of the Sentinel that announced the address.
        at: String,
        /// Address that the Sentinel announced, if [`remap`](crate::Topology::remap) changed this address.
        announced: Option<String>,
    },
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, at, announced) = match self {
            Self::User => return f.write_str("named by the user"),
            Self::Cluster { at, announced } => ("the cluster at", at, announced),
            Self::Sentinel { at, announced } => ("the Sentinel at", at, announced),
        };
        f.write_str("announced ")?;
        if let Some(announced) = announced {
            write!(f, "as {announced} ")?;
        }
        write!(f, "by {by} {at}")
    }
}
