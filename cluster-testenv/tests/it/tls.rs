//! Tests servers that speak TLS, and the clients that they accept.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use cluster_testenv::{Certificates, Cluster, Error, Node, Sentinels, Server, TlsClients};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

const BOUND: Duration = Duration::from_secs(10);

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Sends one PING over TLS to the server of a URL, with a client certificate or without one.
fn ping(url: &str, ca_pem: &str, client: Option<&Certificates>) -> io::Result<String> {
    let addr = url.strip_prefix("rediss://").unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(ca_pem)).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match client {
        Some(certificates) => {
            let key = PrivateKeyDer::from_pem_slice(certificates.client_key_pem().as_bytes()).unwrap();
            config.with_client_auth_cert(vec![der(certificates.client_cert_pem())], key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(BOUND))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn client_without_a_certificate_is_let_in_only_where_it_is_optional() {
    for (clients, is_let_in) in [(TlsClients::Required, false), (TlsClients::Optional, true)] {
        let node = Node::builder(Server::Redis70).tls(clients).start().unwrap();
        let certificates = node.certificates();
        assert_eq!(ping(&node.url(), certificates.ca_pem(), Some(certificates)).unwrap(), "+PONG\r\n");
        let without = ping(&node.url(), certificates.ca_pem(), None);
        assert_eq!(without.is_ok(), is_let_in, "{without:?}");
        // The library itself connects without TLS.
        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
        node.restart().unwrap();
        assert_eq!(ping(&node.url(), node.certificates().ca_pem(), Some(node.certificates())).unwrap(), "+PONG\r\n");
    }
}

#[test]
fn certificates_of_another_environment_are_worth_nothing() {
    let [node, other] = [(); 2].map(|()| Node::builder(Server::Redis70).tls(TlsClients::Optional).start().unwrap());
    let (own, foreign) = (node.certificates(), other.certificates());
    let error = ping(&node.url(), foreign.ca_pem(), Some(own)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "the client does not trust the server: {error}");
    assert!(ping(&node.url(), own.ca_pem(), Some(foreign)).is_err(), "the server does not trust the client");
}

#[test]
fn secrets_are_not_in_debug() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Required).start().unwrap();
    assert!(!format!("{node:?}").contains("PRIVATE KEY"));
}

#[test]
fn cluster_speaks_tls_with_clients_and_among_its_nodes() {
    let cluster = Cluster::builder(Server::Redis70).tls(TlsClients::Required).start().unwrap();
    let certificates = cluster.certificates();
    for url in cluster.urls() {
        assert_eq!(ping(&url, certificates.ca_pem(), Some(certificates)).unwrap(), "+PONG\r\n");
    }
    for replica in &cluster.nodes()[3..] {
        let tls = replica.command(&["CONFIG", "GET", "tls-replication"]).unwrap();
        assert_eq!(tls.array().unwrap()[1].text().unwrap(), "yes");
    }
    let slot = cluster.keyslot("a");
    let old = cluster.primary_of_slot(slot);
    let new = cluster.failover(old).unwrap();
    assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
    cluster.wait_ok().unwrap();
    assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
    cluster
        .migrate_slot(slot, cluster.primaries().into_iter().find(|node| node.port() != new.port()).unwrap())
        .unwrap();
    cluster.wait_ok().unwrap();
}

#[test]
fn proxy_before_tls_passes_it_and_can_cut_it() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Required).proxied().start().unwrap();
    let ask = || ping(&node.url(), node.certificates().ca_pem(), Some(node.certificates()));
    assert_eq!(ask().unwrap(), "+PONG\r\n");
    node.proxy().refuse();
    assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    node.proxy().heal();
    assert_eq!(ask().unwrap(), "+PONG\r\n");
}

#[test]
fn server_without_tls_is_named() {
    for server in [Server::Redis82, Server::Valkey81, Server::Valkey91, Server::Redis62] {
        let error = Node::builder(server).tls(TlsClients::Required).start().unwrap_err();
        let is_named = matches!(&error, Error::Unsupported(what) if what.contains("without TLS") && what.contains(&server.to_string()));
        assert!(is_named, "{error:?}");
    }
}

#[test]
fn sentinels_speak_tls_with_clients_and_with_those_that_they_watch() {
    let sentinels = Sentinels::builder(Server::Redis70).tls(TlsClients::Required).start().unwrap();
    let certificates = sentinels.certificates();
    for url in sentinels.urls().into_iter().chain(sentinels.nodes().iter().map(Node::url)) {
        assert_eq!(ping(&url, certificates.ca_pem(), Some(certificates)).unwrap(), "+PONG\r\n");
        assert!(ping(&url, certificates.ca_pem(), None).is_err(), "{url}");
    }
    let named = |node: &Node| {
        let word = sentinels.sentinels()[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.primary_name()]);
        let port = word.unwrap().array().unwrap()[1].text().unwrap().into_owned();
        node.url().ends_with(&format!(":{port}"))
    };
    let old = sentinels.primary();
    assert!(named(old), "by the port that speaks TLS");
    let new = sentinels.failover().unwrap();
    assert!(named(new) && !named(old));
    sentinels.wait_ok().unwrap();
}
