//! Service that exports metrics of its locks to Prometheus. One instance of the service leads, as long as it has the
//! lock.
//!
//! Start it with `REDIS_URL=redis://127.0.0.1:6379 cargo run --features metrics --example metrics`, then run `curl
//! http://127.0.0.1:9184/metrics`. The rules of docs/alerts.yml evaluate this output.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use redis_rwlock::{RedisManager, RwLockManager, WriteGuard};
use tokio::time::sleep;

/// Buckets of the histograms. Without buckets, Prometheus could not add up the waits of several instances. The rules
/// need a bucket at ten seconds.
const BUCKETS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

async fn work(guard: &WriteGuard) {
    println!("leads, with token {}", guard.fencing_token());
    sleep(Duration::from_secs(600)).await; // … work that only one instance may do …
}

/// Leads while this instance has the lock. `run` returns an error if the lock is lost or no server answers. Then the
/// loop tries again.
async fn lead(locks: RedisManager) {
    loop {
        if let Err(error) = locks.write("leader").run(work).await {
            println!("does not lead: {error}");
            sleep(Duration::from_millis(500)).await;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The recorder comes before the manager, which registers its counters when it is built.
    let prometheus = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let locks = RedisManager::builder(url).lease(Duration::from_secs(3)).label("leader-1").build()?;
    let port = std::env::var("PORT").unwrap_or("9184".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listens on {}", listener.local_addr()?);

    tokio::spawn(lead(locks));
    // Regular upkeep removes samples from the histograms that no scrape has fetched.
    let upkeep = prometheus.clone();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let metrics = Router::new().route("/metrics", get(async move || prometheus.render()));
    axum::serve(listener, metrics).await?;
    Ok(())
}
