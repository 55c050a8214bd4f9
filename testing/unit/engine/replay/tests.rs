use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::attempt::AcquisitionId;
use crate::base::key::Key;

fn release(n: u64, server_until: Moment) -> Release {
    let key = Arc::new(Key::new("rwlock", "cfg").expect("valid"));
    Release { key, id: AcquisitionId::new("manager", n, "label"), server_until, arrives_until: None, rest_until: None }
}

fn route(address: &str) -> Route {
    Route(address.into())
}

fn ids(releases: &[Release]) -> Vec<String> {
    releases.iter().map(|release| release.id.as_str().to_owned()).collect()
}

const START: Moment = Moment::from_nanos(0);

#[test]
fn those_of_another_owner_are_taken_once() {
    let (recent, later) = (ReleaseReplay::default(), START.after(Duration::from_secs(9)));
    recent.remember(route("old"), &release(1, later), START);
    recent.remember(route("new"), &release(2, later), START);
    assert!(recent.take_moved(|_| route(""), START).is_empty(), "nobody is known");
    assert_eq!(ids(&recent.take_moved(|_| route("new"), START)), ["manager.1.label"]);
    assert!(recent.take_moved(|_| route("new"), START).is_empty());
}

#[test]
fn what_is_over_anyway_is_forgotten() {
    let (recent, end) = (ReleaseReplay::default(), START.after(Duration::from_secs(9)));
    recent.remember(route("old"), &release(1, end), START);
    assert!(recent.take_moved(|_| route("new"), end).is_empty());
}

#[test]
fn nothing_is_remembered_for_ever() {
    let (recent, end) = (ReleaseReplay::default(), START.after(Duration::from_secs(3600)));
    recent.remember(route("old"), &release(1, end), START);
    let next = recent.forget(START);
    assert!(next <= START.after(MAX_AGE), "{next:?}");
    assert_eq!(recent.forget(next), Moment::NEVER);
    assert!(recent.memory.lock().releases.is_empty());
}

#[test]
fn nobody_looks_again_before_something_can_be_over() {
    let (recent, end) = (ReleaseReplay::default(), START.after(Duration::from_secs(9)));
    for n in 0..100 {
        recent.remember(route(&n.to_string()), &release(n, end), START);
    }
    assert_eq!(recent.forget(START), end);
    // With no release left, a check before `end` would return `NEVER`.
    recent.memory.lock().releases.clear();
    assert_eq!(recent.forget(START.after(LOOK)), end, "nobody has looked");
    assert_eq!(recent.forget(end), Moment::NEVER);
}

#[test]
fn the_latest_of_each_node_are_remembered() {
    let (recent, end) = (ReleaseReplay::default(), START.after(Duration::from_secs(9)));
    recent.remember(route("failed"), &release(0, end), START);
    for n in 1..=MAX_RECENT as u64 + 1 {
        recent.remember(route("busy"), &release(n, end), START);
    }
    let taken = recent.take_moved(|_| route("new"), START);
    assert_eq!(taken.len(), MAX_RECENT + 1);
    let ids = ids(&taken);
    assert!(ids.contains(&"manager.0.label".to_owned()), "the failed node's");
    assert!(!ids.contains(&"manager.1.label".to_owned()), "the busy node's oldest");
}
