//! One lock on a real server, its scripts as typed calls, and the hands to change what is stored.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cluster_testenv::{Client, Node, Reply, Server};

use crate::invariants;

pub(crate) const LEASE_MS: i64 = 100_000;
/// So much longer than `LEASE_MS` that no stall of the machine makes the two look alike.
pub(crate) const LONG_MS: i64 = 1_000_000;
pub(crate) const RETENTION_MS: i64 = 60_000;
pub(crate) const READ_LIMIT_MS: i64 = 100_000;
pub(crate) const WRITE_LIMIT_MS: i64 = 300_000;
const NEVER_LATE: i64 = 9_000_000_000_000;
pub(crate) const MAX_TOKEN: i64 = 1 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Hash,
    TwoKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}
pub(crate) use Mode::{Read, Write};

impl Mode {
    fn letter(self) -> &'static str {
        match self {
            Read => "r",
            Write => "w",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { token: i64, remaining_ms: i64 },
    Contended { retry_in_ms: i64 },
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Held,
    None { forced: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Renewed { remaining_ms: i64 },
    Lost { forced: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) token: i64,
    pub(crate) foreign_write_ms: i64,
    pub(crate) foreign_read_ms: i64,
    pub(crate) holders: Vec<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: i64,
    pub(crate) remaining_ms: i64,
}

impl View {
    /// The ids that hold, in order of their names.
    pub(crate) fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.holders.iter().map(|h| h.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }
}

/// A server and the hashes of the scripts that are loaded there.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) node: Node,
    shas: BTreeMap<(&'static str, &'static str), String>,
}

macro_rules! scripts {
    ($($folder:literal / $name:literal),+ $(,)?) => {
        [$(($folder, $name, include_str!(concat!("../../lua/", $folder, "/", $name, ".lua")))),+]
    };
}
const SCRIPTS: [(&str, &str, &str); 10] = scripts![
    "hash" / "acquire",
    "hash" / "leave",
    "hash" / "renew",
    "hash" / "inspect",
    "hash" / "force",
    "two_key" / "acquire",
    "two_key" / "leave",
    "two_key" / "renew",
    "two_key" / "inspect",
    "two_key" / "force",
];

impl Lab {
    pub(crate) fn start(server: Server) -> Arc<Self> {
        let node = Node::start(server).expect("the server starts");
        let mut client = node.client().expect("the server answers");
        let mut shas = BTreeMap::new();
        for (folder, name, text) in SCRIPTS {
            let reply = client.command(&["SCRIPT", "LOAD", text]);
            let sha = reply.and_then(Reply::into_result).expect("the script compiles");
            let sha = sha.text().expect("a hash").into_owned();
            shas.insert((folder, name), sha);
        }
        Arc::new(Self { node, shas })
    }

    /// The server that cases share which change nothing but their own lock.
    fn shared(server: Server) -> Arc<Self> {
        static REDIS: OnceLock<Arc<Lab>> = OnceLock::new();
        static VALKEY: OnceLock<Arc<Lab>> = OnceLock::new();
        let lab = if server == Server::Redis70 { &REDIS } else { &VALKEY };
        Arc::clone(lab.get_or_init(|| Self::start(server)))
    }

    pub(crate) fn lock(self: &Arc<Self>, scheme: Scheme) -> Lock {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let tag = format!("{{lock {}}}", COUNT.fetch_add(1, Ordering::Relaxed));
        let keys = match scheme {
            Scheme::Hash => vec![tag.clone()],
            Scheme::TwoKey => vec![format!("{tag}:read"), format!("{tag}:write")],
        };
        Lock {
            scheme,
            keys,
            channel: format!("{tag}:left"),
            client: self.node.client().expect("the server answers"),
            lab: Arc::clone(self),
        }
    }
}

/// One lock. Unless a method says otherwise it panics on an error reply.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) scheme: Scheme,
    pub(crate) keys: Vec<String>,
    pub(crate) channel: String,
    pub(crate) client: Client,
    pub(crate) lab: Arc<Lab>,
}

impl Lock {
    /// A lock on a server that other cases use too.
    pub(crate) fn shared(scheme: Scheme, server: Server) -> Self {
        Lab::shared(server).lock(scheme)
    }

    /// A lock on a server of its own.
    pub(crate) fn alone(scheme: Scheme, server: Server) -> Self {
        Lab::start(server).lock(scheme)
    }

