//! Processes that end while they hold a lock.

use std::env;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use redis_rwlock::{Build, Builder, RedisManager, Topology, TwoKeyManager, blocking};

use crate::fixture::{ServerFixture, on_every_server};
use crate::wait::{Outcome, granted};

on_every_server![
    next_writer_is_in_a_lease_after_a_kill,
    guard_dropped_at_the_end_of_a_process_leaves_no_more_than_a_lease
];

const LEASE: Duration = Duration::from_secs(2);
/// Longest time of a try on a busy machine, with the longest pause of a waiter between two tries.
const A_TRY: Duration = Duration::from_millis(1500);

/// Environment variable of the process that holds a lock: its end, the kind of manager, the prefix, the lock, and the
/// servers.
const ORDER: &str = "CALLERS_HOLDER";

/// End of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// A signal kills the process.
    Killed,
    /// The main thread returns while it has the guard.
    Returns,
}

/// Takes a lock, prints its token, and ends as the order says. A test process that a case starts runs this; it is no
/// case itself.
#[test]
fn holder() {
    let Ok(order) = env::var(ORDER) else {
        return;
    };
    let words: Vec<&str> = order.split(' ').collect();
    let [end, kind, prefix, name, urls @ ..] = words.as_slice() else {
        panic!("no order: {order}");
    };
    match *kind {
        "TwoKey" => hold(end, TwoKeyManager::builder(urls[0]).key_prefix(*prefix), name),
        "HashNode" => hold(end, RedisManager::builder(urls[0]).key_prefix(*prefix), name),
        _ => hold(end, RedisManager::builder(Topology::cluster(urls.iter().copied())).key_prefix(*prefix), name),
    }
}

fn hold<M: Build>(end: &str, builder: Builder<M>, name: &str) {
    let builder = builder.lease(LEASE).max_clock_skew(Duration::from_millis(5));
    let manager = blocking::Blocking::connect_with(builder).expect("connected");
    let guard = manager.write(name).wait().expect("granted");
    println!("\ntoken {}", guard.fencing_token());
    if end == "Killed" {
        loop {
            std::thread::park();
        }
    }
}

/// A process that ends with the test, and its output. Without a reader of its output it would fail at the end.
struct Holder {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The kill fails if the process has ended, as it should have.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Holder {
    /// Starts the process, and returns when it has the lock, with its token.
    fn start(f: &ServerFixture, end: End, name: &str) -> (Self, u64) {
        let urls = match f.servers.cluster() {
            Some(cluster) => cluster.urls(),
            None => vec![f.servers.primaries()[0].url()],
        };
        let order = format!("{end:?} {:?} {} {name} {}", f.kind, f.prefix(), urls.join(" "));
        let this = env::current_exe().expect("this program");
        let mut command = Command::new(this);
        command.args(["--exact", "callers::processes::holder", "--nocapture"]).env(ORDER, order);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut holder = Self { child, output };
        let mut tokens = holder.output.by_ref().filter_map(|line| line.ok()?.strip_prefix("token ")?.parse().ok());
        let token = tokens.next().expect("it has the lock");
        (holder, token)
    }
}

async fn next_writer_is_in_a_lease_after(f: &ServerFixture, end: End) -> Outcome {
    let name = f.name();
    let (mut holder, token) = Holder::start(f, end, &name);
    if end == End::Killed {
        holder.child.kill()?;
    }
    holder.child.wait()?;
    let ended = Instant::now();
    let guard = granted(f.manager().await.write(&name)).await;
    assert!(ended.elapsed() < LEASE + A_TRY, "{:?}", ended.elapsed());
    assert!(u64::from(guard.fencing_token()) > token);
    guard.release().await?;
    Ok(())
}

async fn next_writer_is_in_a_lease_after_a_kill(f: &ServerFixture) -> Outcome {
    next_writer_is_in_a_lease_after(f, End::Killed).await
}

/// The release may be on its way or not when the process ends.
async fn guard_dropped_at_the_end_of_a_process_leaves_no_more_than_a_lease(f: &ServerFixture) -> Outcome {
    next_writer_is_in_a_lease_after(f, End::Returns).await
}
