use super::*;
use crate::base::attempt::{Answered, NodeId};
use crate::base::lease::ServerTime;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn answer(sent: Moment) -> Attempt<()> {
    Ok(Answered { sent, server: ServerTime::default(), node: NodeId::default(), value: () })
}

fn unknown_attempt(until: Moment) -> Attempt<()> {
    Err(Failure::Unknown { arrives_until: until, source: None })
}

#[test]
fn copy_that_nobody_heard_of_may_arrive_until_its_limit() {
    let mut copies = InDoubt::default();
    copies.begin();
    assert_eq!(copies.until(at(7)), Some(at(7)), "it is on its way");
    copies.resolve(&unknown_attempt(at(10)));
    assert_eq!(copies.until(at(99)), Some(at(10)));
    copies.begin();
    copies.resolve(&answer(at(9)));
    assert_eq!(copies.until(at(99)), Some(at(10)), "the answer was sent for before that");
    copies.begin();
    copies.resolve(&answer(at(10)));
    assert!(copies.is_none());
}

#[test]
fn copy_of_a_sender_that_died_counts_until_it_cannot_arrive() {
    let mut copies = InDoubt::default();
    copies.abandon_all(at(5));
    assert!(copies.is_none(), "there was none");
    copies.begin();
    copies.abandon_all(at(5));
    assert_eq!(copies.arrives_until(), Some(at(5)));
}

#[test]
fn copy_that_came_too_late_says_nothing_of_one_that_nobody_heard_of() {
    let mut copies = InDoubt::default();
    copies.begin();
    copies.resolve(&unknown_attempt(at(10)));
    copies.begin();
    copies.on_late();
    assert_eq!(copies.arrives_until(), Some(at(10)));
}

#[test]
fn one_of_two_that_is_answered_leaves_the_other() {
    let mut copies = InDoubt::default();
    copies.begin();
    copies.begin();
    copies.resolve(&answer(at(1)));
    assert_eq!(copies.until(at(8)), Some(at(8)));
    copies.resolve(&unknown_attempt(at(4)));
    assert_eq!(copies.until(at(8)), Some(at(4)));
}
