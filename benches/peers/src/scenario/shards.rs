//! The same load on 1, 2 and 3 primaries of a cluster.

use super::{About, Setting};
use crate::load::Shape;
use crate::peer::{Kind, Role};
use crate::place::Place;
use crate::table::{Better, Table};

pub(super) fn run(setting: &Setting) -> Vec<Table> {
    let on = |shards: usize| {
        let about = About {
            group: "Shards of a cluster",
            title: format!("Writes of 256 tasks, a lock for each, on a cluster of {shards}"),
            at: Some((shards as f64, "shards")),
            better: Better::More,
            columns: &["pairs/s", "p50 us", "p99 us", "client us", "server us"],
            notes: &["A machine with few cores has less for the client the more servers there are: see `client us`"],
        };
        let load = setting.load(Shape::Own, 1, 256);
        setting.compare(&about, is_asked, |kind| {
            if !matches!(kind.facts().place, Place::Cluster(_)) {
                return Err("it is given one node, and no cluster, here".to_owned());
            }
            let turn = setting.turn_at(Place::Cluster(shards), kind, &load, 1)?;
            let figures = [turn.rate(), turn.quantile_us(0.5), turn.quantile_us(0.99)];
            Ok((figures.into_iter().chain([turn.client_us(), turn.server_us()]).collect(), turn.versions))
        })
    };
    [1, 2, 3].map(on).into()
}

fn is_asked(kind: Kind) -> bool {
    let is_at_home = matches!(kind.facts().place, Place::Cluster(_));
    is_at_home || (kind.role() == Role::Lock && !kind.is_ours())
}
