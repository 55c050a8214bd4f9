//! A single task reads one name again and again, and no other task wants it.

use super::{About, Comparison, Figures, Setting, no_reads};
use crate::load::{Load, Shape};
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
    let refusal = |kind| no_reads(kind, &load);
    let entrants = setting.entrants(is_asked, load.span(), refusal, {
        let load = load.clone();
        move |kind| reads(setting, kind, &load)
    });
    vec![setting.compare(&about, entrants)]
}

fn is_asked(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::LocalLock | Role::Floor)
}

fn reads(setting: &Setting, kind: Kind, load: &Load) -> Result<Figures, String> {
    let turn = setting.turn(kind, load, 1)?;
    let figures = [turn.rate(), turn.quantile_us(0.5), turn.quantile_us(0.99), turn.client_us(), turn.server_us()];
    Ok((figures.into_iter().chain([turn.commands()]).collect(), turn.versions))
}
