//! One lock on a real server, its scripts as typed calls, and the hands to change what is stored.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cluster_testenv::{Client, Node, Reply, Server};

use crate::portable::portable;
use crate::transcripts::Seen;
pub use crate::transcripts::Side as Mode;
use crate::{interpreter, invariants, layout, scripts};
pub use Mode::{Read, Write};

pub const LEASE_MS: i64 = 100_000;
/// So much longer than `LEASE_MS` that no stall of the machine makes the two look alike.
pub const LONG_MS: i64 = 1_000_000;
/// Shorter than a lease, so that it is the claim.
pub const PATIENCE_MS: i64 = 70_000;
pub const RETENTION_MS: i64 = 60_000;
pub const READ_LIMIT_MS: i64 = 100_000;
pub const WRITE_LIMIT_MS: i64 = 300_000;
/// Below it the two-key scheme keeps until when a waiter is believed.
pub const HEARD: i64 = 1 << 44;
/// The scripts say a quarter of a second, which a busy machine may take for one command.
const UNHURRIED: (&str, &str) = (", 17592186044416, 250", ", 17592186044416, 20000");
const NEVER_LATE: i64 = 9_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Hash,
    TwoKey,
}

impl Mode {
    pub fn letter(self) -> &'static str {
        match self {
            Read => "r",
            Write => "w",
        }
    }
}

/// Reply of a script, without the id and the time.
#[derive(Debug)]
pub struct Answered {
    pub code: String,
    pub server_us: i64,
    /// The words behind the time.
    pub words: Vec<String>,
    pub rows: Vec<String>,
}

impl Answered {
    /// Reads a reply, which must name the request.
    pub fn of(reply: Reply, id: &str) -> Self {
        let texts = match reply {
            Reply::Array(rows) => rows,
            text => vec![text],
        };
        let mut rows = texts.iter().map(|row| row.text().unwrap_or_else(|| panic!("not a text: {row:?}")).into_owned());
        let head = rows.next().expect("a head");
        let words: Vec<_> = head.split(' ').map(str::to_owned).collect();
        assert_eq!(words[1], id, "{head} names the request");
        let [seconds, micros] = [2, 3].map(|place| words[place].parse::<i64>().expect("a number"));
        let server_us = seconds * 1_000_000 + micros;
        Self { code: words[0].clone(), server_us, words: words[4..].to_vec(), rows: rows.collect() }
    }

    /// Returns the number at a place behind the time.
    fn number(&self, place: usize) -> i64 {
        self.words[place].parse().unwrap_or_else(|_| panic!("no number: {self:?}"))
    }
}

/// State of a lock, as `inspect` shows it.
#[derive(Debug)]
pub struct View {
    pub seen: Seen,
    pub rows: Vec<String>,
}

impl View {
    /// The ids that hold, in order of their names.
    pub fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.seen.ids.iter().map(String::as_str).collect();
        ids.sort_unstable();
        ids
    }

    /// The ids that wait, writers first and in their order.
    pub fn waiting(&self) -> Vec<&str> {
        self.rows.iter().filter_map(|row| row.strip_prefix("wait ")?.split(' ').next()).collect()
    }
}

/// Form of the scripts, and the interpreter that runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Fast,
    Portable,
    /// The portable form in an interpreter of Lua 5.4, outside of the server.
    Lua54,
}

/// A server, and the scripts that are loaded there: by the names of their folder and their own, the hash and the text.
pub struct Lab {
    pub node: Arc<Node>,
    form: Form,
    scripts: BTreeMap<(&'static str, &'static str), (String, String)>,
}

