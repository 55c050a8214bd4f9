//! Topology: the addresses and credentials of the servers, as the user gives them.

use std::fmt;
use std::path::PathBuf;
#[cfg(feature = "streaming-credentials")]
use std::sync::Arc;

#[cfg(feature = "streaming-credentials")]
use redis::StreamingCredentialsProvider;

use crate::base::credentials::{Credentials, Provider};
use crate::base::error::{Error, Result};
pub use remap::AddressSource;
pub(crate) use remap::Remap;
#[cfg(feature = "tls")]
pub(crate) use tls::ClientPem;
pub use tls::Tls;

mod remap;
mod tls;

/// Servers of a manager. URLs have the form that the `redis` crate accepts:
/// `redis://[user][:password@]host[:port][/db]`, or `rediss://…` for [TLS](Tls). The URL of a single node may also be
/// `redis+unix:///path[?db=…&user=…&pass=…]`. Special characters in a URL are percent-encoded.
///
/// A single text names one node, and a list of texts names a cluster:
///
/// ```
/// use redis_rwlock::Topology;
/// let node: Topology = "redis://127.0.0.1:6379".into();
/// assert_eq!(node, Topology::node("redis://127.0.0.1:6379"));
/// let from_the_environment = String::from("redis://127.0.0.1:6379");
/// assert_eq!(node, Topology::from(&from_the_environment));
/// let cluster: Topology = ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"].into();
/// assert_eq!(cluster, Topology::cluster(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]));
/// let listed = "redis://127.0.0.1:7000,redis://127.0.0.1:7001";
/// assert_eq!(cluster, Topology::from(listed.split(',').collect::<Vec<_>>()));
/// ```
///
/// With the cargo feature `serde`, a configuration can contain a topology as `{"node": url}`, `{"cluster": [url, …]}`,
/// `{"sentinel": {"primary": name, "urls": [url, …]}}` or `{"proxy": url}`. In addition, [`Config`](crate::Config) has fields for
/// certificate files.
///
/// `Debug` shows no passwords and no keys. The error for a topology of another form does not quote it.
#[derive(Clone, PartialEq, Eq)]
pub struct Topology {
    pub(crate) kind: Kind,
    pub(crate) tls: Tls,
    access: Access,
}

/// Settings for the access to servers that are not part of the URLs.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) primary_credentials: Option<Credentials>,
    pub(crate) remap: Option<Remap>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) provider: Option<Provider>,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub(crate) enum Kind {
    Node(String),
    Cluster(Vec<String>),
    Sentinel { primary: String, urls: Vec<String> },
    Proxy(String),
}

impl Access {
    /// Refuses a provider of credentials beside a password file.
    pub(crate) fn check(&self) -> Result<()> {
        if self.provider.is_some() && self.password_file.is_some() {
            return Err(Error::invalid("credentials", "there is a `password_file` as well: leave one of them out"));
        }
        Ok(())
    }
}

impl From<Kind> for Topology {
    fn from(kind: Kind) -> Self {
        Self { kind, tls: Tls::new(), access: Access::default() }
    }
}

/// Reads a `Kind`, and replaces its errors. The derived parser and the parser of the format quote a text that they do
/// not expect, and this text may be a URL with a password.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Topology {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind: Result<Kind, D::Error> = serde::Deserialize::deserialize(deserializer);
        kind.map(Self::from).map_err(|_| serde::de::Error::custom(FORMS))
    }
}

#[cfg(feature = "serde")]
const FORMS: &str = "invalid topology, expected {\"node\": url}, {\"cluster\": [url, …]}, \
                     {\"sentinel\": {\"primary\": name, \"urls\": [url, …]}} or {\"proxy\": url} \
                     (the given value is not shown, because it may contain a password)";

impl Topology {
    /// Selects one server that is not part of a cluster.
    pub fn node(url: impl Into<String>) -> Self {
        Kind::Node(url.into()).into()
    }

