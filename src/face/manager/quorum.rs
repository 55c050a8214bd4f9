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

/// Largest number of masters. Each master costs a request per operation.
const MAX_MASTERS: usize = 9;

/// Manager of locks on 3 or 5 independent masters (as Redlock), for readers and writers. A grant counts if a majority
/// of the masters makes it, so a minority may crash, hang or be disconnected.
///
/// The masters know nothing of each other: they are no cluster, and have no replicas. Run them on machines that do not
/// fail together. Every manager of a lock must name the same masters. On each master, a lock has the keys of
/// [`TwoKeyManager`](crate::TwoKeyManager).
///
/// * The manager asks all masters in parallel and needs the answers of a majority, so a slow master delays no
///   acquisition. To a master that does not answer, the manager sends only probes.
/// * [`remaining`](crate::WriteGuard::remaining) is the time for which a majority of the masters keeps the hold, minus
///   the time of the requests and the margins for clocks.
/// * If no majority grants the lock, the manager releases the single grants at once, also at a master that answers
///   late. On a master that cannot be reached, a grant stays for one lease at most.
/// * [Fencing tokens](crate::FencingToken) of a lock grow, even if different majorities answer: a majority stores each
///   token before the guard exists.
/// * There is no queue. A refused acquisition asks again after a pause with jitter, so acquisitions do not succeed in
///   the order in which they came. Writers of a process do not hand off holds to each other.
/// * `try_read` and `try_write` return as soon as no majority is possible. Their requests to slower masters may arrive
///   later, and such a master keeps the grant for up to one round trip. During this time the master refuses other
///   managers. The same manager does not count such a refusal, and asks again.
///
/// An operation fails with [`Error::NoQuorum`] if fewer masters than a majority answer and may vote. A waiting
/// acquisition fails after [`unreachable_after`](Builder::unreachable_after), and a try after two [response
/// timeouts](Builder::response_timeout).
///
/// # Masters that restart
///
/// A master that restarts without its data has forgotten its grants. Its vote could complete a second majority for a
/// lock that is held. So a master has no vote until it has been running for longer than the longest
/// [`lease`](Builder::lease) that this manager has requested. By then, all grants that the master may have forgotten
/// are over.
///
/// The manager reads the uptime of each master, for which the user needs the right `+info`. Without this right the
/// master votes at once, and the operator must delay restarts by the longest lease. **All managers of a lock should
/// have the same lease.**
///
/// The uptime does not show every loss of data. After `FLUSHALL`, an evicted or deleted key, or a restart from an old
/// snapshot, two holders may overlap. Set the memory policy `noeviction`. `docs/GUARANTEES.md` has the whole list of
/// faults.
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
            return refuse("give 3 or 5 masters (an odd number, at most 9): an even number survives no more failures");
        }
        let is_repeated = |(n, url): (usize, &String)| self.urls[..n].contains(url);
        if self.urls.iter().enumerate().any(is_repeated) {
            return refuse("one master is named twice, and each master has one vote");
        }
        Ok(())
    }
}

impl QuorumManager {
    /// Connects to these masters with default options: 3 or 5 URLs, each of one node.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`], and [`NoQuorum`](Error::NoQuorum) if fewer masters than a majority answered.
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

    /// Sets the file with the password of all masters, as [`Topology::password_file`](crate::Topology::password_file)
    /// does. `build` and each new connection read the file. Defaults to the passwords of the URLs. `build` fails with
    /// [`InvalidOption`](Error::InvalidOption) if the URLs have passwords as well, or if the file cannot be read or is
    /// empty.
    ///
    /// ```
    /// use redis_rwlock::QuorumManager;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("redis-rwlock-quorum-doc-{}", std::process::id()));
    /// # std::fs::write(&path, "secret\n")?;
    /// // In a container, for example: /run/secrets/locks
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

    /// Lets masters vote as soon as they answer, even right after a start. Defaults to off: the manager checks the
    /// uptime. Use this option if the operator delays each restart by more than the longest lease, or if all masters
    /// are new.
    ///
    /// With this option, new masters are usable at once. But without the delay, a master that restarts without its data
    /// may complete a second majority. Then two writers may hold the lock; see [`QuorumManager`].
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
        options.check_not_cached(
            "a quorum has no recalls, so its holders do not learn of waiters: use `RedisManager`, or keep a guard",
        )?;
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