    /// The reply of a script as it is, an error reply included.
    pub(crate) fn try_run(&mut self, script: &'static str, args: &[impl AsRef<str>]) -> Reply {
        let folder = match self.scheme {
            Scheme::Hash => "hash",
            Scheme::TwoKey => "two_key",
        };
        let sha = &self.lab.shas[&(folder, script)];
        let count = self.keys.len().to_string();
        let mut command = vec!["EVALSHA", sha, &count];
        command.extend(self.keys.iter().map(String::as_str));
        command.extend(args.iter().map(AsRef::as_ref));
        self.client.command(&command).expect("the server answers")
    }

    fn run(&mut self, script: &'static str, id: &str, args: &[impl AsRef<str>]) -> Fields {
        let before = self.server_us();
        let reply = self.try_run(script, args);
        let after = self.server_us();
        let mut fields = Fields::of(reply);
        let code = fields.text();
        assert_eq!(fields.text(), id, "the reply names who is answered");
        let server_us = fields.int();
        assert!((before..=after).contains(&server_us), "{server_us} is the server's time");
        if code != "late" && code != "view" {
            invariants::check(self);
        }
        fields.code = code;
        fields.server_us = server_us;
        fields
    }

    fn with_channel(&self, args: &[&str]) -> Vec<String> {
        let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
        if self.scheme == Scheme::TwoKey {
            args.push(self.channel.clone());
        }
        args
    }

    fn acquire_args_until(&self, id: &str, mode: Mode, lease_ms: i64, not_after_ms: i64) -> Vec<String> {
        let mode = mode.letter().to_owned();
        let mut args = vec![not_after_ms.to_string(), id.to_owned(), mode, lease_ms.to_string()];
        if self.scheme == Scheme::Hash {
            args.extend([READ_LIMIT_MS.to_string(), WRITE_LIMIT_MS.to_string()]);
        }
        args
    }

    /// For `try_run`.
    pub(crate) fn acquire_args(&self, id: &str, mode: Mode, lease_ms: i64) -> Vec<String> {
        self.acquire_args_until(id, mode, lease_ms, NEVER_LATE)
    }

    pub(crate) fn acquire_until(&mut self, id: &str, mode: Mode, lease_ms: i64, not_after_ms: i64) -> Acquired {
        let args = self.acquire_args_until(id, mode, lease_ms, not_after_ms);
        let mut reply = self.run("acquire", id, &args);
        let acquired = match reply.code.as_str() {
            "granted" => Acquired::Granted { token: reply.int(), remaining_ms: reply.int() },
            "contended" => Acquired::Contended { retry_in_ms: reply.int() },
            "late" => Acquired::Late,
            code => panic!("acquire answered {code}"),
        };
        reply.end();
        match acquired {
            Acquired::Granted { token, remaining_ms } => {
                assert!((1..=MAX_TOKEN).contains(&token), "token {token}");
                assert!(remaining_ms >= lease_ms, "at least what was asked for");
                self.assert_covered_until(reply.server_us / 1000 + remaining_ms);
            }
            Acquired::Contended { retry_in_ms } => assert!(retry_in_ms >= 1),
            Acquired::Late => {}
        }
        acquired
    }

    pub(crate) fn acquire(&mut self, id: &str, mode: Mode, lease_ms: i64) -> Acquired {
        self.acquire_until(id, mode, lease_ms, NEVER_LATE)
    }

    /// Acquires for `LEASE_MS` and returns the token.
    pub(crate) fn granted(&mut self, id: &str, mode: Mode) -> i64 {
        self.granted_for(id, mode, LEASE_MS).0
    }

    /// Acquires and returns the token and the remaining time.
    pub(crate) fn granted_for(&mut self, id: &str, mode: Mode, lease_ms: i64) -> (i64, i64) {
        let acquired = self.acquire(id, mode, lease_ms);
        let Acquired::Granted { token, remaining_ms } = acquired else {
            panic!("{id} was not granted {mode:?}: {acquired:?}")
        };
        (token, remaining_ms)
    }

    /// Tries to acquire for `LEASE_MS` and returns when to ask again.
    pub(crate) fn contended(&mut self, id: &str, mode: Mode) -> i64 {
        let acquired = self.acquire(id, mode, LEASE_MS);
        let Acquired::Contended { retry_in_ms } = acquired else {
            panic!("{id} was not refused {mode:?}: {acquired:?}")
        };
        retry_in_ms
    }

    pub(crate) fn leave(&mut self, id: &str) -> Left {
        let args = self.with_channel(&[id]);
        let mut reply = self.run("leave", id, &args);
        let left = match reply.code.as_str() {
            "held" => Left::Held,
            "none" => Left::None { forced: reply.int() },
            code => panic!("leave answered {code}"),
        };
        reply.end();
        if left == Left::Held {
            self.assert_covered_until(reply.server_us / 1000);
        }
        left
    }

