//! Handle by which `run` controls its watchdog.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::{COMMAND, OVER, READY};
use crate::run::group::pid;
use crate::run::others;

/// Limit for the start of a watchdog. A start takes far less, even on a busy machine.
const START: Duration = Duration::from_secs(10);
/// Shortest time between the starts of two watchdogs. It limits the number of starts if each watchdog ends at once.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(in crate::run) struct Watchdog {
    id: Pid,
    process: Child,
    /// Standard input of the watchdog, for deadlines and other messages.
    words: ChildStdin,
    /// Standard output of the watchdog. It closes when the watchdog ends.
    breath: ChildStdout,
    started: Instant,
}

impl Watchdog {
    /// Starts a watchdog that leads a new process group.
    pub(in crate::run) fn lead() -> io::Result<Self> {
        Self::start(0, OVER)
    }

    /// Starts a watchdog in an existing group. An argument gives it the deadline of the hold, so it can act from its
    /// start.
    pub(in crate::run) fn join(group: Pid, deadline: u64) -> io::Result<Self> {
        Self::start(group.as_raw_nonzero().get(), deadline)
    }

    fn start(group: i32, deadline: u64) -> io::Result<Self> {
        let heir = others::own_group().map_or(0, |group| group.as_raw_nonzero().get());
        let mut process = Command::new(this_program()?)
            .arg0("redis-rwlock")
            // The second argument is the heir of the terminal. The heir has no effect if the group never has the
            // terminal.
            .args([COMMAND, &heir.to_string(), &deadline.to_string()])
            // The watchdog needs no environment variables, and some may contain passwords.
            .env_clear()
            .process_group(group)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let id = process.id().and_then(pid).ok_or(io::ErrorKind::NotFound)?;
        let (Some(words), Some(breath)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self { id, process, words, breath, started: Instant::now() })
    }

    /// Waits until signals to the group cannot end the watchdog any more.
    pub(in crate::run) async fn ready(&mut self) -> io::Result<()> {
        let ready = tokio::time::timeout(START, self.breath.read_u8()).await;
        if matches!(ready, Ok(Ok(READY))) {
            return Ok(());
        }
        Err(io::Error::other("the process that watches over the command did not start"))
    }

    pub(in crate::run) fn id(&self) -> Pid {
        self.id
    }

    /// Sends a message, and returns true if the message is in the pipe. Never waits, since eight bytes go into a pipe
    /// in one piece. If the watchdog does not read the message, its earlier deadline still counts.
    pub(in crate::run) fn tell(&mut self, word: u64) -> bool {
        self.words.write_all(&word.to_le_bytes()).now_or_never().is_some_and(|written| written.is_ok())
    }

    /// Waits for the end of the watchdog, and then until another watchdog may start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future changes nothing. The next call notices the end too.
    pub(in crate::run) async fn ended(&mut self) {
        let mut byte = [0];
        while self.breath.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        tokio::time::sleep_until(self.started + PAUSE).await;
    }

    /// Makes [`Self::ended`] count the time between two starts from now.
    pub(in crate::run) fn put_off(&mut self) {
        self.started = Instant::now();
    }

    pub(in crate::run) async fn ends_within(&mut self, at_most: Duration) {
        let mut rest = Vec::new();
        drop(tokio::time::timeout(at_most, self.breath.read_to_end(&mut rest)).await);
    }

    /// Sends the message that the command has ended, and waits for the watchdog's end.
    pub(in crate::run) async fn dismiss(&mut self) {
        // On a new pipe, `tell` may fail because the runtime does not know yet that the pipe is writable. So this
        // method waits for the write.
        drop(tokio::time::timeout(START, self.words.write_all(&OVER.to_le_bytes())).await);
        self.ends_within(START).await;
    }

    /// Reaps the watchdog. Before this call, the kernel gives its process id to no other process.
    pub(in crate::run) async fn reap(&mut self) {
        drop(self.process.wait().await);
    }
}

/// Returns a path of this program that stays valid when the file is replaced.
fn this_program() -> io::Result<OsString> {
    const SELF: &str = "/proc/self/exe";
    if Path::new(SELF).exists() { Ok(SELF.into()) } else { env::current_exe().map(Into::into) }
}
