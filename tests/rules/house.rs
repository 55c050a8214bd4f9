//! Rules for the folders of `src`: each folder may import only certain other folders.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{files, text};

/// The folders from the top down. A file imports from its own folder and from those below it.
const FLOORS: [&str; 6] = ["face", "engine", "lock", "store", "net", "base"];

/// Pairs of folders that may not import each other in either direction, though one is above the other.
const APART: [(&str, &str); 2] = [("lock", "store"), ("lock", "net")];

/// Returns the folder of a file below `src`, by its path or by its name. `None` for `lib.rs`.
fn folder_of(name: &str) -> Option<&'static str> {
    let first = name.strip_prefix("src/")?.split(['/', '.']).next()?;
    FLOORS.into_iter().find(|folder| *folder == first)
}

/// Returns the code of a file without its comments and without what only tests compile.
fn product_code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns the imports between folders, with the files that have them.
fn arrows() -> BTreeMap<(&'static str, &'static str), BTreeSet<String>> {
    let mut arrows: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in files("src", "rs") {
        let Some(from) = folder_of(&path) else { continue };
        let code = product_code(&text);
        for to in FLOORS.into_iter().filter(|to| *to != from && code.contains(&format!("crate::{to}::"))) {
            arrows.entry((from, to)).or_default().insert(path.clone());
        }
    }
    arrows
}

fn floor(folder: &str) -> usize {
    FLOORS.iter().position(|name| *name == folder).expect("a folder")
}

#[test]
fn imports_point_downwards() {
    let arrows = arrows();
    assert!(arrows.len() >= 10, "{arrows:?}");
    for ((from, to), files) in &arrows {
        assert!(floor(from) < floor(to), "{from} imports from {to}, which is above it: {files:?}");
        let are_apart = APART.iter().any(|(one, other)| (from, to) == (one, other) || (to, from) == (one, other));
        assert!(!are_apart, "{from} must not know {to}: {files:?}");
    }
}

#[test]
fn each_folder_says_what_it_knows() {
    for folder in FLOORS {
        let text = text(&format!("src/{folder}.rs"));
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(head.iter().any(|line| line.contains("Knows ")), "src/{folder}.rs does not say what it knows");
    }
}

/// The program and `torture` are packages of their own, and compile no file of the library.
#[test]
fn programs_use_the_public_surface_only() {
    for (path, text) in files("cli/src", "rs").into_iter().chain(files("torture/src", "rs")) {
        assert!(!text.contains("#[path") && !text.contains("include!("), "{path} includes a file");
    }
    for manifest in ["cli/Cargo.toml", "torture/Cargo.toml"] {
        assert!(!text(manifest).contains("_testing"), "{manifest} asks for what only tests may use");
    }
}

/// Every folder and every file of more than 150 lines has its place on the map.
#[test]
fn architecture_has_every_folder_and_every_long_file() {
    let map = text("ARCHITECTURE.md");
    let programs = files("cli/src", "rs").into_iter().chain(files("torture/src", "rs"));
    for (name, text) in files("src", "rs").into_iter().filter(|(name, _)| folder_of(name).is_some()).chain(programs) {
        let is_head = FLOORS.iter().any(|folder| name == format!("src/{folder}.rs"));
        if text.lines().count() <= 150 && !is_head {
            continue;
        }
        let (_, last) = name.rsplit_once('/').expect("a folder");
        let is_named = map.contains(&name) || map.contains(&format!("`{last}`"));
        assert!(is_named, "ARCHITECTURE.md does not name {name}");
    }
}

/// Tests with files of their own are not in the package, and Cargo compiles them in the repository only.
#[test]
fn package_has_no_file_of_tests() {
    for (name, text) in files("src", "rs") {
        assert!(!name.contains("/tests"), "{name} is a file of tests");
        let mut lines = text.lines().skip_while(|line| !line.starts_with("#[cfg(test)]")).skip(1);
        if lines.next().is_some_and(|line| line.starts_with("mod ")) {
            let length = text.lines().skip_while(|line| !line.starts_with("#[cfg(test)]")).count();
            assert!(length <= 103, "{name} has {length} lines of tests: they belong to testing/unit");
        }
    }
}
