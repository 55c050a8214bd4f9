//! Locks with planted faults, which show that a checker reports each fault. The code of the faults is in the fault
//! layer, and the crate has none of it.

use super::world::operate;
use super::*;
use crate::base::lease::MAX_TOKENS;
use crate::store::memory::GrantNotification;

macro_rules! mutants {
    ($($(#[$fault:meta])* $mutant:ident,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $($(#[$fault])* $mutant,)*
        }

        pub const ALL: &[Mutant] = &[$(Mutant::$mutant),*];
    };
}

mutants! {
    /// The server lets a writer in while there are readers.
    WriterBesideReaders,
    /// A release ends any hold of the lock.
    ReleaseOfAnybody,
    /// Validity is counted from the reply.
    DeadlineFromReply,
    /// A renewal brings a hold back.
    RenewalRecreates,
    /// A renewal with a shorter lease shortens the hold.
    RenewalShortens,
    /// Tokens are consecutive numbers, which begin with one again after a loss.
    PlainTokens,
    /// Each reader of a phase has a token of its own.
    TokenForEachReader,
    /// A reply after the response timeout is taken for the answer to the next copy.
    LateGrantBelieved,
    /// A repeated acquisition counts as a second acquisition.
    RetryCountsTwice,
    /// Copies are carried out after their limit.
    LimitIgnored,
    /// A hold is renewed though its guard is gone.
    RenewalOutlivesGuard,
    /// The server answers with a grant that it has not recorded.
    GrantNotRecorded,
    /// A silent server counts as one that says "others hold it".
    SilenceIsDenial,
    /// A waiter asks again after ten seconds.
    SlowHeartbeat,
    /// A single failed renewal is reported as a loss.
    LostAtOnce,
    /// A renewal that failed is repeated a second later.
    SlowRenewal,
    /// Waiting ends long before `unreachable_after`.
    GivesUpSoon,
    /// Waiting ends long after `unreachable_after`.
    GivesUpLate,
    /// No response timeout limits the wait for an answer.
    WaitsForEver,
    /// Records are never removed.
    NeverForgets,
    /// A late copy of a force ends holds that came after it.
    ForceEndsNewer,
    /// A later waiter is served first.
    OutOfOrder,
    /// Readers of a process do not see its waiting writer.
    UnseenWriter,
    /// A reader joins other readers although a writer waits.
    ReaderPassesWriter,
    /// The writer that came last is served first.
    NewestFirst,
    /// A cancelled waiter stays in the queue.
    CancelledStays,
    /// A waiter is granted a full lease before it claims the hold.
    FullLeaseUnclaimed,
    /// A notification names another waiter.
    NotificationToAnother,
    /// An old notification counts as the notification of a new grant.
    StaleNotification,
    /// A downgrade lets the next writer in.
    DowngradeLetsWriterIn,
    /// An upgrade is granted while there are other readers.
    UpgradeBesideReaders,
    /// A release is not repeated after the last copy of its acquisition may have arrived.
    LeavesOnce,
    /// Readers join long after the server was asked.
    SharesForEver,
    /// A hold is handed off more often than allowed.
    OverBudget,
    /// Holds are renewed for less than their guards want.
    RenewsShort,
    /// The server never says that a writer waits.
    NoWriterWaits,
    /// A release returns `Ok` though the server knew of no hold.
    ReleaseIsAlwaysFine,
    /// A renewal that is answered `lost` counts as one without an answer.
    LossIsSilence,
    /// The end of a hold by force is not reported.
    ForceNotTold,
    /// A repeated acquisition leaves the deadline where it is.
    RepeatExtendsNothing,
    /// A renewal is answered as done, and leaves the deadline where it is.
    RenewalExtendsNothing,
    /// Notifications arrive, and no waiter learns of them.
    IgnoresNotifications,
    /// No process receives notifications.
    NeverSubscribes,
    /// An inspection shows no waiters.
    LooksAtHalf,
    /// A waiter asks again without a pause.
    NoPause,
    /// The server does not remember the holds that were ended by force.
    ForgetsForce,
    /// Each grant reserves tokens of the future.
    TokensAhead,
    /// The server keeps the hold of a dead process for longer than its lease.
    KeepsTheDead,
    /// A conversion that is refused is taken for one whose hold is gone.
    RefusalIsLoss,
    /// A hold is not renewed after a conversion was requested.
    ConvertedUnrenewed,
    /// An answer "late" is taken for a denial.
    LateIsDenial,
    /// An answer "late" to a conversion is taken for a refusal.
    LateConversionIsRefused,
    /// A conversion without an answer is taken for an answer that its hold is gone.
    SilentConversionIsLoss,
    /// The hold that a conversion may have created is released though its guard counts on it.
    LeavesInDoubt,
    /// Copies of a conversion are assumed never to arrive late.
    NoLateConversions,
    /// Holds are renewed on the runtime that used the manager first, while that runtime is driven.
    RenewsWithTheFirst,
    /// Releases go out on the runtime that used the manager first, while that runtime is driven.
    ReleasesWithTheFirst,
    /// An inline release has no background task that repeats it.
    NobodyLooksAfter,
    /// Acquisitions go out on the runtime that used the manager first, while that runtime is driven.
    AsksWithTheFirst,
    /// All requests of a process are in flight at once.
    RoomForAll,
    /// Renewals wait behind new acquisitions.
    RenewsInTurn,
    // Level where a replica has to acknowledge grants:
    /// The server waits for replicas before the grant, and not after it.
    WaitsBeforeTheGrant,
    /// A grant that comes by a notification counts at once.
    ClaimsUnacknowledged,
    /// A renewal counts though no replica has it.
    RenewalsUnacknowledged,
    // Cached holds:
    /// A renewal brings tokens that the server has not given.
    TokensOfNobody,
    /// The server forgets the tokens that a renewal has brought.
    ForgetsTokens,
    /// A recall takes effect only after a while.
    JoinsAfterRecall,
    /// Neither recalls nor renewals report waiters to a process.
    IgnoresRecalls,
    /// A subscription counts before it is confirmed, and after it breaks.
    CachesUnconfirmed,
    /// A broken subscription counts as confirmed again at once.
    LiveAgainAtOnce,
    /// A broken subscription is not reported.
    IgnoresBreak,
    /// A silent connection counts as live for ever.
    NoAge,
    /// Answers count even if another node sent them.
    OtherNode,
    /// A recall ends the hold though a guard is inside.
    LeavesUnderGuard,
    /// A cached hold counts as renewed without a request.
    CachedUnrenewed,
    /// The server does not set the recallable flag.
    NoRecallableFlag,
    /// Only one recall is sent for each phase.
    RecallsOnce,
    /// Every waiter recalls every time.
    RecallPerWaiter,
    /// A renewal never reports waiters.
    RenewalMute,
    /// A force sends no recall.
    ForceWithoutRecall,
    /// A force does not end a writer that has got new tokens since the inspection.
    ForceMissesTokens,
    /// A try stays in the queue.
    TryStaysQueued,
    // A quorum of several masters:
    /// A master that has restarted without its data votes at once.
    ForgetfulVotes,
    /// Only masters whose grant was answered get the release.
    ReleasesWhereGranted,
    /// A renewal counts when one master has answered it.
    MinorityRenews,
    /// A refused conversion is not undone at the masters that have converted the hold.
    NotUndone,
    /// A master with a lower token counts as one that has raised it, and never gets the request.
    TokenNotRaised,
    /// A master accepts a hold that an operator has ended there by force before.
    ForceForgotten,
    /// A force ends the holds up to the token that was seen, and not those that a renewal has brought since.
    ForceNamesTokens,
}

/// Mutants of the level where a replica has to acknowledge grants.
pub const REPLICATED: [Mutant; 3] =
    [Mutant::WaitsBeforeTheGrant, Mutant::ClaimsUnacknowledged, Mutant::RenewalsUnacknowledged];

/// Memory of the mutants.
#[derive(Default)]
pub struct Wrong {
    /// Last token of each lock, and the right token behind each wrong one.
    tokens: HashMap<String, (u64, HashMap<u64, u64>)>,
    asked: HashMap<AcquisitionId, AcquireRequest>,
    /// Last token for which a recall was sent.
    recalled: HashSet<u64>,
    /// Grants and conversions that single masters have answered, and the last answered renewal of each hold.
    pub granted: HashSet<(Place, AcquisitionId)>,
    pub converted: HashSet<(Place, AcquisitionId)>,
    pub renewed: HashMap<AcquisitionId, Moment>,
}

impl Wrong {
    /// Forgets the tokens when the server loses its data.
    pub fn forget(&mut self) {
        self.tokens.clear();
    }

    /// Answers a request as the wrong server does, and returns its notifications of grants.
    pub fn operate(
        &mut self,
        mutant: Mutant,
        key: &Key,
        record: &mut Record,
        now: ServerTime,
        parcel: &Parcel,
    ) -> (Answer, Vec<GrantNotification>) {
        if let Parcel::Acquire { request, .. } | Parcel::Conversion { request, .. } = parcel {
            self.asked.insert(request.id.clone(), request.clone());
        }
        let answer = self.answer(mutant, record, now, parcel);
        let mut notifications = record.take_notifications();
        match mutant {
            Mutant::PlainTokens | Mutant::TokenForEachReader | Mutant::TokensAhead => {
                let answer = with_grant(answer, |granted| self.wrong_token(mutant, key, granted));
                for notification in &mut notifications {
                    notification.granted = self.wrong_token(mutant, key, notification.granted);
                }
                return (answer, notifications);
            }
            Mutant::NoWriterWaits => {
                for notification in &mut notifications {
                    notification.granted.is_waited_for = false;
                }
                return (with_grant(answer, |granted| Granted { is_waited_for: false, ..granted }), notifications);
            }
            Mutant::LooksAtHalf => {
                if let Answer::View(view) = answer {
                    return (Answer::View(crate::store::View { waiters: Vec::new(), ..view }), notifications);
                }
            }
            Mutant::FullLeaseUnclaimed => {
                for notification in &mut notifications {
                    let lease = self.asked[&notification.id].lease;
                    record.set_lease(now, &notification.id, lease);
                    notification.granted.remaining = lease;
                }
            }
            Mutant::NotificationToAnother => {
                let waiting = record.live_waiters(now.as_micros() / 1000);
                if let (Some(notification), Some((id, _, _))) = (notifications.first_mut(), waiting.first()) {
                    notification.id = parse(id);
                }
            }
            _ => {}
        }
        (answer, notifications)
    }

    /// Returns the recall of the wrong server.
    pub fn recall(
        &mut self,
        mutant: Mutant,
        parcel: &Parcel,
        (answer, token): (&Answer, u64),
        recall: Option<PendingRecall>,
    ) -> Option<PendingRecall> {
        let is_first = recall.is_none() || self.recalled.insert(token);
        let waits = matches!(answer, Answer::Acquired(Acquired::Queued { .. }));
        match mutant {
            Mutant::ForceWithoutRecall if matches!(parcel, Parcel::Force { .. }) => None,
            Mutant::RecallsOnce if !is_first => None,
            Mutant::RecallPerWaiter if recall.is_none() && waits && self.recalled.contains(&token) => {
                Some(PendingRecall { token: FencingToken::from_wire(token)?, id: None })
            }
            _ => recall,
        }
    }

    #[allow(clippy::too_many_lines)] // one arm for each mutant
    fn answer(&mut self, mutant: Mutant, record: &mut Record, now: ServerTime, parcel: &Parcel) -> Answer {
        let now_ms = now.as_micros() / 1000;
        let holds = |record: &Record, id: &AcquisitionId| {
            record.live_holds(now_ms).iter().any(|(held, _, _)| held == id.as_str())
        };
        let waits = |record: &Record, id: &AcquisitionId| {
            record.live_waiters(now_ms).iter().any(|(waiting, _, _)| waiting == id.as_str())
        };
        match (mutant, parcel) {
            (Mutant::WriterBesideReaders, Parcel::Acquire { request, not_after_ms, .. })
                if request.mode == Mode::Write && record.is_read() && now_ms <= *not_after_ms =>
            {
                record.let_in(now, request);
                operate(record, now, parcel)
            }
            (Mutant::ReaderPassesWriter, Parcel::Acquire { request, not_after_ms, .. })
                if request.mode == Mode::Read
                    && record.is_read()
                    && record.a_writer_waits()
                    && !holds(record, &request.id)
                    && now_ms <= *not_after_ms =>
            {
                record.let_in(now, request);
                operate(record, now, parcel)
            }
            (Mutant::ReleaseOfAnybody, Parcel::Leave { id, .. }) => {
                for (other, _, _) in record.live_holds(now_ms) {
                    record.release(now, &parse(&other));
                }
                record.release(now, id);
                Answer::ReleaseReply(ReleaseReply::Held)
            }
            (Mutant::CancelledStays, Parcel::Leave { id, .. }) if waits(record, id) => {
                Answer::ReleaseReply(ReleaseReply::Queued)
            }
            (Mutant::NewestFirst, Parcel::Acquire { .. }) => {
                let before = record.live_waiters(now_ms).len();
                let answer = operate(record, now, parcel);
                if record.live_waiters(now_ms).len() > before {
                    record.newest_writer_first();
                }
                answer
            }
            (Mutant::DowngradeLetsWriterIn, Parcel::Conversion { request, .. }) if request.mode == Mode::Read => {
                let answer = operate(record, now, parcel);
                if matches!(answer, Answer::Converted(Converted::Granted(_))) {
                    record.let_writer_in(now);
                }
                answer
            }
            (Mutant::UpgradeBesideReaders, Parcel::Conversion { old, request, not_after_ms })
                if request.mode == Mode::Write && holds(record, old) && now_ms <= *not_after_ms =>
            {
                self.upgrade_beside(record, now, (old, parcel))
            }
            (Mutant::RenewalRecreates, Parcel::Renew { id, lease, .. }) => match record.renew(now, id, *lease) {
                Renewed::Lost { .. } if self.asked.contains_key(id) => {
                    record.let_in(now, &AcquireRequest { lease: *lease, ..self.asked[id].clone() });
                    Answer::Renewed(record.renew(now, id, *lease))
                }
                renewed => Answer::Renewed(renewed),
            },
            (Mutant::RenewalShortens, Parcel::Renew { id, lease, .. }) if holds(record, id) => {
                // Half of the requested lease, from now on.
                record.set_lease(now, id, *lease / 2);
                Answer::Renewed(Renewed::of(*lease / 2))
            }
            (Mutant::RepeatExtendsNothing, Parcel::Acquire { request, .. }) if holds(record, &request.id) => {
                unextended(record, now, &request.id, |record| operate(record, now, parcel))
            }
            (Mutant::RenewalExtendsNothing, Parcel::Renew { id, lease, .. }) if holds(record, id) => {
                unextended(record, now, id, |_| Answer::Renewed(Renewed::of(*lease)))
            }
            (Mutant::KeepsTheDead, Parcel::Acquire { request, .. }) if record.live_holds(now_ms).is_empty() => {
                if let Some(dead) = record.last_dead(now_ms).filter(|dead| *dead != request.id.as_str()) {
                    record.set_lease(now, &parse(&dead), request.lease);
                }
                operate(record, now, parcel)
            }
            (Mutant::ForgetsForce, Parcel::Force { .. }) => {
                let answer = operate(record, now, parcel);
                record.forget_force();
                answer
            }
            (Mutant::RetryCountsTwice, Parcel::Acquire { request, .. }) => {
                let repeated = holds(record, &request.id);
                let answer = operate(record, now, parcel);
                if repeated && request.mode == Mode::Read && record.is_read() {
                    record.let_in(now, &AcquireRequest { id: twin(&request.id), ..request.clone() });
                }
                answer
            }
            (Mutant::ForceEndsNewer, Parcel::Force { .. }) => {
                Answer::Forced(record.force(now, FencingToken::from_wire(1 << 53)))
            }
            (Mutant::ForceMissesTokens, Parcel::Force { seen }) => Answer::Forced(record.force(now, seen.token)),
            (Mutant::NoRecallableFlag, Parcel::Acquire { request, not_after_ms, .. }) => {
                let request = AcquireRequest { caches: false, ..request.clone() };
                Answer::Acquired(record.acquire(now, *not_after_ms, &request))
            }
            (Mutant::NoRecallableFlag, Parcel::Renew { id, lease, .. }) => {
                Answer::Renewed(record.renew(now, id, *lease))
            }
            (Mutant::RenewalMute, Parcel::Renew { .. }) => match operate(record, now, parcel) {
                Answer::Renewed(Renewed::Renewed { remaining, tokens, .. }) => {
                    Answer::Renewed(Renewed::Renewed { remaining, is_waited_for: false, tokens })
                }
                other => other,
            },
            (Mutant::ForgetsTokens, Parcel::Renew { id, lease, .. }) => {
                let before = record.clone();
                let answer = operate(record, now, parcel);
                *record = before;
                record.renew(now, id, *lease);
                answer
            }
            (Mutant::TryStaysQueued, Parcel::Leave { id, .. })
                if waits(record, id)
                    && self.asked.get(id).is_some_and(|asked| matches!(asked.if_taken, IfTaken::Try { .. })) =>
            {
                Answer::ReleaseReply(ReleaseReply::Queued)
            }
            (Mutant::NeverForgets, Parcel::Acquire { .. }) => {
                let answer = operate(record, now, parcel);
                record.keep_for_ever();
                answer
            }
            (Mutant::LimitIgnored, Parcel::Acquire { request, .. }) => {
                Answer::Acquired(record.acquire(now, u64::MAX, request))
            }
            (Mutant::LimitIgnored, Parcel::Conversion { old, request, .. }) => {
                Answer::Converted(record.convert(now, u64::MAX, old, request))
            }
            (Mutant::GrantNotRecorded, Parcel::Acquire { request, .. }) => {
                let before_it = record.clone();
                let answer = operate(record, now, parcel);
                if request.mode == Mode::Read && matches!(answer, Answer::Acquired(Acquired::Granted { .. })) {
                    *record = before_it;
                }
                answer
            }
            _ => operate(record, now, parcel),
        }
    }

    fn upgrade_beside(&self, record: &mut Record, now: ServerTime, (old, parcel): (&AcquisitionId, &Parcel)) -> Answer {
        let now_ms = now.as_micros() / 1000;
        let others: Vec<_> = record.live_holds(now_ms).into_iter().filter(|(id, _, _)| id != old.as_str()).collect();
        for (id, _, _) in &others {
            record.release(now, &parse(id));
        }
        let answer = operate(record, now, parcel);
        for (id, mode, _) in others {
            if let Some(other) = self.asked.get(&parse(&id)).filter(|_| mode == Mode::Read) {
                record.let_in(now, other);
            }
        }
        answer
    }

    fn wrong_token(&mut self, mutant: Mutant, key: &Key, granted: Granted) -> Granted {
        let (last, phases) = self.tokens.entry(key.name().to_owned()).or_default();
        let right = granted.token.as_u64();
        let wrong = if mutant == Mutant::TokenForEachReader {
            *last += 1;
            right + *last
        } else if mutant == Mutant::TokensAhead {
            *phases.entry(right).or_insert_with(|| {
                let first = (*last + 1).max(right);
                *last = first + MAX_TOKENS - 1;
                first
            })
        } else {
            *phases.entry(right).or_insert_with(|| {
                let first = *last + 1;
                *last += granted.tokens;
                first
            })
        };
        Granted { token: FencingToken::from_wire(wrong).expect("small"), ..granted }
    }
}

/// Changes the grant in an answer, if there is one.
fn with_grant(answer: Answer, change: impl FnOnce(Granted) -> Granted) -> Answer {
    match answer {
        Answer::Acquired(Acquired::Granted(granted)) => Answer::Acquired(Acquired::Granted(change(granted))),
        Answer::Converted(Converted::Granted(granted)) => Answer::Converted(Converted::Granted(change(granted))),
        other => other,
    }
}

/// Carries an operation out without moving a deadline, and returns its answer.
fn unextended(
    record: &mut Record,
    now: ServerTime,
    id: &AcquisitionId,
    operate: impl FnOnce(&mut Record) -> Answer,
) -> Answer {
    let now_ms = now.as_micros() / 1000;
    let deadline = |record: &Record| {
        record.live_holds(now_ms).into_iter().find(|(held, _, _)| held == id.as_str()).map_or(0, |held| held.2)
    };
    let before = deadline(record);
    let answer = operate(record);
    record.set_lease(now, id, std::time::Duration::from_millis(before - now_ms));
    answer
}

pub fn parse(id: &str) -> AcquisitionId {
    other_id(id, 0)
}

/// Returns an id of the same holder that counts as another one.
fn twin(id: &AcquisitionId) -> AcquisitionId {
    other_id(id.as_str(), 1_000_000)
}

fn other_id(id: &str, later: u64) -> AcquisitionId {
    let mut parts = id.splitn(3, '.');
    let mut next = || parts.next().expect("an id");
    let (manager, n, label) = (next(), next(), next());
    AcquisitionId::new(manager, n.parse::<u64>().expect("a number") + later, label)
}
