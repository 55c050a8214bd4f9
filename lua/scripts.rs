//! Texts of the scripts in the form that servers get. The crate, its tests and its benches take them from here.
#![allow(dead_code)] // some files that include this use only a part of it

/// Names and texts of the parts of one scheme's scripts.
type Parts = [(&'static str, &'static str)];

/// Begins the line of a script or a part that stands for a part: its name follows, up to the end of the line.
const MARK: &[u8] = b"--@";

/// Parts of the hash scheme. They stand in line in place of functions, since a script makes its functions anew at each
/// call, and that costs as much as all its commands.
const HASH_PARTS: &Parts = &[
    ("admit", include_str!("hash/parts/admit.lua")),
    ("again", include_str!("hash/parts/again.lua")),
    ("channel", include_str!("hash/parts/channel.lua")),
    ("dead", include_str!("hash/parts/dead.lua")),
    ("dequeue", include_str!("hash/parts/dequeue.lua")),
    ("finish", include_str!("hash/parts/finish.lua")),
    ("readers", include_str!("hash/parts/readers.lua")),
    ("remove", include_str!("hash/parts/remove.lua")),
    ("stamp_of", include_str!("hash/parts/stamp_of.lua")),
    ("state", include_str!("hash/parts/state.lua")),
    ("write", include_str!("hash/parts/write.lua")),
    ("writer", include_str!("hash/parts/writer.lua")),
];

/// Parts of the two-key scheme: the queue.
const TWO_KEY_PARTS: &Parts = &[("queue", include_str!("two_key/queue.lua"))];

/// Parts of the scheme of Redisson.
const REDISSON_PARTS: &Parts =
    &[("others", include_str!("redisson/parts/others.lua")), ("publish", include_str!("redisson/parts/publish.lua"))];

/// Writes `text` with its parts, and theirs, to `buffer` from `at` on, and returns the end. Only counts if `buffer` is
/// empty.
const fn assemble(text: &[u8], parts: &Parts, buffer: &mut [u8], mut at: usize) -> usize {
    let mut n = 0;
    while n < text.len() {
        if is_at(text, n, MARK) {
            let start = n + MARK.len();
            n = start;
            while text[n] != b'\n' {
                n += 1;
            }
            at = assemble(part(parts, text, start, n), parts, buffer, at);
            n += 1; // a part ends its last line itself
        } else {
            if !buffer.is_empty() {
                buffer[at] = text[n];
            }
            at += 1;
            n += 1;
        }
    }
    at
}

/// Returns the part whose name is in `text` from `start` to `end`.
const fn part<'a>(parts: &[(&str, &'a str)], text: &[u8], start: usize, end: usize) -> &'a [u8] {
    let mut n = 0;
    while n < parts.len() {
        let name = parts[n].0.as_bytes();
        if name.len() == end - start && is_at(text, start, name) {
            return parts[n].1.as_bytes();
        }
        n += 1;
    }
    panic!("there is no part of this name")
}

const fn is_at(text: &[u8], at: usize, word: &[u8]) -> bool {
    let mut same = 0;
    while same < word.len() && at + same < text.len() && text[at + same] == word[same] {
        same += 1;
    }
    same == word.len()
}

/// Embeds a script of a scheme under a name, with its parts if it has any.
macro_rules! script {
    ($file:literal, $parts:ident, $name:ident) => {
        pub(crate) const $name: &str = {
            const SCRIPT: &[u8] = include_str!($file).as_bytes();
            const LENGTH: usize = super::assemble(SCRIPT, super::$parts, &mut [], 0);
            const TEXT: [u8; LENGTH] = {
                let mut text = [0; LENGTH];
                super::assemble(SCRIPT, super::$parts, &mut text, 0);
                text
            };
            match std::str::from_utf8(&TEXT) {
                Ok(text) => text,
                Err(_) => panic!("a script and its parts are text"),
            }
        };
    };
}

/// Script that finds missing rights of the user, for all schemes.
pub(crate) const RIGHTS: &str = include_str!("rights.lua");

pub(crate) mod hash {
    script!("hash/acquire.lua", HASH_PARTS, ACQUIRE);
    script!("hash/leave.lua", HASH_PARTS, LEAVE);
    script!("hash/convert.lua", HASH_PARTS, CONVERT);
    script!("hash/renew.lua", HASH_PARTS, RENEW);
    script!("hash/inspect.lua", HASH_PARTS, INSPECT);
    script!("hash/force.lua", HASH_PARTS, FORCE);
    script!("hash/note.lua", HASH_PARTS, NOTE);
    script!("hash/used.lua", HASH_PARTS, USED);
}

pub(crate) mod two_key {
    script!("two_key/acquire.lua", TWO_KEY_PARTS, ACQUIRE);
    script!("two_key/leave.lua", TWO_KEY_PARTS, LEAVE);
    script!("two_key/convert.lua", TWO_KEY_PARTS, CONVERT);
    script!("two_key/renew.lua", TWO_KEY_PARTS, RENEW);
    script!("two_key/inspect.lua", TWO_KEY_PARTS, INSPECT);
    script!("two_key/force.lua", TWO_KEY_PARTS, FORCE);
}

pub(crate) mod redisson {
    script!("redisson/acquire.lua", REDISSON_PARTS, ACQUIRE);
    script!("redisson/leave.lua", REDISSON_PARTS, LEAVE);
    script!("redisson/convert.lua", REDISSON_PARTS, CONVERT);
    script!("redisson/renew.lua", REDISSON_PARTS, RENEW);
    script!("redisson/inspect.lua", REDISSON_PARTS, INSPECT);
    script!("redisson/force.lua", REDISSON_PARTS, FORCE);
}
