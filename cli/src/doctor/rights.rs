//! Finds the commands, keys and channels that the user may not use, by trying each of them.
//!
//! No try changes data. The key is unused. HSET has one argument too many, so a server that permits HSET answers with
//! an error.

use std::collections::BTreeMap;
use std::process;

use redis::RedisError;

use super::finding::{Finding, Findings, Level};
use super::link::{self, Failure, Link};
use crate::settings::Settings;

/// Purpose of a right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    Locks,
    Cluster,
    Durability,
    WakeUps,
    Health,
    Operators,
    QuietLog,
}

const KEY: &str = "<key>";
const CHANNEL: &str = "<channel>";

/// ACL rules, each with its purpose and with a command that needs it. Subscriptions come last, because the connection
/// accepts no other commands after them.
const RIGHTS: [(&str, Use, &[&str]); 20] = [
    ("+eval", Use::Locks, &["EVAL", "return 0", "1", KEY]),
    ("+evalsha", Use::Locks, &["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "1", KEY]),
    ("+time", Use::Locks, &["TIME"]),
    ("+hmget", Use::Locks, &["HMGET", KEY, "x"]),
    ("+hget", Use::Locks, &["HGET", KEY, "x"]),
    ("+hset", Use::Locks, &["HSET", KEY, "x", "x", "x"]),
    ("+hdel", Use::Locks, &["HDEL", KEY, "x"]),
    ("+pexpireat", Use::Locks, &["PEXPIREAT", KEY, "9999999999999"]),
    ("+cluster|slots", Use::Cluster, &["CLUSTER", "SLOTS"]),
    ("+asking", Use::Cluster, &["ASKING"]),
    ("+wait", Use::Durability, &["WAIT", "0", "0"]),
    ("+info", Use::Durability, &["INFO", "server"]),
    ("+info", Use::Health, &["INFO", "server"]),
    ("+scan", Use::Operators, &["SCAN", "0", "COUNT", "1"]),
    ("+ping", Use::QuietLog, &["PING"]),
    ("+client|setinfo", Use::QuietLog, &["CLIENT", "SETINFO", "lib-name", "redis-rwlock"]),
    ("+command|info", Use::QuietLog, &["COMMAND", "INFO", "SPUBLISH", "SSUBSCRIBE"]),
    ("+spublish", Use::WakeUps, &["SPUBLISH", CHANNEL, "x"]),
    ("+ssubscribe", Use::WakeUps, &["SSUBSCRIBE", CHANNEL]),
    ("+sunsubscribe", Use::WakeUps, &["SUNSUBSCRIBE", CHANNEL]),
];

/// Right or command that a server refused.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Refused {
    /// Refused by a rule of the ACL.
    Right(Purpose, String),
    /// Unknown to the server.
    Command(Purpose, String),
    /// Notification that the server refuses in scripts only, with its words.
    InScripts(Purpose, String),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Purpose(Use);

/// Answer of a server to `WAIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitRight {
    Permitted,
    Forbidden,
    Unknown,
}

/// Tries `WAIT`, in a way that waits for nothing.
pub(super) async fn try_wait(link: &mut Link) -> Result<WaitRight, Failure> {
    Ok(match denial(&link.ask(&["WAIT", "0", "0"]).await)? {
        Some(Denial::Unknown) => WaitRight::Unknown,
        Some(Denial::Command | Denial::Key | Denial::Channel) => WaitRight::Forbidden,
        None => WaitRight::Permitted,
    })
}

/// Tries all rights that locks need at this server.
pub(super) async fn try_all(
    link: &mut Link,
    settings: &Settings,
    in_cluster: bool,
    wants_replicas: bool,
) -> Result<Vec<Refused>, Failure> {
    let mut refused = Vec::new();
    // Keys have two forms, and each form needs a right of its own. These tries come before the subscriptions.
    for (key, pattern) in keys(settings) {
        for words in [["HGET", &key, "x"].as_slice(), &["HSET", &key, "x", "x", "x"]] {
            if let Some(Denial::Key) = denial(&link.ask(words).await)? {
                refused.push(Refused::Right(Purpose(Use::Locks), format!("~{pattern}")));
                break;
            }
        }
        if let Some(Denial::Channel) = denial(&link.ask(&["SPUBLISH", &channel(&key), "x"]).await)? {
            refused.push(Refused::Right(Purpose(Use::WakeUps), format!("&{}", channel_pattern(&pattern))));
        }
    }
    let (key, _) = &keys(settings)[0];
    let channel = channel(key);
    if let Some(words) = refusal_in_scripts(link, key, &channel).await? {
        refused.push(Refused::InScripts(Purpose(Use::WakeUps), words));
    }
    for (rule, used_for, words) in RIGHTS {
        if used_for == Use::Cluster && !in_cluster || used_for == Use::Durability && !wants_replicas {
            continue;
        }
        let word = |word: &&'static str| match *word {
            KEY => key.as_str(),
            CHANNEL => &channel,
            word => word,
        };
        let words: Vec<&str> = words.iter().map(word).collect();
        match denial(&link.ask(&words).await)? {
            Some(Denial::Command) => refused.push(Refused::Right(Purpose(used_for), rule.to_owned())),
            // Older servers lack some commands of this purpose, which is no defect.
            Some(Denial::Unknown) if used_for != Use::QuietLog => {
                refused.push(Refused::Command(Purpose(used_for), words[0].to_owned()));
            }
            _ => {}
        }
    }
    refused.sort();
    refused.dedup();
    Ok(refused)
}

