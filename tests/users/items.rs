//! Tests that every public item has an example, or a link to an item with an example. An example in the documentation
//! of a type counts for the methods that the example calls.

use std::collections::HashSet;

use crate::documents::read;

/// Type, trait, function or method that users can name.
#[derive(Debug)]
struct Item {
    file: String,
    /// Type or trait of a method.
    owner: Option<String>,
    name: String,
    docs: String,
}

impl Item {
    fn code(&self) -> String {
        self.docs.split("```").skip(1).step_by(2).collect()
    }

    /// Returns the names of the items that the documentation links to.
    fn links(&self) -> Vec<String> {
        let mut found = Vec::new();
        for rest in self.docs.split("[`").skip(1) {
            let Some((text, behind)) = rest.split_once("`]") else { continue };
            let target = behind.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(text, |(path, _)| path);
            found.push(last(target));
        }
        for rest in self.docs.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(path, _)| last(path)));
        }
        found
    }
}

fn last(path: &str) -> String {
    path.rsplit("::").next().unwrap_or(path).trim_end_matches("()").to_owned()
}

/// Returns the files of the items that `lib.rs` exports.
fn files() -> Vec<String> {
    let lib = read("src/lib.rs");
    let used = lib.lines().filter_map(|line| line.strip_prefix("pub use ")?.rsplit_once("::"));
    let paths = used.map(|(module, _)| format!("src/{}.rs", module.replace("::", "/")));
    paths.chain(["src/face/blocking.rs".to_owned(), "src/face/manager/quorum.rs".to_owned()]).collect()
}

/// Returns the word after one of these beginnings of a line.
fn word_after<'a>(line: &'a str, starts: &[&str]) -> Option<&'a str> {
    let rest = starts.iter().find_map(|start| line.strip_prefix(start))?;
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().filter(|word| !word.is_empty())
}

/// Returns true if the text is the name of a type.
fn is_name(text: &str) -> bool {
    text.starts_with(char::is_uppercase) && text.chars().all(char::is_alphanumeric)
}

/// Returns the type that an `impl` is for.
fn owner_of(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("impl")?;
    // Bounds in angle brackets, then perhaps a trait, then the type.
    let rest = match rest.strip_prefix('<') {
        Some(bounds) => bounds.split_once("> ")?.1,
        None => rest.trim_start(),
    };
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    word_after(of, &["$", ""]).map(str::to_owned)
}

fn items() -> Vec<Item> {
    let types = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let functions = ["pub fn ", "pub async fn ", "pub const fn "];
    let mut items = Vec::new();
    for file in files() {
        let text = read(&file);
        let (mut docs, mut owner, mut private) = (String::new(), None, false);
        for line in text.split("#[cfg(test)]").next().expect("a beginning").lines() {
            let bare = line.trim();
            private = if bare == "mod sealed {" { true } else { private && line != "}" };
            if bare.starts_with("///") || bare.starts_with("#[doc") {
                docs += bare.trim_start_matches("///");
                docs.push('\n');
                continue;
            }
            if bare.starts_with("#[") || bare.starts_with("//") || bare.starts_with("$(#[") {
                continue;
            }
            owner = owner_of(line).or(owner);
            let named = word_after(bare, &types);
            if bare.starts_with("pub trait ") {
                owner = named.map(str::to_owned);
            }
            // A macro makes some items. Its call has the documentation and the name.
            let made = || line.strip_prefix("    ")?.split_once(", ").filter(|(name, _)| is_name(name));
            let (name, of) = match (named, word_after(bare, &functions)) {
                (Some(name), _) => (Some(name), None),
                (None, Some(name)) => (Some(name), owner.clone()),
                (None, None) if owner.as_deref() == Some("RwLockManager") && line.starts_with("    fn ") => {
                    (word_after(bare, &["fn "]), owner.clone())
                }
                (None, None) => (made().filter(|_| !docs.is_empty()).map(|(name, _)| name), None),
            };
            if let Some(name) = name.filter(|_| !private && !docs.contains("#[doc(hidden)]")) {
                items.push(Item { file: file.clone(), owner: of, name: name.to_owned(), docs: docs.clone() });
            }
            docs.clear();
        }
    }
    items
}

#[test]
fn every_public_item_has_an_example_or_a_link_to_one() {
    let items = items();
    assert!(items.len() > 150, "{} items", items.len());
    let shown_by_its_type = |item: &Item| {
        let owner = item.owner.as_ref()?;
        // One macro makes both guards, and the two types share an example.
        let of_type = items.iter().filter(|other| {
            other.owner.is_none() && (other.name == *owner || owner == "name" && other.name.ends_with("Guard"))
        });
        let code: String = of_type.map(Item::code).collect();
        [".", "::"].iter().any(|dot| code.contains(&format!("{dot}{}(", item.name))).then_some(())
    };
    let has_one = |item: &Item| item.docs.contains("```") || shown_by_its_type(item).is_some();
    let with: HashSet<&str> = items.iter().filter(|item| has_one(item)).map(|item| &*item.name).collect();
    let linked = |item: &Item| item.links().iter().any(|name| with.contains(&**name));
    let without: Vec<String> = items
        .iter()
        .filter(|item| !has_one(item) && !linked(item))
        .map(|item| format!("{}: {} {}", item.file, item.owner.as_deref().unwrap_or_default(), item.name))
        .collect();
    assert!(
        without.is_empty(),
        "{} of {} public items have no example:\n{}",
        without.len(),
        items.len(),
        without.join("\n")
    );
}
