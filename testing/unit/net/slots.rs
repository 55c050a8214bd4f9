use super::*;

fn parse(reply: &Value, asked: &str) -> Option<SlotMap> {
    SlotMap::parse(reply, |address| complete(address, asked))
}

fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
    let host = Value::BulkString(host.as_bytes().to_vec());
    let primary = Value::Array(vec![host, Value::Int(port)]);
    Value::Array(vec![Value::Int(first), Value::Int(last), primary])
}

fn owner(map: &SlotMap, slot: u16) -> Option<&str> {
    map.owner(slot).map(AsRef::as_ref)
}

#[test]
fn each_slot_has_its_primary() {
    let reply = Value::Array(vec![range(0, 99, "a", 1), range(100, 16383, "", 2)]);
    let mut map = parse(&reply, "asked:9").expect("readable");
    assert_eq!(owner(&map, 99), Some("a:1"));
    assert_eq!(owner(&map, 100), Some("asked:2"));
    map.set_owner(99, "b:3");
    assert_eq!((owner(&map, 98), owner(&map, 99)), (Some("a:1"), Some("b:3")));
}

#[test]
fn replicas_are_learnt_and_own_nothing() {
    let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)]);
    let unreadable = Value::Array(vec![Value::Nil]);
    let fields = vec![Value::Int(0), Value::Int(9), node("a", 1), node("b", 2), unreadable, node("", 3)];
    let map = parse(&Value::Array(vec![Value::Array(fields)]), "asked:9").expect("readable");
    let mut all: Vec<&str> = map.everybody().map(AsRef::as_ref).collect();
    all.sort_unstable();
    assert_eq!(all, ["a:1", "asked:3", "b:2"]);
    assert!(map.has("a:1") && !map.has("b:2"));
}

#[test]
fn slots_without_an_owner_have_none() {
    let map = parse(&Value::Array(vec![range(5, 5, "a", 1)]), "x:1").expect("readable");
    assert_eq!(owner(&map, 4), None);
}

#[test]
fn addresses_without_a_host_are_completed() {
    assert_eq!(complete(":7001", "h:1"), "h:7001");
    assert_eq!(complete("?:7001", "h:1"), "h:7001");
    assert_eq!(complete("::1:7001", "h:1"), "::1:7001");
}

#[test]
fn other_replies_are_refused() {
    assert!(parse(&Value::Int(1), "x:1").is_none());
    assert!(parse(&Value::Array(vec![range(0, 16384, "a", 1)]), "x:1").is_none());
}
