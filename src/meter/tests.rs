use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;

use crate::manager::{MemoryManager, RedisManager, RwLockManager};

/// By name and labels: how often something was told, and what it adds up to.
type Told = BTreeMap<String, (usize, f64)>;

/// Each label with its values.
type Labels = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
pub(crate) struct Recording {
    told: Arc<Mutex<Told>>,
    /// By name: its kind and its labels.
    registered: Mutex<BTreeMap<String, (&'static str, Labels)>>,
    described: Mutex<BTreeSet<String>>,
}

struct Handle {
    told: Arc<Mutex<Told>>,
    name: String,
}

impl Handle {
    fn add(&self, value: f64) {
        let mut told = self.told.lock();
        let (count, sum) = told.entry(self.name.clone()).or_default();
        (*count, *sum) = (*count + 1, *sum + value);
    }
}

impl CounterFn for Handle {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("nobody does");
    }
}

impl GaugeFn for Handle {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("nobody does");
    }
}

impl HistogramFn for Handle {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recording {
    fn handle(&self, key: &Key, kind: &'static str) -> Arc<Handle> {
        let mut registered = self.registered.lock();
        let (_, labels) = registered.entry(key.name().to_owned()).or_insert((kind, BTreeMap::new()));
        let mut name = key.name().to_owned();
        for label in key.labels() {
            labels.entry(label.key().to_owned()).or_default().insert(label.value().to_owned());
            name += &format!(" {}={}", label.key(), label.value());
        }
        Arc::new(Handle { told: Arc::clone(&self.told), name })
    }

    fn describe(&self, key: &KeyName) {
        self.described.lock().insert(key.as_str().to_owned());
    }

    /// How often a metric was told, and what that adds up to.
    pub(crate) fn told(&self, name: &str) -> (usize, f64) {
        self.told.lock().get(name).copied().unwrap_or_default()
    }
}

impl Recorder for Recording {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key, "counter"))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key, "gauge"))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key, "histogram"))
    }
}

/// A manager whose counts go to a recording.
fn recorded() -> (Recording, MemoryManager) {
    let recording = Recording::default();
    let manager = metrics::with_local_recorder(&recording, MemoryManager::new);
    (recording, manager)
}

#[tokio::test(start_paused = true)]
async fn each_event_is_counted() {
    let (recording, manager) = recorded();
    let told = |name: &str| recording.told(name);
    let first = manager.read("cfg").await.expect("granted");
    let joined = manager.read("cfg").await.expect("granted");
    assert_eq!(told("rwlock_acquisitions_total mode=read outcome=granted"), (1, 1.0));
    assert_eq!(told("rwlock_acquisitions_total mode=read outcome=joined"), (1, 1.0));
    assert_eq!(told("rwlock_holds mode=read"), (1, 1.0), "they share one");
    let waiting = manager.write("cfg").wait_timeout(Duration::from_secs(5));
    let mut waiting = Box::pin(waiting.into_future());
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    assert_eq!(told("rwlock_waiters mode=write").1, 1.0);
    waiting.await.expect_err("they read");
    assert_eq!(told("rwlock_acquisitions_total mode=write outcome=timeout"), (1, 1.0));
    assert!(manager.try_write("cfg").await.expect("answered").is_none());
    assert_eq!(told("rwlock_acquisitions_total mode=write outcome=denied"), (1, 1.0));
    drop((first, joined));
    assert_eq!(told("rwlock_holds mode=read").1, 0.0);
    let (count, seconds) = told("rwlock_hold_duration_seconds mode=read");
    assert!(count == 1 && (5.0..6.0).contains(&seconds), "{count}, {seconds}");

    let holder = manager.write("cfg").await.expect("granted");
    let waiting = manager.write("cfg").into_future();
    assert!(tokio::time::timeout(Duration::from_secs(1), waiting).await.is_err());
    assert_eq!(told("rwlock_acquisitions_total mode=write outcome=dropped"), (1, 1.0));
    assert_eq!(told("rwlock_waiters mode=write").1, 0.0);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(told("rwlock_renewals_total outcome=renewed").0 >= 2);
    manager.disconnect();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(told("rwlock_renewals_total outcome=unanswered").0 >= 1);
    manager.lose_all();
    manager.reconnect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told("rwlock_renewals_total outcome=lost").0, 1);
    assert_eq!(told("rwlock_losses_total mode=write reason=gone"), (1, 1.0));
    assert_eq!(told("rwlock_holds mode=write").1, 0.0);
    drop(holder);
    assert_eq!(told("rwlock_losses_total mode=write reason=gone"), (1, 1.0));
    let forced = manager.write("cfg").await.expect("granted");
    manager.force_release("cfg").await.expect("forced");
    assert_eq!(told("rwlock_losses_total mode=write reason=forced"), (1, 1.0));
    drop(forced);
}

