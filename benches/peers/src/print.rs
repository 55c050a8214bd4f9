//! Tables as text: columns stand below each other, two spaces or more apart.

use super::*;
use crate::peer::OURS;

/// Returns a table, with the reasons for missing figures below. Ratios are to the first row of ours: above 1 is better,
/// whatever the table counts.
pub(crate) fn table(table: &Table) -> String {
    let figures = table.rows.iter().map(|row| (row, row.figures()));
    let measured: Vec<(&Row, Vec<Figure>)> = figures.filter(|(_, figures)| !figures.is_empty()).collect();
    let reference = measured.iter().find(|(row, _)| row.name.starts_with(OURS)).map(|(_, figures)| figures[0]);
    // With one turn the lowest and the highest are the median again.
    let has_spread = measured.iter().any(|(_, figures)| figures[0].low < figures[0].high);
    let mut lines = vec![heads(table, has_spread)];
    let line = |(row, figures): &(&Row, Vec<Figure>)| cells(&row.name, figures, reference, table.better, has_spread);
    lines.extend(measured.iter().map(line));
    format!("\n{}\n\n{}{}", table.title, columns(&lines), reasons(table))
}

/// Returns lines whose cells stand below each other, the first on the left of its column and the others on the right.
pub(crate) fn columns(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    lines.iter().map(|line| aligned(line, &widths)).collect()
}

/// Returns the lowest and the highest value, with a mark if another run may have another result.
pub(crate) fn spread(figure: Figure) -> String {
    let mark = if figure.is_unsteady() { " *" } else { "" };
    format!("{} to {}{mark}", number(figure.low), number(figure.high))
}

/// Returns what a reader of these tables has to know, each note once.
pub(crate) fn notes(tables: &[Table]) -> String {
    let mut told: Vec<&str> = Vec::new();
    for note in tables.iter().flat_map(|table| &table.notes) {
        if !told.contains(&note.as_str()) {
            told.push(note);
        }
    }
    told.iter().map(|note| format!("{note}.\n")).collect()
}

fn heads(table: &Table, has_spread: bool) -> Vec<String> {
    let (main, others) = table.columns.split_first().expect("a column");
    let spread = has_spread.then(|| "low to high".to_owned());
    let first = [String::new(), main.clone()];
    first.into_iter().chain(spread).chain(["to ours".to_owned()]).chain(others.iter().cloned()).collect()
}

fn cells(name: &str, figures: &[Figure], reference: Option<Figure>, better: Better, has_spread: bool) -> Vec<String> {
    let (main, others) = figures.split_first().expect("a figure");
    let ratio = reference.map(|ours| match better {
        Better::More => main.median / ours.median,
        Better::Less => ours.median / main.median,
    });
    let ratio = ratio.filter(|ratio| ratio.is_finite()).map_or("-".to_owned(), |ratio| format!("{} x", number(ratio)));
    let spread = has_spread.then(|| spread(*main));
    let first = [name.to_owned(), number(main.median)];
    let others = others.iter().map(|figure| number(figure.median));
    first.into_iter().chain(spread).chain([ratio]).chain(others).collect()
}

/// Returns a line with its name on the left and its figures on the right of their columns.
fn aligned(line: &[String], widths: &[usize]) -> String {
    let cells = line.iter().zip(widths.iter().copied()).enumerate().map(|(column, (cell, width))| match column {
        0 => format!("{cell:width$}"),
        _ => format!("{cell:>width$}"),
    });
    cells.collect::<Vec<_>>().join("  ") + "\n"
}

/// Returns the reasons why rows are missing, or have fewer turns than others. Each reason comes once, after the names
/// of its rows.
fn reasons(table: &Table) -> String {
    let reasons: Vec<(String, &str)> =
        table.rows.iter().filter_map(|row| Some((row.reason()?, row.name.as_str()))).collect();
    if reasons.is_empty() {
        return String::new();
    }
    let mut text = "\nNo row, or a turn that failed:\n".to_owned();
    let mut told: Vec<&str> = Vec::new();
    for (why, _) in &reasons {
        if !told.contains(&why.as_str()) {
            told.push(why);
            let names: Vec<_> = reasons.iter().filter(|(of, _)| of == why).map(|(_, name)| *name).collect();
            text += &format!("  {}: {why}.\n", names.join("; "));
        }
    }
    text
}

/// Returns the number with its significant digits.
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
    use crate::table::Why;

    fn of(name: &str, turns: &[[f64; 2]]) -> Row {
        Row { turns: turns.iter().map(|turn| turn.to_vec()).collect(), ..Row::of(name) }
    }

    fn locks(better: Better, ours: &[[f64; 2]]) -> Table {
        Table {
            group: String::new(),
            title: "Locks".to_owned(),
            at: None,
            better,
            columns: vec!["pairs/s".to_owned(), "p50 us".to_owned()],
            rows: vec![
                of("redis-rwlock, hash", ours),
                of("faster", &[[400.0, 0.5]]),
                Row { why: Some(Why::Cannot("it has no reads".to_owned())), ..Row::of("other") },
            ],
            notes: vec!["A note".to_owned()],
        }
    }

    #[test]
    fn table_has_medians_spreads_ratios_to_ours_and_reasons() {
        let all = locks(Better::More, &[[100.0, 2.0], [300.0, 3.0], [200.0, 1.0]]);
        let text = "
Locks

                    pairs/s   low to high  to ours  p50 us
redis-rwlock, hash      200  100 to 300 *   1.00 x    2.00
faster                  400    400 to 400   2.00 x   0.500

No row, or a turn that failed:
  other: it has no reads.
";
        assert_eq!(table(&all), text);
        assert_eq!(notes(&[all.clone(), all]), "A note.\n");
    }

    #[test]
    fn one_turn_has_no_spread_and_less_may_be_better() {
        let text = table(&locks(Better::Less, &[[100.0, 2.0]]));
        assert!(text.contains("\nfaster                  400  0.250 x   0.500\n"), "{text}");
    }
}
