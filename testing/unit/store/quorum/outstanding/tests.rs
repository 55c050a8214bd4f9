use super::*;
use crate::base::attempt::{Answered, Granted, NodeId};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::lease::ServerTime;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{Absence, Acquired};

const LEASE: Duration = Duration::from_secs(10);
const STRAY: Duration = Duration::from_secs(1);
const MARGINS: Margins = Margins { max_clock_skew: Duration::ZERO, max_delay: STRAY };

/// Background that sends nothing.
#[derive(Debug, Default)]
struct Pending(Mutex<Vec<MasterRelease>>);

impl ReleaseBackground for Pending {
    fn begin_at_master(&self) {}

    fn end_at_master(&self) {}

    fn release_at_master(&self, release: MasterRelease) {
        self.0.lock().push(release);
    }
}

/// Three masters whose pending releases are counted.
struct Stage {
    traces: Arc<Outstanding>,
    pending: Arc<Pending>,
    key: Arc<Key>,
    id: AcquisitionId,
}

impl Stage {
    fn new() -> Self {
        let key = Key::new("quorum", "cfg").expect("a name");
        let master = |place| {
            let scheme = MemoryScheme::new(Arc::new(Store::new()));
            Arc::new(Master::new(Arc::new(scheme), place, BackgroundRuntime::Callers, key.clone()))
        };
        let masters: Vec<_> = (0..3).map(master).collect();
        let clock = masters[0].scheme.clock();
        let (traces, pending) = (Outstanding::new(masters, clock, MARGINS), Arc::<Pending>::default());
        let background: Weak<Pending> = Arc::downgrade(&pending);
        traces.set_background(background);
        let id = AcquisitionId::new("m", 1, "test");
        let stage = Self { traces, pending, key: Arc::new(key), id };
        stage.traces.begin(&stage.id, Mode::Write, &stage.key, LEASE);
        stage
    }

    /// Two masters of three have granted the hold.
    fn granted_by_two() -> Self {
        let stage = Self::new();
        [0, 1].into_iter().for_each(|master| stage.is_granted(stage.sends(master)));
        stage.traces.note_granted(&stage.id, token(7));
        stage
    }

    fn begins_release(&self) -> Option<Vec<ReleaseState>> {
        self.traces.begin_release(&self.id)
    }

    /// The master answers a release.
    fn replies(&self, telling: ReleaseInFlight, reply: ReleaseReply) -> Option<bool> {
        telling.on_answer(&self.answered(reply))
    }

    fn has_leftovers(&self) -> [bool; 3] {
        [0, 1, 2].map(|master| self.traces.leftovers.contains(&self.key, master))
    }

    fn sends(&self, master: usize) -> RequestInFlight {
        self.traces.begin_request(&self.id, master)
    }

    fn is_told(&self, master: usize) -> ReleaseInFlight {
        ReleaseInFlight::new(&self.traces, &self.id, master)
    }

    fn debts(&self) -> Vec<usize> {
        let pending = self.pending.0.lock();
        let at = |master: &Arc<Master>| pending.iter().filter(|release| release.route == master.route).count();
        self.traces.masters.iter().map(at).collect()
    }

    fn answered<T>(&self, value: T) -> Attempt<T> {
        Ok(Answered { sent: self.traces.clock.now(), server: ServerTime::default(), node: NodeId::default(), value })
    }

    fn is_granted(&self, copy: RequestInFlight) {
        self.is_granted_with(copy, token(7));
    }

    fn is_granted_with(&self, copy: RequestInFlight, token: FencingToken) {
        copy.resolve(&self.answered(granted()), |_| Some(AtMaster::Held(Some(token))));
    }

    fn is_refused(&self, copy: RequestInFlight) {
        copy.resolve(&self.answered(Acquired::Contended { retry_in: LEASE, holder: None }), |_| {
            Some(AtMaster::Missing)
        });
    }

    /// Ends all pending releases.
    fn ends(&self) {
        self.pending.0.lock().clear();
    }

    fn known(&self) -> usize {
        self.traces.table.lock().by_id.len()
    }
}

fn token(raw: u64) -> FencingToken {
    FencingToken::from_wire(raw).expect("small")
}

fn granted() -> Acquired {
    Acquired::Granted(Granted { token: token(1), tokens: 1, remaining: LEASE, is_waited_for: false })
}

fn gone() -> ReleaseReply {
    ReleaseReply::None(Absence::default())
}

fn not_done<T>() -> Attempt<T> {
    Err(Failure::NotDone { source: None })
}

