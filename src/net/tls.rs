//! TLS: checks certificates, and does the handshake with a server.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::base::error::{Error, Result};
use crate::base::topology::{ClientPem, Tls};

/// Settings for the TLS handshakes of a manager: its certificates, and the name that the certificate of a server must
/// contain.
#[derive(Clone)]
pub(super) struct Connector {
    connector: TlsConnector,
    /// Name that the certificate must contain instead of the host in the server's address.
    server_name: Option<ServerName<'static>>,
}

impl Connector {
    /// Creates a connector with these certificates. Refuses invalid certificates, with the reason.
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        // Uses the cryptography provider of the process if the application has installed one. Installs none itself,
        // because only the application should choose a provider for the whole process.
        let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(format!("the cryptography of the process cannot be used: {error}")))?
            .with_root_certificates(authorities(tls)?);
        let mut config = match &tls.client_pem {
            Some(ClientPem { certificates, key }) => {
                let chain = certificates_in(certificates, "the client's PEM")?;
                // The error of the library is left out, because it may quote the text in the place of the key.
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| invalid("the key's PEM has no key that can be read"))?;
                let checked = config.with_client_auth_cert(chain, key);
                checked.map_err(|error| invalid(format!("the client's certificate and key cannot be used: {error}")))?
            }
            None => config.with_no_client_auth(),
        };
        // No session is resumed. In a resumed session the server sends no certificate, but each connection must check a
        // certificate.
        config.resumption = Resumption::disabled();
        let server_name = tls.server_name.as_deref().map(name).transpose()?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server_name })
    }

    /// Does the TLS handshake with the server. `host` is the host in the server's address.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                let words = format!("no certificate can be for the host {host:?}: give its name to `Tls::server_name`");
                io::Error::new(io::ErrorKind::InvalidInput, words)
            })?,
        };
        self.connector.connect(name, stream).await
    }
}

fn authorities(tls: &Tls) -> Result<RootCertStore> {
    let Some(pem) = &tls.ca_pem else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(pem, "the authority's PEM")? {
        roots.add(certificate).map_err(|error| invalid(format!("no authority can be read: {error}")))?;
    }
    Ok(roots)
}

fn certificates_in(pem: &[u8], whose: &str) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| invalid(format!("{whose} has a certificate that cannot be read")))?;
    if certificates.is_empty() {
        return Err(invalid(format!("{whose} has no certificate")));
    }
    Ok(certificates)
}

fn name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| invalid(format!("the server name {name:?} is neither a DNS name nor an IP address")))
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("tls", reason)
}
