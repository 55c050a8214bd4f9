//! Refusals of acquisitions, and the holder that a refusal names.

use std::fmt;
use std::time::Duration;

use crate::base::attempt::AcquisitionId;
use crate::base::duration_text::DurationText;
use crate::base::lease::ServerTime;
use crate::base::mode::Mode;

/// Refusal of an acquisition, with the holder that the refusal names. The manager sends no further request for it.
///
/// [`Acquire::try_or_denied`](crate::Acquire::try_or_denied) returns it, and [`Error::WaitTimeout`](crate::Error)
/// contains the last one. `Display` writes it for people: `held by "web:12" (write, for 3.2s, 8.1s left) and 2 more`.
/// Control characters and other invisible characters of labels are escaped.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, Mode, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::builder().label("web:12").build()?;
/// let guard = manager.write("cfg").await?;
/// let denied = manager.peer().read("cfg").try_or_denied().await?.expect_err("a writer holds the lock");
/// let holder = denied.holder.expect("the refusal names it");
/// assert_eq!((&*holder.label, holder.mode), ("web:12", Mode::Write));
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Denied {
    /// Holder of the lock, as the refusal names it. If several readers hold the lock, this is one of them. `None` if no
    /// client holds the lock and only other waiters are ahead. Also `None` if the holder is not known: for example, if
    /// the masters of a [`QuorumManager`](crate::QuorumManager) name different holders.
    pub holder: Option<DenyingHolder>,
    /// Number of further holders in the server's record, dead ones included.
    pub more_holders: usize,
    /// True if no client holds the lock, and others wait for it.
    pub others_wait: bool,
    /// Time since the refusal. An acquisition that waits behind another one of its process has the refusal of that one.
    /// Zero if a guard of this process is in the way.
    pub age: Duration,
}

/// Holder that keeps an acquisition out, as a [refusal](Denied) names it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DenyingHolder {
    /// Label of the holder's manager, or `published client` for a client of the timestamp scheme.
    pub label: String,
    /// Side of the lock that the holder has.
    pub mode: Mode,
    /// True if the holder is the manager that was refused.
    pub is_ours: bool,
    /// True if the process may only [cache](crate::Builder::cache_for) the hold, so that perhaps no guard uses it.
    pub cached: bool,
    /// Time since the grant, at the time of the refusal. `None` if the refusal does not tell it: for a reader of a
    /// [`TwoKeyManager`](crate::TwoKeyManager), and for readers of a [`QuorumManager`](crate::QuorumManager).
    pub age: Option<Duration>,
    /// Time for which the server keeps the hold without a further renewal, at the time of the refusal.
    pub remaining: Duration,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Some(holder) => write!(f, "held by {holder}")?,
            None if self.others_wait => f.write_str("others wait for it")?,
            None => f.write_str("others hold it")?,
        }
        if self.more_holders > 0 {
            write!(f, " and {} more", self.more_holders)?;
        }
        if self.age >= Duration::from_secs(1) {
            write!(f, ", as of {} ago", DurationText(self.age))?;
        }
        Ok(())
    }
}

impl fmt::Display for DenyingHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, mode, cached, age, remaining, .. } = self;
        write!(f, "{label:?} ({mode}")?;
        if *cached {
            f.write_str(", perhaps only cached")?;
        }
        if let Some(age) = age {
            write!(f, ", for {}", DurationText(*age))?;
        }
        write!(f, ", {} left)", DurationText(*remaining))
    }
}

impl Denied {
    /// Returns the label of the holder, and the number of the others.
    pub(crate) fn label(&self) -> Option<String> {
        let label = &self.holder.as_ref()?.label;
        Some(match self.more_holders {
            0 => label.clone(),
            more => format!("{label} and {more} more"),
        })
    }
}

/// Holder that a refusal of the server names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NamedHolder {
    /// Id of the hold, or [`FOREIGN_ID`](Self::FOREIGN_ID).
    pub(crate) id: String,
    pub(crate) mode: Mode,
    /// Time of the grant, if the refusal tells it.
    pub(crate) since_ms: Option<u64>,
    pub(crate) deadline_ms: u64,
    /// Number of further records of holders, dead ones included.
    pub(crate) more: usize,
}

impl NamedHolder {
    /// Id in the place of the id of a client that has none: a client of the timestamp scheme.
    pub(crate) const FOREIGN_ID: &'static str = "?";
    /// Label of a client of the timestamp scheme.
    const FOREIGN_LABEL: &'static str = "published client";

    pub(crate) fn label(&self) -> &str {
        if self.id == Self::FOREIGN_ID { Self::FOREIGN_LABEL } else { AcquisitionId::label_of(&self.id) }
    }

    /// Makes the public form of a holder that the server named at this time. `manager` is the id of the manager that was
    /// refused.
    pub(crate) fn shown(&self, at: ServerTime, is_cached: bool, manager: &str) -> DenyingHolder {
        let at_ms = at.as_micros() / 1000;
        DenyingHolder {
            label: self.label().to_owned(),
            mode: self.mode,
            is_ours: self.id.strip_prefix(manager).is_some_and(|rest| rest.starts_with('.')),
            cached: is_cached && !AcquisitionId::is_detached(&self.id),
            age: self.since_ms.map(|since_ms| Duration::from_millis(at_ms.saturating_sub(since_ms))),
            remaining: Duration::from_millis(self.deadline_ms.saturating_sub(at_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(label: &str) -> DenyingHolder {
        DenyingHolder {
            label: label.to_owned(),
            mode: Mode::Write,
            is_ours: false,
            cached: false,
            age: Some(Duration::from_millis(3_204)),
            remaining: Duration::from_millis(8_100),
        }
    }

    #[test]
    fn refusals_are_told_in_words() {
        let told = |denied: Denied| denied.to_string();
        assert_eq!(told(Denied::default()), "others hold it");
        assert_eq!(told(Denied { others_wait: true, ..Denied::default() }), "others wait for it");
        let of = |holder| Denied { holder: Some(holder), ..Denied::default() };
        assert_eq!(told(of(holder("web:12"))), "held by \"web:12\" (write, for 3.2s, 8.1s left)");
        let reader = DenyingHolder { mode: Mode::Read, age: None, cached: true, ..holder("a") };
        let readers = Denied { more_holders: 2, age: Duration::from_millis(1_500), ..of(reader) };
        assert_eq!(told(readers), "held by \"a\" (read, perhaps only cached, 8.1s left) and 2 more, as of 1.5s ago");
    }

    #[test]
    fn characters_that_act_on_a_terminal_are_escaped() {
        for sign in ['\u{1b}', '\n', '\u{7}', '\u{9b}', '\u{200e}', '\u{202e}', '\u{2066}', '\u{61c}', '\u{feff}'] {
            let told = Denied { holder: Some(holder(&format!("a{sign}b"))), ..Denied::default() }.to_string();
            assert!(!told.contains(sign) && told.contains('\\'), "{told}");
        }
    }
}
