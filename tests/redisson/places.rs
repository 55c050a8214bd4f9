//! Servers of the cases, and managers of this crate on them.

use std::time::Duration;

use cluster_testenv::{Client, Cluster, Node, Reply, Sentinels, Server};
use redis_rwlock::{Builder, Mode, RedissonManager, RwLockManager, Topology};

use crate::java::{self, Version};
use crate::wait::{Ends, works};

/// Servers of one case.
pub(crate) enum Servers {
    Node(Box<Node>),
    Cluster(Cluster),
    Sentinels(Sentinels),
}

pub(crate) struct Place {
    pub(crate) version: Version,
    pub(crate) servers: Servers,
}

/// Watchdog's time of the clients of Redisson in most cases.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);

impl Place {
    pub(crate) fn node(version: Version) -> Self {
        let node = Node::builder(Server::Valkey81).proxied().start().expect("the server starts");
        Self { version, servers: Servers::Node(Box::new(node)) }
    }

    pub(crate) fn cluster(version: Version) -> Self {
        let cluster = Cluster::builder(Server::Redis82).start().expect("the cluster starts");
        Self { version, servers: Servers::Cluster(cluster) }
    }

    pub(crate) fn sentinels(version: Version) -> Self {
        let sentinels = Sentinels::builder(Server::Redis70).start().expect("the servers start");
        Self { version, servers: Servers::Sentinels(sentinels) }
    }

    fn topology(&self) -> Topology {
        match &self.servers {
            Servers::Node(node) => Topology::node(node.url()),
            Servers::Cluster(cluster) => Topology::cluster(cluster.urls()),
            Servers::Sentinels(sentinels) => Topology::sentinel(sentinels.primary_name(), sentinels.urls()),
        }
    }

    pub(crate) fn builder(&self) -> Builder<RedissonManager> {
        RedissonManager::builder(self.topology()).max_clock_skew(Duration::from_millis(5))
    }

    pub(crate) async fn manager(&self) -> RedissonManager {
        self.builder().connect().await.expect("the manager connects")
    }

    pub(crate) async fn java(&self) -> java::Client {
        self.java_with(WATCHDOG).await
    }

    pub(crate) async fn java_with(&self, watchdog: Duration) -> java::Client {
        let (topology, urls) = match &self.servers {
            Servers::Node(node) => ("node".to_owned(), vec![node.url()]),
            Servers::Cluster(cluster) => ("cluster".to_owned(), cluster.urls()),
            Servers::Sentinels(sentinels) => (format!("sentinel={}", sentinels.primary_name()), sentinels.urls()),
        };
        java::Client::start(self.version, &java::Place { topology, urls }, watchdog).await
    }

    /// Starts a manager, and a client of Redisson with two actors.
    pub(crate) async fn sides(&self) -> (RedissonManager, java::Actor, java::Actor) {
        let (rust, java) = (self.manager().await, self.java().await);
        (rust, java.actor("one").await, java.actor("two").await)
    }

    /// Returns a connection to the server that has this key.
    pub(crate) fn server_of(&self, key: &str) -> Client {
        let node = match &self.servers {
            Servers::Node(node) => node,
            Servers::Cluster(cluster) => cluster.primary_of_slot(cluster.keyslot(key)),
            Servers::Sentinels(sentinels) => sentinels.primary(),
        };
        node.client().expect("the server answers")
    }

    /// Returns all keys that begin with the name of a lock, or with that in braces.
    pub(crate) fn keys_of(&self, name: &str) -> Vec<String> {
        let reply = command(&mut self.server_of(name), &["KEYS", &format!("*{name}*")]);
        let mut keys: Vec<_> = reply.array().expect("a list").iter().filter_map(Reply::text).map(Into::into).collect();
        keys.sort();
        keys
    }

    /// Returns the fields of a lock, in order.
    pub(crate) fn fields_of(&self, name: &str) -> Vec<(String, String)> {
        let reply = command(&mut self.server_of(name), &["HGETALL", name]);
        let words: Vec<String> =
            reply.array().expect("a list").iter().filter_map(Reply::text).map(Into::into).collect();
        let mut fields: Vec<_> = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        fields.sort();
        fields
    }
}

pub(crate) fn command(client: &mut Client, words: &[&str]) -> Reply {
    client.command(words).and_then(Reply::into_result).expect("answered")
}

/// Takes the lock `cfg` and releases it.
pub(crate) async fn take_and_release(manager: &RedissonManager, mode: Mode) {
    match mode {
        Mode::Write => works(manager, "cfg").await,
        Mode::Read => manager.read("cfg").await.expect("granted").release().await.expect("ours to the end"),
    }
}

pub(crate) fn run<T: Ends>(case: impl Future<Output = T>) {
    crate::wait::run(java::BOUND * 2, 2, Box::pin(case));
}

/// Runs each case with both versions of Redisson on a node, and with the newer one on a cluster.
macro_rules! beside {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use crate::java::Version;
            use crate::places::{Place, run};

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v4_on_a_node() {
                run(super::$case(&Place::node(Version::V4)));
            }

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v3_on_a_node() {
                run(super::$case(&Place::node(Version::V3)));
            }

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v4_on_a_cluster() {
                run(super::$case(&Place::cluster(Version::V4)));
            }
        }
    )+};
}
pub(crate) use beside;
