//! Pairs of a lock on a server and the same lock in memory.

use cluster_testenv::{NodeClock, Reply};
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;

use super::answer::{Answer, LiveHolders};
use super::operation::{MODES, Renews, Waiting, Wish, acquisition};
use super::*;
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::memory::{GrantNotification, PendingRecall};
use crate::store::{Answered, Attempt, Note, ReleaseRequest, RenewalRequest, Scheme};

/// Limit that is longer than any history.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// Lock on a server, and the same lock in memory.
pub(super) struct Pair<'a> {
    real: &'a LuaScheme,
    face: Face,
    /// True if one operation may touch few records.
    limited: bool,
    pub(super) key: Arc<Key>,
    record: Record,
    /// Server's time in the last reply.
    last: ServerTime,
    /// Result of the last inspection.
    seen: View,
    pub(super) seen_kinds: BTreeSet<&'static str>,
    /// Messages that the server should have published.
    notifications: Vec<String>,
    /// Operations and answers so far.
    history: String,
    /// Connection for reading state that no answer contains, if a comparison needs such state.
    raw: Option<Client>,
    clock: Option<&'a NodeClock>,
    /// Holds of timestamp clients: side and stamp.
    theirs: Vec<(Mode, u64)>,
    /// Time at which the server removes the lock, as the server reports.
    expires_ms: Option<u64>,
    /// Highest token that was granted, and the highest one before the last loss. A step back of the clock resets both.
    highest: u64,
    highest_lost: u64,
}

impl<'a> Pair<'a> {
    pub(super) fn new(setting: &Setting<'a>, real: &'a LuaScheme, name: &str) -> Self {
        let raw = setting.timestamp_clients.or(setting.steps).map(|node| node.client().expect("the server answers"));
        Self {
            real,
            face: setting.face,
            limited: setting.limited,
            key: Arc::new(Key::new("oracle", name).expect("a valid name")),
            record: setting.record(),
            last: ServerTime::default(),
            seen: View::default(),
            seen_kinds: BTreeSet::new(),
            notifications: Vec::new(),
            history: String::new(),
            raw,
            clock: setting.steps.map(Node::clock),
            theirs: Vec::new(),
            expires_ms: None,
            highest: 0,
            highest_lost: 0,
        }
    }

    pub(super) fn apply_all(&mut self, runtime: &Runtime, operations: Vec<Operation>) -> TestCaseResult {
        runtime.block_on(async {
            // The first inspection reports the server's time, and the last one the state after all operations.
            self.apply(Operation::Inspect).await?;
            for operation in operations {
                self.apply(operation).await?;
                self.look_behind()?;
            }
            self.apply(Operation::Inspect).await
        })
    }

