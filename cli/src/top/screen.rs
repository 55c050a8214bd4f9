//! Full screen in a terminal, and the restoration of the terminal.

use std::io::{self, Write};

use rustix::stdio;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};

/// Switches to the alternate screen without cursor and line wrapping; `LEAVE` switches back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";
/// Number of rows where a terminal reports none.
const ROWS: usize = 24;

/// Terminal with a full screen. The drop restores the terminal.
#[derive(Debug)]
pub(super) struct Screen {
    before: Termios,
}

impl Screen {
    /// Opens the full screen. From now on the terminal delivers each key at once and without echo, and sends no signal
    /// for keys such as Ctrl-C.
    pub(super) fn open() -> io::Result<Self> {
        let before = termios::tcgetattr(stdio::stdin())?;
        let mut modes = before.clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        termios::tcsetattr(stdio::stdin(), OptionalActions::Now, &modes)?;
        let screen = Self { before };
        write(ENTER)?;
        Ok(screen)
    }

    /// Draws as many of the lines as fit.
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let size = termios::tcgetwinsize(stdio::stdout());
        let rows = size.map_or(ROWS, |size| usize::from(size.ws_row)).max(1);
        let lines = lines.iter().take(rows).map(|line| format!("{line}{REST_OF_LINE}")).collect::<Vec<_>>();
        write(&[HOME, &lines.join("\r\n"), REST_OF_SCREEN].concat())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        write(LEAVE).ok();
        termios::tcsetattr(stdio::stdin(), OptionalActions::Now, &self.before).ok();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
