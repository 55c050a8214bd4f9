use super::*;
use crate::base::attempt::AcquisitionId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::mode::Mode;
use crate::store::MasterScheme;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::quorum::{Margins, Restarts};

const LEASE: Duration = Duration::from_secs(10);

fn request(n: u64) -> AcquireRequest {
    request_to_master(&AcquisitionId::new("m", n, "test"), Mode::Write, LEASE)
}

/// Two of three masters still have an acquisition that failed before. Returns the result of the next one.
async fn acquire_behind_leftovers(is_own: impl Fn(usize) -> bool) -> Acquired {
    let masters: Vec<Arc<dyn MasterScheme>> =
        (0..3).map(|_| Arc::new(MemoryScheme::new(Arc::new(Store::new()))) as Arc<dyn MasterScheme>).collect();
    let key = Key::new("quorum", "cfg").expect("a name");
    for master in &masters[..2] {
        let taken = master.acquire(&key, &request(1)).await.expect("answered").value;
        assert!(matches!(taken, Acquired::Granted(_)), "{taken:?}");
    }
    let margins = Margins { max_clock_skew: Duration::ZERO, max_delay: Duration::from_secs(1) };
    let quorum = Quorum::new(masters, &BackgroundRuntime::Callers, &key, margins, Restarts::Delayed, LEASE);
    let own = (0..2).filter(|place| is_own(*place)).map(|place| quorum.outstanding.leftovers.add(&key, place));
    let _own: Vec<_> = own.collect();
    quorum.acquire_anew(&key, &request(2)).await.expect("a majority answers").value
}

#[tokio::test(start_paused = true)]
async fn refusal_for_an_own_failed_acquisition_is_neither_a_denial_nor_an_outage() {
    assert_eq!(acquire_behind_leftovers(|_| true).await, Acquired::Late, "both masters may only lack the release");
    for own in [|place| place == 0, |_| false] {
        let refused = acquire_behind_leftovers(own).await;
        assert!(matches!(refused, Acquired::Contended { retry_in: LEASE, .. }), "it is taken: {refused:?}");
        assert_eq!(refused.named_holder().expect("named").id, request(1).id.as_str());
    }
}

#[test]
fn holder_is_named_that_most_masters_name() {
    let named = |ids: &[&str]| {
        let holder =
            |id: &&str| NamedHolder { id: (*id).to_owned(), mode: Mode::Read, since_ms: None, deadline_ms: 7, more: 0 };
        named_by_most(ids.iter().map(|id| Arc::new(holder(id))).collect()).map(|holder| holder.id.clone())
    };
    assert_eq!(named(&["a", "b", "a"]).as_deref(), Some("a"));
    assert_eq!(named(&["a"]).as_deref(), Some("a"));
    assert_eq!(named(&["a", "b"]), None);
    assert_eq!(named(&[]), None);
}

#[test]
fn clocks_of_a_minority_that_are_ahead_move_no_proposal() {
    const AHEAD: u64 = 9_000_000_000;
    let latest = |minority, clocks: &[u64]| {
        let clocks = clocks.iter().map(|us| ServerTime::from_micros(*us)).collect();
        latest_right(clocks, minority, Duration::from_millis(100)).map(ServerTime::as_micros)
    };
    assert_eq!(latest(1, &[1_000_000, 1_050_000, 1_090_000]), Some(1_090_000), "all are right");
    assert_eq!(latest(1, &[AHEAD, 1_000_000, 1_050_000]), Some(1_050_000), "one is ahead");
    assert_eq!(latest(1, &[5, 1_000_000, 1_050_000]), Some(1_050_000), "one is behind");
    assert_eq!(latest(1, &[AHEAD, 1_000_000]), Some(1_000_000), "one of two is right");
    assert_eq!(latest(1, &[1_000_000]), None, "it may be the one that is wrong");
    assert_eq!(latest(2, &[AHEAD, 1_000_000, AHEAD, 1_010_000, 1_020_000]), Some(1_020_000), "two of five are ahead");
    assert_eq!(latest(2, &[AHEAD, AHEAD, 1_000_000]), Some(1_000_000), "two of three known ones are");
    assert_eq!(latest(2, &[]), None);
}
