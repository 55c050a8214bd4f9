//! Certificates that the user gives.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};

/// Trusted authorities of TLS connections, and the client certificate. TLS needs the cargo feature `tls`, which is on
/// by default. Without it, `build` refuses a `rediss://` URL with [`InvalidOption`](Error::InvalidOption).
///
/// Certificates are always checked. A certificate must be made for the host of the URL, or for the address that a
/// cluster or Sentinels announce, or for one [`server_name`](Tls::server_name). `rediss://…/#insecure` is refused.
///
/// * If certificates or keys are unusable, `build` fails with [`InvalidOption`](Error::InvalidOption), and nothing is
///   sent.
/// * If a server's certificate is not trusted or was made for another host, calls fail with
///   [`Refusal::Untrusted`](crate::Refusal::Untrusted) at once.
/// * If a server rejects our certificate, or requires one and gets none, calls fail with
///   [`Refusal::Unauthenticated`](crate::Refusal::Unauthenticated) as soon as the server reports that.
/// * If only the server or only the client uses TLS, calls fail with [`Unreachable`](Error::Unreachable) after
///   [`unreachable_after`](crate::Builder::unreachable_after).
///
/// TLS uses the default `rustls::crypto::CryptoProvider` of the process, if the application has installed one before it
/// builds a manager. Otherwise it uses `ring`. This crate installs no provider.
///
/// By default, TLS trusts the public authorities that Mozilla trusts, and shows no client certificate.
/// [`Topology::tls`](crate::Topology::tls) has an example. `Debug` shows neither certificates nor keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    ca_pem: Option<Vec<u8>>,
    client_pem: Option<ClientPem>,
    /// File that is read when the manager is built, and again for each new connection.
    ca_file: Option<PathBuf>,
    client_files: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClientPem {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    /// Trusts the public authorities, and shows no client certificate. [`Topology::tls`](crate::Topology::tls) has an
    /// example with others.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only the authorities in this PEM text, which has at least one. See
    /// [`Topology::tls`](crate::Topology::tls).
    #[must_use]
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(certificates.into());
        self
    }

    /// Shows this client certificate, and proves it with its key (PKCS #8, PKCS #1 or SEC 1). Both are PEM texts.
    /// Intermediate certificates follow the client certificate, if there are any. See
    /// [`Topology::tls`](crate::Topology::tls).
    #[must_use]
    pub fn client_pem(mut self, certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_pem = Some(ClientPem { certificates: certificates.into(), key: key.into() });
        self
    }

    /// Trusts the authorities in a PEM file, as [`ca_pem`](Tls::ca_pem) does with a text. The file replaces the text.
    /// `build` reads the file, and fails with [`InvalidOption`](Error::InvalidOption) if it cannot.
    ///
    /// Each new connection reads the file again. So a new certificate counts from the next connection on, and open
    /// connections stay. The file may be missing, half written, or not match the other files. Until it is valid again,
    /// new connections use the last valid certificates, and one `warn` line reports that. Replace the file by renaming
    /// another file to its name.
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

    /// Shows a client certificate, and proves it with its key, as [`client_pem`](Tls::client_pem) does. Both are in
    /// files, which are read like the file of [`ca_file`](Tls::ca_file).
    #[must_use]
    pub fn client_files(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_files = Some((certificates.into(), key.into()));
        self
    }

    /// Checks the certificate of every server for this name. Without this call, the certificate must have the host of
    /// the URL, or the address that a cluster or Sentinels announce. The manager also requests the certificate of this
    /// name from the server (SNI). The name is a DNS name or an IP address. For anything else, `build` fails with
    /// [`InvalidOption`](Error::InvalidOption).
    ///
    /// This is for servers whose addresses are not in their certificates: announced IP addresses, a tunnel, a bastion.
    /// All servers of the topology, including Sentinels, need a certificate with this name. So any server can
    /// impersonate any other. If each server has a name of its own, let the servers announce these names instead.
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
    // If a configuration has only one file of the pair, the path of the other file is empty.
    let refused = |error| match path.as_os_str().is_empty() {
        true => "set both the client certificate and its key, or neither".to_owned(),
        false => format!("{} cannot be read: {error}", path.display()),
    };
    std::fs::read(path).map_err(|error| Error::InvalidOption { option: "tls", reason: refused(error) })
}

#[cfg(feature = "tls")]
impl Tls {
    pub(crate) fn authorities(&self) -> Option<&[u8]> {
        self.ca_pem.as_deref()
    }

    pub(crate) fn checked_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    pub(crate) fn client(&self) -> Option<&ClientPem> {
        self.client_pem.as_ref()
    }
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
