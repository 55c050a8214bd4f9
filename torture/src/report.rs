//! Prints the table, and decides whether the run was successful.

use std::fmt::Write;

use super::*;
use crate::args::Style;
use crate::groups::GROUP_WAIT;
use crate::judge::{Findings, GroupWaits, QueueChecks, Row};

/// Growth of memory that is no leak. The first minutes of a run fill caches and arenas.
const FLAT_KIB: u64 = 4096;

/// Findings that do not come from the history.
#[derive(Debug)]
pub(crate) struct Aftermath {
    /// Locks with a holder or a waiter one lease after the end of all workers, and keys without an expiry.
    pub(crate) left: usize,
    /// Duration of the part with faults.
    pub(crate) lasted: Duration,
    pub(crate) version: String,
    /// Faults that the run could not cause.
    pub(crate) failed: Vec<String>,
    pub(crate) updates: u64,
}

const HEADS: [&str; 12] = [
    "fault",
    "faults",
    "grants",
    "overlaps",
    "token order",
    "told late",
    "lost updates, fenced",
    "unfenced",
    "longest stall",
    "of it when well",
    "losses, told after at most",
    "no progress",
];

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

fn cells(name: &str, row: &Row) -> [String; 12] {
    let name = if row.column == Column::Right { format!("{name} *") } else { name.to_owned() };
    let losses = if row.losses == 0 { "0".into() } else { format!("{}, {}", row.losses, seconds(row.loss_told_after)) };
    [
        name,
        row.faults.to_string(),
        row.grants.to_string(),
        row.overlaps.to_string(),
        row.token_order.to_string(),
        row.told_late.to_string(),
        row.lost_fenced.to_string(),
        row.lost_unfenced.to_string(),
        seconds(row.stall),
        seconds(row.stall_when_well),
        losses,
        row.no_progress.to_string(),
    ]
}

pub(crate) fn table(style: Style, findings: &Findings) -> String {
    let rows: Vec<_> = findings.rows.iter().map(|(name, row)| cells(name, row)).collect();
    let heads = HEADS.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&rows);
    let mut text = String::new();
    let widths: Vec<_> = (0..HEADS.len()).map(|column| all().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    for (number, row) in all().enumerate() {
        let line = match style {
            Style::Markdown => format!("| {} |", row.join(" | ")),
            Style::Plain => {
                let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
                padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
            }
        };
        // A write into a string cannot fail.
        writeln!(text, "{line}").unwrap_or_default();
        if number == 0 && style == Style::Markdown {
            writeln!(text, "|{}", "---|".repeat(HEADS.len())).unwrap_or_default();
        }
    }
    text
}

/// Prints everything, and returns true if the run was successful.
pub(crate) fn report(args: &Args, findings: &Findings, aftermath: &Aftermath) -> bool {
    let rows = || findings.rows.values();
    let (grants, faults): (usize, usize) = (rows().map(|row| row.grants).sum(), rows().map(|row| row.faults).sum());
    let refused: usize = rows().map(|row| row.refused).sum();
    println!("\n{}", table(args.style, findings));
    println!("* not survived at this level: what happens is counted");
    println!(
        "level {}{}, {}, {}{} workers, seed {}, {:.1} min: {grants} grants, {faults} faults, {} updates, {refused} old tokens refused",
        args.level.name(),
        if args.replicas == Replicas::All { " by all replicas" } else { "" },
        aftermath.version,
        idle_setting(args, findings),
        args.workers,
        args.seed,
        aftermath.lasted.as_secs_f64() / 60.0,
        aftermath.updates,
    );
    match findings.memory {
        Some((first, last)) => println!("memory of the worker that grew most: {first} KiB, {last} KiB at the end"),
        None => println!("memory: no worker lived long enough"),
    }
    findings.queues.iter().for_each(|(checks, waits)| print_queues(checks, waits));
    println!("left on the servers a lease after the end: {}", aftermath.left);
    for failed in &aftermath.failed {
        println!("could not be done: {failed}");
    }
    for (name, row) in &findings.rows {
        for example in row.examples.values() {
            println!("{name}: {example}");
        }
    }
    let complaints = complaints(args, findings, aftermath);
    complaints.iter().for_each(|complaint| println!("FAILED: {complaint}"));
    complaints.is_empty()
}

/// Prints the waits of groups, and the extent of the checks of the queues.
fn print_queues(checks: &QueueChecks, waits: &GroupWaits) {
    let quantiles = [500, 990, 999].map(|of_a_thousand| seconds(waits.quantile(of_a_thousand)));
    let [p50, p99, p99_9] = quantiles;
    println!(
        "groups that waited: {} granted, {} at the limit of {}, {} failed; wait p50 {p50}, p99 {p99}, p99.9 {p99_9}, longest {}",
        waits.granted,
        waits.timed_out,
        seconds(GROUP_WAIT),
        waits.failed,
        seconds(waits.longest),
    );
    println!(
        "queues: {} pairs of a waiter and a later writer compared, {} of them behind a group, {} left out while a server changed its role; {} writers stepped in before a reader for one that gave up; {} waits of a first writer beside readers, {} of them of a group",
        checks.pairs,
        checks.pairs_of_groups,
        checks.left_out,
        checks.stepped_in,
        checks.phases,
        checks.phases_of_groups,
    );
}

/// Formats the setting of cached holds, and its effect.
fn idle_setting(args: &Args, findings: &Findings) -> String {
    match args.cache_for.as_millis() {
        0 => String::new(),
        millis => format!(
            "idle holds for {millis} ms ({:.2} in a worker on average, {} grants at once), ",
            findings.cached_holds, findings.at_once
        ),
    }
}

fn complaints(args: &Args, findings: &Findings, aftermath: &Aftermath) -> Vec<String> {
    let mut complaints = Vec::new();
    let survived = || findings.rows.values().filter(|row| row.column == Column::Left);
    let violations: usize = survived().map(Row::violations).sum();
    match args.plant {
        Some(plant) if violations == 0 => complaints.push(format!("the planted fault {} was not found", plant.name())),
        Some(plant) => println!("the planted fault {} was found: {violations} violations", plant.name()),
        None if violations > 0 => complaints.push(format!("{violations} violations under faults that are survived")),
        None => {}
    }
    if args.plant.is_some() {
        return complaints;
    }
    let fenced: u64 = findings.rows.values().map(|row| row.lost_fenced).sum();
    let idle: usize = findings.rows.values().map(|row| row.no_progress).sum();
    if fenced > 0 {
        complaints.push(format!("{fenced} updates lost behind the fence"));
    }
    if idle > 0 {
        complaints.push(format!("{idle} times a worker had no grant within 3 s after all was well"));
    }
    if findings.queues.as_ref().is_some_and(|(checks, waits)| checks.pairs_of_groups == 0 || waits.granted == 0) {
        complaints.push("no group waited before another writer".to_owned());
    }
    if !args.cache_for.is_zero() && findings.cached_holds == 0.0 {
        complaints.push("no hold ever stayed".to_owned());
    }
    if aftermath.left > 0 {
        complaints.push(format!("{} things left on the servers", aftermath.left));
    }
    if let Some((first, last)) = findings.memory
        && last > first + first / 4 + FLAT_KIB
    {
        complaints.push(format!("memory grew from {first} KiB to {last} KiB"));
    }
    if !aftermath.failed.is_empty() {
        complaints.push("a fault could not be done".to_owned());
    }
    complaints
}
