//! Recorder that keeps metrics, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;

/// Number of reports and their sum, by name and labels.
type Told = BTreeMap<String, (usize, f64)>;

/// Labels with their values.
type Labels = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
pub(crate) struct Recording {
    told: Arc<Mutex<Told>>,
    /// Kind and labels, by name.
    pub(super) registered: Mutex<BTreeMap<String, (&'static str, Labels)>>,
    pub(super) described: Mutex<BTreeSet<String>>,
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

    /// Returns how often a metric was reported, and the sum.
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
