//! Goals for figures, as the issue tracker has them, and what was found. A figure is missed if its median misses.

use std::fmt;

use crate::print;
use crate::scenario::Scenario;
use crate::table::{Chapter, Figure, Row, Table};

/// A figure of ours, as multiples of a peer's of the same round if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    what: &'static str,
    scenario: Scenario,
    /// Beginning of the title of its table.
    table: &'static str,
    column: &'static str,
    row: &'static str,
    beside: Option<&'static str>,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

const OURS: &str = "redis-rwlock, hash";
const OURS_PER_ITEM: &str = "redis-rwlock, hash, a lock per item";
const RSLOCK_PER_ITEM: &str = "rslock, a lock per item";
const PUSH: &str = "floor: a bare push";
const RELEASE: &str = "floor: a bare client, commands of the release";

const WRITES_256: &str = "Uncontended writes, 256 tasks";
const READS_256: &str = "Uncontended reads, 256 tasks";
const READERS_100: &str = "One lock, 1 % writes, 100 tasks, 100 independent clients";
const READERS_1000: &str = "One lock, 1 % writes, 1000 tasks, 1000 independent clients";
const WRITERS_100: &str = "One lock, 100 % writes, 100 tasks, 100 independent clients";
const HELD: &str = "10000 locks held by one client";
const WAKE_1: &str = "Wake-up of one waiter of another client after 1 ms";
const WAKE_20: &str = "Wake-up of one waiter of another client after 20 ms";
const WAKE_150: &str = "Wake-up of one waiter of another client after 150 ms";
const MARKET_1_1: &str = "Market, 1 sellers, 1 buyers";
const MARKET_5_1: &str = "Market, 5 sellers, 1 buyers";
const MARKET_5_5: &str = "Market, 5 sellers, 5 buyers";

const RATE: &str = "rate, x `rlock`";
const CLIENT: &str = "client CPU per pair, x `rlock`";
const SERVER: &str = "server CPU per pair, x `rlock`";
const HOLD: &str = "server CPU per hold, x `rlock`";
const FAIR: &str = "most/least served";
const BESIDE_PUSH: &str = "wake-up, x a bare push";
const BESIDE_RELEASE: &str = "wake-up, x a bare client that sends the same commands";
const MARKET: &str = "market, a lock per item, x `rslock`";

use Scenario::{Held, HotRead, HotWrite, Market, Uncontended, WakeUp};

const GOALS: [Goal; 23] = [
    Goal::of(RATE, Uncontended, WRITES_256, "pairs/s").beside("rlock").at_least(1.2),
    Goal::of(RATE, Uncontended, READS_256, "pairs/s").beside("rlock").at_least(1.2),
    Goal::of(CLIENT, Uncontended, WRITES_256, "client us").beside("rlock").at_most(0.8),
    Goal::of(CLIENT, Uncontended, READS_256, "client us").beside("rlock").at_most(0.8),
    Goal::of(SERVER, Uncontended, WRITES_256, "server us").beside("rlock").at_most(1.0),
    Goal::of(SERVER, Uncontended, READS_256, "server us").beside("rlock").at_most(1.0),
    Goal::of(RATE, HotRead, READERS_100, "holds/s").beside("rlock").at_least(1.0),
    Goal::of(RATE, HotRead, READERS_1000, "holds/s").beside("rlock").at_least(0.7),
    Goal::of(HOLD, HotRead, READERS_100, "server us").beside("rlock").at_most(1.3),
    Goal::of(HOLD, HotRead, READERS_1000, "server us").beside("rlock").at_most(1.7),
    Goal::of(FAIR, HotRead, READERS_100, "most/least").at_most(1.2),
    Goal::of(FAIR, HotRead, READERS_1000, "most/least").at_most(1.2),
    Goal::of("p99 of others, x without", Held, HELD, "others' p99, with / without").at_most(1.5),
    Goal::of(BESIDE_PUSH, WakeUp, WAKE_1, "p50 us").beside(PUSH).at_most(1.7),
    Goal::of(BESIDE_PUSH, WakeUp, WAKE_20, "p50 us").beside(PUSH).at_most(1.7),
    Goal::of(BESIDE_PUSH, WakeUp, WAKE_150, "p50 us").beside(PUSH).at_most(1.7),
    Goal::of(BESIDE_RELEASE, WakeUp, WAKE_1, "p50 us").beside(RELEASE).at_most(1.15),
    Goal::of(BESIDE_RELEASE, WakeUp, WAKE_20, "p50 us").beside(RELEASE).at_most(1.15),
    Goal::of(BESIDE_RELEASE, WakeUp, WAKE_150, "p50 us").beside(RELEASE).at_most(1.15),
    Goal::of("rate, x `rslock`", HotWrite, WRITERS_100, "holds/s").beside("rslock").at_least(1.0),
    Goal::of(MARKET, Market, MARKET_1_1, "both in 60 s").per_item().at_least(0.9),
    Goal::of(MARKET, Market, MARKET_5_1, "both in 60 s").per_item().at_least(0.9),
    Goal::of(MARKET, Market, MARKET_5_5, "both in 60 s").per_item().at_least(0.9),
];

/// Figures with goals that no scenario here has.
const ELSEWHERE: &str = "Not here: a local join without the check for a fork, as multiples of `read_owned`. The scenario `joins` of \
     `cargo bench` measures joins.\n";

