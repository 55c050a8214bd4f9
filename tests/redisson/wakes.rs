//! How long it takes from the beginning of a release until a waiter is inside, for each pair of the two sides.

use std::time::{Duration, Instant};

use redis_rwlock::{RedissonManager, RwLockManager};

use crate::java::{Actor, Version};
use crate::places::{Place, run};
use crate::wait::spawn;

const ROUNDS: usize = 40;
/// Time after which a waiter has subscribed.
const PAUSE: Duration = Duration::from_millis(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Java,
    Rust,
}

struct Pair {
    managers: [RedissonManager; 2],
    actors: [Actor; 2],
}

impl Pair {
    /// Returns the median of the rounds.
    async fn wake(&mut self, leaves: Side, waits: Side) -> Duration {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let guard = match leaves {
                Side::Rust => Some(self.managers[0].write("door").await.expect("granted")),
                Side::Java => {
                    self.actors[0].ok("lock w door").await;
                    None
                }
            };
            let waiting = spawn(self.managers[1].write("door"));
            if waits == Side::Java {
                waiting.abort();
                self.actors[1].begin("lock w door").await;
            }
            tokio::time::sleep(PAUSE).await;
            let left = Instant::now();
            match guard {
                Some(guard) => guard.release().await.expect("ours to the end"),
                None => self.actors[0].begin("unlock w door").await,
            }
            match waits {
                Side::Rust => {
                    let guard = waiting.await.expect("no panic").expect("granted");
                    times.push(left.elapsed());
                    guard.release().await.expect("ours to the end");
                }
                Side::Java => {
                    assert_eq!(self.actors[1].answer().await, "ok");
                    times.push(left.elapsed());
                    self.actors[1].ok("unlock w door").await;
                }
            }
            if leaves == Side::Java {
                assert_eq!(self.actors[0].answer().await, "ok");
            }
        }
        times.sort();
        times[ROUNDS / 2]
    }
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn each_side_wakes_the_other_as_fast_as_its_own() {
    run(async {
        let place = Place::node(Version::V4);
        let java = [place.java().await, place.java().await];
        let mut pair = Pair {
            managers: [place.manager().await, place.manager().await],
            actors: [java[0].actor("one").await, java[1].actor("two").await],
        };
        // A virtual machine is slow in its first rounds.
        pair.wake(Side::Java, Side::Java).await;
        let mut medians = Vec::new();
        for (leaves, waits) in
            [(Side::Java, Side::Java), (Side::Java, Side::Rust), (Side::Rust, Side::Rust), (Side::Rust, Side::Java)]
        {
            let median = pair.wake(leaves, waits).await;
            println!("{leaves:?} wakes {waits:?}: {median:?}");
            medians.push(median);
        }
        let [java_java, java_rust, rust_rust, rust_java] = medians[..] else { unreachable!("four pairs") };
        assert!(java_rust * 2 <= java_java * 3, "Redisson wakes this crate as fast as itself");
        assert!(rust_java * 2 <= (rust_rust + java_java) * 3, "this crate wakes Redisson as fast as each wakes itself");
    });
}
