//! Withdrawals at the limit of a wait: when the caller gets its error, and what the server still has of the request
//! then.

use super::*;

/// Limit below the heartbeat: a waiter has sent one request by then.
const LIMIT: Overrides = Overrides { wait_timeout: Some(Duration::from_millis(100)), lease: None, ..LONG };
const MOMENT: Duration = Duration::from_millis(1);

fn limit() -> Duration {
    LIMIT.wait_timeout.expect("it has one")
}

/// Latest end of an acquisition that gives up at its limit.
fn latest_end(stage: &Stage) -> Duration {
    limit() + stage.engine.options().response_timeout * 2
}

/// Returns true if the error says that the server has confirmed the withdrawal.
fn confirmed(outcome: Result<Option<Held>>) -> bool {
    match outcome {
        Err(Error::WaitTimeout { confirmed, waited, .. }) => {
            assert!(waited < limit() + MOMENT * 5, "the time for the withdrawal counts as waiting: {waited:?}");
            confirmed
        }
        other => panic!("{other:?}"),
    }
}

/// A process that waits behind another one.
async fn behind_a_holder() -> (Stage, Held) {
    let stage = Stage::new();
    let holder = stage.other().take(Mode::Write).await;
    (stage, holder)
}

#[tokio::test(start_paused = true)]
async fn limit_is_told_when_the_server_has_answered_that_the_place_is_gone() {
    let (stage, _holder) = behind_a_holder().await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_leave(Fate::Answered(answer));
    let mut waits = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    assert!(tokio::time::timeout(limit() * 3, &mut waits).await.is_err(), "the withdrawal is not answered");
    word.send(()).expect("it is waited for");
    assert!(confirmed(waits.await));
    assert_eq!(stage.there().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn limit_costs_one_round_trip_when_the_request_was_answered() {
    let (stage, _holder) = behind_a_holder().await;
    let began = stage.engine.clock.now();
    let waits = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    assert!(confirmed(waits.await));
    let took = stage.engine.clock.now().since(began);
    assert!(took < limit() + MOMENT * 5, "{took:?}");
    assert_eq!(stage.scheme.scripts(), stage.scheme.requests() + 1, "one withdrawal");
    assert_eq!(stage.there().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn withdrawal_without_an_answer_is_told_after_two_response_timeouts_and_goes_on() {
    let (stage, holder) = behind_a_holder().await;
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_leave(Fate::Silent(answer));
    let began = stage.engine.clock.now();
    assert!(!confirmed(stage.asks(Mode::Write, LIMIT, Patience::Wait).await));
    let took = stage.engine.clock.now().since(began);
    assert!(took >= latest_end(&stage) && took < latest_end(&stage) + MOMENT * 5, "{took:?}");
    stage.engine.settled().await;
    assert_eq!(stage.there().await, (1, 0), "the background has taken it back");
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn withdrawal_whose_answers_are_lost_is_repeated() {
    let (stage, _holder) = behind_a_holder().await;
    for fate in [Fate::Cut, Fate::NotDone, Fate::Unheard] {
        stage.scheme.next_leave(fate);
    }
    assert!(confirmed(stage.asks(Mode::Write, LIMIT, Patience::Wait).await));
    assert_eq!(stage.there().await, (1, 0));
}

/// The first copy is carried out behind the answer to the withdrawal.
#[tokio::test(start_paused = true)]
async fn copy_that_comes_after_the_withdrawal_is_taken_back_before_the_limit_is_told() {
    let (stage, holder) = behind_a_holder().await;
    stage.scheme.next_acquire(Fate::Cut);
    let waits = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    let late = async {
        tokio::time::sleep(limit() + MOMENT * 20).await;
        assert_eq!(stage.there().await, (1, 0), "the place is gone");
        let request = stage.scheme.last_request();
        let late = stage.scheme.memory.acquire(&stage.key, &request).await.expect("memory answers");
        assert!(matches!(late.value, Acquired::Queued { .. }), "{late:?}");
        holder.release().await.expect("ours to the end");
    };
    let (outcome, ()) = tokio::join!(waits, late);
    assert!(confirmed(outcome));
    assert_eq!(stage.there().await, (0, 0), "neither a place nor what was granted to it");
}

/// With a short response timeout, a copy may arrive later than two response timeouts after the limit.
#[tokio::test(start_paused = true)]
async fn caller_whose_withdrawal_is_answered_waits_for_the_end_of_the_time_in_which_a_copy_may_come() {
    let options = Options { response_timeout: Duration::from_millis(20), ..Options::default() };
    let stage = Stage::with(options);
    let holder = stage.other().take(Mode::Write).await;
    stage.scheme.next_acquire(Fate::Cut);
    let began = stage.engine.clock.now();
    let waits = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    let late = async {
        tokio::time::sleep(limit() + MOMENT * 10).await;
        let request = stage.scheme.last_request();
        stage.scheme.memory.acquire(&stage.key, &request).await.expect("memory answers");
        assert_eq!(stage.there().await, (1, 1), "the copy has brought a place");
    };
    let (outcome, ()) = tokio::join!(waits, late);
    assert!(confirmed(outcome));
    let took = stage.engine.clock.now().since(began);
    assert!(took > latest_end(&stage) && took < STRAY + MOMENT * 5, "{took:?}");
    assert_eq!(stage.there().await, (1, 0), "nothing is left");
    drop(holder);
}

/// The server grants the first request, but the answer comes after the end of that grant. The background still takes it
/// back while a second request waits.
#[tokio::test(start_paused = true)]
async fn request_that_the_background_still_takes_back_leaves_it_in_doubt() {
    let (stage, lease) = (Stage::new(), Duration::from_secs(1));
    let terms = Overrides { lease: Some(lease), wait_timeout: Some(lease * 5 / 2), ..LONG };
    let (word, answer) = oneshot::channel();
    stage.scheme.next_acquire(Fate::Answered(answer));
    let waits = stage.asks(Mode::Write, terms, Patience::Wait);
    let other = async {
        tokio::time::sleep(lease * 2).await;
        let holder = stage.other().take(Mode::Write).await;
        let (unanswered, leave) = oneshot::channel();
        stage.scheme.next_leave(Fate::Answered(leave));
        word.send(()).expect("it is waited for");
        (holder, unanswered)
    };
    let (outcome, _) = tokio::join!(waits, other);
    assert!(matches!(outcome, Err(Error::WaitTimeout { confirmed: false, .. })), "{outcome:?}");
}

/// A heartbeat that is under way at the limit would bring the place back behind the withdrawal.
#[tokio::test(start_paused = true)]
async fn heartbeat_that_is_under_way_at_the_limit_is_heard_out() {
    let (stage, _holder) = behind_a_holder().await;
    let beyond = Overrides { wait_timeout: Some(HEARTBEAT + MOMENT * 100), ..LIMIT };
    let mut waits = stage.asks(Mode::Write, beyond, Patience::Wait);
    assert!(tokio::time::timeout(MOMENT, &mut waits).await.is_err(), "it waits");
    let asked = stage.scheme.requests();
    let (word, answer) = oneshot::channel();
    stage.scheme.next_acquire(Fate::Answered(answer));
    assert!(tokio::time::timeout(HEARTBEAT + MOMENT * 300, &mut waits).await.is_err(), "its heartbeat is not answered");
    assert_eq!((stage.scheme.requests(), stage.scheme.scripts()), (asked + 1, asked + 1), "it has not withdrawn yet");
    word.send(()).expect("it is waited for");
    let error = waits.await.expect_err("it is held");
    assert!(matches!(error, Error::WaitTimeout { confirmed: true, .. }), "{error:?}");
    assert_eq!(stage.there().await, (1, 0));
    assert_eq!((stage.scheme.requests(), stage.scheme.scripts()), (asked + 1, asked + 2), "it asks for nothing more");
}

#[tokio::test(start_paused = true)]
async fn refused_try_takes_a_copy_back_that_may_yet_come() {
    let (stage, holder) = behind_a_holder().await;
    stage.scheme.next_acquire(Fate::Cut);
    let once = stage.asks(Mode::Write, LONG, Patience::AskOnce);
    let late = async {
        tokio::time::sleep(MOMENT * 300).await;
        holder.release().await.expect("ours to the end");
        let request = stage.scheme.last_request();
        let late = stage.scheme.memory.acquire(&stage.key, &request).await.expect("memory answers");
        assert!(matches!(late.value, Acquired::Granted(_)), "{late:?}");
    };
    let (outcome, ()) = tokio::join!(once, late);
    assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn future_that_is_dropped_while_it_withdraws_leaves_nothing() {
    let (stage, _holder) = behind_a_holder().await;
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_leave(Fate::Silent(answer));
    let mut waits = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    assert!(tokio::time::timeout(limit() * 3, &mut waits).await.is_err(), "the withdrawal is not answered");
    drop(waits);
    stage.engine.settled().await;
    assert_eq!(stage.there().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn caller_whose_request_goes_to_the_next_of_its_process_is_told_at_once() {
    let (stage, _holder) = behind_a_holder().await;
    let gives_up = stage.asks(Mode::Write, LIMIT, Patience::Wait);
    let mut stays = stage.asks(Mode::Write, LONG, Patience::Wait);
    let outcome = tokio::select! {
        biased;
        outcome = gives_up => outcome,
        _ = &mut stays => panic!("it is held"),
    };
    assert!(confirmed(outcome));
    assert_eq!(stage.there().await, (1, 1), "the place is the next one's");
    assert_eq!(stage.scheme.scripts(), stage.scheme.requests(), "nothing is withdrawn");
}

/// A server that answers "too late" has not looked for what an earlier copy has left.
#[tokio::test(start_paused = true)]
async fn place_of_a_request_without_an_answer_is_taken_back_after_answers_that_were_late() {
    let (stage, _holder) = behind_a_holder().await;
    stage.scheme.next_acquire(Fate::Unheard);
    for _ in 0..50 {
        stage.scheme.next_acquire(Fate::Says(Acquired::Late));
    }
    let mut waits = stage.asks(Mode::Write, LONG, Patience::Wait);
    assert!(tokio::time::timeout(crate::testing::staged::STRAY * 3 / 2, &mut waits).await.is_err());
    assert_eq!(stage.there().await, (1, 1), "the first copy has left a place");
    drop(waits);
    stage.engine.settled().await;
    assert_eq!(stage.there().await, (1, 0));
}
