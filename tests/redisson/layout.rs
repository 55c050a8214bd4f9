//! What a manager stores and publishes, field by field, and what it makes of the fields of others. These cases need no Java:
//! they write what a client of Redisson would have written.

use std::time::{Duration, Instant};

use cluster_testenv::{Client, Matcher, Node, Reply, Server};
use redis_rwlock::{
    Durability, Error, HoldState, LossReason, Mode, RedissonManager, Refusal, Replicas, RwLockManager, Topology,
};

use crate::places::{command, run, take_and_release};
use crate::wait::{Outcome, until, works};

const LEASE: Duration = Duration::from_secs(10);
/// Time for which the tokens outlive a hold.
const RETENTION_MS: i64 = 60_000;
const CHANNEL: &str = "redisson_rwlock:{cfg}";
const WOKEN: Duration = Duration::from_millis(700);

/// A node, with a connection past all faults.
struct Lab {
    node: Node,
    client: Client,
}

impl Lab {
    fn start() -> Self {
        let node = Node::builder(Server::Valkey81).proxied().start().expect("the server starts");
        let client = Client::connect(node.addr()).expect("the server answers");
        Self { node, client }
    }

    async fn manager(&self) -> RedissonManager {
        self.manager_with(LEASE).await
    }

    async fn manager_with(&self, lease: Duration) -> RedissonManager {
        let builder = RedissonManager::builder(self.node.url()).label("me").max_clock_skew(Duration::from_millis(5));
        builder.lease(lease).connect().await.expect("the manager connects")
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        command(&mut self.client, words)
    }

    fn text(&mut self, words: &[&str]) -> String {
        self.ask(words).text().expect("a text").into_owned()
    }

    fn int(&mut self, words: &[&str]) -> i64 {
        self.ask(words).int().expect("a number")
    }

    fn list(&mut self, words: &[&str]) -> Vec<String> {
        let reply = self.ask(words);
        let mut list: Vec<_> =
            reply.array().expect("a list").iter().map(|it| it.text().expect("text").into()).collect();
        list.sort();
        list
    }

    /// All keys, in order.
    fn keys(&mut self) -> Vec<String> {
        self.list(&["KEYS", "*"])
    }

    /// Writes the hold of a reader of Redisson, in a lock that is free or has readers.
    fn reader_of_redisson(&mut self, holder: &str, lease_ms: &str) {
        self.ask(&["HSET", "cfg", "mode", "read", holder, "1"]);
        let timeout = format!("{{cfg}}:{holder}:rwlock_timeout:1");
        self.ask(&["SET", &timeout, "1", "PX", lease_ms]);
        self.ask(&["PEXPIRE", "cfg", lease_ms]);
    }

    fn writer_of_redisson(&mut self) {
        self.ask(&["HSET", "cfg", "mode", "write", "java:7:write", "1"]);
        self.ask(&["PEXPIRE", "cfg", "50000"]);
    }

    /// Subscribes to the channel of the lock, as Redisson does.
    fn listener(&self, verb: &str) -> Client {
        let mut listener = Client::connect(self.node.addr()).expect("the server answers");
        listener.send(&[verb, CHANNEL]).expect("sent");
        listener.receive().expect("subscribed");
        listener
    }
}

/// Runs a case on a server of its own, with a manager.
fn in_lab(case: impl AsyncFnOnce(&mut Lab, &RedissonManager) -> Outcome) {
    in_lab_with(LEASE, case);
}

fn in_lab_with(lease: Duration, case: impl AsyncFnOnce(&mut Lab, &RedissonManager) -> Outcome) {
    run(async {
        let mut lab = Lab::start();
        let manager = lab.manager_with(lease).await;
        case(&mut lab, &manager).await
    });
}

fn message(listener: &mut Client) -> String {
    let reply = listener.receive().expect("a message");
    reply.array().expect("a push").last().and_then(Reply::text).expect("a text").into_owned()
}

