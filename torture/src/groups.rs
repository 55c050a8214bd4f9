//! Tasks that take several locks at once: random pairs and triples, in random modes, named in a random order.

use redis_rwlock::{AcquireAll, Error, GroupGuard, GroupLoss, NamedLock};
use tokio::time::{Instant, sleep};

use super::*;
use crate::history::Patience;
use crate::tasks::{AFTER_A_FAILURE, HOT, Reading, STEP, end_of, reason};

/// Limit for the wait of a group. The queues are fair, so under the load of a run each group has its locks far sooner. A
/// group that reaches the limit stands in a deadlock, or starves.
pub(crate) const GROUP_WAIT: Duration = Duration::from_secs(30);

/// Use of all locks of a group: the acquisitions in the journal, and what they are for.
#[derive(Clone, Copy, Debug)]
struct Together<'a> {
    ids: &'a [u64],
    wanted: &'a [(usize, Mode)],
}

impl Task {
    pub(crate) async fn use_some_group(&mut self) -> Result<()> {
        let wanted = self.some_locks();
        match self.rng.u8(..100) {
            _ if self.order.plant == Some(Plant::Unordered) => self.take_one_by_one(&wanted).await?,
            0..75 => self.acquire_all(&wanted).await?,
            75..90 => self.try_all(&wanted).await?,
            _ => self.give_up_all_soon(&wanted).await?,
        }
        sleep(self.role.pause(&mut self.rng)).await;
        Ok(())
    }

    /// Returns two or three locks in a random order, each with a random mode. Slow locks come last in the order of the keys,
    /// so a group that waits for one would keep the others. For that reason no group mixes them. Groups of slow locks are
    /// rare: more of them want the locks for longer than a run lasts, and then groups reach their limit without any fault.
    fn some_locks(&mut self) -> Vec<(usize, Mode)> {
        let rng = &mut self.rng;
        let mut locks: Vec<usize> = if rng.u8(..250) == 0 { SLOW.collect() } else { HOT.chain(COLD).collect() };
        rng.shuffle(&mut locks);
        let count = rng.usize(2..4);
        locks.into_iter().take(count).map(|lock| (lock, if rng.bool() { Mode::Read } else { Mode::Write })).collect()
    }

    fn all(&self, wanted: &[(usize, Mode)]) -> AcquireAll {
        let names: Vec<NamedLock> = wanted
            .iter()
            .map(|(lock, mode)| match mode {
                Mode::Read => redis_rwlock::read(lock_name(*lock)),
                _ => redis_rwlock::write(lock_name(*lock)),
            })
            .collect();
        self.locks.all(&names).wait_timeout(GROUP_WAIT)
    }

    async fn acquire_all(&mut self, wanted: &[(usize, Mode)]) -> Result<()> {
        let ids = self.journal.asks_all(&self.label, wanted, Patience::Waits);
        match self.all(wanted).await {
            Ok(guard) => self.use_all(Together { ids: &ids, wanted }, guard).await,
            Err(error) => self.all_failed(&ids, &error).await,
        }
    }

    async fn try_all(&mut self, wanted: &[(usize, Mode)]) -> Result<()> {
        let ids = self.journal.asks_all(&self.label, wanted, Patience::Brief);
        let outcome = self.all(wanted).try_now().await;
        self.use_granted_all(Together { ids: &ids, wanted }, outcome, "taken").await
    }

    /// Drops the future after a short time, in which the group may hold some of its locks.
    async fn give_up_all_soon(&mut self, wanted: &[(usize, Mode)]) -> Result<()> {
        let ids = self.journal.asks_all(&self.label, wanted, Patience::Brief);
        let soon = Duration::from_micros(self.rng.u64(..50_000));
        let outcome = timeout(soon, self.all(wanted)).await.ok().transpose();
        self.use_granted_all(Together { ids: &ids, wanted }, outcome, "dropped").await
    }

    /// Uses the locks if they were granted. Without a grant and without an error, the reason is `why`.
    async fn use_granted_all(
        &mut self,
        group: Together<'_>,
        outcome: Result<Option<GroupGuard>, Error>,
        why: &str,
    ) -> Result<()> {
        match outcome {
            Ok(Some(guard)) => self.use_all(group, guard).await,
            Ok(None) => {
                self.all_gave_up(group.ids, why);
                Ok(())
            }
            Err(error) => self.all_failed(group.ids, &error).await,
        }
    }

