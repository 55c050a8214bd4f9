//! Starts, signals and reaps one server process.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Shell line that writes the process id for the guardian atomically, and only then becomes the server. If the write
/// fails, the server does not start. `guardian.sh` explains the reason.
const LISTED_THEN_SERVER: &str = r#"echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@""#;

/// Server process, and the folder with its id and its output.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid_file: PathBuf,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    /// The process has ended and was reaped. Another process may have its id by now.
    Ended,
}

impl Process {
    /// Starts `binary` with `args` and more environment variables. The folder `dir` exists and lies in the guardian's
    /// folder.
    pub fn start(
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
            // Ctrl-C must reach only the process that owns the environment. The guardian ends the servers.
            .process_group(0)
            .spawn()?;
        Ok(Self { child, pid_file, state: State::Running })
    }

    /// File for the output of the process with the folder `dir`.
    pub fn log_file(dir: &Path) -> PathBuf {
        dir.join("log")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process is neither paused nor ended.
    pub fn is_running(&mut self) -> bool {
        self.reap_if_ended();
        self.state == State::Running
    }

    /// Returns true if the process has ended, by itself or by a signal.
    pub fn has_ended(&mut self) -> bool {
        self.reap_if_ended();
        self.state == State::Ended
    }

    /// Kills the process and waits until it has ended.
    pub fn kill(&mut self) -> io::Result<()> {
        if self.state == State::Ended {
            return Ok(());
        }
        self.child.kill()?;
        self.unlist();
        self.child.wait()?;
        self.state = State::Ended;
        Ok(())
    }

    /// Stops the process and waits until it is stopped. An ended process stays ended.
    pub fn pause(&mut self) -> io::Result<()> {
        self.reap_if_ended();
        if self.state == State::Running {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, Signal::STOP)?;
            // The kernel delivers a signal some time after the call. A process that ends meanwhile must remain a zombie
            // until it is reaped.
            let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), until)?;
            self.state = State::Paused;
        }
        Ok(())
    }

    /// Continues the process after a pause.
    pub fn resume(&mut self) -> io::Result<()> {
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
            // The process has ended, so this returns at once. It cannot fail, since the process is our child and was
            // not reaped before.
            drop(self.child.wait());
            self.state = State::Ended;
        }
    }

    /// Removes the id from the guardian's list, before another process can get this id.
    fn unlist(&self) {
        // The file is missing if the shell did not reach the write.
        drop(fs::remove_file(&self.pid_file));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails only if the child does not exist any more, which is the desired state.
        drop(self.kill());
    }
}
