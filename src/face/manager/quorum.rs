//! Manager of independent masters.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::sealed::FromDeployment;
use super::{Builder, Deployment, RwLockManager, Sealed};
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::lease;
use crate::base::options::Options;
use crate::base::topology::{Tls, all_without_secrets};
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::net;
use crate::store::quorum::{Margins, Quorum, Restarts};
use crate::store::{Scheme, two_key};

/// Largest useful number of masters: each costs round trips.
const MAX_MASTERS: usize = 9;

/// Manager of a quorum (Redlock) of 3 or 5 independent masters, for both modes. A majority decides, so a minority may
/// crash, hang or be disconnected.
///
/// The masters know nothing of each other: there is no cluster, and there are no replicas. They should run on machines
/// that do not fail together. Every manager of a lock must name the same masters. On each master a lock has the keys of
/// the two-key scheme.
///
/// * The manager asks all masters in parallel, and the answer of a majority is enough. A slow master delays no
///   acquisition. A master that does not answer gets only the requests of its probe.
/// * [`remaining`](crate::WriteGuard::remaining) is what is left at a majority of the masters, minus the time of the
///   requests and the margins for clocks.
/// * A grant without a majority is released at once, also at a master that answers late. If a master cannot be reached,
///   the grant stays there for one lease at most.
/// * [Fencing tokens](crate::FencingToken) grow per lock, whichever majorities answer: a majority stores each token
///   before the guard exists.
/// * There is no queue: a refused acquisition asks again after a pause with jitter, so the order of arrival does not
///   count. The writers of a process do not hand off to each other.
/// * A `try_*` is refused as soon as no majority is possible. Its requests to slower masters may arrive later, and such
///   a master grants one for a round trip at most. Another `try_*` in this time may be refused although the lock is free.
///
/// An operation fails with [`Error::NoQuorum`] if less than a majority answers and may vote. A waiting acquisition
/// fails after [`unreachable_after`](Builder::unreachable_after), a `try_*` after two [response
/// timeouts](Builder::response_timeout).
///
/// # Masters that restart
///
/// A master that restarts empty has forgotten its grants, and could make a second majority. So a master has no vote
/// until it has been running for longer than the longest [`lease`](Builder::lease) that this manager has asked for. All
/// grants that it may have forgotten are over by then.
///
/// The manager reads the uptime of a master, for which the user needs the right `+info`. Without that right the master
/// votes at once, and the operator must delay restarts. **All managers of a lock should have the same lease.**
///
/// The uptime does not show every loss of data, so these faults are not survived: `FLUSHALL`, an evicted or deleted
/// key, data from an old snapshot. Set `noeviction`. `docs/GUARANTEES.md` has the whole list.
///
/// # Examples
///
/// ```no_run
/// use redis_rwlock::{QuorumManager, RwLockManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let masters = ["redis://10.0.0.1:6379", "redis://10.0.1.1:6379", "redis://10.0.2.1:6379"];
/// let manager = QuorumManager::connect(masters).await?;
/// let guard = manager.write("cfg").await?;
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct QuorumManager {
    handles: Handles,
}
manager!(QuorumManager);

/// Addresses of the masters of a quorum, with their credentials.
#[derive(Clone)]
pub(super) struct Masters {
    urls: Vec<String>,
    tls: Tls,
    password_file: Option<PathBuf>,
    restarts: Restarts,
}

impl fmt::Debug for Masters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Masters").field(&all_without_secrets(&self.urls)).finish()
    }
}

impl Masters {
    fn check(&self) -> Result<()> {
        let refuse = |reason: &str| Err(Error::InvalidOption { option: "masters", reason: reason.to_owned() });
        let count = self.urls.len();
        if count < 3 || count.is_multiple_of(2) || count > MAX_MASTERS {
            return refuse("a quorum needs 3 or 5 masters: an even number bears no more failures than one less");
        }
        let is_repeated = |(n, url): (usize, &String)| self.urls[..n].contains(url);
        if self.urls.iter().enumerate().any(is_repeated) {
            return refuse("each master has one vote, and one is named twice");
        }
        Ok(())
    }
}

