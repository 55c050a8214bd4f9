//! Tables and pictures of what was seen, in one folder.

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

const MADE: &str = "Made by `cargo run --release -- report` in benches/peers.";
const LEGEND: &str = "A figure is the median of its turns, `low to high` are the lowest and the highest of them. `to ours` \
     says how many times as good as the first row of ours a row is: above 1 it is ahead.";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The folder for the tables and the pictures: docs/PERFORMANCE of the repository.
    #[arg(long)]
    out: PathBuf,
    /// The folder with the figures that runs have kept.
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
    fs::create_dir_all(out).expect("a folder can be made");
    for chapter in &chapters {
        let scenario = &chapter.scenario;
        for (number, group) in groups(&chapter.tables).iter().enumerate() {
            picture::draw(&out.join(format!("{scenario}-{}.svg", number + 1)), group);
        }
        fs::write(out.join(format!("{scenario}.txt")), text(chapter)).expect("the tables can be written");
    }
    fs::write(out.join("peers.txt"), peers(&chapters, &missing)).expect("the list can be written");
}

/// Returns all tables of a scenario, behind how they came about.
fn text(chapter: &Chapter) -> String {
    let mut text = format!("{} {MADE}\n\n{}\n\n{LEGEND}\n", circumstances(chapter), chapter.about);
    text += &print::notes(&chapter.tables);
    text += &chapter.tables.iter().map(print::table).collect::<String>();
    text
}

/// Returns the chapters that runs have kept, in the order of the scenarios, and the scenarios without one.
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

/// Returns the versions of the peers, and what is not here.
fn peers(chapters: &[Chapter], missing: &[Scenario]) -> String {
    let mut text = format!(
        "Versions of the peers in the runs beside this file, each of which names its date and commit. {MADE}\n\n"
    );
    for (name, versions) in versions(chapters) {
        text += &format!("{name}: {versions}\n");
    }
    text + "\nNot here:\n" + &left_out(chapters, missing)
}

/// Returns the versions of the peers that name theirs, by the peer's name.
fn versions(chapters: &[Chapter]) -> BTreeMap<&str, &str> {
    let rows = chapters.iter().flat_map(|chapter| &chapter.tables).flat_map(|table| &table.rows);
    rows.filter(|row| !row.versions.is_empty()).map(|row| (row.name.as_str(), row.versions.as_str())).collect()
}

fn circumstances(chapter: &Chapter) -> String {
    let Chapter { date, machine, server, commit, rounds, span_ms, .. } = chapter;
    format!("{date}, commit {commit}, {server}, {machine}; {rounds} rounds with turns of {span_ms} ms.")
}

/// Names each peer and scenario that is left out, with the reason.
fn left_out(chapters: &[Chapter], missing: &[Scenario]) -> String {
    let mut text = String::new();
    for (name, why) in ABSENT {
        text += &format!("  {name}: {why}.\n");
    }
    for scenario in missing {
        text += &format!("  The scenario `{}` has not been run.\n", scenario.name());
    }
    let tables = || chapters.iter().flat_map(|chapter| &chapter.tables);
    let was_asked = |kind: &Kind| tables().any(|table| table.rows.iter().any(|row| row.name == kind.name()));
    for kind in Kind::all().iter().filter(|kind| !was_asked(kind)) {
        text += &format!("  {}: it was in none of these runs.\n", kind.name());
    }
    let foreign = Kind::all().iter().filter(|kind| kind.facts().program != Program::Own);
    for kind in foreign.filter(|kind| was_asked(kind)) {
        let has_figures =
            tables().any(|table| table.rows.iter().any(|row| row.name == kind.name() && !row.figures.is_empty()));
        if !has_figures {
            text += &format!("  {}: each table says why it has no row.\n", kind.name());
        }
    }
    text
}
