//! Terminal of this process, and the process group that has the terminal.
//!
//! Other processes of our group may need the terminal, such as `less` in a pipeline. So the command gets the terminal
//! at its start only if it is not in a pipeline. Otherwise the command gets the terminal when it stops for lack of the
//! terminal.

use std::fs::File;
use std::io::{self, IsTerminal};

use rustix::process::Pid;
use rustix::{stdio, termios};

use super::others;

#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
}

impl Terminal {
    /// Opens the terminal of the session; cron and systemd give none.
    pub(super) fn open() -> Option<Self> {
        Some(Self { tty: File::open("/dev/tty").ok()? })
    }

    /// Returns true if this process group may read from the terminal.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        termios::tcgetpgrp(&self.tty).is_ok_and(|owner| owner == group)
    }

    /// Returns true if our own process group may read from the terminal, and so may give it away.
    pub(super) fn is_ours(&self) -> bool {
        others::own_group().is_some_and(|group| self.is_of(group))
    }

    /// Returns true if input and output are this terminal, and our group has the terminal. No other process needs the
    /// terminal then.
    pub(super) fn is_ours_alone(&self) -> bool {
        let of_input = termios::tcgetpgrp(stdio::stdin()).ok();
        io::stdin().is_terminal()
            && io::stdout().is_terminal()
            && self.is_ours()
            && of_input.is_some_and(|owner| self.is_of(owner))
    }

    /// Gives the terminal to a process group. Only the group that has the terminal may call this. The kernel stops a
    /// process of another group that tries.
    pub(super) fn give_to(&self, group: Pid) -> io::Result<()> {
        Ok(termios::tcsetpgrp(&self.tty, group)?)
    }
}
