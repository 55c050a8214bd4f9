//! Work that stops when its lock is lost. `run` stops a future, and a watch stops a thread or another task.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example stop_on_loss`

use std::time::Duration;

use redis_rwlock::{Ended, Error, HoldState, RedisManager, RwLockManager};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> redis_rwlock::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    // The lease is shorter than by default, so that this example soon notices the operator's action.
    let locks = RedisManager::builder(&url).lease(Duration::from_secs(3)).connect().await?;
    let operator = RedisManager::connect(&url).await?;

    // `run` drops the work at its next await.
    let work = locks.write("job").run(async |guard| {
        for step in 1.. {
            println!("run: step {step}, with token {}", guard.fencing_token());
            sleep(STEP).await;
        }
    });
    let force = async {
        sleep(3 * STEP).await;
        operator.force_release("job").await
    };
    let (outcome, ended) = tokio::join!(work, force);
    println!("operator: ended the hold of {}", ended?[0].label);
    match outcome {
        Err(error @ Error::Lost { .. }) => println!("run: {error}"),
        other => other?,
    }

    // A computation on a thread cannot be dropped, so it must check the state.
    let guard = locks.write("job").await?;
    let watch = guard.watch();
    let computation = tokio::task::spawn_blocking(move || {
        while !matches!(watch.state(), HoldState::Lost(_)) {
            std::thread::sleep(STEP); // a part of the work
        }
        println!("thread: stopped");
    });
    let watch = guard.watch();
    operator.force_release("job").await?;
    if let Ended::Lost(reason) = watch.ended().await {
        println!("task: told as soon as it is known: {reason}");
    }
    computation.await.expect("no panic");
    Ok(())
}
