//! Servers that speak TLS. Of the installed ones, Redis 7.0 does.

use std::process::Command;
use std::time::{Duration, Instant};

use cluster_testenv::{Certificates, Cluster, Node, Sentinels, Server, TlsClients};
use redis_rwlock::{Build, Builder, Error, RedisManager, Refusal, RwLockManager, Tls, Topology, TwoKeyManager};
use rustls::crypto::{CryptoProvider, ring};

use super::{behind_sentinels, finds_nobody, mentions, names_on_every_primary, option_of, patient, shown, works};
use crate::servers::ask;
use crate::wait::{Outcome, bounded, granted, soon, until, until_renewed};

crate::fixture::on_two_threads![
    node_with_a_private_authority_and_a_client_certificate,
    server_that_wants_no_client_certificate_by_address_and_by_name,
    all_nodes_of_a_cluster_are_reached_with_tls,
    sentinels_and_the_primary_that_they_name_are_reached_with_tls,
    server_name_is_that_of_all_members_of_a_cluster,
];

/// Time that is longer than a case may take.
const LONG: Duration = Duration::from_secs(120);

fn node(clients: TlsClients) -> Node {
    Node::builder(Server::Redis70).tls(clients).start().expect("the server starts")
}

fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().ca_pem(certificates.ca_pem())
}

fn with_client(certificates: &Certificates) -> Tls {
    trusting(certificates).client_pem(certificates.client_cert_pem(), certificates.client_key_pem())
}

fn on(node: &Node, tls: Tls) -> Topology {
    Topology::node(node.url()).tls(tls)
}

/// Checks a reader and a writer that wait for each other, and a hold that is renewed.
async fn locks_as_always<M: Build>(builder: impl Fn() -> Builder<M> + Send + Sync) {
    let connect = || async { patient(builder()).lease(Duration::from_secs(6)).connect().await.expect("connects") };
    let (one, other) = (connect().await, connect().await);
    let writer = one.write("cfg").await.expect("granted");
    assert!(other.try_read("cfg").await.expect("answered").is_none(), "it is written");
    let waiting = other.read("cfg").into_future();
    let waiting = tokio::spawn(waiting);
    until_renewed("a renewal", || writer.remaining()).await;
    writer.release().await.expect("ours to the end");
    let reader = granted(waiting).await;
    reader.release().await.expect("ours to the end");
}

async fn node_with_a_private_authority_and_a_client_certificate() {
    let server = node(TlsClients::Required);
    let tls = with_client(server.certificates());
    bounded(locks_as_always(|| RedisManager::builder(on(&server, tls.clone())))).await;
    bounded(locks_as_always(|| TwoKeyManager::builder(on(&server, tls.clone())))).await;
}

async fn server_that_wants_no_client_certificate_by_address_and_by_name() {
    let server = node(TlsClients::Optional);
    let by_name = server.url().replace("127.0.0.1", "localhost");
    for url in [server.url(), by_name] {
        let topology = Topology::node(url).tls(trusting(server.certificates()));
        let manager = patient(TwoKeyManager::builder(topology)).connect().await.expect("connects");
        works(&manager, "cfg").await;
    }
}

async fn all_nodes_of_a_cluster_are_reached_with_tls() -> Outcome {
    let cluster =
        Cluster::builder(Server::Redis70).tls(TlsClients::Required).node_timeout(Duration::from_secs(15)).start()?;
    // One URL is enough: the cluster names the other members, with their TLS ports.
    let topology = Topology::cluster(cluster.urls().into_iter().take(1)).tls(with_client(cluster.certificates()));
    let manager = patient(RedisManager::builder(topology)).connect().await?;
    for name in names_on_every_primary(&cluster) {
        works(&manager, &name).await;
    }
    // The slot moves, and the manager learns that by a redirect.
    let [name, elsewhere] = <[String; 2]>::try_from(names_on_every_primary(&cluster)[..2].to_vec()).expect("two");
    let guard = manager.write(&name).await?;
    let key = format!("rwlock:{{{name}}}:lock");
    let slot = cluster.keyslot(&key);
    let target = cluster.primary_of_slot(cluster.keyslot(&elsewhere));
    cluster.migrate_slot(slot, target).expect("the slot moves");
    assert_eq!(cluster.primary_of_slot(slot).port(), target.port());
    guard.release().await.expect("ours to the end, and the new owner knows");
    works(&manager, &name).await;
    Ok(())
}