    /// Takes one lock after the other and keeps what it has: the fault that is planted.
    async fn take_one_by_one(&mut self, wanted: &[(usize, Mode)]) -> Result<()> {
        let ids = self.journal.asks_all(&self.label, wanted, Patience::Waits);
        let (mut guards, over) = (Vec::new(), Instant::now() + GROUP_WAIT);
        for one in wanted {
            let left = over.saturating_duration_since(Instant::now());
            match self.all(std::slice::from_ref(one)).wait_timeout(left).await {
                Ok(guard) => guards.push(guard),
                Err(error) => return self.all_failed(&ids, &error).await,
            }
        }
        self.all_gave_up(&ids, "unordered");
        Ok(())
    }

    fn all_gave_up(&self, ids: &[u64], why: &str) {
        ids.iter().for_each(|id| self.journal.gave_up(*id, why));
    }

    async fn all_failed(&self, ids: &[u64], error: &Error) -> Result<()> {
        self.all_gave_up(ids, reason(error));
        sleep(AFTER_A_FAILURE).await;
        Ok(())
    }

    /// Works under all locks, and releases or drops them unless one is lost.
    async fn use_all(&mut self, group: Together<'_>, guard: GroupGuard) -> Result<()> {
        let is_slow = group.wanted.iter().any(|(lock, _)| SLOW.contains(lock));
        // A long use of quick locks would keep out all groups that want one of them, and these keep others out.
        let longest_ms = if is_slow { 1500 } else { 20 };
        let how_long = Duration::from_millis(self.rng.u64(..longest_ms));
        let tokens: Vec<u64> = guard.locks().map(|lock| lock.fencing_token.into()).collect();
        let until = end_of(|| guard.remaining()).unwrap_or(0);
        group.ids.iter().zip(&tokens).for_each(|(id, token)| self.journal.granted(*id, *token, until));
        let mut readings = Vec::new();
        for ((lock, mode), token) in group.wanted.iter().zip(&tokens) {
            let is_write = *mode == Mode::Write;
            readings.push(if is_write { self.read(*lock, *token).await? } else { Reading::default() });
        }
        if let Some(loss) = self.stay_together(group, &guard, how_long).await {
            self.tell_loss(group, &loss);
            return Ok(());
        }
        for (((lock, mode), token), reading) in group.wanted.iter().zip(&tokens).zip(readings) {
            if *mode == Mode::Write && !guard.remaining().is_zero() {
                self.write(*lock, *token, reading).await?;
            }
        }
        self.end_all(group, guard).await;
        Ok(())
    }

    async fn end_all(&mut self, group: Together<'_>, guard: GroupGuard) {
        let gift = if self.rng.u8(..4) == 0 { Gift::Dropped } else { Gift::Released };
        group.ids.iter().for_each(|id| self.journal.ends(*id, gift));
        if gift == Gift::Dropped {
            return drop(guard);
        }
        let until = end_of(|| guard.remaining()).unwrap_or(0);
        if guard.release().await.is_err() {
            group.wanted.iter().for_each(|(lock, _)| self.journal.kept(*lock, until));
        }
    }

    /// Holds all locks for a time, and returns the first loss.
    async fn stay_together(&self, group: Together<'_>, guard: &GroupGuard, how_long: Duration) -> Option<GroupLoss> {
        let over = Instant::now() + how_long;
        let mut seen = 0;
        loop {
            if let Some(until) = end_of(|| guard.remaining()).filter(|until| *until > seen) {
                group.ids.iter().for_each(|id| self.journal.valid(*id, until));
                seen = until + nanos(STEP / 2);
            }
            let left = over.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                loss = guard.lost() => return Some(loss),
                () = sleep(left.min(STEP)) => {}
            }
            if Instant::now() >= over {
                return None;
            }
        }
    }

    /// Writes that one lock is lost, and that the task gives the others back for that.
    fn tell_loss(&self, group: Together<'_>, loss: &GroupLoss) {
        let told = now();
        for (id, (lock, _)) in group.ids.iter().zip(group.wanted) {
            if *loss.lock == *lock_name(*lock) {
                self.journal.lost(*id, told, loss.reason);
            } else {
                self.journal.ends(*id, Gift::Dropped);
            }
        }
    }
}
