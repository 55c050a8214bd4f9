//! Pictures: for each table of a group a dot for each peer, on a logarithmic scale, with its spread as a line through
//! it. Above them the courses of the peers, if the tables of the group differ in a quantity.

mod course;

use std::fmt::Write;

use crate::print::number;
use crate::table::{Better, Figure, Table};

const WIDTH: i32 = 900;
/// Ends of the scale; names end before its left one.
const LEFT: i32 = 330;
const RIGHT: i32 = 800;
const LINE: i32 = 18;
/// Heights above and below the lines of a table.
const HEAD: i32 = 46;
const FOOT: i32 = 14;

const OURS: &str = "#1F5FBF";
const PEER: &str = "#444444";
const FLOOR: &str = "#A8A8A8";
const GRID: &str = "#E2E2E2";

/// Sizes of titles, names and numbers of a scale.
const TITLE: &str = "11.29";
const NAME: &str = "9.677";
const SMALL: &str = "8.064";

type Point = (i32, i32);

/// Rows of a table as they are drawn: the best first.
struct Panel<'a> {
    table: &'a Table,
    rows: Vec<(&'a str, Figure)>,
}

impl<'a> Panel<'a> {
    fn of(table: &'a Table) -> Self {
        let figures = |row: &'a crate::table::Row| Some((row.name.as_str(), row.figure(0)?));
        // On this scale there is no place for what took no time at all.
        let mut rows: Vec<_> = table.rows.iter().filter_map(figures).filter(|(_, figure)| figure.low > 0.0).collect();
        rows.sort_by(|(_, one), (_, other)| match table.better {
            Better::More => other.median.total_cmp(&one.median),
            Better::Less => one.median.total_cmp(&other.median),
        });
        Self { table, rows }
    }

    fn height(&self) -> i32 {
        HEAD + FOOT + LINE * i32::try_from(self.rows.len()).expect("few")
    }
}

/// Returns a picture of tables of one group.
pub(super) fn draw(tables: &[&Table]) -> String {
    let panels: Vec<_> = tables.iter().map(|table| Panel::of(table)).filter(|panel| !panel.rows.is_empty()).collect();
    let course = course::Course::of(tables);
    let mut top = course.as_ref().map_or(0, course::Course::height);
    let height = (top + panels.iter().map(Panel::height).sum::<i32>()).max(LINE);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         xmlns=\"http://www.w3.org/2000/svg\"><rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#FFFFFF\"/>\n"
    );
    if let Some(course) = &course {
        course.draw(&mut svg);
    }
    for panel in &panels {
        draw_panel(&mut svg, panel, top);
        top += panel.height();
    }
    svg + "</svg>\n"
}

fn draw_panel(svg: &mut String, panel: &Panel<'_>, top: i32) {
    let low = panel.rows.iter().map(|(_, figure)| figure.low);
    let scale = Scale::of(low.chain(panel.rows.iter().map(|(_, figure)| figure.high)), (LEFT, RIGHT));
    write(svg, (10, top + 14), &panel.table.title, (TITLE, PEER), "start");
    let first = top + HEAD;
    let last = first + LINE * i32::try_from(panel.rows.len()).expect("few");
    for value in scale.tens() {
        let x = scale.at(value);
        line(svg, &[(x, first - LINE / 2), (x, last - LINE / 2)], GRID);
        write(svg, (x, first - LINE / 2 - 8), &number(value), (SMALL, FLOOR), "middle");
    }
    write(svg, (LEFT - 40, first - LINE / 2 - 8), &panel.table.columns[0], (SMALL, FLOOR), "end");
    for ((name, figure), row) in panel.rows.iter().zip(0..) {
        let y = first + row * LINE;
        let color = color(name);
        write(svg, (LEFT - 10, y), name, (NAME, color), "end");
        line(svg, &[(scale.at(figure.low), y), (scale.at(figure.high), y)], color);
        let x = scale.at(figure.median);
        writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{color}\"/>").expect("room");
        write(svg, (RIGHT + 15, y), &number(figure.median), (NAME, color), "start");
    }
}

fn color(name: &str) -> &'static str {
    match name {
        _ if name.starts_with(crate::peer::OURS) => OURS,
        _ if name.starts_with("floor:") => FLOOR,
        _ => PEER,
    }
}

/// Logarithmic scale, from the greatest power of ten below all values to the least one above them, with the positions
/// of both.
struct Scale {
    from: i32,
    to: i32,
    ends: (i32, i32),
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, ends: (i32, i32)) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        let from = low.log10().floor() as i32;
        Self { from, to: (high.log10().ceil() as i32).max(from + 1), ends }
    }

    fn tens(&self) -> impl Iterator<Item = f64> + use<> {
        (self.from..=self.to).map(|power| 10_f64.powi(power))
    }

    fn at(&self, value: f64) -> i32 {
        let share = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        self.ends.0 + (share * f64::from(self.ends.1 - self.ends.0)).round() as i32
    }
}

fn line(svg: &mut String, points: &[Point], color: &str) {
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
    writeln!(svg, "<polyline fill=\"none\" stroke=\"{color}\" points=\"{}\"/>", points.join(" ")).expect("room");
}

/// Writes a text of this size and color, whose `anchor` is at a point.
fn write(svg: &mut String, (x, y): Point, text: &str, (size, color): (&str, &str), anchor: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let place = format!("x=\"{x}\" y=\"{y}\" dy=\"0.5ex\" text-anchor=\"{anchor}\"");
    writeln!(svg, "<text {place} font-size=\"{size}\" fill=\"{color}\">{text}</text>").expect("room");
}