#[tokio::test(start_paused = true)]
async fn conversion_ends_one_hold_and_begins_another() {
    let (recording, manager) = recorded();
    let writer = manager.write("cfg").await.expect("granted");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let reader = writer.downgrade().await.expect("converted");
    assert_eq!((recording.told("rwlock_holds mode=write").1, recording.told("rwlock_holds mode=read").1), (0.0, 1.0));
    let (count, seconds) = recording.told("rwlock_hold_duration_seconds mode=write");
    assert!(count == 1 && (2.0..2.1).contains(&seconds), "{count}, {seconds}");
    reader.release().await.expect("released");
    assert_eq!(recording.told("rwlock_holds mode=read").1, 0.0);
}

/// The rows of the document: name, kind, and the labels with their values.
#[tokio::test]
async fn document_lists_what_is_counted() {
    let recording = Recording::default();
    let cluster = metrics::with_local_recorder(&recording, || {
        RedisManager::builder(["redis://127.0.0.1:1"]).unreachable_after(Duration::from_millis(10)).build()
    })
    .expect("valid");
    // A connection is counted where it is made.
    drop(metrics::with_local_recorder(&recording, super::Tally::of_reconnects));
    drop(cluster);
    let listed: BTreeMap<String, (String, String)> = include_str!("../../docs/METRICS.md")
        .lines()
        .filter(|line| line.starts_with("| `rwlock_"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells[1].replace('`', ""), (cells[2].to_owned(), cells[3].replace('`', "")))
        })
        .collect();
    let registered = recording.registered.lock();
    let counted = registered.iter().map(|(name, (kind, labels))| {
        let label = |(key, values): (&String, &BTreeSet<String>)| {
            format!("{key}: {}", values.iter().cloned().collect::<Vec<_>>().join(", "))
        };
        let labels: Vec<String> = labels.iter().map(label).collect();
        (name.clone(), ((*kind).to_owned(), labels.join("; ")))
    });
    assert_eq!(listed, counted.collect());
    let described = recording.described.lock();
    assert!(registered.keys().eq(described.iter()), "{described:?}");
    for labels in registered.values().flat_map(|(_, labels)| labels.values()) {
        assert!(labels.len() <= 12, "labels have few values");
    }
}

/// Rules and dashboard ask for nothing that is not there.
#[test]
fn alerts_and_dashboard_ask_for_what_is_counted() {
    let document = include_str!("../../docs/METRICS.md");
    let (alerts, dashboard) = (include_str!("../../docs/alerts.yml"), include_str!("../../docs/dashboard.json"));
    for (file, text) in [("alerts", alerts), ("dashboard", dashboard)] {
        let mut names = 0;
        for rest in text.split("rwlock_").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let name = format!("rwlock_{}", name.trim_end_matches("_bucket"));
            assert!(document.contains(&format!("| `{name}` |")), "{file}: nobody counts {name}");
            names += 1;
        }
        assert!(names >= 8, "{file}: {names}");
    }
}
