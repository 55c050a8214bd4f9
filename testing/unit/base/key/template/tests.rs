use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::base::key::{Key, MAX_NAME_BYTES, slot_of};

fn template(text: &str) -> KeyTemplate {
    KeyTemplate::new(text.to_owned())
}

fn key(text: &str, name: &str) -> Result<String> {
    Key::from_template(&template(text), name).map(|key| key.part("lock"))
}

#[test]
fn names_stand_in_their_keys_as_they_are() {
    for (text, name, expected) in [
        ("lock:*", "cfg", "lock:cfg"),
        ("*", "market", "market"),
        ("{shop}:*:rw", "item 1", "{shop}:item 1:rw"),
        ("lock:{*}", "cfg", "lock:{cfg}"),
        ("lock:*", "{user}:1", "lock:{user}:1"),
        ("lock:*", "50%*", "lock:50%*"),
    ] {
        assert_eq!(key(text, name).expect("a key"), expected);
        assert_eq!(template(text).name_of(expected), Some(name));
    }
}

#[test]
fn channels_of_a_key_without_a_tag_wrap_it_in_one() {
    let channel = |text: &str, name: &str| {
        let key = Key::from_template(&template(text), name).expect("a key");
        assert_eq!(slot_of(key.channels("lock").as_bytes()), key.slot());
        key.channels("lock")
    };
    assert_eq!(channel("lock:*", "cfg"), "{lock:cfg}");
    assert_eq!(channel("lock:*", "a{b"), "{lock:a{b}");
    assert_eq!(channel("lock:{*}", "cfg"), "lock:{cfg}");
    assert_eq!(channel("lock:*", "{user}:1"), "lock:{user}:1");
}

#[test]
fn names_whose_channels_would_be_elsewhere_are_refused() {
    for (text, name) in [
        ("lock:*", "a}b"),
        ("lock:*", "}"),
        ("lock:*", "{}"),
        ("lock:*", "}{"),
        ("lock:{*}", "}x"),
        ("lock}:*", "cfg"),
        ("*{}", "cfg"),
        ("lock:*", ""),
        ("lock:*", &"x".repeat(MAX_NAME_BYTES + 1)),
    ] {
        assert!(matches!(key(text, name), Err(Error::InvalidName { .. })), "{text} {name}");
    }
}

#[test]
fn names_that_would_share_channels_are_refused() {
    for text in ["*", "{*"] {
        let error = key(text, "{cfg}").expect_err("the channels of cfg");
        assert!(matches!(&error, Error::InvalidName { reason, .. } if reason.contains("cfg")), "{error}");
        key(text, "cfg").expect("that has them");
    }
    // Other templates have no such name.
    key("lock:*", "{cfg}").expect("a key");
    key("{*}", "cfg").expect("a key");
    key("*}", "{cfg").expect("a key");
}

#[test]
fn what_is_no_template_is_refused() {
    let long = "x".repeat(MAX_TEMPLATE_BYTES);
    for text in ["", "lock", "lock:{}", "lock:{name}", "*:*", "a\n*", "lock{}:*", &format!("{long}*")] {
        let refused = template(text).check();
        assert!(matches!(refused, Err(Error::InvalidOption { option: "timestamp_keys", .. })), "{text}");
    }
    for text in ["*", "lock:*", "*:lock", "{lock}:*", "lock:{*}", "*{}", "lock}:*", "schloß *", "{lock:*"] {
        template(text).check().expect(text);
    }
}

proptest! {
    #[test]
    fn keys_and_channels_share_their_slot(
        before in "[{}:ab]{0,4}", behind in "[{}:ab]{0,4}", name in "[{}:%*ab]{1,6}|\\PC{1,8}",
    ) {
        let template = KeyTemplate::new([&*before, "*", &behind].concat());
        if template.check().is_ok() && let Ok(key) = Key::from_template(&template, &name) {
            prop_assert_eq!(slot_of(key.part("lock").as_bytes()), key.slot());
            let channel = key.channels("lock") + ":wake:0123456789abcdef0123456789abcdef";
            prop_assert_eq!(slot_of(channel.as_bytes()), key.slot());
            let text = key.part("lock");
            prop_assert_eq!(template.name_of(&text), Some(&*name));
        }
    }

    #[test]
    fn no_two_names_share_a_key_or_a_channel(
        before in "[{}:a]{0,3}", behind in "[{}:a]{0,3}", names in prop::collection::btree_set("[{}a]{1,4}", 2..40),
    ) {
        let template = KeyTemplate::new([&*before, "*", &behind].concat());
        prop_assume!(template.check().is_ok());
        let mut found = BTreeMap::new();
        for name in names {
            if let Ok(key) = Key::from_template(&template, &name) {
                for text in [key.part("lock"), key.channels("lock") + ":wake:m"] {
                    let other = found.insert(text, name.clone());
                    prop_assert!(other.is_none(), "{name} and {other:?} in {template:?}");
                }
            }
        }
    }

    #[test]
    fn keys_of_others_are_nobodys(before in "[{}:ab]{0,3}", behind in "[{}:ab]{0,3}", key in "[{}:ab]{0,8}") {
        let template = KeyTemplate::new([&*before, "*", &behind].concat());
        if let Some(name) = template.name_of(&key) {
            prop_assert_eq!(Key::from_template(&template, name).expect("a name").part("lock"), key);
        }
    }
}
