//! Worker process, which carries out orders line by line.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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

    /// Starts this program as a child of a kind that `main` knows.
    pub(crate) fn start_child(words: &[&str]) -> Self {
        Self::start(Command::new(env::current_exe().expect("this program")).arg("child").args(words))
    }

    /// Gives an order, and waits for the answer to it.
    pub(crate) fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line
    }

    /// Gives a number as an order, and returns the numbers of the answer.
    pub(crate) fn order_numbers<const N: usize>(&mut self, order: usize) -> [f64; N] {
        let answer = self.order(&order.to_string());
        let numbers: Vec<f64> = answer.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().expect("as many numbers as are needed")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
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
