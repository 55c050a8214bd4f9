//! Tables in Markdown.

use cluster_testenv::Server;

/// On what all this was measured.
pub(crate) fn machine(server: Server) {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    println!("{server}, {cores} cores of{}\n", model.trim_start().trim_start_matches(':'));
}

pub(crate) fn heading(text: &str) {
    println!("\n### {text}\n");
}

pub(crate) fn columns(names: &[&str]) {
    println!("| {} |", names.join(" | "));
    println!("|{}", "---|".repeat(names.len()));
}

pub(crate) fn row(name: &str, cells: &[String]) {
    println!("| {name} | {} |", cells.join(" | "));
}

/// A peer that cannot do this.
pub(crate) fn no_row(name: &str, columns: usize) {
    row(name, &vec!["-".to_owned(); columns]);
}

/// With as many digits as say something.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value >= 10_000.0 => thousands(value.round() as u64),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}
