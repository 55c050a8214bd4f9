//! What was seen, as it is kept for the report.

use serde::{Deserialize, Serialize};

use crate::setup::median;

/// One figure over all rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Figure {
    fn of(mut values: Vec<f64>) -> Self {
        let median = median(&mut values);
        Self { median, low: values[0], high: values[values.len() - 1] }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Empty if there is nothing to tell but why.
    pub(crate) figures: Vec<Figure>,
    /// Why there is nothing, or not as much as of others.
    pub(crate) why: Option<String>,
    pub(crate) versions: String,
}

impl Row {
    /// From what each round showed, a value for each column.
    pub(crate) fn of(name: &str, rounds: &[Vec<f64>]) -> Self {
        let columns = rounds.first().map_or(0, Vec::len);
        let figure = |column: usize| Figure::of(rounds.iter().map(|round| round[column]).collect());
        let figures = (0..columns).map(figure).collect();
        Self { name: name.to_owned(), figures, why: None, versions: String::new() }
    }

    pub(crate) fn dash(name: &str, why: &str) -> Self {
        Self { name: name.to_owned(), figures: Vec::new(), why: Some(why.to_owned()), versions: String::new() }
    }
}

/// What a column has and whether much of it is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Better {
    More,
    Less,
}

/// Several peers beside each other. The first column is the one that is compared and drawn.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// All tables of a scenario, and how they came about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chapter {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) server: String,
    pub(crate) commit: String,
    pub(crate) rounds: usize,
    /// Of one turn.
    pub(crate) span_ms: u64,
    pub(crate) tables: Vec<Table>,
}
