//! Matchers of requests.

use std::{fmt, sync::Arc};

/// Command that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    args: Vec<Vec<u8>>,
}

impl Request {
    pub(super) fn new(args: Vec<Vec<u8>>) -> Self {
        Self { args }
    }

    /// Name of the command in capitals, such as `EVALSHA`.
    pub fn name(&self) -> String {
        self.args.first().map(|name| String::from_utf8_lossy(name).to_ascii_uppercase()).unwrap_or_default()
    }

    /// Returns true if the request calls a script or a function.
    #[must_use]
    pub fn is_script(&self) -> bool {
        let names = ["EVALSHA", "EVAL", "FCALL", "EVALSHA_RO", "EVAL_RO", "FCALL_RO"];
        self.args.first().is_some_and(|name| names.iter().any(|script| name.eq_ignore_ascii_case(script.as_bytes())))
    }

    /// Command and arguments, as the client sent them.
    pub fn args(&self) -> &[Vec<u8>] {
        &self.args
    }

    /// Returns true if one of the arguments contains the bytes.
    #[must_use]
    pub fn contains(&self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        bytes.is_empty() || self.args.iter().any(|arg| arg.windows(bytes.len()).any(|part| part == bytes))
    }
}

/// Selects requests. A text or bytes select the requests that have them in an argument. Examples are the digest of a
/// script, an id, or a key.
///
/// ```
/// use cluster_testenv::Matcher;
///
/// let one: Matcher = "a key".into();
/// let other = Matcher::command("EVALSHA").and("a key").and(Matcher::new(|request| request.args().len() > 3));
/// ```
#[derive(Clone)]
pub struct Matcher(Arc<dyn Fn(&Request) -> bool + Send + Sync>);

impl Matcher {
    /// Matches the requests for which `matches` returns true.
    pub fn new(matches: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(matches))
    }

    /// Matches all requests.
    pub fn any() -> Self {
        Self::new(|_| true)
    }

    /// Matches the requests with this command, in capitals or not.
    pub fn command(name: impl Into<String>) -> Self {
        let name = name.into().to_ascii_uppercase();
        Self::new(move |request| request.name() == name)
    }

    /// Matches the requests with the bytes in an argument.
    pub fn containing(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::new(move |request| request.contains(&bytes))
    }

    /// Matches the requests that both matchers match.
    pub fn and(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        Self::new(move |request| self.matches(request) && other.matches(request))
    }

    pub(super) fn matches(&self, request: &Request) -> bool {
        (self.0)(request)
    }
}

impl Matcher {
    /// Address of the matcher. Copies of a matcher share it, and no other existing matcher has it.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>().addr()
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}

/// Matches requests with these bytes in an argument.
impl<T: AsRef<[u8]>> From<T> for Matcher {
    fn from(bytes: T) -> Self {
        Self::containing(bytes.as_ref())
    }
}