    /// Selects the cluster to which these nodes belong. One reachable node is enough to find the others. The user and
    /// the password of the first URL are used for all nodes. The database must be the same in all URLs, and the default
    /// is 0. Other databases work only if the cluster has several databases (`cluster-databases` of Valkey 9).
    /// Otherwise its members refuse requests, and calls fail with [`Refused`](Error::Refused).
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Kind::Cluster(urls.into_iter().map(Into::into).collect()).into()
    }

    /// Selects the primary that the Sentinels know under the name `primary`. After a failover, the manager uses the new
    /// primary.
    ///
    /// The URLs are those of the Sentinels. A majority of the Sentinels decides, so give the URLs of all of them. If a
    /// Sentinel requires a login, the manager uses the user and the password of its URL. For the primary, the manager
    /// uses the database, the user and the password of the first URL.
    /// [`primary_credentials`](Topology::primary_credentials) sets another user and password for the primary.
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

    /// Selects the servers behind a proxy: one address in front of a cluster or of several servers, which sends each
    /// request to the server of its key. Managed services without the cluster protocol are examples, and Envoy.
    ///
    /// Each request of a [`RedisManager`](crate::RedisManager) has exactly one key, so every lock works as with a
    /// cluster, and each grant has the same promises. A proxy passes no notifications on, so waiters ask once a second,
    /// and a lock that is released is handed on up to a second later. What needs more than one key or one server is
    /// refused, with the reason:
    ///
    /// - `build` fails with [`InvalidOption`](Error::InvalidOption) for a [`TwoKeyManager`](crate::TwoKeyManager), for
    ///   [`cache_for`](crate::Builder::cache_for), for `Durability::Replicated`, and for [`remap`](Topology::remap);
    /// - [`locks`](crate::RwLockManager::locks) fails with [`Refused`](Error::Refused);
    /// - [`health`](crate::RwLockManager::health) shows the proxy, and not the servers behind it.
    ///
    /// Clocks of the servers behind the proxy, and that of a proxy which answers `TIME` itself, may differ by [`max_clock_skew`](crate::Builder#method.max_clock_skew), as
    /// with a cluster. `docs/OPERATIONS.md` has a table of what a proxy can and cannot do.
    ///
    /// ```
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = RedisManager::builder(Topology::proxy("rediss://locks:secret@cache.example.com:6380")).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn proxy(url: impl Into<String>) -> Self {
        Kind::Proxy(url.into()).into()
    }

    /// Sets the user and the password for the primary that [Sentinels](Topology::sentinel) name. They replace the user
    /// and the password of the first URL, and no Sentinel receives them. An empty user means the server's default user.
    /// The values are not percent-encoded.
    ///
    /// With any other topology, `build` fails with [`InvalidOption`](Error::InvalidOption), because user and password
    /// are part of the URLs there.
    ///
    /// ```
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let sentinels = ["redis://:watch@10.0.0.1:26379", "redis://:watch@10.0.0.2:26379", "redis://:watch@10.0.0.3:26379"];
    /// let topology = Topology::sentinel("mymaster", sentinels).primary_credentials("locks", "secret");
    /// assert!(!format!("{topology:?}").contains("secret"));
    /// let manager = RedisManager::builder(topology).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn primary_credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.access.primary_credentials = Some(Credentials::new(user, password));
        self
    }

    /// Reads the password from a file. This works with every topology. The manager uses the password for the single
    /// node, for all members of the cluster, or for the primary. It also uses the password for Sentinels whose URLs
    /// have none. The URL or [`primary_credentials`](Topology::primary_credentials) names the user. A line break at the
    /// end of the file is not part of the password.
    ///
    /// `build` reads the file, and each new connection reads it again. So the next connection uses a new password, and
    /// open connections stay. While the file is missing, empty or unreadable, new connections use the last valid
    /// password, and the log has one `warn` line.
    ///
    /// To change a password without errors, take three steps. First let the server accept both passwords (`ACL SETUSER
    /// … >new`). Then write the new password into another file, and rename that file to the name of this file. At last,
    /// remove the old password from the server.
    ///
    /// `build` fails with [`InvalidOption`](Error::InvalidOption) if the file cannot be read or is empty. It also fails
    /// if the URL of the single node, the URL of the first cluster member, or `primary_credentials` has a password,
    /// too. `Debug`, errors and the log never contain the password.
    ///
    /// ```
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("redis-rwlock-doc-{}", std::process::id()));
    /// # std::fs::write(&path, "secret\n")?;
    /// // As a container has it: /run/secrets/locks
    /// let topology = Topology::node("redis://locks@10.0.0.1:6379").password_file(&path);
    /// let manager = RedisManager::builder(topology).build()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.password_file = Some(path.into());
        self
    }

    /// Sets a provider: a function that returns the user and the password or token for logins. This is for credentials
    /// that change while the service runs, such as the tokens of a cloud service. It works with every topology.
    ///
    /// The manager asks the provider
    ///
    /// * when it opens a connection (connections that it opens within 100 ms share one answer),
    /// * after 0.8 of the [validity](Credentials::valid_for), if the credentials have one,
    /// * and once more when a server has refused the credentials, because they may have changed just now. If the answer is
    ///   another one, the connection uses it, and so on for at most five logins.
    ///
    /// If the credentials have changed, the manager also sends them on its open connections (`AUTH`). These connections
    /// stay open, and requests on them go on. If a server refuses new credentials on an open connection, the manager
    /// asks the provider once more. After that, the log has one `warn` line, and the connection keeps its old rights.
    ///
    /// There is one call of the provider at a time, for all connections of the manager. It runs on a thread of its own
    /// within a tokio runtime of this crate, so it may use async clients, and it may block. Tasks that it spawns must not
    /// block. A call that takes longer than 10 seconds is dropped.
    ///
    /// A new connection waits one [response timeout](crate::Builder::response_timeout) for a call, and then uses the last
    /// credentials. It also uses them if the provider fails, panics or returns an empty secret. The log has one `warn`
    /// line about that, with the error of the provider, so this error must not contain the secret. Before the first
    /// credentials, a connection waits for up to two response timeouts, and then fails. The manager tries again until
    /// [`unreachable_after`](crate::Builder::unreachable_after), as if the server did not answer.
    ///
    /// The credentials are for the servers that store locks. The manager logs in to Sentinels with the users and
    /// passwords of their URLs.
    ///
    /// `build` fails with [`InvalidOption`](Error::InvalidOption) if there is also a
    /// [`password_file`](Topology::password_file) or [`primary_credentials`](Topology::primary_credentials), or if a URL
    /// of a server has a user or a password. `Debug`, errors of this crate and the log never contain the secret.
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{Credentials, RedisManager, Topology};
    ///
    /// /// Client of the service that issues tokens.
    /// struct Tokens;
    ///
    /// impl Tokens {
    ///     async fn issue(&self) -> std::io::Result<String> {
    ///         Ok("token".to_owned())
    ///     }
    /// }
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let tokens = Tokens;
    /// let topology = Topology::node("rediss://locks.example.com:6379").credentials(async move || {
    ///     let token = tokens.issue().await?;
    ///     Ok(Credentials::new("locks", token).valid_for(Duration::from_secs(15 * 60)))
    /// });
    /// let manager = RedisManager::builder(topology).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn credentials(
        mut self,
        provider: impl AsyncFn() -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.access.provider = Some(Provider::function(provider));
        self
    }

    /// Sets a provider that exists for the `redis` crate, such as its provider for Microsoft Entra ID. The cargo feature
    /// `streaming-credentials` adds this method. The version of `redis` must be the one that this crate uses.
    ///
    /// The manager subscribes to the provider when it opens its first connection. Each new connection uses the latest
    /// item of the stream, and the manager sends each new item on its open connections at once. An error in the stream
    /// is reported once in the log, and the last item stays in use. If the stream ends, the manager subscribes again
    /// after a second. After a refused login, a new connection waits up to two response timeouts for a newer item.
    ///
    /// In all else, this method does the same as [`credentials`](Topology::credentials), and `build` fails in the same
    /// cases. The later call of one of the two methods counts. A thread of its own waits for the items, until the
    /// manager is dropped.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::sync::Arc;
    /// use futures_util::{Stream, StreamExt, stream};
    /// use redis::{BasicAuth, RedisResult, StreamingCredentialsProvider};
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// /// Stands for a provider of another crate.
    /// struct Tokens;
    ///
    /// impl StreamingCredentialsProvider for Tokens {
    ///     fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
    ///         let token = BasicAuth::new("locks".to_owned(), "token".to_owned());
    ///         stream::iter([Ok(token)]).chain(stream::pending()).boxed()
    ///     }
    /// }
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let topology = Topology::node("rediss://locks.example.com:6379").streaming_credentials(Arc::new(Tokens));
    /// let manager = RedisManager::builder(topology).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "streaming-credentials")]
    #[must_use]
    pub fn streaming_credentials(mut self, provider: Arc<dyn StreamingCredentialsProvider>) -> Self {
        self.access.provider = Some(Provider::Stream(provider));
        self
    }

    /// Sets a function that maps announced addresses to addresses at which this process can reach the servers. This is
    /// necessary behind NAT, in containers, or through a bastion host.
    ///
    /// The manager calls the mapping for each address in the slot map and in the redirects of a cluster. It also calls
    /// the mapping for each address that a Sentinel announces. It does not call the mapping for the URLs. The mapping
    /// returns the host and port to connect to. If a server announces a port without a host, the mapping receives the
    /// host of that server.
    ///
    /// The manager calls the mapping often, so it must be quick and must return the same result each time. If the
    /// mapping panics, the manager uses the announced address. With TLS, the certificate of a server must be made for
    /// the host that the mapping returns, or for [`Tls::server_name`].
    ///
    /// [`NodeHealth::address_source`](crate::NodeHealth::address_source) and errors show the announced and the mapped
    /// address. A single node announces no addresses, so `build` fails with [`InvalidOption`](Error::InvalidOption).
    ///
    /// ```
    /// use redis_rwlock::{RedisManager, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// // The members announce 10.0.0.1 to 10.0.0.3, port 6379; tunnels to them listen here, on the ports 7001 to 7003.
    /// let cluster = Topology::cluster(["redis://127.0.0.1:7001"]).remap(|host, port| match host.strip_prefix("10.0.0.") {
    ///     Some(last) if port == 6379 => ("127.0.0.1".to_owned(), 7000 + last.parse::<u16>().unwrap_or(0)),
    ///     _ => (host.to_owned(), port),
    /// });
    /// let manager = RedisManager::builder(cluster).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remap(mut self, mapping: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        self.access.remap = Some(Remap::new(mapping));
        self
    }

    /// Sets the certificates for `rediss://` URLs. Without this call, the manager trusts the public certificate
    /// authorities, and presents no client certificate.
    ///
    /// Either all URLs of a topology are `rediss://` URLs, or none is. With such URLs, the manager also uses TLS to the
    /// servers that it finds itself. These are the other nodes of a cluster, or the primary that Sentinels name.
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

    /// Returns the settings for the access to servers. Refuses settings that would have no effect with this topology.
    pub(crate) fn access(&self) -> Result<&Access> {
        let refused = |option, reason| Err(Error::invalid(option, reason));
        match (&self.kind, &self.access) {
            (Kind::Node(_) | Kind::Cluster(_) | Kind::Proxy(_), Access { primary_credentials: Some(_), .. }) => {
                refused("primary_credentials", "this topology has no Sentinel: put user and password into the URL")
            }
            (Kind::Node(_) | Kind::Proxy(_), Access { remap: Some(_), .. }) => refused(
                "remap",
                "a single node or a proxy announces no addresses: put the address to connect to into the URL",
            ),
            (_, Access { password_file: Some(_), primary_credentials: Some(credentials), .. })
                if !credentials.secret().is_empty() =>
            {
                refused("password_file", "`primary_credentials` also has a password: leave that password empty")
            }
            (_, Access { provider: Some(_), primary_credentials: Some(_), .. }) => {
                refused("credentials", "there are `primary_credentials` as well: leave one of them out")
            }
            (_, access) => access.check().map(|()| access),
        }
    }

    /// Returns true if the servers are behind a proxy.
    pub(crate) fn is_proxied(&self) -> bool {
        matches!(self.kind, Kind::Proxy(_))
    }

    /// Refuses clusters and proxies, because the two-key scheme cannot work with them.
    pub(crate) fn check_single(&self) -> Result<()> {
        let reason = match &self.kind {
            Kind::Node(_) | Kind::Sentinel { .. } => return Ok(()),
            Kind::Cluster(_) => {
                "a slot that migrates refuses requests for the two keys of a lock: use `RedisManager` on a cluster"
            }
            Kind::Proxy(_) => {
                "a proxy need not send the two keys of a lock to one server: use `RedisManager` behind a proxy"
            }
        };
        Err(Error::invalid("topology", reason))
    }
}

