//! Tables of text, and locks as their rows.

use redis_rwlock::{DurationText, LockView};

use crate::look::Look;

/// Heads of the columns of [`row`].
const HEADS: [&str; 8] = ["LOCK", "HELD", "BY", "FOR", "LEFT", "WAITING", "LONGEST", "NOTE"];
/// Number of characters of a note that a row shows.
const NOTE_LENGTH: usize = 40;

/// Formats a table with a row for each lock. The lines below the table explain the unreadable keys.
pub(crate) fn of_locks(looks: &[Look]) -> Vec<String> {
    let rows: Vec<_> = looks
        .iter()
        .map(|look| match look {
            Look::View(view) => row(view),
            Look::Odd { name, .. } => [name, "unreadable", "", "", "", "", "", ""].map(str::to_owned),
        })
        .collect();
    let mut lines = columns(HEADS, &rows);
    lines.extend(looks.iter().filter_map(Look::problem).map(|problem| format!("unreadable: {}", shown(problem))));
    lines
}

/// Formats a lock as one row: its holders, their times, and its waiters.
fn row(view: &LockView) -> [String; 8] {
    let readers_or_more = view.holders.len() + view.more_holders;
    let (mode, label, age, left) = match view.holders.first() {
        Some(holder) => (
            match (holder.resting, holder.detached) {
                (true, _) => "done".to_owned(),
                (false, true) => "detached".to_owned(),
                (false, false) => holder.mode.to_string(),
            },
            if readers_or_more > 1 {
                format!("{} +{}", holder.label, readers_or_more - 1)
            } else {
                holder.label.clone()
            },
            DurationText(holder.age).to_string(),
            DurationText(holder.remaining).to_string(),
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
        longest.map(|longest| DurationText(longest).to_string()).unwrap_or_default(),
        view.holders.iter().find_map(|holder| holder.note.as_deref()).map(beginning).unwrap_or_default(),
    ]
}

/// Cuts a note that is too long for a row.
fn beginning(note: &str) -> String {
    let mut beginning: String = note.chars().take(NOTE_LENGTH).collect();
    if beginning.len() < note.len() {
        beginning.push('…');
    }
    beginning
}

/// Formats a table whose columns are as wide as their longest cells.
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

/// Escapes the characters that act on a terminal. Names, labels and texts of servers may come from any client. They
/// must not control the terminal or change the reading order of the line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if acts_unseen(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Returns true if a character acts on the output and has no glyph. Examples are control characters, marks of the
/// writing direction, joiners and other marks without width, and line separators.
pub(crate) fn acts_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{70f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}
