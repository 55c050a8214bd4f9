//! Manager of locks on independent masters.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "streaming-credentials")]
use redis::StreamingCredentialsProvider;

use super::sealed::FromDeployment;
use super::{Builder, Deployment, RwLockManager, Sealed};
use crate::base::clock::Clock;
use crate::base::credentials::{Credentials, Provider};
use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::lease;
use crate::base::options::Options;
use crate::base::topology::{Access, Tls, all_without_secrets};
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::net::Router;
use crate::store::quorum::{Margins, Quorum, Restarts};
use crate::store::{MasterScheme, two_key};

/// Largest number of masters. The number is limited because each operation sends a request to each master.
const MAX_MASTERS: usize = 9;

/// Manager of locks on 3 or 5 independent masters (as Redlock), for readers and writers. A grant counts if a majority
/// of the masters has made it. So a minority of the masters may crash, hang or be disconnected.
///
/// The masters know nothing of each other. They form no cluster and have no replicas. Run them on machines that do not
/// fail together. All managers that share a lock must use the same masters. Each master stores a lock under the same
/// keys as for a [`TwoKeyManager`](crate::TwoKeyManager).
///
/// * The manager asks all masters in parallel and needs the answers of a majority, so one slow master delays no
///   acquisition. If a master does not answer, the manager sends it only probes until it answers again.
/// * [`remaining`](crate::WriteGuard::remaining) is the time for which a majority of the masters keeps the hold, minus
///   the duration of the requests and minus the margins for clocks.
/// * If only a minority grants the lock, the manager releases these grants at once. If a master of this minority
///   answers late, the manager releases the grant after that answer. On a master that cannot be reached, a grant stays
///   for one lease at most.
/// * [Fencing tokens](crate::FencingToken) of a lock grow, even if different majorities answer, because a majority
///   stores each token before the acquisition succeeds.
/// * There is no queue on the masters. If the masters refuse an acquisition, it asks again after a pause of random
///   length. So acquisitions do not succeed in the order in which they began. A writer does not hand its hold off to
///   the next writer of its process.
/// * `try_read` and `try_write` return as soon as a majority is no longer possible. Their requests may reach slower
///   masters only after that. Such a master may then grant the lock, and keeps this grant for up to one round trip,
///   until the manager has released it. During this time, the master refuses the requests of other managers. It also
///   refuses later requests of the same manager, which does not count these refusals and asks again.
///
/// An operation fails with [`Error::NoQuorum`] if no majority of the masters answers. Masters that have just restarted
/// do not count (see below). A waiting acquisition fails after [`unreachable_after`](Builder::unreachable_after), and
/// `try_read` or `try_write` after two [response timeouts](Builder::response_timeout).
///
/// # Masters that restart
///
/// A master that restarts without its data has forgotten its grants. If the answer of such a master counted, a second
/// majority could grant a lock that is still held. So the manager does not count the answers of a master (which then
/// has no *vote*) until the master has been running for long enough. It must have run for longer than the longest
/// [`lease`](Builder::lease) that this manager has requested. By then, all grants that the master may have forgotten
/// are over.
///
/// The manager reads the uptime of each master. For that, the server's user needs the right `+info`. Without this
/// right, a master has a vote right after its start. Then the operator must wait for the longest lease before starting
/// a master again. A manager knows only its own leases, so **all managers of a lock should have the same lease.**
///
/// The uptime does not show every loss of data. Two holders may overlap if keys are lost by `FLUSHALL`, by eviction or
/// by a deletion, or if a master restarts from an old snapshot. To prevent eviction, set the memory policy
/// `noeviction`. `docs/GUARANTEES.md` has the whole list of faults.
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

/// Addresses and credentials of the masters, and the treatment of masters that restart.
#[derive(Clone)]
pub(super) struct Masters {
    urls: Vec<String>,
    tls: Tls,
    access: Access,
    restarts: Restarts,
}

impl fmt::Debug for Masters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Masters").field(&all_without_secrets(&self.urls)).finish()
    }
}

impl Masters {
    fn check(&self) -> Result<()> {
        let refuse = |reason| Err(Error::invalid("masters", reason));
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
            access: Access::default(),
            restarts: Restarts::Checked,
        }))
    }
}

impl Builder<QuorumManager> {
    fn masters(&mut self) -> &mut Masters {
        let Deployment::Masters(masters) = &mut self.deployment else { unreachable!("a quorum has masters") };
        masters
    }

    /// Sets the certificates for connections to all masters with `rediss://` URLs. Defaults to [`Tls::new`].
    pub fn tls(mut self, tls: Tls) -> Self {
        self.masters().tls = tls;
        self
    }

    /// Sets the file with the password of all masters, as [`Topology::password_file`](crate::Topology::password_file)
    /// does. `build` and each new connection read the file. Defaults to the passwords in the URLs. `build` fails with
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
        self.masters().access.password_file = Some(path.into());
        self
    }

    /// Sets a provider of the user and the password or token for all masters, as
    /// [`Topology::credentials`](crate::Topology::credentials) does. There is one call at a time for all masters.
    /// Defaults to the users and passwords in the URLs. `build` fails with [`InvalidOption`](Error::InvalidOption) if the
    /// URLs have any, or if there is a password file as well.
    ///
    /// ```
    /// use redis_rwlock::{Credentials, QuorumManager};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let masters = ["redis://10.0.0.1:6379", "redis://10.0.1.1:6379", "redis://10.0.2.1:6379"];
    /// let token = async || Ok(Credentials::new("locks", "token")); // usually the answer of a service
    /// let manager = QuorumManager::builder(masters).credentials(token).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials(
        mut self,
        provider: impl AsyncFn() -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.masters().access.provider = Some(Provider::function(provider));
        self
    }

    /// Sets a provider that exists for the `redis` crate, for all masters, as
    /// [`Topology::streaming_credentials`](crate::Topology::streaming_credentials) does.
    #[cfg(feature = "streaming-credentials")]
    pub fn streaming_credentials(mut self, provider: Arc<dyn StreamingCredentialsProvider>) -> Self {
        self.masters().access.provider = Some(Provider::Stream(provider));
        self
    }

    /// Lets the manager count the answers of a master even right after the master's start. By default, the manager
    /// first checks the uptime of the master. Use this option if the operator delays each restart by more than the
    /// longest lease, or if all masters are new.
    ///
    /// With this option, new masters are usable at once. But if the operator does not delay a restart, a master without
    /// its data may help to grant a lock that is still held. Then two writers may hold the lock; see [`QuorumManager`].
    pub fn restarts_are_delayed(mut self) -> Self {
        self.masters().restarts = Restarts::Delayed;
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
        let routers = Router::voters(&masters.urls, &masters.tls, &masters.access, &options, &background_runtime)?;
        let scheme = |router| Arc::new(two_key::scheme(Arc::new(router))) as Arc<dyn MasterScheme>;
        let schemes = routers.into_iter().map(scheme).collect();
        let margins = Margins {
            max_clock_skew: options.max_clock_skew,
            max_delay: lease::max_delay(options.response_timeout, options.max_clock_skew),
        };
        let any = Key::new("rwlock", "-")?;
        let quorum = Quorum::new(schemes, &background_runtime, &any, margins, masters.restarts, options.lease);
        Ok(Self { handles: Handles::new(Arc::new(quorum), options) })
    }
}
