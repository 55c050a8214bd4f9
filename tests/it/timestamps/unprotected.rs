//! Conflicts between timestamp clients and this crate that neither side can prevent: each line of the list in
//! `docs/PROTOCOL.md`. Their readers starve our writers, too. `tests/lua/published.rs` shows that, because no time has to
//! pass there.

use std::time::Duration;

use cluster_testenv::Reply;
use redis_rwlock::{HoldState, LossReason, Mode, TimestampClients};

use super::{
    EXCLUSIVE, LONG, MODES, TimestampClient, counting, dies_inside, is_denied, is_gone, manager, millis, scene,
};
use crate::either::take;
use crate::fixture::{RENEWED, SHORT, ServerFixture, Settings, hash_on_every_server};
use crate::wait::{soon, until};

hash_on_every_server![
    their_writer_enters_when_their_reader_took_our_stamp_along,
    their_writer_enters_when_the_limit_of_their_reader_beside_ours_passes,
    our_readers_join_each_other_beside_their_writer_for_a_share_window,
    their_writer_that_came_and_went_is_not_seen,
    their_shorter_ttl_ends_a_hold_that_is_not_renewed_before,
    their_clock_is_ahead_by_more_than_our_lease_and_their_limit,
    their_clock_is_behind_by_more_than_their_limit,
    their_reader_that_left_counts_while_ours_covered_its_stamp,
    their_client_that_works_beyond_its_limit_is_nobodys,
    their_grants_have_no_tokens,
    our_crash_keeps_them_out_until_one_of_ours_comes_by,
    the_older_of_their_readers_is_nobodys,
];

/// Opens the gap: a client's reader overwrites our reader's stamp, and leaves.
fn open_gap(timestamp_client: &mut TimestampClient) {
    let stamp = timestamp_client.lock(Mode::Read);
    timestamp_client.unlock(stamp);
}

async fn their_writer_enters_when_their_reader_took_our_stamp_along(f: &ServerFixture) {
    let (manager, name, mut timestamp_client) = scene(f, Settings::lease(RENEWED)).await;
    let guard = take(&manager, &name, Mode::Read).await;
    open_gap(&mut timestamp_client);
    is_denied(&f.manager().await, &name, Mode::Write).await;
    timestamp_client.lock(Mode::Write);
    assert_eq!(soon("the next renewal", guard.lost()).await, LossReason::Gone, "and we are told");
    is_gone(guard).await;
}

async fn their_writer_that_came_and_went_is_not_seen(f: &ServerFixture) {
    let (manager, name, mut timestamp_client) = scene(f, counting()).await;
    let guard = take(&manager, &name, Mode::Read).await;
    open_gap(&mut timestamp_client);
    let stamp = timestamp_client.lock(Mode::Write);
    timestamp_client.unlock(stamp);
    guard.release_unharmed().await;
}

async fn their_shorter_ttl_ends_a_hold_that_is_not_renewed_before(f: &ServerFixture) {
    let (one, two, name) = (f.manager_with(Settings::lease(LONG)).await, manager(f).await, f.name());
    let guard = take(&one, &name, Mode::Read).await;
    let mut timestamp_client = TimestampClient { ttl: Duration::from_millis(20), ..TimestampClient::on(f, &name) };
    timestamp_client.lock(Mode::Read);
    let key = f.key_of(&name, "lock");
    until("the end of their ttl", async || f.on_key("EXISTS", &key, &[]) == Reply::Int(0)).await;
    take(&two, &name, Mode::Write).await.release_unharmed().await;
    assert_eq!(guard.state(), HoldState::Held, "it cannot know before it asks");
    is_gone(guard).await;
}

async fn their_clock_is_ahead_by_more_than_our_lease_and_their_limit(f: &ServerFixture) {
    for (ours, theirs) in EXCLUSIVE {
        let (manager, name) = (manager(f).await, f.name());
        let guard = take(&manager, &name, ours).await;
        let limit = TimestampClient::on(f, &name).limit(ours);
        let within = LONG + limit - Duration::from_secs(20);
        assert_eq!(TimestampClient { ahead: within, ..TimestampClient::on(f, &name) }.try_lock(theirs), None);
        let beyond = LONG + limit + Duration::from_millis(1);
        TimestampClient { ahead: beyond, ..TimestampClient::on(f, &name) }.lock(theirs);
        match theirs {
            // Our hold to write finds its own stamp untouched.
            Mode::Read => guard.release_unharmed().await,
            Mode::Write => is_gone(guard).await,
        }
    }
}

async fn our_crash_keeps_them_out_until_one_of_ours_comes_by(f: &ServerFixture) {
    for mode in MODES {
        let name = f.name();
        let mut timestamp_client =
            TimestampClient { limits: TimestampClients::new(LONG, LONG), ..TimestampClient::on(f, &name) };
        let ends_ms = dies_inside(f, &name, mode, SHORT).await;
        until("our deadline", async || f.server_ms(&name) >= ends_ms).await;
        assert_eq!(timestamp_client.try_lock(Mode::Write), None, "the hold is over, and they cannot know");
        take(&manager(f).await, &name, Mode::Write).await.release_unharmed().await;
        timestamp_client.lock(Mode::Write);
    }
}

