use redis::Value;

use super::*;

fn seeds(count: usize) -> Members {
    Members::new((0..count).map(|n| format!("h:{n}")))
}

#[test]
fn each_round_asks_others_until_all_were_asked() {
    let mut members = seeds(10);
    let mut asked = HashSet::new();
    for _ in 0..4 {
        let round = members.next(|_| AskOrder::Unconnected);
        assert!(round.len() <= MAX_ASKED);
        asked.extend(round);
    }
    assert_eq!(asked.len(), 10, "nobody twice, everybody once");
    assert_eq!(members.next(|_| AskOrder::Unconnected).len(), MAX_ASKED, "from the beginning");
}

#[test]
fn open_connections_come_first_and_suspects_last() {
    let mut members = seeds(5);
    let order = |address: &str| match address {
        "h:3" => AskOrder::Connected,
        "h:1" => AskOrder::Suspect,
        _ => AskOrder::Unconnected,
    };
    let next = |members: &mut Members| -> Vec<String> { members.next(order).iter().map(ToString::to_string).collect() };
    assert_eq!(next(&mut members), ["h:3"], "nobody is dialled as long as there is a connection");
    let second = next(&mut members);
    assert_eq!(second.len(), 3);
    assert!(!second.contains(&"h:1".to_owned()));
    assert_eq!(next(&mut members), ["h:1"], "nobody has answered");
    next(&mut members);
    members.on_map(&"h:3".into(), &SlotMap::whole("h:3"));
    next(&mut members);
    assert_eq!(next(&mut members), ["h:3"], "a suspect is not asked when another one has answered");
    members.begin_again();
    assert_eq!(next(&mut members), ["h:3"]);
}

fn map_of(hosts: &[&str]) -> SlotMap {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let node = |host: &&str| Value::Array(vec![text(host), Value::Int(1), text(&format!("id of {host}"))]);
    let nodes = hosts.iter().map(node);
    let range = [Value::Int(0), Value::Int(9)].into_iter().chain(nodes).collect();
    SlotMap::parse(&Value::Array(vec![Value::Array(range)]), str::to_owned).expect("readable")
}

#[test]
fn member_that_left_is_asked_last_and_not_believed_in_another_cluster() {
    let mut members = seeds(1);
    members.on_map(&"h:0".into(), &map_of(&["a", "b", "gone"]));
    members.on_map(&"h:0".into(), &map_of(&["a", "b"]));
    members.begin_again();
    let order = |address: &str| if address == "a:1" { AskOrder::Suspect } else { AskOrder::Unconnected };
    let mut asked: Vec<_> = std::iter::repeat_with(|| members.next(order)).take(3).flatten().collect();
    assert_eq!(asked.split_off(2).iter().map(|a| &**a).collect::<Vec<_>>(), ["a:1", "gone:1"]);
    assert!(members.believes("gone:1", &map_of(&["gone", "b"])), "it is back");
    assert!(members.believes("a:1", &map_of(&["x", "y"])), "all were replaced in place");
    assert!(members.believes("h:0", &map_of(&["x", "y"])), "the user says so");
    assert!(!members.believes("gone:1", &map_of(&["gone", "y"])), "it is one of others now");
    assert!(!members.has("gone:1"));
}

#[test]
fn members_that_no_map_names_are_forgotten_but_for_some() {
    let mut members = seeds(1);
    let odd: Arc<str> = "odd:1".into();
    for n in 0..3000 {
        members.on_map(&odd, &SlotMap::whole(&format!("node:{n}")));
    }
    assert!(members.len() <= MAX_UNLISTED + 3, "{}", members.len());
    assert!(members.has("node:2999") && members.has("node:2998") && !members.has("node:0"));
    assert!(members.has("odd:1"), "the member that answered last stays, though no map names it");
    assert!(members.has("h:0"), "nor is one that the user named");
}