/// Asserts that a ttl is near what is expected, and never above.
fn assert_ttl(ttl_ms: i64, expected_ms: i64) {
    assert!((expected_ms - 2_000..=expected_ms).contains(&ttl_ms), "{ttl_ms} ms, expected up to {expected_ms}");
}

fn lease_ms() -> i64 {
    i64::try_from(LEASE.as_millis()).expect("small")
}

#[test]
fn writer_is_one_field_with_the_lease() {
    in_lab(async |lab, manager| {
        let guard = manager.write("cfg").await?;
        let fields = lab.list(&["HKEYS", "cfg"]);
        assert_eq!(fields.len(), 2, "HLEN decides in Redisson's scripts: {fields:?}");
        let holder = fields.iter().find(|field| *field != "mode").expect("a holder");
        let id = holder.strip_suffix(":1:write").expect("an id, a number, and `:write`");
        assert!(id.len() > 32 && id.ends_with(".me"), "{id}");
        assert_eq!(lab.text(&["HGET", "cfg", "mode"]), "write");
        assert_eq!(lab.text(&["HGET", "cfg", holder]), "1");
        assert_ttl(lab.int(&["PTTL", "cfg"]), lease_ms());
        assert_eq!(lab.keys(), ["cfg", "{cfg}:rwlock_tokens"]);
        assert_ttl(lab.int(&["PTTL", "{cfg}:rwlock_tokens"]), lease_ms() + RETENTION_MS);
        guard.release().await?;
        assert_eq!(lab.keys(), ["{cfg}:rwlock_tokens"]);
        let left = lab.list(&["ZRANGE", "{cfg}:rwlock_tokens", "0", "-1"]);
        assert_eq!(left, ["#born", "#token"]);
        Ok(())
    });
}

#[test]
fn reader_is_one_field_with_one_timeout() {
    in_lab(async |lab, manager| {
        let other = lab.manager_with(LEASE / 2).await;
        let guard = manager.read("cfg").await?;
        let fields = lab.list(&["HKEYS", "cfg"]);
        let holder = fields.iter().find(|field| *field != "mode").expect("a holder").clone();
        assert!(holder.ends_with(".me:1"), "{holder}");
        assert_eq!(lab.text(&["HGET", "cfg", "mode"]), "read");
        assert_eq!(lab.text(&["HGET", "cfg", &holder]), "1");
        let timeout = format!("{{cfg}}:{holder}:rwlock_timeout:1");
        assert_eq!(lab.keys(), ["cfg".to_owned(), timeout.clone(), "{cfg}:rwlock_tokens".to_owned()]);
        assert_eq!(lab.text(&["GET", &timeout]), "1");
        assert_ttl(lab.int(&["PTTL", &timeout]), lease_ms());
        // A second reader with a shorter lease does not shorten the time of the lock.
        let second = other.read("cfg").await?;
        assert_eq!(lab.int(&["HLEN", "cfg"]), 3);
        assert_ttl(lab.int(&["PTTL", "cfg"]), lease_ms());
        guard.release().await?;
        assert_eq!((lab.int(&["HLEN", "cfg"]), lab.int(&["EXISTS", &timeout])), (2, 0));
        second.release().await?;
        assert_eq!(lab.keys(), ["{cfg}:rwlock_tokens"]);
        Ok(())
    });
}

#[test]
fn name_with_a_hash_tag_stays_as_it_is_in_second_names() {
    in_lab(async |lab, manager| {
        let guard = manager.read("shop:{7}").await?;
        let keys = lab.keys();
        assert_eq!((keys.len(), &*keys[0], &*keys[2]), (3, "shop:{7}", "shop:{7}:rwlock_tokens"));
        assert!(keys[1].starts_with("shop:{7}:") && keys[1].ends_with(":1:rwlock_timeout:1"), "{keys:?}");
        assert_eq!(manager.locks().await?, ["shop:{7}"]);
        guard.release().await?;
        Ok(())
    });
}

