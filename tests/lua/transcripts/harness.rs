//! Transcripts. Scenarios of one lock as text, which run on each server that is plugged in.
//!
//! A line `on hash, specification` names the servers of the scenarios below it. With `two records` at its end, one
//! operation touches at most two records. A scenario begins with `= ` and the promise that it checks. Each further line
//! has steps with `;` between them. After `->` follows what must come of them: the answers, the messages that the
//! server publishes, and in brackets the holders and waiters after the steps, if they have changed. A `?` stands for
//! any word.
//!
//! Time stands still except for `advance`, so all times are exact. Times and tokens count from the start of the
//! scenario, tokens in seconds and microseconds: `2s+1`. Without other words a lease has 10 s, and a waiter lives 7 s
//! without a repeat.
//!
//! | step | meaning |
//! |---|---|
//! | `a, b read` `r1..r9 write` | each requests the lock and does not wait |
//! | `a waits to read` `a waits 3s to write` | requests the lock, and waits |
//! | `a tries to write` | requests the lock as a try |
//! | … `lease 2s` `tokens 9` `cached` `by 1ms` | lease, wanted tokens, may cache, latest time to execute |
//! | … `above 5s` `raised to 5s` | lowest token, of a new hold or of any |
//! | `a releases` `a renews lease 2s` `a renews cached tokens 9` | |
//! | `a renews until 30s` `a releases until 30s` | the hold lasts, or rests, until this point in time |
//! | `a becomes reader b lease 2s` | converts the hold a into the hold b |
//! | `a notes 2 some text` | sets the note with this number |
//! | `inspect` `force` `force seen` | ends the holds of now, or of the last `inspect` or `force` |
//! | `force shown 3 highest 5 a b` | ends what several servers have shown |
//! | `client x reads` `client x writes at -2s` `client x leaves` | a timestamp client, with its own clock |
//! | `client x overwrites write` `delete read` | changes a timestamp without a look at the others |
//! | `used a` | replies to the recall of the try a |
//! | `advance 2s` `lose key` `lose ttl` `lose channels` | the clock; the key, its ttl, or the right to publish is lost |
//!
//! | outcome | meaning |
//! |---|---|
//! | `granted 5 to 7 for 7s, waited for` | tokens; time, if not the lease; whether the hold keeps a waiter out |
//! | `queued 3s, recalls` `contended 3s` `cached 3s` | time to the next request; the last is at a cached hold |
//! | `none of 0 to 5, forced 3` | first and last token of the key; last token of the last force |
//! | `b c: granted 5 for 7s` `b: may ask` `recall 5 by t` | messages to waiters, and to the caching process |
//! | `held, unpublished` | the answer reports that the server has refused a message |
#![allow(unreachable_pub)] // the module is private to the tests

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::thread;

/// Clients of the timestamp scheme rely on these limits.
pub const READ_LIMIT_MS: u64 = 4_000;
pub const WRITE_LIMIT_MS: u64 = 6_000;
/// The channel of a waiter has the first 32 characters of its id.
pub const MANAGER: &str = "0123456789abcdef0123456789abcdef";
/// Start of each scenario: the year 2050, so no server removes a key on its own. Many numbers divide it.
const START_US: u64 = 2_524_608_000_000_000;
const LEASE_MS: u64 = 10_000;
const WAITER_MS: u64 = 7_000;
const DAY_MS: i64 = 86_400_000;

const FILES: [(&str, &str); 11] = [
    ("contract", include_str!("contract.txt")),
    ("force", include_str!("force.txt")),
    ("conversions", include_str!("conversions.txt")),
    ("notes", include_str!("notes.txt")),
    ("queue", include_str!("queue.txt")),
    ("rests", include_str!("rests.txt")),
    ("tickets", include_str!("tickets.txt")),
    ("timestamps", include_str!("timestamps.txt")),
    ("cached", include_str!("cached.txt")),
    ("limits", include_str!("limits.txt")),
    ("two_key", include_str!("two_key.txt")),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Read,
    Write,
}

