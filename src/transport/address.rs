//! URLs of servers, and addresses of others that are reached the same way.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::error::{Error, Result};

pub(super) fn parse(url: &str) -> Result<ConnectionInfo> {
    url.into_connection_info().map_err(|error| invalid_url(&error))
}

pub(super) fn parse_all(urls: &[String]) -> Result<Vec<ConnectionInfo>> {
    urls.iter().map(|url| parse(url)).collect()
}

/// A URL that does not parse. The library's text may quote the URL, password and all, so it is left out.
pub(super) fn invalid_url(_: &RedisError) -> Error {
    Error::InvalidOption {
        option: "topology",
        reason: "a URL must read redis://[user][:password@]host[:port][/db]".to_owned(),
    }
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
