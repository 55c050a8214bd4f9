//! Rules for names and comments. One idea has one word, and a comment begins with its subject.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{files, text};

/// A doc comment opens with a verb or with a noun phrase, so with none of these.
const NO_OPENING: [&str; 26] = [
    "What",
    "It",
    "Its",
    "One",
    "That",
    "Of",
    "By",
    "Until",
    "Since",
    "So",
    "For",
    "Whoever",
    "Nobody",
    "Who",
    "The same",
    "Whether",
    "Which",
    "How",
    "Where",
    "When",
    "As",
    "If",
    "Those",
    "Everybody",
    "They",
    "These",
];

/// Words that name no actor.
const NO_ACTOR: [&str; 7] = ["whoever", "whom", "somebody", "is told", "are told", "was told", "be told"];

/// Types of which there are two, with the reason.
const TWINS: [(&str, &str); 1] = [("Sealed", "each closes its own trait")];

/// Functions with a participle as their name that return no future, with the reason.
const PARTICIPLES: [(&str, &str); 1] = [("src/face/blocking.rs: confirmed", "a thread waits in it for the event")];

fn sources(folders: &[(&str, &str)]) -> Vec<(String, String)> {
    folders.iter().flat_map(|(folder, ext)| files(folder, ext)).collect()
}

/// Returns the first words of each doc comment, with the number of its line.
fn openings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        if let Some(mark) = mark.filter(|mark| !before.starts_with(mark)) {
            found.push((number + 1, line[mark.len()..].trim_start()));
        }
        before = line;
    }
    found
}

fn opens_with(comment: &str, word: &str) -> bool {
    comment.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word)
        .any(|(start, _)| !text[..start].ends_with(is_letter) && !text[start + word.len()..].starts_with(is_letter))
}

#[test]
fn doc_comments_open_with_a_verb_or_a_noun() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, text) in
        sources(&[("src", "rs"), ("cluster-testenv", "rs"), ("examples", "rs"), ("cli", "rs"), ("torture", "rs")])
    {
        for (line, comment) in openings(&text) {
            count += 1;
            if NO_OPENING.iter().any(|word| opens_with(comment, word)) {
                wrong.push(format!("{name}:{line}: {comment}"));
            }
        }
    }
    assert!(count > 1_500, "{count} comments");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn sentences_name_their_actor() {
    let mut wrong = Vec::new();
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "lua/README.md"];
    let documents = documents.map(|name| (name.to_owned(), text(name)));
    for (name, text) in sources(&[("src", "rs"), ("lua", "lua"), ("docs", "md")]).into_iter().chain(documents) {
        for (number, line) in text.lines().enumerate() {
            // Names of tests between single marks are no sentences.
            let line: String = line.split('`').step_by(2).collect();
            let is_comment = !name.ends_with(".rs") || line.contains("//");
            let lower = line.to_lowercase();
            wrong.extend(
                NO_ACTOR
                    .iter()
                    .filter(|word| is_comment && has_word(&lower, word))
                    .map(|word| format!("{name}:{}: {word}", number + 1)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the names of the types that a file defines, outside of its tests.
fn types(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let words = code.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let kinds = ["struct ", "enum ", "trait "];
        kinds.iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or_default()
    });
    let end = |letter: char| !letter.is_alphanumeric();
    words.filter_map(|rest| rest.split(end).next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn each_type_has_a_name_of_its_own() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in files("src", "rs") {
        // A second form of the same: without a feature, or for threads.
        if ["off.rs", "no_tls.rs", "blocking.rs"].iter().any(|twin| name.ends_with(twin)) {
            continue;
        }
        for of_type in types(&text) {
            found.entry(of_type).or_default().push(name.clone());
        }
    }
    assert!(found.len() > 200, "{} types", found.len());
    let twice: Vec<_> =
        found.iter().filter(|(name, files)| files.len() > 1 && !TWINS.iter().any(|(twin, _)| twin == name)).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

/// Participles that do not end in `ed`, and verbs in the third person that the code had as names.
const BARE_VERBS: [&str; 24] = [
    "lost", "told", "sent", "held", "kept", "given", "known", "found", "gone", "done", "taken", "begun", "left",
    "heard", "seen", "said", "made", "hears", "says", "asks", "knows", "waits", "keeps", "gives",
];

/// Returns the names of the functions in a text that return no future. A future may have the name of the event at which
/// it resolves, as `closed` of a channel.
fn functions_without_futures(text: &str) -> Vec<&str> {
    let pieces: Vec<&str> = text.split("fn ").collect();
    let functions = pieces.windows(2).filter(|pair| pair[0].ends_with(' ') || pair[0].ends_with('\n'));
    let functions = functions.filter(|pair| !pair[0].ends_with("async ")).filter(|pair| {
        let signature = pair[1].split(['{', ';']).next().unwrap_or_default();
        !signature.contains("Future")
    });
    let name = |rest: &'_ str| rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    functions.filter_map(|pair| Some(&pair[1][..name(pair[1])?])).collect()
}

#[test]
fn functions_are_not_named_by_a_participle() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, text) in sources(&[("src", "rs")]) {
        for name in functions_without_futures(&text) {
            count += 1;
            let is_participle = name.ends_with("ed") && !name.ends_with("eed") || BARE_VERBS.contains(&name);
            let function = format!("{path}: {name}");
            if is_participle && !name.contains('_') && !PARTICIPLES.iter().any(|(allowed, _)| *allowed == function) {
                wrong.push(function);
            }
        }
    }
    assert!(count > 1500, "{count} functions");
    assert!(
        wrong.is_empty(),
        "a question is `is_`, an input is `on_`, a command is an imperative:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn limits_begin_with_max_and_min() {
    let mut wrong = Vec::new();
    for (path, text) in files("src", "rs") {
        for line in text.lines().map(str::trim_start) {
            let constant = line.split_once("const ").and_then(|(_, rest)| rest.split_once(':')).map(|(name, _)| name);
            let is_old =
                |name: &str| name.split('_').any(|part| ["MOST", "LEAST"].contains(&part)) || name.ends_with("_MAX");
            wrong.extend(constant.filter(|name| is_old(name)).map(|name| format!("{path}: {name}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
