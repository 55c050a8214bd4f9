use super::*;

fn node(role: NodeRole, is_reachable: bool, clock_ahead_ms: Option<i64>) -> NodeHealth {
    NodeHealth { is_reachable, clock_ahead_ms, ..NodeHealth::new_unknown("h:1", role) }
}

#[test]
fn readiness_is_that_of_those_who_take_locks() {
    let ready = |nodes: &[NodeHealth]| Health { nodes: nodes.to_vec(), needed: None }.is_ready();
    let primary = node(NodeRole::Primary, true, None);
    assert!(ready(&[primary.clone(), node(NodeRole::Replica, false, None), node(NodeRole::Sentinel, false, None)]));
    assert!(!ready(&[primary.clone(), node(NodeRole::Primary, false, None)]));
    assert!(!ready(&[primary, node(NodeRole::Unknown, false, None)]));
    assert!(!ready(&[node(NodeRole::Replica, true, None)]), "there is nobody to take locks");
    assert!(!ready(&[]));
    let down = node(NodeRole::Primary, false, None);
    let masters = vec![node(NodeRole::Primary, true, None), node(NodeRole::Unknown, true, None), down.clone()];
    assert!(Health { nodes: masters.clone(), needed: Some(2) }.is_ready());
    assert!(!Health { nodes: [masters, vec![down]].concat(), needed: Some(3) }.is_ready());
}

#[test]
fn server_that_is_full_grants_nothing_and_one_that_evicts_does() {
    let with = |finding| NodeHealth { findings: vec![finding], ..node(NodeRole::Primary, true, None) };
    let full = with(NodeFinding::MemoryFull { used: None, maxmemory: None });
    let evicts = with(NodeFinding::Evicts { policy: "volatile-lru".to_owned() });
    let ready =
        |nodes: &[&NodeHealth], needed| Health { nodes: nodes.iter().copied().cloned().collect(), needed }.is_ready();
    assert!(!ready(&[&full], None) && ready(&[&evicts], None));
    assert!(ready(&[&full, &evicts, &evicts], Some(2)) && !ready(&[&full, &full, &evicts], Some(2)));
}

#[test]
fn clock_is_compared_with_the_median_and_a_lone_one_with_this_machine() {
    let skewed = |clocks: &[i64]| -> Vec<usize> {
        let nodes = clocks.iter().map(|ahead| node(NodeRole::Primary, true, Some(*ahead))).collect();
        let health = Health::new(nodes, None, Duration::from_millis(100));
        (0..clocks.len()).filter(|&n| !health.nodes[n].findings.is_empty()).collect()
    };
    assert_eq!(skewed(&[0, 3000, 10]), [1]);
    assert_eq!(skewed(&[-3000, 5]), [0], "the machine's clock decides between two");
    assert_eq!(skewed(&[5000, 5050, 8000]), [2], "the machine may be wrong itself");
    assert!(skewed(&[-90, 0, 90]).is_empty());
    assert!(skewed(&[900]).is_empty());
    assert_eq!(skewed(&[3000]), [0]);
    assert_eq!(skewed(&[i64::MAX, i64::MIN, 0]), [0, 1], "no clock is too far off");
    let said = NodeFinding::ClockSkew { ahead_ms: -3000, limit: Duration::from_millis(100) }.to_string();
    assert_eq!(said, "its clock is 3s behind, and at most 100ms is safe; run NTP on the servers");
}

#[test]
fn clocks_are_compared_with_each_other() {
    let spread = |clocks: &[i64]| {
        let nodes = clocks.iter().map(|ahead| node(NodeRole::Primary, true, Some(*ahead)));
        Health { nodes: nodes.chain([node(NodeRole::Replica, false, None)]).collect(), needed: None }.clock_spread()
    };
    assert_eq!(spread(&[-200, 100, 0]), Some(Duration::from_millis(300)));
    assert_eq!(spread(&[5000, 5000]), Some(Duration::ZERO), "nobody compares with this machine");
    assert_eq!(spread(&[7]), None);
    assert_eq!(spread(&[]), None);
}
