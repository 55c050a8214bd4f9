//! Names of the keys and of the channel beside a lock, as Redisson makes them.
//!
//! The key of a lock is its name. A second name has the lock's name in braces, so that it lies in the same hash slot. A
//! lock's name that has braces of its own stays as it is, and needs a whole hash tag then ([`Key::of_redisson`]).

use crate::base::key::Key;

/// Last part of the key of the tokens. Redisson has no key of this name.
const TOKENS: &str = ":rwlock_tokens";
const CHANNEL: &str = "redisson_rwlock:";

/// Names that belong to one lock.
pub(crate) struct Names<'a>(&'a str);

impl<'a> Names<'a> {
    pub(crate) fn of(key: &'a Key) -> Self {
        Self(key.name())
    }

    /// Returns a second name: the lock's name between these texts, in braces if it has none.
    fn second(&self, before: &str, behind: &str) -> String {
        let [open, close] = if self.0.contains('{') { ["", ""] } else { ["{", "}"] };
        [before, open, self.0, close, behind].concat()
    }

    /// Returns the beginning of the names of all timeouts of the lock.
    pub(crate) fn beginning(&self) -> String {
        self.second("", ":")
    }

    /// Returns the key of the tokens.
    pub(crate) fn tokens(&self) -> String {
        self.second("", TOKENS)
    }

    /// Returns the key of the only timeout of the read hold with this id.
    pub(crate) fn timeout(&self, id: &str) -> String {
        [&self.beginning(), id, ":1:rwlock_timeout:1"].concat()
    }

    pub(crate) fn channel(&self) -> String {
        self.second(CHANNEL, "")
    }
}

/// Returns the pattern for `SCAN` that finds the keys of tokens.
pub(crate) fn pattern_of_tokens() -> String {
    ["*", TOKENS].concat()
}

/// Returns the lock to which a key of tokens belongs.
pub(crate) fn lock_of_tokens(key: &str) -> Option<String> {
    let shown = key.strip_suffix(TOKENS)?;
    let bare = shown.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    // The names `a` and `{a}` have the same second names. The plain one is the usual one.
    let name = bare.filter(|bare| !bare.contains(['{', '}'])).unwrap_or(shown);
    Key::of_redisson(name).ok().map(|key| key.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_names_are_those_of_redisson() {
        let key = Key::of_redisson("cfg").expect("a name");
        let names = Names::of(&key);
        assert_eq!(names.tokens(), "{cfg}:rwlock_tokens");
        assert_eq!(names.timeout("m.7.me"), "{cfg}:m.7.me:1:rwlock_timeout:1");
        assert_eq!(names.channel(), "redisson_rwlock:{cfg}");
        let key = Key::of_redisson("shop:{7}:cfg").expect("a name");
        let names = Names::of(&key);
        assert_eq!(names.tokens(), "shop:{7}:cfg:rwlock_tokens");
        assert_eq!(names.timeout("m.7.me"), "shop:{7}:cfg:m.7.me:1:rwlock_timeout:1");
        assert_eq!(names.channel(), "redisson_rwlock:shop:{7}:cfg");
    }

    #[test]
    fn locks_are_found_by_their_tokens() {
        for name in ["cfg", "shop:{7}:cfg", "{7}:cfg", "cfg:{7}"] {
            let key = Key::of_redisson(name).expect("a name");
            assert_eq!(lock_of_tokens(&Names::of(&key).tokens()).as_deref(), Some(name));
        }
        assert_eq!(lock_of_tokens("{cfg}:rwlock_timeout"), None);
    }
}
