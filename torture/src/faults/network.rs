//! Faults of the network, at the proxy in front of one server.

use cluster_testenv::{Matcher, Proxy};

use super::*;

pub(super) const ALL: &[Fault] = &[
    mixing("cut", cut, "all connections to a server are reset, three times"),
    mixing("black-hole", black_hole, "what goes to a server or comes from it vanishes for 1 to 2 s"),
    mixing("freeze", freeze, "what goes to a server or comes from it stands still for 0.2 to 2 s, and comes late"),
    mixing("delay", delay, "each message takes 20 to 200 ms longer for 2 s"),
    mixing("duplicate", duplicate, "requests come twice, for 1.5 s"),
    mixing("lose-reply", lose_reply, "requests are carried out, and their connections reset before the reply"),
    mixing("late-reply", late_reply, "replies come after the response timeout"),
];

fn scripts() -> Matcher {
    Matcher::new(|request| request.is_script())
}

fn cut(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    for _ in 0..3 {
        proxy.cut();
        scene.sleep(50, 400);
    }
    Ok(())
}

fn black_hole(scene: &mut Scene<'_>) -> Result<()> {
    vanish(scene.any().proxy(), scene.millis(1000, 2000));
    Ok(())
}

pub(super) fn vanish(proxy: &Proxy, how_long: Duration) {
    proxy.black_hole();
    sleep(how_long);
    proxy.heal();
    // A replica does not notice the lost link. Without this, the replica would not reconnect for a minute.
    proxy.cut();
}

fn freeze(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    proxy.freeze();
    scene.sleep(200, 2000);
    proxy.heal();
    Ok(())
}

fn delay(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    proxy.delay(scene.millis(10, 100));
    sleep(Duration::from_secs(2));
    proxy.heal();
    Ok(())
}

fn duplicate(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    let over = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < over {
        let fault = proxy.duplicate_request(scripts());
        if fault.wait_applied(Duration::from_millis(200)).is_err() {
            fault.cancel();
        }
    }
    Ok(())
}

fn lose_reply(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    for _ in 0..10 {
        let fault = proxy.cut_after_apply(scripts());
        if fault.wait_applied(Duration::from_millis(500)).is_err() {
            fault.cancel();
        }
        scene.sleep(10, 200);
    }
    Ok(())
}

fn late_reply(scene: &mut Scene<'_>) -> Result<()> {
    let proxy = scene.any().proxy();
    for _ in 0..4 {
        let held = proxy.hold_reply(scripts());
        scene.sleep(400, 900);
        held.release();
    }
    Ok(())
}
