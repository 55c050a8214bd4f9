//! Name of a lock, as an acquisition uses it to look the lock up.

use std::str;

use super::hash_of;

/// Largest length in bytes of a name that is stored inline.
const SHORT: usize = 24;

/// Name as the user wrote it, and its hash. A short name is stored inline. So an acquisition that joins a hold of its
/// process makes no allocation.
///
/// This is a struct with fields for short and long names, not an enum. The value is moved several times before it is
/// read. A move of an enum variant would copy its bytes one by one, which is slower.
pub(crate) struct LockName {
    hash: u64,
    short: [u8; SHORT],
    len: u8,
    /// Name that is too long to be stored inline.
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

    /// Returns hash and name, like [`Key::hashed_name`](super::Key::hashed_name).
    pub(crate) fn hashed_name(&self) -> (u64, &[u8]) {
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
                assert_eq!(kept.hashed_name(), (hash_of(&name), name.as_bytes()));
            }
        }
    }
}
