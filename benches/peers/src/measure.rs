//! What a turn has cost.

use std::time::{Duration, Instant};

use cluster_testenv::Node;

use crate::figures::process::processor_time;
use crate::figures::{median, quantile};

/// How many of what there were in a turn, how long each took, and what the processors did meanwhile.
pub(crate) struct Turn {
    pub(crate) latencies: Vec<Duration>,
    pub(crate) elapsed: Duration,
    pub(crate) client: Duration,
    pub(crate) server: Duration,
    /// How many commands the server carried out, those within scripts too.
    pub(crate) commands: u64,
}

/// From here on until [`Meter::stop`].
pub(crate) struct Meter<'a> {
    node: &'a Node,
    began: Instant,
    client: Duration,
    server: Duration,
    commands: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(node: &'a Node) -> Self {
        let (server, commands) = (server_time(node), commands(node));
        Self { node, began: Instant::now(), client: processor_time(), server, commands }
    }

    pub(crate) fn stop(self, latencies: Vec<Duration>) -> Turn {
        Turn {
            latencies,
            elapsed: self.began.elapsed(),
            client: processor_time().saturating_sub(self.client),
            server: server_time(self.node).saturating_sub(self.server),
            commands: commands(self.node) - self.commands,
        }
    }
}

/// Medians over the turns of one peer.
#[derive(Clone, Debug)]
pub(crate) struct Medians {
    pub(crate) rate: f64,
    /// The lowest and the highest of the turns.
    pub(crate) rates: (f64, f64),
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Of a core, for each.
    pub(crate) client_us: f64,
    pub(crate) server_us: f64,
    pub(crate) commands: f64,
}

impl Medians {
    pub(crate) fn of(turns: &mut [Turn]) -> Self {
        let mut rates: Vec<_> = turns.iter().map(|turn| turn.count() / turn.elapsed.as_secs_f64()).collect();
        let mut of = |figure: &dyn Fn(&mut Turn) -> f64| {
            let mut figures: Vec<_> = turns.iter_mut().map(figure).collect();
            median(&mut figures)
        };
        Self {
            p50_us: of(&|turn| micros(quantile(&mut turn.latencies, 0.5))),
            p99_us: of(&|turn| micros(quantile(&mut turn.latencies, 0.99))),
            client_us: of(&|turn| micros(turn.client) / turn.count()),
            server_us: of(&|turn| micros(turn.server) / turn.count()),
            commands: of(&|turn| turn.commands as f64 / turn.count()),
            rate: median(&mut rates),
            rates: (rates[0], rates[rates.len() - 1]),
        }
    }
}

impl Turn {
    fn count(&self) -> f64 {
        self.latencies.len() as f64
    }
}

pub(crate) fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// The processor time that the server has used.
fn server_time(node: &Node) -> Duration {
    Duration::from_secs_f64(info(node, "CPU", "used_cpu_user:") + info(node, "CPU", "used_cpu_sys:"))
}

fn commands(node: &Node) -> u64 {
    info(node, "STATS", "total_commands_processed:") as u64
}

fn info(node: &Node, section: &str, field: &str) -> f64 {
    let reply = node.command(&["INFO", section]).expect("an answer");
    let text = reply.text().expect("text");
    let value = text.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    value.trim().parse().expect("a number")
}
