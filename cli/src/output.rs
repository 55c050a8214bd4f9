//! Output of the program: for people, or as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use crate::exit::{Code, Failure};
use crate::table::{acts_unseen, shown};

/// State of the reader of standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    There,
    /// The reader has closed the pipe, as `head` does.
    Gone,
}

/// Format of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    Text,
    Json,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }

    /// Prints an answer to standard output.
    pub(crate) fn answer(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<Reader, Failure> {
        match self {
            Self::Text => print(text().as_bytes()),
            Self::Json => {
                let line = serde_json::to_string(value).map_err(|error| Failure::system(error.into()))?;
                print(json_line(&line).as_bytes())
            }
        }
    }

    /// Prints a message to standard error. Ignores errors, since a closed standard error must not end a running
    /// command.
    pub(crate) fn tell(self, event: &str, message: &str) {
        let line = match self {
            Self::Text => text_line(message),
            Self::Json => json_line(&json!({ "event": event, "message": message }).to_string()),
        };
        drop(io::stderr().write_all(line.as_bytes()));
    }

    /// Prints the reason why the program ends, and returns its exit code.
    pub(crate) fn fail(self, failure: &Failure) -> Code {
        let Failure { code, message } = failure;
        let line = match self {
            Self::Text => text_line(message),
            Self::Json => json_line(&json!({ "error": message, "exit_code": code.number() }).to_string()),
        };
        drop(io::stderr().write_all(line.as_bytes()));
        *code
    }
}

fn text_line(message: &str) -> String {
    format!("redis-rwlock: {}\n", shown(message))
}

/// Escapes characters that act on a terminal. The value of the JSON stays the same, because only its strings contain
/// such characters.
fn json_line(json: &str) -> String {
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        if acts_unseen(c) {
            let mut units = [0; 2];
            line.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            line.push(c);
        }
    }
    line + "\n"
}

/// Prints to standard output. A closed pipe is no failure, since its reader needs no more output.
pub(crate) fn print(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::system(error)),
    }
}