#[test]
fn messages_are_those_of_redisson_in_both_forms() {
    in_lab(async |lab, manager| {
        for verb in ["SUBSCRIBE", "SSUBSCRIBE"] {
            let mut listener = lab.listener(verb);
            works(manager, "cfg").await;
            assert_eq!(message(&mut listener), "1", "a writer wakes all");
            manager.read("cfg").await?.release().await?;
            assert_eq!(message(&mut listener), "0", "a reader wakes one waiter of each client");
            let reader = manager.write("cfg").await?.downgrade().await?;
            assert_eq!(message(&mut listener), "1", "a downgrade wakes readers");
            lab.reader_of_redisson("java:7", "50000");
            reader.release().await?;
            // A reader is left, so nobody is woken. The next message is that of the force.
            assert_eq!(manager.force_release("cfg").await?.len(), 1);
            assert_eq!(message(&mut listener), "0");
        }
        Ok(())
    });
}

#[test]
fn waiter_asks_when_redisson_publishes() {
    in_lab(async |lab, manager| {
        lab.writer_of_redisson();
        for mode in [Mode::Write, Mode::Read] {
            let freed = async {
                let subscribed = ["PUBSUB", "NUMSUB", CHANNEL];
                until("the manager listens", async || {
                    command(&mut Client::connect(lab.node.addr()).expect("up"), &subscribed).array().expect("a list")[1]
                        .int()
                        == Some(1)
                })
                .await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                let mut redisson = Client::connect(lab.node.addr()).expect("the server answers");
                command(&mut redisson, &["DEL", "cfg"]);
                command(&mut redisson, &["PUBLISH", CHANNEL, "1"]);
                Instant::now()
            };
            let ((), freed) = tokio::join!(take_and_release(manager, mode), freed);
            assert!(freed.elapsed() < WOKEN, "{:?}", freed.elapsed());
            lab.writer_of_redisson();
        }
        Ok(())
    });
}

#[test]
fn nobodys_time_is_shortened() {
    in_lab_with(Duration::from_millis(900), async |lab, manager| {
        lab.reader_of_redisson("java:7", "50000");
        let guard = manager.read("cfg").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(guard.state(), HoldState::Held, "renewed");
        assert!(lab.int(&["PTTL", "cfg"]) > 40_000);
        guard.release().await?;
        assert!(lab.int(&["PTTL", "cfg"]) > 40_000);
        assert_eq!(lab.list(&["HKEYS", "cfg"]), ["java:7", "mode"]);
        Ok(())
    });
}

#[test]
fn time_that_a_watchdog_cut_is_a_change_and_no_loss() {
    in_lab_with(Duration::from_secs(6), async |lab, manager| {
        let guard = manager.read("cfg").await?;
        lab.ask(&["PEXPIRE", "cfg", "4000"]);
        until("the renewal lengthens it", async || lab.int(&["PTTL", "cfg"]) > 5_000).await;
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await?;
        Ok(())
    });
}

#[test]
fn lease_is_never_longer_than_the_watchdog_of_redisson_allows() {
    in_lab_with(Duration::from_secs(3600), async |lab, manager| {
        let fixed = manager.write("fixed").fixed_lease(Duration::from_secs(300)).await?;
        let guard = manager.read("cfg").lease(Duration::from_secs(300)).await?;
        for key in ["fixed", "cfg"] {
            assert_ttl(lab.int(&["PTTL", key]), 26_666);
        }
        assert!(guard.remaining() < Duration::from_secs(27) && fixed.remaining() < Duration::from_secs(27));
        let watchdog = Duration::from_secs(3);
        let often = RedissonManager::builder(lab.node.url()).lock_watchdog_timeout(watchdog).build()?;
        let often = often.write("often").lease(Duration::from_secs(60)).await?;
        let (began, mut renewed, mut last) = (Instant::now(), 0, often.remaining());
        while began.elapsed() < watchdog * 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let remaining = often.remaining();
            assert!(remaining < watchdog);
            renewed += i32::from(remaining > last);
            last = remaining;
        }
        assert!(renewed >= 5, "renewed {renewed} times in 6 s, at most 1 s apart");
        Ok(())
    });
}

