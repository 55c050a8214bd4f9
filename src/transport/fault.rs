//! What a node's answer means when it is not a reply: which errors prove that nothing ran, and which leave it open.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::error::{Refusal, Source};
use crate::lease::Moment;
use crate::scheme::Failure;

/// Why a node did not carry out a call, as far as one node can tell.
#[derive(Debug)]
pub(super) enum Fault {
    /// The slot lives elsewhere. Nothing ran.
    Moved { address: String },
    /// This key may live elsewhere already. Nothing ran.
    Ask { address: String },
    /// Not now. Nothing ran.
    Again(Source),
    /// The script is not loaded. Nothing ran.
    NoScript,
    /// Not this one, not later. Nothing ran.
    Refused { refusal: Refusal, message: String },
    /// No connection. Nothing was sent.
    NotSent(Option<Source>),
    /// It may have run.
    Unknown { stray_until: Moment, source: Option<Source> },
}

impl Fault {
    /// An error that a node sent instead of a reply.
    pub(super) fn of_server(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        // `<slot> <host>:<port>`; an empty host is for the caller to fill in.
        let address = || details.split(' ').nth(1).unwrap_or_default().to_owned();
        let refused = |refusal| Self::Refused { refusal, message: format!("{} {details}", error.code()) };
        match error.code() {
            "MOVED" => Self::Moved { address: address() },
            "ASK" => Self::Ask { address: address() },
            "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" => {
                Self::Again(Arc::new(Answer(format!("{} {details}", error.code()))))
            }
            "NOSCRIPT" => Self::NoScript,
            "READONLY" | "MISCONF" | "NOREPLICAS" => refused(Refusal::ReadOnly),
            "OOM" => refused(Refusal::OutOfMemory),
            "NOAUTH" | "WRONGPASS" => refused(Refusal::Unauthenticated),
            "NOPERM" => refused(Refusal::Forbidden),
            "WRONGTYPE" => refused(Refusal::ForeignKey),
            // A script that fails half way names the command's own error at the beginning of its message.
            _ if details.contains("-OOM ") || details.starts_with("OOM ") => refused(Refusal::OutOfMemory),
            // A command that the user may not run, within a script: Redis 7.0 and Valkey have their own words.
            _ if details.contains("executing the script can't run") || details.contains("ACL failure in script") => {
                refused(Refusal::Forbidden)
            }
            "ERR" if details.starts_with("max number of clients") => {
                Self::Again(Arc::new(Answer(format!("{} {details}", error.code()))))
            }
            _ if details.contains("WRONGTYPE") => refused(Refusal::ForeignKey),
            _ if details.contains("cluster support disabled") => refused(Refusal::OtherTopology),
            _ => refused(Refusal::Other),
        }
    }

    /// An error of the client library: from the server, or of the connection with something under way.
    pub(super) fn of_request(error: RedisError, stray_until: Moment) -> Self {
        match server_error(&error) {
            Some(fault) => fault,
            None => Self::Unknown { stray_until, source: Some(Arc::new(error)) },
        }
    }

    /// An error while connecting: nothing of ours was sent yet.
    pub(super) fn of_dial(error: RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Refused {
                refusal: Refusal::Unauthenticated,
                message: error.detail().unwrap_or("authentication failed").to_owned(),
            };
        }
        if let Some(fault) = of_handshake(&error) {
            return fault;
        }
        match server_error(&error) {
            Some(fault) => fault,
            None => Self::NotSent(Some(Arc::new(error))),
        }
    }

    /// What is left of a fault that nobody could follow.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Refused { refusal, message } => Failure::Refused { refusal, message },
            Self::Unknown { stray_until, source } => Failure::Unknown { stray_until, source },
            Self::NotSent(source) => Failure::NotDone { source },
            Self::Again(source) => Failure::NotDone { source: Some(source) },
            Self::Moved { address } | Self::Ask { address } => {
                Failure::NotDone { source: Some(Arc::new(Answer(format!("redirected to {address} without end")))) }
            }
            Self::NoScript => {
                Failure::NotDone { source: Some(Arc::new(Answer("NOSCRIPT for a script with its text".to_owned()))) }
            }
        }
    }
}

/// The fault in an error that carries a server's words.
fn server_error(error: &RedisError) -> Option<Fault> {
    let code = error.code()?;
    let text = format!("-{code} {}\r\n", error.detail().unwrap_or_default());
    match redis::parse_redis_value(text.as_bytes()) {
        Ok(Value::ServerError(error)) => Some(Fault::of_server(&error)),
        _ => None,
    }
}

/// The fault in an error of a TLS handshake, if it is about a certificate.
#[cfg(feature = "tls")]
fn of_handshake(error: &RedisError) -> Option<Fault> {
    use rustls::AlertDescription as Alert;
    // The library keeps the stream's error in an `Arc`, and the stream the handshake's in its own.
    let stream: &Source = std::error::Error::source(error)?.downcast_ref()?;
    let handshake: &rustls::Error = stream.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref()?;
    let refusal = match handshake {
        rustls::Error::InvalidCertificate(_) => Refusal::Untrusted,
        // Of ours, or of its absence. It comes after the handshake, and may be lost with the connection.
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
    Some(Fault::Refused { refusal, message: handshake.to_string() })
}

#[cfg(not(feature = "tls"))]
fn of_handshake(_: &RedisError) -> Option<Fault> {
    None
}

/// Splits what came back into a reply and a fault.
pub(super) fn reply(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(Fault::of_server(&error)),
        value => Ok(value),
    }
}

/// A server's words as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Answer(pub(super) String);

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> Fault {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error reply");
        reply(value).expect_err("an error")
    }

    #[test]
    fn redirects_name_the_node() {
        assert!(matches!(fault("MOVED 7 10.0.0.1:7001"), Fault::Moved { address } if address == "10.0.0.1:7001"));
        assert!(matches!(fault("ASK 7 h:1"), Fault::Ask { address } if address == "h:1"));
    }

    #[test]
    fn refusals_are_told_apart() {
        let cases = [
            ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::OutOfMemory),
            ("NOAUTH Authentication required.", Refusal::Unauthenticated),
            ("NOPERM this user has no permissions", Refusal::Forbidden),
            ("READONLY You can't write against a read only replica.", Refusal::ReadOnly),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Refusal::ForeignKey),
            ("ERR something", Refusal::Other),
        ];
        for (line, expected) in cases {
            assert!(matches!(fault(line), Fault::Refused { refusal, .. } if refusal == expected), "{line}");
        }
    }

    #[test]
    fn passing_troubles_are_no_refusals() {
        for line in ["TRYAGAIN x", "CLUSTERDOWN x", "LOADING x", "MASTERDOWN x"] {
            assert!(matches!(fault(line), Fault::Again(_)), "{line}");
        }
    }
}
