use super::*;

const NAME: u64 = 7 << 33;

fn at(ms: u64) -> Moment {
    Moment::from_nanos(0).after(Duration::from_millis(ms))
}

#[test]
fn name_stays_from_its_second_use_on() {
    let uses = CachePolicy::of(8);
    assert!(!uses.may_cache(NAME, at(0)));
    assert!(uses.may_cache(NAME, at(9_000)));
    assert!(!uses.may_cache(NAME, at(20_000)), "it was forgotten");
}

#[test]
fn name_that_is_called_back_unused_pauses_longer_and_longer() {
    let uses = CachePolicy::of(8);
    uses.may_cache(NAME, at(1));
    for pause in [1, 3, 7, 15, 15] {
        assert!(uses.may_cache(NAME, at(1)));
        uses.note_outcome(NAME, CacheOutcome::Recalled);
        for _ in 0..pause {
            assert!(!uses.may_cache(NAME, at(1)));
        }
    }
    assert!(uses.may_cache(NAME, at(1)));
    uses.note_outcome(NAME, CacheOutcome::Reused);
    assert!(uses.may_cache(NAME, at(1)), "it was of use");
    uses.note_outcome(NAME, CacheOutcome::Recalled);
    assert!(!uses.may_cache(NAME, at(1)) && uses.may_cache(NAME, at(1)), "and begins anew");
}

#[test]
fn names_that_end_alike_know_nothing_of_each_other() {
    let (uses, other) = (CachePolicy::of(8), NAME + (1 << 33));
    uses.may_cache(NAME, at(0));
    assert!(!uses.may_cache(other, at(0)));
    uses.note_outcome(other, CacheOutcome::Recalled);
    assert!(uses.may_cache(NAME, at(0)), "the other one's calls are no matter of it");
    assert!(!uses.may_cache(other, at(0)), "it was called for in vain");
}

#[test]
fn as_many_names_as_may_stay_all_do_though_they_are_used_in_turn() {
    let uses = CachePolicy::of(10_000);
    // Any hash will do whose bits are as good as random ones (splitmix64).
    let hash = |name: u64| {
        let hash = (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^ (hash >> 29)
    };
    let mut left: Vec<u64> = (0..10_000).map(hash).collect();
    let mut now = at(0);
    for round in 0..4 {
        left.retain(|name| {
            now = now.after(Duration::from_nanos(12_345));
            !uses.may_cache(*name, now)
        });
        assert!(round == 0 || left.len() < 100, "{} names do not stay at use {}", left.len(), round + 1);
    }
    assert_eq!(left.len(), 0, "names that do not stay");
}
