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

async fn make(guard: &WriteGuard) -> Answer {
    // … the work, which sends the token with each write …
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
    use redis_rwlock::MemoryManager;

    use super::*;

    fn locks() -> (MemoryManager, Locks) {
        let manager = MemoryManager::builder().unreachable_after(Duration::from_millis(50)).build().expect("valid");
        (manager.clone(), Arc::new(manager))
    }

    #[tokio::test]
    async fn one_instance_at_a_time_makes_the_report() {
        let (manager, locks) = locks();
        assert_eq!(report(State(Arc::clone(&locks))).await.0, StatusCode::OK);
        let _elsewhere = manager.peer().write("report").await.expect("granted");
        assert_eq!(report(State(locks)).await.0, StatusCode::CONFLICT);
    }

    #[tokio::test]
    async fn without_a_server_the_service_is_not_ready() {
        let (manager, locks) = locks();
        assert_eq!(health(State(Arc::clone(&locks))).await.0, StatusCode::OK);
        manager.disconnect();
        assert_eq!(health(State(Arc::clone(&locks))).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(report(State(locks)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
