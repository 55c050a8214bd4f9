//! Harm that names, labels and URLs must not do, and rights that a user needs.

pub mod names;
mod rights;
mod secrets;
