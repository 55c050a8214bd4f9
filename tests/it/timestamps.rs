//! A timestamp client, which runs the four published scripts on the key of our locks, with its own clock and limits.
//!
//! Most cases have limits so long that none passes while they run. A case about a limit compares each answer with the
//! clock, so it does not matter how long the machine takes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster_testenv::{Client, Reply};
use futures_util::future::join_all;
use redis_rwlock::{LossReason, Mode, TimestampClients};

use crate::either::{AnyGuard, take, try_take};
use crate::errors::assert_lost;
use crate::fixture::{Manager, RENEWED, SHORT, ServerFixture, Settings, hash_on_every_server};
use crate::wait::{soon, stays_pending, until};

mod adopted;
mod cached;
mod unprotected;

hash_on_every_server![
    our_hold_excludes_theirs_until_its_release,
    their_hold_excludes_ours_until_its_release,
    their_hold_without_release_excludes_ours_until_its_limit,
    our_hold_without_release_excludes_theirs_until_its_deadline_and_their_limit,
    renewals_keep_them_out,
    two_of_our_readers_exclude_their_writer_to_the_last,
    their_reader_and_two_of_ours_exclude_our_writer_in_every_order,
    their_reader_is_not_forgotten_when_ours_beside_it_dies,
    timestamp_limits_say_how_long_their_stamps_count,
    inspect_shows_them,
    their_ttl_does_not_cut_a_hold_that_is_renewed_before,
    overrun_reader_is_told_though_the_evidence_is_gone,
];

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
/// Pairs of sides that exclude each other.
const EXCLUSIVE: [(Mode, Mode); 3] = [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read), (Mode::Write, Mode::Write)];
/// Lease that needs no renewal, and limit that does not pass, while a case runs.
const LONG: Duration = Duration::from_secs(60);

const fn millis(d: Duration) -> u64 {
    d.as_millis() as u64
}

/// A client of the timestamp scheme.
struct TimestampClient {
    client: Client,
    key: String,
    limits: TimestampClients,
    ttl: Duration,
    /// Time by which the client's clock is ahead of the server's.
    ahead: Duration,
    /// Time by which the client's clock is behind.
    behind: Duration,
}

/// A grant of the timestamp scheme, which is only its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    mode: Mode,
    ms: u64,
}

impl TimestampClient {
    /// A client with the limits of the article: reads of 1 s, writes of 3 s, and 10 s for the key.
    fn on(f: &ServerFixture, name: &str) -> Self {
        Self::at(f, f.key_of(name, "lock"))
    }

    fn at(f: &ServerFixture, key: String) -> Self {
        Self {
            client: f.servers.owner_of(&key).client().expect("the server answers"),
            key,
            limits: TimestampClients::default(),
            ttl: Duration::from_secs(10),
            ahead: Duration::ZERO,
            behind: Duration::ZERO,
        }
    }

    /// Limit for holds of a side.
    fn limit(&self, mode: Mode) -> Duration {
        match mode {
            Mode::Read => self.limits.read,
            Mode::Write => self.limits.write,
        }
    }

    fn now_ms(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        millis(now + self.ahead - self.behind)
    }

    fn eval(&mut self, script: &str, numbers: &[u64]) -> Reply {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        let mut words = vec!["EVAL", script, "1", &self.key];
        words.extend(numbers.iter().map(String::as_str));
        let reply = self.client.command(&words);
        reply.and_then(Reply::into_result).expect("the server answers")
    }

    fn try_lock(&mut self, mode: Mode) -> Option<Stamp> {
        let script = match mode {
            Mode::Read => include_str!("../lua/published/read_lock.lua"),
            Mode::Write => include_str!("../lua/published/write_lock.lua"),
        };
        let stamp = Stamp { mode, ms: self.now_ms() };
        let numbers = [millis(self.ttl), millis(self.limits.read), millis(self.limits.write), stamp.ms];
        (self.eval(script, &numbers) == Reply::Int(1)).then_some(stamp)
    }

