//! Link of one process to one server. It is a scheme whose requests travel through the [`World`]. It treats silence,
//! late replies and limits as the transport to real servers does. `master` has what only the masters of a quorum need.

mod master;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use master::Master;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::world::{Delivery, Fates, Unsubscribe, Wire, lock_of};
use super::*;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::Listing;
use crate::store::{
    Attempt, Failure, NotifyingScheme, RecallingScheme, ReleaseRequest, RenewalRequest, Route, ServerContact,
    Subscription,
};

/// Greatest age of a clock sample, as in the transport.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(5);

pub struct Link {
    pub world: Arc<World>,
    pub address: Address,
    place: Place,
    response_timeout: Duration,
    max_clock_skew: Duration,
    clock_sample: Arc<Mutex<Option<ClockSample>>>,
    /// Connection to the server, if it is a master of a quorum.
    master: Option<Mutex<Master>>,
    /// Requests in flight, as on a connection. A request over the limit waits here, and not at the server. Background
    /// requests are not limited.
    room: Semaphore,
    /// Limit for releases that callers wait for. Because of this separate limit, a release does not wait behind
    /// acquisitions.
    room_ahead: Semaphore,
    /// Last acquisition that was sent, for each lock.
    pub asked: Arc<Mutex<BTreeMap<Lock, AcquisitionId>>>,
    /// Inline releases. The runtime that drops the guard sends the release, if the runtime goes on.
    inline: Mutex<HashMap<AcquisitionId, Arc<Runtime>>>,
    /// Acquisitions that the server was asked to release or to convert.
    left: Mutex<HashSet<AcquisitionId>>,
    /// Mutant: releases that only the runtime of the dropped guard sends.
    left_alone: Mutex<HashSet<AcquisitionId>>,
}

/// Returns an answer whose value must be of this kind.
macro_rules! only {
    ($answer:expr, $kind:ident) => {{
        let Answered { sent, server, node, value } = $answer;
        match value {
            Answer::$kind(value) => Answered { sent, server, node, value },
            other => unreachable!("the server answers {other:?}"),
        }
    }};
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.address.process).field(&self.place).finish()
    }
}

impl Link {
    pub fn new(
        world: &Arc<World>,
        address: Address,
        place: Place,
        Options { response_timeout, max_clock_skew, .. }: &Options,
    ) -> Self {
        let clock_sample = Arc::default();
        world.listens(&address, &clock_sample);
        let (room, room_ahead) = (Semaphore::new(world.profile.room), Semaphore::new(world.profile.room));
        Self {
            world: Arc::clone(world),
            address,
            place,
            response_timeout: *response_timeout,
            max_clock_skew: *max_clock_skew,
            clock_sample,
            master: world.is_quorum().then(Mutex::default),
            room,
            room_ahead,
            asked: Arc::default(),
            inline: Mutex::default(),
            left: Mutex::default(),
            left_alone: Mutex::default(),
        }
    }

    fn is_mutant(&self, mutant: Mutant) -> bool {
        self.world.mutant == Some(mutant)
    }

