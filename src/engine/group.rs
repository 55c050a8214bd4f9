//! Several locks in one step: the caller gets all of them, or none.
//!
//! The acquisition first tries all locks at once, without a place in a queue. If some are not granted, it keeps only
//! those that come before the first missing one in the order of their keys, and gives the others back. Then it waits in
//! the queue of the missing one, and after the grant it tries the rest again. So a waiting group holds only locks that
//! come before the one it waits for. No cycle of such groups and of holders of one lock can form, because the order of
//! the keys would have to grow all around the cycle.
//!
//! Places in several queues at once would lead to deadlocks. For example, two groups could each be the first in one of
//! two queues, and each hold that it is granted would then wait for the other one.
//!
//! A hold of a waiting group ends soon unless the future of the group is polled. Otherwise a future that no task polls
//! would keep its locks for ever.
//!
//! Source: the ordered allocation of resources in J. W. Havender, "Avoiding deadlock in multitasking systems", 1968.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/group/tests.rs"]
mod tests;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::base::cork::cork;
use crate::base::denied::Denied;
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::base::options::Terms;
use crate::base::reentry::OwnerId;
use crate::engine::acquire::{Patience, acquire_or_denied};
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::hold::{Accepted, Hold, Next};
use crate::lock::release::Release;
use crate::lock::shares::Share;
use crate::lock::side::WaiterId;

/// Time for which a member of a waiting group stays held without a poll of the group's future. It is as long as the
/// server waits for a waiter that it has granted a lock.
const KEPT_UNPOLLED: Duration = Duration::from_secs(3);
/// Interval at which a waiting group extends its members.
const EXTENDS_EVERY: Duration = Duration::from_secs(1);

/// Lock of a group, and the mode in which the caller wants it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Arc<Key>,
    pub(crate) mode: Mode,
}

/// Member of a group that the process holds.
struct GroupMember {
    held: Held,
    /// Share that the guard will have. Until then, the share in the hold ends earlier.
    share: Share,
    /// Number with which the group waits for a renewal before it takes the share.
    takes_as: WaiterId,
    /// Number with which the group extends the share. No task waits with it, so that an extension does not make the
    /// group wait for one more renewal.
    extends_as: WaiterId,
}

/// Renewal for which the group waits before it takes a share.
struct AwaitedAnswer {
    hold: Arc<Hold>,
    waiter_id: WaiterId,
    /// Latest moment of the next look.
    until: Moment,
}

/// Reason why a try did not bring a member.
enum Missing {
    /// Others hold the lock or wait for it.
    Refused(Box<Denied>),
    /// The server did not answer.
    Silent(Error),
}

/// Result of a step that runs while the group holds members.
enum Beside<T> {
    Done(T),
    /// The member with this index was lost meanwhile.
    Lost(usize),
}

/// Next step of the acquisition.
enum GroupStep {
    /// Try all missing members.
    TryAll,
    /// Try this member again, because the server did not answer.
    TryOne(usize),
    /// Wait in the queue of this member, which was refused.
    WaitFor(usize, Box<Denied>),
    /// The group holds all members.
    HandOut,
}

/// First lock in the order of the keys that was not available to a try or in time, and why.
pub(crate) struct GroupRefusal {
    pub(crate) lock: Arc<str>,
    pub(crate) denied: Box<Denied>,
}

/// End of an acquisition without a guard.
enum NoGroup {
    /// This member was not available to a try, or when the limit had passed.
    Refused(GroupRefusal),
    Failed(Error),
}

