//! Web service with many instances. Only one instance at a time makes the report. It has a health check, a shutdown and
//! tests.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example service`, then `curl -X POST http://127.0.0.1:3000/report`

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use redis_rwlock::{Error, RedisManager, RwLockManager, WriteGuard};
use tokio::signal::unix::{SignalKind, signal};

/// State of the handlers. Tests use a `MemoryManager`.
type Locks = Arc<dyn RwLockManager>;
type Answer = (StatusCode, String);

/// Duration of the work.
const WORK: Duration = Duration::from_millis(500);

async fn make(guard: &WriteGuard) -> Answer {
    // … the work, which sends the token with each write …
    tokio::time::sleep(WORK).await;
    (StatusCode::OK, format!("report made with token {}\n", guard.fencing_token()))
}

async fn report(State(locks): State<Locks>) -> Answer {
    let error = match locks.write("report").wait_timeout(Duration::from_millis(500)).run(make).await {
        Ok(answer) => return answer,
        Err(error) => error,
    };
    let status = match error {
        Error::WaitTimeout { .. } => StatusCode::CONFLICT, // another instance has the lock
        Error::Unreachable { .. } | Error::Closed { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}

/// Answers a readiness check, which comes every few seconds. Do not use this handler for a liveness check, because a
/// restart of this process repairs no server.
async fn health(State(locks): State<Locks>) -> Answer {
    match locks.health().await {
        Ok(health) if health.is_ready() => (StatusCode::OK, "ready\n".to_owned()),
        Ok(health) => (StatusCode::SERVICE_UNAVAILABLE, format!("{:?}\n", health.nodes)),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn app(locks: Locks) -> Router {
    Router::new().route("/report", post(report)).route("/health", get(health)).with_state(locks)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let port = std::env::var("PORT").unwrap_or("3000".into());
    let locks: Locks = Arc::new(RedisManager::builder(url).label("report-1").build()?); // connects at first use
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listens on {}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        terminate.recv().await;
    };
    // 1. The service accepts no new requests, and finishes the present ones.
    axum::serve(listener, app(Arc::clone(&locks))).with_graceful_shutdown(stop).await?;
    // 2. `close` releases all remaining holds. It returns when the servers have confirmed the releases. 3. The process
    //    ends.
    locks.close().await?;
    println!("closed, {} holds left", locks.stats().holds);
    Ok(())
}

#[cfg(test)]
mod tests {
    use redis_rwlock::{LossReason, MemoryManager};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Returns the locks of the service, and a manager that acts as another instance. With a paused clock, the waits of
    /// all tests together take some milliseconds. The lease is shorter than the work, so the work needs renewals.
    fn locks() -> (MemoryManager, MemoryManager, State<Locks>) {
        let builder = MemoryManager::builder().lease(Duration::from_millis(300));
        let manager = builder.unreachable_after(Duration::from_millis(50)).build().expect("valid options");
        (manager.clone(), manager.peer(), State(Arc::new(manager)))
    }

    #[tokio::test(start_paused = true)]
    async fn one_instance_at_a_time_makes_the_report() {
        let (_, elsewhere, locks) = locks();
        let guard = elsewhere.write("report").await.expect("granted");
        assert_eq!(report(locks.clone()).await.0, StatusCode::CONFLICT);
        guard.release().await.expect("held to the end");
        assert_eq!(report(locks).await.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_server_the_service_is_not_ready() {
        let (manager, _, locks) = locks();
        assert_eq!(health(locks.clone()).await.0, StatusCode::OK);
        manager.disconnect();
        assert_eq!(health(locks.clone()).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(report(locks).await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test(start_paused = true)]
    async fn report_stops_when_an_operator_takes_the_lock() {
        let (_, elsewhere, locks) = locks();
        let operator = async {
            sleep(WORK / 2).await;
            elsewhere.force_release("report").await
        };
        let (answer, ended) = tokio::join!(report(locks), operator);
        assert_eq!(ended.expect("it answers").len(), 1);
        assert_eq!(answer.0, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(answer.1.contains(&LossReason::Forced.to_string()), "{answer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn report_stops_before_another_instance_can_begin() {
        let (manager, elsewhere, locks) = locks();
        let cut = async {
            sleep(WORK / 2).await;
            manager.disconnect(); // this instance alone loses the server
            elsewhere.write("report").await.map(|_| Instant::now())
        };
        let service = async { (report(locks).await, Instant::now()) };
        let ((answer, stopped), began) = tokio::join!(service, cut);
        assert_eq!(answer.0, StatusCode::INTERNAL_SERVER_ERROR, "{answer:?}");
        assert!(stopped < began.expect("granted when the lease is over"));
    }

    #[tokio::test(start_paused = true)]
    async fn short_silence_of_the_server_stops_no_report() {
        let (manager, _, locks) = locks();
        let silence = async {
            sleep(WORK / 2).await;
            manager.disconnect();
            sleep(Duration::from_millis(80)).await; // less than what the hold has left
            manager.reconnect();
        };
        assert_eq!(tokio::join!(report(locks), silence).0.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn instance_that_died_delays_the_report_for_a_lease() {
        let (_, elsewhere, locks) = locks();
        let guard = elsewhere.write("report").await.expect("granted");
        elsewhere.disconnect(); // from now on it is as if its process had been killed
        let started = Instant::now();
        assert_eq!(report(locks).await.0, StatusCode::OK);
        assert!(started.elapsed() > WORK + Duration::from_millis(200), "{:?}", started.elapsed());
        drop(guard);
    }
}
