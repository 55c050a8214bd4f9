//! Faults: the meaning of an error or of a missing answer. Some faults prove that nothing ran. After other faults, the
//! call may have run.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::base::attempt::Failure;
use crate::base::error::{AtNode, NoTls, NotPrimary, Refusal, Source};
use crate::base::lease::Moment;

/// Reason why a call has no usable reply, as far as the answer of one node can show it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The slot belongs to the node at `address`. Nothing ran.
    Moved { address: String },
    /// The slot is migrating, and another node may have the key already. Nothing ran.
    Ask { address: String },
    /// The node cannot execute the call now, but may be able to do so later. Nothing ran.
    Again(Source),
    /// The server is not a primary that is ready for calls. The node's address may lead to another server by now.
    /// Nothing ran.
    WrongServer(Source),
    /// The server does not know the script. Nothing ran.
    NoScript,
    /// The node refuses this call, and would refuse it again. Nothing ran.
    Refused { refusal: Refusal, message: String },
    /// The node refused a command within the script. The script may have written before this command.
    Broken { refusal: Refusal, message: String },
    /// The call ran, but its hold does not count, because too few replicas have acknowledged it.
    Unreplicated { asked: u64, acknowledged: u64 },
    /// No connection could be used. Nothing was sent.
    NotSent(Option<Source>),
    /// The call may have run, or may still run until `arrives_until`.
    Unknown { arrives_until: Moment, source: Option<Source> },
}

impl Fault {
    /// Returns the fault of a call for which no connection could be used.
    pub(super) fn unsent(reason: impl Into<String>) -> Self {
        Self::NotSent(Some(Answer::error(reason)))
    }

    /// Fault of a request that a server may execute until `arrives_until`.
    pub(super) fn unknown(arrives_until: Moment, reason: impl Into<String>) -> Self {
        Self::Unknown { arrives_until, source: Some(Answer::error(reason)) }
    }

    pub(super) fn refusal(refusal: Refusal, message: impl Into<String>) -> Self {
        Self::Refused { refusal, message: message.into() }
    }

    /// Refusal of a server that answers a question with something that is no answer to it.
    pub(super) fn unreadable(server: &str, question: &str) -> Self {
        Self::refusal(Refusal::Other, format!("{server} has answered {question} with something else"))
    }

    /// Classifies an error that a node has sent as its reply.
    pub(super) fn of_server(error: &ServerError) -> Self {
        match Self::of_words(error) {
            // Redis and Valkey add the position in the script to an error that came from within it. Scripts read all
            // keys before they write. So a script that finds a key of another type has not changed anything, although
            // the error comes from within the script.
            Self::Refused { refusal, message }
                if refusal != Refusal::ForeignKey && message.contains("@user_script:") =>
            {
                Self::Broken { refusal, message }
            }
            fault => fault,
        }
    }

    fn of_words(error: &ServerError) -> Self {
        // A server that does not know a command repeats its arguments, which may be a password.
        let details = error.details().unwrap_or_default().split(", with args").next().unwrap_or_default();
        // The details are `<slot> <host>:<port>`. If the host is empty, the caller fills it in.
        let address = || details.split(' ').nth(1).unwrap_or_default().to_owned();
        let words = || format!("{} {details}", error.code());
        let refused = |refusal| Self::refusal(refusal, words());
        let again = || Self::Again(Answer::error(words()));
        match error.code() {
            "MOVED" => Self::Moved { address: address() },
            "ASK" => Self::Ask { address: address() },
            "TRYAGAIN" | "CLUSTERDOWN" | "BUSY" => again(),
            "LOADING" | "MASTERDOWN" => Self::WrongServer(Answer::error(words())),
            "NOSCRIPT" => Self::NoScript,
            // This error may also come from within a script. It then proves that nothing was written. The first write
            // of the script fails already, because a server does not change its role while a script runs.
            "READONLY" => Self::WrongServer(Arc::new(NotPrimary(format!("READONLY {details}")))),
            "MISCONF" | "NOREPLICAS" => refused(Refusal::ReadOnly),
            "OOM" => refused(Refusal::OutOfMemory),
            "NOAUTH" | "WRONGPASS" => refused(Refusal::Unauthenticated),
            "NOPERM" => refused(Refusal::Forbidden),
            "WRONGTYPE" => refused(Refusal::ForeignKey),
            // If a command within a script fails, the message contains the error of this command.
            _ if details.contains("-OOM ") || details.starts_with("OOM ") => refused(Refusal::OutOfMemory),
            // The user may not run a command of the script. Redis 7.0 and Valkey each have their own message for this
            // case.
            _ if details.contains("executing the script can't run") || details.contains("ACL failure in script") => {
                refused(Refusal::Forbidden)
            }
            "ERR" if details.starts_with("max number of clients") => again(),
            _ if details.contains("WRONGTYPE") => refused(Refusal::ForeignKey),
            // While a slot moves, a server may run a script although the key is at another server. Scripts read first,
            // so the first command that meets this error has changed nothing.
            _ if details.contains("attempted to access a non local key") => again(),
            _ if details.contains("cluster support disabled") => Self::refusal(
                Refusal::OtherTopology,
                "it is no member of a cluster: use `Topology::node`, or give a member's URL",
            ),
            _ => refused(Refusal::Other),
        }
    }

