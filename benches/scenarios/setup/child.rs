//! Worker process, which carries out orders line by line.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use redis_rwlock::Error;

const FAILED: &str = "failed: ";

/// Process that is killed when this is dropped. What it holds goes with it: the server ends before any lease does.
pub(crate) struct Killed(Child);

impl Killed {
    /// Starts a process. Returns its input and its output, too.
    pub(crate) fn start(command: &mut Command) -> io::Result<(Self, ChildStdin, BufReader<ChildStdout>)> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Ok((Self(process), orders, answers))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("a worker could not be ended: {error}");
        }
    }
}

pub(crate) struct Worker {
    process: Killed,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(command: &mut Command) -> Self {
        let (process, orders, answers) = Killed::start(command).expect("it starts");
        Self { process, orders, answers }
    }

    /// Starts this program as a child of a kind that `main` knows.
    pub(crate) fn start_child(words: &[&str]) -> Self {
        Self::start(Command::new(env::current_exe().expect("this program")).arg("child").args(words))
    }

    /// Gives an order, and waits for the answer to it.
    pub(crate) fn ask(&mut self, order: impl Display) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line
    }

    /// Gives an order to a child that obeys. Returns the numbers of the answer, or the text of a failure.
    pub(crate) fn order<const N: usize>(&mut self, order: impl Display) -> Result<[f64; N], String> {
        let answer = self.ask(order);
        if let Some(failure) = answer.strip_prefix(FAILED) {
            return Err(failure.trim().to_owned());
        }
        let numbers: Vec<f64> = answer.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().map_err(|numbers| format!("the process answered {numbers:?}"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

/// Obeys the orders on the standard input, and answers each with a line.
pub(crate) fn obey(mut act: impl FnMut(&str) -> Result<Vec<f64>, Error>) {
    for line in stdin().lines() {
        match act(&line.expect("a line")) {
            Ok(numbers) => {
                let words: Vec<String> = numbers.iter().map(f64::to_string).collect();
                println!("{}", words.join(" "));
            }
            Err(error) => println!("{FAILED}{}", error.to_string().replace('\n', " ")),
        }
    }
}
