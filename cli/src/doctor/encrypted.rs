//! Streams with TLS, with the certificates and the server name from the settings. The library has checked these before.

use std::io;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::settings::Settings;

pub(super) async fn connect(host: &str, port: u16, settings: &Settings) -> io::Result<TlsStream<TcpStream>> {
    let name = settings.text("TLS_SERVER_NAME").unwrap_or(host);
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config(settings)?));
    connector.connect(name, TcpStream::connect((host, port)).await?).await
}

fn config(settings: &Settings) -> io::Result<ClientConfig> {
    let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(authorities(settings)?);
    let (certificate, key) = (settings.path("TLS_CLIENT_CERTIFICATE"), settings.path("TLS_CLIENT_KEY"));
    match certificate.zip(key) {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|_| io::Error::other("the key in RWLOCK_TLS_CLIENT_KEY cannot be read"))?;
            config.with_client_auth_cert(certificates(certificate)?, key).map_err(io::Error::other)
        }
        None => Ok(config.with_no_client_auth()),
    }
}

fn authorities(settings: &Settings) -> io::Result<RootCertStore> {
    let Some(path) = settings.path("TLS_CA") else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    Ok(roots)
}

fn certificates(path: &std::path::Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).map_err(io::Error::other)?;
    all.collect::<Result<_, _>>().map_err(io::Error::other)
}
