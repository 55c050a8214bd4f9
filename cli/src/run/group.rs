//! Process group of the command and its watchdog.

use std::env;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{self, Pid, Signal};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::signals::Signals;
use super::stops::{self, Change, Stop};
use super::terminal::Terminal;
use super::watchdog::{self, Watchdog};
use super::{Hold, others};
use crate::args::RunOptions;
use crate::exit::{Code, Failure};
use crate::locks::Locks;
use crate::output::Output;

/// Longest time between the ends of a watchdog and of the command that it has killed.
const ENDS_WITHIN: Duration = Duration::from_millis(100);
/// Time in which the watchdog can give the terminal back. Then `run` kills the group in any case.
const HAND_BACK: Duration = Duration::from_millis(15);
/// Time after the group has got the terminal. During this time, children of the command may still stop for an earlier
/// lack of the terminal. `sudo` does this.
const LATE_STOPS: Duration = Duration::from_secs(2);
/// Pause between two checks for processes that the command has left behind.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Group {
    /// Process id of the first watchdog.
    id: Pid,
    watchdog: Watchdog,
    /// Deadline of the hold that the watchdog knows.
    deadline: u64,
    /// True if the last start of another watchdog has failed. `run` reports this to the user once.
    is_unwatched: bool,
    command: Option<Child>,
    stop: Option<Stop>,
    terminal: Option<Terminal>,
    /// Time at which the group got the terminal, after the command had stopped for lack of the terminal.
    given: Option<Instant>,
}

/// Event of the group.
#[derive(Debug)]
pub(super) enum Event {
    /// The command itself has ended, but processes that it started may remain.
    CommandEnded(io::Result<ExitStatus>),
    WatchdogEnded,
    Signal(Signal),
}

impl Group {
    /// Starts a group that contains only a watchdog.
    pub(super) async fn start(signals: &mut Signals) -> io::Result<Self> {
        let mut watchdog = Watchdog::lead()?;
        signals.leave(watchdog.id());
        // Before the watchdog is ready, a signal to the group would end it.
        watchdog.ready().await?;
        let (id, terminal) = (watchdog.id(), Terminal::open());
        Ok(Self {
            id,
            watchdog,
            deadline: watchdog::OVER,
            is_unwatched: false,
            command: None,
            stop: None,
            terminal,
            given: None,
        })
    }