/// Wishes of a request, as the scripts get them.
#[derive(Clone, Debug)]
pub struct Wish {
    pub id: String,
    pub side: Side,
    pub lease_ms: u64,
    /// 0 if the request does not wait.
    pub waiter_ms: u64,
    pub is_try: bool,
    pub tokens: u64,
    pub caches: bool,
    pub not_after_ms: u64,
    /// Lowest token, and true if the token of a live hold is raised to it.
    pub floor: Option<(u64, bool)>,
    /// Time until which a renewed hold lasts, or a released one rests.
    pub rest_until_ms: Option<u64>,
}

/// View that a force ends.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub token: u64,
    pub write_ms: u64,
    pub read_ms: u64,
    pub ids: Vec<String>,
    /// Highest token that any of several servers has shown.
    pub highest: Option<u64>,
}

impl Seen {
    /// Returns what a reply to `inspect` shows.
    pub fn of(text: &str, rows: &[String]) -> Self {
        let words = numbers(text);
        let holders = rows.iter().filter_map(|row| row.strip_prefix("hold "));
        let ids = holders.filter_map(|row| row.split(' ').next()).map(str::to_owned).collect();
        Self { token: words[0], write_ms: words[1], read_ms: words[2], ids, highest: None }
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Acquire(Wish),
    Release { id: String, rest_until_ms: Option<u64> },
    Renew { id: String, lease_ms: u64, tokens: Option<u64>, rest_until_ms: Option<u64> },
    Convert(String, Wish),
    Note { id: String, number: u64, text: String },
    Inspect,
    Force(Seen),
    Used(String),
    ClientLock(Side, u64),
    ClientUnlock(Side, u64),
    SetStamp(Side, Option<u64>),
    LoseKey,
    LoseTtl,
    LoseChannels,
}

/// Reply of a script without the id and the time, its rows, and the messages that were published. Recalls begin with
/// `call`. For a client of the timestamp scheme the reply is `1` or `0`.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Answer {
    pub text: String,
    pub rows: Vec<String>,
    pub messages: Vec<String>,
    /// True if the reply reports that the server has refused a message.
    pub is_unpublished: bool,
}

/// One lock on a server.
pub trait Server {
    /// Executes a step when the server's clock shows `now_us`.
    fn run(&mut self, now_us: u64, step: &Step) -> Answer;
}

/// Limit of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    Usual,
    TwoRecords,
}

/// Plays all scenarios for the server with this name, each on a new lock, and returns their number. Panics with the true
/// transcripts of those that differ.
pub fn play<S: Server>(server: &str, new_lock: impl Fn(Limit) -> S + Sync) -> usize {
    // Plays the files at the same time, because a scenario mostly waits for the answers of its server.
    let played: Vec<_> = thread::scope(|scope| {
        let files = FILES.map(|(file, text)| scope.spawn(|| play_file(file, text, server, &new_lock)));
        files.map(|file| file.join().unwrap_or_else(|panic| resume_unwind(panic))).into()
    });
    let (count, wrong): (usize, String) =
        played.into_iter().fold((0, String::new()), |(sum, all), (count, wrong)| (sum + count, all + &wrong));
    assert!(count > 10, "{count} scenarios of {server}");
    assert!(wrong.is_empty(), "{server} plays otherwise:\n{wrong}");
    count
}

/// Plays the scenarios of one file. Returns their number, and the true transcripts of those that differ.
fn play_file<S: Server>(file: &str, text: &str, server: &str, new_lock: impl Fn(Limit) -> S) -> (usize, String) {
    let (mut wrong, mut count) = (String::new(), 0);
    let (mut servers, mut limit) = (Vec::new(), Limit::Usual);
    for part in text.split("\n= ") {
        let (scenario, next) = part.split_once("\non ").map_or((part, None), |(scenario, on)| (scenario, Some(on)));
        let (title, steps) = scenario.split_once('\n').unwrap_or((scenario, ""));
        if servers.contains(&server) {
            println!("= {title}");
            count += 1;
            let played = Scenario::new(new_lock(limit)).play(steps);
            let expected = steps.lines().filter(|line| is_step(line));
            if !expected.zip(&played).all(|(expected, played)| agree(expected, played)) {
                write!(wrong, "\n{file}.txt: = {title}\n{}\n", played.join("\n")).expect("a text");
            }
        }
        if let Some(on) = next {
            servers = on.trim().split(", ").collect();
            limit = if servers.contains(&"two records") { Limit::TwoRecords } else { Limit::Usual };
        }
    }
    (count, wrong)
}

