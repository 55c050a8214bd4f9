//! Wake-ups of the two-key scheme. A release wakes the next waiter, and no other waiter.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::fixture::{Manager, ServerFixture, Settings};

/// Result of independent writers on one lock: the scripts, and the grants of each writer.
struct ManyWriters {
    scripts: i64,
    served: Vec<u64>,
}

impl ManyWriters {
    async fn run(f: &ServerFixture, writers: &[Manager], span: Duration) -> Self {
        let name = f.name();
        let scripts = || f.calls_of("evalsha") + f.calls_of("eval");
        // After this every writer has its connection, its script and its channel, and waits in the queue.
        write_until(writers, &name, Instant::now() + span / 4).await;
        let before = scripts();
        let served = write_until(writers, &name, Instant::now() + span).await;
        Self { scripts: scripts() - before, served }
    }

    fn scripts_per_hand_over(&self) -> f64 {
        self.scripts as f64 / self.served.iter().sum::<u64>() as f64
    }

    /// Least, median and greatest number of grants of a writer.
    fn least_median_most(&self) -> [u64; 3] {
        let mut served = self.served.clone();
        served.sort_unstable();
        [served[0], served[served.len() / 2], served[served.len() - 1]]
    }
}

/// Lets all writers write again and again until `end`. Returns the number of grants of each.
async fn write_until(writers: &[Manager], name: &str, end: Instant) -> Vec<u64> {
    let tasks = writers.iter().map(|writer| {
        let (writer, name) = (Manager::clone(writer), name.to_owned());
        tokio::spawn(async move {
            let mut served = 0;
            while Instant::now() < end {
                let guard = writer.write(&name).await.expect("granted");
                served += 1;
                guard.release().await.expect("ours to the end");
            }
            served
        })
    });
    let tasks: Vec<_> = tasks.collect();
    join_all(tasks).await.into_iter().map(|served| served.expect("no panic")).collect()
}

async fn managers(f: &ServerFixture, count: usize) -> Vec<Manager> {
    let patient = Settings { response_timeout: Duration::from_secs(5), ..Settings::default() };
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(f.manager_with(patient.clone()).await);
    }
    all
}

async fn release_wakes_who_is_next(f: &ServerFixture) {
    let writers = ManyWriters::run(f, &managers(f, 60).await, Duration::from_secs(3)).await;
    assert!(writers.scripts_per_hand_over() <= 8.0, "{:.1} scripts per hand-over", writers.scripts_per_hand_over());
    let [least, median, most] = writers.least_median_most();
    assert!(least * 4 >= median, "served {least}, {median}, {most} times");
}

mod release_wakes_who_is_next {
    crate::fixture::on_one!(release_wakes_who_is_next, on_redis_7_0, TwoKey, Redis70, alone.await);
    crate::fixture::on_one!(later release_wakes_who_is_next, on_redis_8_2, TwoKey, Redis82, alone.await);
    crate::fixture::on_one!(later release_wakes_who_is_next, on_valkey_8_1, TwoKey, Valkey81, alone.await);
    crate::fixture::on_one!(release_wakes_who_is_next, on_valkey_9_1, TwoKey, Valkey91, alone.await);
}
