//! A client waits while another one holds the lock: the time from the beginning of the release to the waiter's entry.

use super::{About, Carried, Comparison, Setting};
use crate::load::{Load, Shape};
use crate::measure::Turn;
use crate::peer::{Kind, Role};
use crate::table::Better;

/// Shortest length of a turn, in pauses. In a shorter turn with long pauses, the median would be that of a few
/// wake-ups.
const PAUSES: usize = 40;

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    [1, 20, 150].map(|pause_ms| compare(setting, pause_ms)).into()
}

fn compare(setting: &Setting, pause_ms: u64) -> Comparison<'_> {
    let about = About {
        group: "Wake-up of one waiter of another client",
        title: format!("Wake-up of one waiter of another client after {pause_ms} ms"),
        at: Some((pause_ms as f64, "ms of pause")),
        better: Better::Less,
        columns: &["p50 us", "p99 us"],
        notes: &["From the beginning of the release to the waiter's entry. A turn lasts at least 40 pauses"],
    };
    let mut load = Load { pause_ms, ..setting.load(Shape::Wake, 2, 2) };
    load.span_ms = load.span_ms.max(pause_ms * setting.count(PAUSES) as u64);
    setting.carried(&about, Carried::by_one_process(load, wake_ups), is_asked, refusal)
}

fn is_asked(kind: Kind) -> bool {
    matches!(kind.role(), Role::Lock | Role::HandOver)
}

fn refusal(kind: Kind) -> Option<&'static str> {
    (kind == Kind::OursBlocking).then_some("its waiter is woken as that of the hash, and then a thread")
}

fn wake_ups(turn: &Turn) -> Vec<f64> {
    vec![turn.quantile_us(0.5), turn.quantile_us(0.99)]
}
