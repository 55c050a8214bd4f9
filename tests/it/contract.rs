//! What every manager promises, whatever it keeps its locks on.

mod exclusion;
mod flush;
mod guards;
mod lease;
mod limits;
mod operate;
mod queue;
mod reentry;
mod sharing;
mod tokens;
mod turns;
mod withdrawal;
