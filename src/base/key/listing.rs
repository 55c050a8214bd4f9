//! Listing of one manager's locks: their names, derived from the keys on the server.

use crate::base::key::{Key, KeyTemplate};

/// Rule that finds the locks of one manager among the keys of a server.
#[derive(Clone, Debug)]
pub(crate) enum Listing {
    /// The keys that begin with the prefix of the manager.
    Prefix(String),
    /// The keys of the timestamp scheme, whose form this template describes.
    Template(KeyTemplate),
}

impl Listing {
    /// Returns the pattern for `SCAN`. The pattern matches all keys of locks, and perhaps other keys.
    pub(crate) fn pattern(&self) -> String {
        match self {
            // A key continues with `:` or `#` after the prefix, see `Key`.
            Self::Prefix(prefix) => [&escape(prefix), "[:#]*"].concat(),
            Self::Template(template) => {
                let (before, behind) = template.sides();
                [&escape(before), "*", &escape(behind)].concat()
            }
        }
    }

    /// Returns the name of the lock to which this key belongs. `None` if the key belongs to no lock. `parts` are the
    /// last parts of the keys that the lock scheme uses.
    pub(crate) fn name_of(&self, key: &str, parts: &[&str]) -> Option<String> {
        match self {
            Self::Prefix(prefix) => parts.iter().find_map(|part| Key::name_of(prefix, key, part)),
            Self::Template(template) => template.name_of(key).map(str::to_owned),
        }
    }

    /// Returns the name of the lock whose keys have this base. `None` if no name has this base.
    pub(crate) fn name_of_base(&self, base: &str) -> Option<String> {
        match self {
            Self::Prefix(_) => self.name_of(&[base, ":lock"].concat(), &["lock"]),
            Self::Template(_) => self.name_of(base, &[]),
        }
    }
}

/// Escapes a text so that a pattern matches it literally.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_the_keys_as_they_are() {
        assert_eq!(Listing::Prefix("rwlock".to_owned()).pattern(), "rwlock[:#]*");
        assert_eq!(Listing::Prefix("a*[b]?\\".to_owned()).pattern(), r"a\*\[b\]\?\\[:#]*");
        let template = |text: &str| Listing::Template(KeyTemplate::new(text.to_owned()));
        assert_eq!(template("lock:*").pattern(), "lock:*");
        assert_eq!(template("{shop}:*:[rw]").pattern(), r"{shop}:*:\[rw\]");
    }

    #[test]
    fn names_are_read_back_from_keys_of_ours_only() {
        let ours = Listing::Prefix("rwlock".to_owned());
        assert_eq!(ours.name_of("rwlock:{cfg}:lock", &["lock"]).as_deref(), Some("cfg"));
        assert_eq!(ours.name_of("rwlock:{na%7Dme}:write", &["read", "write"]).as_deref(), Some("na}me"));
        assert_eq!(ours.name_of("rwlock#{user}:1:lock", &["lock"]).as_deref(), Some("{user}:1"));
        assert_eq!(ours.name_of_base("rwlock:{cfg}").as_deref(), Some("cfg"));
        for other in ["rwlock2:{cfg}:lock", "rwlock:{cfg}:read", "rwlock:cfg:lock", "rwlock:{%zz}:lock"] {
            assert_eq!(ours.name_of(other, &["lock"]), None, "{other}");
        }
        let theirs = Listing::Template(KeyTemplate::new("lock:*".to_owned()));
        assert_eq!(theirs.name_of("lock:cfg", &["lock"]).as_deref(), Some("cfg"));
        assert_eq!(theirs.name_of_base("lock:cfg").as_deref(), Some("cfg"));
    }
}
