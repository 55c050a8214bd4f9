//! Configuration of a manager: its topology and options, read by serde from a file, or read from environment variables.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use crate::base::duration_text::{DurationText, InvalidDuration};
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::options::TimestampClients;
use crate::base::reentry::Reentry;
use crate::base::topology::{Tls, Topology};
use crate::face::manager::{Builder, RedisManager, RedissonManager};

mod durability;
mod names;
use durability::{DurabilityField, DurabilityVars};
pub use names::VariableOwner;

/// Configuration of a [`RedisManager`]: its topology, the files of its certificates, and every option of [`Builder`].
/// Needs the cargo feature `serde`.
///
/// Serde can read the configuration from any file format, and [`from_env`](Config::from_env) reads it from environment
/// variables. Durations are strings: `"10s"`, `"500ms"`, `"1.5h"`, or `"max"` for no limit. A missing field has the
/// default value that the setter of the same name in [`Builder`] describes. An unknown field is an error, so that a
/// misspelt field is not ignored.
///
/// | field | value |
/// |---|---|
/// | `topology` | `{"node": url}`, `{"cluster": [url, …]}` or `{"sentinel": {"primary": name, "urls": [url, …]}}` |
/// | `tls` | `{"ca": path, "client_certificate": path, "client_key": path, "server_name": name}`, all optional |
/// | `password_file` | path of a file with the password of the servers, see [`Topology::password_file`] |
/// | `lease`, `max_hold`, `wait_timeout`, `unreachable_after`, `response_timeout` | a duration |
/// | `max_clock_skew`, `join_window`, `cache_for`, `recall_timeout`, `lock_watchdog_timeout` | a duration |
/// | `reentry` | `"off"` or `"per_task"` |
/// | `key_prefix`, `label`, `timestamp_keys` | a string |
/// | `timestamp_clients` | `{"read": duration, "write": duration, "key_ttl": duration}`, all optional |
/// | `max_handoffs`, `max_cached`, `max_waiters` | a number |
/// | `durability` | `"primary"`, `"server"`, or `{"replicas": number or "all", "timeout": duration}` |
///
/// The paths of `tls` name PEM files. `build` and each new connection read these files. `server_name` is the name in
/// the certificates of the servers; see [`Tls::server_name`].
///
/// The `Debug` output has no passwords.
///
/// # Examples
///
/// ```
/// use redis_rwlock::{Config, RedisManager};
///
/// let config: Config = serde_json::from_str(
///     r#"{
///         "topology": { "cluster": ["redis://:secret@10.0.0.1:6379", "redis://:secret@10.0.0.2:6379"] },
///         "lease": "15s",
///         "wait_timeout": "2s",
///         "label": "billing-1"
///     }"#,
/// )?;
/// # fn main() {}
/// # async fn connect(config: Config) -> redis_rwlock::Result<()> {
/// let manager: RedisManager = config.builder().connect().await?;
/// # Ok(())
/// # }
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    topology: Topology,
    tls: Option<TlsFields>,
    password_file: Option<PathBuf>,
    lease: Option<DurationText>,
    max_hold: Option<DurationText>,
    wait_timeout: Option<DurationText>,
    unreachable_after: Option<DurationText>,
    response_timeout: Option<DurationText>,
    max_clock_skew: Option<DurationText>,
    join_window: Option<DurationText>,
    reentry: Option<Nesting>,
    key_prefix: Option<String>,
    label: Option<String>,
    timestamp_keys: Option<String>,
    timestamp_clients: Option<TimestampClientFields>,
    max_handoffs: Option<u64>,
    cache_for: Option<DurationText>,
    max_cached: Option<usize>,
    max_waiters: Option<usize>,
    recall_timeout: Option<DurationText>,
    lock_watchdog_timeout: Option<DurationText>,
    durability: Option<DurabilityField>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsFields {
    ca: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_key: Option<PathBuf>,
    server_name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Nesting {
    Off,
    PerTask,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimestampClientFields {
    read: Option<DurationText>,
    write: Option<DurationText>,
    key_ttl: Option<DurationText>,
}

impl Config {
    fn new(topology: Topology) -> Self {
        Self {
            topology,
            tls: None,
            password_file: None,
            lease: None,
            max_hold: None,
            wait_timeout: None,
            unreachable_after: None,
            response_timeout: None,
            max_clock_skew: None,
            join_window: None,
            reentry: None,
            key_prefix: None,
            label: None,
            timestamp_keys: None,
            timestamp_clients: None,
            max_handoffs: None,
            cache_for: None,
            max_cached: None,
            max_waiters: None,
            recall_timeout: None,
            lock_watchdog_timeout: None,
            durability: None,
        }
    }

    /// Reads the configuration from the environment variables whose names begin with `prefix` and an underscore.
    ///
    /// With the prefix `LOCKS`, it reads these variables:
    ///
    /// - Topology: one of `LOCKS_NODE` (a URL), `LOCKS_CLUSTER` (URLs, separated by commas), `LOCKS_PROXY` (a URL), or
    ///   `LOCKS_SENTINEL_PRIMARY` and `LOCKS_SENTINEL_URLS`.
    /// - Certificates: the paths `LOCKS_TLS_CA`, `LOCKS_TLS_CLIENT_CERTIFICATE` and `LOCKS_TLS_CLIENT_KEY`, and
    ///   `LOCKS_TLS_SERVER_NAME`, the name in the servers' certificates.
    /// - All other fields, under the name of the field: `LOCKS_LEASE=15s`, `LOCKS_REENTRY=per_task`,
    ///   `LOCKS_TIMESTAMP_CLIENTS_READ=1s`. For the durability, either `LOCKS_DURABILITY` (`primary` or `server`), or
    ///   both `LOCKS_DURABILITY_REPLICAS` and `LOCKS_DURABILITY_TIMEOUT`.
    ///
    /// Write a comma within a password as `%2C`.
    ///
    /// Other programs may use variables with the same prefix. If a service has the prefix as its name, Kubernetes and
    /// Docker set variables for this service (`LOCKS_SERVICE_HOST`, `LOCKS_PORT=tcp://…`). The program `redis-rwlock`
    /// has variables such as `RWLOCK_NAME`. `from_env` ignores the variables of these programs. It also ignores any
    /// other unknown variable, and logs its name at the level `warn`. If a name nearly matches a field, `from_env`
    /// fails, because the name is probably a typing error.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) if a value is malformed, if a name is misspelt by one or two letters, or
    /// if the variables do not give exactly one topology. The error does not quote values that may contain a password.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redis_rwlock::Config;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// // LOCKS_NODE=redis://127.0.0.1:6379 LOCKS_LEASE=15s
    /// let manager = Config::from_env("LOCKS")?.builder().connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env(prefix: &str) -> Result<Self> {
        Self::from_vars(prefix, std::env::vars_os())
    }

    /// Reads the configuration from the given variables, in the same way as [`from_env`](Config::from_env). For
    /// example, a program can pass a part of its environment, or options of its command line in the form of variables.
    ///
    /// # Errors
    ///
    /// The errors of [`from_env`](Config::from_env).
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::Config;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let vars = [("LOCKS_NODE", "redis://127.0.0.1:6379"), ("LOCKS_LEASE", "15s")];
    /// let config = Config::from_vars("LOCKS", vars.map(|(name, value)| (name.into(), value.into())))?;
    /// # let _ = config;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_vars(prefix: &str, vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self> {
        let mut topologies = Vec::new();
        let (mut primary, mut urls) = (None, None);
        let mut durability = DurabilityVars::default();
        // The empty topology is a placeholder, because the topology is known only after all variables are read.
        let mut config = Self::new(Topology::node(""));
        for (name, value) in vars {
            let Some(name) = name.to_str() else { continue };
            let Some(field) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) else { continue };
            if !is_field(prefix, name, field)? {
                continue;
            }
            let value =
                value.to_str().ok_or_else(|| Error::invalid("environment", format!("{name} is not valid Unicode")))?;
            match field {
                "NODE" => topologies.push(Topology::node(value)),
                "CLUSTER" => topologies.push(Topology::cluster(split(value))),
                "PROXY" => topologies.push(Topology::proxy(value)),
                "SENTINEL_PRIMARY" => primary = Some(value.to_owned()),
                "SENTINEL_URLS" => urls = Some(split(value)),
                _ if durability.set(name, field, value)? => {}
                _ => config.set(name, field, value)?,
            }
        }
        match (primary, urls) {
            (Some(primary), Some(urls)) => topologies.push(Topology::sentinel(primary, urls)),
            (None, None) => {}
            _ => {
                return Err(Error::invalid(
                    "topology",
                    format!("set both {prefix}_SENTINEL_PRIMARY and {prefix}_SENTINEL_URLS, or neither"),
                ));
            }
        }
        config.durability = durability.finish(prefix)?;
        match <[Topology; 1]>::try_from(topologies) {
            Ok([topology]) => Ok(Self { topology, ..config }),
            Err(topologies) => {
                let count = if topologies.is_empty() { "none" } else { "more than one" };
                let reason = format!(
                    "{count} of {prefix}_NODE, {prefix}_CLUSTER, {prefix}_PROXY and {prefix}_SENTINEL_PRIMARY is set: set exactly one of them"
                );
                Err(Error::invalid("topology", reason))
            }
        }
    }

    /// Sets the option `field` to `value`. `name` is the full name of the variable, for error messages.
    fn set(&mut self, name: &str, field: &str, value: &str) -> Result<()> {
        let span = |option| {
            value
                .parse()
                .map(Some)
                .map_err(|reason: InvalidDuration| Error::invalid(option, format!("{name}: {reason}")))
        };
        let (path, text) = (Some(PathBuf::from(value)), Some(value.to_owned()));
        let tls = &mut self.tls;
        let limits = &mut self.timestamp_clients;
        match field {
            "TLS_CA" => tls.get_or_insert_default().ca = path,
            "TLS_CLIENT_CERTIFICATE" => tls.get_or_insert_default().client_certificate = path,
            "TLS_CLIENT_KEY" => tls.get_or_insert_default().client_key = path,
            "TLS_SERVER_NAME" => tls.get_or_insert_default().server_name = text,
            "PASSWORD_FILE" => self.password_file = path,
            "LEASE" => self.lease = span("lease")?,
            "MAX_HOLD" => self.max_hold = span("max_hold")?,
            "WAIT_TIMEOUT" => self.wait_timeout = span("wait_timeout")?,
            "UNREACHABLE_AFTER" => self.unreachable_after = span("unreachable_after")?,
            "RESPONSE_TIMEOUT" => self.response_timeout = span("response_timeout")?,
            "MAX_CLOCK_SKEW" => self.max_clock_skew = span("max_clock_skew")?,
            "JOIN_WINDOW" => self.join_window = span("join_window")?,
            "REENTRY" => self.reentry = Some(nesting(name, value)?),
            "KEY_PREFIX" => self.key_prefix = text,
            "LABEL" => self.label = text,
            "TIMESTAMP_KEYS" => self.timestamp_keys = text,
            "TIMESTAMP_CLIENTS_READ" => limits.get_or_insert_default().read = span("timestamp_clients")?,
            "TIMESTAMP_CLIENTS_WRITE" => limits.get_or_insert_default().write = span("timestamp_clients")?,
            "TIMESTAMP_CLIENTS_KEY_TTL" => limits.get_or_insert_default().key_ttl = span("timestamp_clients")?,
            "MAX_HANDOFFS" => self.max_handoffs = number("max_handoffs", name, value)?,
            "CACHE_FOR" => self.cache_for = span("cache_for")?,
            "RECALL_TIMEOUT" => self.recall_timeout = span("recall_timeout")?,
            "LOCK_WATCHDOG_TIMEOUT" => self.lock_watchdog_timeout = span("lock_watchdog_timeout")?,
            "MAX_CACHED" => self.max_cached = number("max_cached", name, value)?,
            "MAX_WAITERS" => self.max_waiters = number("max_waiters", name, value)?,
            // Never reached: the caller passes only names that `is_field` accepts.
            _ => {
                return Err(Error::invalid(
                    "environment",
                    format!("{name} is no option: correct its name or remove it"),
                ));
            }
        }
        Ok(())
    }

    /// Tells whether an environment variable belongs to a configuration, to another program, or to no known program.
    /// `name` is the name of the variable without the prefix. This function is for a program that reads the variables
    /// itself, for example because options on its command line take precedence over them.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Config, VariableOwner};
    ///
    /// assert_eq!(Config::variable_owner("LEASE"), VariableOwner::Config);
    /// assert_eq!(Config::variable_owner("SERVICE_HOST"), VariableOwner::Others);
    /// assert_eq!(Config::variable_owner("LEESE"), VariableOwner::Misspelt("LEASE"));
    /// assert_eq!(Config::variable_owner("HOME"), VariableOwner::Unknown);
    /// ```
    pub fn variable_owner(name: &str) -> VariableOwner {
        names::owner_of(name)
    }

    /// Returns a builder with all options of the configuration. A setter that is called on this builder replaces the
    /// value from the configuration.
    pub fn builder(&self) -> Builder<RedisManager> {
        let topology = self.tls.iter().map(TlsFields::tls).fold(self.topology.clone(), Topology::tls);
        let topology = self.password_file.iter().fold(topology, Topology::password_file);
        let mut builder = RedisManager::builder(topology);
        let mut set = |period: Option<DurationText>, setter: fn(Builder<RedisManager>, std::time::Duration) -> _| {
            if let Some(DurationText(span)) = period {
                builder = setter(builder.clone(), span);
            }
        };
        set(self.lease, Builder::lease);
        set(self.max_hold, Builder::max_hold);
        set(self.wait_timeout, Builder::wait_timeout);
        set(self.unreachable_after, Builder::unreachable_after);
        set(self.response_timeout, Builder::response_timeout);
        set(self.max_clock_skew, Builder::max_clock_skew);
        set(self.join_window, Builder::join_window);
        set(self.cache_for, Builder::cache_for);
        set(self.recall_timeout, Builder::recall_timeout);
        if let Some(nesting) = self.reentry {
            builder = builder.reentry(match nesting {
                Nesting::Off => Reentry::Off,
                Nesting::PerTask => Reentry::PerTask,
            });
        }
        builder = self.key_prefix.iter().fold(builder, Builder::key_prefix);
        builder = self.label.iter().fold(builder, Builder::label);
        builder = self.timestamp_keys.iter().fold(builder, Builder::timestamp_keys);
        let limits = self.timestamp_clients.map(TimestampClientFields::or_default);
        builder = limits.into_iter().fold(builder, Builder::timestamp_clients);
        builder = self.max_handoffs.into_iter().fold(builder, Builder::max_handoffs);
        builder = self.max_cached.into_iter().fold(builder, Builder::max_cached);
        builder = self.max_waiters.into_iter().fold(builder, Builder::max_waiters);
        if let Some(DurabilityField(durability)) = self.durability {
            builder = builder.durability(durability);
        }
        builder
    }

    /// Returns a builder of a [`RedissonManager`] with all options of the configuration. `key_prefix`,
    /// `timestamp_clients`, `max_handoffs` and `max_cached` have no effect there.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) for what that manager refuses, such as
    /// `timestamp_keys`.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Config, RedissonManager};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let vars = [("LOCKS_NODE", "redis://127.0.0.1:6379"), ("LOCKS_LOCK_WATCHDOG_TIMEOUT", "12s")];
    /// let config = Config::from_vars("LOCKS", vars.map(|(name, value)| (name.into(), value.into())))?;
    /// let manager: RedissonManager = config.redisson_builder().build()?;
    /// # drop(manager);
    /// # Ok(())
    /// # }
    /// ```
    pub fn redisson_builder(&self) -> Builder<RedissonManager> {
        let builder = Builder::of_same_options(self.builder());
        match self.lock_watchdog_timeout {
            Some(DurationText(watchdog)) => builder.lock_watchdog_timeout(watchdog),
            None => builder,
        }
    }
}

