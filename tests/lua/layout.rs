//! The hash as the cases see it: each packed field taken apart into fields of one value, under the names of `lua/README.md`.

use std::collections::BTreeMap;

pub type Fields = BTreeMap<String, String>;

/// What a header holds, in its order.
const WRITER: [&str; 4] = ["D", "I", "T", "W"];
const READERS: [&str; 4] = ["a", "m", "v", "o"];
const QUEUE: [&str; 7] = ["u", "turn", "turn readers", "waiting", "writers", "N", "P"];

/// A header without its version. What is nothing there is no field here.
fn header(fields: &mut Fields, names: &[&str], words: &[&str]) {
    assert_eq!(words.len(), names.len(), "{words:?}");
    for (name, word) in names.iter().zip(words) {
        let nothing = *word == "-" || *word == "0" && ["v", "o"].contains(name);
        if !nothing {
            fields.insert((*name).to_owned(), (*word).to_owned());
        }
    }
}

fn number(text: &str) -> i64 {
    text.parse().expect("a number")
}

/// The header of a reader alone, if there is place in it for all that is known, and who that is.
fn sole(fields: &Fields) -> Option<(String, &str)> {
    let id = fields.get("r1").filter(|_| fields.get("kind").is_some_and(|kind| kind == "s"))?;
    let (ends, since) = (fields.get(&format!("R{id}"))?, fields.get("i1")?);
    let fits = fields["a"] == "1"
        && fields["m"] == format!("{ends}.0")
        && !["v", "o"].iter().any(|name| fields.contains_key(*name));
    fits.then(|| (format!("3 s {ends} {since} {id}"), id.as_str()))
}

pub fn unpack(raw: &Fields) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in raw {
        let words: Vec<_> = value.split(' ').collect();
        match (name.as_str(), words.as_slice()) {
            ("h", ["3", "w", ends, since, tokens, id]) => {
                // The number of its tokens, of which the first is looked at.
                let first = (number(&raw["t"]) - number(tokens) + 1).to_string();
                header(&mut fields, &WRITER, &[ends, since, &first, id]);
            }
            // A reader alone, as if it had a slot.
            ("h", ["3", "s", ends, since, id]) => {
                let stamp = format!("{ends}.0");
                header(&mut fields, &READERS, &["1", &stamp, "0", "0"]);
                let about =
                    [("kind", "s"), ("r1", id), ("i1", since), (&format!("s{id}"), "1"), (&format!("R{id}"), ends)];
                fields.extend(about.map(|(name, value)| (name.to_owned(), value.to_owned())));
            }
            ("h", ["3", kind, rest @ ..]) => {
                header(&mut fields, &READERS, rest);
                fields.insert("kind".to_owned(), (*kind).to_owned());
            }
            ("u", ["3", rest @ ..]) => header(&mut fields, &QUEUE, rest),
            (name, [deadline_ms, since_ms]) if name.starts_with('R') => {
                fields.insert(name.to_owned(), (*deadline_ms).to_owned());
                let slot = &raw[&format!("s{}", &name[1..])];
                fields.insert(format!("i{slot}"), (*since_ms).to_owned());
            }
            (name, [until_ms, claim_ms, since_ms, turns]) if name.starts_with('U') => {
                for (letter, word) in [("U", until_ms), ("C", claim_ms), ("S", since_ms), ("B", turns)] {
                    fields.insert(format!("{letter}{}", &name[1..]), (*word).to_owned());
                }
            }
            _ => {
                fields.insert(name.to_owned(), value.clone());
            }
        }
    }
    fields
}

pub fn pack(fields: &Fields) -> Fields {
    let words = |names: &[&str], nothing: &str| {
        let word = |name: &&str| fields.get(*name).map_or(nothing, String::as_str).to_owned();
        names.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    let mut raw = Fields::new();
    let sole = sole(fields);
    if fields.contains_key("W") {
        let word = |name: &str| fields.get(name).map_or("0", String::as_str);
        let tokens = number(word("t")) - number(word("T")) + 1;
        raw.insert("h".to_owned(), format!("3 w {} {} {tokens:04} {}", word("D"), word("I"), word("W")));
    } else if let Some((header, _)) = &sole {
        raw.insert("h".to_owned(), header.clone());
    } else if let Some(kind) = fields.get("kind") {
        let kind = if kind == "s" { "r" } else { kind };
        raw.insert("h".to_owned(), format!("3 {kind} {}", words(&READERS, "0")));
    }
    if fields.contains_key("u") {
        raw.insert("u".to_owned(), format!("3 {}", words(&QUEUE, "-")));
    }
    let in_headers =
        |name: &str| WRITER.iter().chain(&READERS).chain(&QUEUE).any(|other| *other == name) || name == "kind";
    let with_sole = |name: &str| {
        sole.as_ref().is_some_and(|(_, id)| name == "r1" || name.get(1..) == Some(*id) && name.starts_with(['s', 'R']))
    };
    let packed = |name: &str| in_headers(name) || with_sole(name);
    for (name, value) in fields.iter().filter(|(name, _)| !packed(name)) {
        let of = |letter: &str| fields[&format!("{letter}{}", &name[1..])].clone();
        match name.chars().next() {
            Some('i' | 'C' | 'S' | 'B') => {}
            Some('R') => {
                let since_ms = &fields[&format!("i{}", of("s"))];
                raw.insert(name.clone(), format!("{value} {since_ms}"));
            }
            Some('U') => {
                raw.insert(name.clone(), format!("{value} {} {} {}", of("C"), of("S"), of("B")));
            }
            _ => {
                raw.insert(name.clone(), value.clone());
            }
        }
    }
    raw
}
