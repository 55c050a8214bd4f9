//! Everybody wants the same lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use tokio::task::JoinSet;

use super::{Setting, clients, runtime};
use crate::measure::{Medians, Meter, Turn};
use crate::peer::{Kind, Mode};
use crate::report::{columns, heading, no_row, number, row};

/// Who is there: so many tasks of so many clients.
#[derive(Clone, Copy)]
struct Crowd {
    clients: usize,
    tasks: usize,
    /// Of a hundred.
    writes: usize,
}

pub(super) fn write(setting: &Setting) {
    for (clients, tasks) in [(1, 2), (1, 16), (1, 100), (1, 1000), (4, 100), (100, 100)] {
        tell(setting, Crowd { clients, tasks, writes: 100 });
    }
}

pub(super) fn read(setting: &Setting) {
    for (clients, tasks) in [(1, 1), (1, 16), (1, 100), (1, 1000), (16, 16), (100, 100)] {
        tell(setting, Crowd { clients, tasks, writes: 1 });
    }
}

fn tell(setting: &Setting, crowd: Crowd) {
    let Crowd { clients, tasks, writes } = crowd;
    heading(&format!("One lock, {tasks} tasks of {clients} clients, {writes} % writes"));
    columns(&["", "holds/s", "p50 us", "p99 us", "client us", "server us", "commands", "served least to most"]);
    let node = setting.start_node();
    let can = |kind: Kind| {
        kind.is_lock() && (clients == 1 || kind.is_distributed()) && (writes == 100 || kind.has(Mode::Read))
    };
    let served = parking_lot::Mutex::new(Vec::new());
    let all = setting.turns(&node, |kind| {
        can(kind).then(|| {
            let (turn, counts) = turn(setting, &node, kind, crowd);
            served.lock().push((kind, counts));
            turn
        })
    });
    let served = served.into_inner();
    for (kind, mut turns) in all.into_iter().filter(|(kind, _)| kind.is_lock()) {
        if turns.iter().all(|turn| turn.latencies.is_empty()) {
            no_row(kind.name(), 7);
            continue;
        }
        turns.retain(|turn| !turn.latencies.is_empty());
        let medians = Medians::of(&mut turns);
        let Medians { rate, p50_us, p99_us, client_us, server_us, commands, .. } = medians;
        let of_kind = || served.iter().filter(|(of, _)| *of == kind).flat_map(|(_, counts)| counts);
        let (least, most) = (of_kind().min().copied().unwrap_or(0), of_kind().max().copied().unwrap_or(0));
        let cells = [rate, p50_us, p99_us, client_us, server_us, commands].map(number);
        row(kind.name(), &cells.into_iter().chain([format!("{least} to {most}")]).collect::<Vec<_>>());
    }
}

/// The turn, and how often each task was served.
fn turn(setting: &Setting, node: &Node, kind: Kind, crowd: Crowd) -> (Turn, Vec<usize>) {
    runtime().block_on(async {
        let clients = clients(kind, &node.url(), crowd.clients).await;
        // What a peer left behind in its last turn is not this turn's.
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("hot {}", TURNS.fetch_add(1, Ordering::Relaxed));
        let meter = Meter::start(node);
        let until = Instant::now() + setting.span;
        let mut running = JoinSet::new();
        for task in 0..crowd.tasks {
            let (client, name) = (Arc::clone(&clients[task % crowd.clients]), name.clone());
            running.spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let asked = Instant::now();
                    if asked >= until {
                        return latencies;
                    }
                    let is_write = fastrand::usize(0..100) < crowd.writes;
                    let entering = client.enter(if is_write { Mode::Write } else { Mode::Read }, &name);
                    // Who is not served before the turn is over counts as not served, and may leave something behind.
                    let left = until.saturating_duration_since(asked) + Duration::from_millis(100);
                    let Ok(held) = tokio::time::timeout(left, entering).await else {
                        return latencies;
                    };
                    latencies.push(asked.elapsed());
                    held.leave().await;
                }
            });
        }
        let latencies = running.join_all().await;
        let counts = latencies.iter().map(Vec::len).collect();
        (meter.stop(latencies.concat()), counts)
    })
}
