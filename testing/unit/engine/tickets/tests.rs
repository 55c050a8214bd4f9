use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use super::*;
use crate::base::options::Options;
use crate::engine::acquire::{Patience, acquire};
use crate::engine::convert::upgrade;
use crate::lock::hold::HoldState;
use crate::store::Scheme;
use crate::testing::staged::{Fate, STRAY, StagedPair};

const MINUTE: Duration = Duration::from_secs(60);

impl StagedPair {
    /// Waits for the releases, and until no copy can arrive.
    async fn is_free_in_the_end(&self) -> bool {
        tokio::time::sleep(STRAY * 3).await;
        self.engine.settled().await;
        self.holders().await.is_empty()
    }
}

async fn ticket_of(held: Held) -> Ticket {
    detach(held, MINUTE).await.map_err(|refused| refused.error).expect("detached")
}

#[tokio::test(start_paused = true)]
async fn ticket_of_a_writer_keeps_others_out_and_works_once() {
    let stage = StagedPair::new();
    let held = stage.take(&stage.engine, Mode::Write).await;
    let before = held.share_id().token;
    let ticket = ticket_of(held).await;
    assert!(ticket.fencing_token() > before);
    assert!(!stage.others_may_write().await);
    let adopted = adopt(&stage.other, &ticket, Mode::Write, StagedPair::terms(&stage.other)).await.expect("adopted");
    assert!(adopted.share_id().token > ticket.fencing_token());
    let error =
        adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)).await.expect_err("it was used");
    assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
    tokio::time::sleep(MINUTE).await;
    assert_eq!(adopted.state(), HoldState::Held, "it is renewed");
    adopted.release().await.expect("ours to the end");
    assert!(stage.holders().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ticket_of_a_reader_passes_a_waiting_writer() {
    let stage = StagedPair::new();
    let neighbour = stage.take(&stage.other, Mode::Read).await;
    let held = stage.take(&stage.engine, Mode::Read).await;
    let token = held.share_id().token;
    let ticket = ticket_of(held).await;
    assert_eq!(ticket.fencing_token(), token, "the phase goes on");
    let third = Arc::new(Engine::new(Arc::new(stage.scheme.memory.clone()), Options::default()));
    let writes = tokio::spawn({
        let (third, key) = (Arc::clone(&third), Arc::clone(&stage.key));
        async move { acquire(&third, key, Mode::Write, StagedPair::terms(&third), Patience::Wait).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let adopted = adopt(&stage.engine, &ticket, Mode::Read, StagedPair::terms(&stage.engine)).await.expect("adopted");
    assert_eq!(adopted.share_id().token, token);
    neighbour.release().await.expect("ours to the end");
    tokio::time::sleep(MINUTE).await;
    assert!(!writes.is_finished(), "a reader is inside");
    adopted.release().await.expect("ours to the end");
    let written = writes.await.expect("no panic").expect("answered").expect("granted");
    written.release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn writer_of_the_same_process_waits_for_the_end_of_the_ticket() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.engine, Mode::Write).await).await;
    let writes = tokio::spawn({
        let (engine, key) = (Arc::clone(&stage.engine), Arc::clone(&stage.key));
        async move { acquire(&engine, key, Mode::Write, StagedPair::terms(&engine), Patience::Wait).await }
    });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!writes.is_finished(), "the lock is taken");
    let adopted = adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)).await.expect("adopted");
    tokio::time::sleep(MINUTE).await;
    assert!(!writes.is_finished() && adopted.state() == HoldState::Held, "the lock is held");
    adopted.release().await.expect("ours to the end");
    writes.await.expect("no panic").expect("answered").expect("granted").release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn unused_ticket_ends_with_its_time() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.engine, Mode::Write).await).await;
    stage.engine.close().await.expect("closed");
    tokio::time::sleep(MINUTE - Duration::from_millis(1)).await;
    assert!(!stage.others_may_write().await, "`close` leaves it");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(stage.others_may_write().await);
    let error =
        adopt(&stage.other, &ticket, Mode::Write, StagedPair::terms(&stage.other)).await.expect_err("it is over");
    assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn forced_ticket_says_so() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.engine, Mode::Write).await).await;
    stage.other.force(&stage.key).await.expect("answered");
    let error =
        adopt(&stage.other, &ticket, Mode::Write, StagedPair::terms(&stage.other)).await.expect_err("it is over");
    assert!(matches!(error, Error::Lost { reason: LossReason::Forced, .. }), "{error:?}");
}

