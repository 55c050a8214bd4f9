//! Columns of text, and locks as rows of them.

use redis_rwlock::LockView;

use crate::span::Span;

/// The heads of what [`row`] makes.
pub(crate) const HEADS: [&str; 7] = ["LOCK", "HELD", "BY", "FOR", "LEFT", "WAITING", "LONGEST"];

/// One line for a lock: who holds it, for how long, and who waits.
pub(crate) fn row(view: &LockView) -> [String; 7] {
    let readers_or_more = view.holders.len() + view.more_holders;
    let (mode, label, age, left) = match view.holders.first() {
        Some(holder) => (
            holder.mode.to_string(),
            if readers_or_more > 1 {
                format!("{} +{}", holder.label, readers_or_more - 1)
            } else {
                holder.label.clone()
            },
            Span(holder.age).to_string(),
            Span(holder.remaining).to_string(),
        ),
        None => Default::default(),
    };
    let waiting = view.waiters.len() + view.more_waiters;
    let longest = view.waiters.iter().map(|waiter| waiter.waiting).max();
    [
        view.name.clone(),
        if mode.is_empty() { "free".to_owned() } else { mode },
        label,
        age,
        left,
        if waiting == 0 { String::new() } else { waiting.to_string() },
        longest.map(|longest| Span(longest).to_string()).unwrap_or_default(),
    ]
}

/// Lines with the heads above, each column as wide as it needs.
pub(crate) fn columns<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let heads = heads.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(rows);
    let widths: Vec<usize> =
        (0..N).map(|n| all().map(|row| shown(&row[n]).chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:width$}", shown(cell)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all().map(line).collect()
}

/// Names and labels come from anybody: nothing of them may be an order to the terminal.
pub(crate) fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
