use redis_rwlock::{
    Build, Builder, Durability, MemoryManager, QuorumManager, RedisManager, RedissonManager, Replicas, RwLockManager,
    Topology, TwoKeyManager, write,
};

use super::*;

/// Time limit for the acknowledgement of a replica. It is long, because with this many tasks the acknowledgement may be
/// late on a machine with two cores.
const REPLICATED_WITHIN: Duration = Duration::from_secs(2);

struct Ours<M>(M);

/// Returns a client with one of our settings.
pub(super) async fn connect(kind: Kind, urls: &[String], lease: Duration) -> Box<dyn Peer> {
    let (node, hash) = (|| Topology::node(&*urls[0]), |topology| RedisManager::builder(topology).lease(lease));
    match kind {
        Kind::OursIdle => peer(hash(node()).cache_for(lease)).await,
        Kind::OursTwoKeys => peer(TwoKeyManager::builder(node()).lease(lease)).await,
        Kind::OursRedisson => peer(RedissonManager::builder(node()).lease(lease)).await,
        Kind::OursInMemory => Box::new(Ours(MemoryManager::new())),
        Kind::OursOnCluster => peer(hash(Topology::cluster(urls))).await,
        Kind::OursReplicated => {
            let durability = Durability::Replicated { replicas: Replicas::At(1), timeout: REPLICATED_WITHIN };
            peer(hash(node()).durability(durability).response_timeout(2 * REPLICATED_WITHIN)).await
        }
        // Without this option, servers that have just started have no vote.
        Kind::OursQuorum => peer(QuorumManager::builder(urls).lease(lease).restarts_are_delayed()).await,
        Kind::OursThree => Box::new(Three { manager: manager(hash(node())).await, steps: Steps::One }),
        Kind::OursThreeInTurn => Box::new(Three { manager: manager(hash(node())).await, steps: Steps::OneForEach }),
        _ => peer(hash(node())).await,
    }
}

async fn manager<M: Build>(builder: Builder<M>) -> M {
    builder.connect().await.expect("servers")
}

async fn peer<M: Build>(builder: Builder<M>) -> Box<dyn Peer> {
    Box::new(Ours(manager(builder).await))
}

/// Number of steps in which three locks are acquired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    One,
    OneForEach,
}

struct Three {
    manager: RedisManager,
    steps: Steps,
}

impl Client for Three {
    async fn enter(&self, _: Mode, name: &str) -> Held {
        let names = ["a", "b", "c"].map(|part| format!("{name} {part}"));
        if self.steps == Steps::One {
            let guard = self.manager.all(&names.map(write)).await.expect("granted");
            return Held::new(async move || guard.release().await.expect("released"));
        }
        let mut guards = Vec::with_capacity(names.len());
        for name in names {
            guards.push(self.manager.write(&name).await.expect("granted"));
        }
        Held::new(async move || {
            for guard in guards {
                guard.release().await.expect("released");
            }
        })
    }
}

impl<M: RwLockManager> Client for Ours<M> {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        if mode == Mode::Read {
            let guard = self.0.read(name).await.expect("granted");
            return Held::new(async move || guard.release().await.expect("released"));
        }
        let guard = self.0.write(name).await.expect("granted");
        Held::new(async move || guard.release().await.expect("released"))
    }
}