impl Goal {
    const fn of(what: &'static str, scenario: Scenario, table: &'static str, column: &'static str) -> Self {
        Self { what, scenario, table, column, row: OURS, beside: None, bound: Bound::AtLeast(0.0) }
    }

    const fn beside(self, row: &'static str) -> Self {
        Self { beside: Some(row), ..self }
    }

    const fn per_item(self) -> Self {
        Self { row: OURS_PER_ITEM, beside: Some(RSLOCK_PER_ITEM), ..self }
    }

    const fn at_least(self, least: f64) -> Self {
        Self { bound: Bound::AtLeast(least), ..self }
    }

    const fn at_most(self, most: f64) -> Self {
        Self { bound: Bound::AtMost(most), ..self }
    }

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
        let mut found = values(self.row)?;
        if let Some(beside) = self.beside {
            let others = values(beside)?;
            found = found.iter().zip(others).map(|(ours, other)| ours / other).collect();
        }
        let turns = found.len();
        Figure::of(found).map(|figure| (figure, turns))
    }

    fn verdict(&self, figure: Figure) -> &'static str {
        let is_met = match self.bound {
            Bound::AtLeast(least) => figure.median >= least,
            Bound::AtMost(most) => figure.median <= most,
        };
        if is_met { "met" } else { "missed" }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

/// Returns a line below a table for each goal that it answers, with what it found.
pub(crate) fn below(table: &Table) -> String {
    let found = GOALS.iter().filter(|goal| goal.is_of(table)).filter_map(|goal| Some((goal, goal.found(table)?.0)));
    let line = |(goal, figure): (&Goal, Figure)| {
        let Goal { what, row, bound, .. } = goal;
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
        let chapters = chapters.iter().filter(|chapter| chapter.scenario == goal.scenario.name());
        let tables = chapters.flat_map(|chapter| chapter.tables.iter().map(move |table| (chapter, table)));
        let tables: Vec<_> = tables.filter(|(_, table)| goal.is_of(table)).collect();
        if tables.is_empty() {
            lines.push(line(&goal, "-", None));
        }
        lines.extend(
            tables.iter().map(|(chapter, table)| line(&goal, &chapter.circumstances.server, goal.found(table))),
        );
    }
    format!("{}\n{ELSEWHERE}", print::columns(&lines))
}

fn line(goal: &Goal, server: &str, found: Option<(Figure, usize)>) -> Vec<String> {
    let first = [format!("{}: {}", goal.table, goal.what), server.to_owned()];
    let bound = [goal.bound.to_string()];
    let last = match found {
        None => ["-", "-", "0", "not measured"].map(str::to_owned),
        Some((figure, turns)) => {
            [print::number(figure.median), print::spread(figure), turns.to_string(), goal.verdict(figure).to_owned()]
        }
    };
    first.into_iter().chain(bound).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster_testenv::Server;

    use super::*;
    use crate::scenario::{Lessened, Setting};
    use crate::table::Better;

    /// Each goal is of a table, rows and a column that there are.
    #[test]
    fn goals_are_of_what_is_measured() {
        let setting = Setting {
            server: Server::Redis82,
            span: Duration::from_secs(2),
            market: Duration::from_secs(20),
            lessened: Lessened::No,
            absent: Vec::new(),
        };
        for goal in GOALS {
            let comparisons = goal.scenario.comparisons(&setting);
            let tables: Vec<_> = comparisons.iter().map(|one| &one.table).filter(|table| goal.is_of(table)).collect();
            assert_eq!(tables.len(), 1, "{} is of {} tables", goal.table, tables.len());
            assert!(tables[0].columns.iter().any(|column| column == goal.column), "{}: no {}", goal.table, goal.column);
            for row in [Some(goal.row), goal.beside].into_iter().flatten() {
                let row = tables[0].row(row).unwrap_or_else(|| panic!("{}: no row {row}", goal.table));
                assert_eq!(row.why, None, "{} has no turns", row.name);
            }
        }
    }

    fn table(ours: &[f64], others: &[f64]) -> Table {
        let row = |name: &str, values: &[f64]| Row {
            turns: values.iter().map(|value| vec![*value]).collect(),
            ..Row::of(name)
        };
        Table {
            group: String::new(),
            title: format!("{WRITES_256}, a lock for each, one client, redis-8.2"),
            at: None,
            better: Better::More,
            columns: vec!["pairs/s".to_owned()],
            rows: vec![row(OURS, ours), row("rlock", others)],
            notes: Vec::new(),
        }
    }

    #[test]
    fn ratio_is_the_median_of_the_rounds() {
        let found = GOALS[0].found(&table(&[120.0, 200.0, 90.0], &[100.0, 100.0, 100.0]));
        let figure = Figure { median: 1.2, low: 0.9, high: 2.0 };
        assert_eq!(found, Some((figure, 3)));
        assert_eq!(GOALS[0].verdict(figure), "met");
    }

    #[test]
    fn median_that_misses_is_told() {
        let text = below(&table(&[110.0, 200.0, 90.0], &[100.0, 100.0, 100.0]));
        assert!(text.contains("rate, x `rlock` >= 1.2: 1.10, 0.900 to 2.00 *: missed"), "{text}");
    }

    #[test]
    fn goal_without_turns_is_not_measured() {
        assert_eq!(GOALS[0].found(&table(&[], &[])), None);
        assert!(all(&[]).contains("not measured"));
    }
}
