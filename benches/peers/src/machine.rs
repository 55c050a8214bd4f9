//! Machine and commit of a measurement.

use std::process::Command;

use super::*;

pub(crate) fn description() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    format!("{cores} cores of {model}, Linux {}", said("uname", &["-r"]))
}

pub(crate) fn date() -> String {
    said("date", &["-u", "+%F"])
}

/// Returns the commit of this repository at the start of the program, with a number for uncommitted changes.
pub(crate) fn commit() -> String {
    static COMMIT: LazyLock<String> = LazyLock::new(|| {
        let commit = said("git", &["rev-parse", "--short", "HEAD"]);
        let changes = said("sh", &["-c", "git diff HEAD | git hash-object --stdin | cut -c1-7"]);
        let is_clean = said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
        if is_clean { commit } else { format!("{commit} with changes {changes}") }
    });
    COMMIT.clone()
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
