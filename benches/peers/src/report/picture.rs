//! Pictures: for each table of a group a dot for each peer, on a logarithmic scale, with its spread as a line through
//! it. Above them the courses of the peers, if the tables of the group differ in a quantity.

mod course;

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, IntoFont, RGBColor, TextStyle, WHITE};

use super::*;
use crate::print::number;

const WIDTH: i32 = 900;
/// Ends of the scale; names end before its left one.
const LEFT: i32 = 330;
const RIGHT: i32 = 800;
const LINE: i32 = 18;
/// Heights above and below the lines of a table.
const HEAD: i32 = 46;
const FOOT: i32 = 14;

const OURS: RGBColor = RGBColor(0x1f, 0x5f, 0xbf);
const PEER: RGBColor = RGBColor(0x44, 0x44, 0x44);
const FLOOR: RGBColor = RGBColor(0xa8, 0xa8, 0xa8);
const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
    let above = course.as_ref().map_or(0, course::Course::height);
    let height = (above + panels.iter().map(Panel::height).sum::<i32>()).max(LINE);
    let size = [WIDTH, height].map(|length| u32::try_from(length).expect("positive"));
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size.into()).into_drawing_area();
    area.fill(&WHITE).expect("drawn");
    if let Some(course) = &course {
        course.draw(&area);
    }
    let mut top = above;
    for panel in &panels {
        draw_panel(&area, panel, top);
        top += panel.height();
    }
    area.present().expect("drawn");
    drop(area);
    smaller(&svg)
}

/// Returns the picture without attributes that are the default anyway, a third smaller: pictures are in the package.
fn smaller(svg: &str) -> String {
    const SIZE: &str = "font-size=\"";
    let replaced = [
        (" opacity=\"1\"", ""),
        (" font-family=\"sans-serif\"", ""),
        (" text-anchor=\"start\"", ""),
        (" stroke=\"none\" stroke-width=\"1\"", ""),
        (" stroke-width=\"1\"", ""),
        (" \"/>", "\"/>"),
        // A text stands in the line of its tags.
        ("\">\n", "\">"),
        ("\n</text>", "</text>"),
        (" xmlns=", " font-family=\"sans-serif\" xmlns="),
    ];
    let text = replaced.into_iter().fold(svg.to_owned(), |text, (from, to)| text.replace(from, to));
    let mut parts = text.split(SIZE);
    let mut small = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (size, rest) = part.split_once('"').expect("an attribute ends");
        small += &format!("{SIZE}{size:.5}\"{rest}");
    }
    small
}

fn draw_panel(area: &Area<'_>, panel: &Panel<'_>, top: i32) {
    let low = panel.rows.iter().map(|(_, figure)| figure.low);
    let scale = Scale::of(low.chain(panel.rows.iter().map(|(_, figure)| figure.high)), (LEFT, RIGHT));
    write(area, (10, top + 14), &panel.table.title, 14, PEER, HPos::Left);
    let first = top + HEAD;
    let last = first + LINE * i32::try_from(panel.rows.len()).expect("few");
    for value in scale.tens() {
        let x = scale.at(value);
        line(area, (x, first - LINE / 2), (x, last - LINE / 2), GRID);
        write(area, (x, first - LINE / 2 - 8), &number(value), 10, FLOOR, HPos::Center);
    }
    write(area, (LEFT - 40, first - LINE / 2 - 8), &panel.table.columns[0], 10, FLOOR, HPos::Right);
    for ((name, figure), row) in panel.rows.iter().zip(0..) {
        let y = first + row * LINE;
        let color = color(name);
        write(area, (LEFT - 10, y), name, 12, color, HPos::Right);
        line(area, (scale.at(figure.low), y), (scale.at(figure.high), y), color);
        let dot = Circle::new((scale.at(figure.median), y), 4, color.filled());
        area.draw(&dot).expect("drawn");
        write(area, (RIGHT + 15, y), &number(figure.median), 12, color, HPos::Left);
    }
}

fn color(name: &str) -> RGBColor {
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

fn line(area: &Area<'_>, from: (i32, i32), to: (i32, i32), color: RGBColor) {
    area.draw(&PathElement::new(vec![from, to], color)).expect("drawn");
}

fn write(area: &Area<'_>, at: (i32, i32), text: &str, size: u32, color: RGBColor, side: HPos) {
    let font = ("sans-serif", size).into_font().transform(FontTransform::None);
    let style = TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).expect("drawn");
}

#[cfg(test)]
mod tests {
    use super::smaller;

    #[test]
    fn a_smaller_picture_says_the_same() {
        let svg = concat!(
            "<svg width=\"9\" xmlns=\"http://www.w3.org/2000/svg\">\n<text x=\"1\" text-anchor=\"start\" ",
            "font-family=\"sans-serif\" font-size=\"8.064516129032258\" opacity=\"1\" ",
            "fill=\"#444444\">\nlocks\n</text>\n</svg>\n",
        );
        let small = concat!(
            "<svg width=\"9\" font-family=\"sans-serif\" xmlns=\"http://www.w3.org/2000/svg\"><text x=\"1\" ",
            "font-size=\"8.064\" fill=\"#444444\">locks</text>\n</svg>\n",
        );
        assert_eq!(smaller(svg), small);
    }
}
