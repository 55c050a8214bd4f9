//! Templates for existing keys: the keys of the timestamp scheme, whose form the operator defines.
//!
//! Such a key contains the name without encoding, so two kinds of names cannot be used.
//!
//! * If a key has no hash tag, its channels have the whole key as their hash tag. A `}` in the key would end this hash
//!   tag early, so such a name is refused.
//! * A key that is only a hash tag, like `{cfg}`, has the same channels as the key `cfg`. If `cfg` is the key of
//!   another lock, the name is refused.

use crate::base::error::{Error, Result};
use crate::base::key::{hash_tag, invalid_name};

/// Longest template in bytes.
const MAX_TEMPLATE_BYTES: usize = 256;
/// Placeholder of the name. `ACL SETUSER`, `KEYS` and `SCAN` use the same character in their patterns. Braces cannot be
/// the placeholder, because the server reads them as a hash tag.
const PLACE: char = '*';

/// Form of the keys that clients of the timestamp scheme use: the texts before and after the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyTemplate(String);

impl KeyTemplate {
    /// Stores a template without a check. The `build` method of a builder calls [`check`](Self::check), and reports the
    /// defects.
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// Refuses texts that are not a template, and templates with which no name has a valid key.
    pub(crate) fn check(&self) -> Result<()> {
        let (before, _) = self.sides();
        let reason = if self.0.matches(PLACE).count() != 1 {
            format!("it must have exactly one '{PLACE}', where the name goes, as in \"lock:{PLACE}\"")
        } else if self.0.len() > MAX_TEMPLATE_BYTES {
            format!("it has {} bytes; the maximum is {MAX_TEMPLATE_BYTES}", self.0.len())
        } else if self.0.chars().any(char::is_control) {
            "it has control characters".to_owned()
        } else if before.split_once('{').is_some_and(|(_, rest)| rest.starts_with('}')) {
            // The server uses only the first pair of braces, which is empty here. So no key of this template would have
            // a hash tag.
            "its keys would begin with the empty hash tag {}, and have no channel in their slot".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid("timestamp_keys", reason))
    }

    /// Returns the texts before and after the name.
    pub(super) fn sides(&self) -> (&str, &str) {
        self.0.split_once(PLACE).unwrap_or((&self.0, ""))
    }

    /// Returns the key of a name. The length of the name was checked before.
    pub(super) fn key(&self, name: &str) -> Result<String> {
        let (before, behind) = self.sides();
        let key = [before, name, behind].concat();
        let reason = if hash_tag(key.as_bytes()).is_none() && key.contains('}') {
            format!("its key {key:?} has a '}}' but no hash tag: its channels would lie in another slot")
        } else if let Some(other) = whole_tag(&key).and_then(|key| self.name_of(key)) {
            format!("its notifications would go to the channels of lock {other:?}")
        } else {
            return Ok(key);
        };
        Err(invalid_name(name, reason))
    }

    /// Returns the name that has this key. `None` if no valid name has it.
    pub(crate) fn name_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let (before, behind) = self.sides();
        let name = key.strip_prefix(before)?.strip_suffix(behind)?;
        // The key may fit the template although its name is refused.
        (super::check_name(name).is_ok() && self.key(name).is_ok()).then_some(name)
    }
}

/// Returns the text in the braces if the key is only a hash tag. The channels of such a key have the same names as the
/// channels of the key without braces.
fn whole_tag(key: &str) -> Option<&str> {
    let inner = key.strip_prefix('{')?.strip_suffix('}')?;
    (!inner.contains('}')).then_some(inner)
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/base/key/template/tests.rs"]
mod tests;
