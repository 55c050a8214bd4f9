//! Route of a request to its server, and the faults on the route. Each module tests one kind of fault.
//!
//! The hazards were measured on the client library's own cluster connection:
//! * the library ran a request again, and the caller did not know;
//! * the trouble of one shard stalled all others;
//! * a reply went to the wrong caller;
//! * the library still asked a frozen primary after another had taken its place;
//! * requests failed while a slot moved.

pub mod field;
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
mod upgrade;
mod wakes;