    fn lock(&mut self, mode: Mode) -> Stamp {
        self.try_lock(mode).unwrap_or_else(|| panic!("they get in to {mode}"))
    }

    fn unlock(&mut self, stamp: Stamp) {
        let script = match stamp.mode {
            Mode::Read => include_str!("../lua/published/read_unlock.lua"),
            Mode::Write => include_str!("../lua/published/write_unlock.lua"),
        };
        self.eval(script, &[stamp.ms]);
    }

    /// Asserts that the client is refused, with its own limits and with none. Without limits it takes every stamp of
    /// the past for dead.
    fn is_refused(&mut self, mode: Mode) {
        let limits = self.limits;
        for limits in [limits, TimestampClients::new(Duration::ZERO, Duration::ZERO)] {
            self.limits = limits;
            assert_eq!(self.try_lock(mode), None, "{mode} with {limits:?}");
        }
        self.limits = limits;
    }
}

/// Settings with which a manager counts the clients' stamps for as long as a case runs.
fn counting() -> Settings {
    Settings { timestamp_clients: TimestampClients::new(LONG, LONG), ..Settings::lease(LONG) }
}

async fn manager(f: &ServerFixture) -> Manager {
    f.manager_with(counting()).await
}

/// A manager, the name of a lock, and a client of the timestamp scheme for that lock.
async fn scene(f: &ServerFixture, settings: Settings) -> (Manager, String, TimestampClient) {
    let ([manager], name) = f.scene_with(settings).await;
    let timestamp_client = TimestampClient::on(f, &name);
    (manager, name, timestamp_client)
}

fn excludes(one: Mode, other: Mode) -> bool {
    one == Mode::Write || other == Mode::Write
}

async fn is_denied(manager: &Manager, name: &str, mode: Mode) {
    let guard = try_take(manager, name, mode).await;
    assert!(guard.is_none(), "{mode}: {guard:?}");
}

async fn is_gone(guard: AnyGuard) {
    let error = guard.release().await.expect_err("it was overrun");
    assert_lost(&error, LossReason::Gone);
}

fn field_ms(f: &ServerFixture, name: &str, mode: Mode) -> u64 {
    let value = f.on_key("HGET", &f.key_of(name, "lock"), &[&mode.to_string()]);
    // The number may be written as `1700000000000` or as `1700000000000.0`.
    let whole = value.text().and_then(|text| text.split('.').next()?.parse().ok());
    whole.expect("a number")
}

async fn our_hold_excludes_theirs_until_its_release(f: &ServerFixture) {
    for ours in MODES {
        for theirs in MODES {
            let (manager, name, mut timestamp_client) = scene(f, counting()).await;
            let guard = take(&manager, &name, ours).await;
            if excludes(ours, theirs) {
                timestamp_client.is_refused(theirs);
            } else {
                let stamp = timestamp_client.lock(theirs);
                timestamp_client.unlock(stamp);
            }
            guard.release_unharmed().await;
            let stamp = timestamp_client.lock(theirs);
            timestamp_client.unlock(stamp);
        }
    }
}

async fn their_hold_excludes_ours_until_its_release(f: &ServerFixture) {
    for theirs in MODES {
        for ours in MODES {
            let (manager, name, mut timestamp_client) = scene(f, counting()).await;
            let stamp = timestamp_client.lock(theirs);
            if excludes(ours, theirs) {
                is_denied(&manager, &name, ours).await;
                let mut waiting = Box::pin(take(&manager, &name, ours));
                stays_pending("a grant beside them", &mut waiting).await;
                timestamp_client.unlock(stamp);
                waiting.await.release_unharmed().await;
            } else {
                take(&manager, &name, ours).await.release_unharmed().await;
                timestamp_client.unlock(stamp);
            }
            // No stamp of the clients is left either.
            take(&manager, &name, Mode::Write).await.release_unharmed().await;
        }
    }
}

