//! The repository keeps its own rules.

use std::fs;
use std::path::Path;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a file of the repository.
pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns all files below a folder of the repository that end in `ext`: their names, and their texts.
pub(crate) fn files(folder: &str, ext: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the crate") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == ext) {
                let name = path.strip_prefix(root()).expect("below it").display().to_string();
                let text = text(&name);
                found.push((name, text));
            }
        }
    }
    assert!(!found.is_empty(), "no .{ext} in {folder}");
    found
}

/// Returns true for a text that only stands in others.
fn is_part(name: &str) -> bool {
    name.contains("/parts/")
}

/// Returns the scripts without their parts.
fn scripts() -> impl Iterator<Item = (String, String)> {
    files("lua", "lua").into_iter().filter(|(name, _)| !is_part(name))
}

/// Returns the names of the parts that a text includes.
fn included(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("--@")).collect()
}

#[test]
fn no_client_type_is_in_a_public_signature() {
    for (source, text) in files("src", "rs") {
        for line in text.lines().filter(|line| line.trim_start().starts_with("pub ")) {
            let foreign = ["redis::", "deadpool"].iter().any(|word| line.contains(word));
            assert!(!foreign, "{source}: {line}");
        }
    }
}

#[test]
fn each_script_is_embedded_once() {
    let embedding = text("lua/scripts.rs");
    for (script, _) in files("lua", "lua") {
        // A script of all schemes has no folder. The compiler finds each name that is no file.
        let name = script.trim_start_matches("lua/");
        let embedded = match name.split_once('/') {
            Some((scheme, _)) => {
                let (_, rest) =
                    embedding.split_once(&format!("scheme! {{ {scheme};")).expect("the files of the scheme");
                let names =
                    rest.split('}').next().expect("their end").split(|c: char| !c.is_alphanumeric() && c != '_');
                names.filter(|name| *name == stem(&script)).count()
            }
            None => embedding.matches(&format!("include_str!(\"{name}\")")).count(),
        };
        assert_eq!(embedded, 1, "{name} is embedded {embedded} times");
    }
    let others = files("lua", "lua").iter().filter(|(script, _)| script.matches('/').count() == 1).count();
    assert_eq!(embedding.matches("include_str!(\"").count(), others, "a scheme's files are embedded by their names");
    for (source, text) in files("src", "rs") {
        // Those of published clients are for tests.
        let own = text.replace("tests/lua/published/", "").matches(".lua\")").count();
        let theirs = text.matches("tests/lua/published/").count();
        assert!(own <= theirs, "{source} embeds a script on its own");
    }
}

/// A part is in the folder of its scheme, says what it reads and sets, and some script includes it.
#[test]
fn each_part_says_what_it_reads_and_sets() {
    for folder in ["lua/hash", "lua/redisson", "lua/two_key"] {
        check_parts(folder);
    }
}

/// Returns the name of a file without its folder and its end.
fn stem(path: &str) -> &str {
    Path::new(path).file_stem().and_then(|stem| stem.to_str()).expect("a name")
}

fn check_parts(folder: &str) {
    let parts = files(&format!("{folder}/parts"), "lua");
    let texts = files(folder, "lua");
    for (path, text) in &parts {
        let name = stem(path);
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("-- ")).collect();
        for word in ["-- Reads: ", "-- Sets: "] {
            assert!(header.iter().any(|line| line.starts_with(word)), "{name}: its header has no {word:?}");
        }
        assert!(!header[0].starts_with("-- Reads: "), "{name}: its header does not say what it does");
        assert!(text.ends_with('\n'), "{name}: the last line has an end");
        let users = texts.iter().filter(|(_, text)| included(text).contains(&name)).count();
        assert!(users > 0, "{name} is in no script");
    }
    for (path, text) in &texts {
        for name in included(text) {
            assert!(parts.iter().any(|(part, _)| stem(part) == name), "{path}: there is no part {name}");
        }
    }
}

#[test]
fn each_script_has_its_header() {
    for (script, text) in scripts() {
        assert!(text.starts_with("#!lua"), "{script}: no shebang, so no flags");
        let header: String = text.lines().skip(1).take_while(|line| line.starts_with("--")).collect();
        for part in ["KEYS", "Returns"] {
            assert!(header.contains(part), "{script}: its header does not name {part}");
        }
        if text.contains("ARGV[") {
            assert!(header.contains("ARGV"), "{script}: its header does not name ARGV");
        }
    }
}

#[test]
fn sources_are_finished() {
    for (source, text) in files("src", "rs") {
        for word in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "TODO"] {
            assert!(!text.contains(word), "{source} contains {word}");
        }
    }
}

/// What a document names as code, between single marks.
fn named(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).filter(|name| name.starts_with("src/") || name.starts_with("cli/src/")).collect()
}

