use super::*;

fn token(raw: u64) -> FencingToken {
    FencingToken::from_wire(raw).expect("small")
}

fn yes(raw: u64, until: u64) -> Vote {
    Vote::Yes(Yes { sent: Moment::from_nanos(1), until: Moment::from_nanos(until), token: token(raw) })
}

fn after(masters: usize, votes: &[Vote]) -> Ballot {
    let mut ballot = Ballot::new(masters);
    votes.iter().enumerate().for_each(|(master, vote)| ballot.cast(master, *vote));
    ballot
}

fn won(token_raw: u64, until: u64) -> Verdict {
    let (sent, until) = (Moment::from_nanos(1), Moment::from_nanos(until));
    Verdict::Won(Yes { sent, until, token: token(token_raw) })
}

#[test]
fn more_than_half_is_a_majority() {
    assert_eq!([1, 3, 5].map(majority), [1, 2, 3]);
}

/// Tests all 4^5 patterns: each of five masters says yes, says no, is silent, or has yet to answer.
#[test]
fn every_pattern_of_five_has_its_verdict() {
    for pattern in 0..4_usize.pow(5) {
        let mut ballot = Ballot::new(5);
        let (mut yeses, mut noes, mut silent) = (0, 0, 0);
        for master in 0..5 {
            match pattern / 4_usize.pow(u32::try_from(master).expect("small")) % 4 {
                0 => {
                    ballot.cast(master, yes(7, 9));
                    yeses += 1;
                }
                1 => {
                    ballot.cast(master, Vote::No);
                    noes += 1;
                }
                2 => {
                    ballot.cast(master, Vote::Silent);
                    silent += 1;
                }
                _ => {}
            }
        }
        let expected = match (yeses, noes, silent) {
            (3.., _, _) => won(7, 9),
            (_, 3.., _) => Verdict::Lost,
            _ if noes + silent >= 3 => Verdict::Undecided,
            _ => Verdict::Open,
        };
        assert_eq!(ballot.verdict(), expected, "{yeses} yes, {noes} no, {silent} silent");
        assert_eq!(ballot.is_silent(), silent >= 3);
        // A caller that has to tell a no from a failure waits for it.
        let open = 5 - yeses - noes - silent;
        let is_open = yeses < 3 && noes < 3 && open > 0 && (yeses + open >= 3 || noes + open >= 3);
        assert_eq!(ballot.is_open(), is_open, "{yeses} yes, {noes} no, {silent} silent");
    }
}

#[test]
fn hold_lasts_as_long_as_a_majority_keeps_it() {
    assert_eq!(after(3, &[yes(1, 10), yes(1, 30)]).verdict(), won(1, 10));
    assert_eq!(after(3, &[yes(1, 10), yes(1, 30), yes(1, 20)]).verdict(), won(1, 20));
    let all = [yes(1, 10), yes(1, 20), yes(1, 30), yes(1, 40), yes(1, 50)];
    assert_eq!(after(5, &all).verdict(), won(1, 30));
}

#[test]
fn hold_counts_from_the_first_request_that_was_sent() {
    let early = Vote::Yes(Yes { sent: Moment::from_nanos(0), until: Moment::from_nanos(9), token: token(1) });
    let Verdict::Won(won) = after(3, &[yes(1, 8), early]).verdict() else { panic!("two of three") };
    assert_eq!((won.sent, won.until), (Moment::from_nanos(0), Moment::from_nanos(8)));
}

#[test]
fn token_that_a_majority_has_not_stored_does_not_count() {
    let mut ballot = after(3, &[yes(5, 9), yes(8, 9)]);
    assert_eq!(ballot.verdict(), Verdict::Raise { to: token(8), at: vec![0] });
    // A late answer with a lower token changes nothing of what is under way. One with a higher token makes the raise
    // needless.
    let mut low = ballot.clone();
    low.cast(2, yes(6, 9));
    assert_eq!(low.verdict(), Verdict::Raise { to: token(8), at: vec![0, 2] });
    let mut high = ballot.clone();
    high.cast(2, yes(11, 9));
    assert_eq!(high.verdict(), won(8, 9));
    ballot.cast(0, yes(8, 9));
    assert_eq!(ballot.verdict(), won(8, 9));
}

/// Verdict on these answers of so many masters, while right clocks have reached 100.
fn judged(masters: usize, votes: &[Vote]) -> Verdict {
    let mut ballot = after(masters, votes);
    ballot.note_clocks(Some(token(100)));
    ballot.verdict()
}

