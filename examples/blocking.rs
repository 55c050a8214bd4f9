//! Uses the same locks in plain threads. Acquisitions of one thread nest. Other threads wait, as other processes do.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example blocking`

use std::thread;
use std::time::Duration;

use redis_rwlock::Result;
use redis_rwlock::blocking::RedisManager;

fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let locks = RedisManager::connect(&url)?;

    let workers = (1..=3).map(|worker| {
        let locks = locks.clone(); // the copy shares connections and holds
        thread::spawn(move || -> Result<()> {
            let guard = locks.write("job").wait_timeout(Duration::from_secs(5)).wait()?;
            println!("worker {worker} is alone, with token {}", guard.fencing_token());
            check(&locks)?;
            guard.release()
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.join().expect("no panic")?;
    }

    // `run` takes the lock, does the work, and releases the lock.
    let token = locks.write("job").run(|guard| guard.fencing_token())?;
    println!("and once more, with token {token}");
    locks.close()
}

/// Takes the lock. It works with a caller that holds the lock and with one that does not.
fn check(locks: &RedisManager) -> Result<()> {
    let guard = locks.read("job").wait()?; // nested in the hold of this thread, so it sends nothing
    guard.release()
}
