//! Faults of the network, at the proxy in front of one server.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Proxy};
use fastrand::Rng;

use super::{Fault, Mixes, Scene, left};
use crate::Result;
use crate::tasks::LOCKS;

pub(super) const ALL: &[Fault] = &[
    left("cut", Mixes::Yes, cut, "all connections to a server are reset, three times"),
    left("black-hole", Mixes::Yes, black_hole, "what goes to a server or comes from it vanishes for 1 to 2 s"),
    left(
        "freeze",
        Mixes::Yes,
        freeze,
        "what goes to a server or comes from it stands still for 0.2 to 2 s, and comes late",
    ),
    left("delay", Mixes::Yes, delay, "each message takes 20 to 200 ms longer for 2 s"),
    left("duplicate", Mixes::Yes, duplicate, "requests come twice, for 1.5 s"),
    left(
        "lose-reply",
        Mixes::Yes,
        lose_reply,
        "requests are carried out, and their connections reset before the reply",
    ),
    left("late-reply", Mixes::Yes, late_reply, "replies come after the response timeout"),
];

/// Returns a server that grants a random lock.
pub(super) fn any<'a>(scene: &Scene<'a>, rng: &mut Rng) -> &'a Node {
    let grantors = scene.field.grantors(rng.usize(..LOCKS));
    grantors[rng.usize(..grantors.len())]
}

pub(super) fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..to))
}

fn scripts() -> Matcher {
    Matcher::new(|request| request.is_script())
}

fn cut(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    for _ in 0..3 {
        proxy.cut();
        sleep(millis(rng, 50, 400));
    }
    Ok(())
}

fn black_hole(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    vanish(any(scene, rng).proxy(), millis(rng, 1000, 2000));
    Ok(())
}

pub(super) fn vanish(proxy: &Proxy, how_long: Duration) {
    proxy.black_hole();
    sleep(how_long);
    proxy.heal();
    // A replica does not notice the lost link. Without this, the replica would not reconnect for a minute.
    proxy.cut();
}

fn freeze(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    proxy.freeze();
    sleep(millis(rng, 200, 2000));
    proxy.heal();
    Ok(())
}

fn delay(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    proxy.delay(millis(rng, 10, 100));
    sleep(Duration::from_secs(2));
    proxy.heal();
    Ok(())
}

fn duplicate(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    let over = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < over {
        let fault = proxy.duplicate_request(scripts());
        if fault.wait_applied(Duration::from_millis(200)).is_err() {
            fault.cancel();
        }
    }
    Ok(())
}

fn lose_reply(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    for _ in 0..10 {
        let fault = proxy.cut_after_apply(scripts());
        if fault.wait_applied(Duration::from_millis(500)).is_err() {
            fault.cancel();
        }
        sleep(millis(rng, 10, 200));
    }
    Ok(())
}

fn late_reply(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let proxy = any(scene, rng).proxy();
    for _ in 0..4 {
        let held = proxy.hold_reply(scripts());
        sleep(millis(rng, 400, 900));
        held.release();
    }
    Ok(())
}
