use super::*;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{AcquireRequest, Acquired, IfTaken, Mode};

/// A master within this process, whose work is done in the runtimes of those who call, and a debt for each of two locks.
fn indebted(runtime: &tokio::runtime::Runtime) -> (Arc<Master>, [PendingRelease; 2]) {
    let _in = runtime.enter();
    let scheme = MemoryScheme::new(Arc::new(Store::new()));
    let any = Key::new("quorum", "-").expect("a name");
    let master = Arc::new(Master::new(Arc::new(scheme), BackgroundRuntime::Callers, any));
    let debts = ["one", "two"].map(|name| {
        let (key, id) = (Key::new("quorum", name).expect("a name"), AcquisitionId::new("m", 1, name));
        let lease = Duration::from_secs(60);
        let request = AcquireRequest {
            id: id.clone(),
            mode: Mode::Write,
            lease,
            max_tokens: 1,
            if_taken: IfTaken::Leave,
            caches: false,
        };
        let granted = runtime.block_on(master.scheme.acquire(&key, &request)).expect("answered").value;
        assert!(matches!(granted, Acquired::Granted(_)));
        PendingRelease {
            key: Arc::new(key),
            id,
            arrives_until: None,
            until: master.clock.now().after(lease),
            _leftover: None,
        }
    });
    (master, debts)
}

async fn holders(master: &Master, debt: &PendingRelease) -> usize {
    master.scheme.inspect(&debt.key).await.expect("answered").value.holders.len()
}

/// A runtime that ends takes the task with it that sees to the master.
#[test]
fn debts_outlive_the_runtime_that_was_to_tell_them() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = (runtime(), runtime());
    let (master, [one, two]) = indebted(&first);
    // Spawned, and never polled.
    first.block_on(async { master.add_pending_release(one.clone()) });
    drop(first);
    second.block_on(async {
        assert_eq!(holders(&master, &one).await, 1, "nobody has told it");
        master.add_pending_release(two.clone());
        for debt in [&one, &two] {
            while holders(&master, debt).await > 0 {
                assert!(master.has_task.load(Ordering::SeqCst), "somebody sees to it");
                tokio::task::yield_now().await;
            }
        }
    });
}

/// What is under way when its task goes is told again.
#[test]
fn debts_that_are_being_told_are_kept_when_nobody_waits_for_the_answer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (master, [one, two]) = indebted(&runtime);
    let _in = runtime.enter();
    let mut backoff = Backoff::new();
    let due = DueReleases { master: &master, releases: vec![one, two] };
    // As it is with its runtime.
    drop(master.send_due(due, &mut backoff));
    assert_eq!(master.pending_releases.lock().len(), 2);
}

/// A master and a runtime whose clock is paused.
fn on_time() -> (tokio::runtime::Runtime, Arc<Master>, [PendingRelease; 2]) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let (master, debts) = indebted(&runtime);
    (runtime, master, debts)
}

/// The copy brings it back after the first telling.
#[test]
fn debt_is_told_again_when_no_copy_can_arrive_any_more() {
    let (runtime, master, [debt, _]) = on_time();
    runtime.block_on(async {
        let stray = Duration::from_secs(1);
        master.add_pending_release(PendingRelease {
            arrives_until: Some(master.clock.now().after(stray)),
            ..debt.clone()
        });
        tokio::time::sleep(stray / 2).await;
        assert_eq!(holders(&master, &debt).await, 0, "it was told at once");
        let lease = Duration::from_secs(60);
        let late = AcquireRequest {
            id: debt.id.clone(),
            mode: Mode::Write,
            lease,
            max_tokens: 1,
            if_taken: IfTaken::Leave,
            caches: false,
        };
        master.scheme.acquire(&debt.key, &late).await.expect("answered");
        assert_eq!(holders(&master, &debt).await, 1);
        tokio::time::sleep(stray).await;
        assert_eq!((holders(&master, &debt).await, master.pending_releases()), (0, 0));
        assert!(!master.has_task.load(Ordering::SeqCst), "nothing is left to see to");
    });
}

#[test]
fn debts_are_bounded_and_the_oldest_go_first() {
    let (runtime, master, [one, two]) = on_time();
    let _in = runtime.enter();
    let (now, soon) = (master.clock.now(), Duration::from_millis(1));
    master.queue_release(one, now);
    for _ in 0..MAX_PENDING_RELEASES {
        master.queue_release(two.clone(), now.after(soon));
    }
    assert_eq!(master.pending_releases(), MAX_PENDING_RELEASES);
    assert_eq!(master.first_pending_release().id, two.id);
}

#[test]
fn debts_are_forgotten_with_what_they_are_for() {
    let (runtime, master, [one, two]) = on_time();
    runtime.block_on(async {
        let now = master.clock.now();
        master.queue_release(PendingRelease { until: now.after(Duration::from_secs(1)), ..one }, now);
        master.queue_release(two.clone(), now);
        tokio::time::sleep(Duration::from_secs(2)).await;
        master.forget_expired(master.clock.now());
        assert_eq!((master.pending_releases(), master.first_pending_release().id), (1, two.id));
    });
}

#[test]
fn answers_that_fail_are_asked_for_again_as_long_as_it_matters() {
    let (runtime, master, [debt, _]) = on_time();
    let _in = runtime.enter();
    let (now, pause) = (master.clock.now(), Duration::from_millis(250));
    let failed: Attempt<ReleaseReply> = Err(crate::base::attempt::Failure::NotDone { source: None });
    master.on_answer(debt.clone(), &failed, pause, now);
    assert_eq!(master.take_due(now).0.len(), 0, "not before the pause is over");
    assert_eq!(master.take_due(now.after(pause)).0.len(), 1);
    master.on_answer(debt.clone(), &failed, pause, debt.until);
    assert_eq!(master.pending_releases(), 0, "it has forgotten it by then");
}