fn is_step(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}

fn agree(expected: &str, played: &str) -> bool {
    let (expected, played) = (expected.split_whitespace(), played.split_whitespace());
    expected.clone().count() == played.clone().count()
        && expected.zip(played).all(|(expected, played)| expected == "?" || expected == played)
}

struct Scenario<S> {
    server: S,
    now_us: u64,
    /// View of the last `inspect` or `force`.
    seen: Seen,
    /// Clients of the timestamp scheme that are inside.
    clients: BTreeMap<String, (Side, u64)>,
    state: String,
}

impl<S: Server> Scenario<S> {
    fn new(server: S) -> Self {
        let (now_us, clients, state) = (START_US, BTreeMap::new(), "free".to_owned());
        Self { server, now_us, seen: Seen::default(), clients, state }
    }

    /// Returns each step with what came of it.
    fn play(mut self, steps: &str) -> Vec<String> {
        steps.lines().filter(|line| is_step(line)).map(|line| self.line(line)).collect()
    }

    fn line(&mut self, line: &str) -> String {
        println!("{line}");
        let step = line.split("->").next().unwrap_or_default().trim();
        let (mut answers, mut messages) = (Vec::new(), Vec::new());
        for part in step.split("; ") {
            let words: Vec<&str> = part.split_whitespace().collect();
            let (mut each, heard): (Vec<_>, Vec<_>) = self.apply(&words).into_iter().unzip();
            each.retain(|answer| !answer.is_empty());
            each.dedup();
            answers.extend(each);
            messages.extend(heard.concat());
        }
        let messages = grouped(&messages);
        let mut came: Vec<_> = (!answers.is_empty()).then(|| answers.join(" / ")).into_iter().chain(messages).collect();
        let state = self.look();
        if state != self.state {
            let last = came.pop().map_or_else(String::new, |last| format!("{last} "));
            came.push(format!("{last}[{state}]"));
            self.state = state;
        }
        if came.is_empty() { step.to_owned() } else { format!("{step} -> {}", came.join("; ")) }
    }

    fn run(&mut self, step: &Step, lease_ms: u64) -> (String, Vec<String>) {
        let answer = self.server.run(self.now_us, step);
        if let Step::Acquire(_) = step {
            self.check_named(&answer.text);
        }
        let messages = answer.messages.iter().map(|message| self.message(message)).collect();
        let refused = if answer.is_unpublished { ", unpublished" } else { "" };
        (self.text(&answer, lease_ms) + refused, messages)
    }

    /// Asserts that a refusal names a live holder with its times, unless only waiters are ahead.
    fn check_named(&mut self, refusal: &str) {
        let words: Vec<&str> = refusal.split(' ').collect();
        let (side, deadline_ms, since_ms, id) = match words[..] {
            ["queued" | "contended" | "kept", _, _] => ("", 0, 0, ""),
            ["queued" | "contended" | "kept", _, _, "w", deadline_ms, since_ms, _, id, _] => {
                ("w", number(deadline_ms), number(since_ms), id)
            }
            ["queued" | "contended" | "kept", _, _, "s", deadline_ms, since_ms, id, _] => {
                ("r", number(deadline_ms), number(since_ms), id)
            }
            _ => return,
        };
        let view = self.inspect();
        let remaining_ms = deadline_ms.saturating_sub(self.now_us / 1000);
        let is_it = |row: &String| match row.split(' ').collect::<Vec<_>>()[..] {
            ["hold", holder, letter, since, ms, ..] => {
                let has_times = number(ms) == remaining_ms && (since_ms == 0 || number(since) == since_ms);
                holder == id && letter == side && has_times
            }
            _ => false,
        };
        let stamps = numbers(&view.text);
        match id {
            "" => assert!(!view.rows.iter().any(|row| row.starts_with("hold")), "{refusal} beside {view:?}"),
            "?" => assert!(stamps[1].max(stamps[2]) > 0 || view.rows.iter().any(is_it), "{refusal} beside {view:?}"),
            // A view shows a limited number of holders, and no writer whose stamp is gone.
            _ => assert!(
                stamps[3] > 0 || !view.rows.iter().any(|row| row.starts_with("hold")) || view.rows.iter().any(is_it),
                "{refusal} beside {view:?}"
            ),
        }
    }

