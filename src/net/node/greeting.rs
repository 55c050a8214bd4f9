//! Greeting of a server. It is the server's answers to the first requests on a connection, which tell its kind,
//! version, role and clock.

use std::time::Duration;

use redis::{Cmd, Value};

use super::Role;
use crate::base::error::Refusal;
use crate::base::lease::ServerTime;
use crate::net::fault::{self, Fault};

/// Oldest version of Redis with which this library works.
const REDIS_OLDEST: (u32, u32) = (7, 0);
const VALKEY_OLDEST: (u32, u32) = (7, 2);

pub(super) fn unreadable(question: &str) -> Fault {
    Fault::unsent(format!("the reply to {question} is not one"))
}

pub(in crate::net) fn parse_time(reply: &Value) -> Option<ServerTime> {
    let [secs, micros] = list_items(reply)? else { return None };
    let number = |part: &Value| info_text(part)?.parse::<u64>().ok();
    // Envoy answers with all microseconds since 1970 in the second part.
    Some(ServerTime::from_micros(number(secs)?.checked_mul(1_000_000)?.checked_add(number(micros)? % 1_000_000)?))
}

/// Returns the answer to `HELLO` of a server that does not know this command, made from its answers to `INFO server` and
/// `INFO replication`. What the server does not tell is missing.
pub(super) fn hello_of_info(server: &Value, replication: &Value) -> Value {
    let field = |info, name| info_field(info_text(info)?, name).map(str::to_owned);
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let valkey = field(server, "valkey_version").map(|version| ("valkey", version));
    let named = valkey.or_else(|| field(server, "redis_version").map(|version| ("redis", version)));
    let mode = field(server, "redis_mode").or_else(|| field(server, "server_mode"));
    let (name, version) = named.unzip();
    let fields = [
        ("server", name.map(str::to_owned)),
        ("version", version),
        ("mode", mode),
        ("role", field(replication, "role")),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((text(name), text(&value?))));
    Value::Map(fields.chain([(text("proto"), Value::Int(2))]).collect())
}

/// Returns true if a connection with this answer to `HELLO` speaks RESP2.
pub(super) fn speaks_resp2(hello: &Value) -> bool {
    hello_value(hello, "proto") == Some(&Value::Int(2))
}

/// Returns the text of an answer.
pub(in crate::net) fn info_text(answer: &Value) -> Option<&str> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns the elements of a list.
pub(in crate::net) fn list_items(answer: &Value) -> Option<&[Value]> {
    match answer {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

/// Question for one section of the server's information.
pub(in crate::net) fn info(section: &str) -> Cmd {
    redis::cmd("INFO").arg(section).take()
}

/// Returns the value of the line `name:value` in the text of an answer to `INFO`.
pub(in crate::net) fn info_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

/// Reads a lower bound for the uptime of a server from its answer to `INFO`. Returns `None` if the answer has no
/// uptime, for example because the user may not send `INFO`.
pub(super) fn parse_uptime(info: &Value) -> Option<Duration> {
    let seconds = info_field(info_text(info)?, "uptime_in_seconds")?;
    // The server rounds to whole seconds, and its number may be too high by one.
    Some(Duration::from_secs(seconds.parse::<u64>().ok()?.saturating_sub(1)))
}

/// Checks the answer of a server to `HELLO`. Refuses a server that is too old, or whose kind does not fit `role`.
pub(super) fn check_server(hello: Value, role: Role) -> Result<(), Fault> {
    let refuse = |refusal, message: String| Err(Fault::refusal(refusal, message));
    let unsupported = |what: &str| {
        let (redis, valkey) = (REDIS_OLDEST, VALKEY_OLDEST);
        let needs =
            format!("Redis {}.{} or Valkey {}.{} is the oldest that works", redis.0, redis.1, valkey.0, valkey.1);
        refuse(Refusal::UnsupportedServer, format!("{what}; {needs}"))
    };
    let hello = match fault::reply(hello) {
        Ok(hello) => hello,
        // Redis before version 6 does not know `HELLO`, and answers with an error.
        Err(Fault::Refused { refusal: Refusal::Other, message }) => return unsupported(&message),
        Err(fault) => return Err(fault),
    };
    let field = |name: &str| hello_field(&hello, name).unwrap_or_default();
    // Without `HELLO`, the user may lack the right for the questions that replace it.
    // A master of a quorum must tell, since a proxy in its place would be one server more or less.
    let is_told = |name: &str| !field(name).is_empty() || !speaks_resp2(&hello) || role == Role::Voter;
    // A proxy may answer instead of the server, and leave out fields that it does not know.
    let or_unnamed = |text: String| if text.is_empty() { "(unnamed)".to_owned() } else { text };
    let (server, version) = (or_unnamed(field("server")), or_unnamed(field("version")));
    let oldest = if server == "valkey" { VALKEY_OLDEST } else { REDIS_OLDEST };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if is_told("version") && (major, minor) < oldest {
        return unsupported(&format!("the server is {server} {version}"));
    }
    let mode = or_unnamed(field("mode"));
    let is_expected = match role {
        Role::Standalone | Role::Voter => mode == "standalone",
        Role::ClusterMember => mode == "cluster",
        // A proxy passes on the mode of a server behind it.
        Role::Proxy => mode != "sentinel",
    };
    if is_told("mode") && !is_expected {
        let message = match mode.as_str() {
            "sentinel" => "it is a Sentinel: use `Topology::sentinel`".to_owned(),
            "cluster" => "it is a member of a cluster: use `Topology::cluster`".to_owned(),
            "standalone" => "it is no member of a cluster: use `Topology::node`, or give a member's URL".to_owned(),
            other => format!("it runs in {other} mode, which is none that the topology can name"),
        };
        return refuse(Refusal::OtherTopology, message);
    }
    Ok(())
}

/// Returns true if the answer to `HELLO` says that the server is a replica.
pub(super) fn is_replica(hello: &Value) -> bool {
    matches!(hello_field(hello, "role").as_deref(), Some("replica" | "slave"))
}

pub(in crate::net) fn hello_field(hello: &Value, name: &str) -> Option<String> {
    info_text(hello_value(hello, name)?).map(str::to_owned)
}

pub(in crate::net) fn hello_value<'a>(hello: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(fields) = hello else { return None };
    fields.iter().find(|(key, _)| info_text(key) == Some(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_of(fields: &[(&str, &str)]) -> String {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let hello = Value::Map(fields.iter().map(|(name, value)| (text(name), text(value))).collect());
        match check_server(hello, Role::Standalone) {
            Err(Fault::Refused { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn time_of_a_proxy_that_repeats_the_seconds_is_read() {
        let time = |parts: [&str; 2]| Value::Array(parts.map(|part| Value::BulkString(part.into())).to_vec());
        let expected = Some(ServerTime::from_micros(1_700_000_000_123_456));
        assert_eq!(parse_time(&time(["1700000000", "123456"])), expected);
        assert_eq!(parse_time(&time(["1700000000", "1700000000123456"])), expected);
        assert_eq!(parse_time(&time(["18446744073709", "999999"])), None);
    }

    #[test]
    fn refusal_has_no_blank_where_the_server_names_nothing() {
        let messages = [
            refusal_of(&[]),
            refusal_of(&[("server", "proxy")]),
            refusal_of(&[("version", "6.0.0")]),
            refusal_of(&[("server", "redis"), ("version", "7.0.0")]),
        ];
        for message in messages {
            assert!(message.contains("(unnamed)") && !message.contains("  ") && !message.contains(" ;"), "{message}");
        }
    }
}
