//! Connection to one server, without the library.

use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::finding::{Finding, Level};
use super::tls;
use crate::exit::Failure as Exit;
use crate::settings::{Place, Settings};

pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of bytes that are read on one connection. Only the map of a large cluster comes near it.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// True if the URL has a password and the server requires none.
    pub(super) wants_no_password: bool,
}

/// Reason why a server could not be asked.
#[derive(Debug)]
pub(super) enum Failure {
    Login(String),
    /// TLS failed, or only one side uses TLS. The fields are the cause and advice.
    Tls {
        message: String,
        advice: String,
    },
    Unreachable(String),
}

impl Failure {
    pub(super) fn finding(&self, level: Level, node: &str, login: &str) -> Finding {
        match self {
            // A replica that becomes the primary would still refuse this user. So a failed login is always a problem.
            Self::Login(message) => Finding::new(Level::Problem, "login", message).advise(login),
            Self::Tls { message, advice } => Finding::new(level, "tls", message).advise(advice),
            Self::Unreachable(message) => Finding::new(level, "unreachable", message)
                .advise("check that the server runs and that the address is right"),
        }
        .at(node)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        if is_login(&error) { Self::Login(error.to_string()) } else { Self::Unreachable(error.to_string()) }
    }
}

fn is_login(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) || error.kind() == redis::ErrorKind::AuthenticationFailed
}

impl Link {
    pub(super) async fn open(address: &str, settings: &Settings) -> Result<Self, Failure> {
        let info = connection_info(address, settings).map_err(|exit| Failure::Unreachable(exit.message))?;
        let error = match connect(info.clone(), settings).await {
            Ok(connection) => return Ok(Self { connection, wants_no_password: false }),
            Err(error) => error,
        };
        if !is_login(&error) {
            return Err(tls::explained(&info, error.to_string()).await);
        }
        if info.redis_settings().password().is_some() && info.redis_settings().username().is_none() {
            // The client library does not report the server's error text. If a login without a password succeeds, the
            // server requires no password.
            let info = info.set_redis_settings(redis::RedisConnectionInfo::default());
            if let Ok(connection) = connect(info, settings).await {
                let mut link = Self { connection, wants_no_password: true };
                if link.ask(&["PING"]).await.is_ok() {
                    return Ok(link);
                }
            }
        }
        Err(error.into())
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Value, RedisError> {
        let mut command = redis::cmd(words.first().copied().unwrap_or_default());
        for word in words.iter().skip(1) {
            command.arg(word);
        }
        command.query_async(&mut self.connection).await
    }
}

async fn connect(info: ConnectionInfo, settings: &Settings) -> Result<MultiplexedConnection, RedisError> {
    let connecting = async {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((&**host, *port)).await?;
                stream.set_nodelay(true)?;
                greet(&info, stream).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                greet(&info, super::encrypted::connect(host, *port, settings).await?).await
            }
            ConnectionAddr::Unix(path) => greet(&info, UnixStream::connect(path).await?).await,
            other => Err(io::Error::new(io::ErrorKind::Unsupported, other.to_string()).into()),
        }
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {TIMEOUT:?}")).into();
    tokio::time::timeout(TIMEOUT, connecting).await.unwrap_or_else(|_| Err(late()))
}

/// Logs in on a stream that ends after `MAX_BYTES`, however much the server sends.
async fn greet(
    info: &ConnectionInfo,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
    let (reader, writer) = tokio::io::split(stream);
    let limited = tokio::io::join(reader.take(MAX_BYTES), writer);
    let (connection, driver) = MultiplexedConnection::new_with_config(info.redis_settings(), limited, config).await?;
    tokio::spawn(driver);
    Ok(connection)
}

fn connection_info(address: &str, settings: &Settings) -> Result<ConnectionInfo, Exit> {
    let place = settings.place();
    // The library has accepted the URL before, so errors are rare. The text of this error may quote the password, so it
    // is dropped.
    let unusable = |_| Exit::from_text("the URL cannot be read");
    let mut info = read_url(place.first_url()).map_err(unusable)?;
    if let Some(path) = settings.path("PASSWORD_FILE") {
        let password = std::fs::read_to_string(path).map_err(Exit::system)?;
        let password = password.strip_suffix('\n').map_or(&*password, |line| line.strip_suffix('\r').unwrap_or(line));
        let redis = info.redis_settings().clone().set_password(password);
        info = info.set_redis_settings(redis);
    }
    match place {
        Place::Node(_) | Place::Proxy(_) => Ok(info),
        _ => at(info, address).ok_or_else(|| Exit::from_text("the address of the server cannot be read")),
    }
}

/// Parses a URL. The `redis` crate parses URLs for TLS only with its own TLS feature, which is not enabled here.
pub(super) fn read_url(url: &str) -> Result<ConnectionInfo, RedisError> {
    let (scheme, rest) = url.trim().split_once(':').unwrap_or((url, ""));
    if !["rediss", "valkeys"].iter().any(|secure| scheme.eq_ignore_ascii_case(secure)) {
        return url.into_connection_info();
    }
    let info = format!("redis:{rest}").into_connection_info()?;
    Ok(match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let (host, port) = (host.clone(), *port);
            info.set_addr(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None })
        }
        _ => info,
    })
}

/// Returns the connection settings for another server at `address`.
fn at(info: ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':')?;
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Some(info.set_addr(addr))
}