async fn their_hold_without_release_excludes_ours_until_its_limit(f: &ServerFixture) {
    let case = async |theirs: Mode, ours: Mode| {
        let (manager, name, mut timestamp_client) = scene(f, Settings::default()).await;
        let stamp = timestamp_client.lock(theirs);
        let limit = timestamp_client.limit(theirs);
        let ends_ms = stamp.ms + millis(limit) + 1; // at the limit it counts
        until("their limit", async || {
            let asked_ms = f.server_ms(&name);
            let guard = try_take(&manager, &name, ours).await;
            let answered_ms = f.server_ms(&name);
            assert!(
                guard.is_none() || answered_ms >= ends_ms,
                "{ours} beside their {theirs}: {}",
                ends_ms - answered_ms
            );
            assert!(guard.is_some() || asked_ms < ends_ms, "{ours}: {} ms after their {theirs}", asked_ms - ends_ms);
            match guard {
                Some(guard) => guard.release_unharmed().await,
                None => return false,
            }
            true
        })
        .await;
        // A waiter of ours gets in as well, after the client's limit.
        let stamp = timestamp_client.lock(theirs);
        take(&manager, &name, ours).await.release_unharmed().await;
        assert!(f.server_ms(&name) > stamp.ms + millis(limit), "{ours} beside their {theirs}");
    };
    join_all(EXCLUSIVE.map(|(theirs, ours)| case(theirs, ours))).await;
}

/// Lets a process of ours die while it holds the lock, and returns the stamp that it leaves.
async fn dies_inside(f: &ServerFixture, name: &str, mode: Mode, lease: Duration) -> u64 {
    let mut process = f.process(Settings::lease(lease)).await;
    let taken = name.to_owned();
    let guard = process.run(move |manager| Box::pin(async move { take(&manager, &taken, mode).await })).await;
    process.die().await;
    // Dropped on a thread without a runtime. On this one the drop would give the hold back.
    std::thread::spawn(move || drop((guard, process))).join().expect("no panic");
    field_ms(f, name, mode)
}

async fn our_hold_without_release_excludes_theirs_until_its_deadline_and_their_limit(f: &ServerFixture) {
    let case = async |ours: Mode, theirs: Mode| {
        let name = f.name();
        let mut timestamp_client = TimestampClient::on(f, &name);
        let ends_ms = dies_inside(f, &name, ours, SHORT).await + millis(timestamp_client.limit(ours)) + 1; // refused at the limit
        until("their own limit", async || {
            let asked_ms = timestamp_client.now_ms();
            let stamp = timestamp_client.try_lock(theirs);
            // The client has read its clock again since `asked_ms`.
            assert!(stamp.is_none_or(|stamp| stamp.ms >= ends_ms), "{theirs} beside our {ours}");
            assert!(stamp.is_some() || asked_ms < ends_ms, "{theirs}: {} ms after our {ours}", asked_ms - ends_ms);
            stamp.is_some()
        })
        .await;
    };
    join_all(EXCLUSIVE.map(|(ours, theirs)| case(ours, theirs))).await;
}

async fn renewals_keep_them_out(f: &ServerFixture) {
    let case = async |ours: Mode, theirs: Mode| {
        let (manager, name, mut timestamp_client) = scene(f, Settings::lease(RENEWED)).await;
        let guard = take(&manager, &name, ours).await;
        let granted_ms = field_ms(f, &name, ours);
        // The client is refused all the time. Renewals alone cover the last part of it.
        until("two leases", async || {
            timestamp_client.is_refused(theirs);
            f.server_ms(&name) > granted_ms + millis(RENEWED)
        })
        .await;
        assert!(field_ms(f, &name, ours) > granted_ms);
        guard.release_unharmed().await;
        timestamp_client.lock(theirs);
    };
    join_all(EXCLUSIVE.map(|(ours, theirs)| case(ours, theirs))).await;
}

