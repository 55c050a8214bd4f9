//! The manager over independent masters.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::sealed::FromPlace;
use super::{Builder, Place, RwLockManager, Sealed};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease;
use crate::options::Options;
use crate::scheme::quorum::{Margins, Quorum, Restarts};
use crate::scheme::{Scheme, two_key};
use crate::topology::{Tls, all_without_secrets};
use crate::transport;

/// As many as are worth their round trips.
const MOST: usize = 9;

/// A quorum (Redlock) over 3 or 5 independent masters, for both modes: a majority of them decides, so a minority may crash, hang
/// or be cut off.
///
/// The masters know nothing of each other: no cluster, no replicas, best on machines that do not fail together. Every manager of
/// a lock names the same ones. On each of them a lock has the keys of the two-key scheme.
///
/// * All masters are asked in parallel, and the answer of a majority is enough. A slow one delays nobody, one that does not answer
///   is asked by nobody but its prober.
/// * [`remaining`](crate::WriteGuard::remaining) is what is left at a majority of them, less the time that it took to ask and the
///   margins for clocks.
/// * What is granted without a majority is given back at once, also by a master that answers late. It is there for one lease at
///   most if a master cannot be told.
/// * [Fencing tokens](crate::FencingToken) grow per lock, whichever majorities answer: each is stored by a majority before the
///   guard is there.
/// * Nobody queues: who is refused asks again after a pause with jitter, so nobody is first because it came first. Writers of a
///   process do not hand on to each other.
///
/// It takes [`Error::NoQuorum`] if less than a majority answers and may vote: an acquisition that waits after
/// [`unreachable_after`](Builder::unreachable_after), a `try_*` after two [response timeouts](Builder::response_timeout).
///
/// # Masters that restart
///
/// One that comes back empty has forgotten what it had granted, and could make a second majority. So a master has no vote before
/// it has been running for longer than the longest [`lease`](Builder::lease) that this manager has asked for: all that it may have
/// forgotten is over by then. Its uptime says so, which the user needs the right `+info` for; without that right it votes at once,
/// and restarts have to be delayed by whoever runs it. **All managers of a lock should have the same lease.**
///
/// What its uptime does not show is not survived: `FLUSHALL`, a key that is evicted or deleted, data that an old snapshot brings
/// back. Have `noeviction`. `docs/GUARANTEES.md` has the whole list.
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

/// Where the masters of a quorum are.
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
        if count < 3 || count.is_multiple_of(2) || count > MOST {
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
    /// As [`Builder::connect`]; [`NoQuorum`](Error::NoQuorum) if less than a majority of them answered.
    pub async fn connect<U: Into<String>>(masters: impl IntoIterator<Item = U>) -> Result<Self> {
        Self::builder(masters).connect().await
    }

    /// Begins to put a manager together.
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
        Builder::new(Place::Masters(Masters {
            urls,
            tls: Tls::new(),
            password_file: None,
            restarts: Restarts::Checked,
        }))
    }
}

impl Builder<QuorumManager> {
    /// The certificates for `rediss://` URLs, of all masters. Defaults to [`Tls::new`].
    pub fn tls(mut self, tls: Tls) -> Self {
        if let Place::Masters(masters) = &mut self.place {
            masters.tls = tls;
        }
        self
    }

    /// A file with the password of all masters, which `build` and each new connection read, as
    /// [`Topology::password_file`](crate::Topology::password_file) says. Defaults to the passwords of the URLs; `build` fails with
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
        if let Place::Masters(masters) = &mut self.place {
            masters.password_file = Some(path.into());
        }
        self
    }

    /// Masters vote as soon as they answer, however short their uptime: for those who delay restarts themselves, by more than the
    /// longest lease, or whose masters are all new. Defaults to asking for the uptime.
    ///
    /// Without the delay that this promises, a master that comes back empty makes a second majority, and two writers are inside.
    /// [`QuorumManager`] tells more.
    pub fn restarts_are_delayed(mut self) -> Self {
        if let Place::Masters(masters) = &mut self.place {
            masters.restarts = Restarts::Delayed;
        }
        self
    }
}

impl FromPlace for QuorumManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        let Place::Masters(masters) = place else { unreachable!("only its own builders build a quorum") };
        masters.check()?;
        options.check_not_idle("no single master knows who waits: use `RedisManager`, or keep a guard")?;
        let home = options.home(Clock::System);
        let voters =
            transport::open_voters(&masters.urls, &masters.tls, masters.password_file.as_deref(), &options, &home)?;
        let schemes = voters.into_iter().map(|voter| Arc::new(two_key::scheme(voter)) as Arc<dyn Scheme>).collect();
        let margins = Margins {
            clock_margin: options.clock_margin,
            stray_span: lease::stray_span(options.response_timeout, options.clock_margin),
        };
        let any = Key::new("rwlock", "-")?;
        let quorum = Quorum::new(schemes, &home, &any, margins, masters.restarts, options.lease);
        Ok(Self { handles: Handles::new(Arc::new(quorum), options) })
    }
}
