//! What is printed: for people, or as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use crate::exit::{Code, Failure};

/// How to say it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    Text,
    Json,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }

    /// An answer, to standard output.
    pub(crate) fn answer(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        match self {
            Self::Text => print(text().as_bytes()),
            Self::Json => {
                let line = serde_json::to_string(value).map_err(|error| Failure::system(error.into()))?;
                print(format!("{line}\n").as_bytes())
            }
        }
    }

    /// A message beside the answer, to standard error. That nobody reads it must not end a command that runs.
    pub(crate) fn tell(self, event: &str, message: &str) {
        let line = match self {
            Self::Text => format!("redis-rwlock: {message}\n"),
            Self::Json => format!("{}\n", json!({ "event": event, "message": message })),
        };
        drop(io::stderr().write_all(line.as_bytes()));
    }

    /// Says why the program ends, and gives its code.
    pub(crate) fn fail(self, failure: &Failure) -> Code {
        let Failure { code, message } = failure;
        let line = match self {
            Self::Text => format!("redis-rwlock: {message}\n"),
            Self::Json => format!("{}\n", json!({ "error": message, "exit_code": code.number() })),
        };
        drop(io::stderr().write_all(line.as_bytes()));
        *code
    }
}

/// To standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::system)
}
