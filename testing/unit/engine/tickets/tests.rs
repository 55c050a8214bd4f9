use std::time::Duration;

use Mode::{Read, Write};
use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::base::options::Options;
use crate::engine::acquire::{Patience, acquire};
use crate::lock::hold::HoldState;
use crate::store::Scheme;
use crate::testing::staged::{Fate, STRAY, StagedPair};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

impl StagedPair {
    /// Waits for the releases, and until no copy can arrive.
    async fn is_free_in_the_end(&self) -> bool {
        sleep(STRAY * 3).await;
        self.engine.settled().await;
        self.holders().await.is_empty()
    }

    /// Takes the lock in the first process, and makes a ticket of its guard.
    async fn ticket(&self, mode: Mode) -> Ticket {
        ticket_of(self.take(&self.engine, mode).await).await
    }

    /// Begins to wait for the lock as a writer, in a task of its own.
    fn writes(&self, engine: &Arc<Engine>) -> JoinHandle<Held> {
        let (engine, key) = (Arc::clone(engine), Arc::clone(&self.key));
        tokio::spawn(async move {
            let written = acquire(&engine, key, Write, Self::terms(&engine), Patience::Wait).await;
            written.expect("answered").expect("granted")
        })
    }

    /// Returns the id under which the server has the ticket.
    async fn id_of_ticket(&self) -> AcquisitionId {
        let holders = self.holders().await;
        holders.iter().find_map(|id| AcquisitionId::of_ticket(id)).expect("a ticket")
    }

    /// Delays the answer to the next conversion until the signal, which it returns.
    pub(in crate::engine) fn next_conversion_waits(&self) -> oneshot::Sender<()> {
        let (signal, answer) = oneshot::channel();
        self.scheme.next_conversion(Fate::Answered(answer));
        signal
    }

    /// Returns a third process of the same server.
    fn third(&self) -> Arc<Engine> {
        Arc::new(Engine::new(Arc::new(self.scheme.memory.clone()), Options::default()))
    }

    /// Lets a copy of the newest conversion arrive as late as it can.
    async fn copy_arrives_late(&self, old: &AcquisitionId) {
        sleep(STRAY - MS).await;
        self.scheme.memory.convert(&self.key, old, &self.scheme.last_request()).await.expect("memory answers");
    }
}

const MS: Duration = Duration::from_millis(1);

async fn ticket_of(held: Held) -> Ticket {
    detach(held, MINUTE).await.map_err(|refused| refused.error).expect("detached")
}

/// Polls a future this many times. Nothing is answered.
fn poll_times(polls: usize, future: &mut (impl Future + Unpin)) {
    (0..polls).for_each(|_| assert!(future.now_or_never().is_none(), "nothing is answered"));
}

async fn adopts(engine: &Arc<Engine>, ticket: &Ticket, mode: Mode) -> Result<Held> {
    adopt(engine, ticket, mode, StagedPair::terms(engine)).await
}

async fn adopted(engine: &Arc<Engine>, ticket: &Ticket, mode: Mode) -> Held {
    adopts(engine, ticket, mode).await.expect("adopted")
}

