use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::recording::Recording;
use crate::face::manager::{MemoryManager, RedisManager, RwLockManager};

/// Returns a manager with its recorder.
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
async fn reuse_of_a_cached_hold_counts_in_its_mode() {
    let recording = Recording::default();
    let builder = MemoryManager::builder().cache_for(Duration::from_secs(10));
    let manager = metrics::with_local_recorder(&recording, || builder.build()).expect("valid");
    while manager.stats().cached_holds == 0 {
        manager.write("cfg").await.expect("granted").release().await.expect("released");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    manager.write("cfg").await.expect("granted").release().await.expect("released");
    let joined = |mode: &str| recording.told(&format!("rwlock_acquisitions_total mode={mode} outcome=joined")).0;
    assert!(joined("write") > 0 && joined("read") == 0, "{} and {}", joined("write"), joined("read"));
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

/// Compares the rows of the document with the metrics: name, kind, and the labels with their values.
#[tokio::test]
async fn document_lists_what_is_counted() {
    let recording = Recording::default();
    let cluster = metrics::with_local_recorder(&recording, || {
        RedisManager::builder(["redis://127.0.0.1:1"]).unreachable_after(Duration::from_millis(10)).build()
    })
    .expect("valid");
    // A connection counts itself where it is made.
    drop(metrics::with_local_recorder(&recording, || super::Counter::of("rwlock_reconnects_total")));
    drop(cluster);
    let listed: BTreeMap<String, (String, String)> = include_str!("../../../../docs/METRICS.md")
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

/// Checks that rules and dashboard use only metrics that exist.
#[test]
fn alerts_and_dashboard_ask_for_what_is_counted() {
    let document = include_str!("../../../../docs/METRICS.md");
    let (alerts, dashboard) =
        (include_str!("../../../../docs/alerts.yml"), include_str!("../../../../docs/dashboard.json"));
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