    async fn room(&self) -> Option<SemaphorePermit<'_>> {
        if self.is_mutant(Mutant::RoomForAll) {
            return None;
        }
        self.room.acquire().await.ok()
    }

    /// Sends one request and waits for its answer, as long as an answer still counts.
    async fn carry(&self, key: &Arc<Key>, parcel: Parcel) -> Attempt<Answer> {
        self.world.count_pipeline();
        let fates = self.world.fates(self.place, &parcel);
        self.carry_on(key, parcel, fates).await
    }

    async fn carry_on(&self, key: &Arc<Key>, parcel: Parcel, fates: Fates) -> Attempt<Answer> {
        if let Some(answer) = self.invented(&parcel) {
            return Ok(self.made_up(answer));
        }
        self.connect(key).await?;
        self.exchange(key, parcel, fates).await
    }

    async fn exchange(&self, key: &Arc<Key>, parcel: Parcel, fates: Fates) -> Attempt<Answer> {
        let (world, gate) = (&self.world, &self.address.gate);
        self.goes_with_a_runtime(&parcel).await;
        gate.pass().await;
        let (sent, node) = (world.clock.now(), world.answering(self.address.process));
        let wire = self.wire();
        let (request, answered) = world.post(wire, key, &parcel, fates);
        let delivery = self.await_delivery(sent, &parcel, answered).await;
        gate.pass().await;
        let now = world.clock.now();
        let believes_all = self.believes_late(&parcel);
        match delivery {
            // A process that was paused sees the reply before the timer, so the clock decides.
            Some(Delivery::Answered(answer, server)) if believes_all || now.since(sent) <= self.response_timeout => {
                world.record(What::Answered { request, reply: answer.reply() });
                *self.clock_sample.lock() = Some(ClockSample { sent, server });
                self.on_answer(wire, sent, &parcel, &answer);
                let Some(answer) = self.misheard(answer) else {
                    let arrives_until = sent.after(lease::max_delay(self.response_timeout, self.max_clock_skew));
                    return Err(Failure::Unknown { arrives_until, source: None });
                };
                let sent = match world.mutant {
                    Some(Mutant::DeadlineFromReply) => now,
                    // Mutant: the lease is counted from the next copy.
                    Some(Mutant::LateGrantBelieved) if now.since(sent) > self.response_timeout => {
                        sent.after(self.response_timeout)
                    }
                    _ => sent,
                };
                Ok(Answered { sent, server, node, value: answer })
            }
            // A request to a master goes out on a connection, and may have arrived before the connection broke.
            Some(Delivery::Refused) if self.master.is_none() => {
                world.record(What::NotDone { request });
                Err(Failure::NotDone { source: None })
            }
            Some(Delivery::Unreplicated) => {
                world.record(What::Unanswered { request });
                Err(Failure::Unreplicated { asked: 1, acknowledged: 0, node: None })
            }
            Some(Delivery::Refused | Delivery::Answered(..)) | None => {
                world.record(What::Unanswered { request });
                *self.clock_sample.lock() = None;
                self.on_silence();
                if world.mutant == Some(Mutant::SlowRenewal) && matches!(parcel, Parcel::Renew { .. }) {
                    sleep_ms(1_000).await;
                }
                let arrives_until = match (world.mutant, &parcel) {
                    (Some(Mutant::NoLateConversions), Parcel::Conversion { .. }) => sent,
                    _ => sent.after(lease::max_delay(self.response_timeout, self.max_clock_skew)),
                };
                self.unanswered(sent, arrives_until, &parcel)
            }
        }
    }

    /// Mutants: lets background work, or work of other runtimes, wait until the first runtime is driven.
    async fn goes_with_a_runtime(&self, parcel: &Parcel) {
        let goes = matches!(
            (self.world.mutant, parcel),
            (Some(Mutant::RenewsWithTheFirst), Parcel::Renew { .. })
                | (Some(Mutant::ReleasesWithTheFirst), Parcel::Leave { .. })
                | (Some(Mutant::AsksWithTheFirst), Parcel::Acquire { .. })
        );
        if let Some(first) = self.address.first.get().filter(|_| goes) {
            first.driven().await;
        }
    }

    /// Returns the answer as a wrong process reads it. `None` if it takes the answer for silence.
    fn misheard(&self, answer: Answer) -> Option<Answer> {
        Some(match (self.world.mutant, answer) {
            (Some(Mutant::LossIsSilence), Answer::Renewed(Renewed::Lost { .. })) => return None,
            (Some(Mutant::ReleaseIsAlwaysFine), Answer::ReleaseReply(_)) => Answer::ReleaseReply(ReleaseReply::Held),
            (Some(Mutant::ForceNotTold), Answer::Renewed(Renewed::Lost { .. })) => {
                Answer::Renewed(Renewed::Lost { forced: None })
            }
            (Some(Mutant::ForceNotTold), Answer::ReleaseReply(ReleaseReply::None(absence))) => {
                Answer::ReleaseReply(ReleaseReply::None(Absence { forced: None, ..absence }))
            }
            (Some(Mutant::RefusalIsLoss), Answer::Converted(Converted::Refused)) => {
                Answer::Converted(Converted::Lost { forced: None })
            }
            (Some(Mutant::LateConversionIsRefused), Answer::Converted(Converted::Late)) => {
                Answer::Converted(Converted::Refused)
            }
            (Some(Mutant::LateIsDenial), Answer::Acquired(Acquired::Late)) => {
                Answer::Acquired(Acquired::Contended { retry_in: Duration::from_millis(100), holder: None })
            }
            (Some(Mutant::IgnoresRecalls), Answer::Renewed(Renewed::Renewed { remaining, tokens, .. })) => {
                Answer::Renewed(Renewed::Renewed { remaining, is_waited_for: false, tokens })
            }
            (Some(Mutant::NoPause), Answer::Acquired(Acquired::Queued { is_cached, holder, .. })) => {
                Answer::Acquired(Acquired::Queued { retry_in: Duration::from_millis(1), is_cached, holder })
            }
            (_, answer) => answer,
        })
    }

    fn believes_late(&self, parcel: &Parcel) -> bool {
        self.is_mutant(Mutant::LateGrantBelieved) && matches!(parcel, Parcel::Acquire { .. })
    }

    fn unanswered(&self, sent: Moment, arrives_until: Moment, parcel: &Parcel) -> Attempt<Answer> {
        let wrong = match (self.world.mutant, parcel) {
            (Some(Mutant::SilenceIsDenial), Parcel::Acquire { .. }) => {
                Some(Answer::Acquired(Acquired::Contended { retry_in: Duration::from_millis(100), holder: None }))
            }
            (Some(Mutant::LostAtOnce), Parcel::Renew { .. }) => Some(Answer::Renewed(Renewed::Lost { forced: None })),
            (Some(Mutant::SilentConversionIsLoss), Parcel::Conversion { .. }) => {
                Some(Answer::Converted(Converted::Lost { forced: None }))
            }
            _ => None,
        };
        match wrong {
            Some(value) => Ok(Answered { sent, ..self.made_up(value) }),
            None => Err(Failure::Unknown { arrives_until, source: None }),
        }
    }

    async fn await_delivery(
        &self,
        sent: Moment,
        parcel: &Parcel,
        answered: tokio::sync::oneshot::Receiver<Delivery>,
    ) -> Option<Delivery> {
        let clock = self.world.clock;
        let mut answered = Box::pin(async move {
            match answered.await {
                Ok(delivery) => delivery,
                Err(_) => std::future::pending().await,
            }
        });
        tokio::select! {
            biased;
            delivery = &mut answered => return Some(delivery),
            () = clock.sleep_until(sent.after(self.response_timeout)) => {}
        }
        if self.is_mutant(Mutant::WaitsForEver) {
            return Some(answered.await);
        }
        if self.believes_late(parcel) {
            return tokio::time::timeout(Duration::from_secs(3), answered).await.ok();
        }
        None
    }

    /// Returns the server time after which a request that is sent now must not be carried out.
    async fn not_after_ms(&self, key: &Arc<Key>) -> Result<u64, Failure> {
        loop {
            self.address.gate.pass().await;
            let now = self.world.clock.now();
            let clock_sample = *self.clock_sample.lock();
            if let Some(clock_sample) = clock_sample.filter(|clock_sample| clock_sample.age_at(now) <= MAX_SAMPLE_AGE) {
                return Ok(clock_sample.server_time_at(now).after(self.response_timeout).as_millis_up());
            }
            self.ask_time(key).await?;
        }
    }

    /// Asks the server for its time, before any other request.
    async fn ask_time(&self, key: &Arc<Key>) -> Result<(), Failure> {
        self.world.count_pipeline();
        let fates = self.world.fates(self.place, &Parcel::Time);
        // No other request was sent.
        self.exchange(key, Parcel::Time, fates).await.map(drop).map_err(|_| Failure::NotDone { source: None })
    }

    async fn leave_at_once(&self, request: &ReleaseRequest) -> Attempt<ReleaseReply> {
        let ReleaseRequest { key, id, rest_until } = request;
        if self.is_mutant(Mutant::LeavesOnce) && !self.left.lock().insert(id.clone()) {
            return Ok(self.made_up(ReleaseReply::None(Absence::default())));
        }
        let parcel = Parcel::Leave { id: id.clone(), rest_until: *rest_until };
        let fates = self.world.fates(self.place, &parcel);
        Ok(only!(self.carry_on(&owned(key), parcel, fates).await?, ReleaseReply))
    }

    /// Returns an answer that a wrong process invents.
    fn made_up<T>(&self, value: T) -> Answered<T> {
        Answered { sent: self.world.clock.now(), server: ServerTime::default(), node: NodeId::default(), value }
    }

    async fn renew_one(&self, renewal: &RenewalRequest, fates: Fates) -> Attempt<Renewed> {
        let RenewalRequest { key, id, lease, rest_until, .. } = renewal;
        let lease = if self.is_mutant(Mutant::RenewsShort) { &(*lease / 2) } else { lease };
        if self.is_mutant(Mutant::ConvertedUnrenewed) && self.left.lock().contains(id) {
            return Err(Failure::NotDone { source: None });
        }
        if self.is_mutant(Mutant::RenewalOutlivesGuard) {
            self.renew_for_ever(renewal);
        }
        let _room = match self.world.mutant {
            Some(Mutant::RenewsInTurn) => self.room().await,
            _ => None,
        };
        let caches = renewal.caches.then_some(renewal.tokens);
        if self.believes_renewed(renewal) {
            let node = self.world.answering(self.address.process);
            return Ok(Answered { node, ..self.made_up(Renewed::of(*lease)) });
        }
        let answer = self
            .carry_on(key, Parcel::Renew { id: id.clone(), lease: *lease, caches, rest_until: *rest_until }, fates)
            .await;
        if self.is_renewed_by_any(id, &answer) {
            return Ok(self.made_up(Renewed::of(*lease)));
        }
        let mut answer = only!(answer?, Renewed);
        if let (Renewed::Renewed { tokens: Some((first, _)), .. }, Some(Mutant::TokensOfNobody)) =
            (&mut answer.value, self.world.mutant)
        {
            *first = first.plus(1_000);
        }
        Ok(answer)
    }

    /// Returns true if a wrong process assumes that a cached hold is renewed.
    fn believes_renewed(&self, renewal: &RenewalRequest) -> bool {
        let is_unused = || !self.world.is_inside(self.address.process, lock_of(&renewal.key));
        self.is_mutant(Mutant::CachedUnrenewed) && renewal.caches && is_unused()
    }

    fn listening(&self, key: &Key, (notifications, end): (mpsc::Receiver<Notification>, Unsubscribe)) -> Subscription {
        let notifications = match self.world.mutant {
            Some(Mutant::IgnoresNotifications) => attempt::notifications().1,
            Some(Mutant::StaleNotification) => self.with_stale(lock_of(key), notifications),
            _ => notifications,
        };
        Subscription { notices: notifications, _end: Box::new(end) }
    }

    /// Repeats each notification after its time, as a notification for a later acquisition.
    fn with_stale(&self, lock: Lock, mut notifications: mpsc::Receiver<Notification>) -> mpsc::Receiver<Notification> {
        let (to, passed_on) = attempt::notifications();
        let asked = Arc::clone(&self.asked);
        drop(tokio::spawn(async move {
            while let Some(notification) = notifications.recv().await {
                to.try_send(notification.clone()).ok();
                let Notification::Granted { at, mut answer, .. } = notification else { continue };
                sleep_ms(500).await;
                if let Some(id) = asked.lock().get(&lock) {
                    // These values look like a grant of this moment.
                    let at = at.after(Duration::from_millis(550));
                    answer.value.token = answer.value.token.plus(550_000);
                    to.try_send(Notification::Granted { id: id.to_shared(), at, answer }).ok();
                }
            }
        }));
        passed_on
    }

    fn renew_for_ever(&self, renewal: &RenewalRequest) {
        let (world, process, place) = (Arc::clone(&self.world), self.address.process, self.place);
        let renewal = renewal.clone();
        drop(tokio::spawn(async move {
            for _ in 0..20 {
                sleep(renewal.lease / 3).await;
                let parcel =
                    Parcel::Renew { id: renewal.id.clone(), lease: renewal.lease, caches: None, rest_until: None };
                let fates = world.fates(place, &parcel);
                drop(world.post(world.wire(process, place), &renewal.key, &parcel, fates));
            }
        }));
    }
}

