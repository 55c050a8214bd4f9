//! Options of managers and acquisitions, with their defaults.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::base::attempt::MAX_LABEL_BYTES;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::durability::{Durability, Replicas};
use crate::base::error::{Error, Result};
use crate::base::key::{self, Key, KeyTemplate, Listing};
use crate::base::lease;
use crate::base::reentry::Reentry;

/// Longest lease. Servers store deadlines in milliseconds, and their numbers are exact far beyond this lease.
const MAX_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Longest time to wait for one answer. The limit is short, so that a caller learns soon that a server does not answer.
const MAX_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time for which a client of the timestamp scheme may hold a lock. The scripts keep the timestamps of these
/// clients for this time.
const MAX_TIMESTAMP_CLIENT: Duration = Duration::from_secs(60);

/// Longest time for which an unused hold is cached.
const MAX_CACHE_FOR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time for which a client of the timestamp scheme may hold a lock, counted from its timestamp.
/// [`timestamp_keys`](crate::Builder::timestamp_keys) has an example.
///
/// The timestamp scheme stores only the *time of the grant*, so each client must know how long a grant counts. The
/// default is 1 s for reads and 3 s for writes, as in the article that describes the scheme. The maximum is one minute.
///
/// If these times are too long, managers of this crate wait too long after such a client has died. If these times are
/// too short, managers may enter while such a client still works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimestampClients {
    /// Time for which a `read` timestamp of such a client keeps writers out.
    pub read: Duration,
    /// Time for which a `write` timestamp of such a client keeps all others out.
    pub write: Duration,
    /// Ttl that such clients set on the lock's key with each grant. The default is 10 s, as in the article. With
    /// [`timestamp_keys`](crate::Builder::timestamp_keys), no lease may be longer than this ttl. Otherwise the key
    /// could expire before the lease is over, and the hold would end early.
    pub key_ttl: Duration,
}

impl TimestampClients {
    /// Creates limits for the reads and writes of such clients. The key ttl is 10 s. See
    /// [`timestamp_keys`](crate::Builder::timestamp_keys).
    #[must_use]
    pub const fn new(read: Duration, write: Duration) -> Self {
        Self { read, write, key_ttl: Duration::from_secs(10) }
    }

    /// Sets the ttl that the clients set on the key. If the ttls of several clients differ, give the shortest one. See
    /// [`timestamp_keys`](crate::Builder::timestamp_keys).
    #[must_use]
    pub const fn key_ttl(self, key_ttl: Duration) -> Self {
        Self { key_ttl, ..self }
    }
}

impl Default for TimestampClients {
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(3))
    }
}

/// Options of a manager. The setters and their documentation are in [`Builder`](crate::Builder).
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) unreachable_after: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) max_clock_skew: Duration,
    pub(crate) reentry: Reentry,
    pub(crate) key_prefix: String,
    /// Label of the manager, if the user has given one. Otherwise `build` creates a label from the names of the host
    /// and the process.
    pub(crate) label: Option<String>,
    pub(crate) timestamp_clients: TimestampClients,
    /// Template for the keys of the locks. If it is present, `key_prefix` has no effect.
    pub(crate) timestamp_keys: Option<KeyTemplate>,
    /// `lockWatchdogTimeout` of the clients of Redisson that share the locks, if the locks are of Redisson's format.
    pub(crate) redisson_watchdog: Option<Duration>,
    pub(crate) join_window: Duration,
    pub(crate) max_handoffs: u64,
    /// Time for which an unused hold is cached.
    pub(crate) cache_for: Duration,
    /// Largest number of cached holds.
    pub(crate) max_cached: usize,
    /// Time for which `try_read` or `try_write` waits for the reply to its recall of a cached hold.
    pub(crate) recall_timeout: Duration,
    /// Largest number of acquisitions that may be in progress.
    pub(crate) max_waiters: usize,
    /// Longest lease that the manager requests, whatever lease the caller wants.
    pub(crate) longest_lease: Duration,
    pub(crate) durability: Durability,
    /// Runtime for background work, if the user has chosen one.
    pub(crate) background: Option<Handle>,
}