/// Copies of the acquisition or of the detachment that arrive late.
#[tokio::test(start_paused = true)]
async fn used_ticket_does_not_come_back_by_late_copies() {
    let stage = StagedPair::new();
    stage.scheme.next_acquire(Fate::Cut);
    let held = stage.take(&stage.engine, Mode::Write).await;
    let (acquisition, old) = (stage.scheme.last_request(), held.hold().id().clone());
    let (memory, key) = (&stage.scheme.memory, &stage.key);
    let late_acquisition = async {
        tokio::time::sleep(STRAY / 2).await;
        memory.acquire(key, &acquisition).await.expect("memory answers");
    };
    let (ticket, ()) = tokio::join!(ticket_of(held), late_acquisition);
    let detachment = stage.scheme.last_request();
    let adopted = adopt(&stage.other, &ticket, Mode::Write, StagedPair::terms(&stage.other)).await.expect("adopted");
    adopted.release().await.expect("ours to the end");
    // No copy of the acquisition can arrive any more.
    memory.convert(key, &old, &detachment).await.expect("memory answers");
    let error =
        adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)).await.expect_err("it was used");
    assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
    assert!(stage.holders().await.is_empty());
}

/// Outcome of a step whose request met a fate.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The guard or the ticket is as it was.
    AsBefore,
    /// Nothing is left.
    Over,
}

fn unknown_fates() -> Vec<(&'static str, Fate)> {
    let (signal, unreplicated) = oneshot::channel();
    signal.send(()).expect("received");
    let (signal, silent) = oneshot::channel();
    signal.send(()).expect("received");
    vec![
        ("cut", Fate::Cut),
        ("unheard", Fate::Unheard),
        ("unreplicated", Fate::Unreplicated(unreplicated)),
        ("silent", Fate::Silent(silent)),
    ]
}

