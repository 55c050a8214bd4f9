//! Portable form of the scripts, for servers that refuse the form in which they are written.
//!
//! Such a server takes no `#!` line, or checks before it runs a script that each call names its command and its key in
//! place (Tair), or runs Lua 5.4, whose `unpack` has another name. The form is made from the text of the script: the
//! same lines with the same numbers, so errors of both forms name the same lines. `tests/lua/dialects.rs` checks it.
//!
//! The rules for numbers hold in both forms: a text becomes a number by `tonumber` or by arithmetic before it is compared
//! or given to `math.min` or `math.max`, and a number becomes a text by `%d` or `%.0f`. Lua 5.4 refuses or prints others.
#![allow(dead_code)] // some files that include this use only a part of it

/// Takes the place of the `#!` line.
const PRELUDE: &str = "local unpack = table.unpack or unpack";

/// Beginning of the line that declares the local names for the calls of a script and for its keys. The keys stay.
const CALL_LINE: &str = "local call, ";

/// Local names of keys, as the scripts use them in calls.
const KEY_NAMES: [(&str, &str); 3] = [("key", "KEYS[1]"), ("read_key", "KEYS[1]"), ("write_key", "KEYS[2]")];

/// Returns the portable form of a script. A script has only comments of one line, and texts in single quotes.
pub(crate) fn portable(script: &str) -> String {
    let lines = script.lines().map(|line| match without_comment(line) {
        line if line.starts_with("#!") => PRELUDE.to_owned(),
        line if line.starts_with(CALL_LINE) => line.replacen("call, ", "", 1).replacen("redis.call, ", "", 1),
        line => with_calls_in_full(line),
    });
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// Returns a script that publishes by `PUBLISH`, for servers without `SPUBLISH`.
pub(crate) fn unsharded(script: &str) -> String {
    script.replace("'SPUBLISH'", "'PUBLISH'")
}

fn without_comment(line: &str) -> &str {
    let mut is_in_text = false;
    for (at, letter) in line.char_indices() {
        is_in_text ^= letter == '\'';
        if !is_in_text && line[at..].starts_with("--") {
            return line[..at].trim_end();
        }
    }
    line
}

/// Writes out `redis.call` and the keys in the calls of a line.
fn with_calls_in_full(line: &str) -> String {
    let mut parts = line.split("call('");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_local = !text.ends_with(['.', 'p']);
        text.push_str(if is_local { "redis.call('" } else { "call('" });
        let (command, args) = part.split_once("', ").unwrap_or((part, ""));
        let key = KEY_NAMES.iter().find_map(|(name, key)| Some((key, args.strip_prefix(name)?)));
        match key.filter(|(_, rest)| rest.starts_with([',', ')'])) {
            Some((key, rest)) => text.extend([command, "', ", key, rest]),
            None => text.push_str(part),
        }
    }
    text
}
