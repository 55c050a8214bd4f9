//! Passwords and certificates that operators replace in files, while a service is connected.

use std::path::PathBuf;
use std::time::Duration;

use cluster_testenv::{Client, Node, Sentinels, Server};
use redis_rwlock::{HoldState, QuorumManager, RedisManager, Refusal, RwLockManager, Topology};
use tokio::runtime::Handle;
use tracing::Level;

use super::{option_of, patient, shown, works};
use crate::errors::assert_refused;
use crate::record::Recorder;
use crate::servers::ask;
use crate::wait::{Outcome, bounded, soon, until_renewed};

crate::fixture::on_two_threads![password_file_is_for_the_primary_and_for_sentinels_without_a_password_in_their_urls,];

/// Lease that outlasts a case, apart from its renewals.
const LEASE: Duration = Duration::from_secs(20);
const KEPT: &str = "a secret cannot be read again";

/// A folder that goes away with the case.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("redis-rwlock-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces a file in one step, as the documents advise.
    fn put(&self, name: &str, text: &str) {
        let new = self.file("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, self.file(name)).expect("replaced");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn order(client: &mut Client, words: &[&str]) {
    client.command(words).expect("answered").into_result().expect("carried out");
}

/// Ends all connections but this one.
fn cut(client: &mut Client) {
    for of in ["normal", "pubsub"] {
        order(client, &["CLIENT", "KILL", "TYPE", of, "SKIPME", "yes"]);
    }
}

fn url_of(node: &Node) -> String {
    format!("redis://{}", node.addr())
}

#[tokio::test]
async fn rotated_password_counts_from_the_next_connection_on() {
    let recorder = Recorder::at(Level::WARN);
    let kept = || recorder.count(KEPT);
    let server = Node::builder(Server::Redis70).password("s3cret-1").start().expect("the server starts");
    let mut operator = server.client().expect("connects");
    let folder = Folder::new("password");
    folder.put("password", "s3cret-1\n");
    let topology = Topology::node(url_of(&server)).password_file(folder.file("password"));
    let builder = || patient(RedisManager::builder(topology.clone())).lease(LEASE).background_on(Handle::current());
    bounded(async {
        let manager = builder().connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        manager.inspect("held").await.expect("answered");

        // The password changes on both sides. Connections that are open stay.
        order(&mut operator, &["CONFIG", "SET", "requirepass", "s3cret-2"]);
        folder.put("password", "s3cret-2");
        works(&manager, "cfg").await;
        cut(&mut operator);
        works(&manager, "cfg").await;
        assert_eq!((guard.state(), kept()), (HoldState::Held, 0));

        // The file cannot be read or has no password. The last one stays in use, and the log says so once.
        for (told, text) in [(1, None), (1, Some("")), (1, Some("\n"))] {
            match text {
                Some(text) => folder.put("password", text),
                None => std::fs::remove_file(folder.file("password")).expect("removed"),
            }
            cut(&mut operator);
            works(&manager, "cfg").await;
            assert_eq!(kept(), told, "{:?}", recorder.lines());
        }

        // The server has the new password before the file, so no connection may log in until the file has it too.
        order(&mut operator, &["CONFIG", "SET", "requirepass", "s3cret-3"]);
        folder.put("password", "s3cret-2\r\n");
        cut(&mut operator);
        let error = builder().connect().await.map(drop).expect_err("the old one");
        assert_refused(&error, Refusal::Unauthenticated);
        assert!(!shown(&error).contains("s3cret"), "{error:?}");
        folder.put("password", "s3cret-3\r\n");
        until_renewed("a renewal by the new one", || guard.remaining()).await;
        manager.inspect("held").await.expect("on a connection of another kind");
        assert_eq!(guard.state(), HoldState::Held);
        works(&manager, "cfg").await;
        guard.release().await.expect("ours to the end");
    })
    .await;
    assert!(!format!("{topology:?} {:?} {:?}", builder(), recorder.lines()).contains("s3cret"));
}

async fn password_file_is_for_the_primary_and_for_sentinels_without_a_password_in_their_urls() -> Outcome {
    let servers = Sentinels::builder(Server::Redis70).password("s3cret").start()?;
    let [first, others @ ..] = servers.sentinels() else { panic!("no Sentinels") };
    // The environment has started, so its Sentinels need not answer clients without a password any more.
    ask(first, &["ACL", "SETUSER", "default", "resetpass", ">watch"]);
    for sentinel in others {
        ask(sentinel, &["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
    }
    let folder = Folder::new("sentinels");
    folder.put("password", "s3cret\n");
    let urls: Vec<_> =
        servers.urls().iter().map(|url| url.rsplit_once(['@', '/']).expect("a host").1.to_owned()).collect();
    let url = |(n, host): (usize, &String)| format!("redis://{}{host}", if n == 0 { ":watch@" } else { "" });
    let topology = Topology::sentinel(servers.primary_name(), urls.iter().enumerate().map(url));
    let topology = topology.password_file(folder.file("password"));
    let manager = soon("the connection", patient(RedisManager::builder(topology)).connect()).await?;
    works(&manager, "cfg").await;
    let health = manager.health().await?;
    assert!(health.nodes.iter().all(|node| node.is_reachable), "each Sentinel has let us in: {health:?}");
    Ok(())
}

#[tokio::test]
async fn rotated_password_counts_at_all_masters_of_a_quorum() {
    let master = || Node::builder(Server::Redis70).password("s3cret-1").start().expect("the server starts");
    let masters = [master(), master(), master()];
    let mut operators: Vec<Client> = masters.iter().map(|node| node.client().expect("connects")).collect();
    let folder = Folder::new("quorum");
    folder.put("password", "s3cret-1\n");
    let builder = || QuorumManager::builder(masters.iter().map(url_of)).password_file(folder.file("password"));
    let built = patient(builder()).restarts_are_delayed().lease(LEASE).background_on(Handle::current());
    assert!(!format!("{built:?}").contains("s3cret"));
    bounded(async {
        let manager = built.connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        folder.put("password", "s3cret-2\n");
        for operator in &mut operators {
            order(operator, &["CONFIG", "SET", "requirepass", "s3cret-2"]);
            cut(operator);
        }
        works(&manager, "cfg").await;
        until_renewed("a renewal by the new one", || guard.remaining()).await;
        manager.inspect("held").await.expect("on connections of another kind");
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.expect("ours to the end");
        let health = manager.health().await.expect("answered");
        assert!(health.nodes.iter().all(|node| node.is_reachable), "each master has let us in: {health:?}");
    })
    .await;
    // One of the masters has a password of its own in its URL.
    let own = masters.iter().map(|node| if node.port() == masters[1].port() { node.url() } else { url_of(node) });
    for refused in [
        builder().password_file(folder.file("missing")),
        QuorumManager::builder(own).password_file(folder.file("password")),
    ] {
        assert_eq!(option_of(&refused.build().map(drop).expect_err("it cannot work")), "password_file");
    }
}

#[test]
fn password_files_that_cannot_be_are_refused_when_the_manager_is_built() {
    let folder = Folder::new("refused");
    folder.put("password", "s3cret");
    folder.put("empty", "\n");
    std::fs::write(folder.file("bytes"), [0xff, b's', b'3']).expect("written");
    let node = |url: &str, file: &str| Topology::node(url).password_file(folder.file(file));
    let sentinels = Topology::sentinel("main", ["redis://:watch@127.0.0.1:1"]).password_file(folder.file("password"));
    RedisManager::builder(sentinels.clone()).build().expect("the Sentinel has one of its own");
    RedisManager::builder(sentinels.clone().primary_credentials("locks", "")).build().expect("a user");
    for topology in [
        node("redis://127.0.0.1:1", "missing"),
        node("redis://127.0.0.1:1", "empty"),
        node("redis://127.0.0.1:1", "bytes"),
        node("redis://:s3cret@127.0.0.1:1", "password"),
        Topology::cluster(["redis://:s3cret@127.0.0.1:1"]).password_file(folder.file("password")),
        sentinels.primary_credentials("locks", "s3cret"),
    ] {
        let error = RedisManager::builder(topology.clone()).build().map(drop).expect_err("it cannot work");
        assert_eq!(option_of(&error), "password_file");
        assert!(!format!("{topology:?} {}", shown(&error)).contains("s3"), "{error:?}");
    }
}

#[cfg(feature = "tls")]
mod certificates {
    use cluster_testenv::{Certificates, TlsClients};
    use redis_rwlock::Tls;

    use super::*;

    fn server() -> Node {
        Node::builder(Server::Redis70).tls(TlsClients::Required).start().expect("the server starts")
    }

    fn put(folder: &Folder, certificates: &Certificates) {
        folder.put("ca", certificates.ca_pem());
        folder.put("client", certificates.client_cert_pem());
        folder.put("key", certificates.client_key_pem());
    }

    #[tokio::test]
    async fn replaced_certificates_count_from_the_next_connection_on() {
        let recorder = Recorder::at(Level::WARN);
        let kept = || recorder.count(KEPT);
        let (server, other) = (server(), server());
        let mut operator = server.client().expect("connects");
        let folder = Folder::new("certificates");
        put(&folder, server.certificates());
        let tls = Tls::new().ca_file(folder.file("ca")).client_files(folder.file("client"), folder.file("key"));
        let builder = patient(RedisManager::builder(Topology::node(server.url()).tls(tls)));
        bounded(async {
            let manager = builder.lease(LEASE).background_on(Handle::current()).connect().await.expect("connects");
            let guard = manager.write("held").await.expect("granted");

            // First the key is new and its certificate is not. Then the authority is half written. The last good files
            // stay in use.
            for (name, text) in [("key", other.certificates().client_key_pem()), ("ca", "-----BEGIN CERTIFICATE-----")]
            {
                folder.put(name, text);
                cut(&mut operator);
                works(&manager, "cfg").await;
            }
            assert_eq!(kept(), 1, "{:?}", recorder.lines());

            // All sides get another authority, while connected and after a cut.
            let dir = other.certificates_dir();
            let path = |name: &str| dir.join(name).to_str().expect("a text").to_owned();
            let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
            let set = ["CONFIG", "SET", "tls-ca-cert-file", &ca, "tls-cert-file", &certificate, "tls-key-file", &key];
            order(&mut operator, &set);
            put(&folder, other.certificates());
            works(&manager, "cfg").await;
            cut(&mut operator);
            works(&manager, "cfg").await;
            until_renewed("a renewal with the new ones", || guard.remaining()).await;
            assert_eq!((guard.state(), kept()), (HoldState::Held, 1));
            guard.release().await.expect("ours to the end");
        })
        .await;
        assert!(!format!("{:?}", recorder.lines()).contains("PRIVATE"));
    }
}
