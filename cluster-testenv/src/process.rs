//! One server process: started, signalled and reaped.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Writes the process id where the guardian looks for it, all or nothing, and only then becomes the server. See
/// `guardian.sh` for why the server is not started when that fails.
const LISTED_THEN_SERVER: &str = r#"echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@""#;

/// A server process that has a folder with its id and its output.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid_file: PathBuf,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    /// Ended and reaped: its id may be another process's by now.
    Ended,
}

impl Process {
    /// Starts `binary` with `args` and more environment variables. The folder `dir` is there and lies in the guardian's.
    pub(crate) fn start(
        binary: &Path,
        args: &[String],
        dir: &Path,
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> io::Result<Self> {
        let pid_file = dir.join("pid");
        let log = File::create(Self::log_file(dir))?;
        let child = Command::new("sh")
            .args(["-c", LISTED_THEN_SERVER])
            .arg(&pid_file)
            .arg(binary)
            .args(args)
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the process that holds the environment; servers end by its guardian.
            .process_group(0)
            .spawn()?;
        Ok(Self { child, pid_file, state: State::Running })
    }

    /// Where a process with the folder `dir` writes its output.
    pub(crate) fn log_file(dir: &Path) -> PathBuf {
        dir.join("log")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is neither paused nor ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.reap_if_ended();
        self.state == State::Running
    }

    /// Whether it has ended, by itself or killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.reap_if_ended();
        self.state == State::Ended
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if self.state == State::Ended {
            return Ok(());
        }
        self.child.kill()?;
        self.unlist();
        self.child.wait()?;
        self.state = State::Ended;
        Ok(())
    }

    /// Stops it and waits until it stands still. An ended one stays ended.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        self.reap_if_ended();
        if self.state == State::Running {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, Signal::STOP)?;
            // A signal is delivered some time after it was sent. A process that ends meanwhile must stay to be reaped.
            let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), until)?;
            self.state = State::Paused;
        }
        Ok(())
    }

    /// Lets it go on after a pause.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        self.reap_if_ended();
        if self.state == State::Paused {
            kill_process(Pid::from_child(&self.child), Signal::CONT)?;
            self.state = State::Running;
        }
        Ok(())
    }

    fn reap_if_ended(&mut self) {
        if self.state == State::Ended {
            return;
        }
        let pid = Pid::from_child(&self.child);
        let look_only = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::Pid(pid), look_only), Ok(Some(_))) {
            self.unlist();
            // It has ended, so this returns at once, and cannot fail: it is our child, and was not reaped before.
            drop(self.child.wait());
            self.state = State::Ended;
        }
    }

    /// Takes the id from the guardian's list, before another process can have it.
    fn unlist(&self) {
        // The file is missing when the shell never came to write it.
        drop(fs::remove_file(&self.pid_file));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only when there is no such child any more, which is what is wanted.
        drop(self.kill());
    }
}
