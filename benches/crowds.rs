//! The longest scripts: beside crowds of waiters and holders a script does a part of the work, and the next one goes on.
//!
//! 5,000 readers and 50 writers wait for one lock, its writer leaves, and each script that lets some of the readers in is
//! measured; then `inspect` and each call of `force` beside 10,000 readers, in both schemes. What is told is the CPU time of
//! the server's process for each script (`INFO cpu`, which is some 20 us of it), and the time that the server saw pass
//! (`SLOWLOG`): on a machine with other work that says how long the server was kept from its own.
//!
//! `CROWDS_REPEAT` is how often (5); of the longest scripts of each time the median is told.

#[path = "../lua/scripts.rs"]
mod scripts;

use cluster_testenv::{Client, Node, Reply, Server};

const MANAGER: &str = "0123456789abcdef0123456789abcdef";
const WAITING_READERS: usize = 5_000;
const WAITING_WRITERS: usize = 50;
const HOLDERS: usize = 10_000;
/// Requests that are under way while a crowd gathers.
const BATCH: usize = 500;
const LIMITS: &str = "1000 3000";

type Command = Vec<String>;

/// Milliseconds of one script.
#[derive(Clone, Copy)]
struct Cost {
    process: f64,
    passed: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Hash,
    TwoKey,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::TwoKey => "two keys",
        }
    }

    fn text(self, script: &str) -> &'static str {
        use scripts::{hash, two_key};
        match (self, script) {
            (Self::Hash, "acquire") => hash::ACQUIRE,
            (Self::Hash, "leave") => hash::LEAVE,
            (Self::Hash, "inspect") => hash::INSPECT,
            (Self::Hash, _) => hash::FORCE,
            (Self::TwoKey, "acquire") => two_key::ACQUIRE,
            (Self::TwoKey, "leave") => two_key::LEAVE,
            (Self::TwoKey, "inspect") => two_key::INSPECT,
            (Self::TwoKey, _) => two_key::FORCE,
        }
    }
}

/// One lock, which is new each time.
struct Crowd {
    client: Client,
    scheme: Scheme,
    locks: usize,
}

impl Crowd {
    fn new_lock(&mut self) {
        self.locks += 1;
    }

