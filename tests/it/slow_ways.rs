//! Servers with a long round trip, and managers with default options.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Node, Proxy, Sentinels, Server, TlsClients};
use redis_rwlock::{Builder, Error, RedisManager, RwLockManager, Tls, Topology};

use crate::nodes::proxied;
use crate::servers::ask;
use crate::wait::{bounded, soon};

crate::fixture::on_two_threads![
    node_without_tls,
    node_with_tls,
    cluster,
    cluster_with_tls,
    sentinels_without_tls,
    sentinels_with_tls,
];

/// Round trips at which everything connects with the defaults.
const ROUND_TRIPS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)];

/// A round trip that is too long for the defaults.
const TOO_LONG: Duration = Duration::from_secs(3);

/// Asserts that a connection with default options fails, and that the error names the step and the setting.
async fn fails_at(step: &str, builder: Builder<RedisManager>) {
    let error = soon("the end of connecting", builder.connect()).await.map(drop).expect_err("it is too far");
    let Error::Unreachable { source: Some(source), .. } = &error else { panic!("{error:?}") };
    let sources = std::iter::successors(Some(&**source as &dyn std::error::Error), |error| error.source());
    let words = sources.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    assert!(words.contains(&format!("{step}: no answer within")) && words.contains("`response_timeout`"), "{words}");
}

/// Connects with default options, and locks.
async fn connects(what: &str, round_trip: Duration, builder: Builder<RedisManager>) {
    let began = Instant::now();
    let connected = soon("the connection", builder.connect()).await;
    let manager = connected.unwrap_or_else(|error| panic!("{what} at {round_trip:?}: {error:?}"));
    let took = began.elapsed();
    println!("{what} at {round_trip:?}: connected after {took:?}");
    assert!(took >= round_trip * 2, "{what}: {took:?} is less than the way");
    let granted = soon("the grant", manager.write(&format!("far-{}", round_trip.as_millis()))).await;
    granted.expect("granted").release().await.expect("ours to the end");
}

/// A proxy in front of the port in a node's URL, and the URL that leads to it. With TLS that is another port.
fn behind_proxy(node: &Node) -> (Proxy, String) {
    let url = node.url();
    let (scheme, address) = url.split_once("://").expect("a URL");
    let proxy = Proxy::before(address.parse().expect("an address")).expect("a proxy");
    let url = format!("{scheme}://{}", proxy.addr());
    (proxy, url)
}

fn trusting(tls: &cluster_testenv::Certificates) -> Tls {
    Tls::new().ca_pem(tls.ca_pem())
}

async fn node_without_tls() {
    let node = proxied(Server::Valkey91);
    for round_trip in ROUND_TRIPS {
        node.proxy().delay(round_trip / 2);
        bounded(connects("a node", round_trip, RedisManager::builder(node.url()))).await;
    }
    node.proxy().delay(TOO_LONG / 2);
    bounded(fails_at("greeting", RedisManager::builder(node.url()))).await;
}

async fn node_with_tls() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Optional).start().expect("it starts");
    let (proxy, url) = behind_proxy(&node);
    for round_trip in ROUND_TRIPS {
        proxy.delay(round_trip / 2);
        let topology = Topology::node(url.as_str()).tls(trusting(node.certificates()));
        bounded(connects("a node with TLS", round_trip, RedisManager::builder(topology))).await;
    }
    proxy.delay(TOO_LONG / 2);
    let topology = Topology::node(url.as_str()).tls(trusting(node.certificates()));
    bounded(fails_at("TLS handshake", RedisManager::builder(topology))).await;
}

async fn cluster() {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).node_timeout(Duration::from_secs(15)).proxied();
    let cluster = cluster.start().expect("it starts");
    for round_trip in ROUND_TRIPS {
        cluster.nodes().iter().for_each(|node| node.proxy().delay(round_trip / 2));
        bounded(connects("a cluster", round_trip, RedisManager::builder(Topology::cluster(cluster.urls())))).await;
    }
}

async fn cluster_with_tls() {
    let builder = Cluster::builder(Server::Redis70).replicas(0).node_timeout(Duration::from_secs(15));
    let cluster = builder.tls(TlsClients::Optional).start().expect("it starts");
    let (proxies, urls): (Vec<_>, Vec<_>) = cluster.nodes().iter().map(behind_proxy).unzip();
    let announced = cluster.urls().into_iter().map(|url| url.rsplit(':').next().and_then(|port| port.parse().ok()));
    let ways: Vec<(Option<u16>, u16)> = announced.zip(proxies.iter().map(Proxy::port)).collect();
    let remapped = move |host: &str, port: u16| {
        let way = ways.iter().find(|(member, _)| *member == Some(port));
        (host.to_owned(), way.map_or(port, |(_, proxy)| *proxy))
    };
    let topology = Topology::cluster(urls).tls(trusting(cluster.certificates())).remap(remapped);
    for round_trip in ROUND_TRIPS {
        proxies.iter().for_each(|proxy| proxy.delay(round_trip / 2));
        bounded(connects("a cluster with TLS", round_trip, RedisManager::builder(topology.clone()))).await;
    }
}

/// Sentinels, and the primary that they name, behind proxies.
struct Far {
    sentinels: Sentinels,
    proxies: Vec<Proxy>,
    urls: Vec<String>,
}

impl Far {
    fn start(sentinels: Sentinels) -> Self {
        let (primary, _) = behind_proxy(sentinels.primary());
        let port = primary.port().to_string();
        let (mut proxies, mut urls) = (Vec::new(), Vec::new());
        for sentinel in sentinels.sentinels() {
            let quiet = ["SENTINEL", "SET", "far", "down-after-milliseconds", "60000"];
            for command in [&["SENTINEL", "MONITOR", "far", "127.0.0.1", &port, "2"][..], &quiet] {
                let reply = ask(sentinel, command);
                assert!(reply.into_result().is_ok(), "{command:?}");
            }
            let (proxy, url) = behind_proxy(sentinel);
            urls.push(url);
            proxies.push(proxy);
        }
        proxies.push(primary);
        Self { sentinels, proxies, urls }
    }

    fn at(&self, round_trip: Duration) -> Topology {
        self.proxies.iter().for_each(|proxy| proxy.delay(round_trip / 2));
        Topology::sentinel("far", self.urls.clone())
    }
}

async fn sentinels_without_tls() {
    let far = Far::start(Sentinels::start(Server::Redis70).expect("they start"));
    for round_trip in ROUND_TRIPS {
        bounded(connects("Sentinels", round_trip, RedisManager::builder(far.at(round_trip)))).await;
    }
    bounded(fails_at("greeting", RedisManager::builder(far.at(TOO_LONG)))).await;
}

async fn sentinels_with_tls() {
    let sentinels = Sentinels::builder(Server::Redis70).tls(TlsClients::Optional).start().expect("they start");
    let far = Far::start(sentinels);
    for round_trip in ROUND_TRIPS {
        let topology = far.at(round_trip).tls(trusting(far.sentinels.certificates()));
        bounded(connects("Sentinels with TLS", round_trip, RedisManager::builder(topology))).await;
    }
    let topology = far.at(TOO_LONG).tls(trusting(far.sentinels.certificates()));
    bounded(fails_at("TLS handshake", RedisManager::builder(topology))).await;
}
