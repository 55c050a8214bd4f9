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
pub(crate) use crate::transcripts::Side as Mode;
use crate::transcripts::TWO_RECORDS;
use crate::{interpreter, invariants, layout, scripts};
pub(crate) use Mode::{Read, Write};

pub(crate) const LEASE_MS: i64 = 100_000;
/// So much longer than `LEASE_MS` that no stall of the machine makes the two look alike.
pub(crate) const LONG_MS: i64 = 1_000_000;
/// Shorter than a lease, so that it is the claim.
pub(crate) const PATIENCE_MS: i64 = 70_000;
pub(crate) const RETENTION_MS: i64 = 60_000;
pub(crate) const READ_LIMIT_MS: i64 = 100_000;
pub(crate) const WRITE_LIMIT_MS: i64 = 300_000;
/// Below it the two-key scheme keeps until when a waiter is believed.
pub(crate) const HEARD: i64 = 1 << 44;
/// The scripts say a quarter of a second, which a busy machine may take for one command.
const UNHURRIED: (&str, &str) = (", 17592186044416, 250", ", 17592186044416, 20000");
/// A machine's clock is set by so much at a time, now and then.
const CLOCK_STEP_US: i64 = 1_000;
const NEVER_LATE: i64 = 9_000_000_000_000;
pub(crate) const MAX_TOKEN: i64 = 1 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Hash,
    TwoKey,
}

impl Mode {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Read => "r",
            Write => "w",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { token: i64, turns: i64, remaining_ms: i64, waited_for: bool },
    Queued { retry_in_ms: i64, is_kept: bool },
    Contended { retry_in_ms: i64 },
    Kept { retry_in_ms: i64 },
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Held,
    Queued,
    None { forced: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Renewed { remaining_ms: i64 },
    Lost { forced: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    Granted { token: i64, turns: i64, remaining_ms: i64, waited_for: bool },
    Refused,
    Kept,
    Lost { forced: i64 },
    Late,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) token: i64,
    pub(crate) foreign_write_ms: i64,
    pub(crate) foreign_read_ms: i64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) more_holders: i64,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) more_waiters: i64,
    pub(crate) is_marked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: i64,
    pub(crate) remaining_ms: i64,
    pub(crate) note: Option<String>,
}

impl View {
    /// The ids that hold, in order of their names.
    pub(crate) fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.holders.iter().map(|h| h.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    /// The ids that wait, writers first and in their order.
    pub(crate) fn waiting(&self) -> Vec<&str> {
        self.waiters.iter().map(|waiter| waiter.id.as_str()).collect()
    }
}

/// Form of the scripts, and the interpreter that runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Fast,
    Portable,
    /// The portable form in an interpreter of Lua 5.4, outside of the server.
    Lua54,
}

/// A server, and the scripts that are loaded there: by the names of their folder and their own, the hash and the text.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) node: Arc<Node>,
    form: Form,
    scripts: BTreeMap<(&'static str, &'static str), (String, String)>,
}