impl From<Error> for NoGroup {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Acquires all locks, which must be in the order of their keys, each of them once. Returns the shares in this order, or
/// the refusal if the caller wanted one try and a lock was not available.
pub(crate) async fn acquire_all(
    engine: &Arc<Engine>,
    wanted: &[Wanted],
    terms: Terms,
    patience: Patience,
) -> Result<Result<Vec<Held>, GroupRefusal>> {
    in_runtime()?;
    let mut group = Group::new(engine, wanted, terms, patience);
    group.check_conflicts()?;
    let (refused, is_confirmed) = match group.run().await {
        Ok(()) => return Ok(Ok(group.into_shares())),
        Err(NoGroup::Failed(Error::WaitTimeout { lock, confirmed, denied, .. })) => {
            (GroupRefusal { lock, denied }, confirmed)
        }
        Err(NoGroup::Refused(refused)) => (refused, true),
        Err(NoGroup::Failed(error)) => return Err(error),
    };
    let waited = group.wait_time();
    let confirmed = group.give_back_confirmed().await && is_confirmed;
    if patience == Patience::AskOnce && confirmed {
        return Ok(Err(refused));
    }
    Err(Error::WaitTimeout { lock: refused.lock, waited, confirmed, denied: refused.denied })
}

/// Polls a future so that the requests of one poll take one write of each connection.
pub(crate) async fn with_one_write<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|cx| cork(|| future.as_mut().poll(cx))).await
}

/// Waits for results, and returns all that are there. Without further futures, returns none.
async fn next_results<F: Future>(futures: &mut FuturesUnordered<F>) -> Vec<F::Output> {
    poll_fn(|cx| {
        let mut results = Vec::new();
        while let Poll::Ready(Some(result)) = futures.poll_next_unpin(cx) {
            results.push(result);
        }
        if results.is_empty() && !futures.is_empty() { Poll::Pending } else { Poll::Ready(results) }
    })
    .await
}

struct Group<'a> {
    engine: &'a Arc<Engine>,
    wanted: &'a [Wanted],
    terms: Terms,
    patience: Patience,
    /// Owner of all members. A waiting acquisition runs in the task of the group, so this owner is the same for all.
    owner: OwnerId,
    began: Moment,
    /// Members that the group holds, at the indices of `wanted`.
    members: Vec<Option<GroupMember>>,
    /// Holds that the group gave back last, at the indices of `wanted`. The server has perhaps not released them yet.
    given_back: Vec<Option<Arc<Hold>>>,
    /// True if a request of the group may still leave a hold or a place in a queue.
    is_in_doubt: bool,
    /// Start of the server's silence about the member that the group tries again.
    silent_since: Option<Moment>,
    /// True if the members were not granted in one step, so that their grants may be far apart.
    has_waited: bool,
    has_warned: bool,
}

impl<'a> Group<'a> {
    fn new(engine: &'a Arc<Engine>, wanted: &'a [Wanted], terms: Terms, patience: Patience) -> Self {
        Self {
            engine,
            wanted,
            terms,
            patience,
            owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
            began: engine.now(),
            members: wanted.iter().map(|_| None).collect(),
            given_back: vec![None; wanted.len()],
            is_in_doubt: false,
            silent_since: None,
            has_waited: false,
            has_warned: false,
        }
    }