    fn call(&mut self, script: &str, args: &[&str]) -> Command {
        let text = self.scheme.text(script);
        let digest = self.client.command(&["SCRIPT", "LOAD", text]).and_then(Reply::into_result).expect("it compiles");
        let tag = format!("rwlock:{{{}}}", self.locks);
        let keys = match self.scheme {
            Scheme::Hash => vec![format!("{tag}:lock")],
            Scheme::TwoKey => vec![format!("{tag}:read"), format!("{tag}:write")],
        };
        let head = ["EVALSHA".to_owned(), digest.text().expect("a digest").into_owned(), keys.len().to_string()];
        head.into_iter().chain(keys).chain(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    fn acquire(&mut self, id: &str, mode: &str, patience_ms: &str) -> Command {
        let mut args = vec!["9000000000000", id, mode, "600000", patience_ms];
        if self.scheme == Scheme::Hash {
            args.extend(["01", LIMITS]);
        }
        self.call("acquire", &args)
    }

    /// So many ask with ids from `first` on.
    fn gather(&mut self, first: usize, count: usize, mode: &str, patience_ms: &str) {
        let template = self.acquire("", mode, patience_ms);
        let place = template.iter().position(String::is_empty).expect("the id's");
        let commands: Vec<Command> = (first..first + count)
            .map(|n| {
                let mut command = template.clone();
                command[place] = id(n);
                command
            })
            .collect();
        for batch in commands.chunks(BATCH) {
            for reply in self.client.pipeline(batch).expect("the server answers") {
                assert!(reply.error().is_none(), "{reply:?}");
            }
        }
    }

    fn cpu_ms(&mut self) -> f64 {
        let info = self.client.command(&["INFO", "cpu"]).expect("an answer");
        let info = info.text().expect("a text").into_owned();
        let seconds = |field: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line.and_then(|line| line.trim().parse::<f64>().ok()).expect("a number")
        };
        (seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e3
    }

    /// Runs one script, and what it cost.
    fn measure(&mut self, command: &Command) -> (Cost, Reply) {
        self.client.command(&["SLOWLOG", "RESET"]).expect("done");
        let before = self.cpu_ms();
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let reply = self.client.command(&command).and_then(Reply::into_result).expect("the server answers");
        let process = self.cpu_ms() - before;
        let log = self.client.command(&["SLOWLOG", "GET", "-1"]).expect("an answer");
        let entries = log.array().expect("entries").iter();
        let passed = entries.filter_map(|entry| entry.array()?.get(2)?.int()).max().unwrap_or(0);
        (Cost { process, passed: passed as f64 / 1e3 }, reply)
    }

    /// All scripts that it takes until every waiting reader is inside.
    fn let_in(&mut self) -> Vec<Cost> {
        self.new_lock();
        self.gather(0, 1, "w", "0");
        self.gather(1, WAITING_WRITERS, "w", "600000");
        self.gather(100_000, WAITING_READERS, "r", "600000");
        let leave = self.call("leave", &[&id(0), LIMITS]);
        let mut costs = vec![self.measure(&leave).0];
        while let Some(next) = self.next_of_the_turn() {
            let acquire = self.acquire(&next, "r", "600000");
            costs.push(self.measure(&acquire).0);
        }
        costs
    }

    /// Whom the last script told to ask again.
    fn next_of_the_turn(&mut self) -> Option<String> {
        let key = format!("rwlock:{{{}}}:lock", self.locks);
        let queue = self.client.command(&["HGET", &key, "u"]).expect("an answer").text()?.into_owned();
        let words: Vec<_> = queue.split(' ').collect();
        let place = [words[2], words[3]].concat();
        let next = self.client.command(&["HGET", &key, &place]).expect("an answer");
        Some(next.text()?.into_owned()).filter(|_| words[3] != "0")
    }

    /// `inspect`, some times, and every call of `force` until nobody is left.
    fn end(&mut self) -> (Vec<Cost>, Vec<Cost>) {
        self.new_lock();
        self.gather(0, HOLDERS, "r", "0");
        let inspect = self.call("inspect", &[]);
        let (first, seen) = self.measure(&inspect);
        let mut looks: Vec<_> = (0..4).map(|_| self.measure(&inspect).0).collect();
        looks.push(first);
        let token = last_token(&seen);
        let mut args = vec![token.as_str(), "0", "0"];
        if self.scheme == Scheme::Hash {
            args.push(LIMITS);
        }
        let force = self.call("force", &args);
        let mut costs = Vec::new();
        loop {
            let (cost, reply) = self.measure(&force);
            costs.push(cost);
            if !is_unfinished(&reply) {
                return (looks, costs);
            }
        }
    }
}

fn id(n: usize) -> String {
    format!("{MANAGER}.{n}.service")
}

/// The words of the head of a reply.
fn head(reply: &Reply) -> Vec<String> {
    let head = reply.array().and_then(|rows| rows.first()).unwrap_or(reply);
    head.text().expect("a text").split(' ').map(str::to_owned).collect()
}

fn last_token(view: &Reply) -> String {
    head(view)[4].clone()
}

fn is_unfinished(forced: &Reply) -> bool {
    head(forced).get(4).is_some_and(|more| more == "1")
}

/// The median of the values, and the greatest.
fn figures(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}

/// Each time's median and longest script, and of these the medians.
fn print(name: &str, times: &[Vec<Cost>]) {
    let scripts = times.iter().map(Vec::len).max().unwrap_or(0);
    let of = |part: fn(&Cost) -> f64| {
        let each: Vec<_> = times.iter().map(|costs| figures(costs.iter().map(part).collect())).collect();
        let [median, longest] = [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1];
        (figures(each.iter().map(median).collect()).0, figures(each.iter().map(longest).collect()).0)
    };
    let ((median, longest), (passed, longest_passed)) = (of(|cost| cost.process), of(|cost| cost.passed));
    println!("{name:<44}{scripts:>8}{median:>8.2}{longest:>8.2} |{passed:>8.2}{longest_passed:>8.2}");
}

fn main() {
    let repeat = std::env::var("CROWDS_REPEAT").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    for server in [Server::Redis70, Server::Valkey91] {
        let node = Node::start(server).expect("the server starts");
        let mut client = node.client().expect("the server answers");
        client.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).expect("done");
        println!("{server}: ms of the server's CPU | ms passed");
        println!("{:<44}{:>8}{:>8}{:>8} |{:>8}{:>8}", "", "scripts", "median", "longest", "median", "longest");
        let mut crowd = Crowd { client, scheme: Scheme::Hash, locks: 0 };
        let times: Vec<_> = (0..repeat).map(|_| crowd.let_in()).collect();
        print(&format!("{WAITING_READERS} readers come in, {WAITING_WRITERS} writers wait"), &times);
        for scheme in [Scheme::Hash, Scheme::TwoKey] {
            crowd.scheme = scheme;
            let times: Vec<_> = (0..repeat).map(|_| crowd.end()).collect();
            let (looks, forces): (Vec<_>, Vec<_>) = times.into_iter().unzip();
            print(&format!("inspect beside {HOLDERS} readers, {}", scheme.name()), &looks);
            print(&format!("force beside {HOLDERS} readers, {}", scheme.name()), &forces);
        }
    }
}
