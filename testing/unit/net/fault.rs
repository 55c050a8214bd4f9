use super::*;

fn fault(line: &str) -> Fault {
    let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error reply");
    reply(value).expect_err("an error")
}

#[test]
fn redirects_name_the_node() {
    assert!(matches!(fault("MOVED 7 10.0.0.1:7001"), Fault::Moved { address } if address == "10.0.0.1:7001"));
    assert!(matches!(fault("ASK 7 h:1"), Fault::Ask { address } if address == "h:1"));
}

#[test]
fn refusals_are_told_apart() {
    let cases = [
        ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::OutOfMemory),
        ("NOAUTH Authentication required.", Refusal::Unauthenticated),
        ("NOPERM this user has no permissions", Refusal::Forbidden),
        ("MISCONF Errors writing to the append only file", Refusal::ReadOnly),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Refusal::ForeignKey),
        ("ERR something", Refusal::Other),
    ];
    for (line, expected) in cases {
        assert!(matches!(fault(line), Fault::Refused { refusal, .. } if refusal == expected), "{line}");
    }
}

#[test]
fn refusals_from_within_a_script_are_told_from_those_before_it() {
    let redis = "NOPERM The user executing the script can't run this command or subcommand script: \
                 d7be9d8e6d5e0d7a, on @user_script:3.";
    let redis_7_0 = "ERR The user executing the script can't run this command or subcommand script: \
                 d7be9d8e6d5e0d7a, on @user_script:3.";
    let valkey = "ERR ACL failure in script: User u has no permissions to run the 'pexpireat' command script: \
                  d7be9d8e6d5e0d7a, on @user_script:3.";
    for line in [redis, redis_7_0, valkey] {
        assert!(matches!(fault(line), Fault::Broken { refusal: Refusal::Forbidden, .. }), "{line}");
    }
    let number = "ERR value is not an integer or out of range script: d7be9d8e, on @user_script:3.";
    assert!(matches!(fault(number), Fault::Broken { refusal: Refusal::Other, .. }));
    let foreign = "WRONGTYPE Operation against a key holding the wrong kind of value script: d7be, on @user_script:3.";
    assert!(matches!(fault(foreign), Fault::Refused { refusal: Refusal::ForeignKey, .. }));
    let script = "-- one\nlocal two\nredis.call('PEXPIREAT', KEYS[1], 1)";
    let named = |line| match with_command(fault(line), script) {
        Fault::Broken { message, .. } => message.to_lowercase().contains("pexpireat"),
        _ => false,
    };
    assert!(named(redis) && named(redis_7_0) && named(valkey));
}

#[test]
fn error_of_a_proxy_itself_proves_nothing() {
    let through = |line| fault(line).through_proxy(Moment::from_nanos(7));
    for line in ["upstream failure", "ERR Connection timed out"] {
        assert!(
            matches!(through(line), Fault::Unknown { arrives_until, .. } if arrives_until.as_nanos() == 7),
            "{line}"
        );
    }
    for line in ["ERR unknown command 'EVALSHA'", "ERR Error compiling script (new function)", "no upstream host"] {
        assert!(matches!(through(line), Fault::Refused { refusal: Refusal::Other, .. }), "{line}");
    }
    assert!(matches!(through("OOM x"), Fault::Refused { refusal: Refusal::OutOfMemory, .. }));
}

#[test]
fn arguments_that_a_server_repeats_are_left_out() {
    let line = "ERR unknown command 'AUTH', with args beginning with: 'locks' 's3cret' ";
    let Fault::Refused { message, .. } = fault(line) else { panic!("it is a refusal") };
    assert_eq!(message, "ERR unknown command 'AUTH'");
}

#[test]
fn passing_troubles_are_no_refusals() {
    let moving = "ERR Script attempted to access a non local key in a cluster node script: d7be, on @user_script:3.";
    for line in ["TRYAGAIN x", "CLUSTERDOWN x", "BUSY x", moving] {
        assert!(matches!(fault(line), Fault::Again(_)), "{line}");
    }
}

#[test]
fn servers_that_are_no_primary_are_told_apart() {
    let within = "READONLY You can't write against a read only replica. script: d7be9d8e, on @user_script:3.";
    for line in ["READONLY You can't write against a read only replica.", within, "LOADING x", "MASTERDOWN x"] {
        let fault = fault(line);
        assert!(matches!(fault, Fault::WrongServer(_)) && fault.is_of_no_primary(), "{line}");
    }
}