impl TlsFields {
    fn tls(&self) -> Tls {
        let mut tls = self.ca.iter().fold(Tls::new(), Tls::ca_file);
        if self.client_certificate.is_some() || self.client_key.is_some() {
            // If only one of the two paths is set, the other path becomes empty. `build` cannot read a file with an
            // empty path, so it reports an error.
            let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
            tls = tls.client_files(path(&self.client_certificate), path(&self.client_key));
        }
        self.server_name.iter().fold(tls, Tls::server_name)
    }
}

impl TimestampClientFields {
    fn or_default(self) -> TimestampClients {
        let default = TimestampClients::default();
        let or = |period: Option<DurationText>, default| period.map_or(default, |DurationText(span)| span);
        TimestampClients::new(or(self.read, default.read), or(self.write, default.write))
            .key_ttl(or(self.key_ttl, default.key_ttl))
    }
}

/// Returns true if the variable `name` is a field of the configuration. Returns false if the variable belongs to
/// another program or is unknown, and logs an unknown variable. Fails if the name is a misspelt field.
fn is_field(prefix: &str, name: &str, field: &str) -> Result<bool> {
    match names::owner_of(field) {
        VariableOwner::Config => Ok(true),
        VariableOwner::Others => Ok(false),
        VariableOwner::Unknown => {
            events::unknown_variable(name);
            Ok(false)
        }
        VariableOwner::Misspelt(meant) => {
            let reason = format!("{name} is no option, but {prefix}_{meant} is: correct the name or remove it");
            Err(Error::invalid("environment", reason))
        }
    }
}

fn split(urls: &str) -> Vec<String> {
    urls.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect()
}

fn number<T: FromStr>(option: &'static str, name: &str, value: &str) -> Result<Option<T>> {
    value.parse().map(Some).map_err(|_| Error::invalid(option, format!("{name} must be a number")))
}

fn nesting(name: &str, value: &str) -> Result<Nesting> {
    match value {
        "off" => Ok(Nesting::Off),
        "per_task" => Ok(Nesting::PerTask),
        _ => Err(Error::invalid("reentry", format!("{name} must be off or per_task"))),
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/face/config/tests.rs"]
mod tests;
