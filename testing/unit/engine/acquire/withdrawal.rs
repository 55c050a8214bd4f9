//! Withdrawals at the limit of a wait: when the caller gets its error, and what the server still has of the request
//! then.

use super::*;

/// Limit below the heartbeat: a waiter has sent one request by then.
const LIMIT: Duration = Duration::from_millis(100);
const LIMITED: Overrides = Overrides { wait_timeout: Some(LIMIT), lease: None, ..LONG };

/// Latest end of an acquisition that gives up at its limit.
fn latest_end(stage: &Stage) -> Duration {
    LIMIT + stage.engine.options().response_timeout * 2
}

/// Returns true if the error says that the server has confirmed the withdrawal.
fn confirmed(outcome: Result<Option<Held>>) -> bool {
    match outcome {
        Err(Error::WaitTimeout { confirmed, waited, .. }) => {
            assert!(waited < LIMIT + MS * 5, "the time for the withdrawal counts as waiting: {waited:?}");
            confirmed
        }
        other => panic!("{other:?}"),
    }
}

/// A process that waits behind another one.
async fn behind_a_holder() -> (Stage, Held) {
    let stage = Stage::new();
    let holder = stage.other().take(Write).await;
    (stage, holder)
}

#[tokio::test(start_paused = true)]
async fn limit_is_told_when_the_server_has_answered_that_the_place_is_gone() {
    let (stage, _holder) = behind_a_holder().await;
    let word = stage.next_leave_waits(Fate::Answered);
    let mut waits = stage.waits_with(Write, LIMITED);
    still_waits(&mut waits, LIMIT * 3).await;
    send(word);
    assert!(confirmed(waits.await));
    assert_eq!(stage.there().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn limit_costs_one_round_trip_when_the_request_was_answered() {
    let (stage, _holder) = behind_a_holder().await;
    let began = Instant::now();
    let waits = stage.waits_with(Write, LIMITED);
    assert!(confirmed(waits.await));
    let took = began.elapsed();
    assert!(took < LIMIT + MS * 5, "{took:?}");
    assert_eq!(stage.scheme.scripts(), stage.scheme.requests() + 1, "one withdrawal");
    assert_eq!(stage.there().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn withdrawal_without_an_answer_is_told_after_two_response_timeouts_and_goes_on() {
    let (stage, holder) = behind_a_holder().await;
    let _word = stage.next_leave_waits(Fate::Silent);
    let began = Instant::now();
    assert!(!confirmed(stage.waits_with(Write, LIMITED).await));
    let took = began.elapsed();
    assert!(took >= latest_end(&stage) && took < latest_end(&stage) + MS * 5, "{took:?}");
    assert_eq!(stage.there_in_the_end().await, (1, 0), "the background has taken it back");
    drop(holder);
}

/// The limit comes while a share that was handed over waits for its renewal. The response timeout is so short that the
/// share outlasts the wait for that answer.
#[tokio::test(start_paused = true)]
async fn share_that_waits_for_its_renewal_at_the_limit_is_given_back() {
    let stage = Stage::with(Options { response_timeout: 20 * MS, ..Options::default() });
    let _unanswered = stage.next_renewals_wait();
    let waits = handed_with_little_left(&stage, LIMITED).await;
    let outcome = waits.await;
    assert!(matches!(outcome, Err(Error::Unreachable { .. })), "{outcome:?}");
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

/// The limit comes before the renewal counts as late, and its answer never comes.
#[tokio::test(start_paused = true)]
async fn share_whose_renewal_was_just_sent_at_the_limit_is_no_denial() {
    let stage = Stage::with(Options { response_timeout: 20 * MS, ..Options::default() });
    let _unanswered = stage.next_renewals_wait();
    let outcome = handed_with_little_left(&stage, Overrides { wait_timeout: Some(10 * MS), ..LONG }).await.await;
    assert!(matches!(outcome, Err(Error::Unreachable { .. })), "{outcome:?}");
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn withdrawal_that_fails_at_once_again_and_again_ends_at_its_limit() {
    let (stage, holder) = behind_a_holder().await;
    (0..200).for_each(|_| stage.scheme.next_leave(Fate::NotDone));
    let began = Instant::now();
    assert!(!confirmed(stage.waits_with(Write, LIMITED).await));
    let took = began.elapsed();
    assert!(took >= latest_end(&stage) && took < latest_end(&stage) + MS * 5, "{took:?}");
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn withdrawal_whose_answers_are_lost_is_repeated() {
    let (stage, _holder) = behind_a_holder().await;
    for fate in [Fate::Cut, Fate::NotDone, Fate::Unheard] {
        stage.scheme.next_leave(fate);
    }
    assert!(confirmed(stage.waits_with(Write, LIMITED).await));
    assert_eq!(stage.there().await, (1, 0));
}

/// The first copy is carried out behind the answer to the withdrawal.
#[tokio::test(start_paused = true)]
async fn copy_that_comes_after_the_withdrawal_is_taken_back_before_the_limit_is_told() {
    let (stage, holder) = behind_a_holder().await;
    stage.scheme.next_acquire(Fate::Cut);
    let waits = stage.waits_with(Write, LIMITED);
    let late = async {
        sleep(LIMIT + MS * 20).await;
        assert_eq!(stage.there().await, (1, 0), "the place is gone");
        let late = stage.copy_arrives().await;
        assert!(matches!(late, Acquired::Queued { .. }), "{late:?}");
        release(holder).await;
    };
    let (outcome, ()) = tokio::join!(waits, late);
    assert!(confirmed(outcome));
    assert_eq!(stage.there().await, (0, 0), "neither a place nor what was granted to it");
}

/// With a short response timeout, a copy may arrive later than two response timeouts after the limit.
#[tokio::test(start_paused = true)]
async fn caller_whose_withdrawal_is_answered_waits_for_the_end_of_the_time_in_which_a_copy_may_come() {
    let options = Options { response_timeout: 20 * MS, ..Options::default() };
    let stage = Stage::with(options);
    let holder = stage.other().take(Write).await;
    stage.scheme.next_acquire(Fate::Cut);
    let began = Instant::now();
    let waits = stage.waits_with(Write, LIMITED);
    let late = async {
        tokio::time::sleep(LIMIT + 10 * MS).await;
        stage.copy_arrives().await;
        assert_eq!(stage.there().await, (1, 1), "the copy has brought a place");
    };
    let (outcome, ()) = tokio::join!(waits, late);
    assert!(confirmed(outcome));
    let took = began.elapsed();
    assert!(took > latest_end(&stage) && took < STRAY + MS * 5, "{took:?}");
    assert_eq!(stage.there().await, (1, 0), "nothing is left");
    drop(holder);
}

/// The server grants the first request, but the answer comes after the end of that grant. The background still takes it
/// back while a second request waits.
#[tokio::test(start_paused = true)]
async fn request_that_the_background_still_takes_back_leaves_it_in_doubt() {
    let (stage, lease) = (Stage::new(), SECOND);
    let terms = Overrides { lease: Some(lease), wait_timeout: Some(lease * 5 / 2), ..LONG };
    let word = stage.next_answer_waits();
    let waits = stage.waits_with(Write, terms);
    let other = async {
        sleep(lease * 2).await;
        let holder = stage.other().take(Write).await;
        let unanswered = stage.next_leave_waits(Fate::Answered);
        send(word);
        (holder, unanswered)
    };
    let (outcome, _) = tokio::join!(waits, other);
    assert!(matches!(outcome, Err(Error::WaitTimeout { confirmed: false, .. })), "{outcome:?}");
}

/// A heartbeat that is under way at the limit would bring the place back behind the withdrawal.
#[tokio::test(start_paused = true)]
async fn heartbeat_that_is_under_way_at_the_limit_is_heard_out() {
    let (stage, _holder) = behind_a_holder().await;
    let beyond = Overrides { wait_timeout: Some(HEARTBEAT + MS * 100), ..LIMITED };
    let mut waits = stage.waits_with(Write, beyond);
    still_waits(&mut waits, MS).await;
    let asked = stage.scheme.requests();
    let word = stage.next_answer_waits();
    still_waits(&mut waits, HEARTBEAT + MS * 300).await;
    assert_eq!((stage.scheme.requests(), stage.scheme.scripts()), (asked + 1, asked + 1), "it has not withdrawn yet");
    send(word);
    let error = waits.await.expect_err("it is held");
    assert!(matches!(error, Error::WaitTimeout { confirmed: true, .. }), "{error:?}");
    assert_eq!(stage.there().await, (1, 0));
    assert_eq!((stage.scheme.requests(), stage.scheme.scripts()), (asked + 1, asked + 2), "it asks for nothing more");
}

#[tokio::test(start_paused = true)]
async fn refused_try_takes_a_copy_back_that_may_yet_come() {
    let (stage, holder) = behind_a_holder().await;
    stage.scheme.next_acquire(Fate::Cut);
    let once = stage.asks(Write, LONG, Patience::AskOnce);
    let late = async {
        sleep(MS * 300).await;
        release(holder).await;
        stage.copy_is_granted().await;
    };
    let (outcome, ()) = tokio::join!(once, late);
    assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn future_that_is_dropped_while_it_withdraws_leaves_nothing() {
    let (stage, _holder) = behind_a_holder().await;
    let _word = stage.next_leave_waits(Fate::Silent);
    let mut waits = stage.waits_with(Write, LIMITED);
    still_waits(&mut waits, LIMIT * 3).await;
    drop(waits);
    assert_eq!(stage.there_in_the_end().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn caller_whose_request_goes_to_the_next_of_its_process_is_told_at_once() {
    let (stage, _holder) = behind_a_holder().await;
    let gives_up = stage.waits_with(Write, LIMITED);
    let mut stays = stage.waits_with(Write, LONG);
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
    let mut waits = stage.waits_with(Write, LONG);
    still_waits(&mut waits, STRAY * 3 / 2).await;
    assert_eq!(stage.there().await, (1, 1), "the first copy has left a place");
    drop(waits);
    assert_eq!(stage.there_in_the_end().await, (1, 0));
}
