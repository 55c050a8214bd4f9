//! The configuration: fields that only make sense together, and how an update survives a writer that dies between two.
//!
//! A writer first stores the whole next configuration in the field `draft`, in one step. Then it sets the fields one by
//! one, and empties the draft last. Whoever comes under the lock and finds a draft knows that its writer is gone, and
//! that the draft says everything: finishing the update means to take the same steps again.

use std::fmt;
use std::str::FromStr;

use crc16::{State, XMODEM};

use crate::store::Fields;

const DRAFT: &str = "draft";
const VERSION: &str = "version";
const TIMEOUT_MS: &str = "timeout_ms";
const UPSTREAM: &str = "upstream";
const CHECKSUM: &str = "checksum";

/// How many of [`Config::steps`] leave an update half done: draft and version are new, all else is old.
pub(crate) const HALF: usize = 2;

/// What the workers share. A real one has more fields, and perhaps more than one place where they lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// One more with each update: it counts them.
    pub(crate) version: u64,
    timeout_ms: u64,
    upstream: String,
}

/// What the fields say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    Whole(Config),
    /// An update has begun and not ended; this is what it was to become.
    HalfDone(Config),
    /// Something that no writer leaves behind, dead or alive.
    Corrupt,
}

impl Default for Config {
    fn default() -> Self {
        Self { version: 0, timeout_ms: 500, upstream: "backend-0".to_owned() }
    }
}

impl Config {
    /// An update of it.
    pub(crate) fn next(&self) -> Self {
        let version = self.version + 1;
        Self { version, timeout_ms: fastrand::u64(100..1000), upstream: format!("backend-{}", version % 7) }
    }

    /// The fields to set, in this order. May be taken again from any point on, by anybody who holds the lock.
    pub(crate) fn steps(&self) -> [(&'static str, String); 6] {
        [
            (DRAFT, self.to_string()),
            (VERSION, self.version.to_string()),
            (TIMEOUT_MS, self.timeout_ms.to_string()),
            (UPSTREAM, self.upstream.clone()),
            (CHECKSUM, self.checksum().to_string()),
            (DRAFT, String::new()),
        ]
    }

    pub(crate) fn look(fields: &Fields) -> Look {
        let text = |field| fields.get(field).map_or("", String::as_str);
        if !text(DRAFT).is_empty() {
            return text(DRAFT).parse().map_or(Look::Corrupt, Look::HalfDone);
        }
        // Nobody has written yet.
        if !fields.contains_key(VERSION) {
            return Look::Whole(Self::default());
        }
        let config = Self::from_str(&format!("{} {} {}", text(VERSION), text(TIMEOUT_MS), text(UPSTREAM)));
        match config {
            Ok(config) if config.checksum().to_string() == text(CHECKSUM) => Look::Whole(config),
            _ => Look::Corrupt,
        }
    }

    fn checksum(&self) -> u16 {
        State::<XMODEM>::calculate(self.to_string().as_bytes())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.version, self.timeout_ms, self.upstream)
    }
}

/// The text is not a configuration.
#[derive(Debug)]
pub(crate) struct NotAConfig;

impl FromStr for Config {
    type Err = NotAConfig;

    fn from_str(text: &str) -> Result<Self, NotAConfig> {
        let mut words = text.splitn(3, ' ');
        let mut next = || words.next().ok_or(NotAConfig);
        Ok(Self {
            version: next()?.parse().map_err(|_| NotAConfig)?,
            timeout_ms: next()?.parse().map_err(|_| NotAConfig)?,
            upstream: next()?.to_owned(),
        })
    }
}