/// The flaw of the article's scheme: the second of two readers takes the stamp of both along.
async fn two_of_our_readers_exclude_their_writer_to_the_last(f: &ServerFixture) {
    for first_leaves_first in [true, false] {
        let (one, two, name) = (manager(f).await, manager(f).await, f.name());
        let mut timestamp_client = TimestampClient::on(f, &name);
        let (first, second) = (take(&one, &name, Mode::Read).await, take(&two, &name, Mode::Read).await);
        timestamp_client.is_refused(Mode::Write);
        let (leaves, stays) = if first_leaves_first { (first, second) } else { (second, first) };
        leaves.release_unharmed().await;
        timestamp_client.is_refused(Mode::Write);
        stays.release_unharmed().await;
        let stamp = timestamp_client.lock(Mode::Write);
        is_denied(&one, &name, Mode::Read).await;
        is_denied(&two, &name, Mode::Read).await;
        timestamp_client.unlock(stamp);
    }
}

/// Reader in a case of three readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    One,
    Two,
    Theirs,
}

const ORDERS: [[Reader; 3]; 6] = {
    use Reader::{One, Theirs, Two};
    [
        [One, Two, Theirs],
        [One, Theirs, Two],
        [Two, One, Theirs],
        [Two, Theirs, One],
        [Theirs, One, Two],
        [Theirs, Two, One],
    ]
};

async fn their_reader_and_two_of_ours_exclude_our_writer_in_every_order(f: &ServerFixture) {
    let (one, two, writer) = (manager(f).await, manager(f).await, manager(f).await);
    for comes in ORDERS {
        for leaves in ORDERS {
            readers_come_and_leave(f, [&one, &two, &writer], comes, leaves).await;
        }
    }
}

async fn readers_come_and_leave(f: &ServerFixture, managers: [&Manager; 3], comes: [Reader; 3], leaves: [Reader; 3]) {
    let name = f.name();
    let mut timestamp_client = TimestampClient::on(f, &name);
    let (mut guards, mut stamp) = ([None, None], None);
    for reader in comes {
        match reader {
            Reader::One => guards[0] = Some(take(managers[0], &name, Mode::Read).await),
            Reader::Two => guards[1] = Some(take(managers[1], &name, Mode::Read).await),
            Reader::Theirs => stamp = Some(timestamp_client.lock(Mode::Read)),
        }
        is_denied(managers[2], &name, Mode::Write).await;
        timestamp_client.is_refused_by_a_timestamp(Mode::Write);
    }
    // A client's reader that came last and leaves takes our stamp along: this gap is not protected.
    let has_gap = comes[2] == Reader::Theirs;
    let mut is_open = false;
    for (left, reader) in leaves.into_iter().enumerate() {
        match reader {
            Reader::One | Reader::Two => {
                let guard = guards[usize::from(reader == Reader::Two)].take();
                guard.expect("it reads").release_unharmed().await;
            }
            Reader::Theirs => {
                timestamp_client.unlock(stamp.take().expect("it reads"));
                is_open = has_gap;
            }
        }
        if left < 2 {
            is_denied(managers[2], &name, Mode::Write).await;
            if !is_open {
                timestamp_client.is_refused_by_a_timestamp(Mode::Write);
            }
        }
    }
    let view = f.view(&name).await;
    assert!(view.holders.iter().all(|holder| holder.label != "case"), "{comes:?} {leaves:?}: {view:?}");
}

impl TimestampClient {
    /// Asserts that the client is refused with a limit that does not pass, so that the clients' own stamps count too.
    fn is_refused_by_a_timestamp(&mut self, mode: Mode) {
        self.limits = TimestampClients::new(LONG, LONG);
        assert_eq!(self.try_lock(mode), None);
    }
}

async fn their_reader_is_not_forgotten_when_ours_beside_it_dies(f: &ServerFixture) {
    let name = f.name();
    let mut timestamp_client = TimestampClient::on(f, &name);
    timestamp_client.lock(Mode::Read);
    let ends_ms = dies_inside(f, &name, Mode::Read, SHORT).await;
    until("our deadline", async || f.server_ms(&name) > ends_ms).await;
    is_denied(&manager(f).await, &name, Mode::Write).await;
    let hasty = TimestampClients::new(Duration::from_millis(1), LONG);
    let hasty = f.manager_with(Settings { timestamp_clients: hasty, ..Settings::default() }).await;
    take(&hasty, &name, Mode::Write).await.release_unharmed().await;
}