pub const SCRIPTS: [(&str, &str, &str); 14] = [
    ("hash", "acquire", scripts::hash::ACQUIRE),
    ("hash", "leave", scripts::hash::LEAVE),
    ("hash", "convert", scripts::hash::CONVERT),
    ("hash", "renew", scripts::hash::RENEW),
    ("hash", "inspect", scripts::hash::INSPECT),
    ("hash", "force", scripts::hash::FORCE),
    ("hash", "used", scripts::hash::USED),
    ("hash", "note", scripts::hash::NOTE),
    ("two_key", "acquire", scripts::two_key::ACQUIRE),
    ("two_key", "leave", scripts::two_key::LEAVE),
    ("two_key", "convert", scripts::two_key::CONVERT),
    ("two_key", "renew", scripts::two_key::RENEW),
    ("two_key", "inspect", scripts::two_key::INSPECT),
    ("two_key", "force", scripts::two_key::FORCE),
];

/// What an acquisition wants beside the lock.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub lease_ms: i64,
    /// 0: it does not wait.
    pub patience_ms: i64,
    pub turns: i64,
    pub not_after_ms: i64,
    /// What it says of itself: `k`, `t`, both or nothing.
    pub letters: &'static str,
}

impl Wish {
    pub const AT_ONCE: Self =
        Self { lease_ms: LEASE_MS, patience_ms: 0, turns: 1, not_after_ms: NEVER_LATE, letters: "" };
    /// Waits if it must.
    pub const PATIENT: Self = Self { patience_ms: PATIENCE_MS, ..Self::AT_ONCE };
}

impl Lab {
    fn start(form: Form, server: Server) -> Arc<Self> {
        let node = Arc::new(Node::start(server).expect("the server starts"));
        Self::load(&node, form, &[UNHURRIED])
    }

    /// The scripts in this form, with other texts in some places.
    pub fn load(node: &Arc<Node>, form: Form, changes: &[(&str, &str)]) -> Arc<Self> {
        for (from, _) in changes {
            assert!(SCRIPTS.iter().any(|(_, _, text)| text.contains(from)), "{from} is in no script");
        }
        let mut client = node.client().expect("the server answers");
        let mut scripts = BTreeMap::new();
        for (folder, name, text) in SCRIPTS {
            let text = if form == Form::Fast { text.to_owned() } else { portable(text) };
            let text = changes.iter().fold(text, |text, (from, to)| text.replace(from, to));
            let reply = client.command(&["SCRIPT", "LOAD", &text]);
            let sha = reply.and_then(Reply::into_result).expect("the script compiles");
            let sha = sha.text().expect("a hash").into_owned();
            scripts.insert((folder, name), (sha, text));
        }
        Arc::new(Self { node: Arc::clone(node), form, scripts })
    }

    /// The server that cases share which change nothing but their own lock.
    fn shared(server: Server) -> Arc<Self> {
        static LABS: [OnceLock<Arc<Lab>>; Server::ALL.len()] = [const { OnceLock::new() }; Server::ALL.len()];
        let place = Server::ALL.iter().position(|other| *other == server).expect("one of all");
        Arc::clone(LABS[place].get_or_init(|| Self::start(Form::Fast, server)))
    }

    pub fn lock(self: &Arc<Self>, scheme: Scheme) -> Lock {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let tag = format!("{{lock {}}}", COUNT.fetch_add(1, Ordering::Relaxed));
        let keys = match scheme {
            Scheme::Hash => vec![format!("{tag}:lock")],
            Scheme::TwoKey => vec![format!("{tag}:read"), format!("{tag}:write")],
        };
        Lock {
            scheme,
            keys,
            limits_ms: [READ_LIMIT_MS, WRITE_LIMIT_MS],
            client: self.node.client().expect("the server answers"),
            lab: Arc::clone(self),
            clock_us: None,
        }
    }
}

/// Fields or members of each key, with their values, and the end of the key's ttl.
pub type Stored = Vec<(Vec<Vec<Vec<u8>>>, i64)>;

/// One lock. Unless a method says otherwise it panics on an error reply.
pub struct Lock {
    pub scheme: Scheme,
    pub keys: Vec<String>,
    /// Limits of the timestamp clients, for reads and for writes.
    pub limits_ms: [i64; 2],
    pub client: Client,
    pub lab: Arc<Lab>,
    /// Time that the scripts get as two more keys, if they do not read the server's clock.
    pub clock_us: Option<i64>,
}