#[tokio::test(start_paused = true)]
async fn detachment_without_an_answer_leaves_nothing_for_long() {
    for mode in [Mode::Read, Mode::Write] {
        let fates = unknown_fates().into_iter().map(|(name, fate)| (name, fate, Outcome::Over));
        for (name, fate, expected) in fates.chain([("not done", Fate::NotDone, Outcome::AsBefore)]) {
            let stage = StagedPair::impatient();
            let held = stage.take(&stage.engine, mode).await;
            let old = held.hold().id().clone();
            stage.scheme.next_conversion(fate);
            let Err(NotConverted { held, error }) = detach(held, MINUTE * 60).await else { panic!("{name}: a ticket") };
            let outcome = if held.state() == HoldState::Held { Outcome::AsBefore } else { Outcome::Over };
            assert_eq!(outcome, expected, "{mode} {name}: {error:?}");
            if outcome == Outcome::Over {
                // The copy that was cut arrives as late as it can.
                tokio::time::sleep(STRAY - Duration::from_millis(1)).await;
                let late = stage.scheme.last_request();
                stage.scheme.memory.convert(&stage.key, &old, &late).await.expect("memory answers");
            }
            drop(held);
            assert!(stage.is_free_in_the_end().await, "{mode} {name}: {:?}", stage.holders().await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adoption_without_an_answer_leaves_nothing_for_long() {
    for mode in [Mode::Read, Mode::Write] {
        let fates = unknown_fates().into_iter().map(|(name, fate)| (name, fate, Outcome::Over));
        for (name, fate, expected) in fates.chain([("not done", Fate::NotDone, Outcome::AsBefore)]) {
            let stage = StagedPair::impatient();
            let ticket = ticket_of(stage.take(&stage.other, mode).await).await;
            let [id] = &stage.holders().await[..] else { panic!("one holder") };
            let id = AcquisitionId::of_ticket(id).expect("that of a ticket");
            stage.scheme.next_conversion(fate);
            let error = adopt(&stage.engine, &ticket, mode, StagedPair::terms(&stage.engine)).await.expect_err(name);
            if expected == Outcome::Over {
                tokio::time::sleep(STRAY - Duration::from_millis(1)).await;
                let late = stage.scheme.last_request();
                stage.scheme.memory.convert(&stage.key, &id, &late).await.expect("memory answers");
                assert!(stage.is_free_in_the_end().await, "{mode} {name}: {:?}", stage.holders().await);
            } else {
                assert!(!stage.is_free_in_the_end().await, "{mode} {name}");
            }
            let again = adopt(&stage.other, &ticket, mode, StagedPair::terms(&stage.other)).await;
            let outcome = if again.is_ok() { Outcome::AsBefore } else { Outcome::Over };
            assert_eq!(outcome, expected, "{mode} {name}: {error:?}");
        }
    }
}

/// Futures that are dropped after each number of polls, with a copy that arrives as late as it can.
#[tokio::test(start_paused = true)]
async fn dropped_step_leaves_nothing_for_long() {
    for step in ["detach", "adopt"] {
        for polls in 0..4 {
            let stage = StagedPair::new();
            let held = stage.take(&stage.engine, Mode::Write).await;
            let (_never, answer) = oneshot::channel();
            let old;
            if step == "detach" {
                old = held.hold().id().clone();
                stage.scheme.next_conversion(Fate::Answered(answer));
                let mut detaching = Box::pin(detach(held, MINUTE * 60));
                (0..polls).for_each(|_| assert!((&mut detaching).now_or_never().is_none(), "nothing is answered"));
            } else {
                let ticket = ticket_of(held).await;
                old = AcquisitionId::of_ticket(&stage.holders().await[0]).expect("that of a ticket");
                stage.scheme.next_conversion(Fate::Answered(answer));
                let terms = StagedPair::terms(&stage.engine);
                let mut adopting = Box::pin(adopt(&stage.engine, &ticket, Mode::Write, terms));
                (0..polls).for_each(|_| assert!((&mut adopting).now_or_never().is_none(), "nothing is answered"));
                if polls == 0 {
                    drop(adopting);
                    assert!(adopt(&stage.other, &ticket, Mode::Write, StagedPair::terms(&stage.other)).await.is_ok());
                    continue;
                }
            }
            if polls > 0 {
                tokio::time::sleep(STRAY - Duration::from_millis(1)).await;
                let late = stage.scheme.last_request();
                stage.scheme.memory.convert(&stage.key, &old, &late).await.expect("memory answers");
            }
            assert!(stage.is_free_in_the_end().await, "{step} {polls}: {:?}", stage.holders().await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_comes_late_makes_no_hold_beside_a_later_one() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.other, Mode::Write).await).await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_conversion(Fate::Answered(answer));
    let taken_later = async {
        tokio::time::sleep(Duration::from_secs(11)).await;
        let later = stage.take(&stage.other, Mode::Write).await;
        word.send(()).expect("it waits");
        later
    };
    let (adopted, later) =
        tokio::join!(adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)), taken_later);
    let error = adopted.expect_err("its lease was over");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    tokio::time::sleep(STRAY * 3).await;
    assert_eq!(later.state(), HoldState::Held);
    later.release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn adoption_that_crosses_with_close_is_given_back() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.other, Mode::Write).await).await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_conversion(Fate::Answered(answer));
    let closing = async {
        tokio::task::yield_now().await;
        let (closed, _) = tokio::join!(stage.engine.close(), async { word.send(()) });
        closed.expect("closed");
    };
    let (adopted, ()) =
        tokio::join!(adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)), closing);
    let error = adopted.expect_err("the manager is closed");
    assert!(matches!(error, Error::Closed { .. }), "{error:?}");
    assert!(stage.is_free_in_the_end().await);
}

#[tokio::test(start_paused = true)]
async fn guard_that_cannot_be_detached_stays() {
    let stage = StagedPair::new();
    let one = stage.take(&stage.engine, Mode::Read).await;
    let other = stage.take(&stage.engine, Mode::Read).await;
    let Err(refused) = detach(one, MINUTE).await else { panic!("another guard shares the hold") };
    assert!(matches!(refused.error, Error::InvalidOption { option: "detach", .. }), "{:?}", refused.error);
    assert_eq!(refused.held.state(), HoldState::Held);
    refused.held.release().await.expect("ours to the end");
    for valid_for in [Duration::ZERO, Duration::from_millis(50), Duration::MAX] {
        let held = stage.take(&stage.engine, Mode::Read).await;
        let Err(refused) = detach(held, valid_for).await else { panic!("{valid_for:?}") };
        assert!(matches!(refused.error, Error::InvalidOption { option: "detach", .. }), "{:?}", refused.error);
    }
    ticket_of(other).await;
}

