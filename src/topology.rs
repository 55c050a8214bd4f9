//! Where the servers are, as a user says it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Where the servers are. URLs are those of the `redis` crate: `redis://[user][:password@]host[:port][/db]`, or `rediss://…`
/// for [TLS](Tls), or `redis+unix:///path[?db=…&user=…&pass=…]` for one node. What a URL cannot hold is percent-encoded.
///
/// A single text is a node, a list of texts is a cluster:
///
/// ```
/// use redis_rwlock::Topology;
/// let node: Topology = "redis://127.0.0.1:6379".into();
/// assert_eq!(node, Topology::node("redis://127.0.0.1:6379"));
/// let from_the_environment = String::from("redis://127.0.0.1:6379");
/// assert_eq!(node, Topology::from(&from_the_environment));
/// let cluster: Topology = ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"].into();
/// assert_eq!(cluster, Topology::cluster(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]));
/// ```
///
/// With the cargo feature `serde` it can be read from a configuration, as `{"node": url}`, `{"cluster": [url, …]}` or
/// `{"sentinel": {"primary": name, "urls": [url, …]}}`. [`Config`](crate::Config) has the files of certificates as well.
///
/// `Debug` shows no passwords and no keys.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Kind"))]
pub struct Topology {
    kind: Kind,
    tls: Tls,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub(crate) enum Kind {
    Node(String),
    Cluster(Vec<String>),
    Sentinel { primary: String, urls: Vec<String> },
}

impl From<Kind> for Topology {
    fn from(kind: Kind) -> Self {
        Self { kind, tls: Tls::new() }
    }
}

impl Topology {
    /// One server that is not part of a cluster.
    pub fn node(url: impl Into<String>) -> Self {
        Kind::Node(url.into()).into()
    }

    /// A cluster, found through any of these nodes. User and password are taken from the first URL. A cluster has no
    /// databases but the first, 0.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Kind::Cluster(urls.into_iter().map(Into::into).collect()).into()
    }