async fn release(held: Held) {
    held.release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn ticket_of_a_reader_passes_a_waiting_writer() {
    let stage = StagedPair::new();
    let neighbour = stage.take(&stage.other, Read).await;
    let held = stage.take(&stage.engine, Read).await;
    let token = held.share_id().token;
    let ticket = ticket_of(held).await;
    assert_eq!(ticket.fencing_token(), token, "the phase goes on");
    let writes = stage.writes(&stage.third());
    sleep(100 * MS).await;
    let adopted = adopted(&stage.engine, &ticket, Read).await;
    assert_eq!(adopted.share_id().token, token);
    release(neighbour).await;
    sleep(MINUTE).await;
    assert!(!writes.is_finished(), "a reader is inside");
    release(adopted).await;
    release(writes.await.expect("no panic")).await;
}

#[tokio::test(start_paused = true)]
async fn writer_of_the_same_process_waits_for_the_end_of_the_ticket() {
    let stage = StagedPair::new();
    let ticket = stage.ticket(Write).await;
    let writes = stage.writes(&stage.engine);
    sleep(30 * SECOND).await;
    assert!(!writes.is_finished(), "the lock is taken");
    let adopted = adopted(&stage.engine, &ticket, Write).await;
    sleep(MINUTE).await;
    assert!(!writes.is_finished() && adopted.state() == HoldState::Held, "the lock is held");
    release(adopted).await;
    release(writes.await.expect("no panic")).await;
}

/// Copies of the acquisition or of the detachment that arrive late.
#[tokio::test(start_paused = true)]
async fn used_ticket_does_not_come_back_by_late_copies() {
    let stage = StagedPair::new();
    stage.scheme.next_acquire(Fate::Cut);
    let held = stage.take(&stage.engine, Write).await;
    let (acquisition, old) = (stage.scheme.last_request(), held.hold().id().clone());
    let (memory, key) = (&stage.scheme.memory, &stage.key);
    let late_acquisition = async {
        sleep(STRAY / 2).await;
        memory.acquire(key, &acquisition).await.expect("memory answers");
    };
    let (ticket, ()) = tokio::join!(ticket_of(held), late_acquisition);
    let detachment = stage.scheme.last_request();
    let adopted = adopted(&stage.other, &ticket, Write).await;
    release(adopted).await;
    // No copy of the acquisition can arrive any more.
    memory.convert(key, &old, &detachment).await.expect("memory answers");
    let error = adopts(&stage.engine, &ticket, Write).await.expect_err("it was used");
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

fn fates() -> [(&'static str, Fate, Outcome); 5] {
    let at_once = || {
        let (signal, answer) = oneshot::channel();
        signal.send(()).expect("received");
        answer
    };
    [
        ("cut", Fate::Cut, Outcome::Over),
        ("unheard", Fate::Unheard, Outcome::Over),
        ("unreplicated", Fate::Unreplicated(at_once()), Outcome::Over),
        ("silent", Fate::Silent(at_once()), Outcome::Over),
        ("not done", Fate::NotDone, Outcome::AsBefore),
    ]
}

#[tokio::test(start_paused = true)]
async fn detachment_without_an_answer_leaves_nothing_for_long() {
    for mode in [Read, Write] {
        for (name, fate, expected) in fates() {
            let stage = StagedPair::impatient();
            let held = stage.take(&stage.engine, mode).await;
            let old = held.hold().id().clone();
            stage.scheme.next_conversion(fate);
            let Err(NotConverted { held, error }) = detach(held, MINUTE * 60).await else { panic!("{name}: a ticket") };
            let outcome = if held.state() == HoldState::Held { Outcome::AsBefore } else { Outcome::Over };
            assert_eq!(outcome, expected, "{mode} {name}: {error:?}");
            if outcome == Outcome::Over {
                stage.copy_arrives_late(&old).await;
            }
            drop(held);
            assert!(stage.is_free_in_the_end().await, "{mode} {name}: {:?}", stage.holders().await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adoption_without_an_answer_leaves_nothing_for_long() {
    for mode in [Read, Write] {
        for (name, fate, expected) in fates() {
            let stage = StagedPair::impatient();
            let ticket = ticket_of(stage.take(&stage.other, mode).await).await;
            let id = stage.id_of_ticket().await;
            stage.scheme.next_conversion(fate);
            let error = adopts(&stage.engine, &ticket, mode).await.expect_err(name);
            if expected == Outcome::Over {
                stage.copy_arrives_late(&id).await;
                assert!(stage.is_free_in_the_end().await, "{mode} {name}: {:?}", stage.holders().await);
            } else {
                assert!(!stage.is_free_in_the_end().await, "{mode} {name}");
            }
            let again = adopts(&stage.other, &ticket, mode).await;
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
            let held = stage.take(&stage.engine, Write).await;
            let old;
            if step == "detach" {
                old = held.hold().id().clone();
                let _never = stage.next_conversion_waits();
                poll_times(polls, &mut Box::pin(detach(held, MINUTE * 60)));
            } else {
                let ticket = ticket_of(held).await;
                old = stage.id_of_ticket().await;
                let _never = stage.next_conversion_waits();
                let mut adopting = Box::pin(adopts(&stage.engine, &ticket, Write));
                poll_times(polls, &mut adopting);
                if polls == 0 {
                    drop(adopting);
                    assert!(adopts(&stage.other, &ticket, Write).await.is_ok());
                    continue;
                }
            }
            if polls > 0 {
                stage.copy_arrives_late(&old).await;
            }
            assert!(stage.is_free_in_the_end().await, "{step} {polls}: {:?}", stage.holders().await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_comes_late_makes_no_hold_beside_a_later_one() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.other, Write).await).await;
    let word = stage.next_conversion_waits();
    let taken_later = async {
        sleep(11 * SECOND).await;
        let later = stage.take(&stage.other, Write).await;
        word.send(()).expect("it waits");
        later
    };
    let (adopted, later) = tokio::join!(adopts(&stage.engine, &ticket, Write), taken_later);
    let error = adopted.expect_err("its lease was over");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    sleep(STRAY * 3).await;
    assert_eq!(later.state(), HoldState::Held);
    release(later).await;
}

#[tokio::test(start_paused = true)]
async fn adoption_that_crosses_with_close_is_given_back() {
    let stage = StagedPair::new();
    let ticket = ticket_of(stage.take(&stage.other, Write).await).await;
    let word = stage.next_conversion_waits();
    let closing = async {
        tokio::task::yield_now().await;
        let (closed, _) = tokio::join!(stage.engine.close(), async { word.send(()) });
        closed.expect("closed");
    };
    let (adopted, ()) = tokio::join!(adopts(&stage.engine, &ticket, Write), closing);
    let error = adopted.expect_err("the manager is closed");
    assert!(matches!(error, Error::Closed { .. }), "{error:?}");
    assert!(stage.is_free_in_the_end().await);
}

#[tokio::test(start_paused = true)]
async fn guard_whose_ticket_would_have_an_invalid_time_stays() {
    let stage = StagedPair::new();
    let mut held = stage.take(&stage.engine, Read).await;
    for valid_for in [Duration::ZERO, 50 * MS, Duration::MAX] {
        let Err(refused) = detach(held, valid_for).await else { panic!("{valid_for:?}") };
        assert!(matches!(refused.error, Error::InvalidOption { option: "detach", .. }), "{:?}", refused.error);
        assert_eq!(refused.held.state(), HoldState::Held);
        held = refused.held;
    }
    ticket_of(held).await;
}

/// A failed detachment must not forget the upgrade, whose hold may be on the server.
#[tokio::test(start_paused = true)]
async fn guard_with_an_undecided_upgrade_is_not_detached() {
    let stage = StagedPair::impatient();
    let (held, word) = stage.reader_in_doubt(Fate::Unheard).await;
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
    let third = stage.third();
    for mode in [Read, Write] {
        let held = stage.take(&third, mode).await;
        for step in 0..3 {
            held.set_note(&format!("step {step}")).await.expect("noted");
        }
        let adopted = adopted(&stage.other, &ticket_of(held).await, mode).await;
        assert_eq!(note().await.as_deref(), Some("step 2"));
        adopted.set_note("mine").await.expect("noted");
        assert_eq!(note().await.as_deref(), Some("mine"));
        release(adopted).await;
    }
}

/// The secret is in the ticket, but the mode was changed.
#[tokio::test(start_paused = true)]
async fn ticket_whose_mode_was_changed_opens_nothing_and_is_used_up() {
    let stage = StagedPair::new();
    let neighbour = stage.take(&stage.other, Read).await;
    let ticket = stage.ticket(Read).await;
    let id = stage.id_of_ticket().await;
    let forged = Ticket::new(&stage.key, Write, (&id, ticket.fencing_token()), MINUTE);
    let error = adopts(&stage.engine, &forged, Write).await.expect_err("others read");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    release(neighbour).await;
    assert!(stage.is_free_in_the_end().await, "{:?}", stage.holders().await);
}

#[tokio::test(start_paused = true)]
async fn ticket_for_something_else_is_refused_before_anything_is_sent() {
    let stage = StagedPair::new();
    let ticket = stage.ticket(Write).await;
    let prefix = Options { key_prefix: "other".to_owned(), ..Options::default() };
    let elsewhere = Arc::new(Engine::new(Arc::new(stage.scheme.memory.clone()), prefix));
    for (engine, mode) in [(&stage.engine, Read), (&elsewhere, Write)] {
        let scripts = stage.scheme.scripts();
        let error = adopts(engine, &ticket, mode).await.expect_err("it is for something else");
        assert!(matches!(error, Error::InvalidOption { option: "ticket", .. }), "{error:?}");
        assert_eq!(stage.scheme.scripts(), scripts);
    }
    adopts(&stage.engine, &ticket, Write).await.expect("it is as it was");
}
