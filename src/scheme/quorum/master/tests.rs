use super::*;
use crate::scheme::memory::{Memory, Store};
use crate::scheme::{AcquireRequest, Acquired, IfTaken, Mode};

/// A master within this process, whose work is done in the runtimes of those who call, and a debt for each of two locks.
fn indebted(runtime: &tokio::runtime::Runtime) -> (Arc<Master>, [Debt; 2]) {
    let _in = runtime.enter();
    let scheme = Memory::new(Arc::new(Store::new()));
    let any = Key::new("quorum", "-").expect("a name");
    let master = Arc::new(Master::new(Arc::new(scheme), Home::Callers, any));
    let debts = ["one", "two"].map(|name| {
        let (key, id) = (Key::new("quorum", name).expect("a name"), AcquisitionId::new("m", 1, name));
        let lease = Duration::from_secs(60);
        let request =
            AcquireRequest { id: id.clone(), mode: Mode::Write, lease, max_tokens: 1, if_taken: IfTaken::Leave };
        let granted = runtime.block_on(master.scheme.acquire(&key, &request)).expect("answered").value;
        assert!(matches!(granted, Acquired::Granted(_)));
        Debt { key: Arc::new(key), id, stray_until: None, until: master.clock.now().after(lease) }
    });
    (master, debts)
}

async fn holders(master: &Master, debt: &Debt) -> usize {
    master.scheme.inspect(&debt.key).await.expect("answered").value.holders.len()
}

/// A runtime that ends takes the task with it that sees to the master.
#[test]
fn debts_outlive_the_runtime_that_was_to_tell_them() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = (runtime(), runtime());
    let (master, [one, two]) = indebted(&first);
    // Spawned, and never polled.
    first.block_on(async { master.owe(one.clone()) });
    drop(first);
    second.block_on(async {
        assert_eq!(holders(&master, &one).await, 1, "nobody has told it");
        master.owe(two.clone());
        for debt in [&one, &two] {
            while holders(&master, debt).await > 0 {
                assert!(master.is_tended.load(Ordering::SeqCst), "somebody sees to it");
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
    let due = Due { master: &master, debts: vec![one, two] };
    // As it is with its runtime.
    drop(master.tell(due, &mut backoff));
    assert_eq!(master.debts.lock().len(), 2);
}
