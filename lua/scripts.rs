//! Texts of the scripts in the form that servers get. The crate, its tests and its benches take them from here.
#![allow(dead_code)] // some files that include this use only a part of it

/// Queue of the hash scheme: a part of several scripts that has the waiters and the slow path.
const QUEUE: &str = include_str!("hash/queue.lua");
/// Queue of the two-key scheme: a part of several scripts.
const TWO_KEY_QUEUE: &str = include_str!("two_key/queue.lua");
/// Line of a script that the queue replaces. The fast path comes before this line, since it must not pay for functions
/// that it does not call.
const PLACE: &str = "--@queue";

/// Returns `script` with `queue` in the place of that line. The text has `LEN` bytes.
const fn with_queue<const LEN: usize>(script: &str, queue: &str) -> [u8; LEN] {
    let (script, place, queue) = (script.as_bytes(), PLACE.as_bytes(), queue.as_bytes());
    let at = position(script, place);
    let mut text = [0; LEN];
    let mut n = 0;
    while n < LEN {
        text[n] = if n < at {
            script[n]
        } else if n < at + queue.len() {
            queue[n - at]
        } else {
            script[n - queue.len() + place.len()]
        };
        n += 1;
    }
    text
}

const fn position(text: &[u8], part: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let mut same = 0;
        while same < part.len() && text[at + same] == part[same] {
            same += 1;
        }
        if same == part.len() {
            return at;
        }
        at += 1;
    }
}

macro_rules! with_queue {
    ($script:expr, $queue:expr) => {{
        const TEXT: &[u8] = &with_queue::<{ $script.len() - PLACE.len() + $queue.len() }>($script, $queue);
        match std::str::from_utf8(TEXT) {
            Ok(text) => text,
            Err(_) => panic!("both parts are text"),
        }
    }};
}

/// Script that finds missing rights of the user, for all schemes.
pub(crate) const RIGHTS: &str = include_str!("rights.lua");

pub(crate) mod hash {
    use super::{PLACE, QUEUE, with_queue};

    pub(crate) const ACQUIRE: &str = with_queue!(include_str!("hash/acquire.lua"), QUEUE);
    pub(crate) const LEAVE: &str = with_queue!(include_str!("hash/leave.lua"), QUEUE);
    pub(crate) const CONVERT: &str = with_queue!(include_str!("hash/convert.lua"), QUEUE);
    pub(crate) const RENEW: &str = include_str!("hash/renew.lua");
    pub(crate) const INSPECT: &str = include_str!("hash/inspect.lua");
    pub(crate) const FORCE: &str = with_queue!(include_str!("hash/force.lua"), QUEUE);
    pub(crate) const USED: &str = include_str!("hash/used.lua");
}

pub(crate) mod two_key {
    use super::{PLACE, TWO_KEY_QUEUE, with_queue};

    pub(crate) const ACQUIRE: &str = with_queue!(include_str!("two_key/acquire.lua"), TWO_KEY_QUEUE);
    pub(crate) const LEAVE: &str = with_queue!(include_str!("two_key/leave.lua"), TWO_KEY_QUEUE);
    pub(crate) const CONVERT: &str = with_queue!(include_str!("two_key/convert.lua"), TWO_KEY_QUEUE);
    pub(crate) const RENEW: &str = include_str!("two_key/renew.lua");
    pub(crate) const INSPECT: &str = include_str!("two_key/inspect.lua");
    pub(crate) const FORCE: &str = with_queue!(include_str!("two_key/force.lua"), TWO_KEY_QUEUE);
}
