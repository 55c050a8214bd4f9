//! Tests that the program uses locks of Redisson when the user says so.

use redis_rwlock::blocking::RedissonManager;

use crate::program::{SERVER, new_name, output_of, program, said};

#[test]
fn lock_of_redisson_is_taken_shown_and_ended() {
    let name = new_name();
    let manager = RedissonManager::connect(SERVER.url()).expect("connected");
    let redisson = |args: &[&str]| output_of(&[&["--manager", "redisson"], args].concat());
    let held = redisson(&["run", &name, "--", "sh", "-c", "echo $RWLOCK_FENCING_TOKEN"]);
    held.assert_code(0);
    let token: u64 = held.out.trim().parse().expect("a token");

    let guard = manager.write(&name).wait().expect("granted");
    assert!(u64::from(guard.fencing_token()) > token, "both are of the same lock");
    redisson(&["run", "--no-wait", &name, "--", "true"]).assert_code(75);
    let free = output_of(&["inspect", &name]);
    assert_eq!(free.code, Some(1), "the lock of this crate's own format is free: {free:?}");
    let mut by_environment = program(&["inspect", &name, "--json"]);
    by_environment.env("RWLOCK_MANAGER", "redisson");
    said(by_environment).assert_out(0, r#""mode":"write""#);
    redisson(&["list"]).assert_out(0, &name);
    redisson(&["force-release", "--yes", &name]).assert_out(0, "ended the write hold");
    guard.release().expect_err("an operator has ended it");
}

#[test]
fn what_does_not_go_with_redisson_is_refused() {
    output_of(&["--manager", "redisson", "doctor"]).assert_err(2, "docs/OPERATIONS.md");
    output_of(&["--manager", "redisson", "inspect", "a{b"]).assert_err(78, "no hash tag");
    let mut odd = program(&["inspect", "cfg"]);
    odd.env("RWLOCK_MANAGER", "jedis");
    said(odd).assert_err(78, "RWLOCK_MANAGER must be redis or redisson");
    let mut cached = program(&["--manager", "redisson", "inspect", "cfg"]);
    cached.env("RWLOCK_CACHE_FOR", "10s");
    said(cached).assert_err(78, "cannot recall a cached hold");
}
