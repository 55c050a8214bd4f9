//! This program or another one in a process of its own, which does what it is told line by line.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::process::ran;

pub(crate) struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, orders, answers }
    }

    /// Gives an order, and waits for the answer to it.
    pub(crate) fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line
    }

    /// The processor time of its threads that live.
    pub(crate) fn processor_time(&self) -> Duration {
        let tasks = format!("/proc/{}/task", self.process.id());
        let tasks = fs::read_dir(Path::new(&tasks)).expect("it lives");
        tasks.filter_map(|task| ran(&task.ok()?.path())).sum()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // What it holds goes with it: the server ends before any lease does.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("a worker could not be ended: {error}");
        }
    }
}
