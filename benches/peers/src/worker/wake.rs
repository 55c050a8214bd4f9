//! A client waits while another one holds the lock: the time from the beginning of the release to the waiter's entry.

use super::*;

pub(super) async fn carry(clients: &[Arc<dyn Peer>], load: &Load) -> Latencies {
    let pause = Duration::from_millis(load.pause_ms);
    let until = Instant::now() + load.span();
    let mut latencies = Vec::new();
    for (leaves, waits) in [(0, 1), (1, 0)].into_iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        let held = clients[leaves].enter(Mode::Write, "door").await;
        let client = Arc::clone(&clients[waits]);
        let waiter = tokio::spawn(async move {
            let held = client.enter(Mode::Write, "door").await;
            let entered = Instant::now();
            held.leave().await;
            entered
        });
        tokio::time::sleep(pause).await;
        // A task of its own releases the lock, as the waiter has one: the thread that runs this task is woken
        // differently.
        let leaving = tokio::spawn(async move {
            let left = Instant::now();
            held.leave().await;
            left
        });
        let left = leaving.await.expect("it runs");
        latencies.push(nanos(waiter.await.expect("it runs").saturating_duration_since(left)));
    }
    latencies
}
