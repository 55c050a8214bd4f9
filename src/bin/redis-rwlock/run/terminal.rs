//! The terminal that this process was started from, and the process group that has it.
//!
//! Others of our group may need it, such as the `less` of a pipe. So it is given to the command at the start only if no pipe is
//! there, and else when the command is stopped for want of it.

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
    /// Opens the terminal of the session; there is none in cron or below systemd.
    pub(super) fn open() -> Option<Self> {
        Some(Self { tty: File::open("/dev/tty").ok()? })
    }

    /// Whether this process group may read from it.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        termios::tcgetpgrp(&self.tty).is_ok_and(|owner| owner == group)
    }

    /// Whether our own process group may read from it, so that it is ours to give away.
    pub(super) fn is_ours(&self) -> bool {
        others::own_group().is_some_and(|group| self.is_of(group))
    }

    /// Whether input and output are this terminal, and ours: nobody else needs it then.
    pub(super) fn is_ours_alone(&self) -> bool {
        let of_input = termios::tcgetpgrp(stdio::stdin()).ok();
        io::stdin().is_terminal()
            && io::stdout().is_terminal()
            && self.is_ours()
            && of_input.is_some_and(|owner| self.is_of(owner))
    }

    /// Gives it to a process group. Only for who has it: the kernel stops others that try.
    pub(super) fn give_to(&self, group: Pid) -> io::Result<()> {
        Ok(termios::tcsetpgrp(&self.tty, group)?)
    }
}
