//! Tests of the servers, and of all that can be done to them. One program has them all, because they wait more than they
//! compute.

mod caught_up;
mod changes;
mod cluster;
mod faults;
mod limit;
mod masters;
mod node;
mod program;
mod proxy;
mod sentinel;
mod tls;
