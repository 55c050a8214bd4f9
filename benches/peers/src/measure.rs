//! Costs of a turn.

use super::*;

/// Result of a turn: the acquisitions, their latencies, and the processor time.
pub(crate) struct Turn {
    /// Latencies in nanoseconds, sorted.
    latencies: Vec<u64>,
    elapsed: Duration,
    client: Duration,
    used: Used,
    served: Vec<u64>,
    pub(crate) versions: String,
}

/// Costs on all servers.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    time: Duration,
    /// Number of commands that the primaries executed, those within scripts too. For dsync it is the number of calls
    /// that the lock servers answered.
    commands: u64,
    /// Number of scripts among the commands.
    scripts: u64,
}

/// Measurement of the servers, from its start until [`Meter::stop`].
pub(crate) struct Meter<'a> {
    servers: &'a Servers,
    before: Used,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(servers: &'a Servers) -> Self {
        Self { servers, before: Used::by(servers) }
    }

    pub(crate) fn stop(self) -> Used {
        let now = Used::by(self.servers);
        Used {
            time: now.time.saturating_sub(self.before.time),
            commands: now.commands.saturating_sub(self.before.commands),
            scripts: now.scripts.saturating_sub(self.before.scripts),
        }
    }
}

impl Used {
    fn by(servers: &Servers) -> Self {
        let client = |node: &Node| node.client().expect("connected");
        let time = |node: &Node| server_cpu_us(&mut client(node)) / 1e6;
        let commands = |node: &Node| info_number(&info(&mut client(node), "stats"), "total_commands_processed") as u64;
        let scripts = |node: &Node| {
            let stats = CommandStats::of(node);
            ["eval", "evalsha", "fcall"].map(|command| stats.calls(command)).iter().sum::<u64>()
        };
        let (times, calls): (Vec<_>, Vec<_>) = servers.lock_servers().iter().map(LockServer::used).unzip();
        let of_nodes = Duration::from_secs_f64(servers.nodes().iter().map(time).sum());
        Self {
            scripts: servers.primaries().iter().map(scripts).sum(),
            time: of_nodes + times.iter().sum::<Duration>(),
            commands: servers.primaries().iter().map(commands).sum::<u64>() + calls.iter().sum::<u64>(),
        }
    }
}

impl Turn {
    pub(crate) fn new(
        mut latencies: Vec<u64>,
        elapsed: Duration,
        client: Duration,
        used: Used,
        served: Vec<u64>,
        versions: String,
    ) -> Self {
        latencies.sort_unstable();
        Self { latencies, elapsed, client, used, served, versions }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.latencies.is_empty()
    }

    fn count(&self) -> f64 {
        self.latencies.len() as f64
    }

    fn rate(&self) -> f64 {
        self.count() / self.elapsed.as_secs_f64()
    }

    /// Returns the latency that this share of all latencies does not exceed.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1) as f64;
        self.latencies.get((last * share).round() as usize).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    }

    /// Returns the processor time of the clients for each acquisition.
    fn client_us(&self) -> f64 {
        micros(self.client) / self.count()
    }

    fn server_us(&self) -> f64 {
        micros(self.used.time) / self.count()
    }

    pub(crate) fn commands(&self) -> f64 {
        self.used.commands as f64 / self.count()
    }

    pub(crate) fn scripts(&self) -> f64 {
        self.used.scripts as f64 / self.count()
    }

    /// Returns the rate, two latencies, and the processor time of clients and servers.
    pub(crate) fn pairs(&self) -> Vec<f64> {
        vec![self.rate(), self.quantile_us(0.5), self.quantile_us(0.99), self.client_us(), self.server_us()]
    }

    /// Returns the smallest and the largest number of acquisitions that one client got.
    pub(crate) fn served(&self) -> (f64, f64) {
        let count = |of: Option<&u64>| of.map_or(0.0, |count| *count as f64);
        (count(self.served.iter().min()), count(self.served.iter().max()))
    }
}