#[test]
fn architecture_names_what_is_there() {
    let text = text("ARCHITECTURE.md");
    let (mut files, mut functions) = (0, 0);
    for name in named(&text) {
        let (file, function) = name.split_once(": ").map_or((name, None), |(file, function)| (file, Some(function)));
        let source = self::text(file);
        files += 1;
        if let Some(function) = function {
            let is_there =
                [format!("fn {function}("), format!("fn {function}<")].iter().any(|start| source.contains(start));
            assert!(is_there, "{file} has no function {function}");
            functions += 1;
        }
    }
    assert!(files > 40 && functions > 25, "{files} files, {functions} functions");
    for question in ["a hold's renewal is answered", "a future is dropped", "a notification comes"] {
        assert!(text.contains(&format!("| {question} |")), "nobody says what happens when {question}");
    }
}

#[test]
fn events_are_told_in_one_file() {
    for (source, text) in files("src", "rs") {
        let may = source.ends_with("src/base/events.rs") || source.ends_with("tests.rs");
        assert!(may || !text.contains("tracing::"), "{source} tells an event");
    }
}

/// Returns the cells of a line of a table: two spaces or more part them.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// Returns the measured tables of docs/PERFORMANCE, all in one text.
fn measured() -> String {
    files("docs/PERFORMANCE", "txt").into_iter().map(|(_, text)| text).collect()
}

/// The figures of the README are those of the last measurement.
#[test]
fn ratios_of_the_readme_are_measured() {
    let readme = text("README.md");
    let measured = measured();
    let rows: Vec<Vec<&str>> = measured.lines().map(cells).collect();
    let told = readme.split_once("* [Performance]").expect("the figures").1.split("\n* ").next().expect("one point");
    let (mut peer, mut ratios) = ("", 0);
    for word in told.split_whitespace() {
        let word = word.trim_end_matches([',', '.', ';', ':']);
        if let Some(name) = word.strip_prefix('`').and_then(|word| word.strip_suffix('`')) {
            peer = name;
        } else if word.contains('.') && word.parse::<f64>().is_ok() {
            let ratio = format!("{word} x");
            let is_told = rows.iter().any(|row| row.first() == Some(&peer) && row.contains(&ratio.as_str()));
            assert!(is_told, "no row of docs/PERFORMANCE says {ratio} of {peer}");
            ratios += 1;
        }
    }
    assert!(ratios >= 4, "{ratios} ratios");
}

/// Each ratio of the page of conclusions, with its sign, is in a table.
#[test]
fn ratios_of_the_conclusions_are_measured() {
    let page = text("docs/PERFORMANCE.md");
    let measured = measured();
    let known: Vec<&str> = measured.lines().flat_map(cells).collect();
    let words: Vec<&str> = page.split_whitespace().map(|word| word.trim_matches([',', '.', ';', ':', '`'])).collect();
    let told = words.windows(2).filter(|pair| pair[1] == "x" && pair[0].parse::<f64>().is_ok());
    let ratios: Vec<String> = told.map(|pair| format!("{} x", pair[0])).collect();
    assert!(ratios.len() > 80, "{} ratios", ratios.len());
    for ratio in &ratios {
        assert!(known.contains(&ratio.as_str()), "no table of docs/PERFORMANCE has {ratio}");
    }
}

/// A table says at its top what it is of, and its page links to it.
#[test]
fn tables_say_what_they_are_of() {
    for (folder, page) in [("docs/PERFORMANCE", "docs/PERFORMANCE.md"), ("docs/BENCHES", "docs/BENCHES.md")] {
        let text = text(page);
        for (file, table) in files(folder, "txt") {
            let name = file.trim_start_matches("docs/");
            let first = table.lines().next().unwrap_or_default();
            assert!(first.contains("commit") && first.contains("ade by "), "{name} begins with {first:?}");
            assert!(text.contains(&format!("({name})")), "{page} has no link to {name}");
        }
    }
}

/// Chinese text has Chinese punctuation, and what its readers look for is there.
#[test]
fn chinese_page_is_chinese() {
    let text = text("docs/zh-CN/README.md");
    let is_chinese = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    let prose = text.lines().enumerate().filter(|(_, line)| !line.starts_with("    "));
    for (number, line) in prose {
        let chars: Vec<char> = line.chars().collect();
        for pair in chars.windows(2) {
            let is_ascii = |c: char| ",;:?!()\"".contains(c);
            let wrong = is_chinese(pair[0]) && is_ascii(pair[1]) || is_ascii(pair[0]) && is_chinese(pair[1]);
            assert!(!wrong, "line {}: {}{} in {line}", number + 1, pair[0], pair[1]);
        }
    }
    for word in
        ["SETNX", "误删", "可重入", "看门狗", "三分之一", "红锁", "主从", "hash tag", "cache_for", "redis-rwlock run"]
    {
        assert!(text.contains(word), "nothing of {word}");
    }
    let tables = files("docs/PERFORMANCE", "txt").into_iter().filter(|(name, _)| name.contains("/market"));
    let market: String = tables.map(|(_, text)| text).collect();
    let measured: Vec<&str> = market.lines().flat_map(cells).collect();
    let rows = text.lines().filter(|line| line.starts_with("| 1 与") || line.starts_with("| 5 与"));
    let told =
        rows.flat_map(|row| row.split('|').skip(2)).map(|cell| cell.split('（').next().unwrap_or_default().trim());
    let figures: Vec<_> = told.filter(|cell| !cell.is_empty()).collect();
    assert_eq!(figures.len(), 12);
    for figure in figures {
        assert!(measured.contains(&figure), "the market has no {figure}");
    }
}

