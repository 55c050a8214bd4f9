//! Private certificate authority, and the certificates of servers and clients.

use std::{fmt, fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SigningKey,
};

use crate::{Error, Result};

/// Requirement for a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsClients {
    /// The server rejects a client without a certificate of the authority.
    Required,
    /// A client needs no certificate. If it shows a certificate, the certificate must be of the authority.
    Optional,
}

/// Certificates of one environment, for a private authority, the servers and a client. They are created together with
/// the environment, and no other program trusts them.
///
/// The names of the servers are 127.0.0.1 and localhost.
#[derive(Clone)]
pub struct Certificates {
    ca_pem: String,
    server_cert_pem: String,
    server_key_pem: String,
    client_cert_pem: String,
    client_key_pem: String,
}

impl Certificates {
    /// Makes new certificates, for servers that this library does not start. Each call makes another authority.
    ///
    /// # Panics
    ///
    /// When the system has no random numbers.
    pub fn make() -> Self {
        // The parameters are always the same. The creation of keys fails only if the system has no random numbers.
        Self::try_make().expect("certificates can be made")
    }

    fn try_make() -> std::result::Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, "cluster-testenv authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        // The nodes of a cluster are also clients of the other nodes.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let (server_cert_pem, server_key_pem) = leaf(&authority, "cluster-testenv server", &names, &both)?;
        let (client_cert_pem, client_key_pem) = leaf(&authority, "cluster-testenv client", &[], &both[1..])?;
        Ok(Self { ca_pem: authority.pem(), server_cert_pem, server_key_pem, client_cert_pem, client_key_pem })
    }

    /// Certificate of the authority, which a client must trust.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Certificate that a server shows.
    pub fn server_cert_pem(&self) -> &str {
        &self.server_cert_pem
    }

    /// Key of [`Certificates::server_cert_pem`].
    pub fn server_key_pem(&self) -> &str {
        &self.server_key_pem
    }

    /// Certificate that a client may, or must, show.
    pub fn client_cert_pem(&self) -> &str {
        &self.client_cert_pem
    }

    /// Key of [`Certificates::client_cert_pem`].
    pub fn client_key_pem(&self) -> &str {
        &self.client_key_pem
    }

    /// Writes the files of a server into the folder, and returns the arguments that name them. The folder also gets the
    /// files of a client, for programs that want files.
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
        // Only a server in a cluster, or with a replica, uses the last two arguments.
        let settings = [("--tls-auth-clients", clients), ("--tls-cluster", "yes"), ("--tls-replication", "yes")];
        args.extend(settings.into_iter().flat_map(|(arg, value)| [arg.to_owned(), value.to_owned()]));
        Ok(args)
    }
}

/// Makes a certificate and its key.
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
    /// Writes no keys, because logs must not contain them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
