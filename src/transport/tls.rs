//! What connections with TLS need: certificates that were looked at, and a provider of cryptography.

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};
use crate::topology::{ClientPem, Tls};

/// Gives certificates to all these, or says what is wrong with them.
pub(super) fn equip(infos: Vec<ConnectionInfo>, tls: &Tls) -> Result<Vec<ConnectionInfo>> {
    choose_provider();
    if *tls == Tls::new() {
        return Ok(infos);
    }
    check(tls)?;
    let client_tls = tls
        .client()
        .map(|client| ClientTlsConfig { client_cert: client.certificates.clone(), client_key: client.key.clone() });
    let certificates = TlsCertificates { client_tls, root_cert: tls.authorities().map(<[u8]>::to_vec) };
    let equipped = infos.into_iter().map(|info| {
        let client = Client::build_with_tls(info, certificates.clone()).map_err(|_| invalid("they are not usable"))?;
        Ok(client.get_connection_info().clone())
    });
    equipped.collect()
}

/// The library takes the provider of the process, and panics where there is none and two could be it.
fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // It fails when somebody else has installed one meanwhile, which will do.
        drop(ring::default_provider().install_default());
    }
}

/// Does what a connection will do, for what it says of the certificates: the library takes an empty list of authorities.
pub(super) fn check(tls: &Tls) -> Result<()> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = tls.authorities() {
        for certificate in certificates_in(pem, "the authority's PEM")? {
            roots.add(certificate).map_err(|error| invalid(format!("no authority can be read: {error}")))?;
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    if let Some(ClientPem { certificates, key }) = tls.client() {
        let chain = certificates_in(certificates, "the client's PEM")?;
        // The error may quote what it found where a key should be.
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|_| invalid("the key's PEM has no key that can be read"))?;
        let checked = config.with_client_auth_cert(chain, key);
        checked.map_err(|error| invalid(format!("the client's certificate and key cannot be used: {error}")))?;
    }
    Ok(())
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

fn invalid(reason: impl Into<String>) -> Error {
    Error::InvalidOption { option: "tls", reason: reason.into() }
}
