//! Keys of a lock on the server, derived from its name without any request.
//!
//! All keys and channels of one lock must be in one hash slot, for every valid name. A key has one of two forms:
//!
//! * If the name has a valid hash tag, like `{user}:1`, the key contains the name unchanged: `<prefix>#{user}:1`.
//! * Any other name becomes the hash tag: `<prefix>:{name}`. In this tag, `%`, `{` and `}` are percent-encoded. A plain
//!   brace could end the tag early (`na}me`) or leave it empty (`}`). The keys of one lock would then be in several
//!   slots.
//!
//! Different names never have the same key. A prefix has no `#`, so a `#` before the first `{` marks the first form.
//! The encoding of the second form is reversible.
//!
//! Source: the hash tag rule of the Redis cluster specification.
//!
//! Existing keys of the timestamp scheme follow other rules, see [`template`].

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use crate::base::error::{Error, LossReason, Result};

mod listing;
mod name;
mod template;
pub(crate) use listing::Listing;
pub(crate) use name::LockName;
pub(crate) use template::KeyTemplate;

/// Longest name in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 1024;
/// Longest key prefix in bytes.
const MAX_PREFIX_BYTES: usize = 64;
/// Number of hash slots of a cluster.
pub(crate) const SLOTS: u16 = 16384;

/// Lock as its manager addresses it: its name, the base of its server keys, and their hash slot. A process has one such
/// value for each lock that it holds. So the value is small: name and base share one allocation, and usually the base
/// contains the name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// Base, followed by the name if the base does not contain the name unchanged.
    text: Box<str>,
    name_hash: u64,
    base_len: u16,
    name_begin: u16,
    name_len: u16,
    slot: u16,
    form: Form,
}

/// Text that follows the base in a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A separator and the part.
    Parts,
    /// Nothing. The base is the whole key, which existed before this crate used it.
    Whole,
}

impl Key {
    /// Checks `name` and derives its keys. [`check_prefix`] must have accepted `prefix` before.
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Self> {
        check_name(name)?;
        let (mark, tag, end) = match hash_tag(name.as_bytes()) {
            Some(_) => ("#", name.into(), ""),
            None => (":{", encode(name), "}"),
        };
        let behind = if tag == name { "" } else { name };
        let base_len = prefix.len() + mark.len() + tag.len() + end.len();
        let name_begin = if behind.is_empty() { prefix.len() + mark.len() } else { base_len };
        let text = [prefix, mark, &tag, end, behind].concat();
        Ok(Self::of(text.into(), base_len, name_begin, name.len(), Form::Parts))
    }

    /// Checks `name` and inserts it into the template. [`KeyTemplate::check`] must have accepted the template before.
    /// Such a lock has only one key.
    pub(crate) fn from_template(template: &KeyTemplate, name: &str) -> Result<Self> {
        check_name(name)?;
        let base = template.key(name)?;
        let name_begin = template.sides().0.len();
        let base_len = base.len();
        Ok(Self::of(base.into(), base_len, name_begin, name.len(), Form::Whole))
    }

    /// Checks the name of a lock of Redisson, whose key is the name.
    ///
    /// Redisson puts the name into the names of further keys, in braces if it has no `{`. They have the hash slot of the
    /// lock only if the name has no braces, or a whole hash tag. A cluster would refuse the scripts with other names.
    pub(crate) fn of_redisson(name: &str) -> Result<Self> {
        check_name(name)?;
        if name.contains(['{', '}']) && !(name.contains('{') && hash_tag(name.as_bytes()).is_some()) {
            let reason = "it has a brace but no hash tag, so that Redisson's further keys lie in another hash slot";
            return Err(invalid_name(name, reason.to_owned()));
        }
        Ok(Self::of(name.into(), name.len(), 0, name.len(), Form::Whole))
    }

    fn of(text: Box<str>, base_len: usize, name_begin: usize, name_len: usize, form: Form) -> Self {
        // Keys and channels append text to the base, so the base alone decides their slot.
        let slot = slot_of(&text.as_bytes()[..base_len]);
        let name_hash = hash_of(&text[name_begin..name_begin + name_len]);
        let [base_len, name_begin, name_len] = [base_len, name_begin, name_len].map(short);
        Self { text, name_hash, base_len, name_begin, name_len, slot, form }
    }

    /// Returns the name of the lock whose key for this part under `prefix` is `key`. `None` if there is no such name.
    pub(crate) fn name_of(prefix: &str, key: &str, part: &str) -> Option<String> {
        let base = key.strip_suffix(part)?.strip_suffix(':')?;
        let rest = base.strip_prefix(prefix)?;
        let name = match rest.strip_prefix('#') {
            Some(name) => name.to_owned(),
            None => decode(rest.strip_prefix(":{")?.strip_suffix('}')?)?,
        };
        // Some texts decode to a name but are not the key of that name. Such a key belongs to no lock.
        let made = Self::new(prefix, &name).ok()?;
        (made.part(part) == key).then_some(name)
    }

