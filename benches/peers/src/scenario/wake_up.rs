//! Somebody waits, and is let in: how long after the other began to leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::Node;

use super::{Setting, clients, runtime};
use crate::measure::{Medians, Meter, Turn};
use crate::peer::{Kind, Mode};
use crate::report::{columns, heading, no_row, number, row};

pub(super) fn run(setting: &Setting) {
    let node = setting.start_node();
    for pause_ms in [1, 20, 150] {
        heading(&format!("Wake-up of one waiter of another client after {pause_ms} ms"));
        columns(&["", "p50 us", "p99 us"]);
        let pause = Duration::from_millis(pause_ms);
        let all = setting.turns(&node, |kind| kind.is_distributed().then(|| turn(setting, &node, kind, pause)));
        for (kind, mut turns) in all.into_iter().filter(|(kind, _)| kind.is_lock()) {
            if turns.is_empty() {
                no_row(kind.name(), 2);
                continue;
            }
            let Medians { p50_us, p99_us, .. } = Medians::of(&mut turns);
            row(kind.name(), &[p50_us, p99_us].map(number));
        }
    }
}

fn turn(setting: &Setting, node: &Node, kind: Kind, pause: Duration) -> Turn {
    runtime().block_on(async {
        let clients = clients(kind, &node.url(), 2).await;
        let meter = Meter::start(node);
        let until = Instant::now() + setting.span;
        let mut latencies = Vec::new();
        for (leaves, waits) in [(0, 1), (1, 0)].into_iter().cycle() {
            if Instant::now() >= until {
                break;
            }
            let held = clients[leaves].enter(Mode::Write, "door").await;
            let client = Arc::clone(&clients[waits]);
            let waiter = tokio::spawn(async move {
                let held = client.enter(Mode::Write, "door").await;
                let entered = Instant::now();
                held.leave().await;
                entered
            });
            tokio::time::sleep(pause).await;
            let left = Instant::now();
            held.leave().await;
            latencies.push(waiter.await.expect("it runs").saturating_duration_since(left));
        }
        meter.stop(latencies)
    })
}
