//! Each task has a lock of its own, which it takes and gives back.

use super::{About, Setting};
use crate::load::{ALL_WRITE, Load, Shape};
use crate::peer::{Kind, Role};
use crate::table::{Better, Table};

const NOTE: &str =
    "`client us` and `server us` are processor time for one pair of acquisition and release, of all servers together";
const COLUMNS: [&str; 5] = ["pairs/s", "p50 us", "p99 us", "client us", "server us"];

pub(super) fn run(setting: &Setting) -> Vec<Table> {
    let mut tables = Vec::new();
    for (group, writes) in [("Uncontended writes", ALL_WRITE), ("Uncontended reads", 0)] {
        for tasks in [1, 16, 256] {
            let about = About {
                group,
                title: format!("{group}, {tasks} tasks, a lock for each, one client"),
                at: Some((tasks as f64, "tasks")),
                better: Better::More,
                columns: &COLUMNS,
                notes: &[NOTE],
            };
            let load = Load { writes, ..setting.load(Shape::Own, 1, tasks) };
            tables.push(setting.compare(&about, is_asked, |kind| pairs(setting, kind, &load)));
        }
    }
    tables
}

fn is_asked(kind: Kind) -> bool {
    kind.role() != Role::HandOver && kind != Kind::Tokio
}

fn pairs(setting: &Setting, kind: Kind, load: &Load) -> Result<super::Figures, String> {
    let turn = setting.turn(kind, load, 1)?;
    let figures = vec![turn.rate(), turn.quantile_us(0.5), turn.quantile_us(0.99), turn.client_us(), turn.server_us()];
    Ok((figures, turn.versions))
}
