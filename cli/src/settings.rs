//! Addresses of the servers and other options: from a file, the environment and the command line.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis_rwlock::{Builder, Config, DurationText, Error, InvalidDuration, RedisManager, RwLockManager, VariableOwner};
use serde_json::Value;

use crate::args::{ManagerKind, Servers};
use crate::exit::{Code, Failure, in_words_of_users};
use crate::output::Output;

const PREFIX: &str = "RWLOCK";
/// Variables of the topology. A source that sets one of them replaces the topology of earlier sources.
const TOPOLOGY: [&str; 5] = ["NODE", "CLUSTER", "PROXY", "SENTINEL_PRIMARY", "SENTINEL_URLS"];
/// Variables of a durability with replicas.
const REPLICATED: [&str; 2] = ["DURABILITY_REPLICAS", "DURABILITY_TIMEOUT"];
/// Options of the command line, each with the variable of the same meaning.
const OF_COMMAND_LINE: [(&str, &str); 11] = [
    ("CLUSTER", "--cluster"),
    ("KEY_PREFIX", "--key-prefix"),
    ("LABEL", "--label"),
    ("LEASE", "--lease"),
    ("MAX_HOLD", "--max-hold"),
    ("NODE", "--url"),
    ("PASSWORD_FILE", "--password-file"),
    ("PROXY", "--proxy"),
    ("SENTINEL_PRIMARY", "--sentinel"),
    ("SENTINEL_URLS", "--sentinel"),
    ("WAIT_TIMEOUT", "--wait"),
];
/// Options by the names that [`Config::from_env`] gives them, without the prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    options: Layer,
    pub(crate) kind: ManagerKind,
}

/// Manager of the locks, of the kind that the user wants.
pub(crate) type Manager = Arc<dyn RwLockManager>;

type Layer = BTreeMap<String, Setting>;

/// Value with its source.
#[derive(Clone, Debug)]
struct Setting {
    value: OsString,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    CommandLine,
    Environment,
    File(Arc<Path>),
}

impl Source {
    /// Returns the option's name in this source.
    fn name_of(&self, option: &str) -> String {
        let by_command_line = OF_COMMAND_LINE.iter().find(|(name, _)| *name == option);
        match (self, by_command_line) {
            (Self::CommandLine, Some((_, given))) => (*given).to_owned(),
            (Self::CommandLine | Self::Environment, _) => format!("{PREFIX}_{option}"),
            (Self::File(path), _) => format!("{} in {}", field_of(option), path.display()),
        }
    }
}

/// Returns the name that an option has in a file, such as `tls.ca` for `TLS_CA`.
fn field_of(option: &str) -> String {
    const GROUPS: [&str; 5] = ["tls", "durability", "timestamp_clients", "sentinel", "topology"];
    let name = option.to_lowercase();
    let group = GROUPS.iter().find(|group| name.starts_with(**group) && name[group.len()..].starts_with('_'));
    let field = match group {
        Some(group) => format!("{group}.{}", &name[group.len() + 1..]),
        None => name,
    };
    if TOPOLOGY.contains(&option) { format!("topology.{field}") } else { field }
}

/// Addresses of the servers, as the user gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Node(String),
    Cluster(Vec<String>),
    Sentinel(Vec<String>),
    Proxy(String),
}

impl Place {
    /// Returns the first URL, whose user and password count for all servers.
    pub(crate) fn first_url(&self) -> &str {
        match self {
            Self::Node(url) | Self::Proxy(url) => url,
            Self::Cluster(urls) | Self::Sentinel(urls) => urls.first().map_or("", String::as_str),
        }
    }
}

impl Settings {
    pub(crate) fn gather(servers: &Servers, output: Output) -> Result<Self, Failure> {
        let mut settings = Self { kind: ManagerKind::of(servers)?, ..Self::default() };
        let file = servers.config.clone().or_else(|| env::var_os("RWLOCK_CONFIG").map(PathBuf::from));
        if let Some(file) = file {
            settings.put(read_file(&file)?);
        }
        settings.put(environment(output)?);
        settings.put(command_line(servers)?);
        // This checks all values at once, so later readers need not check them.
        settings.config()?;
        Ok(settings)
    }