    fn inspect(&mut self) -> Answer {
        self.server.run(self.now_us, &Step::Inspect)
    }

    fn apply(&mut self, words: &[&str]) -> Vec<(String, Vec<String>)> {
        match words {
            ["advance", time] => {
                self.now_us = self.now_us.wrapping_add_signed(us(time));
                Vec::new()
            }
            ["inspect"] => {
                let view = self.inspect();
                self.seen = Seen::of(&view.text, &view.rows);
                vec![(self.text(&view, 0), Vec::new())]
            }
            ["force"] => {
                let view = self.inspect();
                self.seen = Seen::of(&view.text, &view.rows);
                self.apply(&["force", "seen"])
            }
            ["force", "seen"] => vec![self.run(&Step::Force(self.seen.clone()), 0)],
            ["force", "shown", token, "highest", highest, ids @ ..] => {
                let ids = ids.iter().map(|id| full(id)).collect();
                let highest = Some(self.token(highest));
                let token = if *token == "none" { 0 } else { self.token(token) };
                vec![self.run(&Step::Force(Seen { token, ids, highest, ..Seen::default() }), 0)]
            }
            ["lose", "key"] => vec![self.run(&Step::LoseKey, 0)],
            ["lose", "ttl"] => vec![self.run(&Step::LoseTtl, 0)],
            ["lose", "channels"] => vec![self.run(&Step::LoseChannels, 0)],
            ["delete", side] => vec![self.run(&Step::SetStamp(side_of(side), None), 0)],
            ["used", id] => vec![self.run(&Step::Used(full(id)), 0)],
            ["client", name, rest @ ..] => vec![(self.client(name, rest), Vec::new())],
            _ => self.requests(words),
        }
    }

    /// Applies a step of a client of the timestamp scheme.
    fn client(&mut self, name: &str, words: &[&str]) -> String {
        let skew_ms = if let [.., "at", time] = words { us(time) / 1000 } else { 0 };
        let stamp_ms = (self.now_us / 1000).wrapping_add_signed(skew_ms);
        let step = match words[0] {
            "leaves" => {
                let (side, stamp_ms) = self.clients.remove(name).expect("a client that is inside");
                Step::ClientUnlock(side, stamp_ms)
            }
            "overwrites" => {
                self.clients.insert(name.to_owned(), (side_of(words[1]), stamp_ms));
                Step::SetStamp(side_of(words[1]), Some(stamp_ms))
            }
            verb => Step::ClientLock(side_of(verb), stamp_ms),
        };
        let answer = self.server.run(self.now_us, &step);
        match (&step, answer.text.as_str()) {
            (Step::ClientLock(side, _), "1") => {
                self.clients.insert(name.to_owned(), (*side, stamp_ms));
                "enters".to_owned()
            }
            (Step::ClientLock(..), _) => "refused".to_owned(),
            _ => String::new(),
        }
    }

    /// Applies the request of one or several ids.
    fn requests(&mut self, words: &[&str]) -> Vec<(String, Vec<String>)> {
        let count = 1 + words.iter().take_while(|word| word.ends_with(',')).count();
        let ids: Vec<String> = words[..count].iter().flat_map(|word| ids(word.trim_end_matches(','))).collect();
        let request = &words[count..];
        ids.iter().map(|id| self.request(id, request)).collect()
    }