/// Publishes in a script, as the scripts of locks do. Returns the server's words if it refuses that, although it permits
/// the same outside of a script.
async fn refusal_in_scripts(link: &mut Link, key: &str, channel: &str) -> Result<Option<String>, Failure> {
    // Without the right to publish or to run scripts, this says nothing.
    for words in [["SPUBLISH", channel, "x"].as_slice(), &["EVAL", "return 0", "1", key]] {
        let reply = link.ask(words).await;
        if denial(&reply)?.is_some() || reply.is_err() {
            return Ok(None);
        }
    }
    let inside = link.ask(&["EVAL", "return redis.call('SPUBLISH', ARGV[1], ARGV[2])", "1", key, channel, "x"]).await;
    denial(&inside)?;
    Ok(inside.err().map(|error| error.detail().map_or_else(|| error.to_string(), str::to_owned)))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Denial {
    Command,
    Key,
    Channel,
    Unknown,
}

/// Returns the denial that a reply shows. Ignores other errors of a command, since later checks find them.
fn denial<T>(reply: &Result<T, RedisError>) -> Result<Option<Denial>, Failure> {
    let Err(error) = reply else { return Ok(None) };
    let words = error.detail().unwrap_or_default().to_lowercase();
    Ok(match error.code() {
        Some("NOPERM") if words.contains("to run the") => Some(Denial::Command),
        Some("NOPERM") if words.contains("channel") => Some(Denial::Channel),
        Some("NOPERM") => Some(Denial::Key),
        _ if error.to_string().contains("unknown command") || error.to_string().contains("unknown subcommand") => {
            Some(Denial::Unknown)
        }
        _ if error.is_io_error() || error.is_timeout() => return Err(Failure::Unreachable(error.to_string())),
        _ => None,
    })
}

/// Returns the key of a lock whose name needs no escape.
pub(super) fn key_of(settings: &Settings, name: &str) -> String {
    match template(settings) {
        Some((before, behind)) => format!("{before}{name}{behind}"),
        None => format!("{}:{{{name}}}:lock", prefix(settings)),
    }
}

fn template(settings: &Settings) -> Option<(&str, &str)> {
    settings.text("TIMESTAMP_KEYS")?.split_once('*')
}

fn prefix(settings: &Settings) -> &str {
    settings.text("KEY_PREFIX").unwrap_or("rwlock")
}

/// Returns an unused key of each form, with the ACL pattern for all keys of the form.
fn keys(settings: &Settings) -> Vec<(String, String)> {
    let name = format!("redis-rwlock doctor {} {}", process::id(), fastrand::u64(..));
    if let Some((before, behind)) = template(settings) {
        return vec![(key_of(settings, &name), format!("{before}*{behind}"))];
    }
    let prefix = prefix(settings);
    vec![
        (key_of(settings, &name), format!("{prefix}:{{*")),
        (format!("{prefix}#{{{name}}}:1:lock"), format!("{prefix}#*")),
    ]
}

/// Returns the wake-up channel of a key. Puts a key without braces into braces.
fn channel(key: &str) -> String {
    if key.contains('{') { format!("{key}:wake") } else { format!("{{{key}}}:wake") }
}

fn channel_pattern(pattern: &str) -> String {
    if pattern.contains(['{', '#']) { pattern.to_owned() } else { format!("{{{pattern}") }
}

impl Refused {
    fn used_for(&self) -> Use {
        let (Self::Right(purpose, _) | Self::Command(purpose, _) | Self::InScripts(purpose, _)) = self;
        purpose.0
    }

    fn level(&self) -> Level {
        match self.used_for() {
            Use::Locks | Use::Cluster | Use::Durability => Level::Problem,
            Use::WakeUps => Level::Warning,
            Use::Health | Use::Operators | Use::QuietLog => Level::Note,
        }
    }

    fn why(&self) -> &'static str {
        match self.used_for() {
            Use::Locks => "locks need it",
            Use::Cluster => "locks in a cluster need it",
            Use::Durability => "durability needs it",
            Use::WakeUps => "without it the server does not wake waiters, so they ask once a second",
            Use::Health => {
                "without it an eviction policy that removes locks is not detected, and full memory only by a refusal"
            }
            Use::Operators => "list and top need it",
            Use::QuietLog => "without it connections leave lines in ACL LOG",
        }
    }
}

/// Reports each refusal once, with all servers that refused. Each item is a server with one of its refusals.
pub(super) fn tell<'a>(
    refused: impl Iterator<Item = (&'a String, &'a Refused)>,
    settings: &Settings,
    findings: &mut Findings,
) {
    let mut everywhere: BTreeMap<&Refused, Vec<&String>> = BTreeMap::new();
    for (node, refused) in refused {
        everywhere.entry(refused).or_default().push(node);
    }
    for (refused, nodes) in everywhere {
        let (message, advice) = match refused {
            Refused::Right(_, rule) => {
                let user = user(settings);
                (format!("user {user} lacks {rule}: {}", refused.why()), format!("ACL SETUSER {user} {rule}"))
            }
            Refused::Command(_, command) => (
                format!("the server knows no {command}: {}", refused.why()),
                "check whether the server's configuration renames the command".to_owned(),
            ),
            Refused::InScripts(_, words) => (
                format!("the server refuses SPUBLISH inside scripts ({words}): {}", refused.why()),
                "permit SPUBLISH in scripts, or expect each hand-over to take up to a second".to_owned(),
            ),
        };
        let finding = Finding::new(refused.level(), "rights", message).advise(advice);
        findings.add(nodes.into_iter().fold(finding, |finding, node| finding.at(node)));
    }
}

pub(super) fn user(settings: &Settings) -> String {
    let info = link::read_url(settings.place().first_url());
    let user = info.ok().and_then(|info| info.redis_settings().username().map(str::to_owned));
    user.unwrap_or_else(|| "default".to_owned())
}
