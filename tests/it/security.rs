//! What names, labels and URLs must not do, and what a user must be allowed to do.

mod names;
mod rights;
mod secrets;
