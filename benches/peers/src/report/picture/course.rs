//! Picture of a group of tables: a line for each peer, over the number of tasks or over another quantity that grows
//! from table to table.

use super::{FLOOR, GRID, LINE, PEER, Point, SMALL, Scale, TITLE, line, write};
use crate::print::number;
use crate::table::Table;

/// Smallest number of points with which a line is drawn.
const POINTS: usize = 3;
const LEFT: i32 = 70;
const RIGHT: i32 = 560;
const TOP: i32 = 40;
const LEAST_HEIGHT: i32 = 240;
/// Distance between two names.
const NAME: i32 = 13;

const COLORS: [&str; 8] = ["#1F5FBF", "#D65F0E", "#2C8C3C", "#B22222", "#7B4FA8", "#8A5A44", "#C24F9C", "#0F8F9F"];

pub(super) struct Course<'a> {
    title: &'a str,
    of: &'a str,
    column: &'a str,
    ways: Vec<Way<'a>>,
}

/// Line of one peer: the points and the values there.
struct Way<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

impl<'a> Course<'a> {
    pub(super) fn of(tables: &[&'a Table]) -> Option<Self> {
        let first = tables.first().filter(|_| tables.len() >= POINTS)?;
        let (_, of) = first.at.as_ref()?;
        let way = |name: &'a str| {
            let point = |table: &&'a Table| Some((table.at.as_ref()?.0, table.row(name)?.figure(0)?.median));
            Way { name, points: tables.iter().filter_map(point).filter(|(_, value)| *value > 0.0).collect() }
        };
        let mut ways: Vec<_> = first.rows.iter().map(|row| way(&row.name)).collect();
        ways.retain(|way| way.points.len() >= POINTS);
        let course = Self { title: &first.group, of, column: &first.columns[0], ways };
        (!course.ways.is_empty()).then_some(course)
    }

    pub(super) fn height(&self) -> i32 {
        TOP + self.inner() + 4 * LINE
    }

    fn inner(&self) -> i32 {
        LEAST_HEIGHT.max(NAME * i32::try_from(self.ways.len()).expect("few"))
    }

    pub(super) fn draw(&self, svg: &mut String) {
        let bottom = TOP + self.inner();
        let points = || self.ways.iter().flat_map(|way| &way.points);
        let across = Scale::of(points().map(|(at, _)| *at), (LEFT, RIGHT));
        let up = Scale::of(points().map(|(_, value)| *value), (bottom, TOP));
        write(svg, (10, 14), &format!("{}: {}", self.title, self.column), (TITLE, PEER), "start");
        for value in up.tens() {
            line(svg, &[(LEFT, up.at(value)), (RIGHT, up.at(value))], GRID);
            write(svg, (LEFT - 8, up.at(value)), &number(value), (SMALL, FLOOR), "end");
        }
        for value in across.tens() {
            line(svg, &[(across.at(value), TOP), (across.at(value), bottom)], GRID);
            write(svg, (across.at(value), bottom + LINE), &number(value), (SMALL, FLOOR), "middle");
        }
        write(svg, (RIGHT, bottom + 2 * LINE), self.of, (SMALL, FLOOR), "end");
        let mut names = Vec::new();
        *svg += "<g stroke-width=\"2\">\n";
        for (way, color) in self.ways.iter().zip(COLORS.iter().cycle()) {
            let color = if way.name.starts_with("floor:") { FLOOR } else { *color };
            let points: Vec<_> = way.points.iter().map(|(at, value)| (across.at(*at), up.at(*value))).collect();
            line(svg, &points, color);
            names.push((points[points.len() - 1], way.name, color));
        }
        *svg += "</g>\n";
        draw_names(svg, names);
    }
}

/// Draws each name beside the end of its line, or as near to it as the other names allow.
fn draw_names(svg: &mut String, mut names: Vec<(Point, &str, &str)>) {
    names.sort_by_key(|((_, y), ..)| *y);
    let count = i32::try_from(names.len()).expect("few");
    let lowest = names.last().map_or(0, |((_, y), ..)| *y).max(TOP + NAME * count);
    let mut free = TOP;
    for (((x, end), name, color), number) in names.into_iter().zip(0..) {
        let y = end.max(free).min(lowest - NAME * (count - 1 - number));
        free = y + NAME;
        line(svg, &[(x, end), (RIGHT + 12, y)], GRID);
        write(svg, (RIGHT + 15, y), name, ("8.871", color), "start");
    }
}
