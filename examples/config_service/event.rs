//! What workers tell the parent, and what it tells them. Worker processes tell it in lines of text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis_rwlock::FencingToken;

/// A fencing token that has been stored or sent as a number.
pub(crate) fn parse_token(text: &str) -> Option<FencingToken> {
    text.parse::<u64>().ok()?.try_into().ok()
}

/// What a worker has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Work,
    /// Update, and stay in the middle of it: the parent wants to kill somebody there.
    Hang,
    Stop,
}

/// What happened to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// It read a whole configuration, and the same when it left.
    Read { version: u64, waited: Duration },
    /// Its update is on its way. If nothing more is heard of it, it may have happened or not.
    Began { version: u64, token: FencingToken },
    /// Its update is stored.
    Updated { version: u64, token: FencingToken, waited: Duration },
    /// It is in the middle of its update and stays there.
    Hangs { version: u64, token: FencingToken },
    /// It reads, and finds the half of an update whose writer is gone.
    FoundHalf { version: u64, waited: Duration },
    /// It has finished the update of a writer that is gone.
    Finished { version: u64, token: FencingToken },
    /// It lost the lock while it was inside, and knew it.
    Lost { reason: String },
    /// An access was refused for its token, though its hold was still good: somebody else was inside.
    Overlap { token: FencingToken },
    /// It saw a configuration that cannot be, or one that changed while it read.
    Inconsistent { what: String },
    /// Something else went wrong; it goes on.
    Trouble { what: String },
    /// It has done all its work.
    Stopped,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { version, waited } => write!(f, "read {version} {}", waited.as_micros()),
            Self::Began { version, token } => write!(f, "began {version} {token}"),
            Self::Updated { version, token, waited } => {
                write!(f, "updated {version} {token} {}", waited.as_micros())
            }
            Self::Hangs { version, token } => write!(f, "hangs {version} {token}"),
            Self::FoundHalf { version, waited } => write!(f, "found-half {version} {}", waited.as_micros()),
            Self::Finished { version, token } => write!(f, "finished {version} {token}"),
            Self::Lost { reason } => write!(f, "lost {}", one_line(reason)),
            Self::Overlap { token } => write!(f, "overlap {token}"),
            Self::Inconsistent { what } => write!(f, "inconsistent {}", one_line(what)),
            Self::Trouble { what } => write!(f, "trouble {}", one_line(what)),
            Self::Stopped => write!(f, "stopped"),
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        Self::parse(line).ok_or_else(|| format!("a worker said what nobody understands: {line:?}"))
    }
}

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |n: usize| words.get(n)?.parse().ok();
        let token = |n: usize| parse_token(words.get(n)?);
        let waited = |n: usize| number(n).map(Duration::from_micros);
        Some(match kind {
            "read" => Self::Read { version: number(0)?, waited: waited(1)? },
            "began" => Self::Began { version: number(0)?, token: token(1)? },
            "updated" => Self::Updated { version: number(0)?, token: token(1)?, waited: waited(2)? },
            "hangs" => Self::Hangs { version: number(0)?, token: token(1)? },
            "found-half" => Self::FoundHalf { version: number(0)?, waited: waited(1)? },
            "finished" => Self::Finished { version: number(0)?, token: token(1)? },
            "lost" => Self::Lost { reason: rest.to_owned() },
            "overlap" => Self::Overlap { token: token(0)? },
            "inconsistent" => Self::Inconsistent { what: rest.to_owned() },
            "trouble" => Self::Trouble { what: rest.to_owned() },
            "stopped" => Self::Stopped,
            _ => return None,
        })
    }
}