    /// Classifies an error of the `redis` crate after a request was sent. It is an error reply of the server, or an
    /// error of the connection.
    pub(super) fn of_request(error: RedisError, arrives_until: Moment) -> Self {
        server_error(&error).unwrap_or_else(|| Self::Unknown { arrives_until, source: Some(cause_of(error)) })
    }

    /// Classifies an error that happened before a connection was open. No request was sent.
    pub(super) fn of_dial(error: RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::refusal(Refusal::Unauthenticated, error.detail().unwrap_or("authentication failed"));
        }
        let known = of_handshake(&error).or_else(|| server_error(&error));
        known.unwrap_or_else(|| Self::NotSent(Some(cause_of(error))))
    }

    /// Returns the fault of a call through a proxy. The proxy may have sent the call before it answered with an error of
    /// its own, such as `upstream failure`. Only an error that a server sends before it runs a script proves that nothing
    /// ran.
    pub(super) fn through_proxy(self, arrives_until: Moment) -> Self {
        const BEFORE: [&str; 6] = ["unknown command", "script", "Script", "Lua", "ompil", "no upstream host"];
        match self {
            Self::Refused { refusal: Refusal::Other, message } if !BEFORE.iter().any(|part| message.contains(part)) => {
                Self::unknown(arrives_until, message)
            }
            fault => fault,
        }
    }

    /// Adds the address of the node to the error, for callers that do not know which node was asked.
    pub(super) fn at(mut self, address: &str) -> Self {
        let at_node = |cause| Arc::new(AtNode { node: address.into(), cause });
        match &mut self {
            Self::NotSent(cause) | Self::Unknown { source: cause, .. } => *cause = Some(at_node(cause.take())),
            Self::Again(cause) | Self::WrongServer(cause) => *cause = at_node(Some(Arc::clone(cause))),
            Self::Refused { message, .. } => *message = format!("{address}: {message}"),
            _ => {}
        }
        self
    }

    /// Takes the fault of another server instead, if it tells more. A refusal tells more than a missing answer.
    pub(super) fn prefer(&mut self, other: Self) {
        if matches!(other, Self::Refused { .. }) || matches!(self, Self::NotSent(None)) {
            *self = other;
        }
    }

    /// Returns true if the server accepts no writes in its present state. The node should then leave this server.
    pub(super) fn is_of_no_primary(&self) -> bool {
        matches!(self, Self::WrongServer(_) | Self::Refused { refusal: Refusal::ReadOnly, .. })
    }

    /// Returns the error of the server or of the operating system that caused the fault.
    pub(super) fn into_source(self) -> Option<Source> {
        match self.into_failure() {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => source,
            Failure::Refused { message, .. } | Failure::Broken { message, .. } => Some(Answer::error(message)),
            Failure::Unreplicated { .. } => None,
        }
    }

    /// Converts a fault that ends the attempts of the router.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Refused { refusal, message } => Failure::Refused { refusal, node: None, message },
            Self::Broken { refusal, message } => Failure::Broken { refusal, node: None, message },
            Self::Unreplicated { asked, acknowledged } => Failure::Unreplicated { asked, acknowledged, node: None },
            Self::Unknown { arrives_until, source } => Failure::Unknown { arrives_until, source },
            Self::NotSent(source) => Failure::NotDone { source },
            Self::Again(source) | Self::WrongServer(source) => Failure::NotDone { source: Some(source) },
            Self::Moved { address } | Self::Ask { address } => {
                Failure::NotDone { source: Some(Answer::error(format!("redirected to {address}"))) }
            }
            Self::NoScript => Failure::NotDone { source: Some(Answer::error("NOSCRIPT for a script with its text")) },
        }
    }
}

