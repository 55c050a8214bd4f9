//! Each task has a lock of its own, which it takes and gives back.

use std::sync::Arc;
use std::time::Instant;

use cluster_testenv::Node;
use tokio::task::JoinSet;

use super::{Setting, clients, runtime};
use crate::measure::{Medians, Meter, Turn};
use crate::peer::{Kind, Mode};
use crate::report::{columns, heading, no_row, number, row};

pub(super) fn run(setting: &Setting) {
    let node = setting.start_node();
    for mode in [Mode::Write, Mode::Read] {
        for tasks in [1, 16, 256] {
            heading(&format!("Uncontended {mode:?}, {tasks} tasks, a lock for each, one client"));
            columns(&["", "pairs/s", "lowest to highest", "p50 us", "p99 us", "client us", "server us"]);
            let all = setting.turns(&node, |kind| kind.has(mode).then(|| turn(setting, &node, kind, mode, tasks)));
            for (kind, mut turns) in all {
                tell(kind, &mut turns);
            }
        }
    }
}

fn tell(kind: Kind, turns: &mut [Turn]) {
    if turns.is_empty() {
        return no_row(kind.name(), 6);
    }
    let Medians { rate, rates: (low, high), p50_us, p99_us, client_us, server_us, .. } = Medians::of(turns);
    let spread = format!("{} to {}", number(low), number(high));
    let cells = [number(rate), spread].into_iter().chain([p50_us, p99_us, client_us, server_us].map(number));
    row(kind.name(), &cells.collect::<Vec<_>>());
}

fn turn(setting: &Setting, node: &Node, kind: Kind, mode: Mode, tasks: usize) -> Turn {
    runtime().block_on(async {
        let client = clients(kind, &node.url(), 1).await.remove(0);
        // Connections, scripts and memory are there when it counts.
        client.enter(mode, "own warm").await.leave().await;
        let meter = Meter::start(node);
        let until = Instant::now() + setting.span;
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let client = Arc::clone(&client);
            running.spawn(async move {
                let name = format!("own {task}");
                let mut latencies = Vec::with_capacity(16_384);
                loop {
                    let asked = Instant::now();
                    if asked >= until {
                        return latencies;
                    }
                    client.enter(mode, &name).await.leave().await;
                    latencies.push(asked.elapsed());
                }
            });
        }
        meter.stop(running.join_all().await.concat())
    })
}
