//! Series of steps, and the step at which a quantity bends.
//!
//! A step *bends* if the watched time is more than twice that of the first step. It *breaks* if a call fails, a hold is
//! lost or late, or a process needs more than 4 GiB. A series ends with the step that breaks.
//!
//! The first step is measured twice, and so is the first one that bends. The better measurement counts, because other
//! work of the machine disturbs one more often than two.

/// Growth of the watched time at which a step bends.
const BENDS: f64 = 2.0;
/// Largest memory of a process.
const MAX_BYTES: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0;

/// Heads of the first columns: the quantity that grows from step to step, and the time that stays the same until the
/// quantity bends, with its unit.
pub(super) type Heads = [&'static str; 2];

/// Figures of one step.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) watched: f64,
    /// Heads of the other columns, and what stands below them.
    pub(super) cells: Vec<(&'static str, String)>,
    /// Memory of the largest process.
    pub(super) bytes: f64,
    pub(super) failure: Option<String>,
}

enum Verdict {
    Flat,
    Bends(String),
    Breaks(String),
}

/// Measures step after step, and prints a row for each.
pub(super) fn climb(heads: Heads, loads: &[usize], mut measure: impl FnMut(usize) -> Result<Reading, String>) {
    let mut measure =
        |load| measure(load).unwrap_or_else(|failure| Reading { failure: Some(failure), ..Reading::default() });
    let (mut first, mut works, mut bend, mut end) = (None, None, None, None);
    for &load in loads {
        let mut reading = measure(load);
        let bends_first = bend.is_none() && growth(&reading, first) > BENDS;
        if reading.failure.is_none() && (first.is_none() || bends_first) {
            let again = measure(load);
            if again.failure.is_some() || again.watched < reading.watched {
                reading = again;
            }
        }
        if first.is_none() {
            println!("{}  verdict", columns(heads, &reading).collect::<Vec<_>>().join("  "));
        }
        let verdict = judge(heads, &reading, first);
        print(heads, load, &reading, &verdict);
        first = first.or(Some(reading.watched));
        match verdict {
            Verdict::Flat if bend.is_none() => works = Some(load),
            Verdict::Flat => {}
            Verdict::Bends(reason) => bend = bend.or(Some((load, reason))),
            Verdict::Breaks(reason) => {
                end = Some((load, reason));
                break;
            }
        }
    }
    let tell = |word: &str, step: Option<(usize, String)>| {
        step.map_or_else(|| format!("{word} nowhere"), |(load, reason)| format!("{word} at {load} ({reason})"))
    };
    let works = works.map_or_else(|| "nowhere".to_owned(), |load| format!("up to {load}"));
    println!("limit: {}: flat {works}, {}, {}", heads[0].trim(), tell("bends", bend), tell("breaks", end));
}

/// Returns the watched time as a multiple of that of the first step.
fn growth(reading: &Reading, first: Option<f64>) -> f64 {
    first.map_or(1.0, |first| reading.watched / first)
}

fn judge([_, watched]: Heads, reading: &Reading, first: Option<f64>) -> Verdict {
    if let Some(failure) = &reading.failure {
        return Verdict::Breaks(failure.clone());
    }
    if reading.bytes > MAX_BYTES {
        return Verdict::Breaks(format!("{:.1} GiB", reading.bytes / f64::from(1 << 30)));
    }
    let growth = growth(reading, first);
    if growth > BENDS { Verdict::Bends(format!("{watched} {growth:.1} times")) } else { Verdict::Flat }
}

fn columns(heads: Heads, reading: &Reading) -> impl Iterator<Item = &'static str> {
    heads.into_iter().chain(reading.cells.iter().map(|(head, _)| *head))
}

fn print(heads: Heads, load: usize, reading: &Reading, verdict: &Verdict) {
    let watched =
        if reading.watched < 10.0 { format!("{:.2}", reading.watched) } else { format!("{:.0}", reading.watched) };
    let cells = [load.to_string(), watched].into_iter().chain(reading.cells.iter().map(|(_, cell)| cell.clone()));
    for (cell, head) in cells.zip(columns(heads, reading)) {
        print!("{cell:<width$}  ", width = head.len());
    }
    match verdict {
        Verdict::Flat => println!("flat"),
        Verdict::Bends(_) => println!("bends"),
        Verdict::Breaks(reason) => println!("breaks: {reason}"),
    }
}
