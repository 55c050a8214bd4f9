//! In place of TLS where the cargo feature `tls` is off: URLs that need it are refused before this is used.

use crate::error::Result;
use crate::topology::Tls;

/// Nothing that could connect.
#[derive(Clone)]
pub(super) struct Connector;

impl Connector {
    /// Takes any certificates: without URLs that need them they are refused elsewhere.
    pub(super) fn new(_: &Tls) -> Result<Self> {
        Ok(Self)
    }
}
