//! Time until a waiter in another process is inside after a release, when all was quiet for a while, beside a bare
//! message that the server pushes; and how often threads are woken for it.

use std::sync::mpsc::{Receiver, Sender};

use tokio::runtime::Builder;

use super::*;
use crate::setup::process::wake_ups;

const CHANNEL: &str = "{wake}:bare";
/// Quiet before a wake-up, and how many times a bare message's the wake-up may take.
const PAUSES_MS: [(u64, f64); 3] = [(1, 1.9), (20, 1.7), (150, 1.7)];

/// Runtimes of two processes, whose threads have different names.
struct Runtimes {
    here: Runtime,
    there: Runtime,
}

/// Time of an entrance or of a message. The guard stays until all has been measured.
type Ended = (Instant, Option<WriteGuard>);

impl Runtimes {
    fn new() -> Self {
        let named = |name: &str| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2).thread_name(name).enable_all().build().expect("a runtime")
        };
        Self { here: named("here"), there: named("there") }
    }

    /// Runs something here that causes something there. Returns microseconds, and how often threads were woken.
    fn measure(&self, act: impl Future<Output = ()> + Send + 'static, ended: &Receiver<Ended>) -> [f64; 2] {
        let woken = || wake_ups("here") + wake_ups("there");
        let (before, (begins, began)) = (woken(), mpsc::channel());
        self.here.spawn(async move {
            begins.send(Instant::now()).expect("the main thread waits");
            act.await;
        });
        let (began, ended) = (began.recv().expect("it begins"), ended.recv().expect("it ends"));
        // What follows a wake-up is over by then.
        thread::sleep(Duration::from_millis(2));
        [micros(ended.0 - began), (woken() - before) as f64]
    }
}

/// A lock that is held here and wanted there.
struct Wanted {
    here: RedisManager,
    there: RedisManager,
    inside: Sender<Ended>,
}

impl Wanted {
    /// Acquires the lock here, and waits until a task there waits for it.
    fn prepare(&self, runtimes: &Runtimes) -> WriteGuard {
        let held = runtimes.here.block_on(self.here.write("wake").into_future()).expect("granted");
        let (waiting, inside) = (self.there.clone(), self.inside.clone());
        runtimes.there.spawn(async move {
            let guard = waiting.write("wake").await.expect("granted");
            inside.send((Instant::now(), Some(guard))).expect("the main thread waits");
        });
        while runtimes.here.block_on(self.here.inspect("wake")).expect("inspected").waiters.is_empty() {}
        // Its second question, after it has subscribed, is over too.
        thread::sleep(Duration::from_millis(3));
        held
    }
}

pub(crate) fn run(effort: Effort) {
    let (node, runtimes) = (start_node(), Runtimes::new());
    let connect = |runtime: &Runtime| runtime.block_on(RedisManager::connect(node.url())).expect("a manager");
    let (inside, entered) = mpsc::channel();
    let wanted = Wanted { here: connect(&runtimes.here), there: connect(&runtimes.there), inside };
    let bare = runtimes.here.block_on(Bare::connect(&node));
    let (pushed, told) = mpsc::channel();
    let mut messages = runtimes.there.block_on(Messages::subscribe(&node.url(), CHANNEL));
    runtimes
        .there
        .spawn(async move { while messages.is_next().await && pushed.send((Instant::now(), None)).is_ok() {} });
    for (pause_ms, bound) in PAUSES_MS {
        let (mut times, mut woken) = (Sides::default(), Sides::default());
        for round in 0..=effort.of(401, 101, 2) * 20 / (20 + pause_ms.min(20)) {
            let (held, mut bare) = (wanted.prepare(&runtimes), bare.clone());
            thread::sleep(Duration::from_millis(pause_ms));
            let own = runtimes.measure(async { held.release().await.expect("released") }, &entered);
            thread::sleep(Duration::from_millis(pause_ms));
            let push = runtimes.measure(async move { bare.publish(CHANNEL).await }, &told);
            // The first round only warms up.
            if round > 0 {
                times.push(own[0], push[0]);
                woken.push(own[1], push[1]);
            }
        }
        let what = format!("wake-up in another process after {pause_ms} ms");
        tell_ratio(&format!("{what} / a bare pushed message"), times.medians(), "us", AtMost(bound));
        let [own, push] = [&woken.ours, &woken.others].map(|counts| counts.iter().sum::<f64>() / counts.len() as f64);
        println!("row: {what}, threads woken: {own:.1} against {push:.1}, means");
    }
}
