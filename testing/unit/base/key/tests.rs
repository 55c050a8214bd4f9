use proptest::prelude::*;

use super::*;

fn key(name: &str) -> Key {
    Key::new("rwlock", name).expect("a valid name")
}

#[test]
fn hash_tag_of_the_name_is_kept() {
    assert_eq!(key("{user}:1").slot(), key("{user}:2").slot());
    assert_eq!(key("{user}:1").slot(), slot_of(b"user"));
    assert_eq!(key("{user}:1").part("lock"), "rwlock#{user}:1:lock");
}

#[test]
fn plain_name_is_its_own_tag() {
    assert_eq!(key("cfg").part("lock"), "rwlock:{cfg}:lock");
    assert_eq!(key("cfg").slot(), slot_of(b"cfg"));
}

#[test]
fn known_slots_of_the_cluster_specification() {
    assert_eq!(slot_of(b"123456789"), 0x31C3);
    assert_eq!(slot_of(b"foo{}{bar}"), slot_of_whole(b"foo{}{bar}"));
    assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of_whole(b"{bar"));
    assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of_whole(b"bar"));
}

fn slot_of_whole(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key) % SLOTS
}

#[test]
fn longest_names_have_keys() {
    for name in ["a", "%", "{", "ä}"] {
        let name = name.repeat(MAX_NAME_BYTES / name.len());
        let key = Key::new(&"p".repeat(MAX_PREFIX_BYTES), &name).expect("valid");
        assert_eq!((key.name(), key.hashed_name()), (&*name, (hash_of(&name), name.as_bytes())));
        assert!(key.base().ends_with('}') && key.part("lock").ends_with("}:lock"), "{key:?}");
    }
}

#[test]
fn empty_and_long_names_are_refused() {
    assert!(matches!(Key::new("p", ""), Err(Error::InvalidName { .. })));
    assert!(Key::new("p", &"x".repeat(MAX_NAME_BYTES)).is_ok());
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    assert!(matches!(Key::new("p", &long), Err(Error::InvalidName { .. })));
}

#[test]
fn prefixes_that_reach_into_the_tag_are_refused() {
    for prefix in ["", "a{b", "a}b", "a#b", "a b", "a\0b", "ü", &"x".repeat(65)] {
        assert!(check_prefix(prefix).is_err(), "{prefix:?}");
    }
    assert!(check_prefix("my-app:locks").is_ok());
}

proptest! {
    #[test]
    fn prefixes_keep_locks_apart_and_parts_together(
        one in "[!-~]{1,6}|[:%ab]{1,4}", other in "[!-~]{1,6}|[:%ab]{1,4}",
        a in "[{}%#:ab]{1,6}", b in "[{}%#:ab]{1,6}",
    ) {
        prop_assume!(check_prefix(&one).is_ok() && check_prefix(&other).is_ok());
        let (first, second) = (Key::new(&one, &a).expect("a valid name"), Key::new(&other, &b).expect("a valid name"));
        for part in ["lock", "read", "write", "wake"] {
            prop_assert_eq!(slot_of(first.part(part).as_bytes()), first.slot());
            prop_assert!((&one, &a) == (&other, &b) || first.part(part) != second.part(part));
        }
    }

    #[test]
    fn all_parts_and_channels_share_the_slot(name in "\\PC{1,40}|[{}%#:a]{1,12}") {
        let key = key(&name);
        for part in ["lock", "read", "write", "wake"] {
            prop_assert_eq!(slot_of(key.part(part).as_bytes()), key.slot());
        }
        let channel = key.channels("lock") + ":wake:0123456789abcdef0123456789abcdef";
        prop_assert_eq!(slot_of(channel.as_bytes()), key.slot());
        prop_assert!(channel.starts_with(&key.part("lock")));
    }

    #[test]
    fn names_come_back_from_their_keys(name in "\\PC{1,40}|[{}%#:a7BD25]{1,12}") {
        let key = key(&name);
        prop_assert_eq!(key.name(), &name);
        prop_assert_eq!(Key::name_of("rwlock", &key.part("lock"), "lock"), Some(name));
        prop_assert_eq!(Key::name_of("rwlock2", &key.part("lock"), "lock"), None);
        prop_assert_eq!(Key::name_of("rwlock", &key.part("read"), "lock"), None);
    }

    #[test]
    fn keys_that_no_name_makes_are_nobodys(rest in "[:#]?[{]?[{}%a25]{0,6}[}]?(:lock)?") {
        let key = format!("rwlock{rest}");
        if let Some(name) = Key::name_of("rwlock", &key, "lock") {
            prop_assert_eq!(Key::new("rwlock", &name).expect("a name").part("lock"), key);
        }
    }

    #[test]
    fn different_names_have_different_keys(
        a in "[{}%#:ab27BD5]{1,8}", b in "[{}%#:ab27BD5]{1,8}",
    ) {
        prop_assume!(a != b);
        for (x, y) in [("lock", "lock"), ("lock", "read"), ("read", "write")] {
            prop_assert_ne!(key(&a).part(x), key(&b).part(y));
        }
    }
}
