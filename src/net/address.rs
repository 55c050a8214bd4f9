//! URLs of servers. Also addresses of servers that other servers announce; they are reached with TLS if the URLs
//! require it.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::base::credentials::Credentials;
use crate::base::error::{Error, Result};
use crate::base::topology::Tls;
use crate::net::tls::Connector;

/// Parses all URLs of a topology. Refuses an empty list.
pub(super) fn parse_all(urls: &[String], tls: &Tls) -> Result<Vec<ConnectionInfo>> {
    let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>>>()?;
    let secure = infos.iter().filter(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. })).count();
    first(&infos)?;
    if secure == 0 && *tls != Tls::new() {
        let reason = "there are certificates or a server name, and the URLs are not rediss://";
        return Err(Error::invalid("tls", reason));
    }
    if secure != 0 && secure != infos.len() {
        return invalid("either all URLs are rediss:// or none is");
    }
    if secure != 0 {
        // Called only to report errors in the certificates early. The connector itself is not kept.
        Connector::new(tls)?;
    }
    Ok(infos)
}

/// Parses the URL of a topology that has only one.
pub(super) fn parse_one(url: &str, tls: &Tls) -> Result<ConnectionInfo> {
    first(&parse_all(&[url.to_owned()], tls)?).cloned()
}

pub(super) fn first(infos: &[ConnectionInfo]) -> Result<&ConnectionInfo> {
    infos.first().map_or_else(|| invalid("it needs the URL of at least one node"), Ok)
}

/// Refuses URLs that cannot belong to one cluster. Does not check that the database exists: Valkey 9 can have several
/// databases in a cluster, and other servers refuse any database except 0.
pub(super) fn check_members(infos: &[ConnectionInfo]) -> Result<()> {
    // All members are used with the database of the first URL. If the URLs named different databases, two services with
    // the same URLs in another order would use different databases.
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
    let plain = plain(url);
    if plain.is_some() && cfg!(not(feature = "tls")) {
        return invalid("TLS needs the cargo feature `tls` of redis-rwlock");
    }
    let is_socket = url.split_once(':').is_some_and(|(scheme, _)| scheme.ends_with("unix"));
    if !is_socket && at_sign_behind_host(url) {
        return invalid("an @ behind the host: what a user name or password has of `/?#@` must be percent-encoded");
    }
    let mut info = plain.as_deref().unwrap_or(url).into_connection_info().map_err(|_| invalid_url())?;
    if plain.is_some() {
        match url.trim_end().split_once('#') {
            None => {}
            Some((_, "insecure")) => return invalid("certificates are always checked, `#insecure` cannot be"),
            Some(_) => return Err(invalid_url()),
        }
        info = with_tls(info);
    }
    if info.redis_settings().db() < 0 {
        return invalid("databases are counted from 0 on");
    }
    Ok(info)
}

/// Replaces the scheme of a URL with TLS by the scheme without TLS. Returns `None` for other URLs. This is necessary
/// because the `redis` crate accepts such a URL only with its own TLS, which this library does not use.
fn plain(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once(':')?;
    let plain = match scheme.to_ascii_lowercase().as_str() {
        "rediss" => "redis",
        "valkeys" => "valkey",
        _ => return None,
    };
    Some(format!("{plain}:{rest}"))
}

fn with_tls(info: ConnectionInfo) -> ConnectionInfo {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let (host, port) = (host.clone(), *port);
            info.set_addr(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None })
        }
        _ => info,
    }
}

/// Returns true if an `@` follows the host. The part before the `@` is then most likely a password with a character
/// that is not percent-encoded. The `redis` crate would take a piece of the password for the host, show it in errors,
/// and send it to a name server.
fn at_sign_behind_host(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'))
}

fn invalid<T>(reason: &str) -> Result<T> {
    Err(Error::invalid("topology", reason))
}

/// Returns the error for a URL that cannot be parsed. Does not include the error of the `redis` crate, because its text
/// may quote the URL with the password.
fn invalid_url() -> Error {
    Error::invalid("topology", "a URL must read redis://[user][:password@]host[:port][/db]")
}

/// Replaces the user and the password of `info` by `credentials`. Without credentials, returns `info` unchanged.
pub(super) fn with_credentials(info: ConnectionInfo, credentials: Option<&Credentials>) -> ConnectionInfo {
    let Some(credentials) = credentials else { return info };
    let (user, password) = (credentials.user(), credentials.secret());
    let before = info.redis_settings();
    // All settings except the database begin empty. Otherwise the user of the credentials could get the password of the
    // URL, which belongs to another user.
    let mut settings = RedisConnectionInfo::default().set_db(before.db());
    if !user.is_empty() {
        settings = settings.set_username(user);
    }
    if !password.is_empty() {
        settings = settings.set_password(password);
    }
    info.set_redis_settings(settings)
}

/// Returns the address as `host:port`, or the path of a socket.
pub(super) fn address_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
        other => other.to_string(),
    }
}

/// Returns the address of a server at another host and port. The address uses TLS if `template` does.
pub(super) fn with_host(template: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    let host = host.to_owned();
    match template {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
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
