//! URLs of servers, and addresses of others that are reached the same way.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError};

use crate::error::{Error, Result};
use crate::topology::{Credentials, Tls};
#[cfg(feature = "tls")]
use crate::transport::tls;

/// All URLs of a topology, at least one.
pub(super) fn parse_all(urls: &[String], tls: &Tls) -> Result<Vec<ConnectionInfo>> {
    let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>>>()?;
    let secure = infos.iter().filter(|info| speaks_tls(info)).count();
    if infos.is_empty() {
        return invalid("it needs the URL of at least one node");
    }
    if secure == 0 && *tls != Tls::new() {
        return Err(Error::InvalidOption {
            option: "tls",
            reason: "there are certificates, and the URLs are not rediss://".to_owned(),
        });
    }
    if secure != 0 && secure != infos.len() {
        return invalid("either all URLs are rediss:// or none is");
    }
    if secure == 0 { Ok(infos) } else { equip(infos, tls) }
}

/// The only URL of a topology.
pub(super) fn parse_one(url: &str, tls: &Tls) -> Result<ConnectionInfo> {
    first(parse_all(&[url.to_owned()], tls)?)
}

pub(super) fn first(infos: Vec<ConnectionInfo>) -> Result<ConnectionInfo> {
    infos.into_iter().next().map_or_else(|| invalid("it needs the URL of at least one node"), Ok)
}

/// Refuses URLs that cannot be of one cluster. Whether a database exists is the servers' answer: Valkey 9 can have several, other
/// servers refuse all but 0.
pub(super) fn check_members(infos: &[ConnectionInfo]) -> Result<()> {
    // All members are used with one database. Two services that list the same URLs in another order must not part ways.
    let mut databases = infos.iter().map(|info| info.redis_settings().db());
    if databases.next().is_some_and(|first| databases.any(|other| other != first)) {
        return invalid("the URLs of a cluster name different databases, and all members are used with one");
    }
    if infos.iter().any(|info| matches!(info.addr(), ConnectionAddr::Unix(_))) {
        return invalid("the nodes of a cluster are found by host and port, not by a socket's path");
    }
    Ok(())
}

fn parse(url: &str) -> Result<ConnectionInfo> {
    // Also where another crate has switched on the library's TLS: certificates and cryptography are settled with ours.
    if cfg!(not(feature = "tls")) && ["rediss:", "valkeys:"].iter().any(|scheme| url.starts_with(scheme)) {
        return invalid("TLS needs the cargo feature `tls` of redis-rwlock");
    }
    if !is_socket(url) && at_sign_behind_host(url) {
        return invalid("an @ behind the host: what a user name or password has of `/?#@` must be percent-encoded");
    }
    let info = url.into_connection_info().map_err(|error| invalid_url(&error))?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return invalid("certificates are always checked, `#insecure` cannot be");
    }
    if info.redis_settings().db() < 0 {
        return invalid("databases are counted from 0 on");
    }
    // Replies are read as RESP2 has them, whatever the URL says.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    Ok(info.set_redis_settings(settings))
}

fn is_socket(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| scheme.ends_with("unix"))
}

/// Most likely the host is part of a password, which would be shown in errors, and sent to whoever resolves names.
fn at_sign_behind_host(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'))
}

fn speaks_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Adds certificates to a connection that speaks TLS.
pub(super) fn equipped(info: ConnectionInfo, certificates: &Tls) -> Result<ConnectionInfo> {
    if speaks_tls(&info) { first(equip(vec![info], certificates)?) } else { Ok(info) }
}

/// Refuses certificates that no connection could use.
pub(super) fn check_certificates(certificates: &Tls) -> Result<()> {
    #[cfg(feature = "tls")]
    tls::check(certificates)?;
    #[cfg(not(feature = "tls"))]
    let _ = certificates;
    Ok(())
}

#[cfg(feature = "tls")]
fn equip(infos: Vec<ConnectionInfo>, certificates: &Tls) -> Result<Vec<ConnectionInfo>> {
    tls::equip(infos, certificates)
}

#[cfg(not(feature = "tls"))]
fn equip(infos: Vec<ConnectionInfo>, _: &Tls) -> Result<Vec<ConnectionInfo>> {
    Ok(infos)
}

fn invalid<T>(reason: &str) -> Result<T> {
    Err(Error::InvalidOption { option: "topology", reason: reason.to_owned() })
}

/// A URL that does not parse. The library's text may quote the URL, password and all, so it is left out.
pub(super) fn invalid_url(_: &RedisError) -> Error {
    Error::InvalidOption {
        option: "topology",
        reason: "a URL must read redis://[user][:password@]host[:port][/db]".to_owned(),
    }
}

/// Replaces user and password, if others are given.
pub(super) fn with_credentials(info: ConnectionInfo, credentials: Option<&Credentials>) -> ConnectionInfo {
    let Some(Credentials { user, password }) = credentials else { return info };
    let before = info.redis_settings();
    // A user of the URL must not stay beside the password of another.
    let mut settings = RedisConnectionInfo::default().set_db(before.db()).set_protocol(before.protocol());
    if !user.is_empty() {
        settings = settings.set_username(user);
    }
    if !password.is_empty() {
        settings = settings.set_password(password);
    }
    info.set_redis_settings(settings)
}

/// `host:port`.
pub(super) fn address_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
        other => other.to_string(),
    }
}

/// The address of another node that is reached the same way.
pub(super) fn with_host(template: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    let host = host.to_owned();
    match template {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_taken_for_hosts() {
        for url in ["redis://u:12/3@host", "redis://u:1?2@host", "redis://u:1#2@host", "redis://:1/2@host:1/3"] {
            assert!(parse(url).is_err(), "{url}");
        }
        for url in ["redis://u:1@host/2", "redis+unix:///run/r@dis?pass=a@b", "redis://u:%40%2F@host"] {
            assert!(parse(url).is_ok(), "{url}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_its_feature_is_refused_by_name() {
        for url in ["rediss://host", "valkeys://host"] {
            let error = parse(url).expect_err("no TLS").to_string();
            assert!(error.contains("cargo feature `tls`"), "{error}");
        }
    }
}
