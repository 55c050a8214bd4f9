//! Passwords and certificates. Secrets in files are read again for each new connection, because operators replace these
//! files while services run.
//!
//! A file may be unreadable or invalid, for example while an operator replaces it. In that case the last valid secret
//! stays in use.
//!
//! Threads for blocking work read the files. If the file system hangs, each secret delays a connection by at most
//! [`MAX_READ`], and blocks at most one thread.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionInfo, RedisConnectionInfo};
use tokio::sync::Semaphore;

use crate::base::background_runtime::BackgroundRuntime;
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::panics::catch_panic;
use crate::base::topology::{Access, Tls};
use crate::net::address::with_credentials;
use crate::net::fault::Answer;
use crate::net::issuer::{Issued, Issuer};
use crate::net::node::DialFault;
use crate::net::tls::Connector;

/// Limit for the time that a connection waits until one of its secrets is read. The time limits of the steps of a
/// connection begin after that.
const MAX_READ: Duration = Duration::from_secs(1);

/// Passwords and certificates of one manager.
pub(crate) struct Secrets {
    password: Option<Kept<PathBuf, String>>,
    issuer: Option<Arc<Issuer>>,
    tls: Kept<Tls, Certificates>,
}

/// Settings for one login.
pub(super) struct Login {
    pub(super) info: ConnectionInfo,
    /// Issuer of the credentials in these settings, and their number. `None` if no provider has returned them.
    pub(super) issuer: Option<(Arc<Issuer>, u64)>,
}

/// Certificates that were read last.
struct Certificates {
    tls: Tls,
    /// Connector that uses these certificates. It is created when the first connection needs it, because most managers
    /// do not use TLS.
    connector: Option<Connector>,
}

impl Certificates {
    fn read(tls: &Tls) -> Result<Self> {
        Ok(Self { tls: tls.clone().read()?, connector: None })
    }

    /// Refuses certificates with which no connection could be opened. While an operator replaces the files, the key may
    /// be new and the certificate still old.
    fn usable(self) -> Result<Self> {
        let connector = Some(Connector::new(&self.tls)?);
        Ok(Self { connector, ..self })
    }
}

/// Secret that was read last, with the place from which it is read.
struct Kept<Place, Secret> {
    from: Place,
    read: Arc<Mutex<Secret>>,
    /// Semaphore with one permit. The thread that reads the secret holds this permit.
    reading: Arc<Semaphore>,
    /// True if the log has reported that the secret cannot be read. Cleared when it can be read again.
    is_told: AtomicBool,
}

impl Secrets {
    /// Reads the files of the certificates and of the password for the first time. The provider of credentials is not
    /// asked yet.
    pub(super) fn new(tls: &Tls, access: &Access, background_runtime: &BackgroundRuntime) -> Result<Self> {
        access.check()?;
        let password = match &access.password_file {
            Some(path) => Some(Kept::new(path.clone(), read_password(path)?)),
            None => None,
        };
        let issuer = access.provider.as_ref().map(|provider| Arc::new(Issuer::new(provider, background_runtime)));
        Ok(Self { password, issuer, tls: Kept::new(tls.clone(), Certificates::read(tls)?) })
    }