    /// Adds a layer whose values override the present ones.
    fn put(&mut self, layer: Layer) {
        if TOPOLOGY.iter().any(|name| layer.contains_key(*name)) {
            self.options.retain(|name, _| !TOPOLOGY.contains(&name.as_str()));
        }
        // A level without replicas replaces one with replicas, and the other way round.
        if layer.contains_key("DURABILITY") {
            self.options.retain(|name, _| !REPLICATED.contains(&name.as_str()));
        }
        if REPLICATED.iter().any(|name| layer.contains_key(*name)) {
            self.options.remove("DURABILITY");
        }
        self.options.extend(layer);
    }

    /// Sets a value of the command line.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.options.insert(name.to_owned(), Setting { value: value.into(), source: Source::CommandLine });
    }

    pub(crate) fn set_if_missing(&mut self, name: &str, value: &str) {
        if !self.options.contains_key(name) {
            self.set(name, value);
        }
    }

    fn config(&self) -> Result<Config, Failure> {
        let vars = self.options.iter().map(|(name, set)| (format!("{PREFIX}_{name}").into(), set.value.clone()));
        Config::from_vars(PREFIX, vars).map_err(|error| self.failure(&error))
    }

    /// Makes a manager that has not connected yet.
    pub(crate) fn manager(&self) -> Result<Manager, Failure> {
        let config = self.config()?;
        let built = match self.kind {
            ManagerKind::Redis => config.builder().build().map(|manager| Arc::new(manager) as Manager),
            ManagerKind::Redisson => config.redisson_builder().build().map(|manager| Arc::new(manager) as Manager),
        };
        built.map_err(|error| self.failure(&error))
    }

    /// Makes a builder for a manager whose grants need all replicas. For tests of the servers, which send no grants.
    pub(crate) fn with_all_replicas(&self) -> Result<Builder<RedisManager>, Failure> {
        let mut settings = self.clone();
        settings.options.remove("DURABILITY");
        settings.set("DURABILITY_REPLICAS", "all");
        settings.set_if_missing("DURABILITY_TIMEOUT", "1ms");
        Ok(settings.config()?.builder())
    }

    /// Describes an invalid option by the name that it has in its source.
    fn failure(&self, error: &Error) -> Failure {
        let Error::InvalidOption { option, reason, .. } = error else { return error.clone().into() };
        let mut reason = reason.clone();
        // The longest name comes first, because one name may be the beginning of another.
        let mut names: Vec<_> = self.options.iter().collect();
        names.sort_by_key(|(name, _)| Reverse(name.len()));
        for (name, set) in names {
            let variable = format!("{PREFIX}_{name}");
            if reason.starts_with(&variable) {
                reason = reason.replacen(&variable, &set.source.name_of(name), 1);
                return Failure::new(Code::INVALID, in_words_of_users(&reason));
            }
        }
        let options = match *option {
            "environment" => vec![],
            "topology" => TOPOLOGY.map(str::to_owned).to_vec(),
            "tls" => {
                ["TLS_CA", "TLS_CLIENT_CERTIFICATE", "TLS_CLIENT_KEY", "TLS_SERVER_NAME"].map(str::to_owned).to_vec()
            }
            option => vec![option.to_uppercase()],
        };
        let mut given: Vec<String> =
            options.iter().filter_map(|option| Some(self.options.get(option)?.source.name_of(option))).collect();
        given.dedup();
        match given.as_slice() {
            [] if *option == "environment" => Failure::new(Code::INVALID, reason),
            [] => error.clone().into(),
            given => Failure::new(Code::INVALID, in_words_of_users(&format!("{}: {reason}", given.join(", ")))),
        }
    }

    fn get(&self, name: &str) -> Option<&OsString> {
        self.options.get(name).map(|set| &set.value)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }

    pub(crate) fn path(&self, name: &str) -> Option<&Path> {
        self.get(name).map(Path::new)
    }

    /// Returns the value of an option that is a duration. Returns `default` if the option is not set.
    pub(crate) fn span(&self, name: &str, default: Duration) -> Duration {
        // `gather` and `run` have refused values that cannot be parsed.
        self.text(name).and_then(|text| span(text).ok()).unwrap_or(default)
    }

    /// Returns the longest lease that the manager asks for, whatever the options say.
    pub(crate) fn longest_lease(&self) -> Duration {
        match self.kind {
            ManagerKind::Redis => Duration::MAX,
            // As the documentation of the library's `RedissonManager` says.
            ManagerKind::Redisson => self.span("LOCK_WATCHDOG_TIMEOUT", Duration::from_secs(30)) / 9 * 8,
        }
    }

    pub(crate) fn place(&self) -> Place {
        let urls = |name| split(self.text(name).unwrap_or_default());
        match (self.text("NODE"), self.text("PROXY")) {
            (Some(url), _) => Place::Node(url.to_owned()),
            (None, Some(url)) => Place::Proxy(url.to_owned()),
            (None, None) if self.options.contains_key("CLUSTER") => Place::Cluster(urls("CLUSTER")),
            (None, None) => Place::Sentinel(urls("SENTINEL_URLS")),
        }
    }
}