    /// The primary that Sentinels know under this name, wherever they move it.
    ///
    /// The URLs are the Sentinels'. User, password and database of the first one are used for the primary; a Sentinel that
    /// does not answer strangers is given the one of its URL. The Sentinels are believed by majority, so name them all.
    ///
    /// ```
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let sentinels = ["redis://:secret@10.0.0.1:26379/3", "redis://:secret@10.0.0.2:26379", "redis://:secret@10.0.0.3:26379"];
    /// let manager = RedisManager::builder(Topology::sentinel("mymaster", sentinels)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel<U: Into<String>>(primary: impl Into<String>, urls: impl IntoIterator<Item = U>) -> Self {
        Kind::Sentinel { primary: primary.into(), urls: urls.into_iter().map(Into::into).collect() }.into()
    }

    /// The certificates for `rediss://` URLs. Without this call the public authorities are trusted, and no client
    /// certificate is shown.
    ///
    /// Either all URLs of a topology are `rediss://` or none is, and what is found through them speaks TLS as well: the other
    /// nodes of a cluster, the primary that Sentinels name.
    ///
    /// ```no_run
    /// use redis_rwlock::{RedisManager, Tls, Topology};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let read = |name: &str| std::fs::read(format!("/etc/locks/{name}.pem"));
    /// let tls = Tls::new().ca_pem(read("ca")?).client_pem(read("client")?, read("client-key")?);
    /// let cluster = Topology::cluster(["rediss://10.0.0.1:6379", "rediss://10.0.0.2:6379"]).tls(tls);
    /// let manager = RedisManager::builder(cluster).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// The same with what is in the files that it names.
    pub(crate) fn read_files(mut self) -> Result<Self> {
        self.tls = self.tls.read()?;
        Ok(self)
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn certificates(&self) -> &Tls {
        &self.tls
    }

    /// Refuses what the two-key scheme cannot work on.
    pub(crate) fn check_single(&self) -> Result<()> {
        match &self.kind {
            Kind::Node(_) | Kind::Sentinel { .. } => Ok(()),
            Kind::Cluster(_) => Err(Error::InvalidOption {
                option: "topology",
                reason: "the two-key scheme needs two keys at once, which a migrating slot refuses; use RedisManager"
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

impl From<&String> for Topology {
    fn from(url: &String) -> Self {
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
        let mut shown = match &self.kind {
            Kind::Node(_) => f.debug_tuple("Node"),
            Kind::Cluster(_) => f.debug_tuple("Cluster"),
            Kind::Sentinel { .. } => f.debug_tuple("Sentinel"),
        };
        match &self.kind {
            Kind::Node(url) => shown.field(&without_secrets(url)),
            Kind::Cluster(urls) => shown.field(&all_without_secrets(urls)),
            Kind::Sentinel { primary, urls } => shown.field(primary).field(&all_without_secrets(urls)),
        };
        if self.tls != Tls::new() {
            shown.field(&self.tls);
        }
        shown.finish()
    }
}

/// Whom a connection with TLS trusts, and what it shows of itself. Needs the cargo feature `tls`, which is a default one;
/// without it a `rediss://` URL is an [`InvalidOption`](Error::InvalidOption).
///
/// Certificates are always checked, and so is that they were made for the host of the URL, or for the address under which a
/// cluster or Sentinels list a node. `rediss://…/#insecure` is refused.
///
/// * Bad certificates or keys: `build` fails with [`InvalidOption`](Error::InvalidOption), and nothing is sent.
/// * A server whose certificate is not trusted, or was made for another host:
///   [`Refusal::Untrusted`](crate::Refusal::Untrusted), at once.
/// * A server that turns our certificate down, or wants one and is shown none:
///   [`Refusal::Unauthenticated`](crate::Refusal::Unauthenticated), as soon as the server says so.
/// * TLS where the server speaks none, or none where it speaks TLS: [`Unreachable`](Error::Unreachable) after
///   [`unreachable_after`](crate::Builder::unreachable_after).
///
/// The cryptography is that of the process: what the application has installed as the default
/// `rustls::crypto::CryptoProvider` before it builds a manager, else `ring`, which is then installed.
///
/// Defaults to the public authorities that Mozilla trusts and no client certificate; [`Topology::tls`] has an example.
/// `Debug` shows neither certificates nor keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    ca_pem: Option<Vec<u8>>,
    client_pem: Option<ClientPem>,
    /// To be read when the manager is built.
    ca_file: Option<PathBuf>,
    client_files: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClientPem {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    /// Trusts the public authorities, shows no certificate. Others: see [`Topology::tls`](Topology::tls).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this PEM text, one or more, and no other; see [`Topology::tls`](Topology::tls).
    #[must_use]
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(certificates.into());
        self
    }

    /// Shows this certificate, followed by those between it and its authority if there are any, and proves it with its key
    /// (PKCS #8, PKCS #1 or SEC 1); both as PEM text. See [`Topology::tls`](Topology::tls).
    #[must_use]
    pub fn client_pem(mut self, certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_pem = Some(ClientPem { certificates: certificates.into(), key: key.into() });
        self
    }

    /// The same as [`ca_pem`](Tls::ca_pem) from a file, which `build` reads; it counts more than that. One that cannot be read is an
    /// [`InvalidOption`](Error::InvalidOption).
    ///
    /// ```no_run
    /// use redis_rwlock::{RedisManager, Tls, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let tls = Tls::new().ca_file("/etc/locks/ca.pem").client_files("/etc/locks/client.pem", "/etc/locks/client-key.pem");
    /// let manager = RedisManager::builder(Topology::node("rediss://10.0.0.1:6379").tls(tls)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// The same as [`client_pem`](Tls::client_pem) from two files, which `build` reads; see [`ca_file`](Tls::ca_file).
    #[must_use]
    pub fn client_files(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_files = Some((certificates.into(), key.into()));
        self
    }

    /// The same with what is in the files.
    pub(crate) fn read(mut self) -> Result<Self> {
        if let Some(path) = self.ca_file.take() {
            self.ca_pem = Some(read(&path)?);
        }
        if let Some((certificates, key)) = self.client_files.take() {
            self.client_pem = Some(ClientPem { certificates: read(&certificates)?, key: read(&key)? });
        }
        Ok(self)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let refused = |error| match path.as_os_str().is_empty() {
        true => "a client certificate and its key need each other".to_owned(),
        false => format!("{} cannot be read: {error}", path.display()),
    };
    std::fs::read(path).map_err(|error| Error::InvalidOption { option: "tls", reason: refused(error) })
}

#[cfg(feature = "tls")]
impl Tls {
    pub(crate) fn authorities(&self) -> Option<&[u8]> {
        self.ca_pem.as_deref()
    }

    pub(crate) fn client(&self) -> Option<&ClientPem> {
        self.client_pem.as_ref()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |is_set: bool| if is_set { "given" } else { "default" };
        let ca = shown(self.ca_pem.is_some() || self.ca_file.is_some());
        let client = shown(self.client_pem.is_some() || self.client_files.is_some());
        write!(f, "Tls {{ ca: {ca}, client: {client} }}")
    }
}

pub(crate) fn all_without_secrets(urls: &[String]) -> Vec<&str> {
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

    #[cfg(feature = "serde")]
    #[test]
    fn configurations_read_as_documented() {
        use serde::Deserialize;
        use serde::de::value::{Error, MapAccessDeserializer, MapDeserializer};

        let node = MapDeserializer::<_, Error>::new([("node", "redis://a")].into_iter());
        let node = Topology::deserialize(MapAccessDeserializer::new(node)).expect("a node");
        assert_eq!(node, Topology::node("redis://a"));
        let cluster = MapDeserializer::<_, Error>::new([("cluster", vec!["redis://a", "redis://b"])].into_iter());
        let cluster = Topology::deserialize(MapAccessDeserializer::new(cluster)).expect("a cluster");
        assert_eq!(cluster, Topology::cluster(["redis://a", "redis://b"]));
        assert_ne!(cluster.clone().tls(Tls::new().ca_pem("x")), cluster);
    }

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
