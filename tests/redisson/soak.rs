//! Four threads of Redisson and four tasks of this crate on one lock, with faults of the network and of either client.
//!
//! `REDISSON_SOAK_SECONDS` is the time for each version of Redisson; a minute by default. `REDISSON_SOAK_SEED` repeats the
//! choice of faults.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Proxy};
use redis_rwlock::{Error, RedissonManager, RwLockManager};

use crate::java::{self, Actor, Version};
use crate::places::{Place, Servers};
use crate::register::{Entry, Register};
use crate::wait::until;

const WORKERS: usize = 4;
const WRITES: u64 = 40;
/// Watchdog's time of Redisson. What a killed client or a lost reply leaves behind lasts for that long.
const WATCHDOG: Duration = Duration::from_secs(6);
/// Variable by which this program becomes a worker: the server's URL, the register's port and the time in milliseconds.
const WORK: &str = "REDISSON_SOAK_WORK";

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn no_overlap_and_nothing_left_beside_v4() {
    soak(Version::V4);
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn no_overlap_and_nothing_left_beside_v3() {
    soak(Version::V3);
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

fn soak(version: Version) {
    let span = Duration::from_secs(number("REDISSON_SOAK_SECONDS", 60));
    let seed = number("REDISSON_SOAK_SEED", fastrand::u64(..));
    println!("REDISSON_SOAK_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let place = Place::node(version);
        let mut soak = Soak::begin(&place, span).await;
        let mut random = fastrand::Rng::with_seed(seed);
        while soak.until.saturating_duration_since(Instant::now()) > WATCHDOG * 2 {
            soak.do_harm(&mut random).await;
            assert_eq!(soak.register.overlaps(), [""; 0]);
        }
        soak.end().await;
    });
}

struct Soak<'a> {
    place: &'a Place,
    register: Register,
    until: Instant,
    java: (java::Client, Vec<Actor>),
    rust: Child,
}

impl<'a> Soak<'a> {
    async fn begin(place: &'a Place, span: Duration) -> Self {
        let (register, until) = (Register::open(), Instant::now() + span);
        let java = java_workers(place, &register, until).await;
        let rust = rust_worker(place, &register, until);
        Self { place, register, until, java, rust }
    }

    fn proxy(&self) -> &Proxy {
        let Servers::Node(node) = &self.place.servers else { unreachable!("on a node") };
        node.proxy()
    }

    async fn do_harm(&mut self, random: &mut fastrand::Rng) {
        let pause = |random: &mut fastrand::Rng, most| Duration::from_millis(random.u64(100..most));
        match random.u32(0..12) {
            0..=2 => self.proxy().cut(),
            3..=4 => {
                self.proxy().delay(pause(random, 200) / 4);
                tokio::time::sleep(pause(random, 2_000)).await;
            }
            5 => {
                self.proxy().freeze();
                tokio::time::sleep(pause(random, 1_500)).await;
            }
            6..=9 => drop(self.proxy().cut_after_apply(Matcher::new(|request| request.is_script()))),
            10 => {
                self.rust.kill().expect("killed");
                self.rust.wait().expect("ended");
                self.rust = rust_worker(self.place, &self.register, self.until);
            }
            _ => {
                self.java.0.kill().await;
                self.java = java_workers(self.place, &self.register, self.until).await;
            }
        }
        self.proxy().heal();
        tokio::time::sleep(pause(random, 1_500)).await;
    }

    async fn end(mut self) {
        for actor in &mut self.java.1 {
            let done = actor.answer_within(self.until.saturating_duration_since(Instant::now()) + java::BOUND).await;
            assert!(done.as_deref().is_some_and(|done| done.starts_with("turns ")), "{done:?}");
        }
        assert!(self.rust.wait().expect("ended").success());
        assert_eq!(self.register.overlaps(), [""; 0]);
        let turns = self.register.turns();
        println!("entries: {turns:?}");
        assert!(turns.len() == 2 * WORKERS && turns.values().all(|turns| *turns > 10), "all come in: {turns:?}");
        // What lost replies of Redisson have left ends with the watchdog's time.
        until("nothing is left", async || {
            let keys = self.place.keys_of("cfg");
            keys.iter().all(|key| key == "{cfg}:rwlock_tokens" || key.starts_with("redisson_unlock_latch:"))
        })
        .await;
    }
}

async fn java_workers(place: &Place, register: &Register, until: Instant) -> (java::Client, Vec<Actor>) {
    let client = place.java_with(WATCHDOG).await;
    let mut actors = Vec::new();
    for n in 0..WORKERS {
        let mut actor = client.actor(&format!("java{n}")).await;
        let ms = until.saturating_duration_since(Instant::now()).as_millis();
        actor.begin(&format!("work w cfg {} {ms} {WRITES}", register.port)).await;
        actors.push(actor);
    }
    (client, actors)
}

fn rust_worker(place: &Place, register: &Register, until: Instant) -> Child {
    let Servers::Node(node) = &place.servers else { unreachable!("on a node") };
    let ms = until.saturating_duration_since(Instant::now()).as_millis();
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "soak::worker", "--ignored"]).env(WORK, format!("{} {} {ms}", node.url(), register.port));
    command.stdout(Stdio::null()).spawn().expect("started")
}

/// Body of the process of the workers of this crate. Alone, it does nothing.
#[test]
#[ignore = "a part of the other cases"]
fn worker() {
    let Ok(work) = env::var(WORK) else { return };
    let words: Vec<&str> = work.split(' ').collect();
    let [url, port, ms] = words[..] else { panic!("three words") };
    let until = Instant::now() + Duration::from_millis(ms.parse().expect("a number"));
    let port = port.parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let builder = RedissonManager::builder(url).lock_watchdog_timeout(WATCHDOG).lease(WATCHDOG / 2);
        let manager = builder.max_clock_skew(Duration::from_millis(5)).build().expect("built");
        let workers = (0..WORKERS).map(|n| tokio::spawn(work_until(until, port, n, manager.clone())));
        for worker in workers.collect::<Vec<_>>() {
            worker.await.expect("no panic");
        }
        // The network may be cut at this moment.
        drop(manager.close().await);
    });
}

async fn work_until(until: Instant, port: u16, n: usize, manager: RedissonManager) {
    let mut register = Entry::open(port);
    let mut random = fastrand::Rng::with_seed(n as u64);
    while Instant::now() < until {
        let is_writer = random.u64(0..100) < WRITES;
        let limit = Duration::from_secs(2);
        let inside = Duration::from_millis(random.u64(0..5));
        let done = async {
            if is_writer {
                let guard = manager.write("cfg").wait_timeout(limit).await?;
                stay(guard.remaining(), &mut register, "w", n, inside).await;
                guard.release().await
            } else {
                let guard = manager.read("cfg").wait_timeout(limit).await?;
                stay(guard.remaining(), &mut register, "r", n, inside).await;
                guard.release().await
            }
        };
        match done.await {
            Ok(()) | Err(Error::WaitTimeout { .. } | Error::Unreachable { .. } | Error::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Stays inside, unless the hold ends too soon. A lost hold has no time left.
async fn stay(remaining: Duration, register: &mut Entry, mode: &str, n: usize, inside: Duration) {
    // A guard says until when it may be believed. What is done inside takes a few milliseconds, or a few hundred where the
    // machine is busy.
    if remaining > Duration::from_secs(1) {
        register.ask(&format!("enter rust{n} {mode}"));
        tokio::time::sleep(inside).await;
        register.ask(&format!("leave rust{n}"));
    }
}