/// Parses a duration as in the options: `10s`, `1.5h`, `max`.
pub(crate) fn span(text: &str) -> Result<Duration, Failure> {
    text.parse()
        .map(|DurationText(span)| span)
        .map_err(|error: InvalidDuration| Failure::new(Code::USAGE, error.to_string()))
}

fn split(urls: &str) -> Vec<String> {
    urls.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect()
}

/// Returns the names of the environment variables that this program reads and whose URLs contain a password.
pub(crate) fn variables_with_password() -> Vec<String> {
    let with_password = env::vars_os().filter_map(|(variable, value)| {
        let variable = variable.into_string().ok()?;
        let name = variable.strip_prefix(PREFIX)?.strip_prefix('_')?;
        let is_ours = Config::variable_owner(name) == VariableOwner::Config;
        (is_ours && contains_password(name, &value.to_string_lossy())).then_some(variable)
    });
    with_password.collect()
}

/// Returns true if the value of a variable may contain a password. A variable with one URL may have commas in it.
fn contains_password(name: &str, value: &str) -> bool {
    match name {
        "NODE" | "PROXY" => has_password(value),
        _ => split(value).iter().any(|url| has_password(url)),
    }
}

/// Returns true if a URL may contain a password, also if characters in it are not encoded.
fn has_password(url: &str) -> bool {
    // The URL of a socket has the password in its query.
    if url.contains("pass=") {
        return true;
    }
    let behind_scheme = url.split_once("://").map(|(_, rest)| rest);
    let user = behind_scheme.and_then(|rest| rest.rsplit_once('@')).map(|(user, _)| user);
    user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}

/// Reads the variables with the prefix, except those that Kubernetes, Docker or `run` have written.
fn environment(output: Output) -> Result<Layer, Failure> {
    let mut layer = Layer::new();
    for (variable, value) in env::vars_os() {
        let name = variable.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_prefix('_'));
        let Some(name) = name else { continue };
        match Config::variable_owner(name) {
            VariableOwner::Config => {
                drop(layer.insert(name.to_owned(), Setting { value, source: Source::Environment }))
            }
            VariableOwner::Others => {}
            VariableOwner::Misspelt(meant) => {
                let reason =
                    format!("{PREFIX}_{name} is no option, but {PREFIX}_{meant} is: correct the name or remove it");
                return Err(Failure::new(Code::INVALID, reason));
            }
            _ => {
                output.tell("ignored", &format!("ignored the variable {PREFIX}_{name}, since it is no option"));
            }
        }
    }
    Ok(layer)
}