async fn the_older_of_their_readers_is_nobodys(f: &ServerFixture) {
    let (manager, name) = (manager(f).await, f.name());
    let (mut older, mut newer) = (TimestampClient::on(f, &name), TimestampClient::on(f, &name));
    newer.ahead = Duration::from_millis(100); // so that their stamps differ
    older.lock(Mode::Read);
    let stamp = newer.lock(Mode::Read);
    is_denied(&manager, &name, Mode::Write).await;
    newer.unlock(stamp);
    take(&manager, &name, Mode::Write).await.release_unharmed().await;
    newer.lock(Mode::Write);
}

/// Two readers of one process: the second joins the first without a request to the server.
async fn our_readers_join_each_other_beside_their_writer_for_a_share_window(f: &ServerFixture) {
    let (manager, name, mut timestamp_client) = scene(f, Settings { join_window: LONG, ..Settings::lease(LONG) }).await;
    let guard = take(&manager, &name, Mode::Read).await;
    open_gap(&mut timestamp_client);
    timestamp_client.lock(Mode::Write);
    let joined = take(&manager, &name, Mode::Read).await;
    assert_eq!(joined.state(), HoldState::Held, "beside their writer");
    // A reader of another process asks the server, and is denied.
    is_denied(&f.manager().await, &name, Mode::Read).await;
    joined.release_unharmed().await;
    is_gone(guard).await;
}

async fn their_writer_enters_when_the_limit_of_their_reader_beside_ours_passes(f: &ServerFixture) {
    let (manager, name) = (manager(f).await, f.name());
    let guard = take(&manager, &name, Mode::Read).await;
    let (mut reader, mut writer) = (TimestampClient::on(f, &name), TimestampClient::on(f, &name));
    let stamp = reader.lock(Mode::Read);
    // The client's reader stays inside, and its stamp is in the place of ours.
    until("its limit", async || writer.try_lock(Mode::Write).is_some()).await;
    assert!(f.server_ms(&name) > stamp.ms + millis(reader.limits.read));
    assert_eq!(guard.state(), HoldState::Held, "beside their writer");
    is_gone(guard).await;
}

async fn their_clock_is_behind_by_more_than_their_limit(f: &ServerFixture) {
    for (theirs, ours) in EXCLUSIVE {
        let ([manager], name) = f.scene().await;
        let limit = TimestampClient::on(f, &name).limit(theirs);
        let mut timestamp_client =
            TimestampClient { behind: limit + Duration::from_millis(1), ..TimestampClient::on(f, &name) };
        timestamp_client.lock(theirs);
        // The client's grant is dead at once, for us and for clients whose clocks are right.
        take(&manager, &name, ours).await.release_unharmed().await;
        timestamp_client.lock(theirs);
        TimestampClient::on(f, &name).lock(ours);
    }
}

async fn their_reader_that_left_counts_while_ours_covered_its_stamp(f: &ServerFixture) {
    const AHEAD: Duration = Duration::from_secs(20);
    let ([manager], name) = f.scene().await;
    let mut timestamp_client = TimestampClient { ahead: AHEAD, ..TimestampClient::on(f, &name) };
    let stamp = timestamp_client.lock(Mode::Read);
    let guard = take(&manager, &name, Mode::Read).await;
    timestamp_client.unlock(stamp);
    guard.release_unharmed().await;
    is_denied(&manager, &name, Mode::Write).await;
    let view = manager.inspect(&name).await.expect("inspected");
    let left = view.holders.first().expect("its stamp is back").remaining;
    assert!(f.server_ms(&name) + millis(left) >= stamp.ms + millis(timestamp_client.limits.read), "{left:?}");
}

async fn their_client_that_works_beyond_its_limit_is_nobodys(f: &ServerFixture) {
    for (theirs, ours) in EXCLUSIVE {
        let limit = Duration::from_millis(50);
        let settings = Settings { timestamp_clients: TimestampClients::new(limit, limit), ..Settings::default() };
        let (manager, name, mut timestamp_client) = scene(f, settings).await;
        // Our limit ends the client's grant, whatever its own limit is and though it has not left.
        timestamp_client.lock(theirs);
        take(&manager, &name, ours).await.release_unharmed().await;
        assert_eq!(f.on_key("HEXISTS", &f.key_of(&name, "lock"), &["write"]), Reply::Int(0));
    }
}

async fn their_grants_have_no_tokens(f: &ServerFixture) {
    let (manager, name, mut timestamp_client) = scene(f, Settings::default()).await;
    take(&manager, &name, Mode::Write).await.release_unharmed().await;
    let before = f.view(&name).await.last_token;
    let stamp = timestamp_client.lock(Mode::Write);
    assert_eq!(f.view(&name).await.last_token, before);
    timestamp_client.unlock(stamp);
    assert_eq!(f.view(&name).await.last_token, before);
}
