//! Load of 256 tasks on 1, 2 and 3 primaries of a cluster.

use super::{About, Comparison, Figures, Setting};
use crate::load::{Load, Shape};
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
        columns: &["pairs/s", "p50 us", "p99 us", "client us", "server us"],
        notes: &["A machine with few cores has less for the client the more servers there are: see `client us`"],
    };
    let load = setting.load(Shape::Own, 1, 256);
    let entrants = setting.entrants(is_asked, load.span(), refusal, move |kind| pairs(setting, shards, kind, &load));
    setting.compare(&about, entrants)
}

fn is_asked(kind: Kind) -> bool {
    is_at_home(kind) || (kind.role() == Role::Lock && !kind.is_ours())
}

fn is_at_home(kind: Kind) -> bool {
    matches!(kind.facts().place, Place::Cluster(_))
}

fn refusal(kind: Kind) -> Option<String> {
    (!is_at_home(kind)).then(|| "it is given one node, and no cluster, here".to_owned())
}

fn pairs(setting: &Setting, shards: usize, kind: Kind, load: &Load) -> Result<Figures, String> {
    let turn = setting.turn_at(Place::Cluster(shards), kind, load, 1)?;
    let figures = vec![turn.rate(), turn.quantile_us(0.5), turn.quantile_us(0.99), turn.client_us(), turn.server_us()];
    Ok((figures, turn.versions))
}