impl Options {
    /// Returns the label of a manager that this process builds now.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(default_label)
    }

    /// Returns the background runtime of a manager with this clock.
    pub(crate) fn background_runtime(&self, clock: Clock) -> BackgroundRuntime {
        self.background.clone().map_or_else(|| BackgroundRuntime::for_clock(clock), BackgroundRuntime::On)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            max_hold: Duration::from_secs(3600),
            wait_timeout: None,
            unreachable_after: Duration::from_secs(5),
            response_timeout: Duration::from_millis(500),
            max_clock_skew: Duration::from_millis(100),
            reentry: Reentry::Off,
            key_prefix: "rwlock".to_owned(),
            label: None,
            timestamp_clients: TimestampClients::default(),
            timestamp_keys: None,
            redisson_watchdog: None,
            join_window: Duration::from_millis(50),
            max_handoffs: MAX_HANDOFFS,
            cache_for: Duration::ZERO,
            max_cached: 10_000,
            recall_timeout: Duration::from_millis(50),
            max_waiters: 100_000,
            longest_lease: MAX_LEASE,
            durability: Durability::default(),
            background: None,
        }
    }
}

impl Options {
    /// Refuses values with which a manager cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        check_lease(self.lease, self.max_clock_skew)?;
        worth_having("max_hold", self.max_hold, self.max_clock_skew)?;
        self.label.as_deref().map_or(Ok(()), check_label)?;
        key::check_prefix(&self.key_prefix)?;
        // The scripts keep a key for `MAX_TIMESTAMP_CLIENT` after the last hold, so a longer limit would outlive the
        // timestamps.
        if self.timestamp_clients.read.max(self.timestamp_clients.write) > MAX_TIMESTAMP_CLIENT {
            let reason = format!("the maximum of `read` and `write` is {MAX_TIMESTAMP_CLIENT:?}");
            return invalid("timestamp_clients", reason);
        }
        self.timestamp_keys.as_ref().map_or(Ok(()), KeyTemplate::check)?;
        self.check_foreign_ttl(self.lease)?;
        if !(1..=MAX_HANDOFFS).contains(&self.max_handoffs) {
            return invalid("max_handoffs", format!("it must be 1 to {MAX_HANDOFFS}"));
        }
        // With the limit zero, no acquisition could start.
        if self.max_waiters == 0 {
            return invalid("max_waiters", "it must be at least 1");
        }
        at_least("response_timeout", self.response_timeout, Duration::from_millis(10))?;
        at_most("response_timeout", self.response_timeout, MAX_RESPONSE_TIMEOUT)?;
        check_durability(self.durability, self.response_timeout)?;
        if self.timestamp_keys.is_some() {
            self.check_not_cached(
                "clients of the timestamp scheme cannot recall a cached hold: with `timestamp_keys`, set zero",
            )?;
            // The holds of these clients end by a time limit alone and count without an answer about the storage, so a
            // lock that they share never has this level.
            if self.durability == Durability::Server {
                return invalid(
                    "durability",
                    "clients of the timestamp scheme decide by the timestamps that they read, whatever the service has \
                     stored, so a lock that they share is no safer than at `Durability::Primary`: with \
                     `timestamp_keys`, use that level",
                );
            }
        }
        at_most("cache_for", self.cache_for, MAX_CACHE_FOR)?;
        at_most("recall_timeout", self.recall_timeout, MAX_RESPONSE_TIMEOUT)?;
        at_least("unreachable_after", self.unreachable_after, Duration::from_millis(10))
    }

    /// Refuses an option that allows cached holds. Called for lock schemes in which waiters cannot recall a cached
    /// hold.
    pub(crate) fn check_not_cached(&self, reason: &str) -> Result<()> {
        if self.may_cache() { invalid("cache_for", reason) } else { Ok(()) }
    }

    /// Refuses options that need notifications, or the connection of one server.
    pub(crate) fn check_proxied(&self) -> Result<()> {
        self.check_not_cached("a proxy passes no recalls on: with `Topology::proxy`, set zero")?;
        match self.durability {
            Durability::Replicated { .. } => invalid(
                "durability",
                "a proxy need not send `WAIT` to the server that has the lock: with `Topology::proxy`, use another level",
            ),
            Durability::Primary | Durability::Server => Ok(()),
        }
    }

    /// Checks the time for which an option keeps a lock taken without a renewal. Refuses it on keys where a grant to a
    /// client of the timestamp scheme ends that time early.
    pub(crate) fn check_unrenewed(&self, option: &'static str, span: Duration) -> Result<()> {
        at_least(option, span, Duration::from_millis(1))?;
        at_most(option, span, MAX_LEASE)?;
        if self.timestamp_keys.is_none() {
            return Ok(());
        }
        invalid(
            option,
            "the next grant to a client of the timestamp scheme shortens the ttl of the lock's key, so the lock would \
             not stay taken: do not combine it with `timestamp_keys`",
        )
    }

    /// Checks the time for which a ticket is valid. A shorter time than a lease may have would end the hold of the guard
    /// before the server has answered.
    pub(crate) fn check_ticket(&self, valid_for: Duration) -> Result<()> {
        self.check_unrenewed("detach", valid_for)?;
        worth_having("detach", valid_for, self.max_clock_skew)
    }

    /// Returns true if unused holds may be cached.
    pub(crate) fn may_cache(&self) -> bool {
        !self.cache_for.is_zero()
    }

    /// Checks a name and derives its keys.
    pub(crate) fn key(&self, name: &str) -> Result<Key> {
        match &self.timestamp_keys {
            _ if self.redisson_watchdog.is_some() => Key::of_redisson(name),
            Some(template) => Key::from_template(template, name),
            None => Key::new(&self.key_prefix, name),
        }
    }

    /// Returns the rule that finds the locks of this manager among the keys of a server.
    pub(crate) fn listing(&self) -> Listing {
        match &self.timestamp_keys {
            Some(template) => Listing::Template(template.clone()),
            None => Listing::Prefix(self.key_prefix.clone()),
        }
    }

    /// Refuses a lease that is longer than the key ttl of the clients of the timestamp scheme. Each grant to such a
    /// client sets the ttl of the key to this shorter value. So the key would expire before the lease is over.
    fn check_foreign_ttl(&self, lease: Duration) -> Result<()> {
        let key_ttl = self.timestamp_clients.key_ttl;
        if self.timestamp_keys.is_none() || lease <= key_ttl {
            return Ok(());
        }
        invalid(
            "lease",
            format!(
                "on the keys of published clients, {lease:?} is longer than their key ttl of {key_ttl:?}, so a grant of \
                 theirs would end the hold early: make it shorter, or say what their ttl is (TimestampClients::key_ttl)"
            ),
        )
    }
}

