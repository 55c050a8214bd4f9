//! Cached holds in a process that is nearly alone, while the server is away for a while and then replaced.

use super::*;

/// Times of the outage, and of the moment when a replica has taken over and the processes learn of it.
struct Plan {
    away: Instant,
    rerouted: Instant,
}

pub async fn used_alone(world: &Arc<World>) {
    let (user, other) = (enters(world, 0), enters(world, 1));
    let writes = user.uses(wish(b'b', Mode::Write), 30, 150);
    // Either before or after a ping.
    let at = |ms| Instant::now() + Duration::from_millis(ms + world.draw(|rng| rng.u64(0..500)));
    let plan = Plan { away: at(2_000), rerouted: at(7_400) };
    tokio::join!(reads(&user), writes, waits(&user, &other, &plan), troubles(world, &plan));
}

/// Keeps one reader inside while the server is away, and lets other readers come and go.
async fn reads(user: &Actor) {
    let long = Wish { lease_ms: 10_000, ..wish(b'a', Mode::Read) };
    user.uses(long, 0, 2).await;
    let inside = user.takes(long).await;
    tokio::join!(user.keeps_and_releases(inside, 6_000), user.uses(long, 70, 100));
}

impl Actor {
    /// Takes a lock several times, with pauses.
    async fn uses(&self, wish: Wish, pause_ms: u64, times: u32) {
        for _ in 0..times {
            self.visits(wish, 0).await;
            sleep_ms(pause_ms).await;
        }
    }
}

/// Waits for a lock that becomes free just when another primary has taken over, and goes on with it.
async fn waits(user: &Actor, other: &Actor, plan: &Plan) {
    user.uses(wish(b'c', Mode::Write), 0, 1).await;
    // Pings are half a second apart, and the first comes with the request: none falls into the failover.
    tokio::time::sleep_until(plan.rerouted - Duration::from_millis(1_750)).await;
    let inside = other.takes(wish(b'c', Mode::Write)).await;
    let leaves = async {
        tokio::time::sleep_until(plan.rerouted - Duration::from_millis(20)).await;
        other.keeps_and_releases(inside, 0).await;
    };
    tokio::join!(leaves, user.uses(wish(b'c', Mode::Write), 30, 20));
}

async fn troubles(world: &Arc<World>, plan: &Plan) {
    tokio::time::sleep_until(plan.away).await;
    world.goes_down(0, Down::Silent);
    sleep_ms(1_500).await;
    world.comes_up(0);
    tokio::time::sleep_until(plan.rerouted - Duration::from_millis(40)).await;
    world.freezes(0);
    sleep_ms(10).await;
    world.promotes();
    // The process that releases learns of the failover first. So the waiter gets no notification and has to ask.
    world.reroutes(1);
    tokio::time::sleep_until(plan.rerouted).await;
    world.reroutes(0);
    sleep_ms(1_000).await;
    world.wakes();
    world.demotes();
}
