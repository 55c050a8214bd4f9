//! Picture of a group of tables: a line for each peer, over the number of tasks or over another quantity that grows
//! from table to table.

use super::*;

/// Smallest number of points with which a line is drawn.
const POINTS: usize = 3;
const LEFT: i32 = 70;
const RIGHT: i32 = 560;
const TOP: i32 = 40;
const LEAST_HEIGHT: i32 = 240;
/// Distance between two names.
const NAME: i32 = 13;

const COLORS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x5f, 0xbf),
    RGBColor(0xd6, 0x5f, 0x0e),
    RGBColor(0x2c, 0x8c, 0x3c),
    RGBColor(0xb2, 0x22, 0x22),
    RGBColor(0x7b, 0x4f, 0xa8),
    RGBColor(0x8a, 0x5a, 0x44),
    RGBColor(0xc2, 0x4f, 0x9c),
    RGBColor(0x0f, 0x8f, 0x9f),
];

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

    pub(super) fn draw(&self, area: &Area<'_>) {
        let bottom = TOP + self.inner();
        let points = || self.ways.iter().flat_map(|way| &way.points);
        let across = Scale::of(points().map(|(at, _)| *at), (LEFT, RIGHT));
        let up = Scale::of(points().map(|(_, value)| *value), (bottom, TOP));
        write(area, (10, 14), &format!("{}: {}", self.title, self.column), 14, PEER, HPos::Left);
        for value in up.tens() {
            line(area, (LEFT, up.at(value)), (RIGHT, up.at(value)), GRID);
            write(area, (LEFT - 8, up.at(value)), &number(value), 10, FLOOR, HPos::Right);
        }
        for value in across.tens() {
            line(area, (across.at(value), TOP), (across.at(value), bottom), GRID);
            write(area, (across.at(value), bottom + LINE), &number(value), 10, FLOOR, HPos::Center);
        }
        write(area, (RIGHT, bottom + 2 * LINE), self.of, 10, FLOOR, HPos::Right);
        let mut names = Vec::new();
        for (way, color) in self.ways.iter().zip(COLORS.iter().cycle()) {
            let color = if way.name.starts_with("floor:") { FLOOR } else { *color };
            let points: Vec<_> = way.points.iter().map(|(at, value)| (across.at(*at), up.at(*value))).collect();
            names.push((points[points.len() - 1], way.name, color));
            area.draw(&PathElement::new(points, color.stroke_width(2))).expect("drawn");
        }
        draw_names(area, names);
    }
}

/// Draws each name beside the end of its line, or as near to it as the other names allow.
fn draw_names(area: &Area<'_>, mut names: Vec<((i32, i32), &str, RGBColor)>) {
    names.sort_by_key(|((_, y), ..)| *y);
    let count = i32::try_from(names.len()).expect("few");
    let lowest = names.last().map_or(0, |((_, y), ..)| *y).max(TOP + NAME * count);
    let mut free = TOP;
    for (((x, end), name, color), number) in names.into_iter().zip(0..) {
        let y = end.max(free).min(lowest - NAME * (count - 1 - number));
        free = y + NAME;
        line(area, (x, end), (RIGHT + 12, y), GRID);
        write(area, (RIGHT + 15, y), name, 11, color, HPos::Left);
    }
}
