//! Exit codes of the program, and the exit code for each error. The help texts in `args.rs` list the codes for users.

use std::error::Error as _;
use std::io;
use std::process::{self, ExitCode};

use redis_rwlock::Error;
use rustix::process::Signal;
use signal_hook::low_level::emulate_default_handler;

/// Names of the Rust API in the error texts of the library, each with the name that users of the program know. A test
/// in `tests/cli` checks that no path of Rust in those texts is missing here.
const WORDS: [(&str, &str); 12] = [
    ("`Topology::node`", "--url or RWLOCK_NODE"),
    ("`Topology::cluster`", "--cluster or RWLOCK_CLUSTER"),
    ("`Topology::proxy`", "--proxy or RWLOCK_PROXY"),
    ("`Topology::sentinel`", "--sentinel or RWLOCK_SENTINEL_PRIMARY"),
    ("given to `Tls`", "in RWLOCK_TLS_CA"),
    ("`Tls::server_name`", "RWLOCK_TLS_SERVER_NAME"),
    ("`key_prefix`", "--key-prefix"),
    ("`response_timeout`", "RWLOCK_RESPONSE_TIMEOUT"),
    ("`wait_timeout`", "--wait"),
    ("`durability`", "RWLOCK_DURABILITY_REPLICAS"),
    ("`Replicas::At`", "RWLOCK_DURABILITY_REPLICAS"),
    ("`Durability::Primary`", "RWLOCK_DURABILITY=primary"),
];

/// Exit code of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code {
    number: u8,
    /// True if SIGINT has ended the command, or the wait for the lock.
    is_interrupted: bool,
}

impl Code {
    pub(crate) const OK: Self = Self::new(0);
    pub(crate) const NO: Self = Self::new(1);
    pub(crate) const USAGE: Self = Self::new(2);
    // Codes of sysexits.h, if that file has one for the case.
    pub(crate) const UNAVAILABLE: Self = Self::new(69);
    pub(crate) const SYSTEM: Self = Self::new(70);
    pub(crate) const BUSY: Self = Self::new(75);
    pub(crate) const LOST: Self = Self::new(76);
    pub(crate) const REFUSED: Self = Self::new(77);
    pub(crate) const INVALID: Self = Self::new(78);
    // Codes that shells use.
    pub(crate) const CANNOT_RUN: Self = Self::new(126);
    pub(crate) const NOT_FOUND: Self = Self::new(127);

    const fn new(number: u8) -> Self {
        Self { number, is_interrupted: false }
    }

    pub(crate) fn of_command(code: i32) -> Self {
        // An exit code has one byte.
        Self::new(u8::try_from(code).unwrap_or(u8::MAX))
    }

    pub(crate) fn of_signal(signal: i32) -> Self {
        let number = u8::try_from(signal).unwrap_or(0);
        Self { number: 128_u8.saturating_add(number), is_interrupted: signal == Signal::INT.as_raw() }
    }

    pub(crate) fn number(self) -> u8 {
        self.number
    }

    /// Ends this process by SIGINT if SIGINT has ended its work, and returns the exit code otherwise. A shell ends its
    /// loop or list only if the program itself was ended by SIGINT. Process 1 of a container cannot be ended by it,
    /// and gets the exit code.
    pub(crate) fn end(self) -> ExitCode {
        if self.is_interrupted && process::id() != 1 {
            drop(emulate_default_handler(Signal::INT.as_raw()));
        }
        self.number.into()
    }
}

/// Reason why the program ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Makes a failure about an input that an earlier check should have refused.
    pub(crate) fn from_text(message: &str) -> Self {
        Self::new(Code::INVALID, message)
    }

    pub(crate) fn system(error: io::Error) -> Self {
        Self::new(Code::SYSTEM, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::WaitTimeout { .. } => Code::BUSY,
            Error::Lost { .. } => Code::LOST,
            Error::Refused { .. } => Code::REFUSED,
            Error::InvalidName { .. } | Error::InvalidOption { .. } => Code::INVALID,
            Error::Unreachable { .. } | Error::NoQuorum { .. } | Error::NotEnoughReplicas { .. } => Code::UNAVAILABLE,
            _ => Code::SYSTEM,
        };
        Self { code, message: full_text(&error) }
    }
}

/// Joins the texts of an error and of its causes.
pub(crate) fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    in_words_of_users(&text)
}

/// Replaces names of the Rust API by names that users of the program know.
pub(crate) fn in_words_of_users(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (of_library, of_program)| text.replace(of_library, of_program))
}