/// Returns a key that a request can own, because requests outlive their senders.
fn owned(key: &Key) -> Arc<Key> {
    Arc::new(key.clone())
}

impl Link {
    async fn acquire_at(&self, key: &Key, request: &AcquireRequest, floor: Option<Floor>) -> Attempt<Acquired> {
        let key = owned(key);
        let before = self.asked.lock().insert(lock_of(&key), request.id.clone());
        if self.is_mutant(Mutant::SlowHeartbeat) && before.as_ref() == Some(&request.id) {
            sleep_ms(10_000).await;
        }
        let _room = self.room().await;
        let not_after_ms = self.not_after_ms(&key).await?;
        Ok(only!(self.carry(&key, Parcel::Acquire { request: request.clone(), not_after_ms, floor }).await?, Acquired))
    }

    async fn force_at(&self, key: &Key, parcel: Parcel) -> Attempt<Forced> {
        let _room = self.room().await;
        Ok(only!(self.carry(&owned(key), parcel).await?, Forced))
    }
}

impl Scheme for Link {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(self.acquire_at(key, request, None))
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(async move {
            let key = owned(key);
            if self.is_mutant(Mutant::ConvertedUnrenewed) {
                self.left.lock().insert(old.clone());
            }
            let _room = self.room().await;
            let not_after_ms = self.not_after_ms(&key).await?;
            let parcel = Parcel::Conversion { old: old.clone(), request: request.clone(), not_after_ms };
            let answer = self.carry(&key, parcel).await;
            if self.is_mutant(Mutant::LeavesInDoubt) && answer.is_err() {
                let leave = Parcel::Leave { id: request.id.clone(), rest_until: None };
                drop(self.world.post(self.wire(), &key, &leave, self.world.fates(self.place, &leave)));
            }
            Ok(only!(answer?, Converted))
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        let id = &request.id;
        let runtime = self.inline.lock().remove(id);
        Box::pin(async move {
            let Some(runtime) = runtime else {
                self.world.count_pipeline();
                let _room = self.room_ahead.acquire().await;
                return self.leave_at_once(request).await;
            };
            if self.is_mutant(Mutant::NobodyLooksAfter) {
                self.left_alone.lock().insert(id.clone());
            }
            runtime.driven().await;
            let answer = self.leave_at_once(request).await;
            runtime.driven().await;
            answer
        })
    }

    fn can_send_inline(&self, leave: &ReleaseRequest) -> bool {
        let Some(runtime) = runtime::current() else {
            return false;
        };
        self.inline.lock().insert(leave.id.clone(), runtime);
        true
    }

    fn can_renew_inline(&self, _: &Key) -> bool {
        runtime::current().is_some()
    }

    fn release_all<'a>(
        &'a self,
        _: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        self.world.count_pipeline();
        Box::pin(join_all(batch.iter().map(async |leave: &ReleaseRequest| {
            if self.left_alone.lock().contains(&leave.id) {
                return Ok(self.made_up(ReleaseReply::Held));
            }
            self.leave_at_once(leave).await
        })))
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        // The requests form one pipeline. All of them arrive together, or none does.
        let Some(first) = batch.first() else {
            return Box::pin(std::future::ready(Vec::new()));
        };
        self.world.count_pipeline();
        let parcel =
            Parcel::Renew { id: first.id.clone(), lease: first.lease, caches: None, rest_until: first.rest_until };
        let fates = self.world.fates(self.place, &parcel);
        Box::pin(join_all(batch.iter().map(move |renewal| self.renew_one(renewal, fates))))
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn route(&self, key: &Key) -> Route {
        // Two nodes.
        Route(["even", "odd"][usize::from(lock_of(key) % 2)].into())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move {
            let _room = self.room().await;
            Ok(only!(self.carry(&owned(key), Parcel::Inspect).await?, View))
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(self.force_at(key, Parcel::Force { seen: seen.clone() }))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.reconnect())
    }

    fn contact(&self, _: &Key) -> ServerContact {
        self.master.as_ref().map_or_else(ServerContact::default, |master| master.lock().contact)
    }

    fn check_rights<'a>(&'a self, _: &'a Key, _: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        let subscribes = self.master.is_none() && !self.is_mutant(Mutant::NeverSubscribes);
        subscribes.then_some(self as &dyn NotifyingScheme)
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        self.master.is_none().then_some(self as &dyn RecallingScheme)
    }

    fn names<'a>(&'a self, _: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        unreachable!("nobody in the simulation lists locks")
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        unreachable!("nobody in the simulation asks for it")
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn clock(&self) -> Clock {
        self.world.clock
    }
}

impl NotifyingScheme for Link {
    fn subscribe(&self, key: &Key, _: &str) -> Subscription {
        self.listening(key, self.world.subscribe(self.address.process, key))
    }

    fn subscribe_if_live(&self, key: &Key, _: &str) -> Option<Subscription> {
        let subscribed = self.world.subscribed(self.address.process, key)?;
        Some(self.listening(key, subscribed))
    }
}

impl RecallingScheme for Link {
    fn listen(&self, key: &Key, recalls: &Arc<Recalls>) -> bool {
        self.world.listen_for_recalls(self.address.process, key, recalls);
        true
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        self.world.reply_in_use(lock_of(key), id);
        let node = self.world.answering(self.address.process);
        Box::pin(std::future::ready(Ok(Answered { node, ..self.made_up(()) })))
    }
}
