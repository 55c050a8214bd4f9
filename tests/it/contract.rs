//! Promises of every manager, with each kind of server.

mod denied;
mod exclusion;
mod flush;
mod groups;
mod guards;
mod lease;
mod limits;
mod notes;
mod operate;
mod queue;
mod reentry;
mod rests;
mod sharing;
mod tickets;
mod tokens;
mod turns;
mod withdrawal;