    /// Refuses a second user or password. If there is a provider, the URLs of the servers must contain neither of them.
    pub(super) fn check_provider(&self, infos: &[ConnectionInfo]) -> Result<()> {
        let has_login = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            settings.password().is_some() || settings.username().is_some()
        };
        if self.issuer.is_some() && infos.iter().any(has_login) {
            let reason = "the URL has a user or a password as well: leave one of them out";
            return Err(Error::invalid("credentials", reason));
        }
        Ok(())
    }

    /// Refuses a second password. If there is a password file, the URLs of the servers must not contain a password.
    pub(super) fn check(&self, infos: &[ConnectionInfo]) -> Result<()> {
        self.check_provider(infos)?;
        if self.password.is_some() && infos.iter().any(|info| info.redis_settings().password().is_some()) {
            return Err(Error::invalid("password_file", "the URL has a password as well: leave one of them out"));
        }
        Ok(())
    }

    /// Returns the certificates and the keys that were read last.
    pub(super) fn certificates(&self) -> Tls {
        self.tls.read.lock().tls.clone()
    }

    /// Returns the connector for TLS, which uses the certificates that were read last.
    pub(super) fn connector(&self) -> Result<Connector> {
        let certificates = &mut *self.tls.read.lock();
        match &certificates.connector {
            Some(connector) => Ok(connector.clone()),
            None => Ok(certificates.connector.insert(Connector::new(&certificates.tls)?).clone()),
        }
    }

    /// Returns the settings for a login to a server that stores locks. Reads the files again, and asks the provider for
    /// at most `limit`. Fails if the provider has never returned credentials.
    pub(super) async fn login(&self, info: &ConnectionInfo, limit: Duration) -> Result<Login, DialFault> {
        self.read_files().await;
        match &self.issuer {
            Some(issuer) => {
                let issued = issuer.for_dial(limit).await;
                let issued = issued.map_err(|reason| DialFault::NotSent(Some(Answer::error(reason))))?;
                Ok(Login::of(info, issuer, &issued))
            }
            None => Ok(Login { info: self.with_password(info.clone()), issuer: None }),
        }
    }

    /// Returns settings with newer credentials, after a server has refused the credentials of `refused`. Returns `None`
    /// if no provider has newer ones within twice the limit.
    pub(super) async fn login_after_refusal(&self, refused: &Login, limit: Duration) -> Option<Login> {
        let (issuer, number) = refused.issuer.as_ref()?;
        let issued = issuer.after_refusal(*number, limit).await?;
        Some(Login::of(&refused.info, issuer, &issued))
    }

    /// Reads the files again. Returns the settings for a login to a Sentinel. If its URL contains a password, this
    /// password is used instead of the one in the file. The credentials of a provider are not for Sentinels.
    pub(super) async fn sentinel_login(&self, info: &ConnectionInfo) -> ConnectionInfo {
        self.read_files().await;
        if info.redis_settings().password().is_some() { info.clone() } else { self.with_password(info.clone()) }
    }

    /// Returns true if the credentials come from a provider, so that later credentials may differ.
    pub(super) fn has_provider(&self) -> bool {
        self.issuer.is_some()
    }

    async fn read_files(&self) {
        if let Some(password) = &self.password {
            password.read_again(|path| read_password(path)).await;
        }
        if self.tls.from.has_files() {
            self.tls.read_again(|tls| Certificates::read(tls)?.usable()).await;
        }
    }

    fn with_password(&self, info: ConnectionInfo) -> ConnectionInfo {
        let Some(password) = &self.password else { return info };
        let settings: RedisConnectionInfo = info.redis_settings().clone().set_password(&*password.read.lock());
        info.set_redis_settings(settings)
    }
}

impl Login {
    fn of(info: &ConnectionInfo, issuer: &Arc<Issuer>, issued: &Issued) -> Self {
        let info = with_credentials(info.clone(), Some(&issued.credentials));
        Self { info, issuer: Some((Arc::clone(issuer), issued.number)) }
    }
}

impl<Place: Clone + Send + Sync + 'static, Secret: Send + 'static> Kept<Place, Secret> {
    fn new(from: Place, read: Secret) -> Self {
        let reading = Arc::new(Semaphore::new(1));
        Self { from, read: Arc::new(Mutex::new(read)), reading, is_told: AtomicBool::new(false) }
    }

    /// Reads the secret again. If this fails, the old secret stays in use, and the log reports the failure once.
    async fn read_again(&self, read: impl FnOnce(&Place) -> Result<Secret> + Send + 'static) {
        let (from, last, turn) = (self.from.clone(), Arc::clone(&self.read), Arc::clone(&self.reading));
        let reading = async {
            // The semaphore is never closed, so this cannot fail. The thread keeps the permit as long as it reads, even
            // after the time limit.
            let turn = turn.acquire_owned().await;
            let reading = tokio::task::spawn_blocking(move || {
                // The permit is held until the secret is stored. Otherwise a slow thread could replace a newer secret
                // by an older one.
                let _turn = turn;
                read(&from).map(|read| *last.lock() = read)
            });
            reading.await
        };
        let error = match tokio::time::timeout(MAX_READ, reading).await {
            Ok(Ok(Ok(()))) => return self.is_told.store(false, Ordering::Relaxed),
            Ok(Ok(Err(Error::InvalidOption { option, reason }))) => format!("{option}: {reason}"),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_)) => "it could not be read".to_owned(),
            Err(_) => format!("it could not be read within {MAX_READ:?}"),
        };
        if !self.is_told.swap(true, Ordering::Relaxed) {
            catch_panic(|| events::secret_kept(&error));
        }
    }
}

/// Reads a password from a file. Removes a line break at the end of the file, because editors add one.
fn read_password(path: &Path) -> Result<String> {
    let invalid = |reason: &str| Error::invalid("password_file", format!("{} {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        // The error of the standard library has a fixed text here, so no part of the file appears in the message.
        io::ErrorKind::InvalidData => invalid("is not UTF-8"),
        _ => invalid(&format!("cannot be read: {error}")),
    })?;
    let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() {
        return Err(invalid("is empty"));
    }
    Ok(password.to_owned())
}
