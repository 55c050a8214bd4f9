//! Stand-in for TLS where the cargo feature `tls` is off: URLs that need it are refused before this is used.

use crate::base::error::Result;
use crate::base::topology::Tls;

/// Connector that connects nothing.
#[derive(Clone)]
pub(super) struct Connector;

impl Connector {
    /// Takes any certificates. They are refused elsewhere unless URLs need them.
    pub(super) fn new(_: &Tls) -> Result<Self> {
        Ok(Self)
    }
}