/// The README and the front page of rustdoc name each feature and each manager.
#[test]
fn front_pages_name_features_and_managers() {
    let (source, manifest) = (text("src/lib.rs"), text("Cargo.toml"));
    let front: String = source.lines().take_while(|line| line.starts_with("//!")).collect();
    let features = manifest.split_once("[features]").expect("features").1.split("\n[").next().expect("their end");
    let names = features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    let names: Vec<&str> = names.filter(|name| *name != "default" && !name.starts_with(['#', ' ', '_'])).collect();
    let sources =
        ["manager", "manager/quorum", "manager/redisson"].map(|name| text(&format!("src/face/{name}.rs"))).concat();
    let managers: Vec<&str> =
        sources.lines().filter_map(|line| line.strip_prefix("manager!(")?.strip_suffix(");")).collect();
    assert!(names.len() >= 3 && managers.len() >= 5, "{names:?} {managers:?}");
    for (page, text) in [("README.md", text("README.md")), ("src/lib.rs", front)] {
        for name in &names {
            assert!(text.contains(&format!("| `{name}` |")), "{page}: no feature {name}");
        }
        for name in &managers {
            let is_there = [format!("| [`{name}`] |"), format!("| `{name}` |")].iter().any(|cell| text.contains(cell));
            assert!(is_there, "{page}: no {name}");
        }
    }
}

/// The guides that the front page of rustdoc links to are in the package.
#[test]
fn guides_of_the_front_page_are_in_the_package() {
    let (source, manifest) = (text("src/lib.rs"), text("Cargo.toml"));
    let linked = source.split("(https://docs.rs/crate/redis-rwlock/latest/source/").skip(1);
    let guides: Vec<&str> = linked.filter_map(|rest| rest.split_once(')')).map(|(path, _)| path).collect();
    assert!(guides.len() > 8, "{guides:?}");
    for guide in guides {
        assert!(root().join(guide).is_file(), "there is no {guide}");
        let folder = guide.split('/').next().expect("a folder");
        let is_packaged = [format!("\"/{folder}\""), format!("\"/{folder}/*.md\""), format!("\"/{guide}\"")]
            .iter()
            .any(|path| manifest.contains(path));
        assert!(is_packaged, "{guide} is not in the package");
    }
}

/// The output in the README is that of the example: numbers and workers differ from run to run, the sentences do not.
#[test]
fn demonstration_in_the_readme_is_that_of_the_example() {
    let readme = text("README.md");
    let (_, rest) = readme.split_once("$ cargo run --example config_service\n").expect("the demonstration");
    let shown: Vec<&str> = rest.split("```").next().expect("its end").lines().collect();
    assert_eq!(shown.len(), 6, "{shown:?}");
    let sources: String = files("examples/config_service", "rs").into_iter().map(|(_, text)| text).collect();
    let sentences = [
        " while it writes v",
        "HALF DONE, ",
        " after the death of ",
        "each update had a higher token than the one before",
        "a late write with the dead worker's token was refused",
        "invariant ",
    ];
    for (line, sentence) in shown.into_iter().zip(sentences) {
        assert!(line.contains(sentence), "{line:?} has no {sentence:?}");
        assert!(sources.contains(sentence), "the example does not print {sentence:?}");
    }
}

/// Every setter of a builder is in the table of options, and in the example that sets them all.
#[test]
fn options_are_listed_where_they_are_looked_for() {
    let (manager, quorum, operations) =
        (text("src/face/manager.rs"), text("src/face/manager/quorum.rs"), text("docs/OPERATIONS.md"));
    let (_, rest) = manager.split_once("/// All options, with their defaults").expect("the example");
    let example = rest.split("pub struct Builder").next().expect("its end");
    let table = operations.split_once("## All options").expect("the table").1.split("\n## ").next().expect("its end");
    let setters = |source: &str| -> Vec<String> {
        let source = source.replace("(\n        mut self", "(mut self");
        let starts = source.split("    pub fn ").skip(1).filter_map(|rest| rest.split_once("(mut self"));
        // The last one needs a cargo feature, and is listed with `credentials`.
        let others = ["background_on", "tls", "streaming_credentials"];
        starts
            .map(|(name, _)| name.to_owned())
            .filter(|name| !name.starts_with('$') && !others.contains(&&**name))
            .collect()
    };
    let (of_all, of_quorum) = (setters(&manager), setters(&quorum));
    assert!(of_all.len() >= 17 && of_quorum.len() == 3, "{of_all:?} {of_quorum:?}");
    for name in of_all.iter().chain(&of_quorum) {
        assert!(table.contains(&format!("| `{name}` |")), "docs/OPERATIONS.md does not list {name}");
        assert!(example.contains(&format!(".{name}(")), "the example of `Builder` does not set {name}");
    }
}