    pub(crate) fn renew(&mut self, id: &str, lease_ms: i64) -> Renewed {
        let mut reply = self.run("renew", id, &[id, &lease_ms.to_string()]);
        let renewed = match reply.code.as_str() {
            "renewed" => Renewed::Renewed { remaining_ms: reply.int() },
            "lost" => Renewed::Lost { forced: reply.int() },
            code => panic!("renew answered {code}"),
        };
        reply.end();
        if let Renewed::Renewed { remaining_ms } = renewed {
            self.assert_covered_until(reply.server_us / 1000 + remaining_ms);
        }
        renewed
    }

    /// Renews and returns the remaining time.
    pub(crate) fn renewed(&mut self, id: &str, lease_ms: i64) -> i64 {
        match self.renew(id, lease_ms) {
            Renewed::Renewed { remaining_ms } => remaining_ms,
            Renewed::Lost { .. } => panic!("{id} is lost"),
        }
    }

    pub(crate) fn inspect(&mut self) -> View {
        let mut reply = self.run("inspect", "", &[""; 0]);
        assert_eq!(reply.code, "view");
        let (token, foreign_write_ms, foreign_read_ms) = (reply.int(), reply.int(), reply.int());
        let mut flat = Fields::of(reply.next());
        reply.end();
        let mut holders = Vec::new();
        while !flat.is_empty() {
            holders.push(Holder {
                id: flat.text(),
                mode: if flat.text() == "r" { Read } else { Write },
                since_ms: flat.int(),
                remaining_ms: flat.int(),
            });
        }
        View { token, foreign_write_ms, foreign_read_ms, holders }
    }

    /// Ends whatever is there. The ids that were ended, in order of their names.
    pub(crate) fn force(&mut self) -> Vec<String> {
        let seen = self.inspect();
        self.force_seen(&seen)
    }

    /// For `try_run`.
    pub(crate) fn force_args(&self, seen: &View) -> Vec<String> {
        let seen = [seen.token, seen.foreign_write_ms, seen.foreign_read_ms].map(|number| number.to_string());
        self.with_channel(&seen.each_ref().map(String::as_str))
    }

    /// The same with what an earlier look has shown.
    pub(crate) fn force_seen(&mut self, seen: &View) -> Vec<String> {
        let args = self.force_args(seen);
        let mut reply = self.run("force", "", &args);
        assert_eq!(reply.code, "forced");
        let mut flat = Fields::of(reply.next());
        reply.end();
        let mut ended = Vec::new();
        while !flat.is_empty() {
            ended.push(flat.text());
        }
        ended.sort_unstable();
        ended
    }

    /// Any command, on this lock's connection.
    pub(crate) fn command(&mut self, args: &[&str]) -> Reply {
        let reply = self.client.command(args).expect("the server answers");
        reply.into_result().expect("the server does it")
    }

    pub(crate) fn int(&mut self, args: &[&str]) -> i64 {
        self.command(args).int().expect("a number")
    }

    pub(crate) fn server_us(&mut self) -> i64 {
        let mut time = Fields::of(self.command(&["TIME"]));
        let (seconds, us) = (time.text(), time.text());
        seconds.parse::<i64>().expect("seconds") * 1_000_000 + us.parse::<i64>().expect("us")
    }

    pub(crate) fn now_ms(&mut self) -> i64 {
        self.server_us() / 1000
    }

    /// The key whose ttl covers the records.
    pub(crate) fn key(&self) -> String {
        self.keys[0].clone()
    }

    pub(crate) fn field(&mut self, field: &str) -> Option<String> {
        let key = self.key();
        let reply = self.command(&["HGET", &key, field]);
        reply.text().map(|text| text.into_owned())
    }

    pub(crate) fn field_ms(&mut self, field: &str) -> i64 {
        let value = self.field(field).expect("the field is there");
        value.parse().expect("a number")
    }

    pub(crate) fn set_field(&mut self, field: &str, value: impl ToString) {
        let key = self.key();
        self.command(&["HSET", &key, field, &value.to_string()]);
    }

    pub(crate) fn delete_field(&mut self, field: &str) {
        let key = self.key();
        self.command(&["HDEL", &key, field]);
    }

