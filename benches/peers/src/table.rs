//! What was seen, as it is kept: each turn for itself, so that a run can go on where another one ended.

use serde::{Deserialize, Serialize};

use crate::setup::median;

/// One figure over all turns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Figure {
    /// None of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let median = median(&mut values);
        Some(Self { median, low: values[0], high: values[values.len() - 1] })
    }

    /// Whether its turns differ by more than a fifth, so that another run may tell something else.
    pub(crate) fn is_unsteady(self) -> bool {
        self.high > 1.2 * self.low
    }
}

#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// A value for each column, of each turn.
    pub(crate) turns: Vec<Vec<f64>>,
    /// Why there is nothing, or not as much as of others.
    pub(crate) why: Option<Why>,
    pub(crate) versions: String,
    /// How long all turns took, with their servers and processes.
    pub(crate) took_ms: u64,
}

/// Why there are no more turns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Why {
    /// It cannot do this, or its program is not there. The next run looks at that again.
    Cannot(String),
    /// A turn failed.
    Failed(String),
}

impl Row {
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// A figure for each column.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let columns = self.turns.first().map_or(0, Vec::len);
        (0..columns).filter_map(|column| self.figure(column)).collect()
    }

    pub(crate) fn figure(&self, column: usize) -> Option<Figure> {
        Figure::of(self.turns.iter().filter_map(|turn| turn.get(column)).copied().collect())
    }

    /// How many of so many turns have not been taken.
    pub(crate) fn missing(&self, rounds: usize) -> usize {
        if self.why.is_some() { 0 } else { rounds.saturating_sub(self.turns.len()) }
    }

    /// Turns before one that failed count, and that it failed is told.
    pub(crate) fn reason(&self) -> Option<String> {
        match (self.why.as_ref()?, self.turns.len()) {
            (Why::Cannot(why), 0) | (Why::Failed(why), 0) => Some(why.clone()),
            (Why::Cannot(_), _) => None,
            (Why::Failed(why), turns) => Some(format!("it failed after {turns} turns: {why}")),
        }
    }
}

/// What a column has and whether much of it is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Better {
    More,
    Less,
}

/// Several peers beside each other. The first column is the one that is compared and drawn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Tables of one group are drawn in one picture.
    pub(crate) group: String,
    pub(crate) title: String,
    /// Where it stands within its group, and in what: 16 tasks.
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

/// What has to be the same in all turns of a scenario: its tables name one of each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    pub(crate) commit: String,
    pub(crate) machine: String,
    pub(crate) server: String,
    /// Of one turn.
    pub(crate) span_ms: u64,
    pub(crate) is_lessened: bool,
}

/// All tables of a scenario on one server, and how they came about.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Chapter {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) circumstances: Circumstances,
    /// Of the first turn and of the last one.
    pub(crate) dates: (String, String),
    /// How many turns each row is to have.
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