/// Options of one acquisition that replace those of its manager.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) reentry: Option<Reentry>,
    pub(crate) cache_for: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

impl Overrides {
    fn check(&self, options: &Options) -> Result<()> {
        self.at_least.map_or(Ok(()), |at_least| options.check_unrenewed("at_least", at_least))?;
        if let Some(lease) = self.lease {
            check_lease(lease, options.max_clock_skew)?;
            options.check_foreign_ttl(lease)?;
        }
        self.max_hold.map_or(Ok(()), |max_hold| worth_having("max_hold", max_hold, options.max_clock_skew))
    }
}

/// Checked options of one acquisition. They come from the acquisition, or else from its manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Lease to request from the server.
    pub(crate) lease: Duration,
    /// Longest time for which the hold may last, counted from the request.
    pub(crate) max_hold: Duration,
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) reentry: Reentry,
    /// Time for which the unused hold may be cached.
    pub(crate) cache_for: Duration,
    /// Time from the grant for which the lock stays taken on the server, even after an earlier release.
    pub(crate) at_least: Option<Duration>,
}

impl Terms {
    /// Checks the options of this acquisition. The manager's options were checked when it was built.
    #[inline]
    pub(crate) fn new(options: &Options, overrides: Overrides) -> Result<Self> {
        if overrides.lease.is_some() || overrides.max_hold.is_some() || overrides.at_least.is_some() {
            overrides.check(options)?;
        }
        Ok(Self {
            lease: overrides.lease.unwrap_or(options.lease).min(options.longest_lease),
            max_hold: overrides.max_hold.unwrap_or(options.max_hold),
            wait_timeout: overrides.wait_timeout.or(options.wait_timeout),
            reentry: overrides.reentry.unwrap_or(options.reentry),
            // The manager's value is the upper limit for all acquisitions. A hold that rests after its use is never
            // cached, so the server need not offer it to waiters.
            cache_for: match overrides.at_least {
                Some(_) => Duration::ZERO,
                None => overrides.cache_for.map_or(options.cache_for, |cache_for| cache_for.min(options.cache_for)),
            },
            at_least: overrides.at_least,
        })
    }
}

