//! A certificate authority of our own, and what servers and clients need of it.

use std::{fmt, fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SigningKey,
};

use crate::{Error, Result};

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsClients {
    /// A client without a certificate of the authority is turned away.
    Required,
    /// A client needs no certificate, but one that it shows must be of the authority.
    Optional,
}

/// The certificates of one environment: of a private authority, and of a client that it vouches for. They were made when the
/// environment was, and nobody else trusts them.
///
/// The servers' own names 127.0.0.1 and localhost.
#[derive(Clone)]
pub struct Certificates {
    ca_pem: String,
    server_cert_pem: String,
    server_key_pem: String,
    client_cert_pem: String,
    client_key_pem: String,
}

impl Certificates {
    /// Makes new ones, for servers that are not started here. Each call makes another authority.
    ///
    /// # Panics
    ///
    /// When the system has no random numbers.
    #[must_use]
    pub fn make() -> Self {
        // The parameters are always the same, and making keys fails only when the system has no random numbers.
        Self::try_make().expect("certificates can be made")
    }

    fn try_make() -> std::result::Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, "cluster-testenv authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        // Nodes of a cluster are each other's clients.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let (server_cert_pem, server_key_pem) = leaf(&authority, "cluster-testenv server", &names, &both)?;
        let (client_cert_pem, client_key_pem) = leaf(&authority, "cluster-testenv client", &[], &both[1..])?;
        Ok(Self { ca_pem: authority.pem(), server_cert_pem, server_key_pem, client_cert_pem, client_key_pem })
    }

    /// The certificate of the authority, which a client is to trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The certificate that a server shows.
    #[must_use]
    pub fn server_cert_pem(&self) -> &str {
        &self.server_cert_pem
    }

    /// The key of [`Certificates::server_cert_pem`].
    #[must_use]
    pub fn server_key_pem(&self) -> &str {
        &self.server_key_pem
    }

    /// The certificate that a client may, or must, show.
    #[must_use]
    pub fn client_cert_pem(&self) -> &str {
        &self.client_cert_pem
    }

    /// The key of [`Certificates::client_cert_pem`].
    #[must_use]
    pub fn client_key_pem(&self) -> &str {
        &self.client_key_pem
    }

    /// Writes what a server needs into the folder, and returns the arguments that lead to it. What a client needs, as a program
    /// that wants files, is there too.
    pub(crate) fn server_args(&self, dir: &Path, clients: TlsClients) -> Result<Vec<String>> {
        let files = [
            ("--tls-ca-cert-file", "ca.pem", &self.ca_pem),
            ("--tls-cert-file", "server.pem", &self.server_cert_pem),
            ("--tls-key-file", "server.key", &self.server_key_pem),
        ];
        let write = |name: &str, pem: &str| {
            let path = dir.join(name);
            fs::write(&path, pem).map_err(Error::io(format!("writing {}", path.display())))?;
            Ok::<_, Error>(path.display().to_string())
        };
        write("client.pem", &self.client_cert_pem)?;
        write("client.key", &self.client_key_pem)?;
        let mut args = Vec::new();
        for (arg, name, pem) in files {
            args.extend([arg.to_owned(), write(name, pem)?]);
        }
        let clients = match clients {
            TlsClients::Required => "yes",
            TlsClients::Optional => "optional",
        };
        // Only a server in a cluster, or with a replica, has a use for the last two.
        let settings = [("--tls-auth-clients", clients), ("--tls-cluster", "yes"), ("--tls-replication", "yes")];
        args.extend(settings.into_iter().flat_map(|(arg, value)| [arg.to_owned(), value.to_owned()]));
        Ok(args)
    }
}

/// A certificate and its key.
fn leaf(
    authority: &CertifiedIssuer<'_, impl SigningKey>,
    name: &str,
    addresses: &[String],
    usages: &[ExtendedKeyUsagePurpose],
) -> std::result::Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(addresses)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, authority)?.pem(), key.serialize_pem()))
}

impl fmt::Debug for Certificates {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
