//! Stand-in for TLS where the cargo feature `tls` is off. URLs that need TLS are refused before this code runs.

use crate::base::error::Result;
use crate::base::topology::Tls;

/// Connector that connects nothing.
#[derive(Clone)]
pub(super) struct Connector;

impl Connector {
    /// Accepts any certificates. Other code refuses certificates if no URL needs them.
    pub(super) fn new(_: &Tls) -> Result<Self> {
        Ok(Self)
    }
}