    /// Lets the lease of `id` end now: its deadline lies in the past.
    pub(crate) fn expire(&mut self, id: &str) {
        let past = self.now_ms() - 1;
        if self.scheme == Scheme::Hash {
            if self.field("W").as_deref() == Some(id) {
                self.set_field("D", past);
                self.set_field("write", past);
            } else {
                self.set_field(&format!("R{id}"), past);
            }
        } else {
            let (read_key, write_key) = (self.keys[0].clone(), self.keys[1].clone());
            let past = past.to_string();
            self.command(&["ZADD", &read_key, "XX", &past, id]);
            let value = self.command(&["GET", &write_key]);
            let writer = value.text().unwrap_or_default();
            if writer.split(' ').next() == Some(id) {
                self.command(&["PEXPIREAT", &write_key, &past]);
            }
        }
    }

    /// Makes `token` the last one that was given.
    pub(crate) fn set_last_token(&mut self, token: i64) {
        if self.scheme == Scheme::Hash {
            self.set_field("t", token);
        } else {
            let key = self.key();
            self.command(&["ZADD", &key, &(-token).to_string(), "#token"]);
        }
        let key = self.key();
        self.command(&["PEXPIRE", &key, "60000", "NX"]);
    }

    /// Takes the ttl off every key, and tells whether there was a key.
    pub(crate) fn persist(&mut self) {
        let keys = self.keys.clone();
        let lost: i64 = keys.iter().map(|key| self.int(&["PERSIST", key])).sum();
        assert!(lost > 0, "a key had a ttl");
    }

    /// Takes the ttl off the key that also remembers the token.
    pub(crate) fn persist_first(&mut self) {
        let key = self.key();
        assert_eq!(self.int(&["PERSIST", &key]), 1, "it had a ttl");
    }

    /// The token is remembered for the retention after `deadline_ms`.
    pub(crate) fn assert_covered_until(&mut self, deadline_ms: i64) {
        let key = self.key();
        let until_ms = self.int(&["PEXPIRETIME", &key]);
        assert!(until_ms >= deadline_ms + RETENTION_MS, "{}", until_ms - deadline_ms);
    }

    /// Everything that is stored, ttls included.
    pub(crate) fn snapshot(&mut self) -> Vec<(Reply, i64)> {
        let keys = self.keys.clone();
        let stored = keys.iter().map(|key| {
            let dump = self.command(&["DUMP", key]);
            (dump, self.int(&["PEXPIRETIME", key]))
        });
        stored.collect()
    }
}

/// The fields of an array reply, from first to last.
#[derive(Debug)]
struct Fields {
    code: String,
    server_us: i64,
    rest: std::vec::IntoIter<Reply>,
}

impl Fields {
    fn of(reply: Reply) -> Self {
        let Reply::Array(fields) = reply else { panic!("not an array: {reply:?}") };
        Self { code: String::new(), server_us: 0, rest: fields.into_iter() }
    }

    fn is_empty(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    fn next(&mut self) -> Reply {
        self.rest.next().expect("one more field")
    }

    fn text(&mut self) -> String {
        let field = self.next();
        field.text().unwrap_or_else(|| panic!("not a text: {field:?}")).into_owned()
    }

    fn int(&mut self) -> i64 {
        let field = self.next();
        field.int().unwrap_or_else(|| panic!("not a number: {field:?}"))
    }

    fn end(&self) {
        assert!(self.is_empty(), "nothing more: {:?}", self.rest);
    }
}

/// Makes a test of each case for a scheme on a server. A case that is not listed is dead code, which the lints refuse.
macro_rules! on_server {
    ($module:ident, $scheme:ident, $server:ident, $lock:ident: $($case:ident),+) => {
        mod $module {
            use cluster_testenv::Server;
            use crate::lab::{Lock, Scheme};
            $(#[test] fn $case() { super::$case(Lock::$lock(Scheme::$scheme, Server::$server)); })+
        }
    };
}
macro_rules! hash_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::on_server!(hash_on_redis_7_0, Hash, Redis70, $lock: $($case),+);
        $crate::lab::on_server!(hash_on_valkey_9_1, Hash, Valkey91, $lock: $($case),+);
    };
}
macro_rules! two_key_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::on_server!(two_key_on_redis_7_0, TwoKey, Redis70, $lock: $($case),+);
        $crate::lab::on_server!(two_key_on_valkey_9_1, TwoKey, Valkey91, $lock: $($case),+);
    };
}
macro_rules! all_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::hash_cases!($lock: $($case),+);
        $crate::lab::two_key_cases!($lock: $($case),+);
    };
}
pub(crate) use {all_cases, hash_cases, on_server, two_key_cases};
