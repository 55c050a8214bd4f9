//! Tests that the program uses locks of Redisson when the user says so.

use redis_rwlock::blocking::RedissonManager;

use crate::program::{SERVER, new_name, output_of, program, said};

#[test]
fn lock_of_redisson_is_taken_shown_and_ended() {
    let name = new_name();
    let manager = RedissonManager::connect(SERVER.url()).expect("connected");
    let held = output_of(&["--manager", "redisson", "run", &name, "--", "sh", "-c", "echo $RWLOCK_FENCING_TOKEN"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    let token: u64 = held.out.trim().parse().expect("a token");

    let guard = manager.write(&name).wait().expect("granted");
    assert!(u64::from(guard.fencing_token()) > token, "both are of the same lock");
    let busy = output_of(&["--manager", "redisson", "run", "--no-wait", &name, "--", "true"]);
    assert_eq!(busy.code, Some(75), "{busy:?}");
    let free = output_of(&["inspect", &name]);
    assert_eq!(free.code, Some(1), "the lock of this crate's own format is free: {free:?}");
    let mut by_environment = program(&["inspect", &name, "--json"]);
    by_environment.env("RWLOCK_MANAGER", "redisson");
    let shown = said(by_environment);
    assert!(shown.code == Some(0) && shown.out.contains(r#""mode":"write""#), "{shown:?}");
    let listed = output_of(&["--manager", "redisson", "list"]);
    assert!(listed.out.contains(&name), "{listed:?}");
    let ended = output_of(&["--manager", "redisson", "force-release", "--yes", &name]);
    assert!(ended.code == Some(0) && ended.out.contains("ended the write hold"), "{ended:?}");
    guard.release().expect_err("an operator has ended it");
}

#[test]
fn what_does_not_go_with_redisson_is_refused() {
    let refused = |args: &[&str]| {
        let said = output_of(&[&["--manager", "redisson"], args].concat());
        (said.code, said.err)
    };
    let (code, why) = refused(&["doctor"]);
    assert!(code == Some(2) && why.contains("docs/OPERATIONS.md"), "{why}");
    let (code, why) = refused(&["inspect", "a{b"]);
    assert!(code == Some(78) && why.contains("no hash tag"), "{why}");
    let mut odd = program(&["inspect", "cfg"]);
    odd.env("RWLOCK_MANAGER", "jedis");
    let odd = said(odd);
    assert!(odd.code == Some(78) && odd.err.contains("RWLOCK_MANAGER must be redis or redisson"), "{odd:?}");
    let mut cached = program(&["--manager", "redisson", "inspect", "cfg"]);
    cached.env("RWLOCK_CACHE_FOR", "10s");
    let cached = said(cached);
    assert!(cached.code == Some(78) && cached.err.contains("cannot recall a cached hold"), "{cached:?}");
}
