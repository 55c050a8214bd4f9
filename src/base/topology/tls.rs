//! Certificates and keys of TLS connections, as the user gives them.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};

/// Certificate authorities that TLS connections trust, and the client certificate. TLS needs the cargo feature `tls`,
/// which is on by default. Without it, `build` refuses a `rediss://` URL with [`InvalidOption`](Error::InvalidOption).
///
/// The certificate of a server is always checked. So `build` refuses a URL that ends with `#insecure`. The certificate
/// must be made for the host of the URL, or for the address that a cluster or Sentinels announce. With
/// [`server_name`](Tls::server_name), it must be made for that name instead.
///
/// * If certificates or keys are unusable, `build` fails with [`InvalidOption`](Error::InvalidOption), and nothing is
///   sent.
/// * If a server's certificate is not trusted or was made for another host, calls fail with
///   [`Refusal::Untrusted`](crate::Refusal::Untrusted) at once.
/// * If a server rejects the client certificate, or requires one and receives none, calls fail with
///   [`Refusal::Unauthenticated`](crate::Refusal::Unauthenticated) as soon as the server reports that.
/// * If only the server or only the client uses TLS, calls fail with [`Unreachable`](Error::Unreachable) after
///   [`unreachable_after`](crate::Builder::unreachable_after).
///
/// TLS uses the default `rustls::crypto::CryptoProvider` of the process, if the application has installed one before it
/// builds a manager. Otherwise it uses `ring`. This crate installs no provider.
///
/// By default, TLS trusts the public authorities that Mozilla trusts, and presents no client certificate.
/// [`Topology::tls`](crate::Topology::tls) has an example. `Debug` shows neither certificates nor keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    pub(crate) ca_pem: Option<Vec<u8>>,
    pub(crate) client_pem: Option<ClientPem>,
    /// File with the trusted authorities. `build` reads it, and each new connection reads it again.
    ca_file: Option<PathBuf>,
    client_files: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClientPem {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    /// Creates the default: TLS trusts the public authorities, and presents no client certificate.
    /// [`Topology::tls`](crate::Topology::tls) has an example with other certificates.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only the authorities in this PEM text. The text must contain at least one. See
    /// [`Topology::tls`](crate::Topology::tls).
    #[must_use]
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(certificates.into());
        self
    }

    /// Presents this client certificate to servers. The key belongs to the certificate, and has the format PKCS #8,
    /// PKCS #1 or SEC 1. Both arguments are PEM texts. If there are intermediate certificates, they follow the client
    /// certificate. See [`Topology::tls`](crate::Topology::tls).
    #[must_use]
    pub fn client_pem(mut self, certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_pem = Some(ClientPem { certificates: certificates.into(), key: key.into() });
        self
    }

    /// Trusts only the authorities in a PEM file. The file replaces a text given to [`ca_pem`](Tls::ca_pem). `build`
    /// fails with [`InvalidOption`](Error::InvalidOption) if it cannot read the file.
    ///
    /// `build` reads the file, and each new connection reads it again. So the next connection uses a new certificate,
    /// and open connections stay. Later, the file may be missing, half written, or not match the other files. Until it
    /// is valid again, new connections use the last valid certificates, and the log has one `warn` line. To replace the
    /// file in one step, rename another file to its name.
    ///
    /// ```no_run
    /// use redis_rwlock::{RedisManager, Tls, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let tls = Tls::new().ca_file("/etc/locks/ca.pem").client_files("/etc/locks/client.pem", "/etc/locks/client-key.pem");
    /// let manager = RedisManager::builder(Topology::node("rediss://10.0.0.1:6379").tls(tls)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Presents a client certificate to servers, as [`client_pem`](Tls::client_pem) does, but reads the certificate and
    /// its key from files. `build` and new connections read these files like the file of [`ca_file`](Tls::ca_file).
    #[must_use]
    pub fn client_files(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_files = Some((certificates.into(), key.into()));
        self
    }

    /// Sets the name for which the certificate of every server must be made. Without this call, the certificate must be
    /// made for the host of the URL, or for the address that a cluster or Sentinels announce. The manager also sends
    /// this name to the server in the TLS handshake (SNI). The name is a DNS name or an IP address. For anything else,
    /// `build` fails with [`InvalidOption`](Error::InvalidOption).
    ///
    /// Use this method if the certificates of the servers do not contain the addresses to which the manager connects.
    /// Examples are announced IP addresses, a tunnel, and a bastion host. All servers of the topology, including
    /// Sentinels, then need a certificate for this name. So each of these servers could impersonate another one. If
    /// each server has a name of its own, let the servers announce these names instead.
    ///
    /// ```no_run
    /// use redis_rwlock::{RedisManager, Tls, Topology};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// // Through a tunnel that ends on this machine.
    /// let tls = Tls::new().ca_file("/etc/locks/ca.pem").server_name("locks.internal.example.com");
    /// let manager = RedisManager::builder(Topology::node("rediss://127.0.0.1:16379").tls(tls)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Returns true if some certificates or keys are in files.
    pub(crate) fn has_files(&self) -> bool {
        self.ca_file.is_some() || self.client_files.is_some()
    }

    /// Reads the files into memory.
    pub(crate) fn read(mut self) -> Result<Self> {
        if let Some(path) = self.ca_file.take() {
            self.ca_pem = Some(read(&path)?);
        }
        if let Some((certificates, key)) = self.client_files.take() {
            self.client_pem = Some(ClientPem { certificates: read(&certificates)?, key: read(&key)? });
        }
        Ok(self)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    // If a configuration has only the certificate or only the key, the path of the other file is empty.
    let refused = |error| match path.as_os_str().is_empty() {
        true => "set both the client certificate and its key, or neither".to_owned(),
        false => format!("{} cannot be read: {error}", path.display()),
    };
    std::fs::read(path).map_err(|error| Error::invalid("tls", refused(error)))
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |is_set: bool| if is_set { "given" } else { "default" };
        let ca = shown(self.ca_pem.is_some() || self.ca_file.is_some());
        let client = shown(self.client_pem.is_some() || self.client_files.is_some());
        write!(f, "Tls {{ ca: {ca}, client: {client}")?;
        if let Some(name) = &self.server_name {
            write!(f, ", server_name: {name:?}")?;
        }
        f.write_str(" }")
    }
}