    /// Fails before anything is sent if the owner holds a lock for reading that it now wants for writing.
    fn check_conflicts(&self) -> Result<()> {
        if self.terms.reentry.owner().is_none() {
            return Ok(());
        }
        let now = self.engine.now();
        for Wanted { key, mode } in self.wanted {
            let held = self.engine.table.held_by(key, self.owner, now);
            if held.is_some_and(|hold| hold.mode() == Mode::Read && *mode == Mode::Write) {
                return Err(Error::UpgradeConflict { lock: key.shared_name() });
            }
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), NoGroup> {
        let mut next = GroupStep::TryAll;
        loop {
            next = match next {
                GroupStep::TryAll => {
                    let missing = self.missing().collect();
                    self.try_members(missing).await?
                }
                GroupStep::TryOne(index) => self.try_members(vec![index]).await?,
                GroupStep::WaitFor(index, denied) => self.wait_for(index, denied).await?,
                GroupStep::HandOut => match self.hand_out().await {
                    Beside::Done(()) => return Ok(()),
                    Beside::Lost(index) => self.begin_at(index),
                },
            };
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|index| self.members[*index].is_none())
    }

    /// Returns true if the members are not renewed after the group holds all of them.
    fn is_fixed(&self) -> bool {
        self.terms.max_hold <= self.terms.lease
    }

    /// Notes that the grants of the members may be far apart. A fixed lease counts from the moment at which the group
    /// holds all members, so until then the members last longer.
    fn note_waited(&mut self) {
        self.has_waited = true;
        if self.is_fixed() {
            let ends = self.engine.now().after(self.engine.options().max_hold);
            self.members.iter_mut().flatten().for_each(|member| member.share.ends = ends);
        }
    }

    /// Tries these members at once. After that, gives back the members behind the first that is missing.
    async fn try_members(&mut self, missing: Vec<usize>) -> Result<GroupStep, NoGroup> {
        let (engine, wanted) = (self.engine, self.wanted);
        let (terms, asked_at) = (&Terms { wait_timeout: None, ..self.terms }, engine.now());
        let mut tries: FuturesUnordered<_> = missing
            .into_iter()
            .map(|index| async move {
                let Wanted { key, mode } = &wanted[index];
                (index, acquire_or_denied(engine, key, *mode, terms, Patience::AskOnce).await)
            })
            .collect();
        let mut first: Option<(usize, Missing)> = None;
        loop {
            let tried = match self.beside(with_one_write(next_results(&mut tries))).await {
                Beside::Done(tried) if tried.is_empty() => break,
                Beside::Done(tried) => tried,
                Beside::Lost(index) => {
                    // The other tries are dropped, and may have been granted.
                    self.is_in_doubt = true;
                    return Ok(self.begin_at(index));
                }
            };
            for (index, outcome) in tried {
                let why = match outcome {
                    Ok(Ok(held)) => {
                        self.add(index, held);
                        continue;
                    }
                    Ok(Err(denied)) => Missing::Refused(denied),
                    // The server has not confirmed yet that the place of the try is withdrawn. The background goes on
                    // with that.
                    Err(Error::WaitTimeout { denied, .. }) => {
                        self.is_in_doubt = true;
                        Missing::Refused(denied)
                    }
                    Err(error @ Error::Unreachable { .. }) => Missing::Silent(error),
                    Err(error) => return Err(error.into()),
                };
                if first.as_ref().is_none_or(|(before, _)| index < *before) {
                    first = Some((index, why));
                }
            }
        }
        self.after_tries(first, asked_at)
    }

    fn after_tries(&mut self, first: Option<(usize, Missing)>, asked_at: Moment) -> Result<GroupStep, NoGroup> {
        let Some((index, why)) = first else {
            self.silent_since = None;
            return Ok(if self.missing().next().is_some() { GroupStep::TryAll } else { GroupStep::HandOut });
        };
        match (why, self.patience) {
            (Missing::Silent(error), Patience::AskOnce) => Err(error.into()),
            (Missing::Refused(denied), Patience::AskOnce) => Err(NoGroup::Refused(self.refusal_of(index, denied))),
            (Missing::Refused(denied), Patience::Wait) => {
                self.silent_since = None;
                self.give_back_from(index);
                Ok(GroupStep::WaitFor(index, denied))
            }
            (Missing::Silent(error), Patience::Wait) => {
                self.give_back_from(index);
                let since = *self.silent_since.get_or_insert(asked_at);
                let is_over = self.engine.now().since(since) >= self.engine.options().unreachable_after;
                let is_late = self.terms.wait_timeout.is_some_and(|limit| self.wait_time() >= limit);
                if is_over || is_late { Err(error.into()) } else { Ok(GroupStep::TryOne(index)) }
            }
        }
    }

    /// Waits in the queue of one member. The group holds only members that come before it.
    async fn wait_for(&mut self, index: usize, denied: Box<Denied>) -> Result<GroupStep, NoGroup> {
        self.note_waited();
        let left = self.terms.wait_timeout.map(|limit| limit.saturating_sub(self.wait_time()));
        if left == Some(Duration::ZERO) {
            return Err(NoGroup::Refused(self.refusal_of(index, denied)));
        }
        let terms = &Terms { wait_timeout: left, ..self.terms };
        let (engine, Wanted { key, mode }) = (self.engine, &self.wanted[index]);
        let waits = pin!(acquire_or_denied(engine, key, *mode, terms, Patience::Wait));
        match self.beside(waits).await {
            Beside::Done(Ok(Ok(held))) => {
                self.add(index, held);
                Ok(GroupStep::TryAll)
            }
            Beside::Done(Ok(Err(denied))) => Ok(GroupStep::WaitFor(index, denied)),
            Beside::Done(Err(error)) => Err(error.into()),
            Beside::Lost(lost) => {
                self.is_in_doubt = true;
                Ok(self.begin_at(lost))
            }
        }
    }

    /// Adds a member that was granted.
    fn add(&mut self, index: usize, held: Held) {
        let (now, mut share) = (self.engine.now(), held.hold().share(held.share_id()));
        if self.is_fixed() && self.has_waited {
            share.ends = now.after(self.engine.options().max_hold);
        }
        let (takes_as, extends_as) = (held.hold().new_waiter(), held.hold().new_waiter());
        let member = GroupMember { held, share, takes_as, extends_as };
        member.extend(now);
        self.members[index] = Some(member);
    }

    /// Gives back the members from this index on, before the group waits for the member with this index.
    fn give_back_from(&mut self, index: usize) {
        for (member, given_back) in self.members.iter_mut().zip(&mut self.given_back).skip(index) {
            let Some(member) = member.take() else { continue };
            let hold = Arc::clone(member.held.hold());
            drop(member);
            // Other guards of this process may still use the hold.
            *given_back = matches!(hold.due(), Next::Released | Next::Lost(_)).then_some(hold);
        }
    }

    /// Begins anew at a member that was lost.
    fn begin_at(&mut self, index: usize) -> GroupStep {
        self.give_back_from(index);
        self.note_waited();
        GroupStep::TryAll
    }

    fn held_members(&self) -> impl Iterator<Item = (usize, &GroupMember)> {
        self.members.iter().enumerate().filter_map(|(index, member)| Some((index, member.as_ref()?)))
    }

    /// Runs a future. Meanwhile extends the members that the group holds, and looks whether one of them is lost.
    async fn beside<T>(&mut self, step: impl Future<Output = T>) -> Beside<T> {
        let mut step = pin!(step);
        loop {
            let now = self.engine.now();
            self.held_members().for_each(|(_, member)| member.extend(now));
            // The watchers begin after the extension, because a watcher counts with the end of the share at its begin.
            let lost = async {
                let watches: Vec<_> = self
                    .held_members()
                    .map(|(index, member)| Box::pin(async move { (member.held.lost().await, index).1 }))
                    .collect();
                if watches.is_empty() { std::future::pending().await } else { select_all(watches).await.0 }
            };
            tokio::select! {
                biased;
                index = lost => return Beside::Lost(index),
                done = &mut step => return Beside::Done(done),
                () = self.engine.clock.timer(now.after(EXTENDS_EVERY)) => {}
            }
            self.warn_of_order();
        }
    }

    /// Gives each share its own lease and end. A share with too little time first waits for a renewal.
    async fn hand_out(&mut self) -> Beside<()> {
        let since = self.engine.now();
        loop {
            match self.accept_all(since) {
                Ok(None) => return Beside::Done(()),
                Err(index) => return Beside::Lost(index),
                Ok(Some(AwaitedAnswer { hold, waiter_id, until })) => {
                    let answered = pin!(hold.renewal_answered(waiter_id, until));
                    if let Beside::Lost(index) = self.beside(answered).await {
                        return Beside::Lost(index);
                    }
                }
            }
        }
    }

    /// Takes all shares. Returns the answer to wait for if one of them has too little time, or the index of a member
    /// that is over.
    fn accept_all(&mut self, since: Moment) -> Result<Option<AwaitedAnswer>, usize> {
        let now = self.engine.now();
        // A fixed lease counts from the moment at which the group holds all members.
        let renews = self.is_fixed() && self.has_waited;
        let mut short = None;
        for (index, member) in self.members.iter_mut().enumerate() {
            let member = member.as_mut().ok_or(index)?;
            if renews {
                member.share.ends = since.after(self.terms.max_hold);
            }
            let (hold, waiter_id) = (Arc::clone(member.held.hold()), member.takes_as);
            let taken = (member.held.share_id(), member.share);
            let accepted = match renews {
                true => hold.accept_renewed(waiter_id, taken, since, now),
                false => hold.accept(waiter_id, taken, since, now),
            };
            match accepted {
                Accepted::Taken(token) => member.held.set_token(token),
                Accepted::Over => return Err(index),
                Accepted::Short { until, .. } => short = short.or(Some(AwaitedAnswer { hold, waiter_id, until })),
            }
        }
        Ok(short)
    }

    fn wait_time(&self) -> Duration {
        self.engine.now().since(self.began)
    }

    fn refusal_of(&self, index: usize, denied: Box<Denied>) -> GroupRefusal {
        GroupRefusal { lock: self.wanted[index].key.shared_name(), denied }
    }

    /// Gives back all members. Returns true if the server has confirmed within the time that the caller waits for that
    /// nothing of the group is left.
    async fn give_back_confirmed(&mut self) -> bool {
        let (engine, now) = (self.engine, self.engine.now());
        let releases = self.members.iter_mut().filter_map(Option::take).map(|member| member.held.release());
        // The answers to the releases of these holds go to the background, so each is asked for once more.
        let before = self.given_back.iter_mut().filter_map(Option::take).map(|hold| async move {
            let release = Release::of(&hold, now);
            let answer = engine.releases.send_once(&release).await;
            answer.is_ok_and(|answer| release.arrives_after(answer.sent).is_none())
        });
        let released = pin!(with_one_write(join(join_all(releases), join_all(before))));
        tokio::select! {
            biased;
            (released, before) = released => {
                released.iter().all(Result::is_ok) && before.into_iter().all(|is_gone| is_gone) && !self.is_in_doubt
            }
            () = self.engine.clock.timer(now.after(self.engine.options().response_timeout * 2)) => false,
        }
    }

    /// Warns once if the group waits for a lock that comes before one that its owner holds apart from the group. Such a
    /// wait may be part of a deadlock.
    fn warn_of_order(&mut self) {
        let Some(waits_for) = self.missing().next().filter(|_| self.has_waited && !self.has_warned) else {
            return;
        };
        let (key, now) = (&self.wanted[waits_for].key, self.engine.now());
        let own = self.engine.table.all_holds().into_iter().find(|hold| {
            hold.key().base() > key.base() && self.engine.table.held_by(hold.key(), self.owner, now).is_some()
        });
        if let Some(own) = own {
            self.has_warned = true;
            events::waits_out_of_order(key.name(), own.key().name());
        }
    }

    fn into_shares(self) -> Vec<Held> {
        self.members.into_iter().flatten().map(|member| member.held).collect()
    }
}

impl GroupMember {
    /// Lets the share last a little longer, since the future of the group is polled.
    fn extend(&self, now: Moment) {
        let ends = self.share.ends.min(now.after(KEPT_UNPOLLED));
        let share = Share { ends, ..self.share };
        // Without enough time, this call makes a renewal due. A share that is over is found by its watcher.
        self.held.hold().accept(self.extends_as, (self.held.share_id(), share), now, now);
    }
}