impl QuorumManager {
    /// Connects to these masters with default options: 3 or 5 URLs, each of one node.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`]; [`NoQuorum`](Error::NoQuorum) if less than a majority of the masters
    /// answered.
    pub async fn connect<U: Into<String>>(masters: impl IntoIterator<Item = U>) -> Result<Self> {
        Self::builder(masters).connect().await
    }

    /// Returns a [`Builder`] for a manager of these masters: 3 or 5 URLs, each of one node.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{Error, QuorumManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let masters = ["redis://10.0.0.1:6379", "redis://10.0.1.1:6379", "redis://10.0.2.1:6379"];
    /// let manager = QuorumManager::builder(masters).lease(Duration::from_secs(5)).build()?; // connects at first use
    ///
    /// let error = QuorumManager::builder([masters[0], masters[1]]).build().expect_err("two masters bear no failure");
    /// assert!(matches!(error, Error::InvalidOption { option: "masters", .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<U: Into<String>>(masters: impl IntoIterator<Item = U>) -> Builder<Self> {
        let urls = masters.into_iter().map(Into::into).collect();
        Builder::new(Deployment::Masters(Masters {
            urls,
            tls: Tls::new(),
            password_file: None,
            restarts: Restarts::Checked,
        }))
    }
}

impl Builder<QuorumManager> {
    /// Sets the certificates for `rediss://` URLs, for all masters. Defaults to [`Tls::new`].
    pub fn tls(mut self, tls: Tls) -> Self {
        if let Deployment::Masters(masters) = &mut self.deployment {
            masters.tls = tls;
        }
        self
    }

    /// Reads the password of all masters from a file, as [`Topology::password_file`](crate::Topology::password_file)
    /// does. `build` and each new connection read the file. Defaults to the passwords of the URLs. `build` fails with
    /// [`InvalidOption`](Error::InvalidOption) if there are both, and if the file cannot be read or is empty.
    ///
    /// ```
    /// use redis_rwlock::QuorumManager;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("redis-rwlock-quorum-doc-{}", std::process::id()));
    /// # std::fs::write(&path, "secret\n")?;
    /// // As a container has it: /run/secrets/locks
    /// let masters = ["redis://locks@10.0.0.1:6379", "redis://locks@10.0.1.1:6379", "redis://locks@10.0.2.1:6379"];
    /// let manager = QuorumManager::builder(masters).password_file(&path).build()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        if let Deployment::Masters(masters) = &mut self.deployment {
            masters.password_file = Some(path.into());
        }
        self
    }

    /// Lets masters vote as soon as they answer, however short their uptime. Defaults to off: the manager asks for the
    /// uptime. For operators who delay restarts by more than the longest lease themselves, or whose masters are all
    /// new.
    ///
    /// With this option, new masters are usable at once. But without the promised delay, a master that restarts empty
    /// makes a second majority, and two writers may hold the lock. [`QuorumManager`] explains this.
    pub fn restarts_are_delayed(mut self) -> Self {
        if let Deployment::Masters(masters) = &mut self.deployment {
            masters.restarts = Restarts::Delayed;
        }
        self
    }
}

impl FromDeployment for QuorumManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let Deployment::Masters(masters) = place else { unreachable!("only its own builders build a quorum") };
        masters.check()?;
        options.check_not_cached("no single master knows who waits: use `RedisManager`, or keep a guard")?;
        let background_runtime = options.background_runtime(Clock::System);
        let voters = net::open_voters(
            &masters.urls,
            &masters.tls,
            masters.password_file.as_deref(),
            &options,
            &background_runtime,
        )?;
        let schemes = voters.into_iter().map(|voter| Arc::new(two_key::scheme(voter)) as Arc<dyn Scheme>).collect();
        let margins = Margins {
            max_clock_skew: options.max_clock_skew,
            max_delay: lease::max_delay(options.response_timeout, options.max_clock_skew),
        };
        let any = Key::new("rwlock", "-")?;
        let quorum = Quorum::new(schemes, &background_runtime, &any, margins, masters.restarts, options.lease);
        Ok(Self { handles: Handles::new(Arc::new(quorum), options) })
    }
}
