//! Harm that names, labels and URLs must not do, and rights that a user needs.

mod names;
mod rights;
mod secrets;