    /// Returns the name as the user wrote it.
    pub(crate) fn name(&self) -> &str {
        &self.text[self.name_range()]
    }

    fn name_range(&self) -> Range<usize> {
        let begin = usize::from(self.name_begin);
        begin..begin + usize::from(self.name_len)
    }

    /// Returns a copy of the name that can outlive the key.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name().into()
    }

    /// Returns the error of a hold of this lock that was lost.
    pub(crate) fn loss(&self, reason: LossReason) -> Error {
        Error::Lost { lock: self.shared_name(), reason }
    }

    /// Returns the hash of the name. The same name has different hashes in different processes.
    pub(crate) fn name_hash(&self) -> u64 {
        self.name_hash
    }

    /// Returns the hash and the name, as lookups in hash tables need them.
    pub(crate) fn hashed_name(&self) -> (u64, &[u8]) {
        (self.name_hash, &self.text.as_bytes()[self.name_range()])
    }

    /// Returns the beginning of all server keys of this lock, which includes the prefix. No other lock has the same
    /// base.
    pub(crate) fn base(&self) -> &str {
        &self.text[..usize::from(self.base_len)]
    }

    /// Returns the hash slot of all keys and channels of this lock.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns a server key or channel of this lock. `part` is a constant of this crate. It contains no braces, so it
    /// does not change the hash tag.
    pub(crate) fn part(&self, part: &str) -> String {
        self.pieces(part).concat()
    }

    /// Returns the pieces of [`part`](Self::part), for callers that copy them into a buffer.
    pub(crate) fn pieces<'a>(&'a self, part: &'a str) -> [&'a str; 3] {
        match self.form {
            Form::Parts => [self.base(), ":", part],
            Form::Whole => [self.base(), "", ""],
        }
    }

    /// Returns the beginning of the names of the channels that belong to the key `part`. This beginning is the key if
    /// the key has a hash tag, and otherwise the key in braces. Scripts receive only the key, and derive the channels
    /// in the same way.
    pub(crate) fn channels(&self, part: &str) -> String {
        let key = self.part(part);
        match hash_tag(key.as_bytes()) {
            Some(_) => key,
            None => ["{", &key, "}"].concat(),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, slot {})", self.name(), self.slot)
    }
}

/// Converts a position in the text of a key to 16 bits. These are enough, because names, prefixes and templates have
/// limited lengths.
fn short(place: usize) -> u16 {
    u16::try_from(place).expect("a key is shorter")
}

/// Returns the hash of a lock's name within this process. The seed is random, because with a known seed users could
/// choose names whose hashes collide.
pub(crate) fn hash_of(name: &str) -> u64 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = SEED.build_hasher();
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// Refuses names that cannot be part of a server key: empty names, and names longer than [`MAX_NAME_BYTES`].
fn check_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!("it has {} bytes; the maximum is {MAX_NAME_BYTES}", name.len())
    } else {
        return Ok(());
    };
    Err(invalid_name(name, reason))
}

fn invalid_name(name: &str, reason: String) -> Error {
    // Only the first characters, so that an error stays short.
    let shortened: String = name.chars().take(64).collect();
    Error::InvalidName { lock: shortened.into(), reason }
}

/// Refuses prefixes that are empty, too long, or contain a forbidden character. A brace would change the hash tag. A
/// `#` separates a prefix from a name with a hash tag. Other forbidden characters are invisible in a listing of keys.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let fits = (1..=MAX_PREFIX_BYTES).contains(&prefix.len())
        && prefix.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}' | b'#'));
    if fits {
        return Ok(());
    }
    let reason = format!("it must be 1 to {MAX_PREFIX_BYTES} visible ASCII characters other than '{{', '}}' and '#'");
    Err(Error::invalid("key_prefix", reason))
}

fn encode(name: &str) -> Cow<'_, str> {
    if !name.bytes().any(|byte| matches!(byte, b'%' | b'{' | b'}')) {
        return name.into();
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '%' => out.push_str("%25"),
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            other => out.push(other),
        }
    }
    out.into()
}

/// Returns the name that [`encode`] turns into this text. `None` if there is no such name.
fn decode(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, code)) = rest.split_once('%') {
        out.push_str(plain);
        out.push(match code.get(..2)? {
            "25" => '%',
            "7B" => '{',
            "7D" => '}',
            _ => return None,
        });
        rest = &code[2..];
    }
    out.push_str(rest);
    Some(out)
}

/// Returns the hash tag of a key: the text between the first `{` and the first `}` after it. `None` if this text is
/// empty.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|&byte| byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// Returns the hash slot of a key: CRC16/XMODEM of the hash tag, modulo the number of slots. Without a hash tag, the
/// whole key counts.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/key/tests.rs"]
mod tests;