impl Lock {
    /// A lock on a server that other cases use too.
    pub fn shared(scheme: Scheme, server: Server) -> Self {
        Lab::shared(server).lock(scheme)
    }

    /// A lock on a server of its own.
    pub fn alone(scheme: Scheme, server: Server) -> Self {
        Self::alone_in(Form::Fast, scheme, server)
    }

    /// Returns a lock on a server of its own, with scripts in this form.
    pub fn alone_in(form: Form, scheme: Scheme, server: Server) -> Self {
        Lab::start(form, server).lock(scheme)
    }

    /// The reply of a script as it is, an error reply included.
    pub fn try_run(&mut self, script: &'static str, args: &[impl AsRef<str>]) -> Reply {
        let folder = match self.scheme {
            Scheme::Hash => "hash",
            Scheme::TwoKey => "two_key",
        };
        let lab = Arc::clone(&self.lab);
        let (sha, text) = &lab.scripts[&(folder, script)];
        let time = self.clock_us.iter().flat_map(|us| [us / 1_000_000, us % 1_000_000]);
        let keys: Vec<_> = self.keys.iter().cloned().chain(time.map(|part| part.to_string())).collect();
        if lab.form == Form::Lua54 {
            let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
            return interpreter::run(&mut self.client, (sha, text), &keys, &args);
        }
        let count = keys.len().to_string();
        let mut command = vec!["EVALSHA", sha, &count];
        command.extend(keys.iter().map(String::as_str));
        command.extend(args.iter().map(AsRef::as_ref));
        self.client.command(&command).expect("the server answers")
    }

