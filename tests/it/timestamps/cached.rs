//! Cached holds beside timestamp clients, which cannot recall them.

use std::time::{Duration, Instant};

use redis_rwlock::Mode;

use super::{LONG, MODES, TimestampClient};
use crate::either::take;
use crate::fixture::{ServerFixture, Settings, hash_on_every_server};
use crate::wait::until;

hash_on_every_server![they_starve_beside_steady_use_and_get_in_when_nobody_has_used_it_for_long];

/// Time that the manager caches a hold.
const CACHE_FOR: Duration = Duration::from_millis(800);

async fn they_starve_beside_steady_use_and_get_in_when_nobody_has_used_it_for_long(f: &ServerFixture) {
    for mode in MODES {
        let settings = Settings { cache_for: CACHE_FOR, ..Settings::lease(LONG) };
        let ([manager], name) = f.scene_with(settings).await;
        let mut timestamp_client = TimestampClient::on(f, &name);
        until("the hold stays", async || {
            take(&manager, &name, mode).await.release_unharmed().await;
            manager.stats().cached_holds == 1
        })
        .await;
        let (began, mut used) = (Instant::now(), Instant::now());
        while began.elapsed() < CACHE_FOR * 2 {
            assert_eq!(timestamp_client.try_lock(Mode::Write), None, "it is held, though nobody is inside");
            used = Instant::now();
            take(&manager, &name, mode).await.release_unharmed().await;
            assert_eq!(manager.stats().holds, 1, "it stays, whoever asks");
            // A writer's grant has tokens for more uses than there are here.
            tokio::time::sleep(CACHE_FOR / 16).await;
        }
        until("they get in", async || timestamp_client.try_lock(Mode::Write).is_some()).await;
        assert!(used.elapsed() >= CACHE_FOR, "{:?} after the last use", used.elapsed());
    }
}