/// Returns the error of the operating system if there is one, so that callers can match it. Otherwise returns the error
/// of the `redis` crate.
fn cause_of(error: RedisError) -> Source {
    // The `redis` crate stores the error of the stream in an `Arc`.
    let stream = std::error::Error::source(&error).and_then(|below| below.downcast_ref::<Source>()).cloned();
    stream.unwrap_or_else(|| Arc::new(error))
}

/// Adds a likely reason to the fault of a failed TLS handshake, which is that the server does not use TLS. Such a
/// server reads the handshake as a command. It closes the connection, or waits for the rest of the command.
pub(super) fn without_tls(fault: Fault) -> Fault {
    match fault {
        Fault::NotSent(Some(cause))
            if cause
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() != io::ErrorKind::ConnectionRefused) =>
        {
            Fault::NotSent(Some(Arc::new(NoTls(cause))))
        }
        other => other,
    }
}

/// Adds to the message the commands of the script line that caused the error, unless the message names the command
/// already. If a user may not run a command, Redis 7.0 gives only the position of the command in the script.
pub(super) fn with_command(mut fault: Fault, script: &str) -> Fault {
    if let Fault::Broken { message, .. } = &mut fault
        && !message.contains(" '")
        && let Some(commands) = commands_at(message, script)
    {
        *message = format!("{message} (there it calls {commands})");
    }
    fault
}

fn commands_at(message: &str, script: &str) -> Option<String> {
    let (_, place) = message.split_once("@user_script:")?;
    let digits = place.split(|c: char| !c.is_ascii_digit()).next()?;
    let line = script.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
    let commands: Vec<&str> = line.split("call('").skip(1).filter_map(|rest| rest.split('\'').next()).collect();
    (!commands.is_empty()).then(|| commands.join(" or "))
}

/// Returns the fault for an error reply of the server, if the error contains one.
fn server_error(error: &RedisError) -> Option<Fault> {
    let code = error.code()?;
    let text = format!("-{code} {}\r\n", error.detail().unwrap_or_default());
    match redis::parse_redis_value(text.as_bytes()) {
        Ok(Value::ServerError(error)) => Some(Fault::of_server(&error)),
        _ => None,
    }
}

/// Returns the fault for an error of a TLS handshake, if the error is about a certificate.
#[cfg(feature = "tls")]
fn of_handshake(error: &RedisError) -> Option<Fault> {
    use rustls::AlertDescription as Alert;
    // The `redis` crate stores the error of the stream in an `Arc`. The error of the stream contains the error of the
    // handshake.
    let stream: &Source = std::error::Error::source(error)?.downcast_ref()?;
    let handshake: &rustls::Error = stream.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref()?;
    let refusal = match handshake {
        rustls::Error::InvalidCertificate(_) => Refusal::Untrusted,
        // The server sent an alert: our certificate is not accepted, or it is missing. The alert arrives after the
        // handshake, and may be lost if the connection is closed.
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => Refusal::Unauthenticated,
        _ => return None,
    };
    Some(Fault::refusal(refusal, handshake.to_string()))
}

#[cfg(not(feature = "tls"))]
fn of_handshake(_: &RedisError) -> Option<Fault> {
    None
}

/// Returns the reply. If the value is an error reply, returns its fault.
pub(super) fn reply(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(Fault::of_server(&error)),
        value => Ok(value),
    }
}

/// Error with a text, which is usually the answer of a server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Answer(String);

impl Answer {
    pub(super) fn error(text: impl Into<String>) -> Source {
        Arc::new(Self(text.into()))
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/fault.rs"]
mod tests;