    /// Several scripts at once.
    pub fn pipeline(&mut self, calls: &[(&'static str, Vec<String>)]) -> Vec<Reply> {
        let count = self.keys.len().to_string();
        let commands: Vec<Vec<&str>> = calls
            .iter()
            .map(|(script, args)| {
                let mut command = vec!["EVALSHA", self.lab.scripts[&("hash", *script)].0.as_str(), &count];
                command.extend(self.keys.iter().chain(args).map(String::as_str));
                command
            })
            .collect();
        self.client.pipeline(&commands).expect("the server answers")
    }

    /// Runs a script, and checks the invariants.
    fn run(&mut self, script: &'static str, id: &str, args: &[impl AsRef<str>]) -> Answered {
        let answered = Answered::of(self.try_run(script, args), id);
        if script != "inspect" {
            invariants::check(self);
        }
        answered
    }

    /// Adds what a script of the hash scheme has to know of timestamp clients.
    pub fn with_limits(&self, mut args: Vec<String>) -> Vec<String> {
        let [read_ms, write_ms] = self.limits_ms;
        args.extend((self.scheme == Scheme::Hash).then(|| format!("{read_ms} {write_ms}")));
        args
    }

    pub fn leave_args(&self, id: &str) -> Vec<String> {
        self.with_limits(vec![id.to_owned()])
    }

    pub fn convert_args(&self, old: &str, new: &str, mode: Mode, wish: Wish) -> Vec<String> {
        let [not_after_ms, lease_ms, turns] =
            [wish.not_after_ms, wish.lease_ms, wish.turns].map(|number| number.to_string());
        let mut args = vec![not_after_ms, old.to_owned(), new.to_owned(), mode.letter().to_owned(), lease_ms];
        args.extend((self.scheme == Scheme::Hash).then_some(turns));
        let mut args = self.with_limits(args);
        args.extend(wish.letters.contains('k').then(|| "k".to_owned()));
        args
    }

    pub fn wish_args(&self, id: &str, mode: Mode, wish: Wish) -> Vec<String> {
        let numbers = [wish.not_after_ms, wish.lease_ms, wish.patience_ms, wish.turns].map(|number| number.to_string());
        let [not_after_ms, lease_ms, patience_ms, turns] = numbers;
        let mut args = vec![not_after_ms, id.to_owned(), mode.letter().to_owned(), lease_ms, patience_ms];
        if self.scheme == Scheme::Hash {
            args.push(turns);
            args = self.with_limits(args);
            args.extend((!wish.letters.is_empty()).then(|| wish.letters.to_owned()));
        }
        args
    }

    pub fn force_args(&self, seen: &Seen) -> Vec<String> {
        let numbers = [seen.token, seen.write_ms, seen.read_ms].map(|number| number.to_string());
        let mut args = self.with_limits(numbers.to_vec());
        args.extend(seen.highest.map(|highest| highest.to_string()));
        args.extend((self.scheme == Scheme::Hash || seen.highest.is_some()).then(|| seen.ids.join(" ")));
        args
    }

    /// Returns each script with arguments that could succeed.
    pub fn every_script(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![
            ("acquire", self.wish_args("a", Read, Wish::PATIENT)),
            ("acquire", self.wish_args("a", Write, Wish::AT_ONCE)),
            ("leave", self.leave_args("a")),
            ("convert", self.convert_args("a", "b", Read, Wish::AT_ONCE)),
            ("convert", self.convert_args("a", "b", Write, Wish::AT_ONCE)),
            ("renew", vec!["a".to_owned(), "1000".to_owned()]),
            ("inspect", Vec::new()),
            ("force", self.force_args(&Seen { token: 1 << 53, ..Seen::default() })),
        ]
    }

    pub fn ask(&mut self, id: &str, mode: Mode, wish: Wish) -> Answered {
        self.run("acquire", id, &self.wish_args(id, mode, wish))
    }

    fn ask_for(&mut self, code: &str, id: &str, mode: Mode, wish: Wish) -> i64 {
        let answered = self.ask(id, mode, wish);
        assert_eq!(answered.code, code, "{id} {mode:?}: {answered:?}");
        answered.number(0)
    }

    /// Acquires for `LEASE_MS`, and returns the token.
    pub fn granted(&mut self, id: &str, mode: Mode) -> i64 {
        self.granted_for(id, mode, LEASE_MS)
    }

    /// Acquires, and returns the token.
    pub fn granted_for(&mut self, id: &str, mode: Mode, lease_ms: i64) -> i64 {
        self.ask_for("granted", id, mode, Wish { lease_ms, ..Wish::AT_ONCE })
    }

    /// Takes a place in the queue.
    pub fn queued(&mut self, id: &str, mode: Mode) {
        self.ask_for("queued", id, mode, Wish::PATIENT);
    }

    /// Tries to acquire in vain, and returns the time to the next request.
    pub fn contended(&mut self, id: &str, mode: Mode) -> i64 {
        self.ask_for("contended", id, mode, Wish::AT_ONCE)
    }

    /// Converts a hold.
    pub fn convert(&mut self, old: &str, new: &str, mode: Mode, wish: Wish) {
        self.run("convert", new, &self.convert_args(old, new, mode, wish));
    }

    /// Releases, and returns the first word of the answer.
    pub fn leave(&mut self, id: &str) -> String {
        self.run("leave", id, &self.leave_args(id)).code
    }

    /// Renews, and returns the first word of the answer.
    pub fn renew(&mut self, id: &str, lease_ms: i64) -> String {
        self.run("renew", id, &[id, &lease_ms.to_string()]).code
    }

    /// Sets a note, and returns the first word of the answer.
    pub fn note(&mut self, id: &str, number: i64, text: &str) -> String {
        self.run("note", id, &[id, &number.to_string(), text]).code
    }

    pub fn inspect(&mut self) -> View {
        let Answered { words, rows, .. } = self.run("inspect", "-", &[""; 0]);
        View { seen: Seen::of(&words.join(" "), &rows), rows }
    }

    /// Ends all present holds, and returns their ids in order.
    pub fn force(&mut self) -> Vec<String> {
        let seen = self.inspect().seen;
        let (args, mut ended) = (self.force_args(&seen), Vec::new());
        loop {
            let answered = self.run("force", "-", &args);
            let has_more = answered.number(0) == 1;
            ended.extend(answered.rows);
            if !has_more {
                ended.sort_unstable();
                return ended;
            }
        }
    }

    /// Answers the call of a try.
    pub fn used(&mut self, id: &str) {
        assert_eq!(self.run("used", id, &[id]).code, "told");
    }

    /// Any command, on this lock's connection.
    pub fn command(&mut self, args: &[&str]) -> Reply {
        self.client.command(args).expect("the server answers").into_result().expect("the server does it")
    }

    /// Returns the text that a command answers.
    pub fn text(&mut self, args: &[&str]) -> String {
        self.command(args).text().expect("a text").into_owned()
    }

    pub fn encoding(&mut self) -> String {
        self.text(&["OBJECT", "ENCODING", &self.key()])
    }

    pub fn delete(&mut self) {
        self.command(&["DEL", &self.key()]);
    }

    pub fn int(&mut self, args: &[&str]) -> i64 {
        self.command(args).int().expect("a number")
    }

    pub fn server_us(&mut self) -> i64 {
        if let Some(us) = self.clock_us {
            return us;
        }
        let time = self.command(&["TIME"]);
        let [seconds, micros] = time.array().expect("two numbers") else { panic!("{time:?}") };
        let number = |part: &Reply| part.text().and_then(|text| text.parse::<i64>().ok()).expect("a number");
        number(seconds) * 1_000_000 + number(micros)
    }

    pub fn now_ms(&mut self) -> i64 {
        self.server_us() / 1000
    }

    /// The key whose ttl covers the records.
    pub fn key(&self) -> String {
        self.keys[0].clone()
    }

    pub fn field(&mut self, field: &str) -> Option<String> {
        invariants::fields(self).remove(field)
    }

    pub fn set_field(&mut self, field: &str, value: impl ToString) {
        self.change(|fields| drop(fields.insert(field.to_owned(), value.to_string())));
    }

    pub fn delete_field(&mut self, field: &str) {
        self.change(|fields| drop(fields.remove(field)));
    }

    /// Changes what is stored, as fields of one value.
    fn change(&mut self, change: impl FnOnce(&mut layout::Fields)) {
        let before = invariants::stored(self);
        let mut fields = layout::unpack(&before);
        assert_eq!(layout::pack(&fields), before, "nothing is lost on the way");
        change(&mut fields);
        let after = layout::pack(&fields);
        let key = self.key();
        for (name, value) in after.iter().filter(|(name, value)| before.get(*name) != Some(value)) {
            self.command(&["HSET", &key, name, value]);
        }
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            self.command(&["HDEL", &key, name]);
        }
    }

    /// Lets the lease of `id` in the hash end now: its deadline lies in the past.
    pub fn expire(&mut self, id: &str) {
        let past = self.now_ms() - 1;
        if self.field("W").as_deref() == Some(id) {
            self.set_field("D", past);
            self.set_field("write", past);
        } else if self.field(&format!("U{id}")).is_some() {
            self.set_field(&format!("U{id}"), past);
        } else {
            self.set_field(&format!("R{id}"), past);
        }
    }

    /// Takes the ttl off every key, and tells whether there was a key.
    pub fn persist(&mut self) {
        let keys = self.keys.clone();
        let lost: i64 = keys.iter().map(|key| self.int(&["PERSIST", key])).sum();
        assert!(lost > 0, "a key had a ttl");
    }

    /// Takes the right to publish off this connection.
    pub fn lose_channels(&mut self) {
        let user = self.key().replace(' ', "-");
        let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
        self.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
        self.command(&["AUTH", &user, "pw"]);
    }

    /// Returns all values that are stored, in the same order for equal values, and the ends of their ttls.
    pub fn stored(&mut self) -> Stored {
        let keys = self.keys.clone();
        let stored = keys.iter().map(|key| {
            let read: &[&str] = match &*self.text(&["TYPE", key]) {
                "hash" => &["HGETALL", key],
                "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
                "list" => &["LRANGE", key, "0", "-1"],
                "string" => &["GETRANGE", key, "0", "-1"],
                _ => return (Vec::new(), -2),
            };
            let value = self.command(read);
            let parts = value.array().map_or_else(|| vec![value.clone()], <[Reply]>::to_vec);
            let bytes = |part: &Reply| match part {
                Reply::Bulk(bytes) => bytes.clone(),
                other => panic!("{other:?} is stored nowhere"),
            };
            let mut texts: Vec<Vec<_>> = parts.chunks(2).map(|pair| pair.iter().map(bytes).collect()).collect();
            texts.sort_unstable();
            (texts, self.int(&["PEXPIRETIME", key]))
        });
        stored.collect()
    }
}

/// A connection that hears a channel.
pub struct Listener {
    client: Client,
    channel: String,
}

impl Listener {
    pub fn new(lock: &Lock, channel: &str) -> Self {
        let mut client = lock.lab.node.client().expect("the server answers");
        client.command(&["SSUBSCRIBE", channel]).expect("subscribed");
        Self { client, channel: channel.to_owned() }
    }