pub(crate) const SCRIPTS: [(&str, &str, &str); 14] = [
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
pub(crate) struct Wish {
    pub(crate) lease_ms: i64,
    /// 0: it does not wait.
    pub(crate) patience_ms: i64,
    pub(crate) turns: i64,
    pub(crate) not_after_ms: i64,
    /// What it says of itself: `k`, `t`, both or nothing.
    pub(crate) letters: &'static str,
}

impl Default for Wish {
    fn default() -> Self {
        Self::AT_ONCE
    }
}

impl Wish {
    pub(crate) const AT_ONCE: Self =
        Self { lease_ms: LEASE_MS, patience_ms: 0, turns: 1, not_after_ms: NEVER_LATE, letters: "" };

    /// Waits if it must.
    pub(crate) fn patient() -> Self {
        Self { patience_ms: PATIENCE_MS, ..Self::default() }
    }
}

impl Lab {
    pub(crate) fn start(server: Server) -> Arc<Self> {
        Self::start_with(server, &[UNHURRIED])
    }

    /// With other texts in some places of the scripts.
    pub(crate) fn start_with(server: Server, changes: &[(&str, &str)]) -> Arc<Self> {
        let node = Arc::new(Node::start(server).expect("the server starts"));
        Self::load(&node, Form::Fast, changes)
    }

    /// The scripts in this form, with other texts in some places.
    pub(crate) fn load(node: &Arc<Node>, form: Form, changes: &[(&str, &str)]) -> Arc<Self> {
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
        Arc::clone(LABS[place].get_or_init(|| Self::start(server)))
    }

    pub(crate) fn lock(self: &Arc<Self>, scheme: Scheme) -> Lock {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let tag = format!("{{lock {}}}", COUNT.fetch_add(1, Ordering::Relaxed));
        let keys = match scheme {
            Scheme::Hash => vec![format!("{tag}:lock")],
            Scheme::TwoKey => vec![format!("{tag}:read"), format!("{tag}:write")],
        };
        Lock {
            scheme,
            keys,
            channel: format!("{tag}:left"),
            client: self.node.client().expect("the server answers"),
            lab: Arc::clone(self),
            known: (0, 0),
            named: None,
            clock_us: None,
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
    /// The last and the first token that the last `none` told.
    pub(crate) known: (i64, i64),
    /// The holder that the last refusal named, and how many were recorded.
    pub(crate) named: Option<(String, i64)>,
    /// Time that the scripts get as two more keys, if they do not read the server's clock.
    pub(crate) clock_us: Option<i64>,
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

    /// Returns a lock on a server of its own, with scripts in this form.
    pub(crate) fn alone_in(form: Form, scheme: Scheme, server: Server) -> Self {
        let node = Arc::new(Node::start(server).expect("the server starts"));
        Lab::load(&node, form, &[UNHURRIED]).lock(scheme)
    }

    /// Returns a lock on a server of its own, where one script looks at two records, dead or not.
    pub(crate) fn limited(scheme: Scheme, server: Server) -> Self {
        let two = [&TWO_RECORDS[..], &[UNHURRIED]].concat();
        Lab::start_with(server, &two).lock(scheme)
    }

    /// The reply of a script as it is, an error reply included.
    pub(crate) fn try_run(&mut self, script: &'static str, args: &[impl AsRef<str>]) -> Reply {
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
            return interpreter::run(&mut self.client, text, &keys, &args);
        }
        let count = keys.len().to_string();
        let mut command = vec!["EVALSHA", sha, &count];
        command.extend(keys.iter().map(String::as_str));
        command.extend(args.iter().map(AsRef::as_ref));
        self.client.command(&command).expect("the server answers")
    }

    /// Several scripts at once.
    pub(crate) fn pipeline(&mut self, calls: &[(&'static str, Vec<String>)]) -> Vec<Reply> {
        let count = self.keys.len().to_string();
        let commands: Vec<Vec<&str>> = calls
            .iter()
            .map(|(script, args)| {
                let mut command = vec!["EVALSHA", self.lab.scripts[&("hash", *script)].0.as_str(), &count];
                command.extend(self.keys.iter().chain(args).map(String::as_str));
                command
            })
            .collect();
        commands.iter().for_each(|command| self.client.send(command).expect("sent"));
        commands.iter().map(|_| self.client.receive().expect("the server answers")).collect()
    }

    fn run(&mut self, script: &'static str, id: &str, args: &[impl AsRef<str>]) -> Fields {
        let before = self.server_us();
        let reply = self.try_run(script, args);
        let after = self.server_us();
        let mut fields = Fields::of(reply);
        let code = fields.text();
        assert_eq!(fields.text(), if id.is_empty() { "-" } else { id }, "the reply names who is answered");
        let server_us = fields.int() * 1_000_000 + fields.int();
        let range = before - CLOCK_STEP_US..=after + CLOCK_STEP_US;
        assert!(range.contains(&server_us), "{server_us} is the server's time, {before} to {after}");
        if code != "late" && code != "view" {
            invariants::check(self);
        }
        fields.code = code;
        fields.server_us = server_us;
        fields
    }

    /// What a script that gives something up is told beside the id.
    fn with_surroundings(&self, args: &[&str]) -> Vec<String> {
        let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
        match self.scheme {
            Scheme::Hash => args.push(format!("{READ_LIMIT_MS} {WRITE_LIMIT_MS}")),
            Scheme::TwoKey => {}
        }
        args
    }

    pub(crate) fn leave_args(&self, id: &str) -> Vec<String> {
        self.with_surroundings(&[id])
    }

    pub(crate) fn convert_args(&self, old: &str, new: &str, mode: Mode, wish: Wish) -> Vec<String> {
        let numbers = [wish.not_after_ms, wish.lease_ms, wish.turns].map(|number| number.to_string());
        let [not_after_ms, lease_ms, turns] = &numbers;
        let mut args = vec![not_after_ms.as_str(), old, new, mode.letter(), lease_ms];
        if self.scheme == Scheme::Hash {
            args.push(turns);
        }
        let mut args = self.with_surroundings(&args);
        args.extend(wish.letters.contains('k').then(|| "k".to_owned()));
        args
    }

    pub(crate) fn wish_args(&self, id: &str, mode: Mode, wish: Wish) -> Vec<String> {
        let numbers = [wish.not_after_ms, wish.lease_ms, wish.patience_ms, wish.turns].map(|number| number.to_string());
        let [not_after_ms, lease_ms, patience_ms, turns] = numbers;
        let mut args = vec![not_after_ms, id.to_owned(), mode.letter().to_owned(), lease_ms, patience_ms];
        if self.scheme == Scheme::Hash {
            args.extend([turns, format!("{READ_LIMIT_MS} {WRITE_LIMIT_MS}")]);
            args.extend((!wish.letters.is_empty()).then(|| wish.letters.to_owned()));
        }
        args
    }

    /// For `try_run`.
    pub(crate) fn acquire_args(&self, id: &str, mode: Mode, lease_ms: i64) -> Vec<String> {
        self.wish_args(id, mode, Wish { lease_ms, ..Wish::default() })
    }

    pub(crate) fn ask(&mut self, id: &str, mode: Mode, wish: Wish) -> Acquired {
        let args = self.wish_args(id, mode, wish);
        let mut reply = self.run("acquire", id, &args);
        self.named = None;
        let acquired = match reply.code.as_str() {
            "granted" => {
                let (token, turns, remaining_ms, waited_for) = reply.granted();
                Acquired::Granted { token, turns, remaining_ms, waited_for }
            }
            "queued" => Acquired::Queued { retry_in_ms: reply.int(), is_kept: reply.flag() },
            "contended" | "kept" => {
                let (code, retry_in_ms) = (reply.code.clone(), reply.int());
                assert!(!reply.flag(), "only a waiter recalls");
                if code == "kept" { Acquired::Kept { retry_in_ms } } else { Acquired::Contended { retry_in_ms } }
            }
            "late" => Acquired::Late,
            code => panic!("acquire answered {code}"),
        };
        if !matches!(acquired, Acquired::Granted { .. } | Acquired::Late) {
            self.named = reply.named();
        }
        reply.end();
        match acquired {
            Acquired::Granted { token, turns, remaining_ms, .. } => {
                assert!((1..=MAX_TOKEN).contains(&token), "token {token}");
                assert!((1..=2048).contains(&turns), "{turns} turns");
                assert!(remaining_ms >= wish.lease_ms, "at least what was asked for");
                self.assert_covered_until(reply.server_us / 1000 + remaining_ms);
            }
            Acquired::Queued { retry_in_ms, .. } => {
                assert!(retry_in_ms >= 1);
                self.assert_covered_until(reply.server_us / 1000 + wish.patience_ms);
            }
            Acquired::Contended { retry_in_ms } | Acquired::Kept { retry_in_ms } => assert!(retry_in_ms >= 1),
            Acquired::Late => {}
        }
        acquired
    }

    pub(crate) fn acquire_until(&mut self, id: &str, mode: Mode, lease_ms: i64, not_after_ms: i64) -> Acquired {
        self.ask(id, mode, Wish { lease_ms, not_after_ms, ..Wish::default() })
    }

    /// Is queued, and returns when to ask again.
    pub(crate) fn queued(&mut self, id: &str, mode: Mode) -> i64 {
        let acquired = self.ask(id, mode, Wish::patient());
        let Acquired::Queued { retry_in_ms, .. } = acquired else {
            panic!("{id} was not queued {mode:?}: {acquired:?}")
        };
        retry_in_ms
    }

    pub(crate) fn turn(&mut self, old: &str, new: &str, mode: Mode, wish: Wish) -> Turned {
        let args = self.convert_args(old, new, mode, wish);
        let mut reply = self.run("convert", new, &args);
        let turned = match reply.code.as_str() {
            "granted" => {
                let (token, turns, remaining_ms, waited_for) = reply.granted();
                Turned::Granted { token, turns, remaining_ms, waited_for }
            }
            "refused" => Turned::Refused,
            "kept" => Turned::Kept,
            "lost" => Turned::Lost { forced: reply.int() },
            "late" => Turned::Late,
            code => panic!("turn answered {code}"),
        };
        reply.end();
        if let Turned::Granted { remaining_ms, .. } = turned {
            assert!(remaining_ms >= wish.lease_ms, "at least what was asked for");
            self.assert_covered_until(reply.server_us / 1000 + remaining_ms);
        }
        turned
    }

    /// Turns for `LEASE_MS` and returns the token.
    pub(crate) fn turned(&mut self, old: &str, new: &str, mode: Mode) -> i64 {
        let turned = self.turn(old, new, mode, Wish::default());
        let Turned::Granted { token, .. } = turned else { panic!("{old} was not turned {mode:?}: {turned:?}") };
        token
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
        let Acquired::Granted { token, remaining_ms, .. } = acquired else {
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
        let args = self.leave_args(id);
        let mut reply = self.run("leave", id, &args);
        let left = match reply.code.as_str() {
            "held" => Left::Held,
            "queued" => Left::Queued,
            "none" => {
                let forced = reply.int();
                self.known = (reply.int(), reply.int());
                Left::None { forced }
            }
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

    /// Sets a note; false if the hold is over.
    pub(crate) fn note(&mut self, id: &str, number: i64, text: &str) -> bool {
        let reply = self.run("note", id, &[id, &number.to_string(), text]);
        reply.end();
        match reply.code.as_str() {
            "noted" => true,
            "none" => false,
            code => panic!("note answered {code}"),
        }
    }

    pub(crate) fn inspect(&mut self) -> View {
        let mut reply = self.run("inspect", "", &[""; 0]);
        assert_eq!(reply.code, "view");
        let (token, foreign_write_ms, foreign_read_ms) = (reply.int(), reply.int(), reply.int());
        let (more_holders, more_waiters) = (reply.int(), reply.int());
        let is_marked = self.scheme == Scheme::Hash && reply.int() == 1;
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        while let Some(mut row) = reply.row() {
            let (kind, id, mode, since_ms) = (row.text(), row.text(), row.mode(), row.int());
            match kind.as_str() {
                "hold" => {
                    let remaining_ms = row.int();
                    let has_note = !row.words.as_slice().is_empty();
                    assert!(!has_note || row.text() == "note", "a note is behind this row");
                    let note =
                        has_note.then(|| reply.rows.next().expect("a note").text().expect("a text").into_owned());
                    holders.push(Holder { id, mode, since_ms, remaining_ms, note });
                }
                "wait" => waiters.push(Waiter { id, mode, since_ms }),
                kind => panic!("a row of {kind}"),
            }
            row.end();
        }
        reply.end();
        View { token, foreign_write_ms, foreign_read_ms, holders, more_holders, waiters, more_waiters, is_marked }
    }

    /// Ends whatever is there. The ids that were ended, in order of their names.
    pub(crate) fn force(&mut self) -> Vec<String> {
        let seen = self.inspect();
        self.force_seen(&seen)
    }

    /// For `try_run`.
    pub(crate) fn force_args(&self, seen: &View) -> Vec<String> {
        let numbers = [seen.token, seen.foreign_write_ms, seen.foreign_read_ms].map(|number| number.to_string());
        let mut args = self.with_surroundings(&numbers.each_ref().map(String::as_str));
        args.extend((self.scheme == Scheme::Hash).then(|| seen.ids().join(" ")));
        args
    }

    /// The same with what an earlier look has shown, until there is no more.
    pub(crate) fn force_seen(&mut self, seen: &View) -> Vec<String> {
        let mut ended = Vec::new();
        loop {
            let (ids, more) = self.force_step(seen);
            ended.extend(ids);
            if !more {
                ended.sort_unstable();
                return ended;
            }
        }
    }

    /// One call, and whether there is more.
    pub(crate) fn force_step(&mut self, seen: &View) -> (Vec<String>, bool) {
        let args = self.force_args(seen);
        let mut reply = self.run("force", "", &args);
        assert_eq!(reply.code, "forced");
        let more = reply.int() == 1;
        let ids = std::iter::from_fn(|| reply.row().map(|mut row| row.text())).collect();
        reply.end();
        (ids, more)
    }

    /// Answers the call of a try.
    pub(crate) fn used(&mut self, id: &str) {
        let reply = self.run("used", id, &[id]);
        assert_eq!(reply.code, "told");
        reply.end();
    }

    pub(crate) fn holders(&mut self) -> Vec<String> {
        self.inspect().ids().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn waiters(&mut self) -> Vec<String> {
        self.inspect().waiting().into_iter().map(str::to_owned).collect()
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
        if let Some(us) = self.clock_us {
            return us;
        }
        let time = self.command(&["TIME"]);
        let time = time.array().expect("two numbers");
        let number = |part: &Reply| part.text().and_then(|text| text.parse::<i64>().ok()).expect("a number");
        number(&time[0]) * 1_000_000 + number(&time[1])
    }

    pub(crate) fn now_ms(&mut self) -> i64 {
        self.server_us() / 1000
    }

    /// The key whose ttl covers the records.
    pub(crate) fn key(&self) -> String {
        self.keys[0].clone()
    }

    pub(crate) fn field(&mut self, field: &str) -> Option<String> {
        invariants::fields(self).remove(field)
    }

    pub(crate) fn field_ms(&mut self, field: &str) -> i64 {
        let value = self.field(field).expect("the field is there");
        value.strip_suffix(".0").unwrap_or(&value).parse().expect("a number")
    }

    pub(crate) fn set_field(&mut self, field: &str, value: impl ToString) {
        self.change(|fields| drop(fields.insert(field.to_owned(), value.to_string())));
    }

    pub(crate) fn delete_field(&mut self, field: &str) {
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

    /// Lets the lease of `id` end now: its deadline lies in the past.
    pub(crate) fn expire(&mut self, id: &str) {
        let past = self.now_ms() - 1;
        if self.scheme == Scheme::Hash {
            if self.field("W").as_deref() == Some(id) {
                self.set_field("D", past);
                self.set_field("write", past);
            } else if self.field(&format!("U{id}")).is_some() {
                self.set_field(&format!("U{id}"), past);
            } else {
                self.set_field(&format!("R{id}"), past);
            }
        } else {
            let (read_key, write_key) = (self.keys[0].clone(), self.keys[1].clone());
            let heard = (-HEARD - past).to_string();
            let past = past.to_string();
            self.command(&["ZADD", &read_key, "XX", &past, id, &heard, &format!("#u {id}")]);
            let value = self.command(&["GET", &write_key]);
            let writer = value.text().unwrap_or_default();
            if writer.split(' ').next() == Some(id) {
                self.command(&["PEXPIREAT", &write_key, &past]);
            }
        }
    }

    /// Takes the ttl off every key, and tells whether there was a key.
    pub(crate) fn persist(&mut self) {
        let keys = self.keys.clone();
        let lost: i64 = keys.iter().map(|key| self.int(&["PERSIST", key])).sum();
        assert!(lost > 0, "a key had a ttl");
    }

    /// Takes the right to publish off this connection.
    pub(crate) fn lose_channels(&mut self) {
        let user = self.channel.replace(' ', "-");
        let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
        self.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
        self.command(&["AUTH", &user, "pw"]);
    }

    /// The token is remembered for the retention after `deadline_ms`.
    pub(crate) fn assert_covered_until(&mut self, deadline_ms: i64) {
        let key = self.key();
        let until_ms = self.int(&["PEXPIRETIME", &key]);
        assert!(until_ms >= deadline_ms + RETENTION_MS, "{}", until_ms - deadline_ms);
    }

    /// Returns all values that are stored, in the same order for equal values, and the ttls.
    pub(crate) fn stored(&mut self) -> Vec<(Vec<String>, i64)> {
        let keys = self.keys.clone();
        let stored = keys.iter().map(|key| {
            let read: &[&str] = match &*self.command(&["TYPE", key]).text().expect("a text") {
                "hash" => &["HGETALL", key],
                "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
                "string" => &["GETRANGE", key, "0", "-1"],
                _ => return (Vec::new(), -2),
            };
            let value = self.command(read);
            let parts = value.array().map_or_else(|| vec![value.clone()], <[Reply]>::to_vec);
            let mut texts: Vec<String> = parts.chunks(2).map(|pair| format!("{pair:?}")).collect();
            texts.sort_unstable();
            (texts, self.int(&["PEXPIRETIME", key]))
        });
        stored.collect()
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

/// A connection that hears a channel.
#[derive(Debug)]
pub(crate) struct Listener {
    client: Client,
    channel: String,
}

impl Listener {
    pub(crate) fn new(lock: &Lock, channel: &str) -> Self {
        let mut client = lock.lab.node.client().expect("the server answers");
        client.command(&["SSUBSCRIBE", channel]).expect("subscribed");
        Self { client, channel: channel.to_owned() }
    }

    /// What was published until now.
    pub(crate) fn heard(&mut self, lock: &mut Lock) -> Vec<String> {
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

/// The words of a reply, from first to last, and the rows behind them.
#[derive(Debug)]
struct Fields {
    code: String,
    server_us: i64,
    words: std::vec::IntoIter<String>,
    rows: std::vec::IntoIter<Reply>,
}

impl Fields {
    fn of(reply: Reply) -> Self {
        let mut rows = match reply {
            Reply::Array(rows) => rows.into_iter(),
            text => vec![text].into_iter(),
        };
        let head = rows.next().expect("a head");
        let head = head.text().unwrap_or_else(|| panic!("not a text: {head:?}")).into_owned();
        let words: Vec<_> = head.split(' ').map(str::to_owned).collect();
        Self { code: String::new(), server_us: 0, words: words.into_iter(), rows }
    }

    fn row(&mut self) -> Option<Self> {
        self.rows.next().map(Self::of)
    }

    fn text(&mut self) -> String {
        self.words.next().expect("one more word")
    }

    fn int(&mut self) -> i64 {
        let word = self.text();
        assert!(!word.starts_with('-'), "no number of ours is below nothing: {word}");
        word.parse().unwrap_or_else(|_| panic!("not a number, written out: {word}"))
    }

    fn flag(&mut self) -> bool {
        let flag = self.int();
        assert!((0..=1).contains(&flag), "a flag");
        flag == 1
    }

    /// The live holder that a refusal names: its id, and how many are recorded.
    fn named(&mut self) -> Option<(String, i64)> {
        if self.words.as_slice().is_empty() {
            return None;
        }
        let letter = self.text();
        let (deadline_ms, since_ms) = (self.int(), self.int());
        match letter.as_str() {
            "w" => assert!(self.int() > 0, "tokens"),
            other => assert_eq!(other, "s"),
        }
        let (id, holders) = (self.text(), self.int());
        let now_ms = self.server_us / 1000;
        // The clock of a timestamp client may be ahead.
        assert!(deadline_ms > now_ms && (since_ms <= now_ms || id == "?") && holders >= 1, "it is live");
        Some((id, holders))
    }

    fn mode(&mut self) -> Mode {
        match self.text().as_str() {
            "r" => Read,
            "w" => Write,
            letter => panic!("mode {letter}"),
        }
    }

    /// First token, turns, remaining time, and whether writers wait.
    fn granted(&mut self) -> (i64, i64, i64, bool) {
        let (last, turns, remaining_ms) = (self.int(), self.int(), self.int());
        let flag = self.int();
        assert!((0..=1).contains(&flag), "a flag");
        (last - turns + 1, turns, remaining_ms, flag == 1)
    }

    fn end(&self) {
        assert!(self.words.as_slice().is_empty(), "nothing more: {:?}", self.words);
        assert!(self.rows.as_slice().is_empty(), "nothing more: {:?}", self.rows);
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
