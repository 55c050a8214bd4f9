//! Load of 256 tasks on 1, 2 and 3 primaries of a cluster.

use super::uncontended::COLUMNS;
use super::{About, Carried, Comparison, Setting};
use crate::load::Shape;
use crate::measure::Turn;
use crate::peer::{Kind, Role};
use crate::place::Place;
use crate::table::Better;

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    [1, 2, 3].map(|shards| compare(setting, shards)).into()
}

fn compare(setting: &Setting, shards: usize) -> Comparison<'_> {
    let about = About {
        group: "Shards of a cluster",
        title: format!("Writes of 256 tasks, a lock for each, on a cluster of {shards}"),
        at: Some((shards as f64, "shards")),
        better: Better::More,
        columns: &COLUMNS,
        notes: &["A machine with few cores has less for the client the more servers there are: see `client us`"],
    };
    let load = Carried::by_one_process(setting.load(Shape::Own, 1, 256), Turn::pairs);
    setting.carried(&about, Carried { place: Some(Place::Cluster(shards)), ..load }, is_asked, refusal)
}

fn is_asked(kind: Kind) -> bool {
    is_at_home(kind) || (kind.role() == Role::Lock && !kind.is_ours())
}

fn is_at_home(kind: Kind) -> bool {
    matches!(kind.facts().place, Place::Cluster(_))
}

fn refusal(kind: Kind) -> Option<&'static str> {
    (!is_at_home(kind)).then_some("it is given one node, and no cluster, here")
}
