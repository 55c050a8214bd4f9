//! Process that leads the command's process group, and kills the group if `run` fails to kill it.
//!
//! `run` sends the deadline of the hold to the watchdog through a pipe. Each message has eight bytes: the deadline in
//! nanoseconds. Its clock goes on while the machine sleeps.
//!
//! The watchdog kills the group, itself included, at the deadline. It also kills the group when the pipe closes, since
//! `run` was killed then. As the leader, the watchdog is in the group before the first process of the command. If the
//! watchdog is killed, `run` starts another watchdog in the same group.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{self, Pid, Signal};
use rustix::termios;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Code, Failure};

mod handle;

pub(super) use handle::Watchdog;

const COMMAND: &str = "watch-over-group";
/// Message in place of a deadline: the command has ended.
pub(super) const OVER: u64 = 0;
/// Message in place of a deadline: kill the group now.
pub(super) const NOW: u64 = 1;
/// Byte that the watchdog writes when it is ready.
const READY: u8 = b'.';

/// Signals that may reach the group from a terminal or from `run`, and must not end or stop this process.
const BORNE: [Signal; 10] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];
/// Longest single wait. A wait pauses while the machine sleeps, but the clock of the deadline does not. So the watchdog
/// reads the clock often.
const LOOK: Duration = Duration::from_millis(250);

/// Arguments of a watchdog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// Process group that gets the terminal afterwards; 0 for none.
    heir: i32,
    /// Deadline of the hold, if the command runs already; 0 if `run` sends the deadline later.
    deadline: u64,
}

/// Returns the task if this process was started as a watchdog.
pub(crate) fn asked_for(mut words: impl Iterator<Item = OsString>) -> Option<Task> {
    if words.nth(1)? != COMMAND {
        return None;
    }
    let mut number = || words.next()?.into_string().ok();
    Some(Task { heir: number()?.parse().ok()?, deadline: number()?.parse().ok()? })
}

/// Watches over the process group of this process, and gives the terminal to the heir at the end.
pub(crate) fn watch(task: Task) -> Result<Code, Failure> {
    match bear_signals() {
        // If `run` was killed meanwhile, no process reads this byte. The watchdog is needed then, so it ignores the
        // error.
        Ok(()) => drop(io::stdout().write_all(&[READY]).and_then(|()| io::stdout().flush())),
        // `run` does not start the command without a watchdog.
        Err(error) if task.deadline == OVER => return Err(Failure::system(error)),
        // The command runs already: a watchdog that a signal may end is better than none.
        Err(_) => {}
    }
    let (told, words) = mpsc::channel();
    thread::spawn(move || {
        let mut word = [0; 8];
        while io::stdin().read_exact(&mut word).is_ok() && told.send(u64::from_le_bytes(word)).is_ok() {}
    });
    let is_over = wait(&words, (task.deadline != OVER).then_some(task.deadline));
    hand_terminal_to(task.heir);
    if !is_over {
        process::kill_current_process_group(Signal::KILL).map_err(|error| Failure::system(error.into()))?;
    }
    Ok(Code::OK)
}

/// Installs handlers for the signals that must not end this process. They stay for as long as the process runs, since a
/// dropped stream leaves its handler in place.
fn bear_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    for borne in BORNE {
        drop(signal(SignalKind::from_raw(borne.as_raw()))?);
    }
    Ok(())
}

/// Waits for the end of the command or of the hold. Returns true if the command has ended, and false if the watchdog
/// must kill the group.
fn wait(words: &Receiver<u64>, mut deadline: Option<u64>) -> bool {
    loop {
        let left = deadline.map_or(LOOK, |deadline| Duration::from_nanos(deadline.saturating_sub(now())));
        match words.recv_timeout(left.min(LOOK)) {
            Ok(OVER) => return true,
            Ok(NOW) | Err(RecvTimeoutError::Disconnected) => return false,
            Ok(moment) => deadline = Some(moment),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if deadline.is_some_and(|deadline| deadline <= now()) {
            return false;
        }
    }
}

/// Returns the nanoseconds of a clock that all processes of the machine share.
pub(super) fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    let (secs, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Gives the terminal to another process group. The kernel permits this to a process of the group that has the
/// terminal. It would stop `run` for the attempt.
fn hand_terminal_to(heir: i32) {
    if let (Some(heir), Ok(terminal)) = (Pid::from_raw(heir), File::open("/dev/tty"))
        && termios::tcgetpgrp(&terminal).is_ok_and(|owner| owner == process::getpgrp())
    {
        // If this fails, the shell takes the terminal by itself.
        termios::tcsetpgrp(&terminal, heir).ok();
    }
}