    /// What was published until now.
    pub fn heard(&mut self, lock: &mut Lock) -> Vec<String> {
        const END: &str = "no more";
        assert_eq!(lock.int(&["SPUBLISH", &self.channel, END]), 1);
        let mut heard = Vec::new();
        loop {
            let message = self.client.receive().expect("a message");
            let message = message.array().expect("kind, channel, text").to_vec();
            let text = |part: &Reply| part.text().expect("a text").into_owned();
            assert_eq!(text(&message[0]), "smessage");
            assert_eq!(text(&message[1]), self.channel);
            if text(&message[2]) == END {
                return heard;
            }
            heard.push(text(&message[2]));
        }
    }
}

/// Makes a test of each case for a scheme on a server. A case that is not listed is dead code, which the lints refuse.
macro_rules! on_server {
    ($(#[$later:meta])? $module:ident, $scheme:ident, $server:ident, $lock:ident: $($case:ident),+) => {
        mod $module {
            use cluster_testenv::Server;
            use crate::lab::{Lock, Scheme};
            $crate::lab::on_server!(@ $(#[$later])? $scheme, $server, $lock: $($case),+);
        }
    };
    (@ $scheme:ident, $server:ident, $lock:ident: $($case:ident),+) => {
        $(#[test] fn $case() { super::$case(Lock::$lock(Scheme::$scheme, Server::$server)); })+
    };
    (@ #[$later:meta] $scheme:ident, $server:ident, $lock:ident: $($case:ident),+) => {
        $(#[test] #[$later] fn $case() { super::$case(Lock::$lock(Scheme::$scheme, Server::$server)); })+
    };
}
/// On each push, each scheme runs on two of the four servers.
macro_rules! hash_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::on_server!(#[ignore = "runs in `.ci/all`"] hash_on_redis_7_0, Hash, Redis70, $lock: $($case),+);
        $crate::lab::on_server!(hash_on_redis_8_2, Hash, Redis82, $lock: $($case),+);
        $crate::lab::on_server!(#[ignore = "runs in `.ci/all`"] hash_on_valkey_8_1, Hash, Valkey81, $lock: $($case),+);
        $crate::lab::on_server!(hash_on_valkey_9_1, Hash, Valkey91, $lock: $($case),+);
    };
}
macro_rules! two_key_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::on_server!(two_key_on_redis_7_0, TwoKey, Redis70, $lock: $($case),+);
        $crate::lab::on_server!(#[ignore = "runs in `.ci/all`"] two_key_on_redis_8_2, TwoKey, Redis82, $lock: $($case),+);
        $crate::lab::on_server!(two_key_on_valkey_8_1, TwoKey, Valkey81, $lock: $($case),+);
        $crate::lab::on_server!(#[ignore = "runs in `.ci/all`"] two_key_on_valkey_9_1, TwoKey, Valkey91, $lock: $($case),+);
    };
}
macro_rules! all_cases {
    ($lock:ident: $($case:ident),+ $(,)?) => {
        $crate::lab::hash_cases!($lock: $($case),+);
        $crate::lab::two_key_cases!($lock: $($case),+);
    };
}
pub(crate) use {all_cases, hash_cases, on_server, two_key_cases};
