//! Tables in Markdown.

use crate::peer::OURS;
use crate::table::{Better, Figure, Row, Table};

/// A table with its notes and reasons below. With ratios to the first of ours, so that more than 1 is better than ours whatever is counted.
pub(crate) fn table(table: &Table) -> String {
    let columns = table.columns.len() + 2;
    let (main, others) = table.columns.split_first().expect("a column");
    let heads = [main.as_str(), "low to high", "to ours"].into_iter().chain(others.iter().map(String::as_str));
    let mut text = format!("\n### {}\n\n| | {} |\n", table.title, heads.collect::<Vec<_>>().join(" | "));
    text += &format!("|{}\n", "---|".repeat(columns + 1));
    let reference =
        table.rows.iter().filter(|row| row.name.starts_with(OURS)).find_map(|row| row.figures.first().copied());
    for row in &table.rows {
        text += &line(row, reference, table.better, columns);
    }
    let reasons: Vec<_> = table.rows.iter().filter_map(|row| Some((row.why.as_deref()?, &row.name))).collect();
    for note in &table.notes {
        text += &format!("\n{note}.\n");
    }
    if !reasons.is_empty() {
        text += "\nA dash, or a turn that failed:\n\n";
    }
    let mut told: Vec<&str> = Vec::new();
    for (why, _) in &reasons {
        if !told.contains(why) {
            told.push(why);
            let names: Vec<_> = reasons.iter().filter(|(of, _)| of == why).map(|(_, name)| name.as_str()).collect();
            text += &format!("* {}: {why}.\n", names.join("; "));
        }
    }
    text
}

fn line(row: &Row, reference: Option<Figure>, better: Better, columns: usize) -> String {
    let Some((main, others)) = row.figures.split_first() else {
        return format!("| {} | {} |\n", row.name, vec!["-"; columns].join(" | "));
    };
    let ratio = reference.map(|ours| match better {
        Better::More => main.median / ours.median,
        Better::Less => ours.median / main.median,
    });
    let ratio = ratio.filter(|ratio| ratio.is_finite()).map_or("-".to_owned(), |ratio| format!("{} x", number(ratio)));
    let spread = format!("{} to {}", number(main.low), number(main.high));
    let cells =
        [number(main.median), spread, ratio].into_iter().chain(others.iter().map(|figure| number(figure.median)));
    format!("| {} | {} |\n", row.name, cells.collect::<Vec<_>>().join(" | "))
}

/// With as many digits as say something.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value >= 10_000.0 => thousands(value.round() as u64),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Table {
        Table {
            group: String::new(),
            title: "Locks".to_owned(),
            at: None,
            better: Better::More,
            columns: vec!["pairs/s".to_owned(), "p50 us".to_owned()],
            rows: vec![
                Row::of("redis-rwlock, hash", &[vec![100.0, 2.0], vec![300.0, 3.0], vec![200.0, 1.0]]),
                Row::of("faster", &[vec![400.0, 0.5]]),
                Row::dash("other", "it has no reads"),
            ],
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_row_has_median_spread_and_ratio_to_ours() {
        let text = table(&both());
        assert!(text.contains("| redis-rwlock, hash | 200 | 100 to 300 | 1.00 x | 2.00 |"), "{text}");
        assert!(text.contains("| faster | 400 | 400 to 400 | 2.00 x | 0.500 |"), "{text}");
    }

    #[test]
    fn who_is_less_where_less_is_better_is_ahead() {
        let text = table(&Table { better: Better::Less, ..both() });
        assert!(text.contains("| faster | 400 | 400 to 400 | 0.500 x |"), "{text}");
    }

    #[test]
    fn a_dash_has_a_reason() {
        let text = table(&both());
        assert!(text.contains("| other | - | - | - | - |"), "{text}");
        assert!(text.contains("* other: it has no reads."), "{text}");
    }
}