    async fn apply(&mut self, operation: Operation) -> TestCaseResult {
        if self.reuses_an_id(&operation) {
            return Ok(());
        }
        self.history.push_str(&format!("\n{operation:?}"));
        match operation {
            Operation::Acquire { who, wish, limit_ms } => self.acquire(who, wish, limit_ms).await,
            Operation::UpgradeBeside { old, beside, new, wish } => self.upgrade_beside(old, beside, new, wish).await,
            Operation::Leave { who, rest_ms } => self.leave(who, rest_ms).await,
            Operation::Conversion { old, new, wish, limit_ms } => self.convert(old, new, wish, limit_ms).await,
            Operation::Renew(holds) => self.renew(&holds).await,
            Operation::Note { who, number } => self.note(who, number).await,
            Operation::Inspect => self.look().await,
            Operation::Force => {
                self.look().await?;
                self.force().await
            }
            Operation::ForceLate => self.force().await,
            Operation::ForceRenewed(renews) => {
                self.look().await?;
                self.renew(&[renews]).await?;
                self.force().await
            }
            Operation::Pause { ms } => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(())
            }
            Operation::TheirLock { mode, skew_ms } => self.their_lock(mode, skew_ms),
            Operation::TheirUnlock { nth } => self.their_unlock(nth),
            Operation::Step { ms } => {
                self.step_clock(ms);
                Ok(())
            }
            Operation::Lose => {
                self.lose_keys();
                Ok(())
            }
        }
    }

    fn step_clock(&mut self, ms: i64) {
        let clock = self.clock.expect("a clock that can be set");
        let by = Duration::from_millis(ms.unsigned_abs());
        if ms > 0 {
            clock.step_forward(by);
        } else {
            self.sweep_two_keys();
            clock.step_back(by);
            (self.highest, self.highest_lost) = (0, 0);
        }
    }

    fn lose_keys(&mut self) {
        let keys = self.keys();
        let command: Vec<_> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        self.ask_raw(&command);
        self.forget("key lost");
        self.expires_ms = None;
    }

    async fn leave(&mut self, who: usize, rest_ms: Option<u64>) -> TestCaseResult {
        let (key, rest_until) = (Arc::clone(&self.key), self.rest_until(rest_ms));
        let request = ReleaseRequest { key, id: acquisition(who), rest_until };
        let real = self.real.release(&request).await;
        let ReleaseRequest { id, .. } = &request;
        self.compare(Some(who), real, Answer::ReleaseReply, |record, now| record.release_until(now, id, rest_until))
    }

    async fn upgrade_beside(&mut self, old: usize, beside: usize, new: usize, wish: Wish) -> TestCaseResult {
        let acquired = Wish { lease_ms: 10_000, max_tokens: 1, waiting: Waiting::None, caches: false };
        for who in [old, beside] {
            Box::pin(self.apply(Operation::Acquire { who, wish: acquired, limit_ms: None })).await?;
        }
        Box::pin(self.apply(Operation::Conversion { old, new, wish, limit_ms: None })).await
    }

    /// Removes dead records of the two-key scheme. The next grant would remove them at the latest. They are removed
    /// earlier here, because a clock step could make them live again. The specification removes other records.
    fn sweep_two_keys(&mut self) {
        if self.face == Face::TwoKey {
            const SWEEP: &str = "
                local time = redis.call('TIME')
                local now_us = time[1] * 1000000 + time[2]
                redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, math.floor(now_us / 1000))
                local ends_ms = redis.call('PEXPIRETIME', KEYS[2]) -- the server removes it when this is past
                if ends_ms >= 0 and ends_ms <= math.floor(now_us / 1000) then redis.call('DEL', KEYS[2]) end
                return now_us";
            let keys = self.keys();
            let Reply::Int(now_us) = self.ask_raw(&["EVAL", SWEEP, "2", &keys[0], &keys[1]]) else {
                panic!("a number")
            };
            self.record.sweep(ServerTime::from_micros(now_us.unsigned_abs()));
        }
    }

    /// Returns true if a read hold would pass to an id that has a record. Clients give each hold a fresh id, and the
    /// two-key scheme removes dead records at other times than the specification.
    fn reuses_an_id(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Conversion { old, new, .. } => {
                self.face == Face::TwoKey
                    && MODES[*old] == Mode::Read
                    && MODES[*new] == Mode::Read
                    && self.record.has_reader(&acquisition(*new))
            }
            _ => false,
        }
    }

    /// Returns the latest time to execute a request. The client's estimate of the server's time is useless while the
    /// clock steps.
    fn not_after_ms(&self, limit_ms: Option<i64>) -> Option<u64> {
        let limit_ms = limit_ms.or_else(|| self.clock.map(|_| DAY_MS));
        limit_ms.map(|limit_ms| self.last_ms().saturating_add_signed(limit_ms))
    }

    async fn acquire(&mut self, who: usize, wish: Wish, limit_ms: Option<i64>) -> TestCaseResult {
        let (request, not_after_ms) = (self.face.ask(who, wish), self.not_after_ms(limit_ms));
        let real = match not_after_ms {
            Some(not_after_ms) => self.real.acquire_until(&self.key, &request, not_after_ms).await,
            None => self.real.acquire(&self.key, &request).await,
        };
        let not_after_ms = not_after_ms.unwrap_or(u64::MAX);
        self.compare(Some(who), real, Answer::Acquired, |record, now| record.acquire(now, not_after_ms, &request))
    }

    async fn convert(&mut self, old: usize, new: usize, wish: Wish, limit_ms: Option<i64>) -> TestCaseResult {
        let (old, request, not_after_ms) = (acquisition(old), self.face.ask(new, wish), self.not_after_ms(limit_ms));
        let real = match not_after_ms {
            Some(not_after_ms) => self.real.convert_until(&self.key, &old, &request, not_after_ms).await,
            None => self.real.convert(&self.key, &old, &request).await,
        };
        let not_after_ms = not_after_ms.unwrap_or(u64::MAX);
        let answer = |converted| Answer::Converted(request.mode, converted);
        self.compare(Some(new), real, answer, |record, now| record.convert(now, not_after_ms, &old, &request))
    }

    fn their_lock(&mut self, mode: Mode, skew_ms: i64) -> TestCaseResult {
        // The number is even, since Lua represents large even numbers exactly.
        let stamp_ms = self.last_ms().saturating_add_signed(skew_ms);
        let stamp_ms = if stamp_ms > 1 << 53 { stamp_ms & !1 } else { stamp_ms };
        let script = match mode {
            Mode::Read => include_str!("../../tests/lua/published/read_lock.lua"),
            Mode::Write => include_str!("../../tests/lua/published/write_lock.lua"),
        };
        let TimestampClientsMs { read_ms, write_ms } = TIMESTAMP_CLIENTS;
        let [read, write, stamp] = [read_ms, write_ms, stamp_ms].map(|ms| ms.to_string());
        let reply = self.ask_raw(&["EVAL", script, "1", &self.keys()[0], "10000", &read, &write, &stamp]);
        let real = Answer::Theirs(mode, reply == Reply::Int(1));
        let specified = Answer::Theirs(mode, self.record.client_lock(mode, stamp_ms));
        if reply == Reply::Int(1) {
            self.theirs.insert(0, (mode, stamp_ms));
        }
        self.agree(self.last, real, specified)
    }

    fn their_unlock(&mut self, nth: usize) -> TestCaseResult {
        let Some(&(mode, stamp_ms)) = self.theirs.get(nth) else {
            return Ok(());
        };
        let script = match mode {
            Mode::Read => include_str!("../../tests/lua/published/read_unlock.lua"),
            Mode::Write => include_str!("../../tests/lua/published/write_unlock.lua"),
        };
        self.ask_raw(&["EVAL", script, "1", &self.keys()[0], &stamp_ms.to_string()]);
        self.record.client_unlock(mode, stamp_ms);
        self.history.push_str(&format!(" {mode} {stamp_ms}"));
        Ok(())
    }

    /// Returns the keys of the lock. The first one stores its tokens.
    fn keys(&self) -> Vec<String> {
        match self.face {
            Face::Hash => vec![self.key.part("lock")],
            Face::TwoKey => vec![self.key.part("read"), self.key.part("write")],
        }
    }

    fn ask_raw(&mut self, command: &[&str]) -> Reply {
        let raw = self.raw.as_mut().expect("a node to ask");
        raw.command(command).and_then(Reply::into_result).expect("an answer")
    }

    /// Reads the time at which the server removes the lock, which no answer contains.
    fn look_behind(&mut self) -> TestCaseResult {
        if self.raw.is_none() {
            return Ok(());
        }
        let key = self.keys().remove(0);
        let Reply::Int(expires_ms) = self.ask_raw(&["PEXPIRETIME", &key]) else { panic!("a number") };
        prop_assert!(expires_ms != -1, "a key without a ttl; so far:{}", self.history);
        let expires_ms = u64::try_from(expires_ms).ok();
        if expires_ms.is_none() && self.expires_ms.is_some() && self.clock.is_some() {
            self.forget("key expired");
        }
        self.expires_ms = expires_ms;
        if let Some(expires_ms) = self.expires_ms.filter(|_| self.theirs.is_empty()) {
            let (holds, waiters) = (self.record.live_holds(self.last_ms()), self.record.live_waiters(self.last_ms()));
            let last_ms = holds.into_iter().chain(waiters).map(|(_, _, until_ms)| until_ms).max().unwrap_or(0);
            let retained = expires_ms >= last_ms + 60_000;
            prop_assert!(retained, "the key will be gone at {} ms; so far:{}", expires_ms, self.history);
        }
        Ok(())
    }

    async fn look(&mut self) -> TestCaseResult {
        let real = self.real.inspect(&self.key).await;
        if let Ok(answer) = &real {
            self.seen = answer.value.clone();
        }
        self.compare(None, real, |view| Answer::View(sorted(view)), |record, now| record.inspect(now))
    }

    async fn note(&mut self, who: usize, number: u64) -> TestCaseResult {
        let Some(notes) = self.real.notes() else { return Ok(()) };
        // Two notes with one number differ. The number 0 removes the note.
        let text = if number == 0 { String::new() } else { format!("note {number}\n{}", self.history.len()) };
        let (id, note) = (acquisition(who), Note { number, text: text.into() });
        let real = notes.set_note(&self.key, &id, &note).await;
        self.compare(None, real, Answer::Noted, |record, now| record.set_note(now, &id, &note))
    }

    async fn force(&mut self) -> TestCaseResult {
        let real = self.real.force(&self.key, &self.seen).await;
        // Renewals bring tokens in only one of the schemes. In the other scheme, a force needs no ids.
        let holders = if self.face == Face::Hash { self.seen.holders.clone() } else { Vec::new() };
        let seen = View { holders, ..self.seen.clone() };
        let in_order = |mut forced: Forced| {
            forced.ids.sort();
            Answer::Forced(forced)
        };
        self.compare(None, real, in_order, |record, now| record.force_seen(now, &seen))
    }

    async fn renew(&mut self, holds: &[Renews]) -> TestCaseResult {
        let caches = |caches: Option<u64>| caches.filter(|_| self.face == Face::Hash);
        let renewal = |&Renews { who, lease_ms, caches: asked, rest_ms }: &Renews| RenewalRequest {
            key: Arc::clone(&self.key),
            id: acquisition(who),
            lease: Duration::from_millis(lease_ms),
            caches: caches(asked).is_some(),
            tokens: caches(asked).unwrap_or(0),
            rest_until: self.rest_until(rest_ms),
        };
        let batch: Vec<_> = holds.iter().map(renewal).collect();
        let answers = self.real.renew(&self.real.route(&self.key), &batch).await;
        prop_assert_eq!(answers.len(), batch.len());
        for (real, RenewalRequest { id, lease, caches, tokens, rest_until, .. }) in answers.into_iter().zip(&batch) {
            self.compare(None, real, Answer::Renewed, |record, now| {
                if *caches {
                    record.renew_cached(now, id, *lease, *tokens)
                } else {
                    record.renew_until(now, id, *lease, *rest_until)
                }
            })?;
        }
        Ok(())
    }

    /// Returns the time of the server's clock that is so long after the last reply.
    fn rest_until(&self, rest_ms: Option<u64>) -> Option<ServerTime> {
        rest_ms.map(|rest_ms| ServerTime::from_micros((self.last_ms() + rest_ms) * 1000))
    }

    fn last_ms(&self) -> u64 {
        self.last.as_micros() / 1000
    }

    /// Asserts that the published messages are those of the specification.
    pub(super) fn compare_notifications(mut self, listener: Option<Listener>) -> TestCaseResult {
        let Some(listener) = listener else {
            return Ok(());
        };
        self.notifications.sort();
        let received = listener.received();
        prop_assert!(
            received == self.notifications,
            "received {:?}, not {:?}; after:{}",
            received,
            self.notifications,
            self.history
        );
        Ok(())
    }

    /// Applies the operation in memory at the server's time, and compares the answers. A request that is granted gets
    /// no notification of its own grant.
    fn compare<T>(
        &mut self,
        asks: Option<usize>,
        real: Attempt<T>,
        answer: impl Fn(T) -> Answer,
        operation: impl FnOnce(&mut Record, ServerTime) -> T,
    ) -> TestCaseResult {
        let Answered { server, value, .. } =
            real.map_err(|failure| TestCaseError::fail(format!("{failure:?}; so far:{}", self.history)))?;
        self.last = server;
        if self.expires_ms.take_if(|expires_ms| *expires_ms < server.as_micros() / 1000).is_some() {
            self.forget("key expired");
        }
        let real = answer(value);
        let specified = answer(operation(&mut self.record, server));
        let taken = self.record.take_notifications();
        for GrantNotification { granted, .. } in &taken {
            self.outgrows(granted.token, granted.tokens)?;
        }
        if let Answer::Acquired(Acquired::Granted(granted)) | Answer::Converted(_, Converted::Granted(granted)) = &real
        {
            self.outgrows(granted.token, granted.tokens)?;
        }
        if let Answer::Renewed(Renewed::Renewed { tokens: Some((first, count)), .. }) = &real {
            self.outgrows(*first, *count)?;
        }
        let is_other = |id: &AcquisitionId| asks.is_none_or(|who| *id != acquisition(who));
        let others = taken.into_iter().filter(|notification| is_other(&notification.id));
        self.notifications.extend(others.map(|notification| grant_message(&notification, server)));
        if let Some(next) = self.record.take_next_to_ask() {
            self.seen_kinds.insert("a turn goes on");
            self.notifications.extend(is_other(&next).then(|| next.as_str().to_owned()));
        }
        if let Some(recall) = self.record.take_recall() {
            self.seen_kinds.insert(if recall.id.is_some() { "called by a try" } else { "called" });
            self.notifications.push(recall_message(&recall));
        }
        self.agree(server, real, specified)
    }

    fn forget(&mut self, how: &'static str) {
        self.record.forget();
        // After a step back, tokens are ahead of the clock until it catches up.
        self.highest_lost = if self.highest <= self.last.as_micros() { self.highest } else { 0 };
        self.seen_kinds.insert(how);
        self.history.push_str(&format!("\n  {how}"));
    }

    /// Asserts that tokens grow even across a loss of the key, as long as the clock does not step back.
    fn outgrows(&mut self, first: FencingToken, count: u64) -> TestCaseResult {
        let token = first.as_u64();
        prop_assert!(token > self.highest_lost, "a token not above one that was lost; so far:{}", self.history);
        self.highest = self.highest.max(token + count - 1);
        Ok(())
    }

    fn agree(&mut self, server: ServerTime, real: Answer, specified: Answer) -> TestCaseResult {
        let live = self.record.inspect(server);
        let now_ms = server.as_micros() / 1000;
        let mut deadlines: Vec<_> = self.record.live_holds(now_ms).into_iter().map(|(_, _, ends_ms)| ends_ms).collect();
        // There are too many dead records to examine. The next requests find fewer.
        deadlines.extend(self.limited.then_some(now_ms + 1));
        let holders = LiveHolders { deadlines, named: self.record.live_named(now_ms), is_limited: self.limited };
        self.history.push_str(&format!("\n    at {} us: {real:?}", server.as_micros()));
        prop_assert!(
            real.agrees_with(&specified, now_ms, &holders),
            "the specification says {:?} beside {:?}; so far:{}",
            specified,
            live,
            self.history
        );
        self.seen_kinds.extend(real.kinds());
        Ok(())
    }
}

/// Returns the message in the format of `lua/README.md`, behind `call`.
pub(in crate::testing) fn recall_message(PendingRecall { token, id }: &PendingRecall) -> String {
    let by = id.as_ref().map_or_else(String::new, |id| format!(" {}", id.as_str()));
    format!("call {}{by}", token.as_u64())
}

/// Returns the message in the format of `lua/README.md`.
pub(in crate::testing) fn grant_message(notification: &GrantNotification, server: ServerTime) -> String {
    let GrantNotification { id, granted } = notification;
    let deadline_ms = u128::from(server.as_micros() / 1000) + granted.remaining.as_millis();
    let (last, server_us) = (granted.token.as_u64() + granted.tokens - 1, server.as_micros());
    let waiting = u8::from(granted.is_waited_for);
    format!("{} {last} {} {deadline_ms} {server_us} {waiting}", id.as_str(), granted.tokens)
}

fn sorted(mut view: View) -> View {
    view.holders.sort_by(|a, b| a.id.cmp(&b.id));
    // Any order within one millisecond is right.
    view.waiters.sort_by(|a, b| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
    view
}
