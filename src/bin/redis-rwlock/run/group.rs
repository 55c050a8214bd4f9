//! The process group of the command and its watchdog.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use rustix::stdio;
use rustix::termios;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::{Hold, others, watchdog};
use crate::args::RunOptions;
use crate::exit::{Code, Failure};

/// Far longer than a process needs to start, on a machine that is busy with something else.
const START: Duration = Duration::from_secs(10);
/// How long the watchdog may take to give the terminal back before the group is killed without that.
const HAND_BACK: Duration = Duration::from_millis(15);
/// Between two looks at what the command has left behind.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Group {
    /// The watchdog's process id, which is the group's.
    id: Pid,
    watchdog: Child,
    /// What the watchdog is told goes in here, …
    words: ChildStdin,
    /// … and this ends when it ends.
    breath: ChildStdout,
    command: Option<Child>,
    /// The command has the terminal that this process had.
    has_terminal: bool,
}

impl Group {
    /// A group with nobody in it but a watchdog.
    pub(super) async fn start() -> io::Result<Self> {
        let has_terminal = is_in_foreground();
        let heir = if has_terminal { process::getpgrp().as_raw_nonzero().get() } else { 0 };
        let mut watchdog = Command::new(this_program()?)
            .arg0("redis-rwlock")
            .args([watchdog::COMMAND, &heir.to_string()])
            // It needs nothing, and there may be passwords.
            .env_clear()
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let id = watchdog.id().and_then(pid).ok_or(io::ErrorKind::NotFound)?;
        let (Some(words), Some(mut breath)) = (watchdog.stdin.take(), watchdog.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        // Signals to the group would end it before.
        let ready = tokio::time::timeout(START, breath.read_u8()).await;
        if !matches!(ready, Ok(Ok(watchdog::READY))) {
            return Err(io::Error::other("the process that watches over the command did not start"));
        }
        Ok(Self { id, watchdog, words, breath, command: None, has_terminal })
    }

    /// Starts the command.
    pub(super) fn run(&mut self, options: &RunOptions, hold: &Hold) -> Result<(), Failure> {
        let (program, arguments) = options.command.split_first().unwrap_or_else(|| unreachable!("clap wants one"));
        if self.has_terminal {
            termios::tcsetpgrp(stdio::stdin(), self.id).map_err(|error| Failure::system(error.into()))?;
        }
        let spawned = Command::new(program)
            .args(arguments)
            .env("RWLOCK_NAME", &options.name)
            .env("RWLOCK_FENCING_TOKEN", hold.fencing_token().to_string())
            .process_group(self.id.as_raw_nonzero().get())
            .spawn();
        self.command = Some(spawned.map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { Code::NOT_FOUND } else { Code::CANNOT_RUN };
            Failure::new(code, format!("{}: {error}", program.display()))
        })?);
        Ok(())
    }

    /// Waits for the command itself, whatever it leaves behind.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        match &mut self.command {
            Some(command) => command.wait().await,
            None => unreachable!("it was started"),
        }
    }

    /// Tells the watchdog until when the lock may be trusted; returns how long that is.
    pub(super) fn tell_deadline(&mut self, hold: &Hold) -> Duration {
        // In this order the moment is rather too early.
        let now = watchdog::now();
        let left = hold.remaining();
        let deadline = now.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        self.tell(deadline.max(watchdog::NOW + 1));
        left
    }

    /// Never waits: eight bytes go into a pipe in one piece. If the watchdog does not take them, an earlier deadline stands.
    fn tell(&mut self, word: u64) {
        drop(self.words.write_all(&word.to_le_bytes()).now_or_never());
    }

    pub(super) fn signal(&self, signal: Signal) {
        // That nobody is left is nothing to tell.
        process::kill_process_group(self.id, signal).ok();
    }

    /// What this process was told by a signal is for the command, unless it is about the command.
    pub(super) fn pass_on(&self, signal: Signal) {
        if signal == Signal::CHILD { self.go_on_if_stopped() } else { self.signal(signal) }
    }

    /// Ctrl-Z stops the command, and nobody would have the terminal then. No shell is told, so it goes on.
    fn go_on_if_stopped(&self) {
        let Some(command) = self.command.as_ref().and_then(Child::id).and_then(pid) else { return };
        let stopped = process::waitid(WaitId::Pid(command), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let by_terminal = |signal| signal == Signal::TSTP.as_raw();
        if self.has_terminal
            && stopped.is_ok_and(|status| status.and_then(|s| s.stopping_signal()).is_some_and(by_terminal))
        {
            self.signal(Signal::CONT);
        }
    }

    /// Kills all of the group.
    pub(super) async fn kill(&mut self) {
        if self.has_terminal {
            // It does the same, after it has given the terminal back.
            self.tell(watchdog::NOW);
            self.watchdog_gone(HAND_BACK).await;
        }
        self.signal(Signal::KILL);
    }

    /// Ends what the command has left behind, kindly as long as there is time, and the watchdog.
    pub(super) async fn clear(&mut self, hold: &Hold, grace: Duration) {
        if self.has_others() == Some(true) {
            self.signal(Signal::TERM);
            let until = Instant::now() + grace;
            while Instant::now() < until && !self.tell_deadline(hold).is_zero() && self.has_others() == Some(true) {
                tokio::time::sleep(LOOK).await;
            }
        }
        self.tell(watchdog::OVER);
        self.watchdog_gone(START).await;
        // Its id is the group's until it is reaped.
        self.signal(Signal::KILL);
        drop(self.watchdog.wait().await);
    }

    fn has_others(&self) -> Option<bool> {
        others::are_in(self.id, &[self.id])
    }

    async fn watchdog_gone(&mut self, at_most: Duration) {
        let mut rest = Vec::new();
        drop(tokio::time::timeout(at_most, self.breath.read_to_end(&mut rest)).await);
    }
}

fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// Whether the terminal is ours to give away: not if others of our group, such as the rest of a pipe, need it.
fn is_in_foreground() -> bool {
    io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && termios::tcgetpgrp(stdio::stdin()).is_ok_and(|owner| owner == process::getpgrp())
}

/// By a path that stays right when the file is replaced.
fn this_program() -> io::Result<OsString> {
    const SELF: &str = "/proc/self/exe";
    if Path::new(SELF).exists() { Ok(SELF.into()) } else { env::current_exe().map(Into::into) }
}
