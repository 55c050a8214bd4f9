//! Tests of the servers, and of all that can be done to them. One program has them all, because they wait more than they
//! compute.

mod caught_up;
mod cluster;
mod limit;
mod node;
mod program;
mod proxy;
