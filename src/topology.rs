//! Where the servers are, as a user says it.

use std::fmt;

use crate::error::{Error, Result};

/// Where the servers are. URLs are those of the `redis` crate: `redis://[user][:password@]host[:port][/db]`.
///
/// A single text is a node, a list of texts is a cluster:
///
/// ```
/// use redis_rwlock::Topology;
/// let node: Topology = "redis://127.0.0.1:6379".into();
/// let cluster: Topology = ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"].into();
/// # let _ = (node, cluster);
/// ```
///
/// `Debug` shows no passwords.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Topology(Kind);

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub(crate) enum Kind {
    Node(String),
    Cluster(Vec<String>),
    Sentinel { primary: String, urls: Vec<String> },
}

impl Topology {
    /// One server that is not part of a cluster.
    pub fn node(url: impl Into<String>) -> Self {
        Self(Kind::Node(url.into()))
    }

    /// A cluster, found through any of these nodes. User, password and TLS are taken from the first URL.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self(Kind::Cluster(urls.into_iter().map(Into::into).collect()))
    }

    /// The primary that Sentinels know under this name, wherever they move it.
    ///
    /// The URLs are the Sentinels'. User, password, database and TLS of the first one are used for the primary; a Sentinel
    /// that asks for a password is given the same.
    pub fn sentinel<U: Into<String>>(primary: impl Into<String>, urls: impl IntoIterator<Item = U>) -> Self {
        Self(Kind::Sentinel { primary: primary.into(), urls: urls.into_iter().map(Into::into).collect() })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Refuses what the two-key scheme cannot work on.
    pub(crate) fn check_single(&self) -> Result<()> {
        match &self.0 {
            Kind::Node(_) | Kind::Sentinel { .. } => Ok(()),
            Kind::Cluster(_) => Err(Error::InvalidOption {
                option: "topology",
                reason: "the two-key scheme needs two keys at once, which a migrating slot refuses; use ClusterManager"
                    .to_owned(),
            }),
        }
    }
}

impl From<&str> for Topology {
    fn from(url: &str) -> Self {
        Self::node(url)
    }
}

impl From<String> for Topology {
    fn from(url: String) -> Self {
        Self::node(url)
    }
}

impl<const N: usize> From<[&str; N]> for Topology {
    fn from(urls: [&str; N]) -> Self {
        Self::cluster(urls)
    }
}

impl From<Vec<String>> for Topology {
    fn from(urls: Vec<String>) -> Self {
        Self::cluster(urls)
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Node(url) => f.debug_tuple("Node").field(&without_secrets(url)).finish(),
            Kind::Cluster(urls) => f.debug_tuple("Cluster").field(&all_without_secrets(urls)).finish(),
            Kind::Sentinel { primary, urls } => {
                f.debug_tuple("Sentinel").field(primary).field(&all_without_secrets(urls)).finish()
            }
        }
    }
}

fn all_without_secrets(urls: &[String]) -> Vec<&str> {
    urls.iter().map(|url| without_secrets(url)).collect()
}

/// What follows the last `@`, which separates user and password from the host; without one, what follows the scheme.
/// A query is left out as well.
pub(crate) fn without_secrets(url: &str) -> &str {
    let end_of_host = url.find(['?', '#']).unwrap_or(url.len());
    if url.rfind('@').is_some_and(|at| at > end_of_host) {
        // Part of a query, or of a password that holds a query's marks: nothing of it is safe to show.
        return "…";
    }
    let host = match (url.rfind('@'), url.find("://")) {
        (Some(at), _) => url.get(at + 1..),
        (None, Some(scheme)) => url.get(scheme + 3..),
        (None, None) => None,
    };
    host.and_then(|host| host.split(['?', '#']).next()).unwrap_or("…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secrets() {
        let secret = "s3cr@t";
        let urls = [
            format!("redis://user:{secret}@host:1/2"),
            format!("redis://:{secret}@host:1"),
            format!("rediss://host:1/?password={secret}"),
            format!("redis+unix:///s?user=u&pass=abc@{secret}"),
            secret.to_owned(),
        ];
        for url in urls {
            let shown = format!("{:?} {:?}", Topology::node(&*url), Topology::cluster([&*url]));
            let shown = format!("{shown} {:?}", Topology::sentinel("main", [&*url]));
            assert!(!shown.contains("s3cr"), "{shown}");
        }
    }
}
