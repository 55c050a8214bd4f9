//! Tests of the search for cycles, and of the order in which waiters enter.

use std::time::Duration;

use super::{Client, Wait, WaitNode, ahead_of, cycles};
use crate::base::deadlock::CycleWait;
use crate::store::Mode;

fn wait(waiter: usize, blocker: usize) -> Wait {
    Wait {
        ids: (format!("{waiter} to {blocker}"), String::new(), String::new()),
        waiter: WaitNode::Task(waiter),
        blocker: WaitNode::Task(blocker),
        shown: CycleWait {
            lock: String::new(),
            waiter: String::new(),
            mode: Mode::Write,
            waiting: Duration::ZERO,
            holder: String::new(),
            holder_mode: Mode::Write,
            age: Duration::ZERO,
            is_held: true,
            is_local: false,
        },
    }
}

/// Returns the cycles of these waits, as the places that wait, in order.
fn found(waits: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let waits: Vec<_> = waits.iter().map(|(waiter, blocker)| wait(*waiter, *blocker)).collect();
    let cycles = cycles(&waits);
    for cycle in &cycles {
        for (n, at) in cycle.iter().enumerate() {
            let next = cycle[(n + 1) % cycle.len()];
            assert_eq!(waits[*at].blocker, waits[next].waiter, "each wait is for the next waiter");
        }
    }
    let place = |wait: &usize| match waits[*wait].waiter {
        WaitNode::Task(place) => place,
        WaitNode::Process(_) | WaitNode::Waiter(_) => unreachable!("only tasks here"),
    };
    cycles.iter().map(|cycle| cycle.iter().map(place).collect()).collect()
}

#[test]
fn rings_are_found_and_chains_are_not() {
    assert_eq!(found(&[]), [[0; 0]; 0]);
    assert_eq!(found(&[(1, 2), (2, 3), (3, 4), (1, 4), (5, 1)]), [[0; 0]; 0], "all wait for 4, which runs");
    assert_eq!(found(&[(1, 2), (2, 3), (3, 1)]), [[1, 2, 3]]);
    assert_eq!(found(&[(7, 1), (1, 2), (2, 1), (2, 9)]), [[1, 2]], "7 waits for the ring, and is no part of it");
    assert_eq!(found(&[(1, 1)]), [[1]], "a task that waits for itself");
}

#[test]
fn each_ring_is_told_once_and_by_its_shortest_way() {
    assert_eq!(found(&[(1, 2), (2, 1), (3, 4), (4, 3)]), vec![vec![1, 2], vec![3, 4]]);
    assert_eq!(found(&[(1, 2), (2, 3), (3, 1), (2, 1)]), vec![vec![1, 2], vec![3, 1, 2]], "3 is in a ring, too");
}

#[test]
fn waiters_wait_for_those_that_enter_before_them() {
    const WRITER: Client<'_> = Client { id: "m.1.w", mode: Mode::Write, since: Duration::ZERO };
    const READER: Client<'_> = Client { id: "m.2.r", mode: Mode::Read, since: Duration::ZERO };
    let waiters = [WRITER, READER, WRITER, READER];
    let ahead = |holder: Client<'_>, place: usize| {
        let ahead: Vec<_> = ahead_of(&[holder], &waiters, place).map(std::ptr::from_ref).collect();
        (0..waiters.len()).filter(|n| ahead.contains(&std::ptr::from_ref(&waiters[*n]))).collect::<Vec<_>>()
    };
    // Behind a writer all waiting readers enter first, also those that came later.
    assert_eq!((ahead(WRITER, 0), ahead(WRITER, 1)), (vec![1, 3], vec![]));
    assert_eq!((ahead(WRITER, 2), ahead(WRITER, 3)), (vec![0, 1, 3], vec![]));
    // Behind readers the first waiting writer enters first, then all readers that wait.
    assert_eq!((ahead(READER, 0), ahead(READER, 1)), (vec![], vec![0]));
    assert_eq!((ahead(READER, 2), ahead(READER, 3)), (vec![0, 1, 3], vec![0]));
}

#[test]
fn rests_and_clients_without_an_id_are_in_nobodys_way() {
    let client = |id| Client { id, mode: Mode::Write, since: Duration::ZERO };
    let waiter = client("m1.1.a");
    assert!(!waiter.edges_to(&client("m2.7.b"), "cfg", true).is_empty());
    assert!(waiter.edges_to(&client("@m2.7.b"), "cfg", true).is_empty(), "its holder is done");
    assert!(waiter.edges_to(&client("?"), "cfg", true).is_empty());
    assert!(waiter.edges_to(&client("m1.2.a"), "cfg", true).is_empty(), "of its own process");
}

/// Two processes have a task at each of two locks. At one lock the first process comes first, at the other the second one.
#[test]
fn tasks_of_two_processes_behind_each_other_are_no_ring_unless_they_hold_the_locks() {
    let client = |id| Client { id, mode: Mode::Write, since: Duration::ZERO };
    let waits = |is_held| {
        let first = client("m1.1.a").edges_to(&client("m2.1.b"), "one", is_held);
        let second = client("m2.2.b").edges_to(&client("m1.2.a"), "two", is_held);
        [first, second].concat()
    };
    assert_eq!(cycles(&waits(false)), [[0; 0]; 0], "the two waiters in front have their turn");
    let rings = cycles(&waits(true));
    assert!(rings.len() == 1 && rings[0].len() == 2, "{rings:?}");
}