/// A failed detachment must not forget the upgrade, whose hold may be on the server.
#[tokio::test(start_paused = true)]
async fn guard_with_an_undecided_upgrade_is_not_detached() {
    let stage = StagedPair::impatient();
    let held = stage.take(&stage.engine, Mode::Read).await;
    let (word, renewed) = oneshot::channel();
    stage.scheme.next_renewals(renewed);
    stage.scheme.next_conversion(Fate::Unheard);
    let Err(NotConverted { held, .. }) = upgrade(held).await else { panic!("nobody has answered") };
    let sent = stage.scheme.scripts();
    let Err(NotConverted { held, error }) = detach(held, MINUTE).await else { panic!("the upgrade is undecided") };
    assert!(matches!(error, Error::InvalidOption { option: "detach", .. }), "{error:?}");
    assert_eq!((held.state(), stage.scheme.scripts()), (HoldState::Unconfirmed, sent));
    word.send(()).expect("a renewal is out");
    assert_eq!(held.lost().await, LossReason::Gone, "the server has the new hold");
    drop(held);
    assert!(stage.is_free_in_the_end().await, "{:?}", stage.holders().await);
}

#[tokio::test(start_paused = true)]
async fn note_passes_with_the_hold_until_the_next_guard_sets_its_own() {
    let stage = StagedPair::new();
    let note = async || {
        let view = stage.scheme.memory.inspect(&stage.key).await.expect("memory answers").value;
        view.holders[0].note.clone()
    };
    let third = Arc::new(Engine::new(Arc::new(stage.scheme.memory.clone()), Options::default()));
    for mode in [Mode::Read, Mode::Write] {
        let held = stage.take(&third, mode).await;
        for step in 0..3 {
            held.set_note(&format!("step {step}")).await.expect("noted");
        }
        let adopted =
            adopt(&stage.other, &ticket_of(held).await, mode, StagedPair::terms(&stage.other)).await.expect("adopted");
        assert_eq!(note().await.as_deref(), Some("step 2"));
        adopted.set_note("mine").await.expect("noted");
        assert_eq!(note().await.as_deref(), Some("mine"));
        adopted.release().await.expect("ours to the end");
    }
}

/// The secret is in the ticket, but the mode was changed.
#[tokio::test(start_paused = true)]
async fn ticket_whose_mode_was_changed_opens_nothing_and_is_used_up() {
    let stage = StagedPair::new();
    let neighbour = stage.take(&stage.other, Mode::Read).await;
    let ticket = ticket_of(stage.take(&stage.engine, Mode::Read).await).await;
    let id = stage.holders().await.iter().find_map(|id| AcquisitionId::of_ticket(id)).expect("that of a ticket");
    let forged = Ticket::new(&stage.key, Mode::Write, (&id, ticket.fencing_token()), MINUTE);
    let error =
        adopt(&stage.engine, &forged, Mode::Write, StagedPair::terms(&stage.engine)).await.expect_err("others read");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    neighbour.release().await.expect("ours to the end");
    assert!(stage.is_free_in_the_end().await, "{:?}", stage.holders().await);
}

#[tokio::test(start_paused = true)]
async fn ticket_for_something_else_is_refused_before_anything_is_sent() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.engine, Mode::Write).await).await;
    let prefix = Options { key_prefix: "other".to_owned(), ..Options::default() };
    let elsewhere = Arc::new(Engine::new(Arc::new(stage.scheme.memory.clone()), prefix));
    for (engine, mode) in [(&stage.engine, Mode::Read), (&elsewhere, Mode::Write)] {
        let scripts = stage.scheme.scripts();
        let error =
            adopt(engine, &ticket, mode, StagedPair::terms(engine)).await.expect_err("it is for something else");
        assert!(matches!(error, Error::InvalidOption { option: "ticket", .. }), "{error:?}");
        assert_eq!(stage.scheme.scripts(), scripts);
    }
    adopt(&stage.engine, &ticket, Mode::Write, StagedPair::terms(&stage.engine)).await.expect("it is as it was");
}
