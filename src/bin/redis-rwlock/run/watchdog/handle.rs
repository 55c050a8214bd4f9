//! The side of `run` of its watchdog.

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

/// Far longer than a process needs to start, on a machine that is busy with something else.
const START: Duration = Duration::from_secs(10);
/// Least time from the start of a watchdog to the start of the next one, for machines on which each ends at once.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(in crate::run) struct Watchdog {
    id: Pid,
    process: Child,
    /// Input of the watchdog: the moments that it is told.
    words: ChildStdin,
    /// Output of the watchdog, which ends with it.
    breath: ChildStdout,
    started: Instant,
}

impl Watchdog {
    /// Starts one that leads a new process group.
    pub(in crate::run) fn lead() -> io::Result<Self> {
        Self::start(0, OVER)
    }

    /// Starts one in a group that is there, which knows from its first moment until when the lock may be trusted.
    pub(in crate::run) fn join(group: Pid, deadline: u64) -> io::Result<Self> {
        Self::start(group.as_raw_nonzero().get(), deadline)
    }

    fn start(group: i32, deadline: u64) -> io::Result<Self> {
        let heir = others::own_group().map_or(0, |group| group.as_raw_nonzero().get());
        let mut process = Command::new(this_program()?)
            .arg0("redis-rwlock")
            // The heir of the terminal. If the group never had it, that changes nothing.
            .args([COMMAND, &heir.to_string(), &deadline.to_string()])
            // The watchdog needs no variable, and some may be passwords.
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

    /// Waits until signals to the group do not end it.
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

    /// Returns whether the word is on its way. Never waits: eight bytes go into a pipe in one piece. If the watchdog does not take
    /// them, an earlier deadline stands.
    pub(in crate::run) fn tell(&mut self, word: u64) -> bool {
        self.words.write_all(&word.to_le_bytes()).now_or_never().is_some_and(|written| written.is_ok())
    }

    /// Waits for its end, and until another one may start.
    ///
    /// # Cancel safety
    ///
    /// A dropped future changes nothing: the end is still there for the next one.
    pub(in crate::run) async fn ended(&mut self) {
        let mut byte = [0];
        while self.breath.read(&mut byte).await.is_ok_and(|read| read > 0) {}
        tokio::time::sleep_until(self.started + PAUSE).await;
    }

    /// Lets the future of the end wait again for the time between two starts.
    pub(in crate::run) fn put_off(&mut self) {
        self.started = Instant::now();
    }

    pub(in crate::run) async fn ends_within(&mut self, at_most: Duration) {
        let mut rest = Vec::new();
        drop(tokio::time::timeout(at_most, self.breath.read_to_end(&mut rest)).await);
    }

    /// Tells it that the command has ended, and waits for its own end.
    pub(in crate::run) async fn dismiss(&mut self) {
        // A new pipe takes nothing at once, so this word is not left to chance.
        drop(tokio::time::timeout(START, self.words.write_all(&OVER.to_le_bytes())).await);
        self.ends_within(START).await;
    }

    /// Takes away what is left of it. Until then its process id belongs to nobody else.
    pub(in crate::run) async fn reap(&mut self) {
        drop(self.process.wait().await);
    }
}

/// Returns a path of this program that stays right when the file is replaced.
fn this_program() -> io::Result<OsString> {
    const SELF: &str = "/proc/self/exe";
    if Path::new(SELF).exists() { Ok(SELF.into()) } else { env::current_exe().map(Into::into) }
}
