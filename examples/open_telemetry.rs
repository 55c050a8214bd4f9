//! Spans for OpenTelemetry: a trace shows how long a request waited for a lock, and how long it held the lock.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example open_telemetry`

use std::error::Error;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use redis_rwlock::{RedisManager, RwLockManager};
use tokio::time::sleep;
use tracing::{Instrument, info_span};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Sends the spans of the service and of its locks to an exporter.
fn export_spans(exporter: impl SpanExporter + 'static) -> SdkTracerProvider {
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    // The spans of locks have the level DEBUG. The target is necessary, or else a filter for INFO drops them.
    let wanted = Targets::new().with_default(LevelFilter::INFO).with_target("redis_rwlock::lock", LevelFilter::DEBUG);
    tracing_subscriber::registry().with(layer.with_filter(wanted)).init();
    provider
}

/// Exporter that prints spans. A service uses the one of the crate `opentelemetry-otlp`.
#[derive(Debug)]
struct Printer;

impl SpanExporter for Printer {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in &batch {
            let parent = batch.iter().find(|other| other.span_context.span_id() == span.parent_span_id);
            let parent = parent.map_or("no span", |parent| &parent.name);
            let known = ["lock", "mode", "outcome", "ended", "token"];
            let fields = span.attributes.iter().filter(|field| known.contains(&field.key.as_str()));
            let fields: Vec<String> = fields.map(|field| format!("{}={}", field.key, field.value)).collect();
            let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
            println!("{} in {parent}: {} ms {}", span.name, took.as_millis(), fields.join(" "));
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let provider = export_spans(Printer);
    let locks = RedisManager::connect(&url).await?;
    let before = RedisManager::connect(&url).await?.write("report").await?;

    let request = async {
        let guard = locks.write("report").await?;
        sleep(Duration::from_millis(30)).await;
        guard.release().await
    };
    let release = async {
        sleep(Duration::from_millis(100)).await;
        before.release().await
    };
    // All spans of this future are parts of the request's trace.
    let (done, released) = tokio::join!(request.instrument(info_span!("request")), release);
    done.and(released)?;

    locks.close().await?;
    Ok(provider.shutdown()?) // exports the last spans
}
