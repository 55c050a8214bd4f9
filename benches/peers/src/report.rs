//! What was seen as a page in Markdown, with pictures in a folder beside it.

mod picture;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::peer::Kind;
use crate::print;
use crate::program::{ABSENT, Program};
use crate::scenario::Scenario;
use crate::table::{Chapter, Table};

/// Beside what cargo builds, so that `cargo clean` takes it away.
pub(crate) const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/figures");

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The page. Its pictures go into a folder beside it that is called like it.
    #[arg(long)]
    out: PathBuf,
    /// What runs have left behind.
    #[arg(long, default_value = FIGURES)]
    figures: PathBuf,
}

pub(crate) fn keep(file: &Path, chapter: &Chapter) {
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
    fs::write(file, serde_json::to_string_pretty(chapter).expect("it is text")).expect("it can be kept");
}

pub(crate) fn write(arguments: &Arguments) {
    let Arguments { out, figures } = arguments;
    let (chapters, missing) = read(figures);
    let folder = out.with_extension("");
    fs::create_dir_all(&folder).expect("a folder can be made");
    let mut page = intro(&chapters);
    for chapter in &chapters {
        page += &format!("\n## {}\n\n{}\n\n", chapter.about, circumstances(chapter));
        for (number, group) in groups(&chapter.tables).iter().enumerate() {
            let picture = format!("{}-{}.svg", chapter.scenario, number + 1);
            picture::draw(&folder.join(&picture), group);
            let folder = folder.file_name().expect("it is called like the page").to_string_lossy();
            page += &format!("![{}]({folder}/{picture})\n", group[0].group);
            page += &group.iter().map(|table| print::table(table)).collect::<String>();
            page += "\n";
        }
    }
    page += &left_out(&chapters, &missing);
    fs::write(out, page).expect("the page can be written");
}

/// What there is, in the order of the scenarios, and what there is not.
fn read(figures: &Path) -> (Vec<Chapter>, Vec<Scenario>) {
    let (mut chapters, mut missing) = (Vec::new(), Vec::new());
    for scenario in Scenario::value_variants() {
        match fs::read_to_string(figures.join(format!("{}.json", scenario.name()))) {
            Ok(text) => chapters.push(serde_json::from_str(&text).expect("a run of this version kept it")),
            Err(_) => missing.push(*scenario),
        }
    }
    (chapters, missing)
}

/// Tables that are drawn together follow each other.
fn groups(tables: &[Table]) -> Vec<Vec<&Table>> {
    let mut groups: Vec<Vec<&Table>> = Vec::new();
    for table in tables {
        match groups.last_mut() {
            Some(group) if group[0].group == table.group => group.push(table),
            _ => groups.push(vec![table]),
        }
    }
    groups
}

fn intro(chapters: &[Chapter]) -> String {
    let mut text = "# Performance, side by side\n\n".to_owned();
    text += "Written by `cargo run --release -- report` in `benches/peers`, which is where the scenarios and the peers are \
             described. All figures of a table are of one run, in which the peers take turns, each with servers and processes of \
             its own. A figure is the median of its turns, `low to high` are the lowest and the highest of them. `to ours` says \
             how many times as good as the first row of ours a peer is: above 1 it is ahead. Only ratios travel to other \
             machines. A floor is no lock: it shows what scripts and connections cost alone.\n\n";
    text += "| | versions |\n|---|---|\n";
    for (name, versions) in versions(chapters) {
        text += &format!("| {name} | {versions} |\n");
    }
    text
}

/// What told its version, by its name.
fn versions(chapters: &[Chapter]) -> BTreeMap<&str, &str> {
    let rows = chapters.iter().flat_map(|chapter| &chapter.tables).flat_map(|table| &table.rows);
    rows.filter(|row| !row.versions.is_empty()).map(|row| (row.name.as_str(), row.versions.as_str())).collect()
}

fn circumstances(chapter: &Chapter) -> String {
    let Chapter { date, machine, server, commit, rounds, span_ms, .. } = chapter;
    format!("{date}, commit {commit}, {server}, {machine}; {rounds} rounds with turns of {span_ms} ms.")
}

/// Nothing is left out without a word.
fn left_out(chapters: &[Chapter], missing: &[Scenario]) -> String {
    let mut text = "\n## What is not here\n\n".to_owned();
    for (name, why) in ABSENT {
        text += &format!("* {name}: {why}.\n");
    }
    for scenario in missing {
        text += &format!("* The scenario `{}` has not been run.\n", scenario.name());
    }
    let tables = || chapters.iter().flat_map(|chapter| &chapter.tables);
    let was_asked = |kind: &Kind| tables().any(|table| table.rows.iter().any(|row| row.name == kind.name()));
    for kind in Kind::all().iter().filter(|kind| !was_asked(kind)) {
        text += &format!("* {}: it was in none of these runs.\n", kind.name());
    }
    let foreign = Kind::all().iter().filter(|kind| kind.facts().program != Program::Own);
    for kind in foreign.filter(|kind| was_asked(kind)) {
        let has_figures =
            tables().any(|table| table.rows.iter().any(|row| row.name == kind.name() && !row.figures.is_empty()));
        if !has_figures {
            text += &format!("* {}: each of its rows says why it has a dash.\n", kind.name());
        }
    }
    text
}
