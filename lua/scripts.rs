//! Texts of the scripts in the form that servers get. The crate, its tests and its benches take them from here.
#![allow(dead_code)] // some files that include this use only a part of it

/// Names and texts of the parts of one scheme's scripts.
type Parts = [(&'static str, &'static str)];

/// Begins the line of a script or a part that stands for a part: its name follows, up to the end of the line.
const MARK: &[u8] = b"--@";
/// Longest script.
const MAX_LENGTH: usize = 1 << 16;

/// Writes `text` with its parts, and theirs, to `buffer` from `at` on, and returns the end. Copies whole pieces, because the
/// compiler needs long for each byte.
const fn assemble(text: &[u8], parts: &Parts, buffer: &mut [u8; MAX_LENGTH], mut at: usize) -> usize {
    let mut n = 0;
    loop {
        let mark = next_mark(text, n);
        let (_, piece) = text.split_at(mark).0.split_at(n);
        buffer.split_at_mut(at).1.split_at_mut(piece.len()).0.copy_from_slice(piece);
        at += piece.len();
        if mark == text.len() {
            return at;
        }
        let start = mark + MARK.len();
        n = start;
        while text[n] != b'\n' {
            n += 1;
        }
        at = assemble(part(parts, text, start, n), parts, buffer, at);
        n += 1; // a part ends its last line itself
    }
}

/// Returns the place of the next mark in `text` from `n` on, or the end of the text.
const fn next_mark(text: &[u8], mut n: usize) -> usize {
    while n < text.len() {
        if text[n] == MARK[0] && is_at(text, n, MARK) {
            return n;
        }
        n += 1;
    }
    n
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

/// Embeds the scripts of a scheme under names, with their parts. Scripts and parts are named by their files.
///
/// Parts stand in line in place of functions, since a script makes its functions anew at each call, and in the hash
/// scheme that costs as much as all its commands.
macro_rules! scheme {
    ($scheme:ident; scripts: $($name:ident = $script:ident),+; parts: $($part:ident),+) => {
        pub(crate) mod $scheme {
            const PARTS: &super::Parts = &[$((
                stringify!($part),
                include_str!(concat!(stringify!($scheme), "/parts/", stringify!($part), ".lua")),
            )),+];
            $(pub(crate) const $name: &str = {
                const SCRIPT: &[u8] =
                    include_str!(concat!(stringify!($scheme), "/", stringify!($script), ".lua")).as_bytes();
                const ASSEMBLED: ([u8; super::MAX_LENGTH], usize) = {
                    let mut buffer = [0; super::MAX_LENGTH];
                    let length = super::assemble(SCRIPT, PARTS, &mut buffer, 0);
                    (buffer, length)
                };
                const TEXT: [u8; ASSEMBLED.1] = {
                    let mut text = [0; ASSEMBLED.1];
                    text.copy_from_slice(ASSEMBLED.0.split_at(ASSEMBLED.1).0);
                    text
                };
                match std::str::from_utf8(&TEXT) {
                    Ok(text) => text,
                    Err(_) => panic!("a script and its parts are text"),
                }
            };)+
        }
    };
}

/// Script that finds missing rights of the user, for all schemes.
pub(crate) const RIGHTS: &str = include_str!("rights.lua");

scheme! { hash;
    scripts: ACQUIRE = acquire, LEAVE = leave, CONVERT = convert, RENEW = renew, INSPECT = inspect, FORCE = force,
        NOTE = note, USED = used;
    parts: admit, again, begin, channel, clock, dead, dequeue, finish, granted, phase, readers, remove, stamp_of, state,
        unlink, write, writer
}

scheme! { two_key;
    scripts: ACQUIRE = acquire, LEAVE = leave, CONVERT = convert, RENEW = renew, INSPECT = inspect, FORCE = force;
    parts: begin, clock, queue, renewed
}

scheme! { redisson;
    scripts: ACQUIRE = acquire, LEAVE = leave, CONVERT = convert, RENEW = renew, INSPECT = inspect, FORCE = force;
    parts: clock, others, publish, ttl
}
