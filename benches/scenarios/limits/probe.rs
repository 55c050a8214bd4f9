//! Cost of a load for other clients, for its process, and for the server.

use super::*;
use crate::setup::process::resident_bytes_of;

/// Pause between two pairs of the prober, so that the prober itself is no load.
const PAUSE: Duration = Duration::from_millis(1);
/// Shortest time for which the server logs a command, and the length of this log.
const LOGGED: [(&str, &str); 2] = [("slowlog-log-slower-than", "1000"), ("slowlog-max-len", "2000")];

/// Server with a load in another process, and what others feel of it.
pub(super) struct Site {
    pub(super) node: Node,
    pub(super) prober: Prober,
    pub(super) loader: Worker,
    pub(super) meter: Meter,
}

impl Site {
    pub(super) fn start(load: &str) -> Self {
        let node = start_node();
        let prober = Prober::connect(&node);
        let loader = Worker::start_child(&["limits", load, &node.url()]);
        let meter = Meter::start(&node, loader.pid());
        Self { node, prober, loader, meter }
    }
}

/// Client that acquires and releases a lock of its own, again and again.
pub(super) struct Prober {
    runtime: Runtime,
    manager: RedisManager,
}

/// Times of the prober's pairs.
#[derive(Default)]
pub(super) struct Felt {
    samples: Vec<Duration>,
    pub(super) failure: Option<String>,
}

impl Prober {
    pub(super) fn connect(node: &Node) -> Self {
        let runtime = runtime();
        let manager = runtime.block_on(manager(node));
        Self { runtime, manager }
    }

    /// Probes while another thread works.
    pub(super) fn probe_during<T: Send>(&self, work: impl FnOnce() -> T + Send) -> (T, Felt) {
        thread::scope(|scope| {
            let working = scope.spawn(work);
            let mut felt = Felt::default();
            self.runtime.block_on(async {
                loop {
                    felt.note(write_pair(&self.manager).await);
                    if working.is_finished() {
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
            (working.join().expect("the work ends"), felt)
        })
    }

    /// Inspects a lock so often, and returns the times. May run on another thread than the probes.
    pub(super) fn inspections(&self, lock: &str, count: usize) -> Vec<Duration> {
        self.runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let (view, took) = timed(self.manager.inspect(lock)).await;
                view.expect("an answer");
                times.push(took);
            }
            times
        })
    }

    /// Reads a lock, and returns the time of the acquisition with its release.
    pub(super) fn read_pair(&self, lock: &str) -> Result<Duration, Error> {
        self.runtime.block_on(async {
            let began = Instant::now();
            self.manager.read(lock).await?.release().await?;
            Ok(began.elapsed())
        })
    }

    pub(super) fn probe_for(&self, span: Duration) -> Felt {
        self.probe_during(|| thread::sleep(span)).1
    }
}

async fn write_pair(manager: &RedisManager) -> Result<Duration, Error> {
    let began = Instant::now();
    manager.write("prober").await?.release().await?;
    Ok(began.elapsed())
}

impl Felt {
    fn note(&mut self, pair: Result<Duration, Error>) {
        match pair {
            Ok(took) => self.samples.push(took),
            Err(error) => self.failure = Some(format!("another client: {error}")),
        }
    }

    /// Returns a quantile in microseconds.
    pub(super) fn micros(&mut self, share: f64) -> f64 {
        if self.samples.is_empty() { f64::NAN } else { quantile_us(&mut self.samples, share) }
    }
}

/// Returns a quantile of times in microseconds.
pub(super) fn quantile_us(samples: &mut [Duration], share: f64) -> f64 {
    micros(quantile(samples, share))
}

/// Memory and processor time of a server and of a client's process.
pub(super) struct Meter {
    server: Client,
    pid: u32,
    /// Memory at the start.
    before: [f64; 2],
    began: Instant,
    server_us: f64,
    client: Duration,
}

impl Meter {
    pub(super) fn start(node: &Node, pid: u32) -> Self {
        let mut server = node.client().expect("the server answers");
        for (name, value) in LOGGED {
            server.command(&["CONFIG", "SET", name, value]).and_then(Reply::into_result).expect("it is set");
        }
        let (before, began) = ([0.0; 2], Instant::now());
        let mut meter = Self { server, pid, before, began, server_us: 0.0, client: Duration::ZERO };
        meter.reset();
        meter.before = meter.bytes();
        meter
    }

    pub(super) fn reset(&mut self) {
        self.server.command(&["SLOWLOG", "RESET"]).and_then(Reply::into_result).expect("it is reset");
        self.server_us = server_cpu_us(&mut self.server);
        self.client = time_of_threads(self.pid);
        self.began = Instant::now();
    }

    /// Returns the processor time of the client and of the server since the reset, in percent of a core.
    pub(super) fn shares(&mut self) -> [f64; 2] {
        let elapsed_us = micros(self.began.elapsed());
        let client_us = micros(time_of_threads(self.pid).saturating_sub(self.client));
        let server_us = server_cpu_us(&mut self.server) - self.server_us;
        [client_us, server_us].map(|used| 100.0 * used / elapsed_us)
    }

    /// Returns the memory of the client and of the server, in bytes.
    pub(super) fn bytes(&mut self) -> [f64; 2] {
        let server = info_number(&info(&mut self.server, "memory"), "used_memory");
        [resident_bytes_of(self.pid) as f64, server]
    }

    /// Returns the growth of both since the start, for each of so many.
    pub(super) fn kib_each(&self, [client, server]: [f64; 2], count: usize) -> [String; 2] {
        [kib_each(client, self.before[0], count), kib_each(server, self.before[1], count)]
    }

    /// Returns the number of connections to the server.
    pub(super) fn connections(&mut self) -> f64 {
        info_number(&info(&mut self.server, "clients"), "connected_clients")
    }

    /// Returns the time of the longest script or scan since the reset.
    pub(super) fn longest(&mut self) -> String {
        let log = self.server.command(&["SLOWLOG", "GET", "2000"]).expect("an answer");
        let entries = log.array().expect("a list").iter().filter_map(|entry| {
            let [_, _, took_us, words, ..] = entry.array()? else { return None };
            let command = words.array()?.first()?.text()?.to_uppercase();
            ["EVALSHA", "EVAL", "SCAN"].contains(&&*command).then(|| took_us.int())?
        });
        entries.max().map_or_else(|| "under 1".to_owned(), |took_us| format!("{:.1}", took_us as f64 / 1e3))
    }
}

/// Returns the growth since a start for each of so many, in KiB.
pub(super) fn kib_each(now: f64, start: f64, count: usize) -> String {
    format!("{:.2}", (now - start).max(0.0) / 1024.0 / count as f64)
}

/// Arrivals per second of the last step that added any. A repeated measurement adds none, and shows these again.
#[derive(Default)]
pub(super) struct Arrivals(String);

impl Arrivals {
    pub(super) fn note(&mut self, count: usize, began: Instant) -> String {
        if count > 0 {
            self.0 = whole(count as f64 / began.elapsed().as_secs_f64());
        }
        self.0.clone()
    }
}

pub(super) fn whole(number: f64) -> String {
    format!("{number:.0}")
}
