//! Somebody waits, and is let in: how long after the other began to leave.

use super::{About, Setting};
use crate::load::{Load, Shape};
use crate::peer::{Kind, Role};
use crate::table::{Better, Table};

pub(super) fn run(setting: &Setting) -> Vec<Table> {
    let at = |pause_ms: u64| {
        let about = About {
            group: "Wake-up of one waiter of another client",
            title: format!("Wake-up of one waiter of another client after {pause_ms} ms"),
            at: Some((pause_ms as f64, "ms of pause")),
            better: Better::Less,
            columns: &["p50 us", "p99 us"],
            notes: &["From the beginning of the release to the waiter's entry"],
        };
        let load = Load { pause_ms, ..setting.load(Shape::Wake, 2, 2) };
        setting.compare(&about, is_asked, |kind| wake_ups(setting, kind, &load))
    };
    [1, 20, 150].map(at).into()
}

fn is_asked(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::HandOver)
}

fn wake_ups(setting: &Setting, kind: Kind, load: &Load) -> Result<super::Figures, String> {
    if kind == Kind::OursBlocking {
        return Err("its waiter is woken as that of the hash, and then a thread".to_owned());
    }
    let turn = setting.turn(kind, load, 1)?;
    Ok((vec![turn.quantile_us(0.5), turn.quantile_us(0.99)], turn.versions))
}