    fn request(&mut self, id: &str, words: &[&str]) -> (String, Vec<String>) {
        let (waiter_ms, is_try, words) = match words {
            ["waits" | "wait", "to", rest @ ..] => (WAITER_MS, false, rest),
            ["waits" | "wait", time, "to", rest @ ..] => (ms(time), false, rest),
            ["tries" | "try", "to", rest @ ..] => (WAITER_MS, true, rest),
            rest => (0, false, rest),
        };
        let mut wish = Wish {
            id: full(id),
            side: Side::Read,
            lease_ms: LEASE_MS,
            waiter_ms,
            is_try,
            tokens: 1,
            caches: false,
            not_after_ms: (self.now_us / 1000).wrapping_add_signed(DAY_MS),
            floor: None,
            rest_until_ms: None,
        };
        match words {
            ["releases" | "release", rest @ ..] => {
                self.read_options(&mut wish, rest);
                self.run(&Step::Release { id: wish.id, rest_until_ms: wish.rest_until_ms }, 0)
            }
            ["renews" | "renew", rest @ ..] => {
                wish.tokens = 0;
                self.read_options(&mut wish, rest);
                let tokens = wish.caches.then_some(wish.tokens);
                let (lease_ms, rest_until_ms) = (wish.lease_ms, wish.rest_until_ms);
                self.run(&Step::Renew { id: wish.id, lease_ms, tokens, rest_until_ms }, lease_ms)
            }
            ["notes" | "note", count, text @ ..] => {
                self.run(&Step::Note { id: wish.id, number: number(count), text: text.join(" ") }, 0)
            }
            ["becomes", side @ ("reader" | "writer"), new, rest @ ..] => {
                (wish.id, wish.side) = (full(new), side_of(side));
                self.read_options(&mut wish, rest);
                let lease_ms = wish.lease_ms;
                self.run(&Step::Convert(full(id), wish), lease_ms)
            }
            [verb, rest @ ..] => {
                wish.side = side_of(verb);
                self.read_options(&mut wish, rest);
                let lease_ms = wish.lease_ms;
                self.run(&Step::Acquire(wish), lease_ms)
            }
            [] => panic!("{id} does nothing"),
        }
    }

    fn read_options(&self, wish: &mut Wish, words: &[&str]) {
        let at = |start_us: u64, time: &str| (start_us / 1000).wrapping_add_signed(us(time) / 1000);
        let rest = match words {
            ["lease", time, rest @ ..] => {
                wish.lease_ms = ms(time);
                rest
            }
            ["tokens", count, rest @ ..] => {
                wish.tokens = number(count);
                rest
            }
            ["cached", rest @ ..] => {
                wish.caches = true;
                rest
            }
            ["by", time, rest @ ..] => {
                wish.not_after_ms = at(self.now_us, time);
                rest
            }
            ["until", time, rest @ ..] => {
                wish.rest_until_ms = Some(at(START_US, time));
                rest
            }
            ["above", token, rest @ ..] => {
                wish.floor = Some((self.token(token), false));
                rest
            }
            ["raised", "to", token, rest @ ..] => {
                wish.floor = Some((self.token(token), true));
                rest
            }
            [] => return,
            other => panic!("no options: {other:?}"),
        };
        self.read_options(wish, rest);
    }

    /// Reads a token, `<seconds>s+<microseconds>`.
    fn token(&self, text: &str) -> u64 {
        text.split('+')
            .map(|part| if part.ends_with('s') { us(part) } else { part.parse().expect("a number") })
            .fold(START_US, |sum, us| sum.wrapping_add_signed(us))
    }

