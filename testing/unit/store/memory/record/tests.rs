mod courses;
mod rests;
mod tickets;

use super::*;
use crate::store::{Converted, IfTaken};

const T0_US: u64 = 1_700_000_000_000_000;

fn at(ms: u64) -> ServerTime {
    ServerTime::from_micros(T0_US + ms * 1000)
}

fn id(n: u64) -> AcquisitionId {
    AcquisitionId::new("0123456789abcdef0123456789abcdef", n, "")
}
