//! Time of the server for a pair of acquisition and release, of Redisson and of this crate, in one run.

use cluster_testenv::Client;
use redis_rwlock::{Mode, RwLockManager};

use crate::java::Version;
use crate::places::{Place, command, run, take_and_release};

const PAIRS: u64 = 1_000;
const READERS: usize = 1_000;

/// Returns the microseconds that the server has spent on commands of clients since the last reset.
fn spent_us(client: &mut Client) -> u64 {
    let text = command(client, &["INFO", "commandstats"]).text().expect("a text").into_owned();
    // Commands within scripts have lines of their own, and count within the script too.
    let outer = ["cmdstat_eval:", "cmdstat_evalsha:"];
    let lines = text.lines().filter(|line| outer.iter().any(|name| line.starts_with(name)));
    let us = lines.filter_map(|line| line.split("usec=").nth(1)?.split(',').next()?.parse::<u64>().ok());
    us.sum()
}

fn reset(client: &mut Client) {
    command(client, &["CONFIG", "RESETSTAT"]);
}

/// Writes as many live readers of Redisson as a crowd has.
fn enter_crowd(client: &mut Client) {
    command(client, &["HSET", "cfg", "mode", "read"]);
    for n in 0..READERS {
        command(client, &["HSET", "cfg", &format!("java:{n}"), "1"]);
        command(client, &["SET", &format!("{{cfg}}:java:{n}:rwlock_timeout:1"), "1", "PX", "600000"]);
    }
    command(client, &["PEXPIRE", "cfg", "600000"]);
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn server_spends_no_more_than_for_redisson() {
    run(async {
        let place = Place::node(Version::V4);
        let (rust, other, java) = (place.manager().await, place.manager().await, place.java().await);
        let (mut one, mut client) = (java.actor("one").await, place.server_of("cfg"));
        let mut figures = Vec::new();
        for (mode, crowd) in [(Mode::Write, 0), (Mode::Read, 0), (Mode::Read, READERS)] {
            let letter = if mode == Mode::Write { "w" } else { "r" };
            let pairs = if crowd > 0 { PAIRS / 10 } else { PAIRS };
            if crowd > 0 {
                enter_crowd(&mut client);
            }
            // The scripts are loaded, and the virtual machine has compiled some of its code.
            for _ in 0..10 {
                one.ok(&format!("lock {letter} cfg")).await;
                one.ok(&format!("unlock {letter} cfg")).await;
                take_and_release(&rust, Mode::Read).await;
            }
            reset(&mut client);
            for _ in 0..pairs {
                one.ok(&format!("lock {letter} cfg")).await;
                one.ok(&format!("unlock {letter} cfg")).await;
            }
            let theirs = spent_us(&mut client) as f64 / pairs as f64;
            reset(&mut client);
            for _ in 0..pairs {
                take_and_release(&rust, mode).await;
            }
            let ours = spent_us(&mut client) as f64 / pairs as f64;
            println!("{mode}, {crowd} readers inside: {ours:.1} us for a pair of ours, {theirs:.1} us of Redisson's");
            figures.push((ours, theirs));
        }
        // Where another reader of ours is inside, no reader of the crowd is looked at.
        let inside = other.read("cfg").await.expect("granted");
        reset(&mut client);
        for _ in 0..PAIRS {
            take_and_release(&rust, Mode::Read).await;
        }
        let ours = spent_us(&mut client) as f64 / PAIRS as f64;
        println!("r, {READERS} readers inside, one of ours: {ours:.1} us for a pair of ours");
        inside.release().await.expect("ours to the end");
        let (in_crowd, of_redisson) = figures[2];
        assert!(ours * 4.0 < of_redisson, "{ours} us without a walk, {of_redisson} us of Redisson's");
        assert!(in_crowd < of_redisson * 3.0, "{in_crowd} us with the walk, {of_redisson} us of Redisson's");
    });
}