macro_rules! from_urls {
    ($([$($parameter:tt)*] $urls:ty => $kind:ident;)*) => {$(
        impl<$($parameter)*> From<$urls> for Topology {
            fn from(urls: $urls) -> Self {
                Self::$kind(urls)
            }
        }
    )*};
}
from_urls! {
    [] &str => node;
    [] String => node;
    [] &String => node;
    [const N: usize] [&str; N] => cluster;
    [const N: usize] [String; N] => cluster;
    [] &[String] => cluster;
    [] Vec<&str> => cluster;
    [] Vec<String> => cluster;
    [] &Vec<String> => cluster;
}

impl From<&[&str]> for Topology {
    fn from(urls: &[&str]) -> Self {
        Self::cluster(urls.iter().copied())
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple(match &self.kind {
            Kind::Node(_) => "Node",
            Kind::Cluster(_) => "Cluster",
            Kind::Sentinel { .. } => "Sentinel",
            Kind::Proxy(_) => "Proxy",
        });
        match &self.kind {
            Kind::Node(url) | Kind::Proxy(url) => shown.field(&without_secrets(url)),
            Kind::Cluster(urls) => shown.field(&all_without_secrets(urls)),
            Kind::Sentinel { primary, urls } => shown.field(primary).field(&all_without_secrets(urls)),
        };
        if self.access.primary_credentials.is_some() {
            shown.field(&format_args!("primary_credentials: given"));
        }
        if let Some(path) = &self.access.password_file {
            shown.field(&format_args!("password_file: {path:?}"));
        }
        if self.access.provider.is_some() {
            shown.field(&format_args!("credentials: given"));
        }
        if self.access.remap.is_some() {
            shown.field(&format_args!("remap: given"));
        }
        if self.tls != Tls::new() {
            shown.field(&self.tls);
        }
        shown.finish()
    }
}

pub(crate) fn all_without_secrets(urls: &[String]) -> Vec<&str> {
    urls.iter().map(|url| without_secrets(url)).collect()
}

/// Returns the part of a URL that contains no secret. This is the part after user and password, which end at the last
/// `@`. Without an `@`, it is the part after the scheme. The query, which may contain a password, is left out.
fn without_secrets(url: &str) -> &str {
    let end_of_host = url.find(['?', '#']).unwrap_or(url.len());
    if url.rfind('@').is_some_and(|at| at > end_of_host) {
        // The `@` belongs to the query, or the password contains `?` or `#`. So no part of the URL is safe to show.
        return "…";
    }
    let host = match (url.rfind('@'), url.find("://")) {
        (Some(at), _) => url.get(at + 1..),
        (None, Some(scheme)) => url.get(scheme + 3..),
        (None, None) => None,
    };
    host.and_then(|host| host.split(['?', '#']).next()).unwrap_or("…")
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/topology/tests.rs"]
mod tests;
