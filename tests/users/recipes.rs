//! Tests of `docs/RECIPES.md`: its code is that of the examples. `cli/tests/cli/recipes.rs` runs its commands.

use crate::documents::read;

/// Block of code, and the text of the section around it.
struct Block<'a> {
    section: &'a str,
    language: &'a str,
    code: Vec<&'a str>,
}

/// Returns the blocks of a document.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    for section in text.split("\n## ") {
        let mut open: Option<Block<'_>> = None;
        for line in section.lines() {
            match (line.strip_prefix("```"), open.as_mut()) {
                (Some(language), None) => open = Some(Block { section, language, code: Vec::new() }),
                (Some(_), Some(_)) => found.extend(open.take()),
                (None, Some(block)) => block.code.push(line),
                (None, None) => {}
            }
        }
    }
    found
}

/// Returns the sources of the examples to which a section links.
fn sources(section: &str) -> Vec<String> {
    let names = section.split("](../examples/").skip(1).filter_map(|rest| rest.split_once(')'));
    names.filter(|(name, _)| name.ends_with(".rs")).map(|(name, _)| read(format!("examples/{name}"))).collect()
}

/// Returns true if the source has these lines, one after the other, all indented by the same number of spaces.
fn has_lines(source: &str, code: &[&str]) -> bool {
    let lines: Vec<&str> = source.lines().collect();
    lines.windows(code.len()).any(|window| {
        let indent = window[0].len() - window[0].trim_start().len();
        window.iter().zip(code).all(|(line, expected)| line.get(indent..).unwrap_or_default() == *expected)
    })
}

#[test]
fn code_of_the_recipes_is_that_of_the_examples() {
    let text = include_str!("../../docs/RECIPES.md");
    let mut compared = 0;
    for Block { section, language, code } in blocks(text) {
        let shown = code.join("\n");
        match language {
            "rust,ignore" => {
                let is_there = sources(section).iter().any(|source| has_lines(source, &code));
                assert!(is_there, "no example to which its section links has these lines:\n{shown}");
                compared += 1;
            }
            // The tests of the documentation run it.
            "rust" => {
                let hides = code.iter().any(|line| line.starts_with("# "));
                assert!(!hides, "a line that only rustdoc hides:\n{shown}");
            }
            "sh" | "text" => {}
            other => panic!("CI does not run {other:?}:\n{shown}"),
        }
    }
    assert!(compared >= 9, "{compared} blocks");
}
