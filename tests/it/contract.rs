//! What every manager promises, whatever it keeps its locks on.

mod exclusion;
mod guards;
mod lease;
mod operate;
mod reentry;
mod tokens;
