//! Fairness: a writer behind readers that never cease does not starve, nor does a reader behind writers that never
//! cease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis_rwlock::Mode;
use tokio::sync::Notify;

use super::process::{Process, holds, waits, writers_during};
use super::{MACHINE, scene};
use crate::fixture::{Fixture, Settings, hash_on_every_server, on_every_queue};
use crate::wait::{Outcome, granted, soon, until};

on_every_queue![writer_gets_in_among_readers_that_never_cease];
hash_on_every_server![reader_gets_in_among_writers_that_never_cease];

const ROUNDS: usize = 10;
/// Longest time of a read. A read ends sooner if the next reader is in.
const READ: Duration = Duration::from_millis(50);
const JOIN_WINDOW: Duration = Duration::from_millis(50);

/// Each reader stays until the next one is in, so the lock becomes free only when it keeps a reader out.
async fn writer_gets_in_among_readers_that_never_cease(f: &Fixture) {
    let ([writer, readers @ ..], name) = scene::<4>(f).await;
    let (stop, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let next_is_in = [0; 3].map(|_| Arc::<Notify>::default());
    let mut tasks = Vec::new();
    for (n, reader) in readers.iter().enumerate() {
        for _ in 0..2 {
            let (reader, name, stop, reads) = (Arc::clone(reader), name.clone(), Arc::clone(&stop), Arc::clone(&reads));
            let (is_in, next_is_in) = (Arc::clone(&next_is_in[n]), Arc::clone(&next_is_in[(n + 1) % 3]));
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let reading = reader.read(&name).await.expect("granted");
                    is_in.notify_one();
                    drop(tokio::time::timeout(READ, next_is_in.notified()).await);
                    reads.fetch_add(1, Ordering::SeqCst);
                    reading.release().await.expect("ours to the end");
                }
            }));
        }
    }
    for _ in 0..ROUNDS {
        let before = reads.load(Ordering::SeqCst);
        until("readers come and go", async || reads.load(Ordering::SeqCst) >= before + 12).await;
        let asked = Instant::now();
        let writing = granted(writer.write(&name)).await;
        assert!(asked.elapsed() < JOIN_WINDOW + READ + MACHINE, "{:?}", asked.elapsed());
        writing.release().await.expect("ours to the end");
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("the last read", task).await.expect("no panic");
    }
}

/// Four processes write with several tasks each, so that each process also hands the lock on within itself.
async fn reader_gets_in_among_writers_that_never_cease(f: &Fixture) -> Outcome {
    let processes = Process::several(f, 5, &Settings::default()).await;
    let (reader, writers) = processes.split_last().expect("five");
    let (name, stop) = (f.name(), Arc::<AtomicBool>::default());
    let mut tasks = Vec::new();
    for writer in writers {
        for _ in 0..3 {
            let (manager, name, stop) = (Arc::clone(&writer.manager), name.clone(), Arc::clone(&stop));
            tasks.push(writer.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let writing = manager.write(&name).await.expect("granted");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    writing.release().await.expect("ours to the end");
                }
            }));
        }
    }
    until("all write", async || writers.iter().all(|writer| writer.told().iter().any(|told| told.is_grant()))).await;
    for _ in 0..ROUNDS * 3 {
        let (manager, name) = (Arc::clone(&reader.manager), name.clone());
        let read = reader.spawn(async move { manager.read(&name).await.expect("granted").release().await });
        soon("the reader's grant", read).await??;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("the last write", task).await?;
    }
    let write_holds = holds(&processes, &name, Mode::Write);
    let waited = waits(&processes, &name, Mode::Read);
    assert!(waited.len() >= ROUNDS, "it waited in the queue: {}", waited.len());
    for wait in &waited {
        // The reader came while a writer had the lock, so it waits for that writer alone.
        let before = writers_during(&write_holds, wait);
        assert!(before.is_empty(), "{before:?} wrote before the reader of {wait:?}");
    }
    for wait in waits(&processes, &name, Mode::Write) {
        let mut before = writers_during(&write_holds, &wait);
        before.sort_unstable();
        assert!(before.is_sorted_by(|one, next| one < next), "{before:?} wrote before {wait:?}");
    }
    Ok(())
}
