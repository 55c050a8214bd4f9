//! Server CPU of the longest scripts. Beside crowds of waiters and holders a script does a part of the work, and the
//! next one goes on.
//!
//! 5,000 readers and 50 writers wait for one lock, its writer leaves, and each script that lets some of the readers in
//! is measured; then `inspect` and each call of `force` beside 10,000 readers, in both schemes. The CPU time is that of
//! the server's process (`INFO cpu`, which is some 20 us of it). Of the longest scripts of each round the median
//! counts.

use super::*;
use crate::setup::scripts::two_key;

const WAITING_WRITERS: usize = 50;
/// Requests that are under way while many waiters arrive.
const BATCH: usize = 500;

type Command = Vec<String>;

#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Hash,
    TwoKey,
}

struct Bench {
    client: Client,
    scheme: Scheme,
    locks: usize,
}

impl Bench {
    fn call(&mut self, texts: [&str; 2], args: &[&str]) -> Command {
        let [lock, read, write] = ["lock", "read", "write"].map(|key| format!("rwlock:{{{}}}:{key}", self.locks));
        match self.scheme {
            Scheme::Hash => evalsha(&load(&mut self.client, texts[0]), &[&lock], args),
            Scheme::TwoKey => evalsha(&load(&mut self.client, texts[1]), &[&read, &write], args),
        }
    }

    /// Returns arguments, behind which the scripts of the hash scheme have some more.
    fn args<'a>(&self, args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [args, if self.scheme == Scheme::Hash { more } else { &[] }].concat()
    }

    fn acquire(&mut self, id: &str, mode: &str, patience_ms: &str) -> Command {
        let args = self.args(&["9000000000000", id, mode, "600000", patience_ms], &["01", TIMESTAMP_CLIENTS]);
        self.call([hash::ACQUIRE, two_key::ACQUIRE], &args)
    }

    /// Lets so many ask, with ids from `first` on.
    fn gather(&mut self, first: usize, count: usize, mode: &str, patience_ms: &str) {
        let template = self.acquire("", mode, patience_ms);
        let commands: Vec<Command> = (first..first + count)
            .map(|n| template.iter().map(|word| if word.is_empty() { member_id(n) } else { word.clone() }).collect())
            .collect();
        send(&mut self.client, &commands, BATCH);
    }

    /// Runs one script. Returns its milliseconds, and its reply.
    fn measure(&mut self, command: &Command) -> (f64, Reply) {
        let before = server_cpu_us(&mut self.client);
        let reply = self.client.command(command).and_then(Reply::into_result).expect("the server answers");
        ((server_cpu_us(&mut self.client) - before) / 1e3, reply)
    }

    /// Measures all scripts that it takes until each waiting reader is inside.
    fn let_in(&mut self, readers: usize) -> Vec<f64> {
        self.locks += 1;
        self.gather(0, 1, "w", "0");
        self.gather(1, WAITING_WRITERS, "w", "600000");
        self.gather(100_000, readers, "r", "600000");
        let leave = self.call([hash::LEAVE, two_key::LEAVE], &[&member_id(0), TIMESTAMP_CLIENTS]);
        let mut costs = vec![self.measure(&leave).0];
        while let Some(next) = self.next_of_the_phase() {
            let acquire = self.acquire(&next, "r", "600000");
            costs.push(self.measure(&acquire).0);
        }
        costs
    }

    /// Returns the waiter that the last script notified to ask again.
    fn next_of_the_phase(&mut self) -> Option<String> {
        let key = lock_key(self.locks);
        let queue = self.client.command(&["HGET", &key, "u"]).expect("an answer").text()?.into_owned();
        let words: Vec<_> = queue.split(' ').collect();
        let next = self.client.command(&["HGET", &key, &[words[2], words[3]].concat()]).expect("an answer");
        Some(next.text()?.into_owned()).filter(|_| words[3] != "0")
    }

    /// Measures `inspect` a few times, and each call of `force` until no reader is left.
    fn end(&mut self, readers: usize) -> [Vec<f64>; 2] {
        self.locks += 1;
        self.gather(0, readers, "r", "0");
        let inspect = self.call([hash::INSPECT, two_key::INSPECT], &[]);
        let looks: Vec<_> = (0..5).map(|_| self.measure(&inspect)).collect();
        let token = &head(&looks[0].1)[4];
        let args = self.args(&[token, "0", "0"], &[TIMESTAMP_CLIENTS]);
        let force = self.call([hash::FORCE, two_key::FORCE], &args);
        let mut costs = Vec::new();
        loop {
            let (cost, reply) = self.measure(&force);
            costs.push(cost);
            if head(&reply).get(4).is_none_or(|is_unfinished| is_unfinished != "1") {
                return [looks.into_iter().map(|(cost, _)| cost).collect(), costs];
            }
        }
    }
}

/// Returns the words of the head of a reply.
fn head(reply: &Reply) -> Vec<String> {
    let head = reply.array().and_then(|rows| rows.first()).unwrap_or(reply);
    head.text().expect("a text").split(' ').map(str::to_owned).collect()
}

/// Prints the median of the longest scripts of all rounds.
fn tell_longest(what: &str, rounds: &[Vec<f64>]) {
    let of = |figure: fn(&mut Vec<f64>) -> f64| {
        median(&mut rounds.iter().cloned().map(|mut costs| figure(&mut costs)).collect::<Vec<_>>())
    };
    let longest = of(|costs| costs.iter().copied().fold(0.0, f64::max));
    let sides = format!("median {:.2} of {} scripts", of(|costs| median(costs)), rounds[0].len());
    tell(&format!("longest script, ms of the server's CPU, {what}"), &sides, longest, AtMost(3.0));
}

pub(crate) fn run(effort: Effort) {
    let (rounds, waiting, readers) = effort.of((5, 5_000, 10_000), (3, 5_000, 10_000), (1, 200, 200));
    let node = start_node();
    let mut bench = Bench { client: node.client().expect("the server answers"), scheme: Scheme::Hash, locks: 0 };
    let costs: Vec<_> = (0..rounds).map(|_| bench.let_in(waiting)).collect();
    tell_longest(&format!("{waiting} waiting readers come in, {WAITING_WRITERS} writers wait"), &costs);
    for (scheme, name) in [(Scheme::Hash, "hash"), (Scheme::TwoKey, "two keys")] {
        bench.scheme = scheme;
        let costs: Vec<_> = (0..rounds).map(|_| bench.end(readers)).collect();
        let (looks, forces): (Vec<_>, Vec<_>) = costs.into_iter().map(<(_, _)>::from).unzip();
        tell_longest(&format!("`inspect` beside {readers} readers, {name}"), &looks);
        tell_longest(&format!("`force` beside {readers} readers, {name}"), &forces);
    }
}
