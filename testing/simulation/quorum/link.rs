//! One master as one process sees it. It treats silence, closed connections and limits as the transport to real servers does.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use super::super::history::Process;
use super::Wrong;
use super::masters::{Delivery, Field, Master, Place};
use crate::base::attempt::NodeId;
use crate::base::clock::Clock;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{self, ClockSample, FencingToken, Moment, ServerTime};
use crate::store::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Floor, Forced,
    Granted, MasterScheme, Mode, NotifyingScheme, RecallingScheme, ReleaseReply, ReleaseRequest, RenewalRequest,
    Renewed, Route, Scheme, ServerContact, View,
};

/// As the transport has it.
const MAX_ANCHOR_AGE: Duration = Duration::from_secs(5);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// When holds of a process were last renewed by any master, for a mutant.
pub(super) type LastRenewed = Arc<Mutex<BTreeMap<String, Moment>>>;

pub(super) struct Link {
    field: Arc<Field>,
    process: Process,
    master: Place,
    max_clock_skew: Duration,
    known: Mutex<Known>,
    last_renewed: LastRenewed,
}

/// What is known of the master.
#[derive(Default)]
struct Known {
    /// To which incarnation there is a connection.
    connection: Option<u32>,
    anchor: Option<ClockSample>,
    up_since: Option<Moment>,
    served: Option<Moment>,
    is_silent: bool,
    /// Whose grant was answered, and whose conversion.
    granted: HashSet<AcquisitionId>,
    converted: HashSet<AcquisitionId>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.process).field(&self.master).finish()
    }
}

impl Link {
    pub(super) fn new(
        field: &Arc<Field>,
        process: Process,
        master: Place,
        max_clock_skew: Duration,
        last_renewed: &LastRenewed,
    ) -> Self {
        let (field, last_renewed) = (Arc::clone(field), Arc::clone(last_renewed));
        Self { field, process, master, max_clock_skew, known: Mutex::default(), last_renewed }
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.field.wrong == Some(wrong)
    }

    fn fails(&self) -> Failure {
        let mut known = self.known.lock();
        (known.is_silent, known.connection) = (true, None);
        Failure::NotDone { source: None }
    }

    /// The incarnation that there is a connection to, and what is known of its clock. A master says how long it has been up
    /// before it is asked anything else.
    async fn connected(&self) -> Result<(u32, ClockSample), Failure> {
        let now = self.field.clock.now();
        {
            let known = self.known.lock();
            if let (Some(connection), Some(anchor)) = (known.connection, known.anchor)
                && anchor.age_at(now) <= MAX_ANCHOR_AGE
            {
                return Ok((connection, anchor));
            }
        }
        let greeted = self.field.greet(self.process, self.master);
        let delivery = self.in_time(now, greeted).await;
        let Some(Delivery::Answered(greeting, server)) = delivery else {
            return Err(self.fails());
        };
        let mut known = self.known.lock();
        let up_since = Moment::from_nanos(now.as_nanos().saturating_sub(greeting.uptime.as_nanos() as u64));
        known.up_since = known.up_since.max(Some(up_since));
        let anchor = ClockSample { sent: now, server };
        (known.connection, known.anchor, known.is_silent) = (Some(greeting.incarnation), Some(anchor), false);
        Ok((greeting.incarnation, anchor))
    }

    async fn in_time<T>(
        &self,
        sent: Moment,
        answered: tokio::sync::oneshot::Receiver<Delivery<T>>,
    ) -> Option<Delivery<T>> {
        let patience = if self.is(Wrong::LateCounts) { RESPONSE_TIMEOUT * 2 } else { RESPONSE_TIMEOUT };
        tokio::select! {
            biased;
            Ok(delivery) = answered => Some(delivery),
            () = self.field.clock.sleep_until(sent.after(patience)) => None,
        }
    }

