//! Locks and floors behind one trait.

mod bare;
mod distkit;
mod fair_queue;
mod hand_over;
mod local;
mod ours;
mod published;
mod rlock;
mod rslock;

use super::*;

/// Lease that is too long to end in a turn.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Beginning of the names of all our settings.
pub(crate) const OURS: &str = "redis-rwlock";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Returns the mode as scripts get it.
    fn letter(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::Write => "w",
        }
    }
}

/// Client of a lock, as one process has it.
trait Client: Send + Sync {
    /// Waits for the lock.
    fn enter(&self, mode: Mode, name: &str) -> impl Future<Output = Held> + Send;
}

/// Client of any lock.
pub(crate) trait Peer: Send + Sync {
    /// Waits for the lock.
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Held>;
}

impl<C: Client> Peer for C {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Held> {
        Box::pin(Client::enter(self, mode, name))
    }
}

/// Lock that is held. A drop does what the drop of the peer's own guard does.
pub(crate) struct Held(Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>);

impl Held {
    /// Returns the hold that `leave` releases. Its future resolves when the server has confirmed the release.
    fn new<F: Future<Output = ()> + Send + 'static>(leave: impl FnOnce() -> F + Send + 'static) -> Self {
        Self(Box::new(|| Box::pin(leave())))
    }

    pub(crate) async fn leave(self) {
        (self.0)().await;
    }
}

/// Lock or floor. Workers get these names in kebab case as arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    Ours,
    /// The hash scheme with cached holds.
    OursIdle,
    OursTwoKeys,
    OursInMemory,
    OursOnCluster,
    OursReplicated,
    OursQuorum,
    OursBlocking,
    /// Locks in the format of Redisson, which its clients could share.
    OursRedisson,
    /// Three locks in one step.
    OursThree,
    /// Three locks, one after the other.
    OursThreeInTurn,
    Rlock,
    Rslock,
    Distkit,
    Redisson,
    /// Redisson's multi-lock, of three locks.
    RedissonThree,
    Redsync,
    /// Read-write lock that a majority of five lock servers of its own grants.
    Dsync,
    RedisSemaphore,
    RedisPy,
    Published,
    /// Lock of tokio, which excludes no other process.
    Tokio,
    /// Our scripts, with a connection of a pool for each command.
    Deadpool,
    /// Our scripts over the cluster connection of the redis crate.
    ClusterConnection,
    /// Our scripts on a bare connection.
    Floor1,
    /// The least that the script of a lock has to do, twice.
    FloorLockShaped,
    /// Two scripts that do nothing.
    Floor0,
    /// A script publishes a message, which goes from task to task.
    BarePush,
    /// A push, by a script that runs the commands of our release.
    BareRelease,
    /// Two queues at the server and a message for each waiter, and no leases.
    FairQueue,
}

/// Purpose of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Excludes others, also in other processes.
    Lock,
    /// Excludes others in this process only.
    LocalLock,
    /// Takes three locks for one name.
    ThreeLocks,
    /// Costs as much as a pair of scripts, and excludes no other client.
    Floor,
    /// Passes a turn from client to client. All clients but the first wait.
    HandOver,
    /// Keeps others out as long as no client and no message is lost.
    FairQueue,
}

pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) program: Program,
    pub(crate) place: Place,
    pub(crate) reads: bool,
    /// True if the peer renews its holds by itself.
    pub(crate) renews: bool,
}

impl Facts {
    const fn new(name: &'static str, role: Role) -> Self {
        Self { name, role, program: Program::Own, place: Place::Node, reads: true, renews: false }
    }

    const fn ours(name: &'static str, place: Place) -> Self {
        Self { place, renews: true, ..Self::new(name, Role::Lock) }
    }

    const fn ours_of_three(name: &'static str) -> Self {
        Self { role: Role::ThreeLocks, ..Self::ours(name, Place::Node) }
    }

    const fn foreign(name: &'static str, program: Program) -> Self {
        Self { program, reads: false, ..Self::new(name, Role::Lock) }
    }
}

