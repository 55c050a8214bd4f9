//! Where the servers are and which options count: from a file, the environment and the command line.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis_rwlock::{Builder, Config, RedisManager};
use serde_json::Value;

use crate::args::Servers;
use crate::exit::{Code, Failure};
use crate::span::Period;

const PREFIX: &str = "RWLOCK";
/// Variables with the prefix that are no options: what `run` tells its command, which may be this program, and where the file is.
const OTHERS: [&str; 3] = ["FENCING_TOKEN", "NAME", "CONFIG"];
/// They are one option in several variables.
const TOPOLOGY: [&str; 4] = ["NODE", "CLUSTER", "SENTINEL_PRIMARY", "SENTINEL_URLS"];

/// Options by the names that [`Config::from_env`] gives them, without the prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    options: BTreeMap<String, OsString>,
}

/// Where the servers are, as the user says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Node(String),
    Cluster(Vec<String>),
    Sentinel(Vec<String>),
}

impl Place {
    /// Its user and password are those of all servers.
    pub(crate) fn first_url(&self) -> &str {
        match self {
            Self::Node(url) => url,
            Self::Cluster(urls) | Self::Sentinel(urls) => urls.first().map_or("", String::as_str),
        }
    }
}

impl Settings {
    pub(crate) fn gather(servers: &Servers) -> Result<Self, Failure> {
        let mut settings = Self::default();
        let file = servers.config.clone().or_else(|| env::var_os("RWLOCK_CONFIG").map(PathBuf::from));
        if let Some(file) = file {
            settings.put(read_file(&file)?);
        }
        settings.put(environment());
        settings.put(command_line(servers)?);
        // So that nobody has to look at each value again.
        settings.config()?;
        Ok(settings)
    }

    /// These count more than what is there.
    fn put(&mut self, layer: BTreeMap<String, OsString>) {
        if TOPOLOGY.iter().any(|name| layer.contains_key(*name)) {
            self.options.retain(|name, _| !TOPOLOGY.contains(&name.as_str()));
        }
        self.options.extend(layer);
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.options.insert(name.to_owned(), value.into());
    }

    pub(crate) fn set_if_missing(&mut self, name: &str, value: &str) {
        self.options.entry(name.to_owned()).or_insert_with(|| value.into());
    }

    fn config(&self) -> Result<Config, Failure> {
        let vars = self.options.iter().map(|(name, value)| (format!("{PREFIX}_{name}").into(), value.clone()));
        Ok(Config::from_vars(PREFIX, vars)?)
    }

    pub(crate) fn builder(&self) -> Result<Builder<RedisManager>, Failure> {
        Ok(self.config()?.builder())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name)?.to_str()
    }

    #[cfg(feature = "tls")] // certificates are all that is in files
    pub(crate) fn path(&self, name: &str) -> Option<&Path> {
        self.options.get(name).map(Path::new)
    }

    /// An option that is a span of time.
    pub(crate) fn span(&self, name: &str, default: Duration) -> Duration {
        // What cannot be read was refused before.
        self.text(name).and_then(|text| span(text).ok()).unwrap_or(default)
    }

    pub(crate) fn place(&self) -> Place {
        let urls = |name| split(self.text(name).unwrap_or_default());
        match self.text("NODE") {
            Some(url) => Place::Node(url.to_owned()),
            None if self.options.contains_key("CLUSTER") => Place::Cluster(urls("CLUSTER")),
            None => Place::Sentinel(urls("SENTINEL_URLS")),
        }
    }
}

/// A span of time as the options have it: `10s`, `1.5h`, `max`.
pub(crate) fn span(text: &str) -> Result<Duration, Failure> {
    text.parse().map(|Period(span)| span).map_err(|reason| Failure::new(Code::USAGE, reason))
}

fn split(urls: &str) -> Vec<String> {
    urls.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect()
}

fn environment() -> BTreeMap<String, OsString> {
    let option = |(name, value): (OsString, OsString)| {
        let name = name.to_str()?.strip_prefix(PREFIX)?.strip_prefix('_')?.to_owned();
        (!OTHERS.contains(&name.as_str())).then_some((name, value))
    };
    env::vars_os().filter_map(option).collect()
}

fn command_line(servers: &Servers) -> Result<BTreeMap<String, OsString>, Failure> {
    let Servers { url, cluster, sentinel, config: _, key_prefix, label } = servers;
    let mut options = BTreeMap::new();
    let mut put = |name: &str, value: Option<&str>| options.extend(value.map(|value| (name.to_owned(), value.into())));
    put("NODE", url.as_deref());
    put("CLUSTER", cluster.as_deref());
    if let Some(sentinel) = sentinel {
        // Not quoted: it may have a password.
        let parts = sentinel.split_once('=').filter(|(primary, _)| !primary.contains("://"));
        let (primary, urls) = parts.ok_or_else(|| {
            Failure::new(Code::USAGE, "--sentinel is the name of the primary, an =, and the Sentinels' URLs")
        })?;
        put("SENTINEL_PRIMARY", Some(primary));
        put("SENTINEL_URLS", Some(urls));
    }
    put("KEY_PREFIX", key_prefix.as_deref());
    put("LABEL", label.as_deref());
    Ok(options)
}

/// The fields of a [`Config`] in JSON, by the names of their variables.
fn read_file(path: &Path) -> Result<BTreeMap<String, OsString>, Failure> {
    let unusable = |reason: String| Failure::new(Code::INVALID, format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        // The place only: the words may quote a password.
        unusable(format!("line {}, column {}: this is no JSON", error.line(), error.column()))
    })?;
    let mut options = BTreeMap::new();
    flatten("", &value, &mut options);
    Ok(options)
}

fn flatten(name: &str, value: &Value, options: &mut BTreeMap<String, OsString>) {
    let text = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let field = field.to_uppercase();
                // `topology` groups what the environment names without it.
                let name = if name.is_empty() || name == "TOPOLOGY" { field } else { format!("{name}_{field}") };
                flatten(&name, value, options);
            }
            return;
        }
        // A comma stands between URLs in a variable.
        Value::Array(urls) => urls.iter().map(|url| plain(url).replace(',', "%2C")).collect::<Vec<_>>().join(","),
        Value::Null => return,
        value => plain(value),
    };
    options.insert(name.to_owned(), text.into());
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
