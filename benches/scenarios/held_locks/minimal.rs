//! Minimal code that renews so many locks: one thread, one blocking socket, the same scripts at the same rate in chunks
//! of one size. No deadlines, no retries, no notice of a loss.

use std::fmt::Write as _;
use std::io::{BufRead, Read, Write, stdin};
use std::net::TcpStream;
use std::sync::mpsc::RecvTimeoutError;

use super::*;

/// Renewals that wait for each other, as in batches of the crate.
const CHUNK: usize = 32;

struct Holder {
    stream: TcpStream,
    requests: String,
    answers: Vec<u8>,
    digests: [String; 3],
    lease: Duration,
    locks: usize,
    /// Lock that is renewed next.
    next: usize,
}

#[derive(Clone, Copy)]
enum Script {
    Acquire,
    Renew,
    Leave,
}

impl Holder {
    fn connect(url: &str, lease: Duration) -> Self {
        let stream = TcpStream::connect(url.trim_start_matches("redis://")).expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        let digests = [hash::ACQUIRE, hash::RENEW, hash::LEAVE].map(digest);
        let (requests, answers) = (String::new(), Vec::new());
        let mut bare = Self { stream, requests, answers, digests, lease, locks: 0, next: 0 };
        for text in [hash::ACQUIRE, hash::RENEW, hash::LEAVE] {
            bare.append(&["SCRIPT", "LOAD", text]);
            bare.round_trip(1, "");
        }
        bare
    }

    fn append(&mut self, words: &[&str]) {
        write!(self.requests, "*{}\r\n", words.len()).expect("room");
        words.iter().for_each(|word| write!(self.requests, "${}\r\n{word}\r\n", word.len()).expect("room"));
    }

    fn call(&mut self, script: Script, lock: usize) {
        let (key, id) = (lock_key(format_args!("held-lock-{lock:05}")), format!("{:032x}.{lock}.localhost:12345", 7));
        let (digest, lease) = (self.digests[script as usize].clone(), self.lease.as_millis().to_string());
        let head = ["EVALSHA", &digest, "1", &key];
        match script {
            Script::Acquire => {
                self.append(&[&head[..], &["9000000000000", &id, "w", &lease, "0", "1", TIMESTAMP_CLIENTS]].concat());
            }
            Script::Renew => self.append(&[&head[..], &[&id, &lease]].concat()),
            Script::Leave => self.append(&[&head[..], &[&id, TIMESTAMP_CLIENTS]].concat()),
        }
    }

    /// Sends what was appended, and reads so many answers, each of two lines: its length, and a text that begins so.
    fn round_trip(&mut self, count: usize, begins: &str) {
        self.stream.write_all(self.requests.as_bytes()).expect("the server reads");
        self.requests.clear();
        self.answers.clear();
        let mut lines = 0;
        while lines < 2 * count {
            let mut bytes = [0; 16 << 10];
            let read = self.stream.read(&mut bytes).expect("the server answers");
            assert!(read > 0, "the server has closed the connection");
            lines += bytes[..read].iter().filter(|byte| **byte == b'\n').count();
            self.answers.extend_from_slice(&bytes[..read]);
        }
        let texts = self.answers.split(|byte| *byte == b'\n').skip(1).step_by(2);
        let answered = texts.filter(|text| text.starts_with(begins.as_bytes())).count();
        assert!(answered >= count, "{}", String::from_utf8_lossy(&self.answers));
    }

    fn change_to(&mut self, count: usize) {
        let (script, begins) = if count > self.locks { (Script::Acquire, "granted") } else { (Script::Leave, "held") };
        let (first, last) = (self.locks.min(count), self.locks.max(count));
        for lock in (first..last).step_by(128) {
            let end = (lock + 128).min(last);
            (lock..end).for_each(|lock| self.call(script, lock));
            self.round_trip(end - lock, begins);
        }
        self.locks = count;
    }

    /// Renews a chunk. Returns how long after it the next one is due: each lock has its turn within a third of the
    /// lease.
    fn renew(&mut self) -> Duration {
        for _ in 0..CHUNK {
            self.call(Script::Renew, self.next);
            self.next = (self.next + 1) % self.locks;
        }
        self.round_trip(CHUNK, "renewed");
        (self.lease / 3).mul_f64(CHUNK as f64 / self.locks as f64)
    }
}

/// Does the same as `super::hold`. The loss of a lock ends it.
pub(crate) fn hold(url: &str, lease_s: &str) {
    let lease = Duration::from_secs(lease_s.parse().expect("seconds"));
    let mut bare = Holder::connect(url, lease);
    let (told, orders) = mpsc::channel();
    thread::spawn(move || {
        let counts = stdin().lock().lines().map(|line| line.expect("a line").parse::<usize>().expect("a number"));
        counts.for_each(|count| told.send(count).expect("it listens"));
    });
    let (mut time, mut due) = (processor_time(), Instant::now());
    loop {
        let wait = if bare.locks == 0 { lease } else { due.saturating_duration_since(Instant::now()) };
        match orders.recv_timeout(wait) {
            Ok(count) => {
                println!("{} 0 0 0 0", processor_time().saturating_sub(time).as_micros());
                if count != bare.locks {
                    bare.change_to(count);
                    due = Instant::now();
                }
                time = processor_time();
            }
            Err(RecvTimeoutError::Timeout) if bare.locks > 0 => due += bare.renew(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
