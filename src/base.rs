//! Parts that all other folders use. Examples are leases, keys, options, errors, metrics and the background runtime.
//!
//! Knows no other folder of this crate. Contains no lock, no store and no connection.

pub(crate) mod attempt;
pub(crate) mod background_runtime;
pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod cork;
pub(crate) mod credentials;
pub(crate) mod deadline_queue;
pub(crate) mod deadlock;
pub(crate) mod denied;
pub(crate) mod digits;
pub(crate) mod durability;
pub(crate) mod duration_text;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod in_doubt;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod metrics;
pub(crate) mod mode;
pub(crate) mod options;
pub(crate) mod panics;
pub(crate) mod process;
pub(crate) mod recalls;
pub(crate) mod reentry;
pub(crate) mod single_task;
pub(crate) mod sync;
pub(crate) mod throttle;
pub(crate) mod ticket;
pub(crate) mod topology;