    /// Looks at the lock. The server changes nothing.
    fn look(&mut self) -> String {
        let view = self.inspect();
        let words = numbers(&view.text);
        let (mut clients, mut parts) = (Vec::new(), Vec::new());
        let mut rows = view.rows.iter();
        while let Some(row) = rows.next() {
            let row: Vec<_> = row.split(' ').collect();
            if row[0] == "hold" && row.last() == Some(&"note") {
                let text = rows.next().expect("the text is behind the row");
                parts.push(format!("note of {}: {text}", name(row[1])));
            }
            clients.push(row);
        }
        let group = |kind: &str, letter: &str| {
            let is_of_kind = |row: &&Vec<&str>| if row[1].starts_with('@') { kind == "rest" } else { row[0] == kind };
            let clients = clients.iter().filter(|row| is_of_kind(row) && row[2] == letter);
            let mut names: Vec<_> = clients.map(|row| name(row[1])).collect();
            if letter == "r" {
                names.sort_unstable(); // any order within one millisecond is right
            }
            names
        };
        parts.sort_unstable(); // any order of holders is right
        for (kind, letter, one, several) in [
            ("hold", "w", "writes", "write"),
            ("rest", "w", "rests", "rest"),
            ("hold", "r", "reads", "read"),
            ("wait", "w", "waits to write", "wait to write"),
            ("wait", "r", "waits to read", "wait to read"),
        ] {
            let names = group(kind, letter);
            match names[..] {
                [] => {}
                [name] => parts.push(format!("{name} {one}")),
                _ => parts.push(format!("{} {several}", list(&names))),
            }
        }
        for (count, what) in [(words[3], "holders"), (words[4], "waiters")] {
            parts.extend((count > 0).then(|| format!("{count} more {what}")));
        }
        for (stamp_ms, what) in [(words[1], "write"), (words[2], "read")] {
            parts.extend((stamp_ms > 0).then(|| format!("foreign {what} {}", time(stamp_ms))));
        }
        parts.extend((words.get(5) == Some(&1)).then(|| "recallable".to_owned()));
        if parts.is_empty() { "free".to_owned() } else { parts.join("; ") }
    }

    /// Returns the answer in the words of transcripts.
    fn text(&self, answer: &Answer, lease_ms: u64) -> String {
        let (code, rest) = answer.text.split_once(' ').unwrap_or((&answer.text, ""));
        let refusal = rest.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let words = numbers(if matches!(code, "queued" | "contended" | "kept") { &refusal } else { rest });
        let forced = |token: u64| if token > 0 { format!(", forced {}", token_text(token)) } else { String::new() };
        let waited_for = |flag: u64| if flag == 1 { ", waited for" } else { "" };
        let remaining = |ms: u64| if ms == lease_ms { String::new() } else { format!(" for {}", span(ms)) };
        match (code, &words[..]) {
            ("granted", &[last, tokens, ms, flag]) => {
                format!("granted {}{}{}", block(last + 1 - tokens, tokens), remaining(ms), waited_for(flag))
            }
            ("queued", &[ms, 1]) => format!("queued {}, recalls", span(ms)),
            ("kept", []) => "cached".to_owned(),
            ("kept", &[ms, 0]) => format!("cached {}", span(ms)),
            ("queued" | "contended", &[ms, 0]) => format!("{code} {}", span(ms)),
            ("none", &[token, last, first]) => {
                let known =
                    if last > 0 { format!(" of {} to {}", token_text(first), token_text(last)) } else { String::new() };
                format!("none{known}{}", forced(token))
            }
            ("renewed", &[ms]) => format!("renewed{}", remaining(ms)),
            ("renewed", &[ms, flag, first, tokens]) => {
                let new = if tokens > 0 { format!(" with {}", block(first, tokens)) } else { String::new() };
                format!("renewed{}{new}{}", remaining(ms), waited_for(flag))
            }
            ("lost", &[token]) => format!("lost{}", forced(token)),
            ("forced", &[more]) => {
                let mut names: Vec<_> = answer.rows.iter().map(|id| name(id)).collect();
                names.sort_unstable();
                let who = if names.is_empty() { "none".to_owned() } else { list(&names) };
                format!("forced {who}{}", if more == 1 { ", more" } else { "" })
            }
            ("view", &[last, ..]) => {
                let mut rows: Vec<_> = answer.rows.iter().map(|row| shown(row)).collect();
                rows.sort_unstable();
                let token = if last > 0 { token_text(last) } else { "none".to_owned() };
                [format!("token {token}")].into_iter().chain(rows).collect::<Vec<_>>().join("; ")
            }
            ("held" | "queued" | "refused" | "late" | "told" | "noted" | "none" | "", []) => code.to_owned(),
            _ => panic!("no answer: {answer:?}"),
        }
    }

