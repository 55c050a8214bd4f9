//! Credentials that change: users and secrets, and the providers that return them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "streaming-credentials")]
use redis::StreamingCredentialsProvider;

/// User and secret for a login, as a provider returns them to [`Topology::credentials`](crate::Topology::credentials).
///
/// `Debug` shows the user, and not the secret.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redis_rwlock::Credentials;
///
/// let token = Credentials::new("locks", "s3cret").valid_for(Duration::from_secs(15 * 60));
/// assert_eq!(token.user(), "locks");
/// assert!(!format!("{token:?}").contains("s3cret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    secret: String,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// Returns credentials whose end is not known. An empty user means the server's default user. The secret is a
    /// password or a token. Neither of them is percent-encoded.
    pub fn new(user: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { user: user.into(), secret: secret.into(), valid_for: None }
    }

    /// Sets the time for which the credentials are valid from now on. The manager asks the provider again after 0.8 of
    /// this time, and sends the new credentials on its open connections. Without this call, the manager asks the
    /// provider only when it opens a connection. A time below 125 ms counts as 125 ms.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }

    /// Returns the name of the user. It is empty for the server's default user.
    pub fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn validity(&self) -> Option<Duration> {
        self.valid_for
    }

    /// Returns true if both log in as the same user with the same secret.
    pub(crate) fn is_same_login(&self, other: &Self) -> bool {
        self.user == other.user && self.secret == other.secret
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// Answer of a provider: credentials, or the reason why there are none.
pub(crate) type ProviderAnswer = Result<Credentials, Box<dyn std::error::Error + Send + Sync>>;

/// Function of the user that returns credentials. The type parameter of its future is erased.
pub(crate) trait CredentialsFunction: Send + Sync {
    /// Calls the function. The future stays on the thread that called it.
    fn call(&self) -> Pin<Box<dyn Future<Output = ProviderAnswer> + '_>>;
}

impl<F: AsyncFn() -> ProviderAnswer + Send + Sync> CredentialsFunction for F {
    fn call(&self) -> Pin<Box<dyn Future<Output = ProviderAnswer> + '_>> {
        Box::pin(self())
    }
}

/// Provider that the user gave to a topology. Two values are equal if they are clones of one value.
#[derive(Clone)]
pub(crate) enum Provider {
    Function(Arc<dyn CredentialsFunction>),
    #[cfg(feature = "streaming-credentials")]
    Stream(Arc<dyn StreamingCredentialsProvider>),
}

impl Provider {
    pub(crate) fn function(provider: impl AsyncFn() -> ProviderAnswer + Send + Sync + 'static) -> Self {
        Self::Function(Arc::new(provider))
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Function(one), Self::Function(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "streaming-credentials")]
            (Self::Stream(one), Self::Stream(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "streaming-credentials")]
            _ => false,
        }
    }
}

impl Eq for Provider {}
