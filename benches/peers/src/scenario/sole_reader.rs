//! A single task reads one name again and again, and no other task wants it.

use super::{About, Carried, Comparison, Setting};
use crate::load::{Load, Shape};
use crate::measure::Turn;
use crate::peer::{Kind, Role};
use crate::table::Better;

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    let about = About {
        group: "One reader of one name",
        title: "One task that reads one name again and again".to_owned(),
        at: None,
        better: Better::More,
        columns: &["reads/s", "p50 us", "p99 us", "client us", "server us", "commands"],
        notes: &["tokio's lock asks nobody: it is `RwLock::read_owned` with its drop"],
    };
    let load = Load { writes: 0, ..setting.load(Shape::Hot, 1, 1) };
    vec![setting.carried(&about, Carried::by_one_process(load, reads), is_asked, |_| None)]
}

fn is_asked(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::LocalLock | Role::Floor)
}

fn reads(turn: &Turn) -> Vec<f64> {
    [turn.pairs(), vec![turn.commands()]].concat()
}
