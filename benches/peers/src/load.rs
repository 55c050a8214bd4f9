//! Orders to a worker and its answers. All workers use this one protocol with the driver, those in other languages too.
//! README.md describes it.

use clap::Args;
use serde::Serialize;

use super::*;

/// Value of `writes` with which each acquisition writes.
pub(crate) const ALL_WRITE: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Shape {
    /// Each task has a lock of its own.
    Own,
    /// All tasks want one lock.
    Hot,
    /// Two tasks in turns: one waits, and the other releases.
    Wake,
    /// Locks are held, and no other work is done.
    Held,
}

/// The arguments of a worker, but for which lock it is and where the server is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Load {
    #[arg(long, value_enum)]
    pub(crate) shape: Shape,
    /// Number of writes in a hundred acquisitions.
    #[arg(long)]
    pub(crate) writes: usize,
    /// Number of objects with connections of their own, as the same number of processes would have them.
    #[arg(long)]
    pub(crate) clients: usize,
    /// Number of tasks, or of threads in a worker without tasks. For held locks it is the number of locks.
    #[arg(long)]
    pub(crate) tasks: usize,
    /// Time for which one task waits before the other releases.
    #[arg(long)]
    pub(crate) pause_ms: u64,
    /// Time for which the worker acquires and releases locks of its own before it is ready.
    #[arg(long)]
    pub(crate) warm_ms: u64,
    #[arg(long)]
    pub(crate) span_ms: u64,
    #[arg(long)]
    pub(crate) lease_ms: u64,
}

impl Load {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let shape = self.shape.to_possible_value().expect("none is hidden").get_name().to_owned();
        let numbers = [
            ("writes", self.writes as u64),
            ("clients", self.clients as u64),
            ("tasks", self.tasks as u64),
            ("pause-ms", self.pause_ms),
            ("warm-ms", self.warm_ms),
            ("span-ms", self.span_ms),
            ("lease-ms", self.lease_ms),
        ];
        let numbers = numbers.into_iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
        ["--shape".to_owned(), shape].into_iter().chain(numbers).collect()
    }

    pub(crate) fn span(&self) -> Duration {
        Duration::from_millis(self.span_ms)
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// The first line of a worker: it is connected and warm, and begins when a line comes.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Versions of the lock and of its runtime.
    pub(crate) ready: String,
}

/// The second and last line of a worker.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Outcome {
    /// Time of each acquisition with its release, or from the beginning of a release to the waiter's entry.
    pub(crate) latencies_ns: Vec<u64>,
    /// Number of acquisitions of each task.
    pub(crate) served: Vec<u64>,
    pub(crate) elapsed_ns: u64,
    /// The processor time of the whole process, user and system.
    pub(crate) cpu_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Worker {
        #[command(flatten)]
        load: Load,
    }

    #[test]
    fn a_worker_understands_what_the_driver_says() {
        let load = Load {
            shape: Shape::Wake,
            writes: 1,
            clients: 2,
            tasks: 3,
            pause_ms: 4,
            warm_ms: 5,
            span_ms: 6,
            lease_ms: 7,
        };
        let arguments = ["worker".to_owned()].into_iter().chain(load.arguments());
        let heard = Worker::try_parse_from(arguments).map(|worker| worker.load);
        assert_eq!(format!("{:?}", heard.ok()), format!("{:?}", Some(load)));
    }
}
