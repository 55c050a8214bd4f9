//! Results, as they are stored: each turn for itself, so that a run can continue where another one ended.

use serde::Serialize;

use super::*;

/// Figure over all turns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Figure {
    /// Returns the figure of these values, or `None` without values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let median = median(&mut values);
        Some(Self { median, low: values[0], high: values[values.len() - 1] })
    }

    /// Returns true if its turns differ by more than a fifth, so that another run may have another result.
    pub(crate) fn is_unsteady(self) -> bool {
        self.high > 1.2 * self.low
    }
}

#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Values of each turn, one for each column.
    pub(crate) turns: Vec<Vec<f64>>,
    /// Reason why there are no turns, or fewer than of others.
    pub(crate) why: Option<Why>,
    pub(crate) versions: String,
}

/// Reason why there are no more turns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The peer cannot do this, or its program is missing. The next run checks that again.
    Cannot(String),
    /// A turn failed.
    Failed(String),
}

impl Row {
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Returns a figure for each column.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let columns = self.turns.first().map_or(0, Vec::len);
        (0..columns).filter_map(|column| self.figure(column)).collect()
    }

    pub(crate) fn figure(&self, column: usize) -> Option<Figure> {
        Figure::of(self.turns.iter().filter_map(|turn| turn.get(column)).copied().collect())
    }

    /// Returns the number of turns that are missing from this number of rounds.
    pub(crate) fn missing(&self, rounds: usize) -> usize {
        if self.why.is_some() { 0 } else { rounds.saturating_sub(self.turns.len()) }
    }

    /// Returns the reason for the report. The turns before a failed one count, and the reason then names the failure.
    pub(crate) fn reason(&self) -> Option<String> {
        match (self.why.as_ref()?, self.turns.len()) {
            (Why::Cannot(why), 0) | (Why::Failed(why), 0) => Some(why.clone()),
            (Why::Cannot(_), _) => None,
            (Why::Failed(why), turns) => Some(format!("it failed after {turns} turns: {why}")),
        }
    }
}

/// Direction in which the values of a column are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Better {
    More,
    Less,
}

/// Table of several peers. The report compares and draws the first column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Tables of one group are drawn in one picture.
    pub(crate) group: String,
    pub(crate) title: String,
    /// Position within its group, with the unit: for example 16 tasks.
    pub(crate) at: Option<(f64, String)>,
    pub(crate) better: Better,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

impl Table {
    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    pub(crate) fn missing(&self, rounds: usize) -> usize {
        self.rows.iter().map(|row| row.missing(rounds)).sum()
    }
}

/// Circumstances that must not change between the turns of a scenario, because its tables name one of each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    pub(crate) commit: String,
    pub(crate) machine: String,
    pub(crate) server: String,
    /// Length of one turn.
    pub(crate) span_ms: u64,
    pub(crate) is_lessened: bool,
}

/// Tables of a scenario on one server, with the circumstances of their turns.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Chapter {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) circumstances: Circumstances,
    /// Dates of the first and the last turn.
    pub(crate) dates: (String, String),
    /// Number of turns that each row is to have.
    pub(crate) rounds: usize,
    pub(crate) tables: Vec<Table>,
}

impl Chapter {
    pub(crate) fn title(&self) -> String {
        format!("{} on {}", self.scenario, self.circumstances.server)
    }

    pub(crate) fn missing(&self) -> usize {
        self.tables.iter().map(|table| table.missing(self.rounds)).sum()
    }
}
