//! Files with results, one for each scenario and server. They are written after each turn, so a run can be ended at any
//! time.

use std::fs;

use super::*;

/// Folder of the results. It is in the target folder of cargo, so that `cargo clean` removes it.
pub(crate) const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/figures");
/// Folder of the results of short runs, which must not replace results that took hours.
pub(crate) const LESSENED_FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/figures/lessened");

/// Returns the name of the files of a scenario on a server.
pub(crate) fn name(scenario: &str, server: &str) -> String {
    format!("{scenario}-{server}")
}

pub(crate) fn file(folder: &Path, scenario: Scenario, server: Server) -> PathBuf {
    folder.join(name(&scenario.name(), &server.to_string()) + ".json")
}

/// Returns the results of an earlier run.
pub(crate) fn read(file: &Path) -> Option<Chapter> {
    let text = fs::read_to_string(file).ok()?;
    Some(serde_json::from_str(&text).expect("figures of this version of the program; `--fresh` begins anew"))
}

pub(crate) fn write(file: &Path, chapter: &Chapter) {
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
    // The file is replaced in one step, so a run that is ended meanwhile leaves a whole file.
    let beginning = file.with_extension("new");
    fs::write(&beginning, serde_json::to_string_pretty(chapter).expect("it is text")).expect("it can be kept");
    fs::rename(&beginning, file).expect("it takes the place of the one before");
}

/// Deletes the results of an earlier run, if there are any.
pub(crate) fn remove(file: &Path) {
    if file.exists() {
        fs::remove_file(file).expect("it can be removed");
    }
}

/// Treatment of the turns of an earlier run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// This run continues the earlier one.
    GoesOn,
    /// This run begins anew, because a table names only one commit and one machine.
    IsOver(String),
    /// The run has other options than the stored turns. To measure anew would delete hours of measurement.
    IsOfOtherOptions(String),
}

impl Chapter {
    /// Takes over the turns of an earlier run, if they belong together.
    pub(crate) fn take_over(&mut self, earlier: &Self) -> Earlier {
        let (ours, theirs) = (&self.circumstances, &earlier.circumstances);
        if (ours.span_ms, ours.is_lessened) != (theirs.span_ms, theirs.is_lessened) {
            let lessened = if theirs.is_lessened { " and --lessened" } else { "" };
            return Earlier::IsOfOtherOptions(format!("it was measured with turns of {} ms{lessened}", theirs.span_ms));
        }
        for (what, ours, theirs) in
            [("commit", &ours.commit, &theirs.commit), ("machine", &ours.machine, &theirs.machine)]
        {
            if ours != theirs {
                return Earlier::IsOver(format!("its {what} was {theirs}"));
            }
        }
        // Compared by their positions, because two tables may have the same title.
        for (table, earlier) in self.tables.iter_mut().zip(&earlier.tables) {
            if table.title == earlier.title {
                table.take_over(earlier);
            }
        }
        self.dates.0.clone_from(&earlier.dates.0);
        Earlier::GoesOn
    }
}

impl Table {
    fn take_over(&mut self, earlier: &Self) {
        for row in &mut self.rows {
            let Some(earlier) = earlier.row(&row.name) else { continue };
            // This run tries again what could not take part or failed.
            *row = Row { why: row.why.take(), ..earlier.clone() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Better, Circumstances, Why};

    /// Returns a chapter of three rounds with one row.
    fn chapter(commit: &str, span_ms: u64, turns: usize, why: Option<Why>) -> Chapter {
        Chapter {
            scenario: "uncontended".to_owned(),
            about: String::new(),
            circumstances: Circumstances {
                commit: commit.to_owned(),
                machine: "one".to_owned(),
                server: "redis-8.2".to_owned(),
                span_ms,
                is_lessened: false,
            },
            dates: ("today".to_owned(), "today".to_owned()),
            rounds: 3,
            tables: vec![Table {
                group: "Group".to_owned(),
                title: "Title".to_owned(),
                at: None,
                better: Better::More,
                columns: vec!["pairs/s".to_owned()],
                rows: vec![Row { turns: vec![vec![1.0]; turns], why, ..Row::of("rlock") }],
                notes: Vec::new(),
            }],
        }
    }

    #[test]
    fn turns_of_an_earlier_run_count_if_they_belong_together() {
        let (no_mvn, failed) = (Why::Cannot("no `mvn`".to_owned()), Why::Failed("it ended".to_owned()));
        let others = "it was measured with turns of 300 ms".to_owned();
        for (earlier, outcome, missing) in [
            (chapter("a", 2000, 2, None), Earlier::GoesOn, 1),
            (chapter("a", 2000, 1, Some(failed)), Earlier::GoesOn, 2),
            (chapter("a", 2000, 0, Some(no_mvn)), Earlier::GoesOn, 3),
            (chapter("b", 2000, 2, None), Earlier::IsOver("its commit was b".to_owned()), 3),
            (chapter("a", 300, 2, None), Earlier::IsOfOtherOptions(others), 3),
        ] {
            let mut chapter = chapter("a", 2000, 0, None);
            assert_eq!(chapter.take_over(&earlier), outcome);
            assert_eq!(chapter.missing(), missing, "{earlier:?}");
        }
    }
}
