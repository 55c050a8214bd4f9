//! Once a night on many machines: each machine runs this program, and one of them makes the report.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 NOW=2026-11-28T03:14:59Z cargo run --example nightly`

use std::error::Error;
use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use croner::Cron;
use redis_rwlock::{FencingToken, RedisManager, RwLockManager};
use tokio::time::{Instant, sleep};

/// Time for which the lock stays taken. The clocks of the machines differ by less, and the nights are farther apart.
const AT_LEAST: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

/// Does the job, unless another machine does it or has just done it.
async fn once(
    locks: &impl RwLockManager,
    job: impl AsyncFnOnce(FencingToken) -> io::Result<()>,
) -> Result<&'static str, Box<dyn Error>> {
    let Some(guard) = locks.write("report").at_least(AT_LEAST).try_now().await? else {
        return Ok("another machine makes the report");
    };
    let done = tokio::select! {
        biased;
        reason = guard.lost() => return Err(reason.into()),
        done = job(guard.fencing_token()) => done,
    };
    match done {
        Ok(()) => guard.release().await?, // the lock stays taken for the rest of the ten minutes
        Err(error) => {
            guard.release_at_once().await?; // a machine whose clock is late may try
            return Err(error.into());
        }
    }
    Ok("made the report")
}

/// Does the job at each time of the schedule.
#[allow(clippy::future_not_send)] // it is `Send` if the job is, and `AsyncFn` has no stable bound for that
async fn at_each(
    schedule: &Cron,
    now: impl Fn() -> DateTime<Utc>,
    locks: &impl RwLockManager,
    job: impl AsyncFn(FencingToken) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let mut after = now();
    loop {
        let planned = schedule.find_next_occurrence(&after, false)?;
        while now() < planned {
            // In short steps, because the clock can be set, and the machine can be suspended.
            sleep((planned - now()).to_std().unwrap_or_default().min(MINUTE)).await;
        }
        match once(locks, &job).await {
            Ok(outcome) => println!("{planned}: {outcome}"),
            Err(error) => println!("{planned}: {error}"),
        }
        after = now().max(planned);
    }
}

/// Makes the report, and sends the token with each write.
async fn report(_token: FencingToken) -> io::Result<()> {
    sleep(Duration::from_millis(10)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let schedule: Cron = std::env::var("SCHEDULE").unwrap_or("15 3 * * *".into()).parse()?; // in UTC
    let locks = RedisManager::connect(url).await?;
    // With `NOW`, another clock: the test of this example does not wait for the night.
    match std::env::var("NOW") {
        Ok(start) => {
            let (start, started) = (start.parse::<DateTime<Utc>>()?, Instant::now());
            at_each(&schedule, || start + started.elapsed(), &locks, report).await
        }
        Err(_) => at_each(&schedule, Utc::now, &locks, report).await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use redis_rwlock::MemoryManager;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_night_one_machine_makes_the_report() {
        let start: DateTime<Utc> = "2026-11-27T12:00:00Z".parse().expect("a time");
        let (schedule, started) = ("15 3 * * *".parse().expect("a pattern"), Instant::now());
        let (locks, nights) = (MemoryManager::new(), RefCell::new(Vec::new()));
        // The clock of this machine is late by some seconds.
        let machine = async |late: u64| {
            let now = || start - Duration::from_secs(late) + started.elapsed();
            let job = async |_| {
                nights.borrow_mut().push(now().date_naive());
                Ok(())
            };
            at_each(&schedule, now, &locks.peer(), job).await
        };
        tokio::select! {
            ended = async { tokio::try_join!(machine(0), machine(90), machine(599)) } => panic!("{ended:?}"),
            () = sleep(3 * 24 * 60 * MINUTE) => {}
        }
        let days: Vec<String> = nights.borrow().iter().map(ToString::to_string).collect();
        assert_eq!(days, ["2026-11-28", "2026-11-29", "2026-11-30"]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_job_is_free_for_a_machine_that_is_late() {
        let locks = MemoryManager::new();
        let failed = once(&locks, async |_| Err(io::Error::other("the disk is full"))).await;
        assert_eq!(failed.expect_err("it failed").to_string(), "the disk is full");
        assert_eq!(once(&locks.peer(), report).await.expect("granted"), "made the report");
    }
}
