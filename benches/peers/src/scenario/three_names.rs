//! Each task takes three locks of its own, all of them or none, and gives them back.

use super::uncontended::{COLUMNS, NOTE};
use super::{About, Carried, Comparison, Setting};
use crate::load::Shape;
use crate::measure::Turn;
use crate::peer::{Kind, Role};
use crate::table::Better;

const GROUP: &str = "Three write locks at once";

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    [1, 16, 256].map(|tasks| compare(setting, tasks)).into()
}

fn compare(setting: &Setting, tasks: usize) -> Comparison<'_> {
    let about = About {
        group: GROUP,
        title: format!("{GROUP}, {tasks} tasks, three of their own for each, one client"),
        at: Some((tasks as f64, "tasks")),
        better: Better::More,
        columns: &COLUMNS,
        notes: &[NOTE, "A pair is the acquisition of all three and their release"],
    };
    let load = setting.load(Shape::Own, 1, tasks);
    let is_asked = |kind: Kind| kind.role() == Role::ThreeLocks;
    setting.carried(&about, Carried::by_one_process(load, Turn::pairs), is_asked, |_| None)
}