/// Refuses a lease of which the safety margins leave less than half, because its holder could hardly renew it in time.
pub(crate) fn check_lease(lease: Duration, max_clock_skew: Duration) -> Result<()> {
    at_most("lease", lease, MAX_LEASE)?;
    worth_having("lease", lease, max_clock_skew)
}

/// Refuses a span of which the safety margins leave less than half.
fn worth_having(option: &'static str, span: Duration, max_clock_skew: Duration) -> Result<()> {
    if lease::usable(span, max_clock_skew) >= span / 2 && span >= Duration::from_millis(10) {
        return Ok(());
    }
    invalid(
        option,
        format!(
            "{span:?} is too short: `max_clock_skew` ({max_clock_skew:?}) and the other margins leave less than half \
             of it; make it longer"
        ),
    )
}

/// Refuses zero replicas, and a timeout for replicas that is longer than half of the response timeout, because the
/// network needs the other half.
fn check_durability(durability: Durability, response_timeout: Duration) -> Result<()> {
    let Durability::Replicated { replicas, timeout } = durability else {
        return Ok(());
    };
    if replicas == Replicas::At(0) {
        return invalid("durability", "`Replicas::At` needs at least one: use `Durability::Primary` instead");
    }
    // With a timeout of zero, the server would wait for ever.
    at_least("durability", timeout, Duration::from_millis(1))?;
    if timeout <= response_timeout / 2 {
        return Ok(());
    }
    invalid(
        "durability",
        format!(
            "the timeout of {timeout:?} is more than half of `response_timeout`, {response_timeout:?}: lower the \
             timeout, or raise `response_timeout`"
        ),
    )
}

/// Default and largest value of `max_handoffs`. Waiters of other processes wait for a whole series of hand-offs.
const MAX_HANDOFFS: u64 = 64;

/// Refuses labels that cannot be part of an id on the server. White space would end the id in a record or a message of
/// a script. A terminal would interpret control characters.
fn check_label(label: &str) -> Result<()> {
    let fits =
        (1..=MAX_LABEL_BYTES).contains(&label.len()) && !label.chars().any(|c| c.is_whitespace() || c.is_control());
    if fits {
        return Ok(());
    }
    invalid("label", format!("it must have 1 to {MAX_LABEL_BYTES} bytes without white space or control characters"))
}

fn at_least(option: &'static str, value: Duration, least: Duration) -> Result<()> {
    if value >= least {
        return Ok(());
    }
    invalid(option, format!("{value:?} is less than the minimum, {least:?}"))
}

fn at_most(option: &'static str, value: Duration, most: Duration) -> Result<()> {
    if value <= most {
        return Ok(());
    }
    invalid(option, format!("{value:?} is more than the maximum, {most:?}"))
}

pub(crate) fn invalid(option: &'static str, reason: impl Into<String>) -> Result<()> {
    Err(Error::invalid(option, reason))
}

/// Returns `host:pid`, shortened to fit a label.
fn default_label() -> String {
    let host: String = host_name().chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
    let host = if host.is_empty() { "localhost" } else { &host };
    format!("{host}:{}", std::process::id())
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/options/tests.rs"]
mod tests;