async fn timestamp_limits_say_how_long_their_stamps_count(f: &ServerFixture) {
    let limited = async |read: Duration, write: Duration| {
        let timestamp_clients = TimestampClients::new(read, write);
        f.manager_with(Settings { timestamp_clients, ..Settings::default() }).await
    };
    let (short, long) = (Duration::from_secs(4), Duration::from_secs(50));
    for (theirs, ours) in EXCLUSIVE {
        let (patient, hasty) = match theirs {
            Mode::Read => (limited(long, short).await, limited(short, long).await),
            Mode::Write => (limited(short, long).await, limited(long, short).await),
        };
        let name = f.name();
        // The client's grant is some seconds old, by its clock.
        let mut timestamp_client = TimestampClient { behind: Duration::from_secs(5), ..TimestampClient::on(f, &name) };
        let stamp = timestamp_client.lock(theirs);
        is_denied(&patient, &name, ours).await;
        take(&hasty, &name, ours).await.release_unharmed().await;
        timestamp_client.unlock(stamp);
    }
}

async fn inspect_shows_them(f: &ServerFixture) {
    for mode in MODES {
        let (manager, name, mut timestamp_client) = scene(f, counting()).await;
        let stamp = timestamp_client.lock(mode);
        let view = manager.inspect(&name).await.expect("inspected");
        let holders: Vec<_> = view.holders.iter().map(|holder| (&*holder.label, holder.mode)).collect();
        assert_eq!(holders, [("published client", mode)]);
        timestamp_client.unlock(stamp);
        assert!(manager.inspect(&name).await.expect("inspected").is_free());
    }
}

async fn their_ttl_does_not_cut_a_hold_that_is_renewed_before(f: &ServerFixture) {
    const LEASE: Duration = Duration::from_secs(3);
    let ([manager], name) = f.scene_with(Settings::lease(LEASE)).await;
    let guard = take(&manager, &name, Mode::Read).await;
    // The client's ttl is longer than from one renewal to the next, and shorter than the hold lasts.
    let mut timestamp_client = TimestampClient { ttl: LEASE, ..TimestampClient::on(f, &name) };
    let stamp = timestamp_client.lock(Mode::Read);
    assert!(f.ttls()[0].1 <= millis(LEASE) as i64);
    until("the end of their ttl", async || f.server_ms(&name) > stamp.ms + 2 * millis(LEASE)).await;
    assert!(f.ttls()[0].1 > millis(LEASE) as i64, "a renewal takes it back");
    timestamp_client.is_refused(Mode::Write);
    is_denied(&f.manager().await, &name, Mode::Write).await;
    guard.release_unharmed().await;
}

async fn overrun_reader_is_told_though_the_evidence_is_gone(f: &ServerFixture) {
    for is_renewed in [true, false] {
        let lease = if is_renewed { Duration::from_secs(6) } else { LONG };
        let name = f.name();
        let limit = Duration::from_millis(50);
        let timestamp_clients = TimestampClients::new(limit, limit);
        let settings = || Settings { timestamp_clients, ..Settings::lease(lease) };
        let (one, two) = (f.manager_with(settings()).await, f.manager_with(settings()).await);
        let overrun = take(&one, &name, Mode::Read).await;
        let mut timestamp_client = TimestampClient::on(f, &name);
        let stamp = timestamp_client.lock(Mode::Read);
        timestamp_client.unlock(stamp);
        timestamp_client.lock(Mode::Write);
        // This reader gets in as soon as the client's writer is dead.
        let newer = take(&two, &name, Mode::Read).await;
        assert_eq!(f.on_key("HEXISTS", &f.key_of(&name, "lock"), &["write"]), Reply::Int(0));
        if is_renewed {
            assert_eq!(soon("the loss", overrun.lost()).await, LossReason::Gone);
        }
        is_gone(overrun).await;
        newer.release_unharmed().await;
    }
}
