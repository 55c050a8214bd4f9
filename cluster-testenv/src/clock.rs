//! Time of day of one server, which tests set.
//!
//! The library `clock.c` adds an offset to the machine's time of day. It is compiled when a node with such a clock
//! starts, by the `cc` that Rust needs for linking anyway. So it works with every server that is linked dynamically.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use crate::{Error, Result};

const SOURCE: &[u8] = include_bytes!("clock.c");
/// Wait after a step. Valkey 9 reads the time of day once per millisecond and counts on from this value, so a step
/// takes effect later.
const READ_AGAIN: Duration = Duration::from_millis(2);
/// Position in the file of the byte that selects one of the two offsets, which take eight bytes each.
const WHICH_AT: u64 = 16;

/// Time of day of one server. It is the machine's time until a test steps it.
///
/// After a step has returned, the server uses the new time for everything, for `TIME` and for the expiry of keys.
#[derive(Debug)]
pub struct NodeClock {
    library: PathBuf,
    path: PathBuf,
    shared: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ahead_us: i64,
    which: u8,
}

impl NodeClock {
    /// Creates the library and the file of a clock with offset zero, in the server's folder.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        let (library, path) = (dir.join("clock.so"), dir.join("clock"));
        compile(&library)?;
        let doing = || format!("making {}", path.display());
        fs::write(&path, [0; WHICH_AT as usize + 8]).map_err(Error::io(doing()))?;
        let shared = File::options().write(true).open(&path).map_err(Error::io(doing()))?;
        Ok(Self { library, path, shared, state: Mutex::default() })
    }

    /// Environment variables that the server needs.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("TESTENV_CLOCK", self.path.clone().into())]
    }

    /// Steps the clock forwards.
    ///
    /// # Panics
    ///
    /// When the operating system refuses to write the clock's file.
    pub fn step_forward(&self, by: Duration) {
        self.step(micros(by));
    }

    /// Steps the clock backwards.
    ///
    /// # Panics
    ///
    /// In the cases of [`NodeClock::step_forward`].
    pub fn step_back(&self, by: Duration) {
        self.step(-micros(by));
    }

    /// Sets the clock back to the machine's time.
    ///
    /// # Panics
    ///
    /// In the cases of [`NodeClock::step_forward`].
    pub fn set_right(&self) {
        let mut state = self.state.lock().expect("no step panics");
        state.show(&self.shared, 0);
    }

    fn step(&self, by_us: i64) {
        let mut state = self.state.lock().expect("no step panics");
        let ahead_us = state.ahead_us + by_us;
        state.show(&self.shared, ahead_us);
    }
}

impl State {
    /// Writes the offset that the server does not use now, and then the byte that selects this offset.
    fn show(&mut self, shared: &File, ahead_us: i64) {
        *self = Self { ahead_us, which: 1 - self.which };
        let written = shared.write_all_at(&ahead_us.to_ne_bytes(), u64::from(self.which) * 8);
        written.and_then(|()| shared.write_all_at(&[self.which], WHICH_AT)).expect("a file of our own can be written");
        thread::sleep(READ_AGAIN);
    }
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).expect("a step is shorter than 292,000 years")
}

fn compile(library: &Path) -> Result<()> {
    let doing = || format!("compiling {} with cc", library.display());
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-x", "c", "-o"]).arg(library).arg("-");
    let mut child = cc.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Error::io(doing()))?;
    let given = child.stdin.take().expect("it was asked for").write_all(SOURCE);
    let output = child.wait_with_output().map_err(Error::io(doing()))?;
    given.map_err(Error::io(doing()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Unexpected(format!("{}: {}", doing(), String::from_utf8_lossy(&output.stderr))))
}
