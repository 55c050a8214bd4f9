//! Events of a wait, as a subscriber of the crate sees them.

use std::time::Duration;

use redis_rwlock::LossReason;
use tokio::join;

use super::process::Process;
use super::scripts;
use crate::errors::assert_lost;
use crate::fixture::{ServerFixture, Settings, hash_on_every_server, on_one};
use crate::wait::{Outcome, granted, soon, until};

mod wait_is_told_from_its_beginning_to_its_end {
    use super::on_one;
    on_one!(later wait_is_told_from_its_beginning_to_its_end, hash_on_redis_7_0, HashNode, Redis70, alone.await);
    on_one!(wait_is_told_from_its_beginning_to_its_end, hash_on_redis_8_2, HashNode, Redis82, alone.await);
    on_one!(later wait_is_told_from_its_beginning_to_its_end, hash_on_valkey_8_1, HashNode, Valkey81, alone.await);
    on_one!(wait_is_told_from_its_beginning_to_its_end, hash_on_valkey_9_1, HashNode, Valkey91, alone.await);
}
hash_on_every_server![hand_off_within_a_process_is_reported];

async fn wait_is_told_from_its_beginning_to_its_end(f: &ServerFixture) -> Outcome {
    let ([holder], name) = f.scene().await;
    let process = Process::start(f, 0, Settings::default()).await;
    let held = holder.write(&name).await?;
    let waiting = process.spawn(process.manager.write(&name).into_future());
    until("it waits", async || told(&process, &name) == ["queued"]).await;
    // The waiter subscribes, and repeats its request when the subscription is confirmed.
    let has_asked = async || {
        let before = scripts(f);
        tokio::time::sleep(Duration::from_millis(50)).await;
        scripts(f) == before
    };
    until("it has nothing more to ask", has_asked).await;
    held.release().await?;
    let guard = granted(waiting).await;
    assert_eq!(told(&process, &name), ["queued", "granted by notification"]);
    until("it is claimed", async || told(&process, &name).len() > 2).await;
    holder.force_release(&name).await?;
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Forced);
    until("the log line about the loss", async || told(&process, &name).len() > 3).await;
    let told = told(&process, &name);
    assert_eq!(told[..3], ["queued", "granted by notification", "claimed"]);
    assert!(told[3..].len() == 1 && told[3].starts_with("lost the write hold"), "{told:?}");
    let error = guard.release().await.expect_err("it was ended");
    assert_lost(&error, LossReason::Forced);
    Ok(())
}

async fn hand_off_within_a_process_is_reported(f: &ServerFixture) {
    let (process, name) = (Process::start(f, 0, Settings::default()).await, f.name());
    let one_acquisition = || {
        let write = process.manager.write(&name).into_future();
        process.spawn(async { write.await.expect("granted").release().await })
    };
    // A machine that stalls may keep the first one inside for longer than a hold is handed over.
    let hands_over = async || {
        let (one, other) = join!(one_acquisition(), one_acquisition());
        one.expect("no panic").expect("ours to the end");
        other.expect("no panic").expect("ours to the end");
        told(&process, &name).contains(&"handed off".to_owned())
    };
    until("a turn is handed over", hands_over).await;
}

/// The crate's events about a lock, in order.
fn told(process: &Process, lock: &str) -> Vec<String> {
    process.told().into_iter().filter(|told| told.lock == lock).map(|told| told.what).collect()
}
