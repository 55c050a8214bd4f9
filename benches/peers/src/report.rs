//! Tables and pictures of what was seen, in one folder, and whether goals were met.

mod picture;

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::kept::FIGURES;
use crate::program::ABSENT;

const MADE: &str = "Made by `cargo run --release -- report` in benches/peers.";
const LEGEND: &str = "A figure is the median of its turns, `low to high` are the lowest and the highest of them. With `*` these two \
     differ by more than a fifth, and another run may tell something else. `to ours` says how many times as good as the first \
     row of ours a row is: above 1 it is ahead.";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The folder for the tables and the pictures: docs/PERFORMANCE of the repository.
    #[arg(long)]
    out: PathBuf,
    /// The folder with the figures that runs have kept.
    #[arg(long, default_value = FIGURES)]
    figures: PathBuf,
}

pub(crate) fn write(arguments: &Arguments) {
    let Arguments { out, figures } = arguments;
    let (chapters, missing) = read(figures);
    fs::create_dir_all(out).expect("a folder can be made");
    let mut written = Vec::new();
    let mut put = |name: String, text: String| {
        fs::write(out.join(&name), text).expect("a file can be written");
        written.push(name);
    };
    for chapter in &chapters {
        let name = kept::name(&chapter.scenario, &chapter.circumstances.server);
        for (number, group) in groups(&chapter.tables).iter().enumerate() {
            put(format!("{name}-{}.svg", number + 1), picture::draw(group));
        }
        put(format!("{name}.txt"), text(chapter));
    }
    put("goals.txt".to_owned(), goals(&chapters));
    put("peers.txt".to_owned(), peers(&chapters, &missing));
    for name in others(out, &written) {
        println!("{name} is of other figures, and stays");
    }
}

/// Returns what else is in the folder: of an earlier measurement, or of one that has not been repeated.
fn others(out: &Path, written: &[String]) -> Vec<String> {
    let entries = fs::read_dir(out).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut others: Vec<String> = names.filter(|name| !written.contains(name)).collect();
    others.sort();
    others
}

/// Returns the text of a scenario: its circumstances, and then all its tables.
fn text(chapter: &Chapter) -> String {
    let mut text = format!("{} {MADE}\n\n{}\n\n{LEGEND}\n", circumstances(chapter), chapter.about);
    text += &print::notes(&chapter.tables);
    text += &chapter.tables.iter().map(|table| print::table(table) + &goals::below(table)).collect::<String>();
    text
}

/// Returns all goals, and what was found.
fn goals(chapters: &[Chapter]) -> String {
    format!(
        "Goals, and whether the runs beside this file met them, each of which names its date and commit. {MADE}\n\n\
         With `x` a figure is the ratio of ours to that of the other one in the same round. The median is met or missed. With `*` \
         low and high differ by more than a fifth.\n\n{}",
        goals::all(chapters)
    )
}

/// Returns the chapters that runs have stored, in the order of the scenarios, and the scenarios without one.
fn read(figures: &Path) -> (Vec<Chapter>, Vec<Scenario>) {
    let (mut chapters, mut missing) = (Vec::new(), Vec::new());
    for scenario in Scenario::value_variants() {
        let before = chapters.len();
        chapters.extend(Server::ALL.iter().filter_map(|server| kept::read(&kept::file(figures, *scenario, *server))));
        if chapters.len() == before {
            missing.push(*scenario);
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
    let Circumstances { commit, machine, server, span_ms, .. } = &chapter.circumstances;
    let Chapter { dates: (first, last), rounds, .. } = chapter;
    let dates = if first == last { first.clone() } else { format!("{first} to {last}") };
    let missing = match chapter.missing() {
        0 => String::new(),
        missing => format!(" {missing} turns are missing."),
    };
    format!("{dates}, commit {commit}, {server}, {machine}; {rounds} rounds with turns of {span_ms} ms.{missing}")
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
    let rows = || chapters.iter().flat_map(|chapter| &chapter.tables).flat_map(|table| &table.rows);
    for kind in Kind::all() {
        if rows().all(|row| row.name != kind.name() || row.turns.is_empty()) {
            text += &format!("  {}: it has no figures in these runs.\n", kind.name());
        }
    }
    text
}
