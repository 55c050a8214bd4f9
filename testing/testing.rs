//! What judges the crate from the inside.

mod oracle;
mod simulation;
pub(crate) mod staged;
