//! Goals for figures, as the issue tracker has them, and what was found. A figure is missed if its median misses.

use super::*;
use crate::setup::Target::{self, AtLeast, AtMost};

/// A figure of ours, as multiples of a peer's of the same round if there is one.
#[derive(Clone, Copy)]
struct Goal {
    what: &'static str,
    /// Beginning of the title of its table.
    table: &'static str,
    column: &'static str,
    rows: Rows,
    bound: Target,
}

/// Row of ours, and the one beside it.
type Rows = (&'static str, Option<&'static str>);

const OURS: &str = "redis-rwlock, hash";
const ALONE: Rows = (OURS, None);
const RLOCK: Rows = (OURS, Some("rlock"));
const RSLOCK: Rows = (OURS, Some("rslock"));
const PUSH: Rows = (OURS, Some("floor: a bare push"));
const RELEASE: Rows = (OURS, Some("floor: a bare client, commands of the release"));
const PER_ITEM: Rows = ("redis-rwlock, hash, a lock per item", Some("rslock, a lock per item"));

const WRITES_256: &str = "Uncontended writes, 256 tasks";
const READS_256: &str = "Uncontended reads, 256 tasks";
const READERS_100: &str = "One lock, 1 % writes, 100 tasks, 100 independent clients";
const READERS_1000: &str = "One lock, 1 % writes, 1000 tasks, 1000 independent clients";
const WRITERS_100: &str = "One lock, 100 % writes, 100 tasks, 100 independent clients";
const HELD: &str = "10000 locks held by one client";
const WAKE_1: &str = "Wake-up of one waiter of another client after 1 ms";
const WAKE_20: &str = "Wake-up of one waiter of another client after 20 ms";
const WAKE_150: &str = "Wake-up of one waiter of another client after 150 ms";

const RATE: &str = "rate, x `rlock`";
const CLIENT: &str = "client CPU per pair, x `rlock`";
const SERVER: &str = "server CPU per pair, x `rlock`";
const HOLD: &str = "server CPU per hold, x `rlock`";
const FAIR: &str = "most/least served";
const BESIDE_PUSH: &str = "wake-up, x a bare push";
const BESIDE_RELEASE: &str = "wake-up, x a bare client that sends the same commands";
const MARKET: &str = "market, a lock per item, x `rslock`";

const GOALS: [Goal; 23] = [
    goal(RATE, WRITES_256, "pairs/s", RLOCK, AtLeast(1.2)),
    goal(RATE, READS_256, "pairs/s", RLOCK, AtLeast(1.2)),
    goal(CLIENT, WRITES_256, "client us", RLOCK, AtMost(0.8)),
    goal(CLIENT, READS_256, "client us", RLOCK, AtMost(0.8)),
    goal(SERVER, WRITES_256, "server us", RLOCK, AtMost(1.0)),
    goal(SERVER, READS_256, "server us", RLOCK, AtMost(1.0)),
    goal(RATE, READERS_100, "holds/s", RLOCK, AtLeast(1.0)),
    goal(RATE, READERS_1000, "holds/s", RLOCK, AtLeast(0.7)),
    goal(HOLD, READERS_100, "server us", RLOCK, AtMost(1.3)),
    goal(HOLD, READERS_1000, "server us", RLOCK, AtMost(1.7)),
    goal(FAIR, READERS_100, "most/least", ALONE, AtMost(1.2)),
    goal(FAIR, READERS_1000, "most/least", ALONE, AtMost(1.2)),
    goal("p99 of others, x without", HELD, "others' p99, with / without", ALONE, AtMost(1.5)),
    goal(BESIDE_PUSH, WAKE_1, "p50 us", PUSH, AtMost(1.7)),
    goal(BESIDE_PUSH, WAKE_20, "p50 us", PUSH, AtMost(1.7)),
    goal(BESIDE_PUSH, WAKE_150, "p50 us", PUSH, AtMost(1.7)),
    goal(BESIDE_RELEASE, WAKE_1, "p50 us", RELEASE, AtMost(1.15)),
    goal(BESIDE_RELEASE, WAKE_20, "p50 us", RELEASE, AtMost(1.15)),
    goal(BESIDE_RELEASE, WAKE_150, "p50 us", RELEASE, AtMost(1.15)),
    goal("rate, x `rslock`", WRITERS_100, "holds/s", RSLOCK, AtLeast(1.0)),
    goal(MARKET, "Market, 1 sellers, 1 buyers", "both in 60 s", PER_ITEM, AtLeast(0.9)),
    goal(MARKET, "Market, 5 sellers, 1 buyers", "both in 60 s", PER_ITEM, AtLeast(0.9)),
    goal(MARKET, "Market, 5 sellers, 5 buyers", "both in 60 s", PER_ITEM, AtLeast(0.9)),
];

const fn goal(what: &'static str, table: &'static str, column: &'static str, rows: Rows, bound: Target) -> Goal {
    Goal { what, table, column, rows, bound }
}

/// Figures with goals that no scenario here has.
const ELSEWHERE: &str = "Not here: a local join without the check for a fork, as multiples of `read_owned`. The scenario `joins` of \
     `cargo bench` measures joins.\n";