    /// Sends one request and waits for its answer.
    async fn carry<T: fmt::Debug + Send + 'static>(
        &self,
        what: &str,
        act: impl Fn(&mut Master, ServerTime, u64) -> T + Send + Sync + 'static,
    ) -> Attempt<T> {
        let (connection, anchor) = self.connected().await?;
        let sent = self.field.clock.now();
        let not_after_ms = anchor.server_time_at(sent).after(RESPONSE_TIMEOUT).as_millis_up();
        let act = move |master: &mut Master, now: ServerTime| act(master, now, not_after_ms);
        let answered = self.field.post(self.process, self.master, Some(connection), act);
        let Some(Delivery::Answered(value, server)) = self.in_time(sent, answered).await else {
            drop(self.fails());
            self.field.tells(|| format!("{self:?} {what}: no answer"));
            let arrives_until = sent.after(lease::max_delay(RESPONSE_TIMEOUT, self.max_clock_skew));
            return Err(Failure::Unknown { arrives_until, source: None });
        };
        self.field.tells(|| format!("{self:?} {what}: {value:?}"));
        let now = self.field.clock.now();
        let mut known = self.known.lock();
        (known.anchor, known.served) = (Some(ClockSample { sent, server }), Some(now));
        Ok(Answered { sent, server, node: NodeId::default(), value })
    }

    fn lie<T>(&self, value: T) -> Attempt<T> {
        Ok(Answered { sent: self.field.clock.now(), server: ServerTime::default(), node: NodeId::default(), value })
    }

    async fn acquire_at(&self, key: &Key, request: &AcquireRequest, floor: Floor) -> Attempt<Acquired> {
        if let (Floor::Any(token), true) = (floor, self.is(Wrong::TokenNotRaised)) {
            return self.lie(Acquired::Granted(granted(token, request.lease)));
        }
        let (key, asked) = (key.clone(), request.clone());
        let what = format!("acquires {:?}", request.id);
        let act =
            move |master: &mut Master, now, not_after_ms| master.acquire((now, not_after_ms), &key, &asked, floor);
        let answer = self.carry(&what, act).await?;
        if let Acquired::Granted(_) = answer.value {
            self.known.lock().granted.insert(request.id.clone());
        }
        let sent = if self.is(Wrong::LateCounts) { self.field.clock.now() } else { answer.sent };
        Ok(Answered { sent, ..answer })
    }

    async fn leave_at(&self, key: &Key, id: &AcquisitionId) -> Attempt<ReleaseReply> {
        if self.is(Wrong::ReleasesWhereGranted) && !self.known.lock().granted.contains(id) {
            return self.lie(ReleaseReply::None(Absence::default()));
        }
        let (what, key, id) = (format!("leaves {id:?}"), key.clone(), id.clone());
        self.carry(&what, move |master, now, _| master.lock(&key).release(now, &id)).await
    }

    /// In one pipeline.
    async fn leave_together(&self, batch: &[ReleaseRequest]) -> Vec<Attempt<ReleaseReply>> {
        if self.is(Wrong::ReleasesWhereGranted) {
            return join_all(batch.iter().map(|leave| self.leave_at(&leave.key, &leave.id))).await;
        }
        let leaves = batch.to_vec();
        let what = format!("leaves {} together", batch.len());
        let act = move |master: &mut Master, now, _| -> Vec<_> {
            leaves.iter().map(|leave| master.lock(&leave.key).release(now, &leave.id)).collect()
        };
        match self.carry(&what, act).await {
            Ok(Answered { sent, server, node, value }) => {
                value.into_iter().map(|value| Ok(Answered { sent, server, node, value })).collect()
            }
            Err(failure) => batch.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn convert_at(&self, key: &Key, old: &AcquisitionId, request: &AcquireRequest) -> Attempt<Converted> {
        let is_undone = request.mode == Mode::Read && self.known.lock().converted.contains(&request.id);
        if is_undone && self.is(Wrong::NotUndone) {
            return self.lie(Converted::Granted(granted(FencingToken::ZERO, request.lease)));
        }
        let (key, from, asked) = (key.clone(), old.clone(), request.clone());
        let what = format!("converts {old:?} to {:?}", request.id);
        let act =
            move |master: &mut Master, now, not_after_ms| master.lock(&key).convert(now, not_after_ms, &from, &asked);
        let answer = self.carry(&what, act).await?;
        if let Converted::Granted(_) = answer.value {
            let mut known = self.known.lock();
            known.converted.insert(old.clone());
            known.granted.insert(request.id.clone());
        }
        Ok(answer)
    }

    async fn renew_at(&self, RenewalRequest { key, id, lease, .. }: &RenewalRequest) -> Attempt<Renewed> {
        let (key, asked, lease) = (Arc::clone(key), id.clone(), *lease);
        let sent = self.field.clock.now();
        let what = format!("renews {id:?}");
        let answer = self.carry(&what, move |master, now, _| master.lock(&key).renew(now, &asked, lease)).await;
        let is_renewed = matches!(&answer, Ok(Answered { value: Renewed::Renewed { .. }, .. }));
        if self.is(Wrong::ForceNotHeard)
            && let Ok(Answered { value: Renewed::Lost { .. }, .. }) = answer
        {
            return answer.map(|answer| Answered { value: Renewed::Lost { forced: None }, ..answer });
        }
        let mut last = self.last_renewed.lock();
        if is_renewed {
            last.insert(id.as_str().to_owned(), sent);
        } else if self.is(Wrong::MinorityRenews)
            && let Some(renewed) = last.get(id.as_str())
            && sent.since(*renewed) < RESPONSE_TIMEOUT
        {
            return self.lie(Renewed::of(lease));
        }
        answer
    }
}

fn granted(token: FencingToken, remaining: Duration) -> Granted {
    Granted { token, tokens: 1, remaining, is_waited_for: false }
}

impl Scheme for Link {
    fn acquire<'a>(&'a self, _: &'a Key, _: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        unreachable!("a quorum asks for a token")
    }

    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(self.leave_at(key, id))
    }

    fn release_all<'a>(
        &'a self,
        _: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(self.leave_together(batch))
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(self.convert_at(key, old, request))
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(join_all(batch.iter().map(|renewal| self.renew_at(renewal))))
    }

    fn route(&self, _: &Key) -> Route {
        Route("master".into())
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        let key = key.clone();
        Box::pin(self.carry("looks", move |master, now, _| master.lock(&key).inspect(now)))
    }

    fn force<'a>(&'a self, _: &'a Key, _: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        unreachable!("a quorum names all that was shown")
    }

    fn contact(&self, _: &Key) -> ServerContact {
        let known = self.known.lock();
        ServerContact { served: known.served, is_silent: known.is_silent }
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            if !self.known.lock().is_silent {
                return Ok(());
            }
            self.known.lock().connection = None;
            self.connected().await.map(drop)
        })
    }

    fn check_rights<'a>(&'a self, _: &'a Key, _: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        None
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        None
    }

    fn names<'a>(&'a self, _: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        unreachable!("nobody here lists locks")
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        unreachable!("nobody here asks for it")
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn clock(&self) -> Clock {
        self.field.clock
    }
}

impl MasterScheme for Link {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(self.acquire_at(key, request, floor))
    }

    fn force_shown<'a>(
        &'a self,
        key: &'a Key,
        token: Option<FencingToken>,
        seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        let (key, mut seen) = (key.clone(), seen.clone());
        match self.field.wrong {
            Some(Wrong::ForceNamesTokens) => seen.holders.clear(),
            Some(Wrong::ForceForgotten) => seen.token = None,
            _ => {}
        }
        let act = move |master: &mut Master, now, _| master.force(now, &key, token, &seen);
        Box::pin(self.carry("forces", act))
    }

    fn clock_sample(&self) -> Option<ClockSample> {
        self.known.lock().anchor
    }

    fn up_since(&self) -> Option<Moment> {
        self.known.lock().up_since
    }
}
