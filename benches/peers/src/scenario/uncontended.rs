//! Each task has a lock of its own, which it takes and gives back.

use super::{About, Carried, Comparison, Setting};
use crate::load::{ALL_WRITE, Load, Shape};
use crate::measure::Turn;
use crate::peer::{Kind, Role};
use crate::table::Better;

pub(super) const NOTE: &str =
    "`client us` and `server us` are processor time for one pair of acquisition and release, of all servers together";
pub(super) const COLUMNS: [&str; 5] = ["pairs/s", "p50 us", "p99 us", "client us", "server us"];

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    let groups = [("Uncontended writes", ALL_WRITE), ("Uncontended reads", 0)];
    let on = |(group, writes)| [1, 16, 256].map(|tasks| compare(setting, group, writes, tasks));
    groups.into_iter().flat_map(on).collect()
}

fn compare<'a>(setting: &'a Setting, group: &str, writes: usize, tasks: usize) -> Comparison<'a> {
    let about = About {
        group,
        title: format!("{group}, {tasks} tasks, a lock for each, one client"),
        at: Some((tasks as f64, "tasks")),
        better: Better::More,
        columns: &COLUMNS,
        notes: &[NOTE],
    };
    let load = Load { writes, ..setting.load(Shape::Own, 1, tasks) };
    setting.carried(&about, Carried::by_one_process(load, Turn::pairs), is_asked, |_| None)
}

fn is_asked(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::LocalLock | Role::Floor) && kind != Kind::Tokio
}
