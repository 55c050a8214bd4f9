//! The way of a request to its server, and what may happen to it there: each module has one reason to fail.
//!
//! The hazards are those that were measured on the client library's own cluster connection: requests that were run again
//! behind the caller's back, a shard's trouble that stalled all others, replies that went to the wrong caller, a frozen
//! primary that was talked to although another had taken its place, requests that failed while a slot moved.

pub(crate) mod field;
mod pretender;

mod answers;
mod connections;
mod conversions;
mod frozen;
mod holds;
mod lost_replies;
mod migration;
mod outages;
mod releases;
mod replaced;
mod rights;
mod stable_address;
mod suspects;
mod wakes;