fn command_line(servers: &Servers) -> Result<Layer, Failure> {
    let Servers { url, cluster, proxy, sentinel, config: _, password_file, key_prefix, label, manager: _ } = servers;
    let mut options = Layer::new();
    let mut put = |name: &str, value: Option<&str>| {
        let set = |value: &str| (name.to_owned(), Setting { value: value.into(), source: Source::CommandLine });
        options.extend(value.map(set));
    };
    put("NODE", url.as_deref());
    put("CLUSTER", cluster.as_deref());
    put("PROXY", proxy.as_deref());
    if let Some(sentinel) = sentinel {
        // The error text does not quote the value, which may contain a password.
        let parts = sentinel.split_once('=').filter(|(primary, _)| !primary.contains("://"));
        let (primary, urls) = parts.ok_or_else(|| {
            Failure::new(Code::USAGE, "--sentinel needs the name of the primary, an =, and the Sentinels' URLs")
        })?;
        put("SENTINEL_PRIMARY", Some(primary));
        put("SENTINEL_URLS", Some(urls));
    }
    put("KEY_PREFIX", key_prefix.as_deref());
    put("LABEL", label.as_deref());
    if let Some(path) = password_file {
        let setting = Setting { value: path.into(), source: Source::CommandLine };
        options.insert("PASSWORD_FILE".to_owned(), setting);
    }
    Ok(options)
}

/// Reads a JSON file with the fields of a [`Config`]. The layer has them by the names of their variables.
fn read_file(path: &Path) -> Result<Layer, Failure> {
    let unusable = |reason: String| Failure::new(Code::INVALID, format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        // The error names only the position, because the parser's text may quote a password.
        unusable(format!("line {}, column {}: the text is not valid JSON", error.line(), error.column()))
    })?;
    let mut fields = Vec::new();
    flatten(&mut Vec::new(), &value, &mut fields);
    let (mut layer, path) = (Layer::new(), Arc::from(path));
    for (field, value) in fields {
        // A file groups these fields in `topology`. Their variables do not have this prefix.
        let name = field.strip_prefix("topology.").unwrap_or(&field).replace('.', "_").to_uppercase();
        match Config::variable_owner(&name) {
            VariableOwner::Config => {}
            VariableOwner::Misspelt(meant) => {
                return Err(unusable(format!(
                    "there is no option {field}, but {} is one: correct the name",
                    field_of(meant)
                )));
            }
            _ => return Err(unusable(format!("there is no option {field}: correct its name or remove it"))),
        }
        layer.insert(name, Setting { value: value.into(), source: Source::File(Arc::clone(&path)) });
    }
    Ok(layer)
}

/// Flattens nested fields into dotted names, with values in the format of variables.
fn flatten<'a>(at: &mut Vec<&'a str>, value: &'a Value, fields: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(inside) => {
            for (field, value) in inside {
                at.push(field);
                flatten(at, value, fields);
                at.pop();
            }
            return;
        }
        // A comma separates URLs in a variable.
        Value::Array(urls) => urls.iter().map(|url| plain(url).replace(',', "%2C")).collect::<Vec<_>>().join(","),
        Value::Null => return,
        value => plain(value),
    };
    fields.push((at.join("."), text));
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_in_all_urls() {
        let with = [
            ("NODE", "redis+unix:///run/redis.sock?user=locks&pass=s3cret"),
            ("NODE", "redis://:pa,ss@10.0.0.1:6379"),
            ("PROXY", "rediss://user:pa,ss@example.com"),
            ("CLUSTER", "redis://10.0.0.1,redis://:pw@10.0.0.2"),
        ];
        assert!(with.iter().all(|(name, value)| contains_password(name, value)));
        let without = [("NODE", "redis://user@10.0.0.1:6379"), ("CLUSTER", "redis://u@10.0.0.1,redis://u@10.0.0.2")];
        assert!(!without.iter().any(|(name, value)| contains_password(name, value)));
    }
}
