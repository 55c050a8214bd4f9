//! Work that stops when its lock is lost: with `run`, and with a watch where the work is a thread or another task.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example stop_on_loss`

use std::time::Duration;

use redis_rwlock::{Ended, Error, HoldState, RedisManager, RwLockManager};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> redis_rwlock::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    // A shorter lease than by default, so that this example hears soon of what the operator does.
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

    // A computation cannot be dropped: it has to look.
    let guard = locks.write("job").await?;
    let watch = guard.watch();
    let computation = tokio::task::spawn_blocking(move || {
        while !matches!(watch.state(), HoldState::Lost(_)) {
            std::thread::sleep(STEP); // a piece of the work
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
