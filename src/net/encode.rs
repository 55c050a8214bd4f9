//! Encoding of requests in RESP.

use crate::base::digits::Digits;

pub(super) const END: &[u8] = b"\r\n";

/// Appends the head of a request or of a part: its kind, and the number of its parts or bytes.
pub(super) fn head(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    bytes.push(kind);
    // Most of these numbers have one digit, which needs no conversion to text.
    match u8::try_from(length) {
        Ok(length @ 0..10) => bytes.push(b'0' + length),
        _ => bytes.extend_from_slice(Digits::of(length as u64).as_bytes()),
    }
    bytes.extend_from_slice(END);
}

pub(super) fn part(bytes: &mut Vec<u8>, part: &[u8]) {
    head(bytes, b'$', part.len());
    bytes.extend_from_slice(part);
    bytes.extend_from_slice(END);
}