    /// Starts the command. The command does not get the variables `secret` of this program.
    pub(super) fn run(
        &mut self,
        options: &RunOptions,
        secret: &[String],
        hold: &Hold,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let (program, arguments) = options.command.split_first().unwrap_or_else(|| unreachable!("clap wants one"));
        // Ctrl-Z stops the other processes of a pipeline. Without a handler it would stop this process too. A stopped
        // process cannot renew the lock.
        signals.listen_to(Signal::TSTP).map_err(Failure::system)?;
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_ours_alone()) {
            terminal.give_to(self.id).map_err(Failure::system)?;
        }
        let mut command = Command::new(program);
        for variable in secret {
            command.env_remove(variable);
        }
        describe(hold, &options.locks, &mut command);
        let spawned = command.args(arguments).process_group(self.id.as_raw_nonzero().get()).spawn();
        let command = spawned.map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { Code::NOT_FOUND } else { Code::CANNOT_RUN };
            Failure::new(code, format!("{}: {error}", program.display()))
        })?;
        if let Some(id) = command.id().and_then(pid) {
            signals.leave(id);
        }
        self.command = Some(command);
        Ok(())
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// A dropped future loses no event.
    pub(super) async fn event(&mut self, signals: &mut Signals) -> Event {
        let Some(command) = &mut self.command else { unreachable!("it was started") };
        tokio::select! {
            biased;
            status = command.wait() => Event::CommandEnded(status),
            () = self.watchdog.ended() => Event::WatchdogEnded,
            signal = signals.next() => Event::Signal(signal),
        }
    }

    /// Waits for the command itself, but not for processes that it leaves behind.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        match &mut self.command {
            Some(command) => command.wait().await,
            None => unreachable!("it was started"),
        }
    }

    /// Sends the deadline of the hold to the watchdog, and returns the remaining time.
    pub(super) fn tell_deadline(&mut self, hold: &Hold) -> Duration {
        let (deadline, left) = deadline(hold);
        if self.watchdog.tell(deadline) {
            self.deadline = deadline;
        }
        left
    }

    /// Returns true if the watchdog has killed the command at the deadline of the hold.
    pub(super) fn has_killed(&self, status: ExitStatus) -> bool {
        status.signal() == Some(Signal::KILL.as_raw()) && watchdog::now() >= self.deadline
    }

    pub(super) fn signal(&self, signal: Signal) {
        // An empty group is no error here.
        process::kill_process_group(self.id, signal).ok();
    }

    /// Handles an event, and returns the command's status if it has ended.
    pub(super) async fn on_event(
        &mut self,
        event: Event,
        hold: &Hold,
        signals: &mut Signals,
        output: Output,
    ) -> io::Result<Option<ExitStatus>> {
        match event {
            Event::CommandEnded(status) => return status.map(Some),
            Event::WatchdogEnded => self.replace_watchdog(hold, signals, output).await,
            Event::Signal(signal) => self.on_signal(signal, output),
        }
        Ok(None)
    }

    /// Forwards a signal to the command, unless it concerns this process or its children.
    fn on_signal(&self, signal: Signal, output: Output) {
        if signal == Signal::CHILD {
            self.wake_watchdog(output);
        } else if signal != Signal::TSTP {
            self.signal(signal);
        } else if self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            // Ctrl-Z has stopped the other processes of the pipeline. They continue, as the command does.
            process::kill_current_process_group(Signal::CONT).ok();
        }
    }

    /// Continues a stopped watchdog, because a stopped watchdog cannot kill the group at the deadline.
    fn wake_watchdog(&self, output: Output) {
        if let Some(Change::Stopped(_)) = stops::change_of(self.watchdog.id()) {
            process::kill_process(self.watchdog.id(), Signal::CONT).ok();
            output.tell("watchdog", "the process that watches over the command was stopped, and goes on");
        }
    }

    /// Starts another watchdog in place of one that has ended.
    async fn replace_watchdog(&mut self, hold: &Hold, signals: &mut Signals, output: Output) {
        // At the deadline a watchdog kills the group, and itself with it. The end of the command follows, and a later
        // deadline would make that look like the command's own.
        let is_due = self.deadline != watchdog::OVER && watchdog::now() >= self.deadline;
        if is_due && tokio::time::timeout(ENDS_WITHIN, self.ended()).await.is_ok() {
            return;
        }
        // The new watchdog joins the group before the old watchdog is reaped, so that the group's id stays in use.
        self.deadline = deadline(hold).0;
        match Watchdog::join(self.id, self.deadline) {
            Ok(new) => {
                signals.leave(new.id());
                let mut old = std::mem::replace(&mut self.watchdog, new);
                self.is_unwatched = false;
                old.reap().await;
                output.tell("watchdog", "the process that watches over the command was killed: another one watches");
            }
            Err(error) => {
                self.watchdog.put_off();
                if !std::mem::replace(&mut self.is_unwatched, true) {
                    let why =
                        "the process that watches over the command was killed, and another one could not be started";
                    output.tell("watchdog", &format!("{why}: {error}"));
                }
            }
        }
    }

    /// Handles stops of the command.
    ///
    /// If the command has stopped for lack of the terminal, the group gets the terminal as soon as possible. `run`
    /// reports other stops to the user, since a stopped command keeps the lock.
    pub(super) fn attend_to_stops(&mut self, locks: &Locks, output: Output) {
        let Some(command) = self.command.as_ref().and_then(Child::id).and_then(pid) else { return };
        let change = stops::change_of(command);
        if let Some(Change::Stopped(signal)) = change {
            self.stop = Some(Stop::by(signal));
        }
        if change == Some(Change::Continued) && self.stop.take().is_some_and(|stop| stop.was_told()) {
            output.tell("continued", &format!("{}: the command goes on", locks.title()));
        }
        if self.given.is_some_and(|given| given.elapsed() < LATE_STOPS) {
            self.signal(Signal::CONT);
        }
        let Some(stop) = &mut self.stop else { return };
        let terminal = self.terminal.as_ref();
        if stop.is_for_terminal()
            && let Some(terminal) = terminal
            && terminal.is_ours()
            && terminal.give_to(self.id).is_ok()
        {
            self.given = Some(Instant::now());
        }
        // The shell does not notice the stop, so the shell would neither take the terminal nor continue the command.
        if (stop.is_for_terminal() || stop.is_by_key()) && terminal.is_some_and(|terminal| terminal.is_of(self.id)) {
            self.signal(Signal::CONT);
        } else if let Some(why) = stop.next_line() {
            let are = locks.by_number("is", "are");
            output.tell("stopped", &format!("{} {are} kept, but the command is {why}", locks.title()));
        }
    }

    /// Kills all processes of the group.
    pub(super) async fn kill(&mut self) {
        if self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(self.id)) {
            // The watchdog kills the group after it has given the terminal back.
            self.watchdog.tell(watchdog::NOW);
            self.watchdog.ends_within(HAND_BACK).await;
        }
        self.signal(Signal::KILL);
    }

    /// Ends the processes that the command has left behind, and the watchdog. The processes get SIGTERM first. They get
    /// SIGKILL after the grace, or earlier at the deadline of the hold.
    pub(super) async fn clear(&mut self, hold: &Hold, grace: Duration) {
        if self.has_others() == Some(true) {
            self.signal(Signal::TERM);
            let until = Instant::now() + grace;
            while Instant::now() < until && !self.tell_deadline(hold).is_zero() && self.has_others() == Some(true) {
                tokio::time::sleep(LOOK).await;
            }
        }
        self.watchdog.dismiss().await;
        // The kernel can give the id of a reaped watchdog, and so of the group, to another process. So this signal
        // comes before the watchdog is reaped.
        self.signal(Signal::KILL);
        self.watchdog.reap().await;
    }

    fn has_others(&self) -> Option<bool> {
        others::are_in(self.id, &[self.watchdog.id()])
    }
}

/// Sets the variables with the names and tokens of the locks. Removes those of another `run`, of which this process may be
/// the command.
fn describe(hold: &Hold, locks: &Locks, command: &mut Command) {
    for (variable, _) in env::vars_os() {
        let name = variable.to_str().and_then(|variable| variable.strip_prefix("RWLOCK_"));
        if name.is_some_and(|name| name.starts_with("NAME_") || name.starts_with("FENCING_TOKEN")) {
            command.env_remove(&variable);
        }
    }
    command.env_remove("RWLOCK_NAME");
    for (number, (lock, token)) in (1..).zip(locks.all().iter().zip(hold.fencing_tokens())) {
        let end = if locks.only().is_some() { String::new() } else { format!("_{number}") };
        command.env(format!("RWLOCK_NAME{end}"), lock.name());
        command.env(format!("RWLOCK_FENCING_TOKEN{end}"), token.to_string());
    }
}

/// Returns the deadline of the hold by the watchdog's clock, and the remaining time.
fn deadline(hold: &Hold) -> (u64, Duration) {
    // This order of the two readings makes the deadline too early rather than too late.
    let now = watchdog::now();
    let left = hold.remaining();
    let deadline = now.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    (deadline.max(watchdog::NOW + 1), left)
}

pub(super) fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}
