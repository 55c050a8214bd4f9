//! Replacement for the module `tls` if the cargo feature `tls` is off. URLs that need TLS are refused before this code
//! runs.

use crate::base::error::Result;
use crate::base::topology::Tls;

/// Placeholder for the type that does TLS handshakes. It does nothing.
#[derive(Clone)]
pub(super) struct Connector;

impl Connector {
    /// Accepts any certificates without a check. Certificates without a URL that needs TLS are refused by
    /// [`address`](crate::net::address).
    pub(super) fn new(_: &Tls) -> Result<Self> {
        Ok(Self)
    }
}
