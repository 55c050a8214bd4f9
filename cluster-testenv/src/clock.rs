//! A clock that tests set, for one server.
//!
//! `clock.c`, loaded into the server, adds an offset to the machine's time of day. It is compiled when a node with such a
//! clock starts, by the `cc` that Rust needs for linking anyway. So it works with every server that is linked dynamically.

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
/// Valkey 9 asks for the time of day once in a millisecond and counts on from there in between. A step is not over before.
const READ_AGAIN: Duration = Duration::from_millis(2);
/// Two offsets of eight bytes each, and which of them counts.
const WHICH_AT: u64 = 16;

/// The time of day of one server, as the server sees it: the machine's, until a test steps it.
///
/// Whatever the server does after a step has returned sees it, `TIME` and the expiry of keys alike.
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
    /// Makes the library and the file of a clock that is right, in the server's folder.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        let (library, path) = (dir.join("clock.so"), dir.join("clock"));
        compile(&library)?;
        let doing = || format!("making {}", path.display());
        fs::write(&path, [0; WHICH_AT as usize + 8]).map_err(Error::io(doing()))?;
        let shared = File::options().write(true).open(&path).map_err(Error::io(doing()))?;
        Ok(Self { library, path, shared, state: Mutex::default() })
    }

    /// What has to be in the server's environment.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("TESTENV_CLOCK", self.path.clone().into())]
    }

    /// Steps it forwards.
    ///
    /// # Panics
    ///
    /// When the operating system does not let us write a file of our own.
    pub fn step_forward(&self, by: Duration) {
        self.step(micros(by));
    }

    /// Steps it backwards.
    ///
    /// # Panics
    ///
    /// As [`NodeClock::step_forward`].
    pub fn step_back(&self, by: Duration) {
        self.step(-micros(by));
    }

    /// Sets it right again.
    ///
    /// # Panics
    ///
    /// As [`NodeClock::step_forward`].
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
    /// First the offset that nobody reads, then the byte that makes it count.
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
