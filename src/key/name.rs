//! A lock's name on its way to its lock.

use std::str;

use super::hash_of;

/// As long as a short one may be.
const SHORT: usize = 24;

/// A name as the user wrote it, and its hash. A short one needs no memory of its own: whoever joins a hold of its process is
/// done before anything else would need any.
///
/// No enum: it is moved several times before it is looked at, and a variant's bytes would be moved one by one.
pub(crate) struct LockName {
    hash: u64,
    short: [u8; SHORT],
    len: u8,
    /// A long one.
    long: Option<Box<str>>,
}

impl LockName {
    #[inline]
    pub(crate) fn new(name: &str) -> Self {
        let mut short = [0; SHORT];
        let (len, long) = match (short.get_mut(..name.len()), u8::try_from(name.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(name.as_bytes());
                (len, None)
            }
            _ => (0, Some(name.into())),
        };
        Self { hash: hash_of(name), short, len, long }
    }

    fn bytes(&self) -> &[u8] {
        match &self.long {
            None => &self.short[..usize::from(self.len)],
            Some(name) => name.as_bytes(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.bytes()).expect("it was copied from a string")
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// As [`Key::hashed_name`](super::Key::hashed_name).
    pub(crate) fn hashed(&self) -> (u64, &[u8]) {
        (self.hash, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_stay_what_they_are() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 1024] {
            for name in ["a".repeat(len), "ä".repeat(len)] {
                let kept = LockName::new(&name);
                assert_eq!(kept.as_str(), name);
                assert_eq!(kept.hashed(), (hash_of(&name), name.as_bytes()));
            }
        }
    }
}
