//! Wake-ups of the two-key scheme. A release wakes the next waiter, and no other waiter.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::fixture::{Manager, ServerFixture, Settings};

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

async fn release_wakes_who_is_next(f: &ServerFixture) {
    const WRITERS: usize = 60;
    const SPAN: Duration = Duration::from_secs(3);
    let patient = Settings { response_timeout: Duration::from_secs(5), ..Settings::default() };
    let (writers, name) = f.scene_with::<WRITERS>(patient).await;
    let scripts = || f.calls_of("evalsha") + f.calls_of("eval");
    // After this every writer has its connection, its script and its channel, and waits in the queue.
    write_until(&writers, &name, Instant::now() + SPAN / 4).await;
    let before = scripts();
    let mut served = write_until(&writers, &name, Instant::now() + SPAN).await;
    let scripts_per_hand_over = (scripts() - before) as f64 / served.iter().sum::<u64>() as f64;
    assert!(scripts_per_hand_over <= 8.0, "{scripts_per_hand_over:.1} scripts per hand-over");
    served.sort_unstable();
    let [least, median, most] = [0, WRITERS / 2, WRITERS - 1].map(|n| served[n]);
    assert!(least * 4 >= median, "served {least}, {median}, {most} times");
}

mod release_wakes_who_is_next {
    crate::fixture::on_one!(release_wakes_who_is_next, on_redis_7_0, TwoKey, Redis70, alone.await);
    crate::fixture::on_one!(later release_wakes_who_is_next, on_redis_8_2, TwoKey, Redis82, alone.await);
    crate::fixture::on_one!(later release_wakes_who_is_next, on_valkey_8_1, TwoKey, Valkey81, alone.await);
    crate::fixture::on_one!(release_wakes_who_is_next, on_valkey_9_1, TwoKey, Valkey91, alone.await);
}
