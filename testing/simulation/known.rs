//! Earlier faults that must not come back. Each entry has the run that showed the fault. No fault is known now, so
//! every run is checked for all promises.

use super::*;

/// Returns the promises that a run breaks.
fn broken(profile: Profile, seed: u64) -> BTreeSet<&'static str> {
    checkers::check(&run(seed, profile, None)).into_iter().map(|violation| violation.promise).collect()
}

/// Runs and scenes that showed a fault before the fault was repaired.
const MENDED: [(&str, Profile, u64); 31] = [
    ("T2 a burst", BURST, 0),
    ("E2 a runtime that nobody drives", Profile::of_scene(Scene::RuntimeNotDriven), 0),
    ("E2 a runtime that ends", Profile::of_scene(Scene::RuntimeEnds), 0),
    ("E2 a waiter behind one that nobody polls", RUNTIMES, 2),
    ("E3 an offer to nobody", Profile::of_scene(Scene::OfferToNobody), 0),
    ("E4 silence told as a denial", Profile::of_scene(Scene::OutageForTwo), 0),
    ("E4 a free lock denied", Profile::of_scene(Scene::TwoReadersAsk), 0),
    ("E5 close of a healthy server", DYING, 50),
    ("E6 a refused upgrade", LOSSY, 241),
    ("E6 a hold that nobody renews or confirms meanwhile", Profile::of_scene(Scene::UpgradeInAnOutage), 0),
    ("E6 a reason that nobody has said", Profile::of_scene(Scene::UpgradeUnheard), 0),
    ("E6 a copy that may yet come", Profile::of_scene(Scene::UpgradeLost), 0),
    ("E7 a newer grant of one's own", LOSING, 12),
    ("E8 guards with little left", DYING, 18),
    ("E12 a nested guard's own end", Profile::of_scene(Scene::NestedLimit), 0),
    ("T5 no backoff", LOSING, 4),
    ("T6 a release in doubt", LOSSY, 1),
    ("T6 a release of what waits by now", SPLIT, 758),
    ("E6 an end in doubt told as the longest time", SPLIT, 3039),
    ("E6 not renewed while it is in doubt", SPLIT, 825),
    ("a hold that the server does not know, by the answer to a reader", SPLIT, 3174),
    ("P12 tokens ahead of the clock", HOT, 0),
    ("an upgrade that waits for those who keep their holds", Profile { caches: true, ..LOSSY }, 1117),
    ("silence of a renewal told as a denial", Profile { caches: true, ..profile::ALL }, 931_253),
    ("a guard of a grant that a newer hold has overtaken", Profile { caches: true, ..profile::SMALL_BATCHES }, 932_768),
    ("an own force that is lost with its primary", Profile { caches: true, ..SPLIT }, 939_966),
    ("a view of writers after a clock was set back", Profile { caches: true, ..profile::ALL }, 956_210),
    ("a renewal of a waiter that nobody repeats after its failure", profile::ALL, 911_948),
    ("a reader that joins an older hold behind a waiting writer", SPLIT, 971_151),
    ("an outage in which waiters end one after the other", LOSING, 972_562),
    ("a copy of an upgrade that a master of a quorum executes after the undo", LONG, 6332),
];

#[test]
fn mended_faults_stay_mended() {
    for (entry, profile, seed) in MENDED {
        let broken = broken(profile, seed);
        assert!(broken.is_empty(), "{entry} ({}, seed {seed}) breaks {broken:?}", profile.name);
    }
}
