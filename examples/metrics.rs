//! A service that tells Prometheus of its locks: of all its instances one leads, as long as it has the lock.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --features metrics --example metrics`, then
//! `curl http://127.0.0.1:9184/metrics`; the rules of docs/alerts.yml are on what it answers.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use redis_rwlock::{RedisManager, RwLockManager, WriteGuard};
use tokio::time::sleep;

/// Without them Prometheus could not add up the instances' waits. The rules want one at ten seconds.
const BUCKETS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

async fn work(guard: &WriteGuard) {
    println!("leads, with token {}", guard.fencing_token());
    sleep(Duration::from_secs(600)).await; // … what only one may do …
}

/// Ends with an error when the lock is lost, and when no server answers; then it begins again.
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
    // Before the manager: its counters are registered when it is built.
    let prometheus = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let locks = RedisManager::builder(url).lease(Duration::from_secs(3)).label("leader-1").build()?;
    let port = std::env::var("PORT").unwrap_or("9184".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listens on {}", listener.local_addr()?);

    tokio::spawn(lead(locks));
    // Now and then, or the histograms keep what nobody has scraped.
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