/// Checks each order of answers: no master is asked to raise to the token of a clock that is years ahead.
#[test]
fn token_of_a_clock_that_is_ahead_waits_for_the_masters_that_have_yet_to_answer() {
    const AHEAD: u64 = 1 << 50;
    for ahead in 0..3 {
        let votes = [0, 1, 2].map(|master| yes(if master == ahead { AHEAD } else { 90 }, 9));
        let first = judged(3, &votes[..2]);
        assert_eq!(first, if ahead < 2 { Verdict::Open } else { won(90, 9) }, "{ahead} is ahead");
        assert_eq!(judged(3, &votes), won(90, 9), "{ahead} is ahead");
    }
    let of_five = [yes(AHEAD, 9), yes(AHEAD + 1, 9), yes(90, 9), yes(90, 9), yes(90, 9)];
    assert_eq!([3, 4].map(|answers| judged(5, &of_five[..answers])), [Verdict::Open, Verdict::Open]);
    assert_eq!(judged(5, &of_five), won(90, 9));
}

/// Such a token may be the one above the earlier grants.
#[test]
fn token_of_a_clock_that_is_ahead_counts_where_no_other_answer_can_make_it_lower() {
    const AHEAD: u64 = 1 << 50;
    let raised = Verdict::Raise { to: token(AHEAD), at: vec![1] };
    assert_eq!(judged(3, &[yes(AHEAD, 9), yes(90, 9), Vote::Silent]), raised);
    assert_eq!(judged(3, &[yes(AHEAD, 9), yes(90, 9), Vote::No]), raised);
    // After a raise, two of three have stored it.
    assert_eq!(judged(3, &[yes(AHEAD, 9), yes(AHEAD, 9)]), won(AHEAD, 9));
}

/// A phase of readers may have begun long ago at one of the masters.
#[test]
fn token_that_right_clocks_have_reached_waits_for_nobody() {
    assert_eq!(judged(3, &[yes(5, 9), yes(100, 9)]), Verdict::Raise { to: token(100), at: vec![0] });
}

#[test]
fn vote_that_is_gone_when_its_token_is_to_be_raised_is_none() {
    let mut ballot = after(3, &[yes(5, 9), yes(8, 9), Vote::No]);
    ballot.verdict();
    ballot.cast(0, Vote::No);
    assert_eq!(ballot.verdict(), Verdict::Lost);
    let mut ballot = after(3, &[yes(5, 9), yes(8, 9), Vote::No]);
    ballot.verdict();
    ballot.cast(0, Vote::Silent);
    assert_eq!(ballot.verdict(), Verdict::Undecided);
}

#[test]
fn readers_of_one_phase_share_its_token_where_a_majority_has_it() {
    // The third let the reader in later, by a grant of its own.
    assert_eq!(after(3, &[yes(5, 9), yes(5, 9), yes(7, 9)]).verdict(), won(5, 9));
}

/// Each token that counts is above all earlier ones, whatever clocks the masters have and whichever of them answer.
#[test]
fn tokens_grow_over_any_majorities() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let mut last = [0_u64; 5];
        let mut newest = 0;
        for _ in 0..30 {
            let mut order = [0, 1, 2, 3, 4];
            random.shuffle(&mut order);
            let mut ballot = Ballot::new(5);
            for &master in &order[..random.usize(3..=5)] {
                last[master] = (last[master] + 1).max(random.u64(1..100));
                ballot.cast(master, yes(last[master], 9));
            }
            if let Verdict::Raise { to, at } = ballot.verdict() {
                for master in at {
                    last[master] = last[master].max(to.as_u64());
                    ballot.cast(master, yes(last[master], 9));
                }
            }
            let Verdict::Won(won) = ballot.verdict() else { panic!("a majority said yes") };
            assert!(won.token.as_u64() > newest, "{} after {newest}", won.token);
            newest = won.token.as_u64();
        }
    }
}

#[test]
fn master_that_votes_twice_counts_once() {
    let mut ballot = Ballot::new(3);
    (0..3).for_each(|_| ballot.cast(1, yes(5, 9)));
    assert_eq!(ballot.verdict(), Verdict::Open);
}

#[test]
fn no_that_takes_back_a_yes_leaves_the_others_to_decide() {
    let mut ballot = after(5, &[yes(5, 9), yes(8, 9), yes(8, 9)]);
    assert_eq!(ballot.verdict(), Verdict::Raise { to: token(8), at: vec![0] });
    ballot.cast(0, Vote::No);
    assert_eq!(ballot.verdict(), Verdict::Open);
    ballot.cast(3, yes(9, 9));
    assert_eq!(ballot.verdict(), won(8, 9));
}

/// The longest leases are at masters that have yet to raise: they count from their answer to the raise.
#[test]
fn hold_lasts_only_as_long_as_those_keep_it_that_have_stored_its_token() {
    let mut ballot = after(3, &[yes(5, 90), yes(8, 20), yes(8, 30)]);
    assert_eq!(ballot.verdict(), won(8, 20));
    ballot.cast(0, yes(8, 95));
    assert_eq!(ballot.verdict(), won(8, 30));
}
