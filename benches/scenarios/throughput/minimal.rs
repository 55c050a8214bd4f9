//! Minimal code that carries script calls of many tasks over one connection: a task that writes what has gathered, a
//! task that reads, and one channel for each answer. No timeouts, no reconnection, no types.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

type Answer = oneshot::Sender<Box<[u8]>>;

#[derive(Clone)]
pub(crate) struct Connection {
    calls: mpsc::UnboundedSender<(Vec<u8>, Answer)>,
}

impl Connection {
    pub(crate) async fn connect(url: &str) -> Self {
        let stream = TcpStream::connect(url.trim_start_matches("redis://")).await.expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        let (reader, writer) = stream.into_split();
        let (calls, inbox) = mpsc::unbounded_channel();
        let waiting = Arc::default();
        tokio::spawn(write(writer, inbox, Arc::clone(&waiting)));
        tokio::spawn(read(reader, waiting));
        Self { calls }
    }

    /// Calls a loaded script, and returns its answer as it came.
    pub(crate) async fn call(&self, digest: &str, key: &str, arguments: &[&str]) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(format!("*{}\r\n$7\r\nEVALSHA\r\n", 4 + arguments.len()).as_bytes());
        for part in [digest, "1", key].iter().chain(arguments) {
            bytes.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
        }
        let (answer, answered) = oneshot::channel();
        self.calls.send((bytes, answer)).expect("the connection lives");
        let answer = answered.await.expect("the connection lives");
        assert_ne!(answer[0], b'-', "{}", String::from_utf8_lossy(&answer));
        answer
    }
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut inbox: mpsc::UnboundedReceiver<(Vec<u8>, Answer)>,
    waiting: Arc<Mutex<VecDeque<Answer>>>,
) {
    let (mut calls, mut bytes) = (Vec::new(), Vec::new());
    while inbox.recv_many(&mut calls, 1024).await > 0 {
        {
            let mut waiting = waiting.lock();
            for (call, answer) in calls.drain(..) {
                bytes.extend_from_slice(&call);
                waiting.push_back(answer);
            }
        }
        writer.write_all(&bytes).await.expect("the server reads");
        bytes.clear();
    }
}

async fn read(mut reader: OwnedReadHalf, waiting: Arc<Mutex<VecDeque<Answer>>>) {
    let mut bytes = Vec::with_capacity(64 << 10);
    while reader.read_buf(&mut bytes).await.expect("the server answers") > 0 {
        let mut at = 0;
        {
            let mut waiting = waiting.lock();
            while let Some(length) = length_of_answer(&bytes[at..]) {
                let answer = waiting.pop_front().expect("somebody asked");
                // The task that asked may have gone.
                drop(answer.send(bytes[at..at + length].into()));
                at += length;
            }
        }
        bytes.drain(..at);
    }
}

/// Returns the length of the answer that begins the bytes, if it is all there: a line, or a text behind a line with its
/// length.
fn length_of_answer(bytes: &[u8]) -> Option<usize> {
    let line = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let length = match bytes[0] {
        b'$' => {
            let digits = std::str::from_utf8(&bytes[1..line - 2]).expect("a number");
            line + digits.parse::<usize>().expect("a number") + 2
        }
        kind => {
            assert!(matches!(kind, b':' | b'+' | b'-' | b'_'), "scripts answer with a text or a number");
            line
        }
    };
    (length <= bytes.len()).then_some(length)
}