impl Kind {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    pub(crate) fn facts(self) -> Facts {
        match self {
            Self::Ours => Facts::ours("redis-rwlock, hash", Place::Node),
            Self::OursIdle => Facts::ours("redis-rwlock, hash, idle holds", Place::Node),
            Self::OursTwoKeys => Facts::ours("redis-rwlock, two keys", Place::Node),
            Self::OursInMemory => Facts { role: Role::LocalLock, ..Facts::ours("redis-rwlock, memory", Place::Node) },
            Self::OursOnCluster => Facts::ours("redis-rwlock, hash on a cluster", Place::Cluster(3)),
            Self::OursReplicated => Facts::ours("redis-rwlock, hash, replicated to 1", Place::Pair),
            Self::OursQuorum => Facts::ours("redis-rwlock, quorum of 5", Place::Masters),
            Self::OursBlocking => Facts::ours("redis-rwlock, hash, blocking", Place::Node),
            Self::OursRedisson => Facts::ours("redis-rwlock, format of Redisson", Place::Node),
            Self::OursThree => Facts::ours_of_three("redis-rwlock, three names in one step"),
            Self::OursThreeInTurn => Facts::ours_of_three("redis-rwlock, three names one after the other"),
            Self::Rlock => Facts { renews: true, ..Facts::new("rlock", Role::Lock) },
            Self::Rslock => Facts { reads: false, ..Facts::new("rslock", Role::Lock) },
            Self::Distkit => Facts { renews: true, ..Facts::new("distkit", Role::Lock) },
            Self::Redisson => Facts { reads: true, renews: true, ..Facts::foreign("Redisson", Program::Java) },
            Self::RedissonThree => Facts {
                role: Role::ThreeLocks,
                reads: true,
                renews: true,
                ..Facts::foreign("Redisson, multi-lock of three", Program::Java)
            },
            Self::Redsync => Facts::foreign("redsync", Program::Go),
            Self::Dsync => Facts {
                place: Place::LockServers,
                reads: true,
                ..Facts::foreign("dsync, 5 lock servers of its own", Program::Go)
            },
            Self::RedisSemaphore => Facts { renews: true, ..Facts::foreign("redis-semaphore", Program::Node) },
            Self::RedisPy => Facts::foreign("redis-py Lock", Program::Python),
            Self::Published => Facts::new("published hash scheme, asked every 10 ms", Role::Lock),
            Self::Tokio => Facts { renews: true, ..Facts::new("tokio RwLock", Role::LocalLock) },
            Self::Deadpool => Facts::new("floor: our scripts, deadpool per command", Role::Floor),
            Self::ClusterConnection => {
                Facts { place: Place::Cluster(3), ..Facts::new("floor: our scripts, ClusterConnection", Role::Floor) }
            }
            Self::Floor1 => Facts::new("floor: our scripts, bare", Role::Floor),
            Self::FloorLockShaped => Facts::new("floor: lock-shaped scripts, bare", Role::Floor),
            Self::Floor0 => Facts::new("floor: no-op scripts, bare", Role::Floor),
            Self::BarePush => Facts::new("floor: a bare push", Role::HandOver),
            Self::BareRelease => Facts::new("floor: a bare client, commands of the release", Role::HandOver),
            Self::FairQueue => Facts::new("floor: a fair queue without leases", Role::FairQueue),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns true if this is a setting of this repository's lock.
    pub(crate) fn is_ours(self) -> bool {
        self.name().starts_with(OURS)
    }

    pub(crate) fn role(self) -> Role {
        self.facts().role
    }

    /// Returns the name that workers get as an argument.
    pub(crate) fn key(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    /// Returns a client of a lock of this program. [`Kind::OursBlocking`] has none, because it has no tasks.
    pub(crate) async fn connect(self, urls: &[String], lease: Duration) -> Box<dyn Peer> {
        let url = urls[0].as_str();
        match self {
            _ if self.is_ours() && self != Self::OursBlocking => ours::connect(self, urls, lease).await,
            Self::Rlock => rlock::connect(url).await,
            Self::Rslock => rslock::connect(url),
            Self::Distkit => distkit::connect(url, lease).await,
            Self::Published => published::connect(url).await,
            Self::Tokio => local::connect(),
            Self::Deadpool => bare::connect_by_pool(url).await,
            Self::ClusterConnection => bare::connect_to_cluster(urls).await,
            Self::Floor1 => bare::connect(url, bare::Pair::Ours).await,
            Self::FloorLockShaped => bare::connect(url, bare::Pair::LockShaped).await,
            Self::Floor0 => bare::connect(url, bare::Pair::NoOp).await,
            Self::BarePush => hand_over::connect(url, hand_over::Script::Push).await,
            Self::BareRelease => hand_over::connect(url, hand_over::Script::Release).await,
            Self::FairQueue => fair_queue::connect(url).await,
            _ => unreachable!("{} is no lock for tasks of this program", self.name()),
        }
    }
}

/// Returns the version of a foreign lock in this program, as its lock file has it.
pub(crate) fn version(kind: Kind) -> &'static str {
    match kind {
        Kind::Rlock => "rlock 0.2.0",
        Kind::Rslock => "rslock 0.10.0",
        Kind::Distkit => "distkit 0.7.1",
        _ => "",
    }
}
