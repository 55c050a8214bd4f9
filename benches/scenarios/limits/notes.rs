//! Bytes of a note: what a note costs when it is set, at each renewal, and in `inspect`.

use super::probe::kib_each;
use super::*;

/// Short, so that there are many renewals.
const LEASE: Duration = Duration::from_secs(3);

/// Holds whose notes are measured.
struct Noted {
    manager: RedisManager,
    writers: Vec<WriteGuard>,
    /// Readers of one lock, each of another manager.
    readers: Vec<ReadGuard>,
}

impl Noted {
    async fn new(node: &Node, writers: usize, readers: usize) -> Result<Self, Error> {
        let manager = RedisManager::builder(node.url()).lease(LEASE).connect().await?;
        let held = few_at_a_time(0..writers, async |lock| manager.write(&format!("noted-{lock:04}")).await).await;
        let writers = held.into_iter().collect::<Result<_, _>>()?;
        let mut held = Vec::new();
        for _ in 0..readers {
            held.push(self::manager(node).await.read("readers").await?);
        }
        Ok(Self { manager, writers, readers: held })
    }

    /// Sets all notes. Returns the times of the writers' ones.
    async fn set(&self, text: &str) -> Result<Vec<Duration>, Error> {
        let mut times = Vec::new();
        for guard in &self.writers {
            let (set, took) = timed(guard.set_note(text)).await;
            set?;
            times.push(took);
        }
        for guard in &self.readers {
            guard.set_note(text).await?;
        }
        Ok(times)
    }

    /// Inspects a lock, and checks that the notes are there.
    async fn inspections(&self, name: &str, text: &str, count: usize) -> Result<Vec<Duration>, Error> {
        let mut times = Vec::new();
        for _ in 0..count {
            let (view, took) = timed(self.manager.inspect(name)).await;
            times.push(took);
            assert!(view?.holders.iter().all(|holder| holder.note.as_deref() == Some(text)), "{name} has all notes");
        }
        Ok(times)
    }
}

fn used_memory(node: &Node) -> f64 {
    info_number(&info(&mut node.client().expect("the server answers"), "memory"), "used_memory")
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(&[1, 64, 256, 1_024, 2_048, 4_096, 4_097][..], &[1, 1_024, 4_096, 4_097], &[1, 4_097]);
    let (writers, readers, looks, span) = effort.of((1_000, 100, 500, 6), (1_000, 100, 200, 3), (5, 3, 2, 0));
    let node = start_node();
    let runtime = runtime();
    let start = used_memory(&node);
    let noted = runtime.block_on(Noted::new(&node, writers, readers)).expect("granted");
    climb(["bytes of a note", "us of the server for a renewal"], loads, |bytes| {
        let text = "n".repeat(bytes);
        let before = CommandStats::of(&node).calls("evalsha");
        let mut set = runtime
            .block_on(noted.set(&text))
            .map_err(|error| format!("{error} ({} scripts)", CommandStats::of(&node).calls("evalsha") - before))?;
        let inspect = |name: &str| {
            let mut times = runtime.block_on(noted.inspections(name, &text, looks)).expect("an answer");
            whole(quantile_us(&mut times, 0.5))
        };
        let (of_a_writer, of_readers) = (inspect("noted-0000"), inspect("readers"));
        // From here on only the renewals send scripts.
        CommandStats::reset(&node);
        std::thread::sleep(Duration::from_secs(span).max(LEASE / 2));
        let renewals = CommandStats::of(&node);
        Ok(Reading {
            watched: renewals.micros("evalsha") / renewals.calls("evalsha") as f64,
            cells: vec![
                ("set_note p50, us", whole(quantile_us(&mut set, 0.5))),
                ("set_note p99", whole(quantile_us(&mut set, 0.99))),
                ("inspect of a writer, us", of_a_writer),
                ("inspect of all readers, us", of_readers),
                ("server, KiB for a hold", kib_each(used_memory(&node), start, writers)),
            ],
            ..Reading::default()
        })
    });
}
