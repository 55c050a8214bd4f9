use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Change {
    Add { owner: usize, lease: u64, ends: u64 },
    Remove { which: usize },
    Replace { which: usize, lease: u64, ends: u64 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let add = (0..4_usize, 1..6_u64, 0..40_u64).prop_map(|(owner, lease, ends)| Change::Add { owner, lease, ends });
    let remove = (0..64_usize).prop_map(|which| Change::Remove { which });
    let replace =
        (0..64_usize, 1..6_u64, 0..40_u64).prop_map(|(which, lease, ends)| Change::Replace { which, lease, ends });
    prop::collection::vec(prop_oneof![4 => add, 2 => remove, 1 => replace], 1..120)
}

fn share(owner: OwnerId, lease: u64, ends: u64) -> Share {
    Share { owner, lease: Duration::from_nanos(lease), ends: Moment::from_nanos(ends) }
}

proptest! {
    #[test]
    fn order_answers_what_a_look_at_all_would(changes in changes(), now in 0..40_u64) {
        let owners = [0; 4].map(|_| OwnerId::new());
        let now = Moment::from_nanos(now);
        let (mut shares, mut slots) = (Shares::new(), Vec::new());
        for change in changes {
            match change {
                Change::Add { owner, lease, ends } => slots.push(shares.add(share(owners[owner], lease, ends))),
                Change::Remove { which } if !slots.is_empty() => {
                    let slot = slots.swap_remove(which % slots.len());
                    shares.remove(slot);
                }
                Change::Replace { which, lease, ends } if !slots.is_empty() => {
                    let slot = slots[which % slots.len()];
                    shares.replace(slot, share(shares.get(slot).owner, lease, ends));
                }
                Change::Remove { .. } | Change::Replace { .. } => {}
            }
            let all: Vec<_> = shares.few().copied().collect();
            prop_assert_eq!(shares.len(), slots.len());
            prop_assert_eq!(shares.last_end(), all.iter().map(|share| share.ends).max());
            let longest = all.iter().map(|share| share.lease_at(now)).max().unwrap_or_default();
            prop_assert_eq!(shares.lease_at(now), longest);
            for owner in owners {
                let has = all.iter().any(|share| share.owner == owner && now < share.ends);
                prop_assert_eq!(shares.has_owner(owner, now), has);
            }
        }
    }
}

#[test]
fn only_what_is_watched_is_told_and_once() {
    let mut shares = Shares::new();
    let (early, late) = (shares.add(share(OwnerId::new(), 1, 5)), shares.add(share(OwnerId::new(), 1, 9)));
    shares.add(share(OwnerId::new(), 1, 2));
    assert_eq!(shares.first_watched_end(), None);
    shares.watch(late);
    let end = shares.watch(early);
    assert_eq!(shares.first_watched_end(), Some(Moment::from_nanos(5)));
    let over = shares.take_over(Moment::from_nanos(6));
    assert!(over.len() == 1 && Arc::ptr_eq(&over[0], &end));
    assert!(shares.take_over(Moment::from_nanos(6)).is_empty());
}