    /// Returns a published message in the words of transcripts: the waiter and the text.
    fn message(&self, message: &str) -> String {
        match message.split(' ').collect::<Vec<_>>()[..] {
            ["call", token] => format!("recall {}", token_text(number(token))),
            ["call", token, id] => format!("recall {} by {}", token_text(number(token)), name(id)),
            ["used", id] => format!("{}: used", name(id)),
            [id] => format!("{}: may ask", name(id)),
            [id, last, tokens, deadline_ms, server_us, flag] => {
                let [last, tokens, deadline_ms] = [last, tokens, deadline_ms].map(number);
                assert_eq!(number(server_us), self.now_us, "{message}");
                let waited_for = if number(flag) == 1 { ", waited for" } else { "" };
                let ms = deadline_ms - self.now_us / 1000;
                format!("{}: granted {} for {}{waited_for}", name(id), block(last + 1 - tokens, tokens), span(ms))
            }
            _ => panic!("no message: {message}"),
        }
    }
}

/// Puts equal messages to several waiters together.
fn grouped(messages: &[String]) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for message in messages {
        let (name, text) = message.split_once(": ").unwrap_or(("", message));
        groups.entry(text).or_default().push(name);
    }
    let texts = groups.into_iter().map(|(text, mut names)| {
        names.sort_unstable();
        if names == [""] { text.to_owned() } else { format!("{}: {text}", list(&names)) }
    });
    texts.collect()
}

/// Returns one row of `inspect` in words.
fn shown(row: &str) -> String {
    match row.split(' ').collect::<Vec<_>>()[..] {
        ["hold", id, side, since, ms] => {
            let verb = match side {
                _ if id.starts_with('@') => "rests",
                "r" => "reads",
                _ => "writes",
            };
            format!("{} {verb} since {} for {}", name(id), time(number(since)), span(number(ms)))
        }
        ["wait", id, side, since] => {
            let verb = if side == "r" { "read" } else { "write" };
            format!("{} waits to {verb} since {}", name(id), time(number(since)))
        }
        _ => panic!("no row: {row}"),
    }
}

/// Returns the id of a name, as a manager makes it.
fn full(name: &str) -> String {
    format!("{MANAGER}.0.{name}")
}

/// Returns the name of an id, or of the rest of its hold.
fn name(id: &str) -> &str {
    let id = id.strip_prefix('@').unwrap_or(id);
    id.strip_prefix(MANAGER).and_then(|rest| rest.strip_prefix(".0.")).unwrap_or(id)
}

/// Returns the names of `r1..r9`, or the one name.
fn ids(word: &str) -> Vec<String> {
    let Some((first, last)) = word.split_once("..") else { return vec![word.to_owned()] };
    let digits = first.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let letters = &first[..first.len() - digits.len()];
    (number(digits)..=number(&last[letters.len()..])).map(|n| format!("{letters}{n}")).collect()
}

fn list(names: &[&str]) -> String {
    if names.len() > 8 { names.len().to_string() } else { names.join(" ") }
}

fn side_of(word: &str) -> Side {
    match word {
        "read" | "reads" | "reader" => Side::Read,
        "write" | "writes" | "writer" => Side::Write,
        other => panic!("no side: {other}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

fn numbers(text: &str) -> Vec<u64> {
    text.split(' ').filter_map(|word| word.parse().ok()).collect()
}

/// Reads a time with its unit, in microseconds.
fn us(text: &str) -> i64 {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("h", 3_600_000_000)];
    let (count, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).expect("a unit");
    count.parse::<i64>().expect("a number") * unit
}

fn ms(text: &str) -> u64 {
    us(text).unsigned_abs() / 1000
}

fn span(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// Returns a point in time since the start of the scenario.
fn time(ms: u64) -> String {
    let start_ms = START_US / 1000;
    if ms < start_ms { format!("-{}", span(start_ms - ms)) } else { span(ms - start_ms) }
}

fn token_text(token: u64) -> String {
    let Some(us) = token.checked_sub(START_US) else { return format!("-{}", START_US - token) };
    match (us / 1_000_000, us % 1_000_000) {
        (0, us) => us.to_string(),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, us) => format!("{seconds}s+{us}"),
    }
}

fn block(first: u64, tokens: u64) -> String {
    let last = if tokens > 1 { format!(" to {}", token_text(first + tokens - 1)) } else { String::new() };
    format!("{}{last}", token_text(first))
}