#[test]
fn missing_field_is_a_loss() {
    in_lab_with(Duration::from_millis(900), async |lab, manager| {
        let guard = manager.write("cfg").await?;
        lab.ask(&["DEL", "cfg"]);
        assert_eq!(guard.lost().await, LossReason::Gone);
        let guard = manager.read("cfg").await?;
        let holder = lab.list(&["HKEYS", "cfg"]).into_iter().find(|field| field != "mode").expect("a holder");
        lab.reader_of_redisson("java:7", "50000");
        lab.ask(&["HDEL", "cfg", &holder]);
        let error = guard.release().await.expect_err("lost");
        assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
        assert_eq!(lab.list(&["HKEYS", "cfg"]), ["java:7", "mode"], "the other reader stays");
        Ok(())
    });
}

#[test]
fn last_live_reader_takes_dead_ones_along() {
    in_lab(async |lab, manager| {
        let other = lab.manager().await;
        // A reader with two holds, of which the first is over.
        lab.reader_of_redisson("java:7", "50000");
        lab.ask(&["HINCRBY", "cfg", "java:7", "1"]);
        lab.ask(&["SET", "{cfg}:java:7:rwlock_timeout:2", "1", "PX", "50000"]);
        lab.ask(&["DEL", "{cfg}:java:7:rwlock_timeout:1"]);
        let guard = manager.read("cfg").await?;
        guard.release().await?;
        assert_eq!(lab.list(&["HKEYS", "cfg"]), ["java:7", "mode"], "its second hold is live");
        let guard = manager.read("cfg").await?;
        lab.ask(&["DEL", "{cfg}:java:7:rwlock_timeout:2"]);
        assert!(other.try_write("cfg").await?.is_none());
        let reader = other.read("cfg").await?;
        guard.release().await?;
        assert_eq!(lab.int(&["HLEN", "cfg"]), 3, "a reader of ours is live");
        let writer = reader.try_upgrade().await.expect("the dead reader does not count");
        assert_eq!(lab.int(&["HLEN", "cfg"]), 2);
        writer.release().await?;
        assert_eq!(lab.int(&["EXISTS", "cfg"]), 0);
        Ok(())
    });
}

#[test]
fn reader_that_leaves_gives_the_others_their_time_back() {
    in_lab(async |lab, manager| {
        let other = lab.manager().await;
        let guards = [manager.read("cfg").await?, other.read("cfg").await?];
        lab.reader_of_redisson("java:7", "50000");
        lab.reader_of_redisson("java:8", "70000");
        // A third reader of Redisson has renewed, and was killed.
        lab.ask(&["PEXPIRE", "cfg", "12000"]);
        for guard in guards {
            guard.release().await?;
        }
        assert_ttl(lab.int(&["PTTL", "cfg"]), 70_000);
        lab.ask(&["HDEL", "cfg", "java:8"]);
        let guard = manager.read("cfg").await?;
        guard.release().await?;
        assert_ttl(lab.int(&["PTTL", "cfg"]), 70_000);
        assert_eq!(lab.list(&["HKEYS", "cfg"]), ["java:7", "mode"]);
        Ok(())
    });
}

#[test]
fn dead_reader_alone_ends_with_the_key_or_by_force() {
    in_lab(async |lab, manager| {
        lab.reader_of_redisson("java:7", "50000");
        lab.ask(&["DEL", "{cfg}:java:7:rwlock_timeout:1"]);
        let view = manager.inspect("cfg").await?;
        assert_eq!((view.holders.len(), view.more_holders, view.is_free()), (0, 1, false));
        assert!(manager.try_write("cfg").await?.is_none());
        assert_eq!(manager.force_release("cfg").await?.len(), 1);
        manager.try_write("cfg").await?.expect("free").release().await?;
        Ok(())
    });
}