#[tokio::test(start_paused = true)]
async fn failed_acquisition_is_owed_and_counts_until_a_master_can_have_nothing_of_it() {
    let stage = Stage::new();
    let (granted, refused, late) = (stage.sends(0), stage.sends(1), stage.sends(2));
    stage.is_granted(granted);
    assert_eq!(stage.has_leftovers(), [false; 3], "it has not failed yet");
    stage.traces.give_back(&stage.id);
    assert_eq!(stage.has_leftovers(), [true; 3]);
    assert_eq!(stage.debts(), [1, 0, 0], "what is on its way is not known yet");
    stage.is_refused(refused);
    assert_eq!(stage.has_leftovers(), [true, false, true]);
    stage.is_granted(late);
    assert_eq!((stage.has_leftovers(), stage.debts()), ([true, false, true], vec![1, 0, 1]));
    assert_eq!(stage.known(), 0, "the releases are pending");
    stage.ends();
    assert_eq!(stage.has_leftovers(), [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn copy_that_nobody_waits_for_is_owed_and_counts_until_it_cannot_arrive() {
    let stage = Stage::new();
    let (dropped, not_sent) = (stage.sends(0), stage.sends(1));
    drop(dropped);
    not_sent.resolve(&not_done::<Acquired>(), |_| None);
    stage.traces.give_back(&stage.id);
    assert_eq!(stage.debts(), [1, 0, 0]);
    assert!(stage.traces.leftovers.contains(&stage.key, 0), "it may arrive behind the first release");
    let debt = stage.pending.0.lock().remove(0);
    assert_eq!(debt.arrives_until, Some(stage.traces.clock.now().after(STRAY)));
    let kept_until = stage.traces.clock.now().after(STRAY + LEASE);
    assert!(debt.server_until >= kept_until, "it would keep it for a lease from then on");
    drop(debt);
    assert!(!stage.traces.leftovers.contains(&stage.key, 0));
    let other = Key::new("quorum", "other").expect("a name");
    assert!(!stage.traces.leftovers.contains(&other, 0));
}

/// The answer to the release is read before that to the copy, or after it.
#[tokio::test(start_paused = true)]
async fn release_is_told_again_if_it_came_before_the_grant_and_not_if_it_ended_it() {
    for (reply, debts) in [(ReleaseReply::Held, [0, 0, 0]), (gone(), [1, 0, 0])] {
        for release_first in [true, false] {
            let stage = Stage::new();
            let copy = stage.sends(0);
            assert_eq!(stage.begins_release().expect("known")[0], ReleaseState::MayHold);
            let telling = stage.is_told(0);
            let told = |telling| {
                let was_held = stage.replies(telling, reply);
                assert!(reply != ReleaseReply::Held || was_held == Some(true));
            };
            if release_first {
                told(telling);
                stage.is_granted(copy);
            } else {
                stage.is_granted(copy);
                told(telling);
            }
            assert_eq!(stage.debts(), debts, "the release was first: {release_first}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn release_is_told_again_if_what_it_ended_is_never_answered() {
    let stage = Stage::new();
    let copy = stage.sends(0);
    stage.begins_release();
    assert_eq!(stage.replies(stage.is_told(0), ReleaseReply::Held), Some(true));
    drop(copy);
    assert_eq!(stage.debts(), [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn hold_that_came_back_is_not_taken_away_by_an_earlier_conversion() {
    let stage = Stage::new();
    stage.is_granted(stage.sends(0));
    let sent = stage.traces.clock.now();
    tokio::time::advance(Duration::from_millis(1)).await;
    // A conversion that was sent before this grant is answered after it.
    stage.is_granted(stage.sends(0));
    stage.traces.note_converted(&stage.id, 0, sent);
    assert_eq!(stage.begins_release().expect("known")[0], ReleaseState::MayHold);
    stage.traces.note_converted(&stage.id, 0, stage.traces.clock.now());
    assert_eq!(stage.begins_release().expect("known")[0], ReleaseState::Nothing);
}

#[tokio::test(start_paused = true)]
async fn second_copy_may_bring_back_what_a_release_has_ended() {
    let stage = Stage::new();
    let (first, raised) = (stage.sends(0), stage.sends(0));
    stage.is_granted(first);
    stage.begins_release();
    stage.replies(stage.is_told(0), ReleaseReply::Held);
    stage.is_granted(raised);
    assert_eq!(stage.debts(), [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn release_that_is_not_answered_is_owed_once() {
    let stage = Stage::new();
    stage.is_granted(stage.sends(0));
    stage.begins_release();
    stage.is_told(0).on_answer(&not_done());
    drop(stage.is_told(0));
    assert_eq!(stage.debts(), [1, 0, 0]);
}

/// The release that is pending already may reach the master before that grant, so a second one must follow.
#[tokio::test(start_paused = true)]
async fn grant_that_crosses_with_a_release_without_an_answer_is_owed_besides() {
    let stage = Stage::new();
    let copy = stage.sends(0);
    stage.begins_release();
    stage.is_told(0).on_answer(&not_done());
    let telling = stage.is_told(0);
    stage.is_granted(copy);
    drop(telling);
    assert_eq!(stage.debts(), [2, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn hold_that_an_unanswered_release_may_have_ended_was_ours() {
    let absence = Absence { forced: None, last: Some(token(7)), first: Some(token(3)) };
    for is_in_doubt in [false, true] {
        let stage = Stage::new();
        stage.is_granted(stage.sends(0));
        stage.traces.note_granted(&stage.id, token(7));
        stage.begins_release();
        if is_in_doubt {
            drop(stage.is_told(0));
        }
        assert_eq!(stage.replies(stage.is_told(0), ReleaseReply::None(absence)), Some(is_in_doubt));
        let later = [ReleaseState::Released { was_held: true }, ReleaseState::Nothing, ReleaseState::Nothing];
        assert!(!is_in_doubt || stage.begins_release() == Some(later.to_vec()));
    }
}

/// A renewal asks a master that lacks a hold for a new grant, while that is of use.
#[tokio::test(start_paused = true)]
async fn master_that_lacks_a_hold_is_asked_for_it_unless_that_is_of_no_use() {
    let stage = Stage::new();
    let until = || stage.traces.clock.now().after(LEASE);
    let brings = |until| stage.traces.begin_heal(&stage.id, 2, LEASE, until);
    stage.is_granted(stage.sends(0));
    stage.is_granted(stage.sends(1));
    assert!(brings(until()).is_none(), "no majority has granted it");
    stage.traces.note_granted(&stage.id, token(7));
    let dropped = stage.sends(2);
    assert!(brings(until()).is_none(), "it is being asked");
    drop(dropped);
    assert!(brings(until()).is_none(), "a copy may yet arrive");
    tokio::time::advance(STRAY).await;
    assert!(brings(stage.traces.clock.now()).is_none(), "it is over");
    let (copy, mode, above) = brings(until()).expect("of use");
    assert_eq!((mode, above), (Mode::Write, token(7)));
    stage.is_granted(copy);
    stage.begins_release();
    assert!(brings(until()).is_none(), "it is released");
}

#[tokio::test(start_paused = true)]
async fn what_was_ended_by_force_at_a_master_is_asked_for_nowhere() {
    let stage = Stage::granted_by_two();
    let brings = || stage.traces.begin_heal(&stage.id, 2, LEASE, stage.traces.clock.now().after(LEASE));
    for earlier in [None, Some(token(6))] {
        stage.traces.note_lacking(&stage.id, 1, earlier);
        assert_eq!(stage.traces.forced_token(&stage.id), None);
    }
    // The clock of this master is ahead, and it has ended an earlier hold by force.
    stage.traces.note_lacking(&stage.id, 2, Some(token(900)));
    assert_eq!(stage.traces.forced_token(&stage.id), None, "it never had this hold");
    stage.is_granted_with(brings().expect("of use").0, token(901));
    stage.traces.note_lacking(&stage.id, 2, Some(token(900)));
    assert_eq!(stage.traces.forced_token(&stage.id), None, "it had the hold with a higher token");
    stage.traces.note_lacking(&stage.id, 2, Some(token(901)));
    assert_eq!(stage.traces.forced_token(&stage.id), Some(token(7)), "the token that the majority has");
    assert!(brings().is_none());
}

#[tokio::test(start_paused = true)]
async fn hold_that_is_brought_to_a_master_behind_its_release_is_owed() {
    let stage = Stage::granted_by_two();
    stage.is_refused(stage.sends(2));
    let until = stage.traces.clock.now().after(LEASE);
    let (copy, ..) = stage.traces.begin_heal(&stage.id, 2, LEASE, until).expect("it lacks it");
    assert_eq!(stage.begins_release().expect("known")[2], ReleaseState::MayHold);
    stage.replies(stage.is_told(2), gone());
    stage.is_granted(copy);
    assert_eq!(stage.debts(), [0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn trace_goes_when_its_release_is_known() {
    let stage = Stage::new();
    for master in 0..3 {
        stage.is_granted(stage.sends(master));
    }
    stage.traces.note_granted(&stage.id, token(1));
    stage.begins_release();
    for master in 0..3 {
        stage.replies(stage.is_told(master), ReleaseReply::Held);
    }
    assert_eq!(stage.known(), 1, "whoever asks again is to hear the same");
    stage.traces.note_released(&stage.id);
    assert_eq!((stage.known(), stage.debts()), (0, vec![0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn traces_of_which_nobody_has_told_the_end_go_when_they_are_over() {
    let stage = Stage::new();
    let begin = |n| stage.traces.begin(&AcquisitionId::new("m", n, "test"), Mode::Read, &stage.key, LEASE);
    (2..=1000).for_each(begin);
    assert_eq!(stage.known(), 1000);
    tokio::time::advance(LEASE * 2).await;
    // Old entries are removed when there are twice as many.
    (1001..=2100).for_each(begin);
    assert!(stage.known() <= 1100, "{}", stage.known());
}
