//! Tests of the documents. The targets of links exist in the repository and in the package, and examples are complete.

use std::fs;
use std::path::{Component, Path, PathBuf};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a file of the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all documents, by their paths within the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/zh-CN", "examples", "lua", "cluster-testenv", "cli"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|ext| ext == "md") {
                found.push(path.strip_prefix(root()).expect("below it").to_owned());
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// Returns the text outside of code, and the code.
fn prose_and_code(text: &str) -> (String, String) {
    let (mut prose, mut code, mut inside) = (String::new(), String::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else {
            let to = if inside { &mut code } else { &mut prose };
            to.push_str(line);
            to.push('\n');
        }
    }
    (prose, code)
}

/// Returns the targets of links within the repository: the file, and the heading if there is one.
fn links(text: &str) -> Vec<(String, Option<String>)> {
    let (prose, _) = prose_and_code(text);
    let targets =
        prose.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()));
    let inner = targets.filter(|target| !target.contains("://"));
    let parts = inner.map(|target| match target.split_once('#') {
        Some((file, heading)) => (file.to_owned(), Some(heading.to_owned())),
        None => (target, None),
    });
    parts.collect()
}

/// Returns the anchors of the headings, in the form that links use.
fn anchors(text: &str) -> Vec<String> {
    let (prose, _) = prose_and_code(text);
    let headings = prose.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    headings.map(|line| line.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// Returns the path of a link's target, without `..`.
fn resolved(from: &Path, target: &str) -> PathBuf {
    let mut path = from.parent().expect("a folder").to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{target} leads out of the repository"),
            part => path.push(part),
        }
    }
    path
}

/// Returns the patterns of the files that `Cargo.toml` puts into the package.
fn packaged() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("\ninclude = [").expect("a list");
    let (list, _) = rest.split_once(']').expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_packaged(path: &Path, patterns: &[String]) -> bool {
    let path = format!("/{}", path.display());
    patterns.iter().any(|pattern| match pattern.split_once('*') {
        // A link to a folder counts as packaged if the pattern is for files in the folder.
        Some((start, end)) => path.starts_with(start) && path.ends_with(end) || path == start.trim_end_matches('/'),
        None => path == *pattern || path.starts_with(&format!("{pattern}/")),
    })
}

/// Folders of pictures and of tables of measurements, which only the repository has.
const MEASUREMENTS: [&str; 3] = ["docs/PERFORMANCE", "docs/BENCHES", "docs/RELIABILITY"];

#[test]
fn links_lead_somewhere_in_the_repository_and_in_the_package() {
    let patterns = packaged();
    assert!(patterns.iter().all(|pattern| pattern.starts_with('/')), "not anchored: {patterns:?}");
    let mut seen = 0;
    for document in documents() {
        let text = read(&document);
        for (file, heading) in links(&text) {
            let target = if file.is_empty() { document.clone() } else { resolved(&document, &file) };
            let shown = format!("{} -> {}", document.display(), target.display());
            assert!(root().join(&target).exists(), "{shown}: it is not there");
            let is_measurement = MEASUREMENTS.iter().any(|folder| target.starts_with(folder));
            if is_packaged(&document, &patterns) && !is_measurement {
                assert!(is_packaged(&target, &patterns), "{shown}: it is not in the package");
            }
            if let Some(heading) = heading {
                let anchors = anchors(&read(&target));
                assert!(anchors.contains(&heading), "{shown}: no {heading} in {anchors:?}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} links");
}

#[test]
fn readme_is_short_and_its_code_is_whole() {
    let text = read("README.md");
    for line in text.lines().filter(|line| !line.starts_with('|')) {
        assert!(line.chars().count() <= 120, "longer than 120: {line}");
    }
    assert!(text.lines().count() <= 135, "{} lines: details go to docs/", text.lines().count());
    let (_, code) = prose_and_code(&text);
    assert!(!code.lines().any(|line| line == "#" || line.starts_with("# ")), "a line that only rustdoc hides");
    let install = code.lines().filter(|line| line.starts_with("cluster-testenv/install && ")).count();
    assert_eq!(install, 1, "`.ci/run` takes its command from here");
}

#[test]
fn every_example_is_named_in_a_document_and_run_by_a_test() {
    let texts: String = documents().iter().map(read).collect();
    let mut tests = read(".ci/run");
    let mut folders = vec![root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of tests") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                tests += &read(&path);
            }
        }
    }
    for entry in fs::read_dir(root().join("examples")).expect("there are examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ext| ext == "md") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_str().expect("text").to_owned();
        assert!(texts.contains(&name), "no document names {name}");
        let runs = [format!("\"{name}\""), format!("--example {name}")];
        assert!(runs.iter().any(|run| tests.contains(run)), "nobody runs {name}");
    }
}