#[test]
fn force_ends_what_was_shown_and_nothing_newer() {
    in_lab(async |lab, manager| {
        lab.writer_of_redisson();
        let view = manager.inspect("cfg").await?;
        lab.ask(&["DEL", "cfg"]);
        lab.reader_of_redisson("java:8", "50000");
        assert!(manager.force_release_shown(&view).await?.is_empty());
        assert_eq!(lab.list(&["HKEYS", "cfg"]), ["java:8", "mode"]);
        let view = manager.inspect("cfg").await?;
        assert_eq!(&*manager.force_release_shown(&view).await?[0].label, "java:8");
        assert_eq!(lab.keys(), [""; 0], "timeouts go with their holds");
        Ok(())
    });
}

#[test]
fn tokens_grow_and_readers_inside_share_one() {
    in_lab(async |lab, one| {
        let two = lab.manager().await;
        let first = one.write("cfg").await?;
        let token = first.fencing_token();
        first.release().await?;
        let (a, b) = (one.read("cfg").await?, two.read("cfg").await?);
        assert!(a.fencing_token() > token);
        assert_eq!(a.fencing_token(), b.fencing_token());
        let token = a.fencing_token();
        a.release().await?;
        let c = one.read("cfg").await?;
        assert_eq!(c.fencing_token(), token, "one of ours has been inside all the time");
        drop((b, c));
        one.flush().await?;
        two.flush().await?;
        // Readers of Redisson keep the phase, but have no token that could be shared.
        lab.reader_of_redisson("java:7", "50000");
        let d = one.read("cfg").await?;
        assert!(d.fencing_token() > token);
        let token = d.fencing_token();
        d.release().await?;
        // A loss of the tokens does not take them back.
        lab.ask(&["FLUSHALL"]);
        assert!(two.write("cfg").await?.fencing_token() > token);
        Ok(())
    });
}

#[test]
fn reader_that_crashed_shares_no_token_with_the_next_phase() {
    in_lab(async |lab, manager| {
        let crashed = manager.read("cfg").await?;
        lab.ask(&["DEL", "cfg"]);
        lab.reader_of_redisson("java:7", "50000");
        let next = lab.manager().await.read("cfg").await?;
        assert!(next.fencing_token() > crashed.fencing_token());
        let members = lab.list(&["ZRANGEBYSCORE", "{cfg}:rwlock_tokens", "0", "+inf"]);
        assert_eq!(members.len(), 1, "the record of the crashed reader is gone: {members:?}");
        Ok(())
    });
}

#[test]
fn keys_of_others_are_errors_and_stay() {
    in_lab(async |lab, manager| {
        lab.ask(&["SET", "text", "x"]);
        lab.ask(&["HSET", "hash", "user", "1"]);
        for name in ["text", "hash"] {
            let error = manager.write(name).wait_timeout(Duration::from_secs(2)).await.expect_err("no lock");
            assert!(matches!(error, Error::Refused { refusal: Refusal::ForeignKey, .. }), "{error:?}");
            assert_eq!(lab.int(&["PTTL", name]), -1);
        }
        Ok(())
    });
}

/// Selects the requests with this number of arguments behind three keys.
fn with_arguments(count: usize) -> Matcher {
    Matcher::command("EVALSHA").and(Matcher::new(move |request| request.args().len() == 6 + count))
}

const ACQUIRE: usize = 4;
const RELEASE: usize = 1;

#[test]
fn acquisition_without_a_reply_is_found_again_by_its_id() {
    in_lab(async |lab, manager| {
        for mode in [Mode::Write, Mode::Read] {
            // The scripts are loaded by then.
            take_and_release(manager, mode).await;
            let cut = lab.node.proxy().cut_after_apply(with_arguments(ACQUIRE));
            let fields = match mode {
                Mode::Write => manager.write("cfg").run(async |_| lab.int(&["HLEN", "cfg"])).await,
                Mode::Read => manager.read("cfg").run(async |_| lab.int(&["HLEN", "cfg"])).await,
            };
            cut.wait_applied(LEASE).expect("the reply was lost");
            assert_eq!(fields?, 2, "{mode}: granted once, under the id of the first request");
            assert_eq!(lab.keys(), ["{cfg}:rwlock_tokens"]);
        }
        Ok(())
    });
}

