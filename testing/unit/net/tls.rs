//! Servers for tests behind TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use cluster_testenv::Certificates;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::base::topology::Tls;

/// Returns the settings of a server that shows these certificates.
pub(in crate::net) fn config(certificates: &Certificates) -> Arc<ServerConfig> {
    config_of(certificates, &[&version::TLS13, &version::TLS12])
}

/// Returns the settings of a server that speaks TLS 1.2 and nothing newer: its handshake takes two round trips.
pub(in crate::net) fn old_config(certificates: &Certificates) -> Arc<ServerConfig> {
    config_of(certificates, &[&version::TLS12])
}

fn config_of(certificates: &Certificates, versions: &[&'static SupportedProtocolVersion]) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(certificates.server_cert_pem().as_bytes());
    let chain = chain.collect::<Result<_, _>>().expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(certificates.server_key_pem().as_bytes()).expect("PEM");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("they are supported")
        .with_no_client_auth()
        .with_single_cert(chain, key);
    Arc::new(config.expect("they fit"))
}

/// Returns the settings of a client that trusts these certificates.
pub(in crate::net) fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().ca_pem(certificates.ca_pem())
}

/// Does the TLS handshake as the server.
pub(in crate::net) async fn accept(config: &Arc<ServerConfig>, stream: TcpStream) -> TlsStream<TcpStream> {
    TlsAcceptor::from(Arc::clone(config)).accept(stream).await.expect("a handshake")
}

/// Starts a proxy with TLS before a server without it, and returns its address.
pub(in crate::net) async fn before(server: SocketAddr, config: Arc<ServerConfig>) -> SocketAddr {
    let (listener, addr) = super::listening().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let config = Arc::clone(&config);
            tokio::spawn(async move {
                let mut plain = TcpStream::connect(server).await.expect("it listens");
                let mut encrypted = accept(&config, stream).await;
                // The end of one connection is the end of both.
                drop(tokio::io::copy_bidirectional(&mut encrypted, &mut plain).await);
            });
        }
    });
    addr
}
