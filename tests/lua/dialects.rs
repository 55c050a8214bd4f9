//! Text of the portable form, by the rules of servers that cannot run here.
//!
//! Dragonfly puts the text into a function, and runs Lua 5.4. Tair refuses a script if a call has its command or its key in
//! a variable or an expression.

use crate::lab::SCRIPTS;
use crate::portable::{portable, unsharded};
use crate::scripts;

/// Commands whose first argument is no key.
const WITHOUT_KEY: [&str; 3] = ["TIME", "SPUBLISH", "PUBLISH"];

fn all() -> impl Iterator<Item = (String, &'static str)> {
    let scripts = SCRIPTS.iter().map(|(folder, name, text)| (format!("{folder}/{name}"), *text));
    scripts.chain([("rights".to_owned(), scripts::RIGHTS)]).chain(redisson())
}

/// The scripts for the format of Redisson.
fn redisson() -> impl Iterator<Item = (String, &'static str)> {
    use scripts::redisson::{ACQUIRE, CONVERT, FORCE, INSPECT, LEAVE, RENEW};
    let scripts = [ACQUIRE, CONVERT, FORCE, INSPECT, LEAVE, RENEW].into_iter().enumerate();
    scripts.map(|(n, text)| (format!("redisson {n}"), text))
}

/// Commands with which the scripts for the format of Redisson look at holds of others, whose keys are in the lock.
const OF_OTHERS: [&str; 2] = ["PTTL", "DEL"];

/// Returns the texts that follow `word` where it is a word of its own.
fn after<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
    text.match_indices(word).filter_map(move |(at, _)| {
        let rest = &text[at + word.len()..];
        (!text[..at].ends_with(is_part) && !rest.starts_with(is_part)).then_some(rest)
    })
}

/// Returns what breaks a rule in the text of a portable script.
fn broken_rules(text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let mut check = |is_kept: bool, what: &str| {
        if !is_kept {
            broken.push(what.to_owned());
        }
    };
    check(!text.contains("#!") && !text.contains("--") && !text.contains("[["), "a `#!` line, or a comment");
    let is_called = |name| after(text, name).any(|rest| rest.starts_with('('));
    check(!is_called("call") && !is_called("pcall"), "a call by a local name");
    let body = text.strip_prefix("local unpack = table.unpack or unpack\n").unwrap_or(text);
    check(after(body, "unpack").all(|rest| rest.starts_with('(')), "unpack as a value");
    let parts: Vec<&str> = text.split("redis.").collect();
    for (before, part) in parts.iter().zip(&parts[1..]) {
        check(before.ends_with([' ', '(', '-', '{', '\n']), "redis is part of another name");
        let Some(call) = part.strip_prefix("call(").or_else(|| part.strip_prefix("pcall(")) else {
            let is_function = part.starts_with("error_reply(") || part.starts_with("acl_check_cmd");
            check(is_function, &format!("redis.{}", part.lines().next().unwrap_or_default()));
            continue;
        };
        let (command, rest) = call.strip_prefix('\'').and_then(|call| call.split_once('\'')).unwrap_or_default();
        let is_command = !command.is_empty() && command.bytes().all(|letter| letter.is_ascii_uppercase());
        check(is_command, &format!("a command that is no text: {}", call.lines().next().unwrap_or_default()));
        let is_literal = ["KEYS[1]", "KEYS[2]", "KEYS[3]", "KEYS[4]"].iter().any(|key| {
            rest.strip_prefix(", ")
                .and_then(|rest| rest.strip_prefix(key))
                .is_some_and(|rest| rest.starts_with([',', ')']))
        });
        let is_of_others = rest.contains(":rwlock_timeout:") && OF_OTHERS.contains(&command);
        check(
            is_literal || is_of_others || WITHOUT_KEY.contains(&command),
            &format!("a key that is no KEYS[n]: {command}{rest:.40}"),
        );
    }
    broken
}

#[test]
fn portable_form_keeps_the_rules_of_servers_that_cannot_run_here() {
    let mut calls = 0;
    for (name, script) in all() {
        let text = portable(script);
        assert_eq!(broken_rules(&text), [""; 0], "{name}");
        assert_eq!(text.lines().count(), script.lines().count(), "{name}: errors name the lines of both forms");
        calls += text.matches("redis.call(").count() + text.matches("redis.pcall(").count();
        let uncommented: String = script.lines().map(|line| line.split(" -- ").next().unwrap_or(line)).collect();
        assert_eq!(
            text.matches("call('").count(),
            uncommented.matches("call('").count(),
            "{name}: each call of the fast form is there"
        );
        for text in [text, script.to_owned()] {
            let plain = unsharded(&text);
            let published = text.matches("'SPUBLISH'").count() + text.matches("'PUBLISH'").count();
            assert_eq!(plain.matches("'PUBLISH'").count(), published, "{name}");
            assert!(!plain.contains("SPUBLISH'"), "{name}");
        }
    }
    assert!(calls > 150, "{calls} calls in {} scripts", all().count());
}

#[test]
fn broken_rules_are_found() {
    for text in [
        "#!lua\nreturn 1",
        "return 1 -- one",
        "local call = redis.call\nreturn call('TIME')",
        "return redis.call(command, KEYS[1])",
        "local key = KEYS[1]\nreturn redis.call('GET', key)",
        "return redis.call('GET', KEYS[1] .. 'x')",
        "return redis.call('GET', KEYS[n])",
        "return redis.sha1hex('')",
        "return {unpack}",
    ] {
        assert!(!broken_rules(text).is_empty(), "{text}");
    }
}