async fn sentinels_and_the_primary_that_they_name_are_reached_with_tls() -> Outcome {
    let servers = Sentinels::builder(Server::Redis70).tls(TlsClients::Required).start()?;
    let topology = behind_sentinels(&servers).tls(with_client(servers.certificates()));
    let hash = patient(RedisManager::builder(topology.clone()));
    let two_key = patient(TwoKeyManager::builder(topology));
    let (hash, two_key) = (hash.connect().await?, two_key.connect().await?);
    works(&hash, "cfg").await;
    works(&two_key, "cfg").await;
    let old = servers.primary().port();
    let new = tokio::task::block_in_place(|| servers.failover()).expect("another primary");
    assert_ne!(new.port(), old);
    works(&hash, "cfg").await;
    works(&two_key, "cfg").await;
    let strange = behind_sentinels(&servers).tls(trusting(servers.certificates()));
    assert_eq!(refusal_of(&refused(strange).await), Refusal::Unauthenticated, "the Sentinels want a certificate");
    Ok(())
}

async fn refused(topology: Topology) -> Error {
    super::refused(RedisManager::builder(topology)).await
}

fn refusal_of(error: &Error) -> Refusal {
    match error {
        Error::Refused { refusal, .. } => *refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn server_of_another_authority_is_not_trusted() {
    let (server, stranger) = (node(TlsClients::Optional), node(TlsClients::Optional));
    let theirs = refused(on(&server, trusting(stranger.certificates()))).await;
    assert_eq!(refusal_of(&theirs), Refusal::Untrusted, "{theirs}");
    let public = refused(on(&server, Tls::new())).await;
    assert_eq!(refusal_of(&public), Refusal::Untrusted, "{public}");
    let cluster = Topology::cluster([server.url()]).tls(trusting(stranger.certificates()));
    assert_eq!(refusal_of(&refused(cluster.clone()).await), Refusal::Untrusted);
    let manager = patient(RedisManager::builder(cluster)).build().expect("built");
    let late = soon("the refusal", manager.write("cfg")).await.expect_err("no");
    assert_eq!(refusal_of(&late), Refusal::Untrusted, "at first use as well: {late}");
    let sentinels = Topology::sentinel("mymaster", [server.url()]).tls(trusting(stranger.certificates()));
    assert_eq!(refusal_of(&refused(sentinels).await), Refusal::Untrusted);
}

#[tokio::test]
async fn certificate_for_another_host_is_refused() {
    let server = node(TlsClients::Optional);
    ask(&server, &["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2"]);
    let url = server.url().replace("127.0.0.1", "127.0.0.2");
    let error = refused(Topology::node(url).tls(trusting(server.certificates()))).await;
    assert_eq!(refusal_of(&error), Refusal::Untrusted, "{error}");
    assert!(error.to_string().contains("127.0.0.2"), "{error}");
}

/// Address of this machine that is in no certificate.
const UNNAMED: &str = "127.0.0.2";

#[tokio::test]
async fn certificate_is_checked_for_the_server_name_in_place_of_the_host() {
    let server = node(TlsClients::Optional);
    ask(&server, &["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2"]);
    let url = server.url().replace("127.0.0.1", UNNAMED);
    let named = |name: &str| Topology::node(url.as_str()).tls(trusting(server.certificates()).server_name(name));
    for name in ["localhost", "127.0.0.1"] {
        let manager = patient(RedisManager::builder(named(name))).connect().await.expect("connects");
        works(&manager, "cfg").await;
    }
    let error = refused(named("locks.example.com")).await;
    assert_eq!(refusal_of(&error), Refusal::Untrusted, "{error}");
    assert!(error.to_string().contains("locks.example.com"), "{error}");
    let authority = node(TlsClients::Optional);
    let strange = trusting(authority.certificates()).server_name("localhost");
    let error = refused(Topology::node(url.as_str()).tls(strange)).await;
    assert_eq!(refusal_of(&error), Refusal::Untrusted, "the name alone is no proof: {error}");
}

/// The members announce addresses that are not in their certificates.
async fn server_name_is_that_of_all_members_of_a_cluster() {
    let builder = Cluster::builder(Server::Redis70).replicas(0).node_timeout(Duration::from_secs(15));
    let cluster = builder.tls(TlsClients::Optional).start().expect("the cluster starts");
    let all = cluster.nodes().len();
    for member in cluster.nodes() {
        ask(member, &["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2"]);
        ask(member, &["CONFIG", "SET", "cluster-announce-hostname", UNNAMED]);
        ask(member, &["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
    }
    for member in cluster.nodes() {
        let told = async || mentions(&ask(member, &["CLUSTER", "SLOTS"]), UNNAMED) == all;
        until("all members have heard of the names", told).await;
    }
    let on = |tls: Tls| Topology::cluster([cluster.nodes()[0].url()]).tls(tls);
    let tls = trusting(cluster.certificates());
    assert_eq!(refusal_of(&refused(on(tls.clone())).await), Refusal::Untrusted, "each is checked");
    let manager = patient(RedisManager::builder(on(tls.server_name("localhost")))).connect().await.expect("connects");
    for name in names_on_every_primary(&cluster) {
        works(&manager, &name).await;
    }
}

#[test]
fn server_name_that_no_certificate_can_have_is_refused_when_the_manager_is_built() {
    for topology in everywhere("rediss://127.0.0.1:1", &Tls::new().server_name("no name")) {
        let error = RedisManager::builder(topology).build().expect_err("it is no name");
        assert_eq!(option_of(&error), "tls", "{error}");
        assert!(error.to_string().contains("\"no name\""), "{error}");
    }
    for topology in everywhere("redis://127.0.0.1:1", &Tls::new().server_name("localhost")) {
        let error = RedisManager::builder(topology).build().expect_err("it would not be checked");
        assert_eq!(option_of(&error), "tls", "{error}");
    }
}

#[tokio::test]
async fn client_without_a_certificate_or_with_a_strange_one_is_not_authenticated() {
    let (server, stranger) = (node(TlsClients::Required), node(TlsClients::Required));
    let none = refused(on(&server, trusting(server.certificates()))).await;
    assert_eq!(refusal_of(&none), Refusal::Unauthenticated, "{none}");
    let theirs = stranger.certificates();
    let strange = trusting(server.certificates()).client_pem(theirs.client_cert_pem(), theirs.client_key_pem());
    let strange = refused(on(&server, strange)).await;
    assert_eq!(refusal_of(&strange), Refusal::Unauthenticated, "{strange}");
}

#[tokio::test]
async fn tls_on_one_side_only_is_unreachable_in_bounded_time() {
    let server = node(TlsClients::Optional);
    let tls_to_plain = Topology::node(format!("rediss://{}", server.addr())).tls(trusting(server.certificates()));
    let plain_to_tls = Topology::node(server.url().replace("rediss", "redis"));
    for topology in [tls_to_plain, plain_to_tls] {
        finds_nobody(|| RedisManager::builder(topology.clone())).await;
    }
}

/// All topologies with this URL. No manager of them connects when it is built.
fn everywhere(url: &str, tls: &Tls) -> Vec<Topology> {
    let all = [Topology::node(url), Topology::cluster([url]), Topology::sentinel("mymaster", [url])];
    all.into_iter().map(|topology| topology.tls(tls.clone())).collect()
}

#[test]
fn bad_certificates_are_refused_when_the_manager_is_built() {
    let (server, stranger) = (node(TlsClients::Optional), node(TlsClients::Optional));
    let (ours, theirs) = (server.certificates(), stranger.certificates());
    let (cert, key) = (ours.client_cert_pem(), ours.client_key_pem());
    let cut = cert.replace("-----END CERTIFICATE-----", "");
    let garbled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bad = [
        ("no authority", Tls::new().ca_pem("")),
        ("no PEM", Tls::new().ca_pem("nonsense")),
        ("a key for an authority", Tls::new().ca_pem(key)),
        ("half an authority", Tls::new().ca_pem(cut.as_str())),
        ("a garbled authority", Tls::new().ca_pem(garbled)),
        ("no certificate", trusting(ours).client_pem("", key)),
        ("no key", trusting(ours).client_pem(cert, "")),
        ("a certificate for a key", trusting(ours).client_pem(cert, cert)),
        ("half a key", trusting(ours).client_pem(cert, &key[..key.len() / 2])),
        ("a garbled certificate", trusting(ours).client_pem(garbled, key)),
        ("the key of another", trusting(ours).client_pem(cert, theirs.client_key_pem())),
    ];
    let secret = key.lines().nth(1).expect("a key has lines");
    for (what, tls) in bad {
        for topology in everywhere("rediss://127.0.0.1:1", &tls) {
            let error = RedisManager::builder(topology).build().expect_err(what);
            assert_eq!(option_of(&error), "tls", "{what}: {error}");
            assert!(!shown(&error).contains(secret), "{what}: {error}");
        }
    }
}

#[test]
fn certificates_without_tls_and_half_tls_are_refused() {
    let server = node(TlsClients::Optional);
    let tls = with_client(server.certificates());
    for topology in everywhere("redis://127.0.0.1:1", &tls) {
        let error = RedisManager::builder(topology).build().expect_err("they would not be used");
        assert_eq!(option_of(&error), "tls", "{error}");
    }
    for topology in everywhere("rediss://127.0.0.1:1/#insecure", &tls) {
        let error = RedisManager::builder(topology).build().expect_err("certificates are checked");
        assert_eq!(option_of(&error), "topology", "{error}");
    }
    let mixed = Topology::cluster(["rediss://127.0.0.1:1", "redis://127.0.0.1:2"]).tls(tls);
    let error = RedisManager::builder(mixed).build().expect_err("half of it would not be secret");
    assert_eq!(option_of(&error), "topology", "{error}");
}

#[test]
fn debug_shows_neither_keys_nor_certificates() {
    let server = node(TlsClients::Optional);
    let tls = with_client(server.certificates());
    let mut shown = format!("{tls:?}");
    for topology in everywhere("rediss://user:pass@127.0.0.1:1", &tls) {
        shown += &format!("{topology:?} {:?}", RedisManager::builder(topology.clone()));
        let manager = RedisManager::builder(topology).build().expect("built");
        shown += &format!("{manager:?}");
    }
    let certificates = server.certificates();
    for pem in [certificates.ca_pem(), certificates.client_cert_pem(), certificates.client_key_pem()] {
        let secret = &pem.lines().nth(1).expect("PEM has lines")[..16];
        assert!(!shown.contains(secret) && !shown.contains("pass"), "{shown}");
        let bytes = format!("{:?}", secret.as_bytes());
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    }
}

/// Runs a case in a process of its own, because the provider of TLS belongs to the process.
fn in_a_process_of_its_own(case: &str) {
    let itself = std::env::current_exe().expect("a path");
    let mut child = Command::new(itself)
        .args(["--exact", "--ignored", &format!("topology::tls::{case}")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let started = Instant::now();
    while child.try_wait().expect("it can be asked").is_none() {
        assert!(started.elapsed() < LONG, "{case} does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it has ended");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn process_without_a_provider_is_given_none() {
    in_a_process_of_its_own("child_has_no_provider");
}

#[test]
fn provider_of_the_application_stays() {
    in_a_process_of_its_own("child_has_a_provider");
}

#[tokio::test]
#[ignore = "run in a process of its own, by the case above"]
async fn child_has_no_provider() {
    let server = node(TlsClients::Required);
    assert!(CryptoProvider::get_default().is_none());
    let builder = patient(RedisManager::builder(on(&server, with_client(server.certificates()))));
    works(&builder.build().expect("built"), "cfg").await;
    assert!(CryptoProvider::get_default().is_none(), "which one it is to be is the application's choice");
}

#[tokio::test]
#[ignore = "run in a process of its own, by the case above"]
async fn child_has_a_provider() {
    let mut provider = ring::default_provider();
    provider.cipher_suites.truncate(1);
    provider.install_default().expect("the first");
    let server = node(TlsClients::Required);
    let builder = patient(RedisManager::builder(on(&server, with_client(server.certificates()))));
    works(&builder.build().expect("built"), "cfg").await;
    assert_eq!(CryptoProvider::get_default().expect("still there").cipher_suites.len(), 1);
}