#[test]
fn grants_wait_for_replicas_where_the_level_says_so() {
    run(async {
        let mut lab = Lab::start();
        let replica = Node::builder(Server::Valkey81).arg("--repl-diskless-sync-delay", "0").start().expect("up");
        let mut at_replica = replica.client().expect("the server answers");
        let (host, port) = (lab.node.addr().ip().to_string(), lab.node.addr().port().to_string());
        command(&mut at_replica, &["REPLICAOF", &host, &port]);
        until("the replica follows", async || {
            lab.text(&["INFO", "replication"]).lines().any(|line| line.contains("state=online"))
        })
        .await;
        let level = Durability::Replicated { replicas: Replicas::At(1), timeout: Duration::from_secs(1) };
        let builder = RedissonManager::builder(lab.node.url()).response_timeout(Duration::from_secs(4));
        let manager = builder.durability(level).connect().await.expect("the manager connects");
        let guard = manager.write("cfg").await.expect("the replica has it");
        assert_eq!(command(&mut at_replica, &["HLEN", "cfg"]).int(), Some(2));
        guard.release().await.expect("ours to the end");
        replica.kill();
        let error = manager.read("cfg").await.expect_err("no replica has it");
        assert!(matches!(error, Error::NotEnoughReplicas { .. }), "{error:?}");
        until("the grant is given back", async || lab.int(&["EXISTS", "cfg"]) == 0).await;
    });
}

#[test]
fn release_without_a_reply_was_ours_to_the_end() {
    in_lab(async |lab, manager| {
        works(manager, "cfg").await;
        let guard = manager.write("cfg").await?;
        let cut = lab.node.proxy().cut_after_apply(with_arguments(RELEASE));
        guard.release().await.expect("the record says that the first copy released it");
        cut.wait_applied(LEASE).expect("the reply was lost");
        assert_eq!(lab.int(&["EXISTS", "cfg"]), 0);
        Ok(())
    });
}

#[test]
fn release_without_a_reply_of_a_hold_that_was_ended_is_a_loss() {
    in_lab(async |lab, manager| {
        works(manager, "cfg").await;
        let guard = manager.write("cfg").await?;
        // As a client of Redisson that forces the lock open: it leaves no record.
        lab.ask(&["DEL", "cfg"]);
        let cut = lab.node.proxy().cut_after_apply(with_arguments(RELEASE));
        let error = guard.release().await.expect_err("no copy of the release has ended it");
        cut.wait_applied(LEASE).expect("the reply was lost");
        assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
        Ok(())
    });
}

#[test]
fn what_the_format_cannot_carry_is_refused() {
    in_lab(async |lab, manager| {
        let builder = || RedissonManager::builder(lab.node.url());
        let refused = |built: redis_rwlock::Result<RedissonManager>| match built.expect_err("refused") {
            Error::InvalidOption { option, .. } => option,
            error => panic!("{error:?}"),
        };
        assert_eq!(refused(builder().cache_for(LEASE).build()), "cache_for");
        assert_eq!(refused(builder().durability(Durability::Server).build()), "durability");
        assert_eq!(
            refused(builder().lock_watchdog_timeout(Duration::from_millis(999)).build()),
            "lock_watchdog_timeout"
        );
        let proxy = Topology::proxy(lab.node.url());
        assert_eq!(refused(RedissonManager::builder(proxy).build()), "topology");
        for name in ["a{b", "a{}b", "}{", "a}b", "{", "{}", ""] {
            let error = manager.try_write(name).await.expect_err("no second name is in its slot");
            assert!(matches!(error, Error::InvalidName { .. }), "{name}: {error:?}");
        }
        for name in ["a", "a b", "{a}b", "a{b}", "a{b}c{d", "a%7B"] {
            manager.try_write(name).await?.expect("free").release().await?;
        }
        Ok(())
    });
}