impl Goal {
    fn is_of(&self, table: &Table) -> bool {
        table.title.starts_with(&format!("{},", self.table))
    }

    /// Returns the figure of this table, and the number of its turns.
    fn found(&self, table: &Table) -> Option<(Figure, usize)> {
        let column = table.columns.iter().position(|column| column == self.column)?;
        let values = |name: &str| -> Option<Vec<f64>> {
            let Row { turns, .. } = table.row(name)?;
            Some(turns.iter().map(|turn| turn[column]).collect())
        };
        let (ours, beside) = self.rows;
        let mut found = values(ours)?;
        if let Some(beside) = beside {
            let others = values(beside)?;
            found = found.iter().zip(others).map(|(ours, other)| ours / other).collect();
        }
        let turns = found.len();
        Figure::of(found).map(|figure| (figure, turns))
    }

    fn verdict(&self, figure: Figure) -> &'static str {
        if self.bound.is_met_by(figure.median) { "met" } else { "missed" }
    }

    fn bound(&self) -> String {
        match self.bound {
            AtLeast(least) => format!(">= {least}"),
            AtMost(most) => format!("<= {most}"),
        }
    }
}

/// Returns a line below a table for each goal that it answers, with what it found.
pub(crate) fn below(table: &Table) -> String {
    let found = GOALS.iter().filter(|goal| goal.is_of(table)).filter_map(|goal| Some((goal, goal.found(table)?.0)));
    let line = |(goal, figure): (&Goal, Figure)| {
        let (what, bound, (row, _)) = (goal.what, goal.bound(), goal.rows);
        let (median, spread) = (print::number(figure.median), print::spread(figure));
        format!("  {row}: {what} {bound}: {median}, {spread}: {}\n", goal.verdict(figure))
    };
    let lines: String = found.map(line).collect();
    if lines.is_empty() { lines } else { format!("\nGoals, with the ratios of each round:\n{lines}") }
}

/// Returns a line for each goal and each server, with what was found.
pub(crate) fn all(chapters: &[Chapter]) -> String {
    let heads = ["", "server", "goal", "median", "low to high", "turns", ""].map(str::to_owned).to_vec();
    let mut lines = vec![heads];
    for goal in GOALS {
        let before = lines.len();
        for chapter in chapters {
            let tables = chapter.tables.iter().filter(|table| goal.is_of(table));
            lines.extend(tables.map(|table| line(&goal, &chapter.circumstances.server, goal.found(table))));
        }
        if lines.len() == before {
            lines.push(line(&goal, "-", None));
        }
    }
    format!("{}\n{ELSEWHERE}", print::columns(&lines))
}

fn line(goal: &Goal, server: &str, found: Option<(Figure, usize)>) -> Vec<String> {
    let [median, spread, turns, verdict] = match found {
        None => ["-", "-", "0", "not measured"].map(str::to_owned),
        Some((figure, turns)) => {
            [print::number(figure.median), print::spread(figure), turns.to_string(), goal.verdict(figure).to_owned()]
        }
    };
    vec![format!("{}: {}", goal.table, goal.what), server.to_owned(), goal.bound(), median, spread, turns, verdict]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::ValueEnum;
    use cluster_testenv::Server;

    use super::*;
    use crate::scenario::{Comparison, Lessened, Scenario, Setting};

    /// Each goal is of a table, rows and a column that there are. The figures are the ratios of the rounds.
    #[test]
    fn goals_are_of_what_is_measured() {
        let setting = Setting {
            server: Server::Redis82,
            span: Duration::from_secs(2),
            market: Duration::from_secs(20),
            lessened: Lessened::No,
            absent: Vec::new(),
        };
        let comparisons = Scenario::value_variants().iter().flat_map(|scenario| scenario.comparisons(&setting));
        let tables: Vec<Table> = comparisons.map(|Comparison { table, .. }| table).collect();
        for goal in GOALS {
            let mut of_goal = tables.iter().filter(|table| goal.is_of(table));
            let (Some(table), None) = (of_goal.next(), of_goal.next()) else { panic!("{}: not one table", goal.table) };
            let mut table = table.clone();
            let column = table.columns.iter().position(|column| column == goal.column).expect(goal.column);
            for (name, values) in [(Some(goal.rows.0), [110.0, 200.0, 90.0]), (goal.rows.1, [100.0; 3])] {
                let Some(name) = name else { continue };
                let row = table.rows.iter_mut().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"));
                assert_eq!(row.why, None, "{name} has no turns");
                row.turns = values.map(|value| vec![value; column + 1]).to_vec();
            }
            let (median, low, high) = if goal.rows.1.is_some() { (1.1, 0.9, 2.0) } else { (110.0, 90.0, 200.0) };
            assert_eq!(goal.found(&table), Some((Figure { median, low, high }, 3)));
        }
        let misses = Figure { median: 1.19, low: 0.9, high: 2.0 };
        assert_eq!(GOALS[0].verdict(misses), "missed");
        assert!(all(&[]).contains("not measured"));
    }
}
