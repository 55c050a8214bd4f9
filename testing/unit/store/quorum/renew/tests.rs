use std::time::Duration;

use super::super::{Margins, Restarts, request_to_master};
use super::*;
use crate::base::attempt::AcquisitionId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::key::Key;
use crate::base::lease::FencingToken;
use crate::base::mode::Mode;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{AcquireRequest, MasterScheme, ReleaseReply, ReleaseRequest, Scheme, View};

const LEASE: Duration = Duration::from_secs(10);

/// Three masters within this process, and a lock.
struct Stage {
    masters: Vec<Arc<dyn MasterScheme>>,
    quorum: Quorum,
    key: Arc<Key>,
}

/// Lets all tasks run that have something to do, and the clocks of the masters go on.
async fn moment() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn asks(id: u64, mode: Mode) -> AcquireRequest {
    request_to_master(&AcquisitionId::new("m", id, "test"), mode, LEASE)
}

impl Stage {
    fn new() -> Self {
        let master = |_| -> Arc<dyn MasterScheme> { Arc::new(MemoryScheme::new(Arc::new(Store::new()))) };
        let masters: Vec<_> = (0..3).map(master).collect();
        let key = Key::new("quorum", "cfg").expect("a name");
        let margins = Margins { max_clock_skew: Duration::ZERO, max_delay: Duration::from_secs(1) };
        let quorum = Quorum::new(masters.clone(), &BackgroundRuntime::Callers, &key, margins, Restarts::Delayed, LEASE);
        Self { masters, quorum, key: Arc::new(key) }
    }

    /// Acquires, and waits until all masters have answered.
    async fn is_granted(&self, request: &AcquireRequest) -> FencingToken {
        let acquired = self.quorum.acquire(&self.key, request).await.expect("answered").value;
        let Acquired::Granted(granted) = acquired else { panic!("{acquired:?}") };
        moment().await;
        granted.token
    }

    /// Ends all holds at one master by force.
    async fn forces(&self, master: usize) {
        let seen = self.view(master).await;
        self.masters[master].force(&self.key, &seen).await.expect("answered");
    }

    /// Takes a hold at one master alone.
    async fn takes(&self, master: usize, request: &AcquireRequest) {
        let taken = self.masters[master].acquire(&self.key, request).await.expect("answered").value;
        assert!(matches!(taken, Acquired::Granted(_)), "{taken:?}");
    }

    async fn gives_back(&self, master: usize, request: &AcquireRequest) -> ReleaseReply {
        let request = ReleaseRequest { key: Arc::clone(&self.key), id: request.id.clone(), rest_until: None };
        self.masters[master].release(&request).await.expect("answered").value
    }

    /// Renews the hold, and waits for all that follows.
    async fn is_renewed(&self, request: &AcquireRequest) -> Renewed {
        let renewal = RenewalRequest {
            key: Arc::clone(&self.key),
            id: request.id.clone(),
            lease: LEASE,
            caches: false,
            tokens: 0,
            rest_until: None,
        };
        let renewed = self.quorum.renew_all(&[renewal]).await.remove(0).expect("answered").value;
        moment().await;
        renewed
    }

    async fn renews(&self, request: &AcquireRequest) {
        let renewed = self.is_renewed(request).await;
        assert!(matches!(renewed, Renewed::Renewed { .. }), "{renewed:?}");
    }

    async fn view(&self, master: usize) -> View {
        self.masters[master].inspect(&self.key).await.expect("answered").value
    }

    /// Ids of the holders at one master.
    async fn holders(&self, master: usize) -> Vec<String> {
        self.view(master).await.holders.into_iter().map(|holder| holder.id).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_brings_a_hold_and_its_token_to_a_master_that_lacks_it() {
    for mode in [Mode::Read, Mode::Write] {
        let (stage, ours, other) = (Stage::new(), asks(1, mode), asks(2, Mode::Write));
        // The tokens of these two are ahead of those that the third would give.
        let ahead = Floor::New(FencingToken::from_wire(1 << 52).expect("small"));
        for master in [0, 1] {
            drop(stage.masters[master].acquire_above(&stage.key, &asks(3, Mode::Write), ahead).await);
            stage.gives_back(master, &asks(3, Mode::Write)).await;
        }
        stage.takes(2, &other).await;
        let token = stage.is_granted(&ours).await;
        stage.gives_back(2, &other).await;
        stage.renews(&ours).await;
        let view = stage.view(2).await;
        let holders: Vec<_> = view.holders.iter().map(|holder| (&*holder.id, holder.mode)).collect();
        assert_eq!(holders, [(ours.id.as_str(), mode)]);
        assert!(view.token >= Some(token), "{:?} is below {token}", view.token);
        let leave = ReleaseRequest { key: Arc::clone(&stage.key), id: ours.id.clone(), rest_until: None };
        assert_eq!(
            stage.quorum.release_everywhere(&[leave]).await.remove(0).expect("answered").value,
            ReleaseReply::Held
        );
        moment().await;
        assert_eq!(stage.holders(2).await, [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_is_not_brought_to_a_master_where_somebody_else_has_one() {
    let (stage, ours, other) = (Stage::new(), asks(1, Mode::Write), asks(2, Mode::Write));
    stage.takes(2, &other).await;
    stage.is_granted(&ours).await;
    stage.renews(&ours).await;
    assert_eq!(stage.holders(2).await, [other.id.as_str()]);
    // After a refusal the next renewal asks again.
    stage.gives_back(2, &other).await;
    stage.renews(&ours).await;
    assert_eq!(stage.holders(2).await, [ours.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn hold_that_was_ended_by_force_at_any_master_is_lost_and_brought_nowhere() {
    // The last master answers after the two others have decided.
    for at in 0..3 {
        let (stage, ours) = (Stage::new(), asks(1, Mode::Write));
        let token = stage.is_granted(&ours).await;
        stage.forces(at).await;
        if at == 2 {
            stage.renews(&ours).await;
        }
        let renewed = stage.is_renewed(&ours).await;
        assert!(matches!(renewed, Renewed::Lost { forced } if forced >= Some(token)), "{at}: {renewed:?}");
        assert_eq!(stage.holders(at).await, [""; 0], "{at}");
    }
}

/// A force from before the grant does not end this hold.
#[tokio::test(start_paused = true)]
async fn hold_is_brought_to_a_master_where_another_was_ended_by_force() {
    let (stage, ours, other) = (Stage::new(), asks(1, Mode::Write), asks(2, Mode::Write));
    stage.takes(2, &other).await;
    stage.forces(2).await;
    // All masters have the same clock here, and one token for each microsecond.
    moment().await;
    stage.takes(2, &asks(3, Mode::Write)).await;
    stage.is_granted(&ours).await;
    stage.gives_back(2, &asks(3, Mode::Write)).await;
    stage.renews(&ours).await;
    assert_eq!(stage.holders(2).await, [ours.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn what_a_majority_has_lost_is_brought_nowhere() {
    let (stage, ours) = (Stage::new(), asks(1, Mode::Write));
    stage.is_granted(&ours).await;
    for master in [1, 2] {
        stage.gives_back(master, &ours).await;
    }
    let renewed = stage.is_renewed(&ours).await;
    assert!(matches!(renewed, Renewed::Lost { .. }), "{renewed:?}");
    for master in [1, 2] {
        assert_eq!(stage.holders(master).await, [""; 0]);
    }
}
